"""A scenario with some settings changed, as the notebook's widget shows it: the controls, the numbers, the timeline,
and why a setting cannot be.

Nothing of a widget is needed here: settings go in, HTML comes out.  What can be changed is what the studio's page can
(``controls``).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simcluster.base.errors import InputError
from simcluster.interactive.controls.nearest import remedies
from simcluster.interactive.controls.offers import described
from simcluster.interactive.controls.settings import Settings, checked, in_order, overrides
from simcluster.interactive.notebook.drawn import cell
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.show.report.html import element
from simcluster.step.simulate import replay
from simcluster.studies.whatif.difference import diff

Given = Mapping[str, Any]
"""What the controls are set to, by key; what is not in it is as the scenario has it."""

_MOST_KEPT = 32


@dataclass(frozen=True, slots=True)
class StudioAnswer:
    """What the widget shows of some settings: HTML, or in a ``message`` why they cannot be, and then ``remedies``, each
    {words, settings}: settings that can, the nearest first."""

    html: str
    message: str = ""
    remedies: Sequence[Mapping[str, Any]] = ()


class NotebookStudio:
    """A scenario and all that was played of it."""

    def __init__(self, base: Scenario) -> None:
        self.base = base
        self._kept: OrderedDict[str, Result] = OrderedDict()

    def scenario(self, settings: Given) -> Scenario:
        """The scenario with settings changed; InputError with the rule for those that cannot be.

        Replicas follow where tp or pp change and they are not set themselves.
        """
        return self._made(in_order({key: checked(key, value) for key, value in settings.items()}))

    def _made(self, settings: Settings) -> Scenario:
        changes = overrides(settings, self.base.origin.document.data)
        return self.base.with_(changes) if changes else self.base

    def result(self, settings: Given) -> Result:
        """What was played with those settings, now if not before."""
        name = json.dumps(settings, sort_keys=True, default=str)
        if name not in self._kept:
            self._kept[name] = replay(self.scenario(settings))
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]

    def controls(self, settings: Given) -> list[dict[str, Any]]:
        """All controls as the page draws them, each with what it is set to; of settings that cannot be those of the
        scenario as it stands."""
        try:
            scenario = self.scenario(settings)
        except InputError:
            scenario = self.base
        return [{**each, "set": settings.get(each["key"])} for each in described(scenario, self.base)]

    def answer(self, settings: Given, *, changed: str = "", zoom: bool = False) -> StudioAnswer:
        """What is shown of settings, of which ``changed`` is the last that was; with ``zoom`` the timeline to zoom
        into."""
        try:
            result = self.result(settings)
        except InputError as problem:
            return StudioAnswer("", str(problem), self._remedies(settings, changed, str(problem)))
        parts = [self._against_base(result, settings), result._repr_html_()]
        if zoom:
            from simcluster.interactive.notebook.gantt_cell import gantt_html

            parts.append(gantt_html(result)._repr_html_())
        return StudioAnswer("".join(parts))

    def _against_base(self, result: Result, settings: Given) -> str:
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

    def _remedies(self, settings: Given, changed: str, complaint: str) -> list[Mapping[str, Any]]:
        """What would go; of a setting that is none, all but that."""
        try:
            known = in_order({key: checked(key, value) for key, value in settings.items()})
        except InputError:
            return [{"words": "as the scenario has it", "settings": {}}]
        found = remedies(self.base, known, changed, complaint, self._made)
        return [each.to_dict() for each in found]
