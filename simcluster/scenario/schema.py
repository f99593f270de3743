"""JSON schema of a scenario file, for completion and checks in editors, from the sections' fields.

What the loader accepts beyond the fields is here: built-in names, paths, a topology's parameters next to its name, the
long names of axes, distributions as plain durations. What the schema rejects the loader rejects, too; rules between
keys are the loader's alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from simcluster.devices.software import Software, software_names
from simcluster.documents.catalogue import load_presets
from simcluster.documents.kinds import A_PATH, models_in
from simcluster.documents.laws import Histogram
from simcluster.documents.shipped import builtin_names
from simcluster.faults.pace import PaceFault
from simcluster.model.transformer import Model
from simcluster.scenario.fields import ClusterSpec, ScenarioFields
from simcluster.scenario.keys import Fragment, ScenarioKey, form_fragment, fragment_of, union_fragment
from simcluster.scenario.run_times import TIMES, FixedTime
from simcluster.scenario.sections import LONG_NAMES, Parallel
from simcluster.topology import TOPOLOGIES, SitesSpec
from simcluster.topology.links import PresetSpec

SCHEMA_FILE = "scenario.schema.json"
"""Name of the schema file that a new scenario references for editors."""

_DRAFT = "http://json-schema.org/draft-07/schema#"  # what editors read best
_TEXT: Fragment = {"type": "string"}


def scenario_schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file."""
    models = _list_models(ScenarioFields)
    return {
        "$schema": _DRAFT,
        "title": "simcluster scenario",
        **_object_schema(ScenarioFields),
        "$defs": {
            **{model.__name__: _object_schema(model) for model in models},
            **{f"{model.__name__}.part": _part_schema(model) for model in models if _is_topology(model)},
        },
    }


def _list_models(top: type[BaseModel]) -> list[type[BaseModel]]:
    found: dict[type[BaseModel], None] = {}

    def below(model: type[BaseModel]) -> None:
        for field in model.model_fields.values():
            for inner in models_in(field.annotation, field.metadata):
                if inner not in found:
                    found[inner] = None
                    below(inner)

    below(top)
    return list(found)


def _object_schema(model: type[BaseModel]) -> Fragment:
    properties = {name: _property_schema(model, name) for name in model.model_fields}
    for base, (name, forms, text) in _EXTRA.items():
        if issubclass(model, base):
            properties[name] = {**union_fragment(map(form_fragment, forms())), "description": text}
    found: Fragment = {
        "type": "object",
        "description": inspect.cleandoc(model.__doc__ or "").replace("``", "`"),
        "properties": properties,
        "required": [
            name
            for name, field in model.model_fields.items()
            if field.is_required() and not any(name == key and issubclass(model, base) for base, key in _OPTIONAL)
        ],
        "additionalProperties": False,
    }
    for base, liberty in _LIBERTIES.items():
        if issubclass(model, base):
            liberty(found)
    return {key: value for key, value in found.items() if value != []}


def _property_schema(model: type[BaseModel], name: str) -> Fragment:
    key = ScenarioKey("", model, name)
    found = key.fragment
    if any({"$ref": f"#/$defs/{law.__name__}"} in found.get("anyOf", [found]) for law in TIMES.values()):
        found = union_fragment([found, _SECONDS])
    default = {} if key.default is None or key.default == "" else {"default": key.default}
    return {**found, "description": key.description, **default}


_SECONDS = fragment_of(FixedTime.model_fields["seconds"].annotation, FixedTime.model_fields["seconds"].metadata)


def _is_topology(model: type[BaseModel]) -> bool:
    return model.__module__.startswith("simcluster.topology.")


def _part_schema(model: type[BaseModel]) -> Fragment:
    """Return a model's JSON schema without required keys, for keys that are merged into a topology."""
    found = _object_schema(model)
    return {key: _to_parts(value) for key, value in found.items() if key not in ("required", "anyOf")}


def _to_parts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_parts(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_to_parts(each) for each in value]
    if isinstance(value, str) and value.startswith("#/$defs/") and value.rpartition("/")[2] in _topology_models():
        return f"{value}.part"
    return value


def _topology_models() -> set[str]:
    return {
        model.__name__ for spec in TOPOLOGIES.values() for model in [spec, *_list_models(spec)] if _is_topology(model)
    }


# --- what the loader allows -------------------------------------------------------------------------------------------


_EXTRA: Mapping[type[BaseModel], tuple[str, Callable[[], Iterable[Any]], str]] = {
    ScenarioFields: (
        "framework", lambda: (ScenarioKey("", ScenarioFields, "software").fragment,), "Alias of software.",
    ),
    Model: (
        "preset", lambda: (tuple(load_presets("models.yaml")), A_PATH),
        "A built-in model (simcluster list models), or the path of a config.json; other keys override it.",
    ),
    PresetSpec: (
        "preset", lambda: (tuple(load_presets("links.yaml")),),
        "A built-in link (simcluster list links); other keys override it.",
    ),
    Software: ("base", lambda: (software_names(),), "Built-in software that supplies values of unset keys."),
    Histogram: ("file", lambda: (str,), "CSV file to read: one value and its weight per line."),
}  # fmt: skip
"""Keys of files that models do not have, since reading replaces them: by class the key, its forms, its description."""
_OPTIONAL = {(Histogram, "values"), (FixedTime, "seconds")}
"""Required fields that a file may omit."""


def _allow_preset(found: Fragment) -> None:
    if found["required"]:
        found["anyOf"] = [{"required": ["preset"]}, {"required": found["required"]}]
        found["required"] = []


def _allow_cluster_forms(found: Fragment) -> None:
    """Allow a topology's name or path with parameters next to it, or a list of dumps, in a JSON schema."""
    topology = found["properties"]["topology"]
    parameters: dict[str, list[Fragment]] = {}
    for spec in TOPOLOGIES.values():
        for name in spec.model_fields:
            part = _to_parts(_object_schema(spec)["properties"][name])
            parameters.setdefault(name, []).extend([part] if part not in parameters.get(name, []) else [])
    imported: Fragment = {"type": "object", "properties": {"kind": {"const": "import"}}, "required": ["kind"]}
    ways = [{"enum": builtin_names("topologies")}, A_PATH, *topology.pop("anyOf"), imported,
            {"type": "array", "items": _TEXT}]  # fmt: skip
    found["properties"]["topology"] = {**union_fragment(ways), **topology}
    for name, parts in parameters.items():
        whole = parts[0] if len(parts) == 1 else {"anyOf": parts, "description": parts[0].get("description", "")}
        found["properties"].setdefault(name, whole)
    found["additionalProperties"] = True  # of a file of another tool


def _allow_axis_aliases(found: Fragment) -> None:
    for long, short in LONG_NAMES.items():
        said = f"Alias of {short}: {found['properties'][short]['description']}"
        found["properties"][long] = {**found["properties"][short], "description": said}


def _allow_pace_keys(found: Fragment) -> None:
    found["required"].remove("factor")
    found["anyOf"] = [{"required": [name]} for name in ("slowdown", "speed", "factor")]


def _allow_site_parts(found: Fragment) -> None:
    found["properties"]["site"] = _to_parts(found["properties"]["site"])


_LIBERTIES: dict[type[BaseModel], Callable[[Fragment], None]] = {
    ClusterSpec: _allow_cluster_forms,
    SitesSpec: _allow_site_parts,
    Model: _allow_preset,
    PresetSpec: _allow_preset,
    Parallel: _allow_axis_aliases,
    PaceFault: _allow_pace_keys,
}
"""Forms of a class's mapping that are allowed in addition to its fields."""
