"""Resolution of a scenario document: overrides, short forms, and the files and presets that it names.

``resolve_scenario`` turns the document as written into one that ``Scenario`` understands, and keeps track of the file
and line of every value. Makes no decisions about values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.satellites import load_provided
from simcluster.base.texts import nearest_words
from simcluster.devices.device import Device, load_device
from simcluster.devices.files import names_device_file, read_description
from simcluster.documents.argument_types import checked
from simcluster.documents.catalogue.models import find_model_preset, model_document
from simcluster.documents.csv_numbers import read_histogram, read_speeds
from simcluster.documents.diagnostics import KeyPath, did_you_mean, reject_argument, shown
from simcluster.documents.given_files import describe_other_document
from simcluster.documents.overrides import Changes, apply_overrides, normalize_changes
from simcluster.documents.own_words import TrustedText, names_function
from simcluster.documents.reading import STDIN, Document, DocumentKinds, Mark, read_document, read_json, validate
from simcluster.documents.shipped import builtin_names, builtin_path, reject_builtin_path
from simcluster.faults.pace import PACE_KEYS
from simcluster.scenario.data import record_changes
from simcluster.scenario.import_documents import ENDINGS, expand_import, import_document, is_importable, resolve_files
from simcluster.scenario.rules import explain_oversize
from simcluster.scenario.schedule_files import is_csv, read_csv_schedule
from simcluster.scenario.short_forms import expand_names, reset_chunks, shorten_axis_names, shorten_override
from simcluster.schedules.specs import Rows
from simcluster.topology import AnyTopology, Cluster, TopologySpec

_TOPOLOGY: DocumentKinds[TopologySpec] = DocumentKinds(AnyTopology)
A_CLUSTER = "a cluster (a built-in topology's name, a path, a dict, a Cluster)"
_TOPOLOGY_ENDINGS = (".yaml", ".yml", *ENDINGS)


def resolve_scenario(document: Document, overrides: Iterable[tuple[str, Any]] = ()) -> Document:
    """Return a scenario document with overrides applied and every named file and preset read in."""
    overrides, given = list(overrides), document.data
    in_a_file = bool(document.marks) and not document.source.startswith("<")
    document = shorten_axis_names(expand_names(document))
    if overrides:
        document = apply_overrides(document, reset_chunks([shorten_override(pair) for pair in overrides]))
        document = expand_names(document)
    document = _resolve_schedule(_resolve_model(_resolve_cluster(document)))
    if "faults" in document.data or "data" in document.data:
        document = _resolve_faults(document)
    if "name" not in document.data:
        name = Path(document.source).stem if in_a_file else "scenario"
        document = replace(document, data={"name": name, **document.data})
    if overrides and "measured" in document.data:
        data = record_changes(document.data, given, [shorten_override(pair) for pair in overrides])
        document = replace(document, data=data)
    return document


def _base_folder(document: Document, where: KeyPath) -> Path:
    return Path() if document.location_of(where).place == "override" else document.folder


# --- the cluster ----------------------------------------------------------------------------------------------------


def _resolve_cluster(document: Document) -> Document:
    if "model" not in document.data and (other := describe_other_document(document.data)):
        raise InputError(f"{document.source}: is {other}")
    section = document.data.get("cluster")
    if section is None:
        near = "".join(f"; {key!r} is unknown: write cluster" for key in nearest_words("cluster", document.data, 0.7))
        raise document.error(
            ("cluster",), f"is required, as in {{topology: dgx_a100, nodes: 8}}{near}; {_list_topologies()}"
        )
    if not isinstance(section, Mapping):
        raise document.error(
            ("cluster",), f"must be a mapping, as in {{topology: dgx_a100, nodes: 8}}, got {shown(section)}"
        )
    if section.get("topology") is None:
        hint = did_you_mean("topology", section)
        raise document.error(("cluster", "topology"), f"is required{hint}; {_list_topologies()}")
    topology = section["topology"]
    where: KeyPath = ("cluster", "topology")
    marks = dict(document.marks)
    if isinstance(topology, str):
        with document.errors_at(where):
            by_path = _is_path(topology, _TOPOLOGY_ENDINGS)
            file = (
                _read_topology(_base_folder(document, where) / topology)
                if by_path
                else read_document(builtin_path("topologies", topology))
            )
        fields = dict(file.data)
        marks.update({(*where, *path): mark for path, mark in file.marks.items()})
    elif isinstance(topology, Mapping):
        fields = resolve_files(topology, document.folder)
    elif isinstance(topology, list):  # dumps, one for each machine
        fields = resolve_files({"kind": "import", "files": topology}, document.folder)
    else:
        raise document.error(where, f"must be a name, a path or a mapping, got {shown(topology)}; {_list_topologies()}")
    parameters = {key: value for key, value in section.items() if key not in ("topology", "scale")}
    for path, mark in document.marks.items():
        if path[0] == "cluster" and path[1:2] not in (("topology",), ("scale",)) and len(path) > 1:
            marks[*where, *path[1:]] = mark
    fields = _merge(fields, parameters)
    if "device" in parameters:
        folder = _base_folder(document, ("cluster", "device"))
    else:
        folder = file.folder if isinstance(topology, str) else document.folder
    fields = _with_device(fields, folder)
    scale = {"scale": section["scale"]} if "scale" in section else {}
    cluster = {"topology": fields, **scale}
    document = replace(document, data={**document.data, "cluster": cluster}, marks=marks)
    return expand_import(document, where) if fields.get("kind") == "import" else document


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(inner, value) if both and inner is not None else value
    return merged


def _with_device(fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    device = fields.get("device")
    if not names_device_file(device):
        return fields
    whole = read_description(device, folder)  # type: ignore[arg-type]  # it names a file: a path or a mapping
    validate(Device, whole)
    return {**fields, "device": whole.data}


def _read_topology(path: Path) -> Document:
    reject_builtin_path("topologies", path)
    if is_importable(path):
        return import_document(path)
    document = read_document(path)
    if "kind" not in document.data and {"cluster", "model"} & document.data.keys():
        raise InputError(
            f"{path}: is a scenario, but a topology is needed, which has a kind; name another file, or a built-in one "
            "(simcluster list topologies)"
        )
    return replace(document, data=resolve_files(document.data, path.parent))


def _list_topologies() -> str:
    return f"a path, a mapping or a built-in name: {', '.join(builtin_names('topologies')) or 'none'}"


def _is_path(name: str, suffixes: tuple[str, ...]) -> bool:
    return "/" in name or "\\" in name or name.endswith(suffixes)


def load_topology(name: str | Path | Mapping[str, Any], overrides: Iterable[tuple[str, Any]] = ()) -> TopologySpec:
    """Return a topology by file, built-in name or document, with values at dotted paths set.

    Raises InputError that names the file, line, key and a fix.
    """
    document = _topology_document(name)
    changed = apply_overrides(document, overrides)
    whole = _with_device(changed.data, _base_folder(changed, ("device",)))
    topology = validate(_TOPOLOGY, expand_import(replace(changed, data=whole)))
    with changed.errors_at(("device",)):
        load_device(topology.device)
    too_large = explain_oversize(topology)
    if too_large:
        raise InputError(f"{document.source}: {too_large}")
    return topology


def _topology_document(name: str | Path | Mapping[str, Any]) -> Document:
    if isinstance(name, Mapping):
        here, data = Path(), dict(name)
        if "scale" in data:
            raise InputError("scale: is for the cluster of a scenario, not for a separate cluster; remove it")
        if "topology" in data:
            data = _resolve_cluster(Document({"cluster": data}, "<cluster>", here)).data["cluster"]["topology"]
        return Document(data, "<topology>", here)
    if not isinstance(name, str | Path):
        reject_argument(name, "load_cluster", A_CLUSTER)
    path = Path(name)
    by_name = not path.exists() and str(name) != STDIN and not _is_path(str(name), _TOPOLOGY_ENDINGS)
    return _read_topology(builtin_path("topologies", str(name)) if by_name else path)


Named = str | Path | Mapping[str, Any]
"""A cluster by built-in topology name, path, or topology document."""


@checked
def load_cluster(name: Named, overrides: Changes = ()) -> Cluster:
    """Return the built cluster of a topology; InputError also if some GPUs cannot be reached."""
    topology = load_topology(name, normalize_changes(overrides))
    try:
        return topology.build()
    except InputError as error:
        called = topology.name if isinstance(name, Mapping) else name
        raise InputError(f"{called}: {error}") from None


# --- the model ------------------------------------------------------------------------------------------------------


def _resolve_model(document: Document) -> Document:
    section = document.data.get("model")
    if not isinstance(section, Mapping) or "preset" not in section:
        return document
    given = {key: value for key, value in section.items() if key != "preset"}
    where: KeyPath = ("model", "preset")
    preset = section["preset"]
    if not isinstance(preset, str):
        raise document.error(where, f"must be the name of a model or the path of a config.json, got {shown(preset)}")
    with document.errors_at(where):
        path = _base_folder(document, where) / preset
        by_path = _is_path(preset, (".json",))
        if by_path and not path.exists() and path.suffix != ".json" and (near := find_model_preset(preset)):
            raise InputError(
                f"there is no file {preset}; did you mean the preset {near!r}? simcluster list models shows "
                "all presets; for another model name the path of its config.json"
            )
        fields = _read_config(path, given) if by_path else model_document(preset)
    place = document.location_of(where).place
    inherited: dict[KeyPath, Mark] = {("model", key): Mark(place, ("model", key)) for key in fields if key not in given}
    return replace(
        document, data={**document.data, "model": {**fields, **given}}, marks={**document.marks, **inherited}
    )


def _read_config(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    config, length = read_json(path), given.get("sequence_length")
    if isinstance(length, int):
        fields = load_provided("model of a config.json")(config, sequence_length=length)
    else:
        fields, _ = load_provided("model at its usual length")(config)
    return {"name": path.parent.name or path.stem, **fields}


def model_assumptions(document: Document) -> tuple[str, ...]:
    """Return the assumptions that were made to read a scenario's model from a config.json."""
    section, where = document.data.get("model"), ("model", "preset")
    preset = section.get("preset") if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or not isinstance(preset, str) or not _is_path(preset, (".json",)):
        return ()
    config = read_json(_base_folder(document, where) / preset)
    usual = load_provided("model at its usual length")
    length = () if "sequence_length" in section else (f"{usual(config)[1]} (model.sequence_length)",)
    return (*load_provided("assumptions of a config.json")(config), *length)


