"""Catalogue of devices, from ``devices.yaml``; an entry may extend an earlier one (``base``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue import presets
from simcluster.documents.diagnostics import did_you_mean


def device_names() -> tuple[str, ...]:
    """Return the names of the built-in devices, in the order of the catalogue."""
    return tuple(_catalogue())


def device_document(name: str) -> dict[str, Any]:
    """Return a copy of a built-in device's fields for ``Device``, with its ``name``.

    Raises InputError for a name that is not in the catalogue.
    """
    catalogue = _catalogue()
    if not isinstance(name, str) or name not in catalogue:
        written = str(name).lower()
        near = [known for known in catalogue if known.startswith(written)] or catalogue  # a100 is no slip for h100
        raise InputError(
            f"there is no device {name!r}{did_you_mean(written, near)}; known: "
            f"{', '.join(catalogue)}; or define your own from one of these: {{base: h100, memory: 96 GB}}"
        )
    return overlaid({"name": name}, catalogue[name])


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings recursively; ``above`` wins, and replaces parts of another ``kind`` whole."""
    result = {key: overlaid({}, value) if isinstance(value, Mapping) else value for key, value in below.items()}
    for key, value in above.items():
        old = result.get(key)
        if not isinstance(value, Mapping):
            result[key] = value
        elif isinstance(old, Mapping) and value.get("kind", old.get("kind")) == old.get("kind"):
            result[key] = overlaid(old, value)
        else:
            result[key] = overlaid({}, value)
    return result


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    filled: dict[str, dict[str, Any]] = {}
    for name, entry in presets("devices.yaml").items():
        own = {key: value for key, value in entry.items() if key != "base"}
        filled[name] = overlaid(filled[entry["base"]], own) if "base" in entry else own
    return filled
