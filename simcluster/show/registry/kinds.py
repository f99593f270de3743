"""Lists of built-in entries by kind (models, devices, topologies, schedules, faults, ...).

To add a list, write a function that gives its entries, and a line in KINDS.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from simcluster.base.counts import format_count
from simcluster.base.errors import InputError
from simcluster.base.satellites import load_satellite_object
from simcluster.base.units import format_bytes, format_bytes_per_second, parse_bytes_per_second
from simcluster.collectives import ALGORITHMS
from simcluster.devices.device import device_names, load_device
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.builtin_documents import builtin_folder, builtin_names
from simcluster.documents.catalogue import catalogue_path, load_presets
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.yaml_documents import read_document
from simcluster.faults import FAULTS
from simcluster.model.kind_documents import find_kind_document
from simcluster.model.layers import LAYER_KINDS, parameters
from simcluster.model.packing import PACKING
from simcluster.model.recipes import RECIPES
from simcluster.model.transformer import Model
from simcluster.schedules import SCHEDULES
from simcluster.studies.whatif.sensitivities import RESOURCES
from simcluster.topology import TOPOLOGIES
from simcluster.traffic.nccl.platforms import platform_names

_KEY = re.compile(r"([A-Za-z0-9][\w.-]*):\s*(#.*)?$")
_ENDS = re.compile(r"(?<=[A-Za-z0-9)%`\"'])[.?](?=\s+(?:[A-Z]|``)|\s*$)")
_MARKUP = re.compile(r"``|\*")


def read_head_comment(path: Path) -> str:
    """Return the comment at the top of a file, without comment marks."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return " ".join(line.lstrip("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines))


def read_entry_comments(path: Path) -> dict[str, str]:
    """Return the comment above each entry of a catalogue file, or else the comment of the previous entry."""
    found: dict[str, str] = {}
    block: list[str] = []
    last = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            block.append(line.lstrip("#").strip())
        elif match := _KEY.match(line):
            last = " ".join(block) or last
            found[match[1]] = last
            block = []
        elif not line.strip() and not found:
            block = []  # the file's own head
    return found


def first_sentence(text: str) -> str:
    """Return the first sentence of a text on one line; the first paragraph if no sentence ends in the text.

    >>> first_sentence("ZeRO 2.5 of ``arXiv:1.2``.  More.")
    'ZeRO 2.5 of arXiv:1.2.'
    """
    line = " ".join(text.strip().partition("\n\n")[0].split())
    end = _ENDS.search(line)
    return _MARKUP.sub("", line[: end.end()] if end else line)


@dataclass(frozen=True, slots=True)
class BuiltinEntry:
    """A built-in model, device, schedule or the like: name, one-line description, and source ("" if none)."""

    name: str
    description: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class BuiltinKind:
    """A list of built-in entries, such as models: its description, the key or command that uses it, its entries."""

    description: str
    used_by: str
    entries: Callable[[], Iterable[BuiltinEntry]]


@cache
def list_entries(kind: str) -> tuple[BuiltinEntry, ...]:
    """Return all built-in models, devices or the like; raise InputError if there is no such list."""
    kind = normalize_kind_name(kind)
    if kind not in KINDS:
        own = [other for other in KINDS if kind in list_names(other)]
        near = f"; it is one of the {own[0]}: simcluster show {kind}" if own else did_you_mean(kind, KINDS)
        raise InputError(f"there is no list of {kind!r}{near}; known lists: {', '.join(KINDS)}")
    return tuple(KINDS[kind].entries())


@check_arguments
def list_names(kind: str) -> list[str]:
    """Return the names of all built-in entries in one list: "models", "devices", ...

    InputError for an unknown kind, with the known ones.

    >>> list_names("packing rules")
    ['in_order', 'pad', 'cut', 'first_fit', 'first_fit_decreasing', 'balanced']
    """
    quick = _NAMES.get(normalize_kind_name(kind))
    return list(quick()) if quick else [entry.name for entry in list_entries(kind)]


def normalize_kind_name(kind: str) -> str:
    """Convert the name of a list, such as "Packing rules", to lower case with hyphens: "packing-rules"."""
    return "-".join(kind.lower().split())


# --- entries ----------------------------------------------------------------------------------------------------------


