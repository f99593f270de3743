"""What the studio lets one change: keys of a scenario and faults, what each may be set to, and what that changes.

Pure.  The rows are in ``controls.yaml``; what a key takes and says is the scenario's own (``scenario.keys``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.catalogue.devices import device_names
from simcluster.documents.diagnostics import listed, shown
from simcluster.documents.reading import read_document
from simcluster.scenario.keys import scenario_keys
from simcluster.schedules import SCHEDULES

Value = str | int | float | bool | tuple[int, float]
"""What a control may be set to: of a fault (rank, how slow), of all others what its key takes."""
Settings = tuple[tuple[str, Value], ...]

FAULT_KEYS: Mapping[str, tuple[str, str, float, float]] = {
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
        return self.key in FAULT_KEYS


@cache
def controls() -> Mapping[str, Control]:
    """All of them by key, in the order of the page."""
    rows: Any = read_document(Path(__file__).with_name("controls.yaml")).data
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
    known = list(words_of(key))
    if value not in known or isinstance(value, bool):
        raise InputError(f"{key} must be {listed(known)}, got {shown(value)}")
    return value


def _number(control: Control, value: object) -> int | float:
    whole = control.offer != "factors"
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if control.least <= number <= control.most and (not whole or isinstance(number, int)):
        return number
    raise InputError(
        f"{control.key} must be a {'whole number' if whole else 'number'} from {control.least:g} to {control.most:,g} "
        f"in the studio, got {shown(value)}"
    )


def _fault(key: str, value: object) -> tuple[int, float]:
    where, how, least, most = FAULT_KEYS[key]
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
            where, how, *_ = FAULT_KEYS[key]
            found.append(("faults+", {"kind": key, where: value[0], how: value[1]}))
        else:
            found.append((key, value))
    return found


@cache
def words_of(key: str) -> tuple[Value, ...]:
    """Names that may stand at a key."""
    if key == "pipeline.schedule":
        return tuple(SCHEDULES)
    if key == "cluster.device":
        return tuple(device_names())
    words = next(each.words for each in scenario_keys() if each.path == key)
    return tuple(int(word) if word.isdecimal() else word for word in words)


@cache
def notes() -> Mapping[str, str]:
    """What each key says, in a sentence."""
    return {each.path: each.description for each in scenario_keys()} | {
        "cluster.device": "The GPU.",
        "cluster.nodes": "How many machines there are; the job takes all their GPUs.",
        "slow_gpu": "A GPU that computes so many times slower than the others.",
        "slow_link": "The link of a GPU's NIC, at this part of its speed.",
    }
