"""Catalogue of built-in GPUs (``devices.yaml``); with the key ``base``, an entry extends an earlier entry."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue import load_presets
from simcluster.documents.diagnostics import did_you_mean


def device_names() -> tuple[str, ...]:
    """Return the names of the built-in GPUs, in the order of the catalogue."""
    return tuple(_load_devices())


def load_device_entry(name: str) -> dict[str, Any]:
    """Return a copy of a built-in GPU's catalogue entry: the fields of ``Device``, including ``name``.

    Raises InputError for a name that is not in the catalogue.
    """
    catalogue = _load_devices()
    if not isinstance(name, str) or name not in catalogue:
        written = str(name).lower()
        near = [known for known in catalogue if known.startswith(written)] or catalogue  # do not suggest h100 for a100
        raise InputError(
            f"there is no device {name!r}{did_you_mean(written, near)}; known: "
            f"{', '.join(catalogue)}; or define your own from one of these: {{base: h100, memory: 96 GB}}"
        )
    return merge_mappings({"name": name}, catalogue[name])


def merge_mappings(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings: ``changes`` wins, and a section with a different ``kind`` is replaced entirely."""
    result = {key: merge_mappings({}, value) if isinstance(value, Mapping) else value for key, value in base.items()}
    for key, value in changes.items():
        old = result.get(key)
        if not isinstance(value, Mapping):
            result[key] = value
        elif isinstance(old, Mapping) and value.get("kind", old.get("kind")) == old.get("kind"):
            result[key] = merge_mappings(old, value)
        else:
            result[key] = merge_mappings({}, value)
    return result


@cache
def _load_devices() -> dict[str, dict[str, Any]]:
    filled: dict[str, dict[str, Any]] = {}
    for name, entry in load_presets("devices.yaml").items():
        own = {key: value for key, value in entry.items() if key != "base"}
        filled[name] = merge_mappings(filled[entry["base"]], own) if "base" in entry else own
    return filled
