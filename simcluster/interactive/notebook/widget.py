"""The studio's notebook widget: control settings go to the kernel, results come back.

Imported only if anywidget is installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

import anywidget
import traitlets

from simcluster.base.errors import InputError
from simcluster.interactive.controls.offers import describe_controls, valid_settings
from simcluster.interactive.controls.settings import Settings, check_value, settings_overrides, sort_settings
from simcluster.interactive.notebook.drawn import cell_html
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.show.report.html import element
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.whatif.difference import diff

Given = Mapping[str, Any]
"""What the controls are set to, by key; what is not in it is as the scenario has it."""

_MOST_KEPT = 32


@dataclass(frozen=True, slots=True)
class WidgetContent:
    """Content that the studio widget shows: HTML, or a ``message`` why the settings are invalid.

    ``remedies`` are then valid settings as {words, settings}, nearest first.
    """

    html: str
    message: str = ""
    remedies: Sequence[Mapping[str, Any]] = ()


class NotebookStudio:
    """A scenario with controls, and the cached results of its settings."""

    def __init__(self, base: Scenario) -> None:
        self.base = base
        self._replayed = lru_cache(_MOST_KEPT)(lambda settings: simulate_scenario(self.scenario(json.loads(settings))))

    def scenario(self, settings: Given) -> Scenario:
        """Return the scenario with these settings of controls; raise InputError with the broken rule if invalid.

        dp follows if tp or pp change and it is not set itself.
        """
        return self._scenario_of(sort_settings({key: check_value(key, value) for key, value in settings.items()}))

    def _scenario_of(self, settings: Settings) -> Scenario:
        changes = settings_overrides(settings, self.base.origin.document.data)
        return self.base.with_(changes) if changes else self.base

    def result(self, settings: Given) -> Result:
        """Return the simulated step with these settings, from the cache if possible."""
        return self._replayed(json.dumps(settings, sort_keys=True, default=str))

    def controls(self, settings: Given) -> list[dict[str, Any]]:
        """Return all controls with their values; for invalid settings, those of the unchanged scenario."""
        try:
            scenario = self.scenario(settings)
        except InputError:
            scenario = self.base
        return [{**each, "set": settings.get(each["key"])} for each in describe_controls(scenario, self.base)]

    def answer(self, settings: Given, *, changed: str = "", zoom: bool = False) -> WidgetContent:
        """Return the widget's content for some settings; ``changed`` is the key that was set last.

        With ``zoom`` it includes the zoomable timeline.
        """
        try:
            result = self.result(settings)
        except InputError as problem:
            return WidgetContent("", str(problem), self._valid_remedies(settings, changed, str(problem)))
        parts = [result._repr_html_()]
        with suppress(InputError):  # the scenario cannot be simulated as it stands
            if settings:
                found = replace(diff(self.result({}), result), names=("the scenario as given", "This step"))
                parts.insert(0, cell_html(element("p", found.in_words())))
        if zoom:
            from simcluster.interactive.notebook.gantt_cell import gantt_html

            parts.append(gantt_html(result)._repr_html_())
        return WidgetContent("".join(parts))

    def _valid_remedies(self, settings: Given, changed: str, complaint: str) -> list[Mapping[str, Any]]:
        try:
            known = sort_settings({key: check_value(key, value) for key, value in settings.items()})
        except InputError:
            return [{"words": "as in the scenario", "settings": {}}]
        return [each.to_dict() for each in valid_settings(self.base, known, changed, complaint, self._scenario_of)]


def _read_asset(name: str) -> str:
    return (files("simcluster.interactive.notebook") / "assets" / name).read_text(encoding="utf-8")


class StudioWidget(anywidget.AnyWidget):  # type: ignore[misc]  # anywidget is not always there
    """Notebook widget with controls over a scenario and the simulated step below them.

    ``settings`` are the changes by key; ``controls`` the available controls; ``html`` the content, or else ``message``
    states why the settings are invalid and ``remedies`` lists valid ones as {words, settings}, the first also as
    ``nearest``. ``answered`` counts the answers.
    """

    _esm = _read_asset("studio.js")
    _css = _read_asset("studio.css")
    settings = traitlets.Dict().tag(sync=True)
    zoom = traitlets.Bool(False).tag(sync=True)
    controls = traitlets.List().tag(sync=True)
    html = traitlets.Unicode().tag(sync=True)
    message = traitlets.Unicode().tag(sync=True)
    nearest = traitlets.Dict(allow_none=True, default_value=None).tag(sync=True)
    remedies = traitlets.List().tag(sync=True)
    answered = traitlets.Int(0).tag(sync=True)

    def __init__(self, scenario: Scenario) -> None:
        self._studio = NotebookStudio(scenario)
        super().__init__()
        self._answer_changed_control({})
        self.observe(lambda change: self._answer_changed_control(change.old), names="settings")
        self.observe(lambda _: self._answer_changed_control(self.settings), names="zoom")

    def __repr__(self) -> str:
        said = self.message or f"{self.result.step_time:.6g} s per step"
        return f"StudioWidget({self._studio.base.name}: {said})"

    @property
    def scenario(self) -> Scenario:
        """Scenario with the current settings of the controls; raises InputError if they are invalid."""
        return self._studio.scenario(self.settings)

    @property
    def result(self) -> Result:
        """Simulated step with the current settings; raises InputError if they are invalid."""
        return self._studio.result(self.settings)

    def _answer_changed_control(self, before: Given) -> None:
        now: dict[str, Any] = dict(self.settings)
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        try:
            found = self._studio.answer(now, changed=changed[-1] if changed else "", zoom=self.zoom)
        except Exception as bug:  # the controls must not be left waiting for an answer
            found = WidgetContent("", f"{type(bug).__name__}: {bug}. This is a bug of simcluster, please report it.")
        with self.hold_sync():  # one message for all of it
            self.controls = self._studio.controls(now)
            self.html, self.message = found.html, found.message
            self.remedies = list(found.remedies)
            self.nearest = dict(found.remedies[0]["settings"]) if found.remedies else None
            self.answered += 1