# --- the schedule -----------------------------------------------------------------------------------------------------


def _resolve_schedule(document: Document) -> Document:
    """Return the scenario document with a CSV schedule read in, or the full path of FILE.py:FUNCTION.

    The function is called when the counts are known. Paths are relative to the scenario file, those of overrides to the
    current folder.
    """
    section = document.data.get("pipeline")
    where: KeyPath = ("pipeline", "schedule")
    name = section.get("schedule") if isinstance(section, Mapping) else None
    if not isinstance(name, str) or not (is_csv(name) or names_function(name)):
        return document
    path = _base_folder(document, where) / name
    schedule: Any = TrustedText(path) if isinstance(name, TrustedText) else str(path)
    if is_csv(name):
        with document.errors_at(where):
            schedule = Rows.of(read_csv_schedule(path)[0]).model_dump(mode="json", exclude_none=True)
    assert isinstance(section, Mapping)
    return replace(document, data={**document.data, "pipeline": {**section, "schedule": schedule}})


# --- faults -----------------------------------------------------------------------------------------------------------


def _resolve_faults(document: Document) -> Document:
    changed = dict(document.data)
    faults, data = changed.get("faults"), changed.get("data")
    if isinstance(faults, list | tuple):
        changed["faults"] = [
            _with_speeds(document, place, _with_tables(document, ("faults", place), _last_pace(document, place, fault),
                                                       ("factor", "documents")))
            for place, fault in enumerate(faults)
        ]  # fmt: skip
    if data is not None:
        changed["data"] = _with_tables(document, ("data",), data, ("documents",))
    return replace(document, data=changed)


