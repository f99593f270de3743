"""Catalogue of built-in devices, links, models and other presets, with lookup by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from simcluster.documents.yaml_documents import read_document


def catalogue_path(name: str) -> Path:
    """Return the path of a catalogue file, e.g. ``catalogue_path("models.yaml")``."""
    return Path(__file__).parent / name


@cache
def load_presets(name: str) -> dict[str, Any]:
    """Return a catalogue file's entries by name; the dict is cached, so callers must not change it."""
    return read_document(catalogue_path(name)).data
