"""What the studio lets one change: keys of a scenario, the values that each is offered with, and the nearest legal one.

Pure.  The rows are in ``controls.yaml``; what a key takes and says is the scenario's own (``scenario.keys``).  Values are
only offered: the scenario's rules decide, and ``nearest_legal`` asks them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.catalogue.devices import device_names
from simcluster.documents.diagnostics import listed, shown
from simcluster.documents.reading import read_document
from simcluster.documents.suggestions import divisors
from simcluster.scenario.keys import scenario_keys
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES

Value = str | int | float | bool | tuple[int, float]
"""What a control may be set to: of a fault (rank, how slow), of all others what its key takes."""
Settings = tuple[tuple[str, Value], ...]

_FACTORS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
_MOST_OFFERED = 24
_MOST_TRIED = 12  # values on the way to one that goes, of one control
_FAULTS: Mapping[str, tuple[str, str, float, float]] = {
    "slow_gpu": ("rank", "slowdown", 1.0, 100.0),
    "slow_link": ("nic_of", "speed", 0.001, 1.0),
}
"""Of a fault: which key says where it is, which how slow, and from what to what that goes."""


@dataclass(frozen=True, slots=True)
class Control:
    """One thing to change: its key, what it is called, its heading, how its values are found, and their limits."""

    key: str
    label: str
    group: str
    offer: str
    least: float = 0
    most: float = 0

    @property
    def is_fault(self) -> bool:
        """Is it a fault that is added, and no key?"""
        return self.key in _FAULTS


@cache
def controls() -> Mapping[str, Control]:
    """All of them by key, in the order of the page."""
    rows: Any = read_document(Path(__file__).with_suffix(".yaml")).data
    return {row["key"]: Control(**row) for row in rows["controls"]}


def checked(key: str, value: object) -> Value:
    """A value that somebody asks for, as its control has it.  InputError for no such control, and for a value that is
    not of its kind or beyond its limits: what is asked for over the network names nothing but this."""
    control = controls().get(key)
    if control is None:
        raise InputError(f"{shown(key)} is no control of the studio; there are {listed(controls())}")
    if control.is_fault:
        return _fault(key, value)
    if control.offer == "switch":
        if not isinstance(value, bool):
            raise InputError(f"{key} must be true or false, got {shown(value)}")
        return value
    if control.most:
        return _number(control, value)
    known = list(_words(key))
    if value not in known or isinstance(value, bool):
        raise InputError(f"{key} must be {listed(known)}, got {shown(value)}")
    return value  # type: ignore[return-value]


def _number(control: Control, value: object) -> int | float:
    whole = control.offer != "factors"
    right = isinstance(value, int) if whole else isinstance(value, int | float)
    if not right or isinstance(value, bool) or not control.least <= value <= control.most:  # type: ignore[operator]
        kind = "whole number" if whole else "number"
        raise InputError(
            f"{control.key} must be a {kind} from {control.least:g} to {control.most:,g} in the studio, got "
            f"{shown(value)}"
        )
    return value  # type: ignore[return-value]


def _fault(key: str, value: object) -> tuple[int, float]:
    where, how, least, most = _FAULTS[key]
    if isinstance(value, list | tuple) and len(value) == 2:
        rank, factor = value
        numbers = isinstance(rank, int) and isinstance(factor, int | float) and not isinstance(rank, bool)
        if numbers and not isinstance(factor, bool) and 0 <= rank < 10_000_000 and least <= factor <= most:
            return rank, float(factor)
    raise InputError(f"{key} must be [{where}, {how} from {least:g} to {most:g}], as in [3, 1], got {shown(value)}")


def overrides(settings: Settings, written: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The changes of a scenario that settings mean, with what must follow them.

    ``written`` is the document that is changed.  Replicas follow where the split or the machines change, and layers of
    stages where those were counted out for a pipeline of another length.
    """
    given = dict(settings)
    found: list[tuple[str, Any]] = []
    if given.keys() & {"parallel.tp", "parallel.pp", "parallel.cp", "cluster.nodes"}:
        found.append(("parallel.dp", None))
    if "cluster.nodes" in given:
        found.append(("gpus", None))
    pipeline = written.get("pipeline")
    counted = isinstance(pipeline, Mapping) and isinstance(pipeline.get("layers_per_stage"), list | tuple)
    if counted and given.keys() & {"parallel.pp", "pipeline.chunks", "pipeline.schedule"}:
        found.append(("pipeline.layers_per_stage", "auto"))
    for key, value in settings:
        if isinstance(value, tuple):
            where, how, *_ = _FAULTS[key]
            found.append(("faults+", {"kind": key, where: value[0], how: value[1]}))
        else:
            found.append((key, value))
    return found