def _last_pace(document: Document, place: int, fault: Any) -> Any:
    """Return a fault with only the overridden pace key, if an override replaces one: ``faults.0.speed=50%``."""
    if not isinstance(fault, Mapping):
        return fault
    own = [name for name in PACE_KEYS if name in fault]
    new = [name for name in own if document.location_of(("faults", place, name)).place == "override"]
    gone = [name for name in own if name not in new] if new else []
    return {key: value for key, value in fault.items() if key not in gone}


_SPEEDS_OF = {"speeds": "rank", "nic_speeds": "node"}
"""Kinds of faults with a table of speeds: the item of each row."""


def _with_speeds(document: Document, place: int, fault: Any) -> Any:
    named = _SPEEDS_OF.get(str(fault.get("kind"))) if isinstance(fault, Mapping) else None
    if named is None or not isinstance(fault.get("table"), str):
        return fault
    where: KeyPath = ("faults", place, "table")
    with document.errors_at(where):
        return {**fault, "table": read_speeds(_base_folder(document, where) / fault["table"], named)}


def _with_tables(document: Document, where: KeyPath, section: Any, keys: Iterable[str]) -> Any:
    read = dict(section) if isinstance(section, Mapping) else section
    for key in keys if isinstance(section, Mapping) else ():
        law = section.get(key)
        if not isinstance(law, Mapping) or law.get("kind") != "histogram" or "file" not in law:
            continue
        file: KeyPath = (*where, key, "file")
        if not isinstance(law["file"], str):
            raise document.error(file, f"must be the path of a CSV file, got {shown(law['file'])}")
        if "values" in law or "weights" in law:
            raise document.error(file, "has values and weights already; remove those, or the file")
        with document.errors_at(file):
            table = read_histogram(_base_folder(document, file) / law["file"])
        read[key] = {**{name: value for name, value in law.items() if name != "file"}, **table}
    return read
