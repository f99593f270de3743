"""Lists of built-in things by kind (models, devices, topologies, schedules, faults, ...), one entry each.

To add a list, write a function that gives its entries, and a line in KINDS.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simcluster.base.counts import format_count
from simcluster.base.errors import InputError
from simcluster.base.satellites import load_provided
from simcluster.base.units import format_bytes, format_bytes_per_second, parse_bytes_per_second
from simcluster.collectives import ALGORITHMS
from simcluster.devices.device import device_names, load_device
from simcluster.documents.argument_types import checked
from simcluster.documents.catalogue import catalogue_path, load_presets
from simcluster.documents.catalogue.models import model_document
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.reading import read_document
from simcluster.documents.shipped import builtin_folder, builtin_names
from simcluster.faults import FAULTS
from simcluster.model.layers import parameters
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


def head_of(path: Path) -> str:
    """Return the comment at the head of a file, without comment marks."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("#").strip())
    return " ".join(lines)


def sources_above(path: Path) -> dict[str, str]:
    """Return the comment above each entry of a catalogue file; an entry without one gets that of the entry before."""
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
    """Return the first sentence of a text on one line, or its first paragraph.

    >>> first_sentence("ZeRO 2.5 of ``arXiv:1.2``.  More.")
    'ZeRO 2.5 of arXiv:1.2.'
    """
    line = " ".join(text.strip().partition("\n\n")[0].split())
    end = _ENDS.search(line)
    return _MARKUP.sub("", line[: end.end()] if end else line)


@dataclass(frozen=True, slots=True)
class ShippedEntry:
    """A built-in thing with its one-line description and its source ("" if it needs none)."""

    name: str
    what: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class KindOfThing:
    """A kind of built-in things: its description, the key or command that names one, and its entries."""

    what: str
    named: str
    entries: Callable[[], Iterable[ShippedEntry]]


@cache
def entries_of(kind: str) -> tuple[ShippedEntry, ...]:
    """Return the entries of a kind; InputError for an unknown kind, with the known ones."""
    kind = plain_kind(kind)
    if kind not in KINDS:
        own = [other for other in KINDS if kind in list_names(other)]
        near = f"; it is one of the {own[0]}: simcluster show {kind}" if own else did_you_mean(kind, KINDS)
        raise InputError(f"there is no list of {kind!r}{near}; there are: {', '.join(KINDS)}")
    return tuple(KINDS[kind].entries())


@checked
def list_names(kind: str) -> list[str]:
    """Return the names of a kind ("models", "devices", "topologies", "schedules", ...), in the order of its list.

    InputError for an unknown kind, with the known ones.

    >>> names("packing rules")
    ['in_order', 'pad', 'cut', 'first_fit', 'first_fit_decreasing', 'balanced']
    """
    quick = _NAMES.get(plain_kind(kind))
    return list(quick()) if quick else [entry.name for entry in entries_of(kind)]


def plain_kind(kind: str) -> str:
    """Return a kind as KINDS spells it, from any case, with or without hyphens."""
    return "-".join(kind.lower().split())


# --- entries ----------------------------------------------------------------------------------------------------------


def _scenarios() -> Iterable[ShippedEntry]:
    for name in builtin_names("scenarios"):
        data = read_document(builtin_folder("scenarios") / f"{name}.yaml").data
        yield ShippedEntry(name, str(data.get("name", name)), str(data.get("measured", {}).get("source", "")))


def _files(kind: str) -> Callable[[], Iterable[ShippedEntry]]:
    """Return a function that lists files described by the comment at their head."""

    def entries() -> Iterable[ShippedEntry]:
        for name in builtin_names(kind):
            yield ShippedEntry(name, first_sentence(head_of(builtin_folder(kind) / f"{name}.yaml")))

    return entries


def _models() -> Iterable[ShippedEntry]:
    sources = sources_above(catalogue_path("models.yaml"))
    for name in load_presets("models.yaml"):
        model = Model.model_validate(model_document(name))
        count = parameters(model)
        experts = f", {model.moe.experts} experts, {model.moe.top_k} a token" if model.moe else ""
        what = (
            f"{format_count(count.total)} parameters, {model.layers} layers of {model.hidden_size:,}, "
            f"{model.heads} heads{experts}, {model.sequence_length:,} tokens"
        )
        yield ShippedEntry(name, what, sources.get(name, ""))


def _devices() -> Iterable[ShippedEntry]:
    for name in device_names():
        device = load_device(name)
        rates = ", ".join(f"{rate / 1e12:,.0f} TFLOP/s {kind}" for kind, rate in device.peak.known().items()
                          if kind in ("bf16", "fp8"))  # fmt: skip
        what = f"{format_bytes(device.memory)} at {format_bytes_per_second(device.memory_bandwidth)}, {rates}"
        what += f"; measured: {device.measured}" if device.measured else ""
        yield ShippedEntry(name, what, device.peak.source)


def _links() -> Iterable[ShippedEntry]:
    for name, entry in load_presets("links.yaml").items():
        rate = format_bytes_per_second(parse_bytes_per_second(entry["line_rate"]))
        what = f"{entry.get('medium', '')}, {rate} each way, {entry.get('efficiency', 1):.1%} of it reached"
        yield ShippedEntry(name, what, str(entry.get("source", "")))


def _schedules() -> Iterable[ShippedEntry]:
    for name, entry in SCHEDULES.items():
        papers = inspect.getdoc(entry.make) or "", inspect.getmodule(entry.make).__doc__ or ""
        found = dict.fromkeys(_PAPER.findall(" ".join(papers)))
        yield ShippedEntry(name, first_sentence(papers[0]), ", ".join(found))


