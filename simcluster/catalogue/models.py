"""Model presets by name, from ``models.yaml`` beside this file."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from simcluster.base.errors import InputError
from simcluster.catalogue import presets
from simcluster.documents.diagnostics import did_you_mean


def model_document(name: str) -> dict[str, Any]:
    """The fields of a preset as a fresh document for ``Model``; ``name`` is among them.

    Raises InputError for a name that is not in the catalogue.
    """
    known = presets("models.yaml")
    if not isinstance(name, str) or name not in known:
        raise InputError(
            f"there is no model preset {name!r}; those that ship: {', '.join(known)}; "
            f"or give the path of a config.json{did_you_mean(str(name).lower(), known)}"
        )
    return {"name": name, **deepcopy(known[name])}
