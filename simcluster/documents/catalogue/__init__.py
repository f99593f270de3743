"""Catalogue of built-in devices, links, models and other presets, with lookup by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.yaml_documents import read_document


def catalogue_path(name: str) -> Path:
    """Return the path of a catalogue file, e.g. ``catalogue_path("models.yaml")``."""
    return Path(__file__).parent / name


@cache
def load_presets(name: str) -> dict[str, Any]:
    """Return a catalogue file's entries by name; the dict is cached, so callers must not change it."""
    return read_document(catalogue_path(name)).data


def load_link_entry(name: object) -> dict[str, Any]:
    """Return a copy of a link type's catalogue entry: line_rate, efficiency, latency, medium and source.

    Raises InputError for a name that is not in the catalogue.
    """
    catalogue = load_presets("links.yaml")
    if not isinstance(name, str) or name not in catalogue:
        raise InputError(
            f"there is no link preset {name!r}{did_you_mean(str(name).lower(), catalogue)}; "
            f"known: {', '.join(catalogue)}; or write line_rate, efficiency and latency"
        )
    return dict(catalogue[name])
