"""Resolution of a scenario document: applies overrides, expands short forms, and reads named files and presets.

``resolve_scenario`` turns the document as written into one that ``Scenario`` understands, and keeps track of the file
and line of every value. Makes no decisions about values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.satellites import load_satellite_object
from simcluster.base.texts import find_similar_words
from simcluster.devices.device import Device, load_device
from simcluster.devices.device_files import depends_on_device_file, read_device_description
from simcluster.documents import yaml_documents
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.builtin_documents import builtin_path, reject_path_of_builtin
from simcluster.documents.catalogue.models import find_model_preset, load_model_entry
from simcluster.documents.csv_tables import read_histogram, read_relative_speeds
from simcluster.documents.diagnostics import KeyPath, did_you_mean, quote_value, reject_argument
from simcluster.documents.input_files import describe_other_document
from simcluster.documents.overrides import Changes, apply_overrides, list_overrides
from simcluster.documents.trusted_text import TrustedText, is_function_reference
from simcluster.documents.yaml_documents import STDIN, Document, DocumentUnion, KeyLocation, read_document, read_json
from simcluster.faults.slow_devices import PACE_KEYS
from simcluster.scenario import import_documents, short_forms
from simcluster.scenario.import_documents import ENDINGS, expand_import_section, is_importable, resolve_import_paths
from simcluster.scenario.rules import explain_oversize
from simcluster.scenario.schedule_files import is_csv, read_csv_schedule
from simcluster.schedules.specs import RowsSpec
from simcluster.topology import AnyTopology, Cluster, TopologySpec

_TOPOLOGY: DocumentUnion[TopologySpec] = DocumentUnion(AnyTopology)
A_CLUSTER = "a cluster (a built-in topology's name, a path, a dict, a Cluster)"
_TOPOLOGY_ENDINGS = (".yaml", ".yml", *ENDINGS)

_HOW_TO_WRITE = "write a path, a mapping, or a built-in name (simcluster list topologies)"


def resolve_scenario(document: Document, overrides: Iterable[tuple[str, Any]] = ()) -> Document:
    """Return a scenario document with overrides applied and all named files and presets read in."""
    changes = [short_forms.shorten_axis_override(pair) for pair in overrides]
    given = document.data
    in_a_file = bool(document.marks) and not document.source.startswith("<")
    document = short_forms.shorten_axis_names(short_forms.expand_section_names(document))
    if changes:
        document = apply_overrides(document, short_forms.reset_unused_chunks(changes))
        document = short_forms.expand_section_names(document)
    document = _resolve_schedule(_resolve_model(_resolve_cluster(document)))
    if "faults" in document.data or "data" in document.data:
        document = _resolve_faults(document)
    if "name" not in document.data:
        name = Path(document.source).stem if in_a_file else "scenario"
        document = replace(document, data={"name": name, **document.data})
    if changes and "measured" in document.data:
        document = replace(document, data=short_forms.record_measured_changes(document.data, given, changes))
    return document


def _base_folder(document: Document, where: KeyPath) -> Path:
    return Path() if document.location_of(where).position == "override" else document.folder


# --- the cluster ----------------------------------------------------------------------------------------------------


def _resolve_cluster(document: Document) -> Document:
    if "model" not in document.data and (other := describe_other_document(document.data)):
        raise InputError(f"{document.source}: is {other}")
    section = document.data.get("cluster")
    if section is None:
        near = [f"; unknown key {key!r}: write cluster" for key in find_similar_words("cluster", document.data, 0.7)]
        raise document.error_at(
            ("cluster",), f"is required, as in {{topology: dgx_a100, nodes: 8}}{''.join(near)}; {_HOW_TO_WRITE}"
        )
    if not isinstance(section, Mapping):
        raise document.error_at(
            ("cluster",), f"must be a mapping, as in {{topology: dgx_a100, nodes: 8}}, got {quote_value(section)}"
        )
    if section.get("topology") is None:
        hint = did_you_mean("topology", section)
        raise document.error_at(("cluster", "topology"), f"is required{hint}; {_HOW_TO_WRITE}")
    topology = section["topology"]
    where: KeyPath = ("cluster", "topology")
    marks = dict(document.marks)
    if isinstance(topology, str):
        with document.locate_errors_at(where):
            if _is_path(topology, _TOPOLOGY_ENDINGS):
                file = _read_topology(_base_folder(document, where) / topology)
            else:
                file = read_document(builtin_path("topologies", topology))
        fields = dict(file.data)
        marks.update({(*where, *path): mark for path, mark in file.marks.items()})
    elif isinstance(topology, Mapping):
        fields = resolve_import_paths(topology, document.folder)
    elif isinstance(topology, list):  # dumps, one for each machine
        fields = resolve_import_paths({"kind": "import", "files": topology}, document.folder)
    else:
        raise document.error_at(
            where, f"must be a name, a path or a mapping, got {quote_value(topology)}; {_HOW_TO_WRITE}"
        )
    parameters = {key: value for key, value in section.items() if key not in ("topology", "scale")}
    for path, mark in document.marks.items():
        if path[0] == "cluster" and path[1:2] not in (("topology",), ("scale",)) and len(path) > 1:
            marks[*where, *path[1:]] = mark
    fields = _merge_mappings(fields, parameters)
    if "device" in parameters:
        folder = _base_folder(document, ("cluster", "device"))
    else:
        folder = file.folder if isinstance(topology, str) else document.folder
    fields = _resolve_device(fields, folder)
    scale = {"scale": section["scale"]} if "scale" in section else {}
    document = replace(document, data={**document.data, "cluster": {"topology": fields, **scale}}, marks=marks)
    return expand_import_section(document, where) if fields.get("kind") == "import" else document


def _merge_mappings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        nested = isinstance(below.get(key), Mapping) and isinstance(value, Mapping)
        merged[key] = _merge_mappings(below[key], value) if nested else value
    return merged


def _resolve_device(fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    device = fields.get("device")
    if not depends_on_device_file(device):
        return fields
    whole = read_device_description(device, folder)  # type: ignore[arg-type]  # it names a file: a path or a mapping
    yaml_documents.validate_document(Device, whole)
    return {**fields, "device": whole.data}


def _read_topology(path: Path) -> Document:
    reject_path_of_builtin("topologies", path)
    if is_importable(path):
        return import_documents.make_import_document(path)
    document = read_document(path)
    if "kind" not in document.data and {"cluster", "model"} & document.data.keys():
        raise InputError(
            f"{path}: is a scenario, but a topology file (with a kind) is needed; name another file, or a built-in "
            "topology (simcluster list topologies)"
        )
    return replace(document, data=resolve_import_paths(document.data, path.parent))


def _is_path(name: str, suffixes: tuple[str, ...]) -> bool:
    return "/" in name or "\\" in name or name.endswith(suffixes)


def load_topology(name: str | Path | Mapping[str, Any], overrides: Iterable[tuple[str, Any]] = ()) -> TopologySpec:
    """Load a topology from a file, a built-in name or a document, then apply overrides (dotted paths).

    Raises InputError that names the file, line, key and a fix.
    """
    document = _topology_document(name)
    changed = apply_overrides(document, overrides)
    whole = _resolve_device(changed.data, _base_folder(changed, ("device",)))
    topology = yaml_documents.validate_document(_TOPOLOGY, expand_import_section(replace(changed, data=whole)))
    with changed.locate_errors_at(("device",)):
        load_device(topology.device)
    if too_large := explain_oversize(topology):
        raise InputError(f"{document.source}: {too_large}")
    return topology


def _topology_document(name: str | Path | Mapping[str, Any]) -> Document:
    if isinstance(name, Mapping):
        here, data = Path(), dict(name)
        if "scale" in data:
            raise InputError("scale: applies only to the cluster of a scenario, not to a separate cluster; remove it")
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


@check_arguments
def load_cluster(name: Named, overrides: Changes = ()) -> Cluster:
    """Build the cluster of a topology; raise InputError if the topology is invalid or GPUs are unreachable."""
    topology = load_topology(name, list_overrides(overrides))
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
        raise document.error_at(where, f"must be a model name or the path of a config.json, got {quote_value(preset)}")
    with document.locate_errors_at(where):
        path = _base_folder(document, where) / preset
        by_path = _is_path(preset, (".json",))
        if by_path and not path.exists() and path.suffix != ".json" and (near := find_model_preset(preset)):
            raise InputError(
                f"there is no file {preset}; did you mean the preset {near!r}? simcluster list models shows "
                "all presets; for any other model, write the path of its config.json"
            )
        fields = _read_model_config(path, given) if by_path else load_model_entry(preset)
    if isinstance(given.get("encoder"), Mapping):  # its numbers of image tokens are the job's, not the model's
        given["encoder"] = {**fields.get("encoder", {}), **given["encoder"]}
    place = document.location_of(where).position
    paths: list[KeyPath] = [("model", key) for key in fields if key not in given]
    marks = {**document.marks, **{path: KeyLocation(place, path) for path in paths}}
    return replace(document, data={**document.data, "model": {**fields, **given}}, marks=marks)


def _read_model_config(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    config, length = read_json(path), given.get("sequence_length")
    if isinstance(length, int):
        fields = load_satellite_object("model of a config.json")(config, sequence_length=length)
    else:
        fields, _ = load_satellite_object("model at its usual length")(config)
    return {"name": path.parent.name or path.stem, **fields}


def model_assumptions(document: Document) -> tuple[str, ...]:
    """Return the assumptions made when a scenario's model was read from a config.json; empty for other models."""
    section, where = document.data.get("model"), ("model", "preset")
    preset = section.get("preset") if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or not isinstance(preset, str) or not _is_path(preset, (".json",)):
        return ()
    config = read_json(_base_folder(document, where) / preset)
    usual = load_satellite_object("model at its usual length")
    length = () if "sequence_length" in section else (f"{usual(config)[1]} (model.sequence_length)",)
    return (*load_satellite_object("assumptions of a config.json")(config), *length)