# --- what is offered --------------------------------------------------------------------------------------------------


def described(scenario: Scenario, base: Scenario) -> list[dict[str, Any]]:
    """Every control as the page draws it: key, label, group, what it says, its value, and the values offered.

    Doublings are those of the ``base``, so that a scale stays where it is while somebody moves on it.
    """
    document, first = scenario.document(), base.document()
    notes = _notes()
    return [
        {
            "key": control.key,
            "label": control.label,
            "group": control.group,
            "kind": _kind(control),
            "says": notes.get(control.key, ""),
            "value": None if control.is_fault else value_of(scenario, document, control.key),
            "base": None if control.is_fault else value_of(base, first, control.key),
            "values": list(_scale(scenario, document, control, offered(base, first, control))),
        }
        for control in controls().values()
        if control.key != "parallel.ep" or scenario.model.moe is not None
    ]


def _scale(
    scenario: Scenario, document: Mapping[str, Any], control: Control, of_base: Sequence[Value]
) -> Sequence[Value]:
    if control.offer != "doublings":
        return offered(scenario, document, control)
    value = value_of(scenario, document, control.key)
    return sorted({*of_base, *([] if value is None else [value])})


def _kind(control: Control) -> str:
    if control.is_fault or control.offer == "switch":
        return "fault" if control.is_fault else "switch"
    return "steps" if control.most else "choice"


def value_of(scenario: Scenario, document: Mapping[str, Any], key: str) -> Value | None:
    """What a scenario has there; None where its key is not set, or is no name."""
    if key == "parallel.dp":
        return scenario.dp
    if key == "pipeline.schedule":
        return scenario.pipeline.schedule_name
    if key == "cluster.device":
        return scenario.cluster.device.name
    value: Any = document
    for part in key.split("."):
        below = value.get(part) if isinstance(value, Mapping) else None
        value = value["topology"].get(part) if below is None and _in_topology(value) else below
    if value is None and key.startswith("cluster.scale."):
        return 1.0
    return value if isinstance(value, str | int | float | bool) else None


def _in_topology(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("topology"), Mapping)


def offered(scenario: Scenario, document: Mapping[str, Any], control: Control) -> Sequence[Value]:
    """The values of a control's steps or words, with the scenario's own among them, in order."""
    found = list(OFFERS[control.offer](scenario, document, control.key))
    value = value_of(scenario, document, control.key) if not control.is_fault else None
    if not control.most:
        return found
    within = {each for each in found if control.least <= each <= control.most}
    return sorted(within | ({value} if value is not None else set()))


