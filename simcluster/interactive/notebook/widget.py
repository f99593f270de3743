"""The studio's widget for notebooks: what the controls are set to goes to the kernel, what is shown comes back.

It is only imported where anywidget is there.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import anywidget
import traitlets

from simcluster.interactive.notebook.studio_state import Given, NotebookStudio, StudioAnswer
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario


def _asset(name: str) -> str:
    return (files("simcluster.interactive.notebook") / "assets" / name).read_text(encoding="utf-8")


class StudioWidget(anywidget.AnyWidget):  # type: ignore[misc]  # anywidget is not always there
    """Controls over a scenario, and what a step with their settings is.

    ``settings`` are what was changed, by key; ``controls`` what may be; ``html`` what is shown, or ``message`` says
    why it cannot be and ``remedies`` what can, each {words, settings}, of which ``nearest`` has the first one's
    settings.  ``answered`` counts the answers.
    """

    _esm = _asset("studio.js")
    _css = _asset("studio.css")
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
        self._answer({})
        self.observe(lambda change: self._answer(change.old), names="settings")
        self.observe(lambda _: self._answer(self.settings), names="zoom")

    def __repr__(self) -> str:
        said = self.message or f"{self.result.step_time:.6g} s a step"
        return f"StudioWidget({self._studio.base.name}: {said})"

    @property
    def scenario(self) -> Scenario:
        """The scenario as the controls are set; InputError where it cannot be."""
        return self._studio.scenario(self.settings)

    @property
    def result(self) -> Result:
        """The step that is shown; InputError where it cannot be."""
        return self._studio.result(self.settings)

    def _answer(self, before: Given) -> None:
        now: dict[str, Any] = dict(self.settings)
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        try:
            found = self._studio.answer(now, changed=changed[-1] if changed else "", zoom=self.zoom)
        except Exception as bug:  # the controls must not be left waiting for an answer
            found = StudioAnswer("", f"{type(bug).__name__}: {bug}. This is a bug of simcluster, please report it.")
        with self.hold_sync():  # one message for all of it
            self.controls = self._studio.controls(now)
            self.html, self.message = found.html, found.message
            self.remedies = list(found.remedies)
            self.nearest = dict(found.remedies[0]["settings"]) if found.remedies else None
            self.answered += 1
