"""A scenario with a few settings changed, as the notebook's widget shows it: the controls, the numbers, the timeline,
and why a setting cannot be.

Nothing of a widget is needed here: settings go in, HTML comes out.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed, shown
from simcluster.documents.suggestions import divisors
from simcluster.results.result import Result
from simcluster.scenario.keys import scenario_keys
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES
from simcluster.show.notebook.drawn import cell
from simcluster.show.report.html import element
from simcluster.simulate import simulate
from simcluster.studies.whatif.difference import diff

Settings = Mapping[str, Any]
"""What the controls are set to, by key; what is not in it is as the scenario has it."""

SLOW_GPU = "slow_gpu"
"""The control that is no key of a scenario: [rank, by how much its kernels take longer]."""
_SLOWDOWNS = (1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0)
_SPLIT = ("parallel.tp", "parallel.pp", "parallel.dp")
_MOST_KEPT = 32
_MOST_TRIED = 12  # values on the way to one that goes


@dataclass(frozen=True, slots=True)
class NotebookControl:
    """A control of the widget: its key and label, whether it is a list of words or a slider, what it may be set to, and
    what it is."""

    key: str
    label: str
    slides: bool
    values: Sequence[Any]
    value: Any


@dataclass(frozen=True, slots=True)
class StudioAnswer:
    """What the widget shows of some settings: HTML, or in a ``message`` why they cannot be, and then the ``nearest``
    ones that can."""

    html: str
    message: str = ""
    nearest: Settings | None = None


class NotebookStudio:
    """A scenario and all that was played of it."""

    def __init__(self, base: Scenario) -> None:
        self.base = base
        self._kept: OrderedDict[str, Result] = OrderedDict()

    def scenario(self, settings: Settings) -> Scenario:
        """The scenario with settings changed; InputError with the rule for those that cannot be.

        Replicas follow where tp or pp change and they are not set themselves.
        """
        unknown = [key for key in settings if key not in _OFFERS]
        if unknown:
            raise InputError(f"{shown(unknown[0])} is no control of the studio; there are {listed(_OFFERS)}")
        changes: list[tuple[str, Any]] = [("parallel.dp", None)] if {"parallel.tp", "parallel.pp"} & {*settings} else []
        for key, value in settings.items():
            changes += _slow(value) if key == SLOW_GPU else [(key, value)]
        return self.base.with_(changes) if changes else self.base

    def result(self, settings: Settings) -> Result:
        """What was played with those settings, now if not before."""
        name = json.dumps(settings, sort_keys=True, default=str)
        if name not in self._kept:
            self._kept[name] = simulate(self.scenario(settings))
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]

    def controls(self, settings: Settings) -> list[dict[str, Any]]:
        """All controls as the page draws them; of settings that cannot be those of the scenario as it stands."""
        try:
            scenario = self.scenario(settings)
        except InputError:
            scenario = self.base
        found = []
        for key, (label, slides, values, value) in _OFFERS.items():
            now = settings.get(key, value(scenario))
            offered = list(values(scenario))
            offered += [] if now in offered or key == SLOW_GPU else [now]
            if slides and all(isinstance(each, int | float) for each in offered):
                offered.sort()
            found.append(asdict(NotebookControl(key, label, slides, offered, now)))
        return found

    def answer(self, settings: Settings, *, changed: str = "", zoom: bool = False) -> StudioAnswer:
        """What is shown of settings, of which ``changed`` is the last that was; with ``zoom`` the timeline to zoom
        into."""
        try:
            result = self.result(settings)
        except InputError as problem:
            return StudioAnswer("", str(problem), self._nearest(settings, changed))
        parts = [self._against_base(result, settings), result._repr_html_()]
        if zoom:
            from simcluster.show.notebook.gantt_cell import gantt_html

            parts.append(gantt_html(result)._repr_html_())
        return StudioAnswer("".join(parts))

    def _against_base(self, result: Result, settings: Settings) -> str:
        """In words, what the settings have changed; nothing where there are none."""
        if not settings:
            return ""
        try:
            base = self.result({})
        except InputError:  # the scenario cannot be played as it stands
            return ""
        found = diff(base, result)
        names = ("the scenario as given", "This step")
        return cell(element("p", replace(found, names=names).in_words()))

    def _nearest(self, settings: Settings, changed: str) -> Settings | None:
        """The same with the value of the changed control nearest to what was asked that goes; None if none does."""
        for value in self._ordered(settings, changed):
            tried = {**settings, changed: value}
            try:
                self.scenario(tried)
            except InputError:
                continue
            return tried
        rest = {key: value for key, value in settings.items() if key != changed}
        try:
            self.scenario(rest)
        except InputError:
            return {}
        return rest

    def _ordered(self, settings: Settings, changed: str) -> Iterator[Any]:
        """Other values of a control, the nearest first."""
        if changed not in _OFFERS or changed not in settings or changed == SLOW_GPU:
            return
        _, slides, values, _ = _OFFERS[changed]
        offered, wanted = [each for each in values(self.base) if each != settings[changed]], settings[changed]
        if slides and isinstance(wanted, int | float):
            offered.sort(key=lambda each: abs(each - wanted))
        yield from offered[:_MOST_TRIED]


def _slow(value: Any) -> list[tuple[str, Any]]:
    """A slow GPU as a change of the scenario; none where it is no slower."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InputError(f"{SLOW_GPU} must be [rank, slowdown], as in [3, 1.5], got {shown(value)}")
    rank, slowdown = value
    return [] if slowdown == 1 else [("faults+", {"kind": SLOW_GPU, "rank": rank, "slowdown": slowdown})]


def _stages(scenario: Scenario) -> list[int]:
    return [number for number in divisors(scenario.gpus) if number <= scenario.model.layers]


def _micro_batches(scenario: Scenario) -> list[int]:
    return divisors(max(1, scenario.training.global_batch // scenario.dp))


def _recomputes(scenario: Scenario) -> Sequence[str]:
    return next(key.words for key in scenario_keys() if key.path == "training.recompute")


_OFFERS: Mapping[str, tuple[str, bool, Callable[[Scenario], Sequence[Any]], Callable[[Scenario], Any]]] = {
    "pipeline.schedule": ("schedule", False, lambda _: list(SCHEDULES), lambda base: base.pipeline.schedule_name),
    "parallel.tp": ("tp", True, lambda base: divisors(base.gpus), lambda base: base.parallel.tp),
    "parallel.pp": ("pp", True, _stages, lambda base: base.parallel.pp),
    "parallel.dp": ("dp", True, lambda base: divisors(base.gpus), lambda base: base.dp),
    "training.micro_batch": ("micro batch", True, _micro_batches, lambda base: base.training.micro_batch),
    "training.recompute": ("recompute", False, _recomputes, lambda base: base.training.recompute),
    SLOW_GPU: ("slow GPU: rank", True, lambda _: _SLOWDOWNS, lambda _: [0, 1.0]),
}
"""Of each control by its key: its label, whether it is a slider, what it may be set to and what it is in a scenario."""
