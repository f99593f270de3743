"""Links by name, from ``links.yaml`` beside this file: what ``preset: ndr`` in a topology file stands for."""

from __future__ import annotations

from functools import cache
from typing import Any

from simcluster.catalogue import catalogue_path
from simcluster.documents.complaints import did_you_mean
from simcluster.documents.reading import read_document
from simcluster.errors import InputError


def link_names() -> tuple[str, ...]:
    """The presets that ship, in the order of the catalogue."""
    return tuple(_catalogue())


def link_document(name: object) -> dict[str, Any]:
    """The fields of a preset as a fresh document: line_rate, efficiency, latency, medium, source.

    Raises InputError for a name that is not in the catalogue.
    """
    catalogue = _catalogue()
    if not isinstance(name, str) or name not in catalogue:
        raise InputError(
            f"there is no link preset {name!r}{did_you_mean(str(name).lower(), catalogue)}; "
            f"those that ship: {', '.join(catalogue)}; or write line_rate, efficiency and latency out"
        )
    return dict(catalogue[name])


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    return read_document(catalogue_path("links.yaml")).data
