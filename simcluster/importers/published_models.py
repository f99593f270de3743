"""Models that other tools call by name: the catalogue's, and those of ``published_models.yaml`` beside this file."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from simcluster.documents.catalogue import presets
from simcluster.documents.reading import read_document


@cache
def _sizes() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, entry in read_document(Path(__file__).with_suffix(".yaml")).data.items():
        found[name] = {**found.get(entry.get("base", ""), {}), **{key: entry[key] for key in entry if key != "base"}}
    return {name: {"name": name, **fields} for name, fields in found.items() if not name.startswith("_")}


def published_names() -> tuple[str, ...]:
    """All names, the catalogue's first."""
    return (*presets("models.yaml"), *_sizes())


def published_model(name: str) -> dict[str, Any]:
    """The model section of a scenario: the preset's name, or all fields; KeyError for one that is not known."""
    return {"preset": name} if name in presets("models.yaml") else deepcopy(_sizes()[name])


def model_sizes(name: str) -> dict[str, Any]:
    """All fields of a model by its name."""
    section = published_model(name)
    return presets("models.yaml")[name] if "preset" in section else section
