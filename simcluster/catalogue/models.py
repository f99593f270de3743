"""Model presets by name, from ``models.yaml`` beside this file."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

from simcluster.catalogue import catalogue_path
from simcluster.documents.complaints import did_you_mean
from simcluster.documents.reading import read_document
from simcluster.errors import InputError


def preset_names() -> tuple[str, ...]:
    """The model presets that ship, in the order of the catalogue."""
    return tuple(_catalogue())


def model_document(name: str) -> dict[str, Any]:
    """The fields of a preset as a fresh document for ``Model``; ``name`` is among them.

    Raises InputError for a name that is not in the catalogue.
    """
    presets = _catalogue()
    if not isinstance(name, str) or name not in presets:
        raise InputError(
            f"there is no model preset {name!r}; those that ship: {', '.join(presets)}; "
            f"or give the path of a config.json{did_you_mean(str(name).lower(), presets)}"
        )
    return {"name": name, **deepcopy(presets[name])}


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    return read_document(catalogue_path("models.yaml")).data
