"""Hints beside a control, what its other values would give: each is a step, played while no change waits for one.

A part of an answer is one other value, so that nothing more is played once somebody has changed something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

from simcluster.base.errors import InputError
from simcluster.controls.nearest import with_setting
from simcluster.controls.offers import offered, value_of
from simcluster.controls.settings import Control, Settings, Value, controls
from simcluster.results.result import Result
from simcluster.scenario.effort import estimated_seconds
from simcluster.scenario.scenario import Scenario
from simcluster.show.report.words import signed_percent
from simcluster.simulate import simulate

Made = Callable[[Settings], Scenario]
"""The scenario of settings; InputError for those that do not go."""

_GROUPS = ("Split", "Work", "Overlap")
_BESIDE = ("cluster.device", "cluster.nodes")
"""Controls of other groups that are told of, too; of speeds a percent more is."""
_COMPARED = {
    "schedules": ("1f1b", "interleaved", "zb-h1", "gpipe"),
    "devices": ("a100-80gb", "h100", "h200", "b200"),
}
"""By what a control offers, those that people compare of all that there are."""
_MOST_WORDS = 3
_MOST_TRIED = 6  # values on the way to one that goes
_MOST_SECONDS = 5.0  # of a step that is played unasked


@cache
def hint_parts() -> Mapping[str, tuple[str, int]]:
    """Parts of an answer: the key and the number of each other value that is told of."""
    hinted = [each for each in controls().values() if each.group in _GROUPS or each.key in _BESIDE]
    return {f"hint {each.key} {number}": (each.key, number) for each in hinted for number in range(_count(each))}


def hint(part: str, result: Result, settings: Settings, made: Made) -> list[dict[str, Any]]:
    """What one other value would change of the step that was played, by how much and where; nothing where there is no
    such value, and of a step that takes long."""
    key, number = hint_parts()[part]
    if estimated_seconds(result.scenario) > _MOST_SECONDS:
        return []
    return [
        {"key": key, "of": of, "words": words}
        for value, scenario in _other(result.scenario, settings, key, number, made)
        for of, words in _told(result, scenario, controls()[key], value)
    ]


def _count(control: Control) -> int:
    """How many other values of a control are told of."""
    return 1 if control.offer == "switch" else 2 if control.most else _MOST_WORDS


def _other(
    scenario: Scenario, settings: Settings, key: str, number: int, made: Made
) -> Iterator[tuple[Value, Scenario]]:
    """The other value with that number, if there is one: of numbers the next below and above that go, of words one
    after the other."""
    control, document = controls()[key], scenario.document()
    if not control.there(document):
        return
    now, values = value_of(scenario, document, key), offered(scenario, document, control)
    if control.most:
        place = values.index(now) if now is not None else 0
        side = (list(reversed(values[:place])), values[place + 1 :])[number]
        yield from islice(_legal(side[:_MOST_TRIED], settings, key, made), 1)
        return
    words = _COMPARED.get(control.offer, values)
    yield from islice(_legal([each for each in words if each != now], settings, key, made), number, number + 1)


def _legal(values: Sequence[Value], settings: Settings, key: str, made: Made) -> Iterator[tuple[Value, Scenario]]:
    for value in values:
        try:
            yield value, made(with_setting(settings, key, value))
        except InputError:
            continue


def _told(result: Result, scenario: Scenario, control: Control, value: Value) -> Iterator[tuple[str, str]]:
    """What is changed and by how much: the step, or the rate of a GPU where it is another batch or cluster."""
    try:
        other = simulate(scenario)
    except InputError:  # found when it is played
        return
    before, after = result.scenario, other.scenario
    if (before.tokens_per_step, before.gpus) == (after.tokens_per_step, after.gpus):
        of, part = "step", other.step_time / result.step_time - 1
    else:
        of, part = "tokens/s a GPU", other.tokens_per_s_per_gpu / result.tokens_per_s_per_gpu - 1
    fits = " (does not fit)" if result.fits and not other.fits else ""
    yield of, f"{signed_percent(part)} {_where(control, value)}{fits}"


def _where(control: Control, value: Value) -> str:
    if control.offer == "switch":
        return "if on" if value else "if off"
    return f"with {value:,}" if isinstance(value, int | float) else f"with {value}"