# --- the schedule -----------------------------------------------------------------------------------------------------


def _resolve_schedule(document: Document) -> Document:
    """Return the document with a CSV schedule read in, and the path of a schedule function made absolute.

    The function is called when the counts are known. Paths are relative to the scenario file, those of overrides to the
    current folder.
    """
    section = document.data.get("pipeline")
    where: KeyPath = ("pipeline", "schedule")
    name = section.get("schedule") if isinstance(section, Mapping) else None
    if not isinstance(name, str) or not (is_csv(name) or is_function_reference(name)):
        return document
    path = _base_folder(document, where) / name
    schedule: Any = TrustedText(path) if isinstance(name, TrustedText) else str(path)
    if is_csv(name):
        with document.locate_errors_at(where):
            schedule = RowsSpec.from_schedule(read_csv_schedule(path)[0]).model_dump(mode="json", exclude_none=True)
    assert isinstance(section, Mapping)
    return replace(document, data={**document.data, "pipeline": {**section, "schedule": schedule}})


# --- faults -----------------------------------------------------------------------------------------------------------


def _resolve_faults(document: Document) -> Document:
    changed = dict(document.data)
    faults, data = changed.get("faults"), changed.get("data")
    if isinstance(faults, list | tuple):
        changed["faults"] = [
            _read_speed_table(document, place, read_histograms(
                document, ("faults", place), _apply_pace_override(document, place, fault),
                ("factor", "documents", "tokens")))
            for place, fault in enumerate(faults)
        ]  # fmt: skip
    if data is not None:
        changed["data"] = read_histograms(document, ("data",), data, ("documents",))
    return replace(document, data=changed)


