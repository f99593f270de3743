"""Launch checklist: checks before a job gets its GPUs, each with its number and remedies.

A remedy is a change of the scenario that was simulated, with the result of the changed scenario and the point's verdict
on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simcluster.results.result import Result
from simcluster.studies.whatif.preflight_points import Check, Point, checks_for
from simcluster.studies.whatif.remedies import VERDICTS, MakeScenario, Remedy, Trials, Values, Verdict, format_changes

_MOST_TRIED = 6  # changes that are simulated for one point
_MAX_SIMULATED = 24  # for the whole list, 2 to 10 s of a processor
_MOST_OFFERED = 3  # remedies of one point, and of the job
_MOST_TOGETHER = 3  # further changes on top of the best one
_MOST_FURTHER = 2  # tries of a point on top of it
_WORTH = 0.999  # a remedy must make the step shorter than this part of it


@dataclass(frozen=True, slots=True)
class Checklist:
    """A launch checklist: all points, and the changes that make the step shortest, best first."""

    points: list[Point]
    fastest: tuple[Remedy, ...]

    @property
    def verdict(self) -> Verdict:
        """Worst verdict among the points."""
        return worst_verdict(self.points)

    def to_dict(self) -> dict[str, Any]:
        """Return the checklist as JSON-ready values."""
        return {
            "verdict": self.verdict,
            "points": [point.to_dict() for point in self.points],
            "fastest": [remedy.to_dict() for remedy in self.fastest],
        }


def preflight(result: Result) -> list[Point]:
    """Return the points of the launch checklist for a simulated job, with their remedies."""
    return make_checklist(result).points


def make_checklist(result: Result, again: MakeScenario | None = None) -> Checklist:
    """Check a simulated job; return the checklist, with remedies of each point and of the whole job.

    ``again`` makes the scenarios that are tried, so that they are what a user's command makes of the same values; by
    default they are the result's scenario with these values. Failed points are tried first; where a step takes minutes
    fewer changes are tried, or none.
    """
    trials = Trials(result, again, _MAX_SIMULATED)
    found = [(check, check(result)) for check in checks_for(result.scenario)]
    done: dict[str, Point] = {}
    for check, point in sorted(found, key=lambda pair: -VERDICTS.index(pair[1].verdict)):
        done[point.name] = replace(point, remedies=tuple(_point_remedies(result, check, point, trials)))
    points = [done[point.name] for _, point in found]
    return Checklist(points, _job_remedies(result, points, trials))


def worst_verdict(points: Sequence[Point]) -> Verdict:
    """Return the worst verdict among the points."""
    return max((point.verdict for point in points), key=VERDICTS.index)


def _point_remedies(result: Result, check: Check, point: Point, trials: Trials) -> list[Remedy]:
    if point.verdict == "pass":
        return []
    found = []
    for tried in filter(None, map(trials.simulate, point.tries[:_MOST_TRIED])):
        whole, other = tried
        then = check(other)
        shorter = other.step_time < _WORTH * result.step_time
        better = VERDICTS.index(then.verdict) < VERDICTS.index(point.verdict)
        if shorter if point.for_time else better:
            rank = 0 if point.for_time else VERDICTS.index(then.verdict)
            found.append((rank, _make_remedy(result, whole, other, (then.verdict, then.found))))
    ranked = sorted(found, key=lambda each: (each[0], each[1].step_time))
    return [remedy for _, remedy in ranked[:_MOST_OFFERED]]


def _make_remedy(result: Result, values: Values, other: Result, then: tuple[Verdict, str] | None = None) -> Remedy:
    return Remedy(values, other.step_time, result.step_time, other.memory.total, then)


def _job_remedies(result: Result, points: Sequence[Point], trials: Trials) -> tuple[Remedy, ...]:
    single = [replace(remedy, then=None) for point in points for remedy in point.remedies if remedy.change < _WORTH - 1]
    if not single:
        return ()
    found = {str(remedy.values): remedy for remedy in single}
    best = min(single, key=lambda remedy: remedy.step_time)
    for _ in range(_MOST_TOGETHER):
        further = list(_combined_remedies(result, best, trials))
        found |= {str(remedy.values): remedy for remedy in further}
        if not further:
            break
        best = min(further, key=lambda remedy: remedy.step_time)
    return tuple(sorted(found.values(), key=lambda remedy: remedy.step_time)[:_MOST_OFFERED])


def _combined_remedies(result: Result, best: Remedy, trials: Trials) -> Iterator[Remedy]:
    base = trials.simulate(best.values)
    if base is None:
        return
    for point in (check(base[1]) for check in checks_for(base[1].scenario)):
        for values in point.tries[:_MOST_FURTHER] if point.verdict != "pass" and point.for_time else ():
            tried = trials.simulate({**best.values, **values})
            if tried is not None and tried[1].step_time < _WORTH * best.step_time:
                yield _make_remedy(result, *tried)


__all__ = [  # others import them from here
    "Checklist", "Point", "Remedy", "checks_for", "format_changes", "make_checklist", "preflight", "worst_verdict",
]  # fmt: skip
