"""Compute ops of one rank by itself: what most tasks of a step are, without the columns that several ranks need.

The same as ``compute_tasks.LateTask`` with one member that begins now, in half the time: each op of a rank that is
played by itself is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from simcluster.engine.calendar import Lane
from simcluster.engine.compute_tasks import RankState, Task
from simcluster.engine.trajectories import Course, Courses, TimedChain


class LoneTask(Task):
    """An op of one rank, which keeps its speed, from ``now`` on: a course, once somebody has looked."""

    __slots__ = ("_course", "_courses", "_place", "_pressure", "_reached")

    def __init__(
        self, number: int, lane: Lane, place: RankState, over: Callable[[Task], None], now: float, courses: Courses
    ) -> None:
        self.number, self.over, self.begin, self.due = number, over, now, math.inf
        self.lanes, self.watches = (lane,), False
        self.next_look = now + courses.least
        self._place, self._courses = place, courses
        self._reached = place.enter(now)
        self._course: Course | None = None
        self._pressure = 0.0

    @property
    def slowed(self) -> bool:
        """Did anything press on it?"""
        return self._course is not None and self._course.slowed

    def kept(self) -> TimedChain:
        """When rows started and ended: the course knows."""
        assert self._course is not None
        return self._course

    def end(self, now: float) -> Sequence[Lane]:
        """Its lane, if it has come to its end by now."""
        (end,) = self._look(now).ends
        if end > now - self.begin:
            self.next_look = self.begin + end
            return ()
        self.next_look = math.inf
        self._place.leave(self)
        return self.lanes

    def watch(self) -> Iterable[RankState]:
        """Want to know of changes at once."""
        self.watches = True
        self._place.watching[self] = None
        return (self._place,)

    def settle(self, now: float) -> None:
        """Go on under the pressure that is now."""
        course, pressure = self._look(now), self._place.pressure
        if pressure != self._pressure:
            course = course.after(((now - self.begin, (pressure,)),))
        self.next_look = self.begin + course.ends[0]
        if self.next_look <= now:
            self._course, self._pressure, self._reached = course, pressure, len(self._place.log)

    def _look(self, now: float) -> Course:
        """Its course by all changes before this instant."""
        course, log, begin, at = self._course, self._place.log, self.begin, self._reached
        last = len(log) - (log[-1][0] == now)
        if course is None:
            if at < last and log[at][0] == begin:
                at += 1
            self._pressure = log[at - 1][1]
            course = self._courses.under((self._pressure,))
        if at < last:
            news = log[at:last]
            self._pressure = news[-1][1]
            course = course.after(tuple([(instant - begin, (pressure,)) for instant, pressure in news]))
            at = last
        self._course, self._reached = course, at
        return course
