"""Notebook widget of the studio: the browser sends control settings, the kernel returns results.

Imported only if anywidget is installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import anywidget
import traitlets

from simcluster.base.errors import InputError
from simcluster.interactive.controls.offered_values import describe_controls, find_valid_settings
from simcluster.interactive.controls.settings import ControlSettings, check_setting, settings_overrides, sort_settings
from simcluster.interactive.notebook.cell_drawings import cell_html
from simcluster.interactive.report.html import element, read_asset
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.whatif.difference import explain_difference

GivenSettings = Mapping[str, Any]
"""Settings of controls by key; controls that are absent keep the value of the scenario."""

_MOST_KEPT = 32


@dataclass(frozen=True, slots=True)
class WidgetContent:
    """Content that the widget shows: HTML, or if the settings are invalid, a ``problem`` that explains why.

    ``remedies`` are then valid settings as {words, settings}, nearest first.
    """

    html: str
    problem: str = ""
    remedies: Sequence[Mapping[str, Any]] = ()


class NotebookStudio:
    """A scenario with controls, and a cache of simulated results by control settings."""

    def __init__(self, base: Scenario) -> None:
        self.base = base
        self._replayed = lru_cache(_MOST_KEPT)(lambda settings: simulate_scenario(self.scenario(json.loads(settings))))

    def scenario(self, settings: GivenSettings) -> Scenario:
        """Return the scenario changed by control settings; raise InputError if the settings are invalid.

        dp follows if tp or pp change and it is not set itself.
        """
        return self._build_scenario(sort_settings({key: check_setting(key, value) for key, value in settings.items()}))

    def _build_scenario(self, settings: ControlSettings) -> Scenario:
        changes = settings_overrides(settings, self.base.origin.document.data)
        return self.base.with_(changes) if changes else self.base

    def result(self, settings: GivenSettings) -> Result:
        """Return the step simulated with these control settings, from the cache if possible."""
        return self._replayed(json.dumps(settings, sort_keys=True, default=str))

    def controls(self, settings: GivenSettings) -> list[dict[str, Any]]:
        """Return all controls with their values, or with the base scenario's if the settings are invalid."""
        try:
            scenario = self.scenario(settings)
        except InputError:
            scenario = self.base
        return [{**each, "set": settings.get(each["key"])} for each in describe_controls(scenario, self.base)]

    def make_content(self, settings: GivenSettings, *, changed: str = "", zoom: bool = False) -> WidgetContent:
        """Return what the widget shows for these control settings, given the key of the control changed last.

        With ``zoom`` it includes the zoomable timeline.
        """
        try:
            result = self.result(settings)
        except InputError as problem:
            return WidgetContent("", str(problem), self._valid_remedies(settings, changed, str(problem)))
        parts = [result._repr_html_()]
        with suppress(InputError):  # the scenario cannot be simulated as it stands
            if settings:
                why = replace(explain_difference(self.result({}), result), names=("the scenario as given", "This step"))
                parts.insert(0, cell_html(element("p", why.describe())))
        if zoom:
            from simcluster.interactive.notebook.gantt_cell import gantt_html

            parts.append(gantt_html(result)._repr_html_())
        return WidgetContent("".join(parts))

    def _valid_remedies(self, settings: GivenSettings, changed: str, error: str) -> list[Mapping[str, Any]]:
        try:
            known = sort_settings({key: check_setting(key, value) for key, value in settings.items()})
        except InputError:
            return [{"words": "as in the scenario", "settings": {}}]
        return [each.to_dict() for each in find_valid_settings(self.base, known, changed, error, self._build_scenario)]


class StudioWidget(anywidget.AnyWidget):  # type: ignore[misc]  # anywidget is not always there
    """Notebook widget with controls over a scenario and the simulated step below them.

    ``settings`` are the changes by key; ``controls`` the available controls; ``html`` the content, or else ``message``
    states why the settings are invalid and ``remedies`` lists valid ones as {words, settings}, the first also as
    ``nearest``. ``answered`` counts the answers.
    """

    _esm = read_asset("studio.js", "interactive/notebook/assets")
    _css = read_asset("studio.css", "interactive/notebook/assets")
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
        """Scenario with the current settings of the controls; InputError if the settings are invalid."""
        return self._studio.scenario(self.settings)

    @property
    def result(self) -> Result:
        """Step simulated with the current settings of the controls; InputError if the settings are invalid."""
        return self._studio.result(self.settings)

    def _answer_changed_control(self, before: GivenSettings) -> None:
        now: dict[str, Any] = dict(self.settings)
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        try:
            found = self._studio.make_content(now, changed=changed[-1] if changed else "", zoom=self.zoom)
        except Exception as bug:  # the controls must not be left waiting for an answer
            found = WidgetContent("", f"{type(bug).__name__}: {bug}. This is a bug of simcluster, please report it.")
        with self.hold_sync():  # one message for all of it
            self.controls = self._studio.controls(now)
            self.html, self.message = found.html, found.problem
            self.remedies = list(found.remedies)
            self.nearest = dict(found.remedies[0]["settings"]) if found.remedies else None
            self.answered += 1
