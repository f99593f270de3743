"""Catalogue of built-in GPUs, from ``devices.yaml``; an entry may extend an earlier one (``base``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue import load_presets
from simcluster.documents.diagnostics import did_you_mean


def device_names() -> tuple[str, ...]:
    """Return the names of the built-in GPUs, in the order of the catalogue."""
    return tuple(_load_catalogue())


def device_document(name: str) -> dict[str, Any]:
    """Return a copy of a built-in GPU's entry (the fields of ``Device``), with its ``name``.

    Raises InputError for a name that is not in the catalogue.
    """
    catalogue = _load_catalogue()
    if not isinstance(name, str) or name not in catalogue:
        written = str(name).lower()
        near = [known for known in catalogue if known.startswith(written)] or catalogue  # a100 is no slip for h100
        raise InputError(
            f"there is no device {name!r}{did_you_mean(written, near)}; known: "
            f"{', '.join(catalogue)}; or define your own from one of these: {{base: h100, memory: 96 GB}}"
        )
    return merge_mappings({"name": name}, catalogue[name])


def merge_mappings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested mappings; ``above`` wins, and replaces a section of another ``kind`` as a whole."""
    result = {key: merge_mappings({}, value) if isinstance(value, Mapping) else value for key, value in below.items()}
    for key, value in above.items():
        old = result.get(key)
        if not isinstance(value, Mapping):
            result[key] = value
        elif isinstance(old, Mapping) and value.get("kind", old.get("kind")) == old.get("kind"):
            result[key] = merge_mappings(old, value)
        else:
            result[key] = merge_mappings({}, value)
    return result


@cache
def _load_catalogue() -> dict[str, dict[str, Any]]:
    filled: dict[str, dict[str, Any]] = {}
    for name, entry in load_presets("devices.yaml").items():
        own = {key: value for key, value in entry.items() if key != "base"}
        filled[name] = merge_mappings(filled[entry["base"]], own) if "base" in entry else own
    return filled
