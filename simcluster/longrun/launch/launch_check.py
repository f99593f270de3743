"""Launch checklist of a scenario: checks of its training step and, if it has a ``run`` section, of its long run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simcluster.base.display import Displayable
from simcluster.base.tables import rows_to_frame
from simcluster.base.units import format_seconds
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.overrides import Changes, list_overrides
from simcluster.longrun.launch.run_checks import BUDGET, OUTCOME, STATE
from simcluster.longrun.launch.run_under_check import RunUnderCheck, changes_only_run
from simcluster.longrun.launch.small_version import SmallVersion, small_version
from simcluster.longrun.text_formats import format_remarks
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.scenario_arguments import ScenarioLike, to_base_scenario
from simcluster.show.output_blocks import OutputBlocks, TableBlock, TextLines
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.whatif.checklist_points import ChecklistPoint
from simcluster.studies.whatif.launch_checklist import LaunchChecklist, make_checklist, worst_verdict
from simcluster.studies.whatif.remedies import Remedy, Values, Verdict, format_changes

if TYPE_CHECKING:
    import pandas as pd

_TIGHT = 0.9  # of a GPU's memory: a remedy above it is marked as tight
MARKS: dict[Verdict, str] = {"pass": "pass", "warn": "WARN", "fail": "FAIL"}


RUN_CHECKS = (*BUDGET, *STATE, *OUTCOME)
"""Launch checks of a run, in the order of display."""


@check_arguments
def check(scenario: ScenarioLike, overrides: Changes = ()) -> LaunchCheck:
    """Return a scenario's launch checklist, from a simulated step and, with a ``run`` section, a few simulated runs.

    ``overrides`` are changes of the scenario. A point that is unknown because the run cannot be simulated fails, with
    the reason. InputError for an invalid scenario.
    """
    base, overrides = to_base_scenario(scenario, "check"), list_overrides(overrides)

    def changed_scenario(values: Values) -> Scenario:
        return base.with_changes((*overrides, *values.items()))

    result = simulate_scenario(changed_scenario({}))
    found = make_checklist(result, changed_scenario)
    launch = RunUnderCheck.from_scenario(result.scenario, result) if result.scenario.run else None
    points: list[ChecklistPoint] = []
    seen: dict[str, str] = {}
    for each in RUN_CHECKS if launch else ():
        assert launch is not None
        point = each.evaluate(launch, changed_scenario)
        if point is not None:  # what makes several of them fail is reported once
            first = seen.setdefault(point.found, point.name)
            points.append(point if first == point.name else replace(point, found=f"unknown: see {first}"))
    whole = LaunchChecklist([*found.points, *points], found.fastest)
    return LaunchCheck(result, whole, tuple(overrides), (*result.assumed, *(() if launch is None else launch.assumed)))


@dataclass(frozen=True)
class LaunchCheck(Displayable):
    """Launch checklist of a scenario: checked points with verdicts, and assumptions.

    ``result`` is the simulated step; ``overrides`` are those that the scenario was loaded with; ``assumed`` is what the
    points depend on and it does not state. Its ``points`` have a name, verdict, number, rule and remedies each;
    ``verdict`` is the worst of theirs, ``failed`` the names of those that fail, ``fastest`` the changes that shorten
    the step most, as simulated.
    """

    result: Result = field(repr=False)
    checklist: LaunchChecklist = field(repr=False)
    overrides: tuple[tuple[str, Any], ...] = ()
    assumed: tuple[str, ...] = ()
    points: list[ChecklistPoint] = field(init=False)
    fastest: tuple[Remedy, ...] = field(init=False)
    verdict: Verdict = field(init=False)
    failed: list[str] = field(init=False)

    def __post_init__(self) -> None:
        points = self.checklist.points
        failed = [point.name for point in points if point.verdict == "fail"]
        vars(self).update(points=points, fastest=self.checklist.fastest, verdict=worst_verdict(points), failed=failed)

    @property
    def table(self) -> pd.DataFrame:
        """Table with a row per checked point: verdict, finding, rule, advice."""
        names = ("name", "verdict", "found", "rule", "advice")
        return rows_to_frame(({name: getattr(point, name) for name in names} for point in self.points), index="name")

    @cached_property
    def small(self) -> SmallVersion:
        """Small version of the scenario for a few steps on one node; raises InputError if impossible."""
        return small_version(self.result.scenario)

    def to_dict(self) -> dict[str, Any]:
        """Return the checklist as a JSON document (CONTRACT.md, "A launch checklist")."""
        notes = [note.to_dict() for note in self.result.notes()]
        found = {"step_time_s": self.result.step_time, **self.checklist.to_dict()}
        return {**found, "notes": notes, "assumed": list(self.assumed)}


def check_answer(found: LaunchCheck) -> OutputBlocks:
    """Return the printed checklist: a row per point; rule and remedies follow a point that does not pass."""
    result, given = found.result, list(format_changes(dict(found.overrides)))
    rows = []
    for point in found.points:
        rows.append([MARKS[point.verdict], point.name, point.found])
        rows += [["", "", line] for line in _format_remedies(point, result, given)] if point.verdict != "pass" else []
    counts = Counter(point.verdict for point in found.points)
    pairs = ((_format_remedy_command(each, given), _describe_remedy_effect(each, result)) for each in found.fastest)
    fastest = [f"  {command}   {effect}" for command, effect in pairs]
    title = "fastest step found, as simulated (options of simcluster run SCENARIO)"
    return [
        TextLines([f"{result.scenario.title}: {format_seconds(result.step_time)} per step"], "head"),
        TableBlock(["", "point", "found"], rows, text_columns=3),
        TextLines([f"{counts['pass']} pass, {counts['warn']} warn, {counts['fail']} fail"]),
        TextLines([f"note: {text}" for text in result.list_idle_fields()], "warning"),
        TextLines([title, *fastest] if fastest else []),
        format_remarks(found.assumed),
    ]


def _format_remedies(point: ChecklistPoint, result: Result, overrides: Sequence[str]) -> Iterator[str]:
    yield f"rule: {point.rule}"
    for place, remedy in enumerate(point.remedies):
        run = changes_only_run(remedy.values)
        how = "fix" if run else "fix, as simulated" if point.must_shorten_step else "meets the rule, as simulated"
        step = "" if run else f"   {_describe_remedy_effect(remedy, result)}"
        yield f"{'or' if place else how}: {_format_remedy_command(remedy, overrides)}{step}"
        if remedy.point_result:
            yield f"  then {MARKS[remedy.point_result[0]]}: {remedy.point_result[1]}"
    if not point.remedies and point.advice:
        yield f"see: {point.advice}{' (no simulated change helps and fits)' * bool(point.changes_to_try)}"


def _format_remedy_command(remedy: Remedy, overrides: Sequence[str]) -> str:
    kept = [text for text in overrides if text.partition("=")[0].strip() not in remedy.values]
    return " ".join([*(f"--set {shlex.quote(text)}" for text in kept), remedy.shell_options()])


def _describe_remedy_effect(remedy: Remedy, result: Result) -> str:
    held, capacity = remedy.memory, result.facts.memory
    slower = ": it meets the rule, but is slower" if remedy.change > 0 else ""
    tight = f", tight: {held / 1e9:.1f} of {capacity / 1e9:.1f} GB" if held > _TIGHT * capacity else ""
    return f"{format_seconds(remedy.step_time)} per step ({remedy.change:+.1%}{slower}){tight}"
