"""Values that each control offers for a scenario, and valid values near invalid ones.

No side effects. Values are only offered: the scenario's rules decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.suggestions import divisors
from simcluster.interactive.controls.settings import Control, Settings, Value, controls, key_names, notes, sort_settings
from simcluster.scenario.scenario import Scenario

_FACTORS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
_MOST_OFFERED = 24
_MOST_TRIED = 12  # values of one control on the way to a legal one


def describe_controls(scenario: Scenario, base: Scenario) -> list[dict[str, Any]]:
    """Return every control of a scenario as JSON for the page: key, label, group, description, value, offers.

    Doublings start from the ``base`` scenario, so that a scale keeps its marks while the user moves it.
    """
    document, first = scenario.document(), base.document()
    found = []
    for control in controls().values():
        if not control.there(document):
            continue
        value = control_value(scenario, document, control.key)
        values = list(offered_values(scenario, document, control))
        if control.offer == "doublings":
            values = sorted({*offered_values(base, first, control), *([] if value is None else [value])})
        kind = "fault" if control.is_fault else "steps" if control.most else "choice"
        kind = control.offer if control.offer in ("switch", "price") else kind
        if not values and kind != "price":
            continue
        known = {
            "key": control.key,
            "label": control.label,
            "group": control.group,
            "kind": kind,
            "says": notes().get(control.key, ""),
            "value": None if control.is_fault else value,
            "base": None if control.is_fault else control_value(base, first, control.key),
            "values": values,
        }
        if control.is_fault:
            known |= {"place": control.place, "off": control.off}
        elif control.most:
            known |= {"least": control.least, "most": control.most}
        found.append(known)
    return found


def control_value(scenario: Scenario, document: Mapping[str, Any], key: str) -> Value | None:
    """Return the value that a scenario has for a control; None if it is not set or not a single value."""
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


def offered_values(scenario: Scenario, document: Mapping[str, Any], control: Control) -> Sequence[Value]:
    """Return the values that a control offers for a scenario, the current one included, in order."""
    if control.is_fault:
        return control.values
    value = control_value(scenario, document, control.key)
    found = _values_by_kind(scenario, value, control)
    if not control.most:
        return found
    within = {each for each in found if control.least <= each <= control.most}
    return sorted(within | ({value} if value is not None else set()))


def _values_by_kind(scenario: Scenario, value: Value | None, control: Control) -> Sequence[Any]:
    stages, pp = scenario.model.layers + 2, scenario.parallel.pp
    match control.offer:
        case "schedules" | "words" | "devices":
            return key_names(control.key)
        case "split":
            return divisors(scenario.gpus)[:_MOST_OFFERED]
        case "stages":
            return [number for number in divisors(scenario.gpus) if number <= stages]
        case "replicas":
            return divisors(scenario.gpus)
        case "experts":
            return divisors(scenario.model.moe.experts) if scenario.model.moe else [1]
        case "chunks":
            return [number for number in range(1, 17) if number * pp <= stages] or [1]
        case "doublings":
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


@dataclass(frozen=True, slots=True)
class ValidSettings:
    """Valid settings of the controls, and a description of how they differ from the current ones."""

    words: str
    settings: Settings

    def to_dict(self) -> dict[str, Any]:
        """Return the change as a dictionary for JSON."""
        return {"words": self.words, "settings": dict(self.settings)}


def valid_settings(
    base: Scenario, settings: Settings, key: str, complaint: str, made: Callable[[Settings], object]
) -> list[ValidSettings]:
    """Return valid settings near invalid ones, starting with other values of the control changed last.

    Then come values of other controls that the complaint names, and the settings without the change. Without a ``key``
    (of a link), the last control that the complaint names, or else the last of all, takes its place. ``made`` raises
    InputError for invalid settings.
    """
    words = set("".join(letter if letter.isalnum() or letter == "_" else " " for letter in complaint).split())
    if not key:
        keys = [each for each, _ in settings]
        key = next((each for each in reversed(keys) if each.rpartition(".")[2] in words), keys[-1] if keys else "")
    if not key:
        return []
    document = base.document()
    values = {each.key: offered_values(base, document, each) for each in controls().values() if not each.is_fault}
    named = [each for each in values if each != key and each.rpartition(".")[2] in words]
    label = controls()[key].label if key in values else key
    found: list[ValidSettings] = []
    for each in [key, *named]:
        for value in _nearest_values(dict(settings).get(each), values.get(each, ())):
            changed = with_setting(settings, each, value)
            if _is_valid(made, changed):
                name = controls()[each].label if each in values else each
                found.append(ValidSettings(f"{name} {_format_value(value)}", changed))
                if each != key or len(found) > 1:
                    break
    without = tuple(pair for pair in settings if pair[0] != key)
    if without != settings and _is_valid(made, without):
        found.append(ValidSettings(f"{label} as in the file", without))
    return found


def _is_valid(made: Callable[[Settings], object], settings: Settings) -> bool:
    try:
        made(settings)
    except InputError:
        return False
    return True


def with_setting(settings: Settings, key: str, value: Value) -> Settings:
    """Return settings with one control changed or added, in the order of the controls."""
    return sort_settings({**dict(settings), key: value})


def _nearest_values(wanted: Value | None, values: Sequence[Value]) -> Iterator[Value]:
    others = [value for value in values if value != wanted]
    if isinstance(wanted, int | float) and all(isinstance(each, int | float) and each > 0 for each in others):
        others.sort(key=lambda each: abs(math.log(each / max(wanted, 1e-9))))  # type: ignore[operator]
    yield from others[:_MOST_TRIED]


def _format_value(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,g}" if isinstance(value, int | float) else str(value)
