"""Hints next to the studio's controls that say how other values would change the step, and buttons for advice.

Each hint is one part of an answer: it simulates one other value while no change is pending.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.progress import set_estimate_limit
from simcluster.interactive.controls.offered_values import ValidSettings, control_value, offered_values, set_control
from simcluster.interactive.controls.settings import (
    Control,
    ControlSettings,
    ControlValue,
    all_controls,
    check_setting,
    describe_settings,
    sort_settings,
)
from simcluster.interactive.page.studio_state import parse_value
from simcluster.interactive.report.html import Markup, typeset_numbers
from simcluster.results.result import Result
from simcluster.scenario.effort_estimate import estimate_simulation_seconds
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.whatif.sensitivities import TIME_RESOURCES, sensitivity

_KEY, _VALUE = r"[a-z_]+(?:\.[a-z_]+)+", r"[\w-]+(?:\.\d+)?"
_ONE = rf"--(?:set {_KEY}={_VALUE}|{_KEY} {_VALUE})"
_OPTIONS = re.compile(rf"{_ONE}(?: {_ONE})*")
_PAIR = re.compile(rf"--(?:set )?({_KEY})[= ]({_VALUE})")


def replace_options(text_html: Markup, settings: ControlSettings) -> tuple[Markup, list[ValidSettings]]:
    """Replace command-line options in a text by control labels; also return the settings that they make.

    Options without a control stay as they are.
    """
    ideas: list[ValidSettings] = []

    def replace_with_label(found: re.Match[str]) -> str:
        try:
            change = [(key, check_setting(key, parse_value(text))) for key, text in _PAIR.findall(found[0])]
        except InputError:
            return found[0]
        words = ", ".join(describe_settings(change))
        ideas.append(ValidSettings(words, _apply_change(settings, dict(change))))
        return words

    text = Markup(_OPTIONS.sub(replace_with_label, text_html))
    return text, list({each.settings: each for each in ideas}.values())


def _apply_change(settings: ControlSettings, change: Mapping[str, ControlValue]) -> ControlSettings:
    whole = {**dict(settings), **change}
    if change.keys() & {"parallel.tp", "parallel.pp", "parallel.cp"}:
        whole.pop("parallel.dp", None)
    return sort_settings(whole)


MakeScenario = Callable[[ControlSettings], Scenario]
"""A function that returns the scenario of settings; InputError for invalid ones."""

_GROUPS = ("Layout", "Work", "Overlap", "Faults")
_MORE_HINTED = ("cluster.device", "cluster.nodes")
"""Controls of other groups that also have hints."""
_SCALE = "cluster.scale."
_HINTED_VALUES = {
    "schedules": ("1f1b", "interleaved", "zb-h1", "gpipe"),
    "devices": ("a100-80gb", "h100", "h200", "b200"),
}
"""Values with hints, by the kind of offer."""
_MOST_WORDS = 3
_MOST_TRIED = 6  # values tried until a valid one
_MOST_SECONDS = 5.0  # longest step that is simulated for a hint
_NOTICED = 5e-4  # smallest reported change of a step time or a rate
_TOO_LONG = "no hint: the step takes too long to simulate in the background"
_NO_VALUE = "no other valid value"


@cache
def hint_parts() -> Mapping[str, tuple[str, int]]:
    """Return each hint on the page by name: the control's key, and the position of the hinted value in its list."""
    hinted = [
        each for each in all_controls().values()
        if each.group in _GROUPS or each.key in _MORE_HINTED or each.key.startswith(_SCALE)
    ]  # fmt: skip
    return {f"hint {each.key} {number}": (each.key, number) for each in hinted for number in range(_num_hints(each))}


def missing_hints() -> list[dict[str, Any]]:
    """Return the controls that show no hints, each with the reason."""
    return [{"key": each.key, "of": "", "words": each.untold} for each in all_controls().values() if each.untold]