def _schedules(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return list(SCHEDULES)


def _named(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return list(_words(key))


def _split(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return divisors(scenario.gpus)[:_MOST_OFFERED]


def _stages(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return [number for number in divisors(scenario.gpus) if number <= scenario.model.layers + 2]


def _replicas(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return divisors(scenario.gpus)


def _experts(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return divisors(scenario.model.moe.experts) if scenario.model.moe else [1]


def _chunks(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return [number for number in range(1, 17) if number * scenario.parallel.pp <= scenario.model.layers + 2] or [1]


def _doublings(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = value_of(scenario, document, key)
    if not isinstance(value, int):
        return []
    return [each for power in range(-4, 5) if (each := int(value * 2.0**power)) == value * 2.0**power and each > 0]


def _micro_batches(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return divisors(max(1, scenario.training.global_batch // scenario.dp))[:_MOST_OFFERED]


def _factors(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return _FACTORS


def _fault_factors(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    _, _, least, most = _FAULTS[key]
    steps = (1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0)
    return steps if most > 1 else [round(1 / each, 2) for each in reversed(steps)]


def _switch(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return [False, True]


OFFERS: Mapping[str, Callable[[Scenario, Mapping[str, Any], str], Sequence[Any]]] = {
    "schedules": _schedules,
    "words": _named,
    "devices": _named,
    "split": _split,
    "stages": _stages,
    "replicas": _replicas,
    "experts": _experts,
    "chunks": _chunks,
    "doublings": _doublings,
    "micro_batches": _micro_batches,
    "factors": _factors,
    "fault": _fault_factors,
    "switch": _switch,
}
"""How the values of a control are found: a function of (scenario, its document, the key)."""


@cache
def _words(key: str) -> tuple[Value, ...]:
    """Names that may stand at a key."""
    if key == "pipeline.schedule":
        return tuple(SCHEDULES)
    if key == "cluster.device":
        return tuple(device_names())
    words = next(each.words for each in scenario_keys() if each.path == key)
    return tuple(int(word) if word.isdecimal() else word for word in words)


@cache
def _notes() -> Mapping[str, str]:
    return {each.path: each.description for each in scenario_keys()} | {
        "cluster.device": "The GPU.",
        "cluster.nodes": "How many machines there are; the job takes all their GPUs.",
        "slow_gpu": "A GPU that computes so many times slower than the others.",
        "slow_link": "The link of a GPU's NIC, at this part of its speed.",
    }


# --- what would go ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remedy:
    """Settings that the scenario's rules allow, and in words what they change of those that were refused."""

    words: str
    settings: Settings


def nearest_legal(
    settings: Settings, key: str, values: Mapping[str, Sequence[Value]], complaint: str, legal: Callable[[Settings], bool]
) -> list[Remedy]:
    """What would go where settings are refused: the nearest values of the control that was changed (``key``), then of
    others that the complaint names; ``values`` are those offered, by control.  The last one takes the change back."""
    names = {each: controls()[each].label for each in values}
    found: list[Remedy] = []
    named = [each for each in values if each != key and each.rpartition(".")[2] in _names_in(complaint)]
    for each in [key, *named]:
        for value in _near(dict(settings).get(each), values.get(each, ())):
            changed = with_setting(settings, each, value)
            if legal(changed):
                found.append(Remedy(f"{names.get(each, each)} {_told(value)}", changed))
                if each != key or len(found) > 1:
                    break
    without = tuple(pair for pair in settings if pair[0] != key)
    if without != settings and legal(without):
        found.append(Remedy(f"{names.get(key, key)} as it was in the file", without))
    return found


def with_setting(settings: Settings, key: str, value: Value) -> Settings:
    """Settings with one of them changed or added, in the order of the controls."""
    changed = {**dict(settings), key: value}
    return tuple((each, changed[each]) for each in controls() if each in changed)


def _names_in(complaint: str) -> set[str]:
    return set("".join(letter if letter.isalnum() or letter == "_" else " " for letter in complaint).split())


def _near(wanted: Value | None, values: Sequence[Value]) -> Iterator[Value]:
    """Others, the nearest first: by their ratio, or of words in their order."""
    others = [value for value in values if value != wanted]
    if isinstance(wanted, int | float) and all(isinstance(each, int | float) and each > 0 for each in others):
        others.sort(key=lambda each: abs(math.log(each / max(wanted, 1e-9))))  # type: ignore[operator]
    yield from others[:_MOST_TRIED]


def _told(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
