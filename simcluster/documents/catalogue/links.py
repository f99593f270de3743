"""Links by name, from ``links.yaml`` beside this file: what ``preset: ndr`` in a topology file stands for."""

from __future__ import annotations

from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue import presets
from simcluster.documents.diagnostics import did_you_mean


def link_document(name: object) -> dict[str, Any]:
    """The fields of a preset as a fresh document: line_rate, efficiency, latency, medium, source.

    Raises InputError for a name that is not in the catalogue.
    """
    catalogue = presets("links.yaml")
    if not isinstance(name, str) or name not in catalogue:
        raise InputError(
            f"there is no link preset {name!r}{did_you_mean(str(name).lower(), catalogue)}; "
            f"those that ship: {', '.join(catalogue)}; or write line_rate, efficiency and latency out"
        )
    return dict(catalogue[name])
