"""The values that each control is offered with for a scenario, and the nearest legal ones where some are refused.

Pure.  Values are only offered: the scenario's rules decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.suggestions import divisors
from simcluster.interactive.controls.settings import Control, Settings, Value, controls, in_order, notes, words_of
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
    """Return what a scenario has there; None where its key is not set, or is no name."""
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
    """Return the values of a control's steps or words, with the scenario's own among them, in order."""
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


_MOST_TRIED = 12  # values on the way to one that goes, of one control


@dataclass(frozen=True, slots=True)
class LegalChange:
    """Settings that the scenario's rules allow, and in words what they change of those that were refused."""

    words: str
    settings: Settings

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"words": self.words, "settings": dict(self.settings)}


def nearest_legal(
    settings: Settings,
    key: str,
    values: Mapping[str, Sequence[Value]],
    complaint: str,
    legal: Callable[[Settings], bool],
) -> list[LegalChange]:
    """What would go where settings are refused: the nearest values of the control that was changed (``key``), then of
    others that the complaint names; ``values`` are those offered, by control.  The last one takes the change back."""
    names = {each: controls()[each].label for each in values}
    found: list[LegalChange] = []
    named = [each for each in values if each != key and each.rpartition(".")[2] in _names_in(complaint)]
    for each in [key, *named]:
        for value in _near(dict(settings).get(each), values.get(each, ())):
            changed = with_setting(settings, each, value)
            if legal(changed):
                found.append(LegalChange(f"{names.get(each, each)} {_told(value)}", changed))
                if each != key or len(found) > 1:
                    break
    without = tuple(pair for pair in settings if pair[0] != key)
    if without != settings and legal(without):
        found.append(LegalChange(f"{names.get(key, key)} as it was in the file", without))
    return found


def remedies(
    base: Scenario, settings: Settings, key: str, complaint: str, made: Callable[[Settings], object]
) -> list[LegalChange]:
    """What would go where the settings of a scenario are refused with a complaint; ``key`` was changed last ("": it is
    not known which was, as of a link: then one that the complaint names), and ``made`` raises InputError for settings
    that do not go."""
    if not key:  # the last control that was set of those that are named, or of all
        keys, known = [each for each, _ in settings], _names_in(complaint)
        key = next((each for each in reversed(keys) if each.rpartition(".")[2] in known), keys[-1] if keys else "")
    if not key:
        return []
    document = base.document()
    values = {each.key: offered(base, document, each) for each in controls().values() if not each.is_fault}

    def legal(tried: Settings) -> bool:
        try:
            made(tried)
        except InputError:
            return False
        return True

    return nearest_legal(settings, key, values, complaint, legal)


def with_setting(settings: Settings, key: str, value: Value) -> Settings:
    """Return settings with one of them changed or added, in the order of the controls."""
    return in_order({**dict(settings), key: value})


def _names_in(complaint: str) -> set[str]:
    return set("".join(letter if letter.isalnum() or letter == "_" else " " for letter in complaint).split())


def _near(wanted: Value | None, values: Sequence[Value]) -> Iterator[Value]:
    """Yield others, the nearest first: by their ratio, or of words in their order."""
    others = [value for value in values if value != wanted]
    if isinstance(wanted, int | float) and all(isinstance(each, int | float) and each > 0 for each in others):
        others.sort(key=lambda each: abs(math.log(each / max(wanted, 1e-9))))  # type: ignore[operator]
    yield from others[:_MOST_TRIED]


def _told(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,g}" if isinstance(value, int | float) else str(value)
