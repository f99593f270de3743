"""Controls of the studio: scenario keys and faults that users can change, and their conversion to overrides.

No side effects. ``controls.yaml`` has the rows; ``scenario.scenario_keys`` has types and descriptions of keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.devices import device_names
from simcluster.documents.diagnostics import join_or, quote_value
from simcluster.documents.yaml_documents import read_document
from simcluster.scenario.scenario_keys import list_scenario_keys
from simcluster.scenario.short_forms import value_at_path

ControlValue = str | int | float | bool | tuple[int, float]
"""Value of a control: (place, value) for a fault at a place, otherwise a value of the control's key."""
ControlSettings = tuple[tuple[str, ControlValue], ...]
PRICE = "price"
"""The control that does not change the step: dollars per GPU-hour."""
_IN_RUN = "run.price"
_MOST_PLACES = 10_000_000


@dataclass(frozen=True, slots=True)
class Control:
    """A control of the studio: its scenario key, label, group of controls, type of offered values, and limits.

    ``needs`` is a key without which the document has no such control; ``untold`` explains why no hints are shown, if
    so. A control of a fault has ``fault`` as in a document, with $place and $value; the kind of its ``place`` ("" for
    everywhere); the value at which it is ``off``; and the offered ``values``.
    """

    key: str
    label: str
    group: str
    offer: str
    least: float = 0
    most: float = 0
    says: str = ""
    needs: str = ""
    untold: str = ""
    place: str = ""
    off: float | None = None
    values: tuple[float, ...] = ()
    fault: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_fault(self) -> bool:
        """Whether the control adds a fault to the scenario instead of setting a key."""
        return bool(self.fault)

    def applies_to(self, document: Mapping[str, Any]) -> bool:
        """Return whether a scenario document has the key that this control needs."""
        return not self.needs or value_at_path(document, self.needs) is not None


@cache
def all_controls() -> Mapping[str, Control]:
    """Return all controls by key, in the order of the studio's page."""
    rows: Any = read_document(Path(__file__).with_name("controls.yaml")).data
    return {row["key"]: Control(**{**row, "values": tuple(row.get("values", ()))}) for row in rows["controls"]}


def check_setting(key: str, value: object) -> ControlValue:
    """Convert a value that the page sent to the type of its control; raise InputError if it is invalid.

    InputError for an unknown control, and for a value of another type or outside the limits, since requests come over
    the network.
    """
    control = all_controls().get(key)
    if control is None:
        raise InputError(f"{quote_value(key)} is not a control; use one of {join_or(all_controls())}")
    if control.place:
        place, number = value if isinstance(value, list | tuple) and len(value) == 2 else (None, None)
        if isinstance(place, int) and not isinstance(place, bool) and 0 <= place < _MOST_PLACES:
            return place, float(_check_number(control, number))
        raise InputError(
            f"{key} must be [{control.place}, number], as in [3, {control.values[-2]:g}], got {quote_value(value)}"
        )
    if control.most:
        number = _check_number(control, value)
        return float(number) if control.is_fault else number
    if control.offer == "switch" and isinstance(value, bool):
        return value
    known = accepted_names(key) if control.offer != "switch" else ()
    if isinstance(value, str | int) and not isinstance(value, bool) and value in known:
        return value
    raise InputError(f"{key} must be {join_or(known) if known else 'true or false'}, got {quote_value(value)}")


def _check_number(control: Control, value: object) -> int | float:
    whole = control.offer not in ("factors", "fault", "price")
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if control.least <= number <= control.most and (not whole or isinstance(number, int)):
        return number
    raise InputError(
        f"{control.key} must be a {'whole number' if whole else 'number'} from {control.least:g} to {control.most:,g} "
        f"as a control, got {quote_value(value)}"
    )


def settings_overrides(settings: ControlSettings, document: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Convert settings of controls to scenario overrides, and add overrides for dependent keys.

    ``document`` is the document to change. dp follows if the layout or the number of nodes changes; layers per stage
    follow if they were set for another number of stages.
    """
    given = dict(settings)
    found: list[tuple[str, Any]] = []
    if given.keys() & {"parallel.tp", "parallel.pp", "parallel.cp", "cluster.nodes"}:
        found.append(("parallel.dp", None))
    if "cluster.nodes" in given:
        found.append(("gpus", None))
    pipeline = document.get("pipeline")
    counted = isinstance(pipeline, Mapping) and isinstance(pipeline.get("layers_per_stage"), list | tuple)
    if counted and given.keys() & {"parallel.pp", "pipeline.chunks", "pipeline.schedule"}:
        found.append(("pipeline.layers_per_stage", "auto"))
    for key, value in settings:
        control = all_controls()[key]
        if key == PRICE:
            found += [(_IN_RUN, value)] if isinstance(document.get("run"), Mapping) else []
        elif not control.is_fault:
            found.append((key, value))
        elif (number := value[1] if isinstance(value, tuple) else value) != control.off:
            place = value[0] if isinstance(value, tuple) else None
            found.append(("faults+", _fill_placeholders(control.fault, {"$place": place, "$value": number})))
    return found


def _fill_placeholders(part: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(part, Mapping):
        return {key: _fill_placeholders(value, values) for key, value in part.items()}
    if isinstance(part, str) and part not in values:
        return part.replace("$value", f"{values['$value']:g}") if "$value" in part else part
    return values.get(part, part) if isinstance(part, str) else part


def sort_settings(settings: Mapping[str, ControlValue]) -> ControlSettings:
    """Return settings in the order of the page's controls."""
    return tuple((key, settings[key]) for key in all_controls() if key in settings)


def describe_settings(settings: Iterable[tuple[str, Any]]) -> list[str]:
    """Return settings as texts: "tp 4", "slow GPU: rank 3, × 1.5"."""
    found = []
    for key, value in settings:
        control = all_controls()[key]
        if isinstance(value, tuple):
            times = "× " if control.off == 1 else ""
            found.append(f"{control.label}: {control.place} {value[0]}, {times}{value[1]:g}")
        elif isinstance(value, bool):
            found.append(f"{control.label} {'on' if value else 'off'}")
        else:
            found.append(f"{control.label} {value:,}" if isinstance(value, int | float) else f"{control.label} {value}")
    return found


@cache
def accepted_names(key: str) -> tuple[ControlValue, ...]:
    """Return the names that a scenario key accepts as its value, such as the built-in devices."""
    if key == "cluster.device":
        return tuple(device_names())
    words = next(each.choices for each in list_scenario_keys() if each.path == key)
    return tuple(int(word) if word.isdecimal() else word for word in words)


@cache
def control_descriptions() -> Mapping[str, str]:
    """Return the description of each control by its key."""
    of_keys = {each.path: each.description for each in list_scenario_keys()} | {
        "cluster.device": "The GPU.",
        "cluster.nodes": "Number of nodes; the job uses all their GPUs.",
    }
    return {control.key: control.says or of_keys.get(control.key, "") for control in all_controls().values()}
