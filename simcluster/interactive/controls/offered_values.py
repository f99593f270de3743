"""Values that each studio control offers, and valid settings near invalid ones.

No side effects. Values are only offered: the scenario's rules decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.documents.suggestions import divisors
from simcluster.interactive.controls.settings import accepted_names, all_controls, control_descriptions, sort_settings

if TYPE_CHECKING:
    from simcluster.interactive.controls.settings import Control, ControlSettings, ControlValue
    from simcluster.scenario.scenario import Scenario

_FACTORS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
_MOST_OFFERED = 24
_MOST_TRIED = 12  # values of one control on the way to a legal one


def describe_controls(scenario: Scenario, base: Scenario) -> list[dict[str, Any]]:
    """Return all controls as JSON for the page: key, label, group, description, value and offered values.

    Doublings start from the ``base`` scenario, so that a scale keeps its marks while the user moves it.
    """
    document, first = scenario.document(), base.document()
    found = []
    for control in all_controls().values():
        if not control.applies_to(document):
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
            "says": control_descriptions().get(control.key, ""),
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


def control_value(scenario: Scenario, document: Mapping[str, Any], key: str) -> ControlValue | None:
    """Return a control's value in a scenario; None if the key has no value, or several."""
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


def offered_values(scenario: Scenario, document: Mapping[str, Any], control: Control) -> Sequence[ControlValue]:
    """Return the values that a control offers, in ascending order, including the current value."""
    if control.is_fault:
        return control.values
    value = control_value(scenario, document, control.key)
    found = _list_values(scenario, value, control)
    if not control.most:
        return found
    within = {each for each in found if control.least <= each <= control.most}
    return sorted(within | ({value} if value is not None else set()))


def _list_values(scenario: Scenario, value: ControlValue | None, control: Control) -> Sequence[Any]:
    stages, pp = scenario.model.layers + 2, scenario.parallel.pp
    match control.offer:
        case "schedules" | "words" | "devices":
            return accepted_names(control.key)
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
    """Valid settings of the controls, with a text that says what they change in the current settings."""

    description: str
    settings: ControlSettings

    def to_dict(self) -> dict[str, Any]:
        """Return the text and the settings as a dictionary for JSON."""
        return {"words": self.description, "settings": dict(self.settings)}


def find_valid_settings(
    base: Scenario, settings: ControlSettings, key: str, error: str, make_scenario: Callable[[ControlSettings], object]
) -> list[ValidSettings]:
    """Find valid settings close to invalid ones, trying first other values of the control changed last.

    Then come values of other controls that the text ``error`` names, and the settings without the change. If ``key``
    is empty (for a link), it is the last control that ``error`` names, or else the last of all. ``make_scenario``
    raises InputError for invalid settings.
    """
    words = set("".join(letter if letter.isalnum() or letter == "_" else " " for letter in error).split())
    if not key:
        keys = [each for each, _ in settings]
        key = next((each for each in reversed(keys) if each.rpartition(".")[2] in words), keys[-1] if keys else "")
    if not key:
        return []
    document = base.document()
    values = {each.key: offered_values(base, document, each) for each in all_controls().values() if not each.is_fault}
    named = [each for each in values if each != key and each.rpartition(".")[2] in words]
    label = all_controls()[key].label if key in values else key
    found: list[ValidSettings] = []
    for each in [key, *named]:
        for value in _nearest_values(dict(settings).get(each), values.get(each, ())):
            changed = set_control(settings, each, value)
            if _is_valid(make_scenario, changed):
                name = all_controls()[each].label if each in values else each
                found.append(ValidSettings(f"{name} {_format_value(value)}", changed))
                if each != key or len(found) > 1:
                    break
    without = tuple(pair for pair in settings if pair[0] != key)
    if without != settings and _is_valid(make_scenario, without):
        found.append(ValidSettings(f"{label} as in the scenario file", without))
    return found


def _is_valid(make_scenario: Callable[[ControlSettings], object], settings: ControlSettings) -> bool:
    try:
        make_scenario(settings)
    except InputError:
        return False
    return True


def set_control(settings: ControlSettings, key: str, value: ControlValue) -> ControlSettings:
    """Return settings with one control changed or added, in the order of the page's controls."""
    return sort_settings({**dict(settings), key: value})


def _nearest_values(wanted: ControlValue | None, values: Sequence[ControlValue]) -> Iterator[ControlValue]:
    others = [value for value in values if value != wanted]
    if isinstance(wanted, int | float) and all(isinstance(each, int | float) and each > 0 for each in others):
        others.sort(key=lambda each: abs(math.log(each / max(wanted, 1e-9))))  # type: ignore[operator]
    yield from others[:_MOST_TRIED]


def _format_value(value: ControlValue) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,g}" if isinstance(value, int | float) else str(value)
