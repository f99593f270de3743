"""The values that each control is offered with for a scenario.

Pure.  Values are only offered: the scenario's rules decide (``nearest`` finds what they allow).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simcluster.documents.suggestions import divisors
from simcluster.interactive.controls.settings import Control, Value, controls, notes, words_of
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES

_FACTORS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
_MOST_OFFERED = 24


def described(scenario: Scenario, base: Scenario) -> list[dict[str, Any]]:
    """Every control that there is of a scenario, as a page draws it: key, label, group, what it says, its value, and
    those offered.

    Doublings are those of the ``base``, so that a scale stays where it is while somebody moves on it.
    """
    document, first = scenario.document(), base.document()
    found = [_described(scenario, base, document, first, each) for each in controls().values() if each.there(document)]
    return [each for each in found if each["values"] or each["kind"] == "price"]


def _described(
    scenario: Scenario, base: Scenario, document: Mapping[str, Any], first: Mapping[str, Any], control: Control
) -> dict[str, Any]:
    told = {
        "key": control.key,
        "label": control.label,
        "group": control.group,
        "kind": _kind(control),
        "says": notes().get(control.key, ""),
        "value": None if control.is_fault else value_of(scenario, document, control.key),
        "base": None if control.is_fault else value_of(base, first, control.key),
        "values": list(_scale(scenario, document, control, offered(base, first, control))),
    }
    if control.is_fault:
        return {**told, "place": control.place, "off": control.off}
    return {**told, "least": control.least, "most": control.most} if control.most else told


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
    return control.offer if control.offer == "price" else "steps" if control.most else "choice"


def value_of(scenario: Scenario, document: Mapping[str, Any], key: str) -> Value | None:
    """What a scenario has there; None where its key is not set, or is no name."""
    if key == "parallel.dp":
        return scenario.dp
    if key == "pipeline.schedule":
        return scenario.pipeline.schedule_name
    if key == "price":
        return scenario.run.price if scenario.run is not None else None
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
    if control.is_fault:
        return control.values
    found = list(OFFERS[control.offer](scenario, document, control.key))
    value = value_of(scenario, document, control.key)
    if not control.most:
        return found
    within = {each for each in found if control.least <= each <= control.most}
    return sorted(within | ({value} if value is not None else set()))


def _schedules(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return list(SCHEDULES)


def _named(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return list(words_of(key))


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


def _few(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)


def _none(scenario: Scenario, document: Mapping[str, Any], key: str) -> Sequence[Any]:
    return ()


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
    "few": _few,
    "price": _none,
    "switch": _switch,
}
"""How the values of a control are found: a function of (scenario, its document, the key)."""
