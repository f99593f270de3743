"""JSON schema of a scenario file, with which editors complete and check keys.

What the loader accepts beyond the fields is here: built-in names, paths, a topology's parameters next to its name, the
long names of axes, distributions as plain durations. What the schema rejects the loader rejects, too; rules between
keys are the loader's alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from simcluster.devices.software import Software, list_software_names
from simcluster.documents.builtin_documents import builtin_names
from simcluster.documents.catalogue import load_presets
from simcluster.documents.field_annotations import A_PATH
from simcluster.documents.histogram import Histogram
from simcluster.faults.slow_devices import SlowDeviceFault
from simcluster.model.transformer import Model
from simcluster.scenario.run_times import TIMES, FixedTime
from simcluster.scenario.scenario_fields import ClusterSpec, ScenarioFields
from simcluster.scenario.scenario_keys import (
    Fragment,
    ScenarioKey,
    field_fragment,
    form_fragment,
    list_scenario_keys,
    union_fragment,
)
from simcluster.scenario.sections import LONG_NAMES, Parallel
from simcluster.topology import TOPOLOGIES, SitesSpec
from simcluster.topology.links import PresetSpec

SCHEMA_FILE = "scenario.schema.json"
"""Name of the schema file that a new scenario references for editors."""

_DRAFT = "http://json-schema.org/draft-07/schema#"  # what editors read best


def scenario_schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file."""
    models = _section_models()
    return {
        "$schema": _DRAFT,
        "title": "simcluster scenario",
        **_object_schema(ScenarioFields),
        "$defs": {
            **{model.__name__: _object_schema(model) for model in models},
            **{f"{model.__name__}.part": _optional_keys_schema(model) for model in models if _is_topology_model(model)},
        },
    }


def _section_models() -> list[type[BaseModel]]:
    return list(dict.fromkeys(key.model for key in list_scenario_keys() if key.model is not ScenarioFields))


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


_SECONDS = field_fragment(FixedTime.model_fields["seconds"].annotation, FixedTime.model_fields["seconds"].metadata)


def _is_topology_model(model: type[BaseModel]) -> bool:
    return model.__module__.startswith("simcluster.topology.")


def _optional_keys_schema(model: type[BaseModel]) -> Fragment:
    """Return a model's JSON schema with all keys optional, for sections that override parts of a topology."""
    found = _object_schema(model)
    return {key: _reference_part_schemas(value) for key, value in found.items() if key not in ("required", "anyOf")}


def _reference_part_schemas(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reference_part_schemas(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_reference_part_schemas(each) for each in value]
    if isinstance(value, str) and value in _topology_references():
        return f"{value}.part"
    return value


@cache
def _topology_references() -> frozenset[str]:
    return frozenset(f"#/$defs/{model.__name__}" for model in _section_models() if _is_topology_model(model))


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
    Software: ("base", lambda: (list_software_names(),), "Built-in software that supplies values of unset keys."),
    Histogram: ("file", lambda: (str,), "CSV file to read: one value and its weight per line."),
}  # fmt: skip
"""Keys of files that model classes lack, since reading replaces them; by class: the key, its forms, its description."""
_OPTIONAL = {(Histogram, "values"), (FixedTime, "seconds")}
"""Required fields that a file may omit."""


def _allow_preset(schema: Fragment) -> None:
    if schema["required"]:
        schema["anyOf"] = [{"required": ["preset"]}, {"required": schema["required"]}]
        schema["required"] = []


def _allow_cluster_forms(schema: Fragment) -> None:
    """Allow further forms of a cluster in a JSON schema, such as the name or the path of a topology."""
    topology = schema["properties"]["topology"]
    parameters: dict[str, list[Fragment]] = {}
    for spec in TOPOLOGIES.values():
        for name in spec.model_fields:
            part = _reference_part_schemas(_object_schema(spec)["properties"][name])
            parameters.setdefault(name, []).extend([part] if part not in parameters.get(name, []) else [])
    imported: Fragment = {"type": "object", "properties": {"kind": {"const": "import"}}, "required": ["kind"]}
    ways = [{"enum": builtin_names("topologies")}, A_PATH, *topology.pop("anyOf"), imported,
            {"type": "array", "items": {"type": "string"}}]  # fmt: skip
    schema["properties"]["topology"] = {**union_fragment(ways), **topology}
    for name, parts in parameters.items():
        whole = parts[0] if len(parts) == 1 else {"anyOf": parts, "description": parts[0].get("description", "")}
        schema["properties"].setdefault(name, whole)
    schema["additionalProperties"] = True  # of a file of another tool


def _allow_axis_aliases(schema: Fragment) -> None:
    for long, short in LONG_NAMES.items():
        said = f"Alias of {short}: {schema['properties'][short]['description']}"
        schema["properties"][long] = {**schema["properties"][short], "description": said}


def _allow_pace_keys(schema: Fragment) -> None:
    schema["required"].remove("factor")
    schema["anyOf"] = [{"required": [name]} for name in ("slowdown", "speed", "factor")]


def _allow_site_parts(schema: Fragment) -> None:
    schema["properties"]["site"] = _reference_part_schemas(schema["properties"]["site"])


_LIBERTIES: dict[type[BaseModel], Callable[[Fragment], None]] = {
    ClusterSpec: _allow_cluster_forms,
    SitesSpec: _allow_site_parts,
    Model: _allow_preset,
    PresetSpec: _allow_preset,
    Parallel: _allow_axis_aliases,
    SlowDeviceFault: _allow_pace_keys,
}
"""Functions that allow, for a class, further forms of its mapping in the schema."""