def _list_scenarios() -> Iterable[BuiltinEntry]:
    for name in builtin_names("scenarios"):
        data = read_document(builtin_folder("scenarios") / f"{name}.yaml").data
        yield BuiltinEntry(name, str(data.get("name", name)), str(data.get("measured", {}).get("source", "")))


def _file_lister(kind: str) -> Callable[[], Iterable[BuiltinEntry]]:
    return lambda: [
        BuiltinEntry(name, first_sentence(read_head_comment(builtin_folder(kind) / f"{name}.yaml")))
        for name in builtin_names(kind)
    ]


def _list_models() -> Iterable[BuiltinEntry]:
    sources = read_entry_comments(catalogue_path("models.yaml"))
    for name in load_presets("models.yaml"):
        model = Model.model_validate(load_model_entry(name))
        count = parameters(model)
        experts = f", {model.moe.experts} experts, {model.moe.top_k} per token" if model.moe else ""
        what = (
            f"{format_count(count.total)} parameters, {model.layers_text} layers of {model.hidden_size:,}, "
            f"{model.heads} heads{experts}, {model.sequence_length:,} tokens"
        )
        yield BuiltinEntry(name, what, sources.get(name, ""))


def _list_layer_kinds() -> Iterable[BuiltinEntry]:
    for name, kind in LAYER_KINDS.items():
        document = find_kind_document(name, None)
        what = document.description if document else first_sentence(inspect.getdoc(kind) or "")
        yield BuiltinEntry(name, what, document.source if document else "")


def _list_devices() -> Iterable[BuiltinEntry]:
    for name in device_names():
        device = load_device(name)
        rates = ", ".join(f"{rate / 1e12:,.0f} TFLOP/s {kind}" for kind, rate in device.peak.known_rates().items()
                          if kind in ("bf16", "fp8"))  # fmt: skip
        what = f"{format_bytes(device.memory)} at {format_bytes_per_second(device.memory_bandwidth)}, {rates}"
        what += f"; measured: {device.measured}" if device.measured else ""
        yield BuiltinEntry(name, what, device.peak.source)


def _list_links() -> Iterable[BuiltinEntry]:
    for name, entry in load_presets("links.yaml").items():
        rate = format_bytes_per_second(parse_bytes_per_second(entry["line_rate"]))
        what = f"{entry.get('medium', '')}, {rate} each way, {entry.get('efficiency', 1):.1%} of it achieved"
        yield BuiltinEntry(name, what, str(entry.get("source", "")))


def _list_schedules() -> Iterable[BuiltinEntry]:
    for name, entry in SCHEDULES.items():
        papers = inspect.getdoc(entry.make) or "", inspect.getmodule(entry.make).__doc__ or ""
        found = dict.fromkeys(_PAPER.findall(" ".join(papers)))
        yield BuiltinEntry(name, first_sentence(papers[0]), ", ".join(found))


def _docs_lister(known: Mapping[str, Any]) -> Callable[[], Iterable[BuiltinEntry]]:
    return lambda: [BuiltinEntry(name, first_sentence(inspect.getdoc(each) or "")) for name, each in known.items()]


def _long_run_lister(kind: str) -> Callable[[], Iterable[BuiltinEntry]]:
    return lambda: [BuiltinEntry(*facts) for facts in load_satellite_object(f"list of {kind}")()]


def _list_software() -> Iterable[BuiltinEntry]:
    yield BuiltinEntry("ideal", "Ideal software: the host takes no time.")
    for name, entry in load_presets("software.yaml").items():
        parts = {key: value for key, value in entry.items() if key != "source"}
        texts = (f"{key} {', '.join(f'{name} {each}' for name, each in value.items())}" if isinstance(value, Mapping)
                 else f"{key} {value}" for key, value in parts.items())  # fmt: skip
        yield BuiltinEntry(name, ", ".join(texts), str(entry.get("source", "")))


def _list_algorithms() -> Iterable[BuiltinEntry]:
    of: dict[str, list[str]] = {}
    for collective, known in ALGORITHMS.items():
        for name in known:
            of.setdefault(name, []).append(collective)
    functions = {name: ALGORITHMS[collectives[0]][name].phases for name, collectives in of.items()}
    in_module = Counter(function.__module__ for function in functions.values())
    for name, function in functions.items():
        said = function if in_module[function.__module__] > 1 else inspect.getmodule(function)
        yield BuiltinEntry(name, f"{first_sentence(inspect.getdoc(said) or '')} ({', '.join(of[name])})")