def make_hint(
    part: str, result: Result, settings: ControlSettings, make_scenario: MakeScenario
) -> list[dict[str, Any]]:
    """Return as JSON how much another value of one control would change the simulated step.

    Empty if there is no such value; the reason if the control has no other valid value, or if the step takes long.
    """
    key, number = hint_parts()[part]
    control, scenario = all_controls()[key], result.scenario
    if not control.applies_to(scenario.document()):
        return []
    if _takes_long(scenario):
        return [] if number else [{"key": key, "of": "", "words": _TOO_LONG}]
    if key.startswith(_SCALE):
        return [{"key": key, "of": "step", "words": _describe_percent_gain(result, key.removeprefix(_SCALE))}]
    found = [
        words
        for value, other in _list_other_values(scenario, settings, control, number, make_scenario)
        for words in _describe_change(result, other, control, value)
    ]
    every = chain.from_iterable(
        _list_other_values(scenario, settings, control, at, make_scenario) for at in range(_num_hints(control))
    )
    if not found and not number and next(every, None) is None:
        found = [("", _NO_VALUE)]
    return [{"key": key, "of": of, "words": words} for of, words in found]


def _takes_long(scenario: Scenario) -> bool:
    return estimate_simulation_seconds(scenario) > _MOST_SECONDS


def _describe_percent_gain(result: Result, resource: str) -> str:
    (found,) = sensitivity(result, [resource])
    change = -100 * (found.step_time - found.before) / found.before
    sign = "−" if change >= 0 else "+"
    return f"{sign}{abs(change):.2f} % with 1 % {'less' if resource in TIME_RESOURCES else 'more'}"


def _num_hints(control: Control) -> int:
    return 1 if control.offer == "switch" or control.key.startswith(_SCALE) else 2 if control.most else _MOST_WORDS


def _list_other_values(
    scenario: Scenario, settings: ControlSettings, control: Control, number: int, make_scenario: MakeScenario
) -> Iterator[tuple[ControlValue, Scenario]]:
    key, document = control.key, scenario.document()
    values, place = list(offered_values(scenario, document, control)), 0
    now = dict(settings).get(key, control.off) if control.is_fault else control_value(scenario, document, key)
    if isinstance(now, tuple):
        place, now = now
    if now is not None and now not in values:
        values = sorted([*values, now])
    if not control.most:
        words = _HINTED_VALUES.get(control.offer, values)
        others = _valid_values([each for each in words if each != now], settings, key, make_scenario)
        yield from islice(others, number, number + 1)
        return
    at = values.index(now) if now is not None else 0
    side = (list(reversed(values[:at])), values[at + 1 :])[number][:_MOST_TRIED]
    there: list[ControlValue] = [(place, float(each)) for each in side] if control.place else side  # type: ignore[arg-type]
    yield from islice(_valid_values(there, settings, key, make_scenario), 1)


def _valid_values(
    values: Sequence[ControlValue], settings: ControlSettings, key: str, make_scenario: MakeScenario
) -> Iterator[tuple[ControlValue, Scenario]]:
    for value in values:
        try:
            yield value, make_scenario(set_control(settings, key, value))
        except InputError:
            continue


def _describe_change(base: Result, other: Scenario, control: Control, value: ControlValue) -> Iterator[tuple[str, str]]:
    if _takes_long(other):
        yield "", f"{_format_value(control, value)} {_TOO_LONG}"
        return
    try:
        with set_estimate_limit(_MOST_SECONDS):
            changed = simulate_scenario(other)  # numbers alone, so the faster engine
    except InputError:
        return
    before, after = base.scenario, changed.scenario
    if (before.tokens_per_step, before.gpus) == (after.tokens_per_step, after.gpus):
        of, part = "step", changed.step_time / base.step_time - 1
    else:
        of, part = "tokens/s per GPU", changed.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu - 1
    fits = " (out of memory)" if base.fits and not changed.fits else ""
    change = typeset_numbers(f"{part:+.1%}") if abs(part) >= _NOTICED else "the same"
    yield of, f"{change} {_format_value(control, value)}{fits}"


def _format_value(control: Control, value: ControlValue) -> str:
    if control.offer == "switch":
        return "if on" if value else "if off"
    if control.is_fault:
        number = value[1] if isinstance(value, tuple) else value
        times = "× " if control.off == 1 and control.values[0] == 1 else ""
        return "with none" if number == control.off else f"with {times}{number:g}"
    return f"with {value:,}" if isinstance(value, int | float) else f"with {value}"
