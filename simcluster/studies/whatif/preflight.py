"""A launch checklist: what to look at before a job gets its GPUs, each point with the number behind it and remedies.

A remedy is a change of the scenario that was played: what it says it gives is what the changed scenario gives, and what
the point says then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simcluster.results.result import Result
from simcluster.studies.whatif.preflight_points import Check, Point, checks_of
from simcluster.studies.whatif.remedies import VERDICTS, Again, Remedy, Trials, Values, Verdict, written

_MOST_TRIED = 6  # changes that are played for one point
_MOST_PLAYED = 24  # for the whole list, 2 to 10 s of a processor
_MOST_OFFERED = 3  # remedies of one point, and of the job
_MOST_TOGETHER = 3  # changes that go on from the best one
_MOST_FURTHER = 2  # tries of a point that go on from it
_WORTH = 0.999  # a remedy that makes the step no shorter than this part of it is none


@dataclass(frozen=True, slots=True)
class Checklist:
    """Every point, and what makes the job's step shortest: changes for one point, and for several together, best
    first."""

    points: list[Point]
    fastest: tuple[Remedy, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of its points'."""
        return worst(self.points)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "verdict": self.verdict,
            "points": [point.to_dict() for point in self.points],
            "fastest": [remedy.to_dict() for remedy in self.fastest],
        }


def preflight(result: Result) -> list[Point]:
    """Every point of the checklist for a job that was simulated, with remedies where some were found by playing."""
    return checklist(result).points


def checklist(result: Result, again: Again | None = None) -> Checklist:
    """The points, those that fail tried first, and what helps the whole job.

    ``again`` makes the scenarios that are tried, so that they are what a user's own command makes of the same values;
    left out, they are the result's scenario with these values.  Where a step takes minutes fewer are tried, or none.
    """
    trials = Trials(result, again, _MOST_PLAYED)
    found = [(check, check(result)) for check in checks_of(result.scenario)]
    done: dict[str, Point] = {}
    for check, point in sorted(found, key=lambda pair: -VERDICTS.index(pair[1].verdict)):
        done[point.name] = replace(point, remedies=tuple(_remedies(result, check, point, trials)))
    points = [done[point.name] for _, point in found]
    return Checklist(points, _fastest(result, points, trials))


def worst(points: Sequence[Point]) -> Verdict:
    """The verdict of the whole list."""
    return max((point.verdict for point in points), key=VERDICTS.index)


def _remedies(result: Result, check: Check, point: Point, trials: Trials) -> Iterator[Remedy]:
    """What helps a point, best first: by the step or, where it is there to keep a rule, by the verdict first."""
    if point.verdict == "pass":
        return
    found = []
    for values in point.tries[:_MOST_TRIED]:
        tried = trials.play(values)
        if tried is None:
            continue
        whole, played = tried
        then = check(played)
        shorter = played.step_time < _WORTH * result.step_time
        better = VERDICTS.index(then.verdict) < VERDICTS.index(point.verdict)
        if shorter if point.for_time else better:
            found.append(_remedy(result, whole, played, (then.verdict, then.found)))
    yield from sorted(found, key=lambda each: (0 if point.for_time else _rank(each), each.step_time))[:_MOST_OFFERED]


def _rank(remedy: Remedy) -> int:
    return VERDICTS.index(remedy.then[0]) if remedy.then else 0


def _remedy(result: Result, values: Values, played: Result, then: tuple[Verdict, str] | None = None) -> Remedy:
    return Remedy(values, played.step_time, result.step_time, played.memory.total, then)


def _fastest(result: Result, points: Sequence[Point], trials: Trials) -> tuple[Remedy, ...]:
    """The remedies of all points that make the step shorter; from the best of them on, what helps it further."""
    single = [replace(remedy, then=None) for point in points for remedy in point.remedies if remedy.change < _WORTH - 1]
    if not single:
        return ()
    found = {str(remedy.values): remedy for remedy in single}
    best = min(single, key=lambda remedy: remedy.step_time)
    for _ in range(_MOST_TOGETHER):
        further = list(_further(result, best, trials))
        found |= {str(remedy.values): remedy for remedy in further}
        if not further:
            break
        best = min(further, key=lambda remedy: remedy.step_time)
    return tuple(sorted(found.values(), key=lambda remedy: remedy.step_time)[:_MOST_OFFERED])


def _further(result: Result, best: Remedy, trials: Trials) -> Iterator[Remedy]:
    """What makes a remedy's step shorter still: it and a change for a point that it does not pass."""
    base = trials.play(best.values)
    if base is None:
        return
    for point in (check(base[1]) for check in checks_of(base[1].scenario)):
        for values in point.tries[:_MOST_FURTHER] if point.verdict != "pass" and point.for_time else ():
            tried = trials.play({**best.values, **values})
            if tried is not None and tried[1].step_time < _WORTH * best.step_time:
                yield _remedy(result, *tried)


__all__ = ["Checklist", "Point", "Remedy", "checklist", "checks_of", "preflight", "worst", "written"]
