"""Catalogue of built-in devices, links, models and other presets by name, each with its source."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from simcluster.documents.reading import read_document


def catalogue_path(name: str) -> Path:
    """Return the path of a catalogue file, e.g. ``catalogue_path("models.yaml")``."""
    return Path(__file__).parent / name


@cache
def load_presets(name: str) -> dict[str, Any]:
    """Return the entries of a catalogue file such as ``models.yaml``, by name; the caller must not change them."""
    return read_document(catalogue_path(name)).data
