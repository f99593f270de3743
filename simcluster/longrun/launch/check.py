"""The launch checklist of a scenario: its step's points and, where it has a run, those of the whole launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simcluster.base.shown import Shown
from simcluster.base.tables import frame_of
from simcluster.documents.argument_types import checked
from simcluster.documents.overrides import Changes, pairs_of
from simcluster.longrun.launch import words
from simcluster.longrun.launch.budget_points import BUDGET, OUTCOME
from simcluster.longrun.launch.launch import Launch
from simcluster.longrun.launch.small import SmallVersion, small_version
from simcluster.longrun.launch.state_points import STATE
from simcluster.results.result import Result
from simcluster.scenario.given import ScenarioLike, base_of
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import replay
from simcluster.studies.whatif.preflight import Checklist, checklist, worst
from simcluster.studies.whatif.preflight_points import Point
from simcluster.studies.whatif.remedies import Again, Remedy, Values, Verdict

if TYPE_CHECKING:
    import pandas as pd

RUN_CHECKS = (*BUDGET, *STATE, *OUTCOME)
"""The points of a run, in the order in which they are read."""


@checked
def check(scenario: ScenarioLike, overrides: Changes = ()) -> LaunchCheck:
    """Play the scenario's step, a few of its runs where it has a ``run``, and go through every point.

    ``overrides`` are changes of it.  A point that cannot be
    known because the run cannot be played fails, and says why.  InputError for a scenario that cannot be.
    """
    base, overrides = base_of(scenario, "check"), pairs_of(overrides)

    def again(values: Values) -> Scenario:
        return base.scenario((*overrides, *values.items()))

    result = replay(again({}))
    found = checklist(result, again)
    launch = Launch.of(result.scenario, result) if result.scenario.run else None
    points = [] if launch is None else list(_of_run(launch, again))
    whole = Checklist([*found.points, *points], found.fastest)
    assumed = (*result.assumed, *(() if launch is None else launch.assumed))
    return LaunchCheck(result, whole, tuple(overrides), assumed)


def _of_run(launch: Launch, again: Again) -> Iterator[Point]:
    """The points of the run; what makes several of them fail is told once."""
    told: dict[str, str] = {}
    for each in RUN_CHECKS:
        point = each.point(launch, again)
        if point is None:
            continue
        first = told.setdefault(point.found, point.name)
        yield point if first == point.name else replace(point, found=f"not known: see {first}")


@dataclass(frozen=True)
class LaunchCheck(Shown):
    """The ``checklist`` of a scenario, whose step is ``result``; ``overrides`` are those that it was loaded with,
    ``assumed`` is what the points depend on and it does not state."""

    result: Result = field(repr=False)
    checklist: Checklist = field(repr=False)
    overrides: tuple[tuple[str, Any], ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def points(self) -> list[Point]:
        """Each with its name, verdict, number, rule and remedies."""
        return self.checklist.points

    @property
    def table(self) -> pd.DataFrame:
        """A row a point: verdict, found, rule, advice."""
        names = ("name", "verdict", "found", "rule", "advice")
        return frame_of(({name: getattr(point, name) for name in names} for point in self.points), index="name")

    @property
    def fastest(self) -> tuple[Remedy, ...]:
        """What makes the step shortest, as played."""
        return self.checklist.fastest

    @property
    def verdict(self) -> Verdict:
        """The worst of the points'."""
        return worst(self.points)

    @property
    def failed(self) -> list[str]:
        """Names of the points that fail."""
        return [point.name for point in self.points if point.verdict == "fail"]

    @cached_property
    def small(self) -> SmallVersion:
        """The scenario for one machine, to be run for some steps and compared; InputError where it cannot be made."""
        return small_version(self.result.scenario)

    def summary(self, mark: words.Mark = words.plain, own: Sequence[str] | None = None) -> str:
        """Every point in a line, with its rule and what would help where it does not pass.

        ``mark`` colours verdicts; ``own`` are the overrides as a user wrote them (A.B=C), which remedies go with.
        """
        given = list(words.written_as(self.overrides)) if own is None else own
        return words.summary(self.result, self.checklist, given, mark, self.assumed)

    def __str__(self) -> str:
        return self.summary()

    def to_dict(self) -> dict[str, Any]:
        """For JSON: CONTRACT.md, "A launch checklist"."""
        notes = [note.to_dict() for note in self.result.notes()]
        found = {"step_time_s": self.result.step_time, **self.checklist.to_dict()}
        return {**found, "notes": notes, "assumed": list(self.assumed)}