def _apply_pace_override(document: Document, place: int, fault: Any) -> Any:
    """Return a fault in which an override of one speed key replaces all others, as in ``faults.0.speed=50%``."""
    if not isinstance(fault, Mapping):
        return fault
    own = [name for name in PACE_KEYS if name in fault]
    new = [name for name in own if document.location_of(("faults", place, name)).position == "override"]
    gone = [name for name in own if name not in new] if new else []
    return {key: value for key, value in fault.items() if key not in gone}


_SPEEDS_OF = {"speeds": "rank", "nic_speeds": "node"}
"""Kinds of faults with a table of speeds, and what each row of the table is about."""


def _read_speed_table(document: Document, place: int, fault: Any) -> Any:
    named = _SPEEDS_OF.get(str(fault.get("kind"))) if isinstance(fault, Mapping) else None
    if named is None or not isinstance(fault.get("table"), str):
        return fault
    where: KeyPath = ("faults", place, "table")
    with document.locate_errors_at(where):
        return {**fault, "table": read_relative_speeds(_base_folder(document, where) / fault["table"], named)}


def read_histograms(document: Document, where: KeyPath, section: Any, keys: Iterable[str]) -> Any:
    """Return a section of a document with the histograms read that these keys name as files."""
    read = dict(section) if isinstance(section, Mapping) else section
    for key in keys if isinstance(section, Mapping) else ():
        law = section.get(key)
        if not isinstance(law, Mapping) or law.get("kind") != "histogram" or "file" not in law:
            continue
        file: KeyPath = (*where, key, "file")
        if not isinstance(law["file"], str):
            raise document.error_at(file, f"must be the path of a CSV file, got {quote_value(law['file'])}")
        if "values" in law or "weights" in law:
            raise document.error_at(file, "'file' excludes 'values' and 'weights'; remove those, or 'file'")
        with document.locate_errors_at(file):
            table = read_histogram(_base_folder(document, file) / law["file"])
        read[key] = {**{name: value for name, value in law.items() if name != "file"}, **table}
    return read
