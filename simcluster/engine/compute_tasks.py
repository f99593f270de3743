"""Compute ops in progress on ranks that keep their speed: the pressure of communication on them, and their ends.

A rank's chain of ops, or that of ranks which go in step, is one task, and goes through courses that others know, too.
Such a chain cannot be over before ``Courses.least``: what presses on its rank until then is written down there, and the
chain looks at all of it in one go (of 12,662 changes in Llama 3 405B on 16,384 GPUs that leaves 4,161 looks, and nobody
needs to be told of the others).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from simcluster.base.profiles import Profile
from simcluster.engine.calendar import Lane
from simcluster.engine.network import Activity
from simcluster.engine.trajectories import Change, Course, Courses, TimedChain
from simcluster.programs.program import Meeting


class RankState:
    """A rank on which computation may be slowed down, and what goes on there.

    ``log`` has the instants at which what presses on computation became another, as far back as one of the
    computations under way needs it; ``watching`` those that want to know of a change at once.
    """

    __slots__ = ("_tasks", "flights", "log", "pressure", "speed", "watching")

    def __init__(self, speed: Profile) -> None:
        self.speed = speed
        self.pressure = 0.0
        self.log = [(-1.0, 0.0)]
        self.flights: list[Flight] = []
        self.watching: dict[Task, None] = {}
        self._tasks = 0

    def press(self, now: float, pressure: float) -> None:
        """This presses on computation from now on: at an instant the last word counts."""
        self.pressure = pressure
        log = self.log
        if log[-1][0] < now:
            log.append((now, pressure))
        elif log[-2][1] == pressure:
            log.pop()
        else:
            log[-1] = now, pressure

    def enter(self, now: float) -> int:
        """A computation begins: the place in the log of what changes from now on, at this instant or later."""
        log = self.log
        if not self._tasks:
            del log[:-2]
        self._tasks += 1
        return len(log) - (log[-1][0] == now)

    def leave(self, task: Task) -> None:
        """A computation is over."""
        self._tasks -= 1
        self.watching.pop(task, None)


class Flight:
    """A meeting under way, with the lanes that wait for its end: ``moved`` of its activities are over or under way.

    It may disturb computation at its places, or be disturbed by it.
    """

    __slots__ = ("activity", "dragged", "lanes", "meeting", "moved", "places")

    def __init__(self, meeting: Meeting, places: Sequence[RankState], lanes: Sequence[Lane]) -> None:
        self.meeting, self.places, self.lanes = meeting, places, lanes
        self.moved = 0
        self.activity: Activity | None = None
        self.dragged = False


class Member(NamedTuple):
    """A rank at work: the lane that waits for its end, its state (None: nothing slows it down), since when it is, and
    where in the log of changes that was."""

    lane: Lane
    place: RankState | None
    instant: float
    at: int


def comes(lane: Lane, place: RankState | None, now: float) -> Member:
    """A rank that begins now."""
    return Member(lane, place, now, 0 if place is None else place.enter(now))


class Task:
    """An op at work, or a stretch of several ranks (by its number), with its members; ``over`` is told when all are
    over.

    ``due`` is when somebody will look at it again, ``next_look`` when that will be worth it: infinite once all is over.
    ``watches``: does it want to know of changes at once?
    """

    __slots__ = ("_at", "_since", "begin", "due", "lanes", "next_look", "number", "over", "places", "watches")

    lanes: Sequence[Lane]
    places: Sequence[RankState | None]
    next_look: float
    watches: bool

    def __init__(self, number: int, members: Sequence[Member], over: Callable[[Task], None]) -> None:
        self.number, self.over = number, over
        self.lanes, self.places, self._since, at = zip(*members, strict=True)
        self._at = list(at)
        self.begin = min(self._since)
        self.due = math.inf

    @property
    def slowed(self) -> bool:
        """Did anything press on it?"""
        raise NotImplementedError

    def end(self, now: float) -> Sequence[Lane]:
        """Those whose ranks have come to their end by now."""
        raise NotImplementedError

    def watch(self) -> Iterable[RankState]:
        """Want to know of changes at once, at these places."""
        raise NotImplementedError

    def settle(self, now: float) -> None:
        """The instant is over: bring ``next_look`` in line with what has changed in it."""
        raise NotImplementedError

    def kept(self) -> TimedChain:
        """What knows when rows started and ended, in seconds from the begin, once all are over; no more than that."""
        raise NotImplementedError

    def _left(self, member: int) -> None:
        """This rank is over."""
        place = self.places[member]
        if place is not None:
            place.leave(self)


class LateTask(Task):
    """Ops of ranks that keep their speed, of one or of several that go in step, which need not begin at once before
    they first meet: a course, once somebody has looked."""

    __slots__ = ("_course", "_courses", "_felt", "_late", "_pressures", "_under_way")

    def __init__(
        self, number: int, members: Sequence[Member], over: Callable[[Task], None], now: float, courses: Courses
    ) -> None:
        super().__init__(number, members, over)
        begin = self.begin
        self._late = tuple([instant - begin for instant in self._since]) if begin < now else ()
        self.next_look = max(begin + courses.least, now)
        self.watches = False
        self._courses = courses
        self._course: Course | None = None
        self._felt = [(member, place) for member, place in enumerate(self.places) if place is not None]  # under way
        self._pressures = [0.0] * len(members)
        self._under_way: Sequence[int] = range(len(members))

    @property
    def slowed(self) -> bool:
        """Did anything press on it?"""
        return self._course is not None and self._course.slowed

    def kept(self) -> TimedChain:
        """When rows started and ended: the course knows."""
        assert self._course is not None
        return self._course

    def end(self, now: float) -> Sequence[Lane]:
        """Those whose ranks have come to their end by now."""
        ends, after, under_way = self._look(now).ends, now - self.begin, self._under_way
        left = [member for member in under_way if ends[member] > after]
        self._next_look(ends, left)
        if len(left) == len(under_way):
            return ()
        self._under_way = left
        self._felt = [each for each in self._felt if each[0] in left] if left else []
        ended = [member for member in under_way if member not in left]
        for member in ended:
            self._left(member)
        return [self.lanes[member] for member in ended]

    def watch(self) -> Iterable[RankState]:
        """Want to know of changes at once, of those who are not over."""
        self.watches = True
        for _, place in self._felt:
            place.watching[self] = None
        return [place for _, place in self._felt]

    def settle(self, now: float) -> None:
        """Go on under the pressures that are now."""
        course = self._look(now)
        pressures = self._pressures.copy()
        for member, place in self._felt:
            pressures[member] = place.pressure
        if pressures != self._pressures:
            course = course.after(((now - self.begin, tuple(pressures)),))
        self._next_look(course.ends, self._under_way)
        if self.next_look <= now:
            self._course, self._pressures = course, pressures
            for member, place in self._felt:
                self._at[member] = len(place.log)

    def _next_look(self, ends: Sequence[float], left: Sequence[int]) -> None:
        self.next_look = self.begin + min([ends[member] for member in left]) if left else math.inf

    def _look(self, now: float) -> Course:
        """Their course by all changes before this instant."""
        since, pressures, course = self._since, self._pressures, self._course
        reached = self._at
        news: list[tuple[float, int, float]] = []
        for member, place in self._felt:
            log, at = place.log, reached[member]
            last = len(log) - (log[-1][0] == now)
            if course is None:
                if at < last and log[at][0] == since[member]:
                    at += 1
                pressures[member] = log[at - 1][1]
            if at < last:
                news += [(instant, member, pressure) for instant, pressure in log[at:last]]
                at = last
            reached[member] = at
        if course is None:
            course = self._courses.under(tuple(pressures), self._late)
        if news:
            course = course.after(self._changes(news))
        self._course = course
        return course

    def _changes(self, news: list[tuple[float, int, float]]) -> tuple[Change, ...]:
        """The pressures after each instant at which some became others."""
        pressures, found = self._pressures, []
        if len(pressures) == 1:
            pressures[0] = news[-1][2]
            return tuple([(instant - self.begin, (pressure,)) for instant, _, pressure in news])
        news.sort()
        for (instant, member, pressure), (following, _, _) in zip(news, [*news[1:], (math.inf, 0, 0.0)], strict=True):
            pressures[member] = pressure
            if following > instant:
                found.append((instant - self.begin, tuple(pressures)))
        return tuple(found)