def _documented(known: Mapping[str, Any]) -> Callable[[], Iterable[ShippedEntry]]:
    return lambda: [ShippedEntry(name, first_sentence(inspect.getdoc(each) or "")) for name, each in known.items()]


def _of_runs(kind: str) -> Callable[[], Iterable[ShippedEntry]]:
    return lambda: [ShippedEntry(*facts) for facts in load_provided(f"list of {kind}")()]


def _software() -> Iterable[ShippedEntry]:
    yield ShippedEntry("ideal", "Software that costs nothing: everything is issued in time.")
    for name, entry in load_presets("software.yaml").items():
        parts = {key: value for key, value in entry.items() if key != "source"}
        texts = (f"{key} {', '.join(f'{name} {each}' for name, each in value.items())}" if isinstance(value, Mapping)
                 else f"{key} {value}" for key, value in parts.items())  # fmt: skip
        yield ShippedEntry(name, ", ".join(texts), str(entry.get("source", "")))


def _algorithms() -> Iterable[ShippedEntry]:
    """Return algorithms with the first line of their module, or of their function if a module has several."""
    of: dict[str, list[str]] = {}
    for collective, known in ALGORITHMS.items():
        for name in known:
            of.setdefault(name, []).append(collective)
    functions = {name: ALGORITHMS[collectives[0]][name].phases for name, collectives in of.items()}
    in_module = Counter(function.__module__ for function in functions.values())
    for name, function in functions.items():
        said = function if in_module[function.__module__] > 1 else inspect.getmodule(function)
        yield ShippedEntry(name, f"{first_sentence(inspect.getdoc(said) or '')} ({', '.join(of[name])})")


def _platforms() -> Iterable[ShippedEntry]:
    document = read_document(Path(inspect.getfile(platform_names)).with_name("platforms.yaml")).data["platforms"]
    for name in platform_names():
        entry = document.get(name, {})
        yield ShippedEntry(name, str(entry.get("architecture", entry.get("base", ""))), str(entry.get("source", "")))


def _packing() -> Iterable[ShippedEntry]:
    yield ShippedEntry("in_order", "Each sequence is filled with documents of its own, and the last is cut there.")
    for name, rule in PACKING.items():
        yield ShippedEntry(name, first_sentence(inspect.getdoc(rule) or ""))


def _recipes() -> Iterable[ShippedEntry]:
    for name, recipe in RECIPES.items():
        parts = f"weight {recipe.weight:g}, gradient {recipe.gradient:g}, optimizer {recipe.optimizer:g}"
        yield ShippedEntry(name, f"bytes of a parameter: {parts}")


_PAPER = re.compile(r"arXiv:\d{4}\.\d{4,5}")

KINDS: Mapping[str, KindOfThing] = {
    "scenarios": KindOfThing("jobs that ship, ready to run", "simcluster run NAME", _scenarios),
    "models": KindOfThing("transformers", "model.preset", _models),
    "devices": KindOfThing("GPUs", "cluster.device", _devices),
    "topologies": KindOfThing("clusters", "cluster.topology", _files("topologies")),
    "topology-kinds": KindOfThing("what a topology file may be", "kind, in a topology file", _documented(TOPOLOGIES)),
    "links": KindOfThing("cables and ports", "preset, in a link of a topology", _links),
    "schedules": KindOfThing("pipeline schedules", "pipeline.schedule", _schedules),
    "faults": KindOfThing("what can be slower or more uneven than planned", "faults", _documented(FAULTS)),
    "software": KindOfThing("frameworks, by what their host costs", "software", _software),
    "collectives": KindOfThing(
        "collectives", "simcluster collective NAME",
        lambda: [ShippedEntry(name, f"algorithms: {', '.join(known)}") for name, known in ALGORITHMS.items()],
    ),
    "algorithms": KindOfThing("algorithms of collectives", "collectives.all_reduce, ...", _algorithms),
    "platforms": KindOfThing("machines as NCCL's tuner sees them", "collectives.nccl", _platforms),
    "packing-rules": KindOfThing("rules by which documents become sequences", "data.packing", _packing),
    "memory-recipes": KindOfThing("bytes kept of a parameter", "training.memory_recipe", _recipes),
    "failures": KindOfThing("failures of machines that were watched", "run.failures", _of_runs("failures")),
    "laws": KindOfThing("laws of loss", "run.law, simcluster scaling --law", _of_runs("laws")),
    "resources": KindOfThing(
        "what simcluster sensitivity makes more of", "simcluster sensitivity --resources",
        lambda: [ShippedEntry(name, str(what)) for name, what in RESOURCES.items()],
    ),
    "questions": KindOfThing("questions of a run of weeks", "simcluster advise NAME", _of_runs("questions")),
    "studies": KindOfThing(
        "tables of measured runs", "simcluster validate NAME", _files("scenarios/validation")
    ),
}  # fmt: skip
"""Every list, in the order in which it is shown."""

_NAMES: Mapping[str, Callable[[], Iterable[str]]] = {
    "scenarios": lambda: builtin_names("scenarios"),
    "models": lambda: load_presets("models.yaml"),
    "devices": device_names,
    "topologies": lambda: builtin_names("topologies"),
    "schedules": lambda: SCHEDULES,
    "laws": lambda: load_presets("loss_laws.yaml"),
}
"""Lists whose names cost less than their entries."""
