"""Launch checklist: checks of a job before it runs on real GPUs, each with a number, a verdict and remedies.

A remedy is a change of the scenario that was simulated, with the result of the changed scenario and the point's verdict
on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simcluster.results.result import Result
from simcluster.studies.whatif import remedies
from simcluster.studies.whatif.checklist_points import Check, ChecklistPoint, list_checks
from simcluster.studies.whatif.remedies import VERDICTS, ChangeTrials, Remedy, Values, Verdict

_MOST_TRIED = 6  # changes that are simulated for one point
_MAX_SIMULATED = 24  # for the whole list, 2 to 10 s of a processor
_MOST_OFFERED = 3  # remedies of one point, and of the job
_MOST_TOGETHER = 3  # further changes on top of the best one
_MOST_FURTHER = 2  # tries of a point on top of it
_WORTH = 0.999  # a remedy must make the step shorter than this part of it


@dataclass(frozen=True, slots=True)
class LaunchChecklist:
    """A launch checklist: the checked points, and the scenario changes that shorten the step most, best first."""

    points: list[ChecklistPoint]
    fastest: tuple[Remedy, ...]

    @property
    def verdict(self) -> Verdict:
        """Worst verdict among the points of the checklist."""
        return worst_verdict(self.points)

    def to_dict(self) -> dict[str, Any]:
        """Return the checklist as JSON-ready values."""
        return {
            "verdict": self.verdict,
            "points": [point.to_dict() for point in self.points],
            "fastest": [remedy.to_dict() for remedy in self.fastest],
        }


def check_launch(result: Result) -> list[ChecklistPoint]:
    """Check a simulated job before its launch; return the checklist's points, each with remedies."""
    return make_checklist(result).points


def make_checklist(result: Result, again: remedies.MakeScenario | None = None) -> LaunchChecklist:
    """Check a simulated job before its launch; return the checklist with remedies per point and for the whole job.

    ``again`` makes the scenarios that are tried, so that they are what a user's command makes of the same values; by
    default they are the result's scenario with these values. Failed points are tried first; where a step takes minutes
    fewer changes are tried, or none.
    """
    trials = ChangeTrials(result, again, _MAX_SIMULATED)
    found = [(check, check(result)) for check in list_checks(result.scenario)]
    done: dict[str, ChecklistPoint] = {}
    for check, point in sorted(found, key=lambda pair: -VERDICTS.index(pair[1].verdict)):
        done[point.name] = replace(point, remedies=tuple(_find_point_remedies(result, check, point, trials)))
    points = [done[point.name] for _, point in found]
    return LaunchChecklist(points, _find_job_remedies(result, points, trials))


def worst_verdict(points: Sequence[ChecklistPoint]) -> Verdict:
    """Return the worst verdict among the points."""
    return max((point.verdict for point in points), key=VERDICTS.index)


def _find_point_remedies(result: Result, check: Check, point: ChecklistPoint, trials: ChangeTrials) -> list[Remedy]:
    if point.verdict == "pass":
        return []
    found = []
    for tried in filter(None, map(trials.simulate, point.changes_to_try[:_MOST_TRIED])):
        whole, other = tried
        then = check(other)
        shorter = other.step_time < _WORTH * result.step_time
        better = VERDICTS.index(then.verdict) < VERDICTS.index(point.verdict)
        if shorter if point.must_shorten_step else better:
            rank = 0 if point.must_shorten_step else VERDICTS.index(then.verdict)
            found.append((rank, _make_remedy(result, whole, other, (then.verdict, then.found))))
    ranked = sorted(found, key=lambda each: (each[0], each[1].step_time))
    return [remedy for _, remedy in ranked[:_MOST_OFFERED]]


def _make_remedy(result: Result, values: Values, other: Result, verdict: tuple[Verdict, str] | None = None) -> Remedy:
    return Remedy(values, other.step_time, result.step_time, other.memory.total, verdict)


def _find_job_remedies(result: Result, points: Sequence[ChecklistPoint], trials: ChangeTrials) -> tuple[Remedy, ...]:
    single = [replace(one, point_result=None) for point in points for one in point.remedies if one.change < _WORTH - 1]
    if not single:
        return ()
    found = {str(remedy.values): remedy for remedy in single}
    best = min(single, key=lambda remedy: remedy.step_time)
    for _ in range(_MOST_TOGETHER):
        further = list(_iterate_combined_remedies(result, best, trials))
        found |= {str(remedy.values): remedy for remedy in further}
        if not further:
            break
        best = min(further, key=lambda remedy: remedy.step_time)
    return tuple(sorted(found.values(), key=lambda remedy: remedy.step_time)[:_MOST_OFFERED])


def _iterate_combined_remedies(result: Result, best: Remedy, trials: ChangeTrials) -> Iterator[Remedy]:
    base = trials.simulate(best.values)
    if base is None:
        return
    for point in (check(base[1]) for check in list_checks(base[1].scenario)):
        for each in point.changes_to_try[:_MOST_FURTHER] if point.verdict != "pass" and point.must_shorten_step else ():
            tried = trials.simulate({**best.values, **each})
            if tried is not None and tried[1].step_time < _WORTH * best.step_time:
                yield _make_remedy(result, *tried)
