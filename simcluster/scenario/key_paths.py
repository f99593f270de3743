"""Dotted paths of scenario keys: validation of a path, and the correct path of a misplaced key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, get_origin

from pydantic import BaseModel, BeforeValidator

from simcluster.base.errors import InputError
from simcluster.base.texts import find_similar_words
from simcluster.devices.device import Device
from simcluster.documents.diagnostics import APPEND, did_you_mean
from simcluster.documents.field_annotations import models_in_annotation
from simcluster.documents.yaml_documents import read_document
from simcluster.scenario.scenario_fields import ClusterSpec, ScenarioFields
from simcluster.scenario.scenario_keys import list_scenario_keys
from simcluster.scenario.sections import LONG_NAMES
from simcluster.topology import TOPOLOGIES

_BESIDE_THE_MODELS = {"model": ("preset",), "parallel": tuple(LONG_NAMES)}
"""Keys that files may have although the finished scenario does not: reading replaces them."""

_MOST_HOMES = 3  # that a message names


def check_key_path(path: str) -> None:
    """Raise InputError unless a scenario can have a key at this dotted path.

    Parameters of a topology are in ``cluster`` itself, as in files; those of every kind of topology are known. A path
    may extend a list, as overrides do (``faults+``).
    """
    models: list[type[BaseModel]] = [ScenarioFields]
    parts = path.removesuffix(APPEND).split(".")
    for position, part in enumerate(parts):
        if part.isdecimal() and position:  # an item of a list
            continue
        above = ".".join(parts[:position])
        extra = _BESIDE_THE_MODELS.get(above, ())
        if above == "cluster":
            models = [ClusterSpec, *TOPOLOGIES.values()]
        if above == "cluster.device":  # described in the scenario
            models, extra = [Device], ("base",)
        known = list(dict.fromkeys(name for model in models for name in model.model_fields))
        if not models:  # what lies below is free, or a single value
            return
        if part not in (*extra, *known):
            where = f" in {above}" if above else ""
            near = did_you_mean(part, known) or suggest_key_location(part)
            raise InputError(f"{path} is not a scenario key: no {part!r}{where}{near}; known: {', '.join(known)}")
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        if any(get_origin(field.annotation) in (dict, Mapping) for field in fields):  # by names of one's own
            return
        models = [inner for field in fields for inner in models_in_annotation(field.annotation, field.metadata)]


def find_key_paths(key: str) -> list[str]:
    """Return the dotted paths of all scenario keys with this name (or an alias), or else with the most similar name.

    >>> [find_key_paths(key) for key in ("precision", "tensor_model_parallel_size", "num_layers")]
    [['training.precision'], ['parallel.tp'], ['model.layers']]
    """
    word, known = key.strip("-").replace("-", "_").lower(), _index_keys_by_name()
    for section in ScenarioFields.model_fields:  # parallel_tp
        below = word.removeprefix(section).lstrip("_.")
        if word.startswith((f"{section}_", f"{section}.")) and f"{section}.{below}" in known.get(below, ()):
            return [f"{section}.{below}"]
    near = [word] if word in known else find_similar_words(word, known, cutoff=0.85)
    found = [path for path in known[near[0]] if not is_section(path)] if near else []
    return [path for path in found if "." not in path] or list(found)


def suggest_key_location(key: str) -> str:
    """Return where a misplaced key belongs, as in "; it belongs to model, as model.sequence_length"; "" if unknown."""
    found = find_key_paths(key)
    exact = any(path.rpartition(".")[2] == key for path in found)
    if not found or len(found) > (_MOST_HOMES if exact else 1):  # a key only like it has nothing to choose between
        return ""
    places = [f"{section}, as {path}" if section else f"the top, as {path}"
              for path in found for section in [path.rpartition(".")[0]]]  # fmt: skip
    return f"; it belongs to {' or to '.join(places)}"


def is_section(path: str) -> bool:
    """Return whether a dotted path is a section of the scenario."""
    field = ScenarioFields.model_fields.get(path)
    return field is not None and bool(models_in_annotation(field.annotation, field.metadata))


@cache
def _index_keys_by_name() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in dict.fromkeys(key.override_path for key in list_scenario_keys() if "*" not in key.path):
        if path.rpartition(".")[2] not in ("source", "kind", "name") and path != "cluster.topology":
            found.setdefault(path.rpartition(".")[2], []).append(path)
    for section, names in _BESIDE_THE_MODELS.items():
        for name in names:
            found.setdefault(name, [f"{section}.{LONG_NAMES.get(name, name)}"])
    others = read_document(Path(__file__).with_name("other_names.yaml")).data
    for path, names in others.items():
        for name in names:
            found.setdefault(name, [path])
    return found


def _check_text_path(value: object) -> object:
    if isinstance(value, str):
        check_key_path(value)
    return value


ScenarioPath = Annotated[str, BeforeValidator(_check_text_path)]
"""A dotted path into a scenario, such as parallel.tp."""
