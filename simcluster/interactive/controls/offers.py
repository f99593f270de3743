"""The values that each control is offered with for a scenario.

Pure.  Values are only offered: the scenario's rules decide (``nearest`` finds what they allow).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simcluster.documents.suggestions import divisors
from simcluster.interactive.controls.settings import Control, Value, controls, notes, words_of
from simcluster.scenario.scenario import Scenario

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
    values, value = offered(base, first, control), value_of(scenario, document, control.key)
    if control.offer == "doublings":
        values = sorted({*values, *([] if value is None else [value])})
    else:
        values = offered(scenario, document, control)
    kind = "fault" if control.is_fault else "steps" if control.most else "choice"
    told = {
        "key": control.key,
        "label": control.label,
        "group": control.group,
        "kind": control.offer if not control.is_fault and control.offer in ("switch", "price") else kind,
        "says": notes().get(control.key, ""),
        "value": None if control.is_fault else value,
        "base": None if control.is_fault else value_of(base, first, control.key),
        "values": list(values),
    }
    if control.is_fault:
        return {**told, "place": control.place, "off": control.off}
    return {**told, "least": control.least, "most": control.most} if control.most else told


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
        topology = value.get("topology") if below is None and isinstance(value, Mapping) else None
        value = topology.get(part) if isinstance(topology, Mapping) else below
    if value is None and key.startswith("cluster.scale."):
        return 1.0
    return value if isinstance(value, str | int | float | bool) else None


def offered(scenario: Scenario, document: Mapping[str, Any], control: Control) -> Sequence[Value]:
    """The values of a control's steps or words, with the scenario's own among them, in order."""
    if control.is_fault:
        return control.values
    found = list(_values(scenario, document, control))
    value = value_of(scenario, document, control.key)
    if not control.most:
        return found
    within = {each for each in found if control.least <= each <= control.most}
    return sorted(within | ({value} if value is not None else set()))


def _values(scenario: Scenario, document: Mapping[str, Any], control: Control) -> Sequence[Any]:
    """Return the values that a kind of offer has."""
    stages = scenario.model.layers + 2
    match control.offer:
        case "schedules" | "words" | "devices":
            return words_of(control.key)
        case "split":
            return divisors(scenario.gpus)[:_MOST_OFFERED]
        case "stages":
            return [number for number in divisors(scenario.gpus) if number <= stages]
        case "replicas":
            return divisors(scenario.gpus)
        case "experts":
            return divisors(scenario.model.moe.experts) if scenario.model.moe else [1]
        case "chunks":
            return [number for number in range(1, 17) if number * scenario.parallel.pp <= stages] or [1]
        case "doublings":
            value = value_of(scenario, document, control.key)
            powers = (value * 2.0**power for power in range(-4, 5)) if isinstance(value, int) else ()
            return [int(each) for each in powers if each.is_integer() and each > 0]
        case "micro_batches":
            return divisors(max(1, scenario.training.global_batch // scenario.dp))[:_MOST_OFFERED]
        case "factors":
            return _FACTORS
        case "few":
            return (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
        case "price":
            return ()
        case "switch":
            return (False, True)
        case _:
            raise KeyError(control.offer)
