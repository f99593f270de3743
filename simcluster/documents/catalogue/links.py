"""Catalogue of built-in link types, such as NDR InfiniBand; topology files use them as in ``preset: ndr``."""

from __future__ import annotations

from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue import load_presets
from simcluster.documents.diagnostics import did_you_mean


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