def _list_platforms() -> Iterable[BuiltinEntry]:
    document = read_document(Path(inspect.getfile(platform_names)).with_name("platforms.yaml")).data["platforms"]
    for name in platform_names():
        entry = document.get(name, {})
        yield BuiltinEntry(name, str(entry.get("architecture", entry.get("base", ""))), str(entry.get("source", "")))


def _list_packing_rules() -> Iterable[BuiltinEntry]:
    yield BuiltinEntry("in_order", "Each sequence is filled with separate documents, and the last is cut there.")
    for name, rule in PACKING.items():
        yield BuiltinEntry(name, first_sentence(inspect.getdoc(rule) or ""))


def _list_recipes() -> Iterable[BuiltinEntry]:
    for name, recipe in RECIPES.items():
        parts = f"weight {recipe.weight:g}, gradient {recipe.gradient:g}, optimizer {recipe.optimizer:g}"
        yield BuiltinEntry(name, f"bytes per parameter: {parts}")


_PAPER = re.compile(r"arXiv:\d{4}\.\d{4,5}")

KINDS: Mapping[str, BuiltinKind] = {
    "scenarios": BuiltinKind("jobs that are ready to run", "simcluster run NAME", _list_scenarios),
    "models": BuiltinKind("transformers", "model.preset", _list_models),
    "layer-kinds": BuiltinKind("parts of layers", "model.blocks, model.layer_types", _list_layer_kinds),
    "devices": BuiltinKind("GPUs", "cluster.device", _list_devices),
    "topologies": BuiltinKind("clusters", "cluster.topology", _file_lister("topologies")),
    "topology-kinds": BuiltinKind("kinds of topology file", "kind, in a topology file", _docs_lister(TOPOLOGIES)),
    "links": BuiltinKind("cables and ports", "preset, in a link of a topology", _list_links),
    "schedules": BuiltinKind("pipeline schedules", "pipeline.schedule", _list_schedules),
    "faults": BuiltinKind("causes that make a step slower or less even", "faults", _docs_lister(FAULTS)),
    "software": BuiltinKind("training frameworks with their host overheads", "software", _list_software),
    "collectives": BuiltinKind(
        "collectives", "simcluster collective NAME",
        lambda: [BuiltinEntry(name, f"algorithms: {', '.join(known)}") for name, known in ALGORITHMS.items()],
    ),
    "algorithms": BuiltinKind("collective algorithms", "collectives.all_reduce, ...", _list_algorithms),
    "platforms": BuiltinKind("node types as NCCL's tuner sees them", "collectives.nccl", _list_platforms),
    "packing-rules": BuiltinKind("rules that pack documents into sequences", "data.packing", _list_packing_rules),
    "memory-recipes": BuiltinKind("bytes per parameter", "training.memory_recipe", _list_recipes),
    "failures": BuiltinKind("failure rates observed on real clusters", "run.failures", _long_run_lister("failures")),
    "laws": BuiltinKind("loss laws", "run.law, simcluster scaling --law", _long_run_lister("laws")),
    "resources": BuiltinKind(
        "resources that simcluster sensitivity varies", "simcluster sensitivity --resources",
        lambda: [BuiltinEntry(name, str(what)) for name, what in RESOURCES.items()],
    ),
    "questions": BuiltinKind("questions about a run of weeks", "simcluster advise NAME", _long_run_lister("questions")),
    "studies": BuiltinKind("tables of measured runs", "simcluster validate NAME", _file_lister("scenarios/validation")),
}  # fmt: skip
"""All kinds of built-in entries, in display order."""

_NAMES: Mapping[str, Callable[[], Iterable[str]]] = {
    "scenarios": lambda: builtin_names("scenarios"),
    "models": lambda: load_presets("models.yaml"),
    "layer-kinds": lambda: LAYER_KINDS,
    "devices": device_names,
    "topologies": lambda: builtin_names("topologies"),
    "schedules": lambda: SCHEDULES,
    "laws": lambda: load_presets("loss_laws.yaml"),
}
"""Functions that return the names of a kind without loading its entries."""
