"""What a point of a run's checklist is: what it looks at, what it saw, and the changes that would help it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from simcluster.base.errors import InputError
from simcluster.longrun.launch.launch import Launch
from simcluster.studies.whatif.preflight_points import Point
from simcluster.studies.whatif.remedies import VERDICTS, Again, Remedy, Values, Verdict

RUN_PATHS = ("run.", "data.", "training.memory_recipe")
"""What a remedy of these points changes: nothing of the step."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of a launch: the number behind the verdict, what to do, changes to try, most promising first."""

    verdict: Verdict
    found: str
    advice: str = ""
    tries: tuple[Values, ...] = ()


@dataclass(frozen=True, slots=True)
class RunCheck:
    """A point: ``look`` sees nothing (None) where there is nothing to look at; what cannot be (InputError) fails."""

    name: str
    rule: str
    look: Callable[[Launch], Seen | None]

    def point(self, launch: Launch, again: Again) -> Point | None:
        """The point, with the changes that help it, worked out; None where there is none."""
        seen = self._seen(launch)
        if seen is None:
            return None
        point = Point(self.name, seen.verdict, seen.found, self.rule, seen.advice, seen.tries, for_time=False)
        return replace(point, remedies=tuple(self._remedies(launch, seen, again)))

    def _seen(self, launch: Launch) -> Seen | None:
        try:
            return self.look(launch)
        except InputError as problem:
            return Seen("fail", " ".join(str(problem).split()))

    def _remedies(self, launch: Launch, seen: Seen, again: Again) -> list[Remedy]:
        """Best first: those with which the point has a better verdict.  The step stays what it is."""
        found = []
        for values in seen.tries if seen.verdict != "pass" else ():
            try:
                then = self._seen(Launch.of(again(values), states=launch.states))
            except InputError:
                continue
            if then is not None and VERDICTS.index(then.verdict) < VERDICTS.index(seen.verdict):
                step = launch.states.healthy
                told = (then.verdict, then.found)
                found.append(Remedy(values, step, step, launch.states.result.memory.total, told))
        return sorted(found, key=lambda each: VERDICTS.index(each.then[0]) if each.then else 0)


def of_run(values: Values) -> bool:
    """Does a change leave the step as it is?"""
    return all(path.startswith(RUN_PATHS) for path in values)
