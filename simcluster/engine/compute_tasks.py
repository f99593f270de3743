"""Compute ops in progress on ranks that keep their speed: what presses on them, and when they will be over.

A rank's chain of ops, or that of ranks which go in step, is one task, and goes through courses that others know, too.
Such a chain cannot be over before ``Courses.least``: what presses on its rank until then is written down there, and the
chain looks at all of it in one go (of 12,662 changes in Llama 3 405B on 16,384 GPUs that leaves 4,161 looks, and nobody
needs to be told of the others).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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


class Task:
    """An op at work, or a stretch of several ranks (by its number), of ranks at these places (None: nothing slows it
    down), with the lanes that wait for their ends.

    ``due`` is when somebody will look at it again, ``next_look`` when that will be worth it: infinite once all is over.
    ``watches``: does it want to know of changes at once?
    """

    __slots__ = ("begin", "due", "lanes", "next_look", "number", "places", "watches")

    number: int
    places: Sequence[RankState | None]
    lanes: Sequence[Lane]
    begin: float
    due: float
    next_look: float
    watches: bool

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


class _Steady(Task):
    """A task whose ranks keep their speed: it goes through a course, once somebody has looked."""

    __slots__ = ("_course", "_courses")

    _course: Course | None
    _courses: Courses

    @property
    def slowed(self) -> bool:
        """Did anything press on it?"""
        return self._course is not None and self._course.slowed

    def kept(self) -> TimedChain:
        """When rows started and ended: the course knows."""
        assert self._course is not None
        return self._course


class Single(_Steady):
    """An op of one rank that keeps its speed."""

    __slots__ = ("_at", "_log")

    places: tuple[RankState]

    def __init__(self, op: int, place: RankState, lane: Lane, now: float, courses: Courses) -> None:
        self.number, self.places, self.lanes, self.begin = op, (place,), (lane,), now
        self.next_look = now + courses.least
        self.due = math.inf
        self.watches = False
        self._courses = courses
        self._course = None
        self._log = place.log
        self._at = place.enter(now)

    def end(self, now: float) -> Sequence[Lane]:
        """The lane, if the rank has come to its end by now."""
        end = self.begin + self._look(now).ends[0]
        if end > now:
            self.next_look = end
            return ()
        self.next_look = math.inf
        self.places[0].leave(self)
        return self.lanes

    def watch(self) -> Iterable[RankState]:
        """Want to know of changes at once."""
        self.watches = True
        self.places[0].watching[self] = None
        return self.places

    def settle(self, now: float) -> None:
        """Go on under the pressure that is now."""
        course = self._look(now)
        instant, pressure = self._log[-1]
        if instant == now:
            course = course.after(((now - self.begin, (pressure,)),))
        self.next_look = self.begin + course.ends[0]
        if self.next_look <= now:
            self._course, self._at = course, len(self._log)

    def _look(self, now: float) -> Course:
        """Its course by all changes before this instant."""
        log, at, begin, course = self._log, self._at, self.begin, self._course
        last = len(log) - (log[-1][0] == now)
        if course is None:
            if at < last and log[at][0] == begin:
                at += 1
            course = self._courses.under((log[at - 1][1],))
        if at < last:
            course = course.after(tuple([(instant - begin, (pressure,)) for instant, pressure in log[at:last]]))
            at = last
        self._at, self._course = at, course
        return course


class LockstepMember(NamedTuple):
    """A rank in lockstep with others: since when, and its place then in the log of changes (``RankState.enter``)."""

    lane: Lane
    place: RankState | None
    instant: float
    at: int


class LockstepTask(_Steady):
    """Ops that ranks do in step, all of which keep their speed; before they first meet they need not begin at once."""

    __slots__ = ("_at", "_felt", "_late", "_pressures", "_under_way")

    def __init__(self, number: int, members: Sequence[LockstepMember], now: float, courses: Courses) -> None:
        self.number = number
        self.lanes, self.places, instants, self._at = map(list, zip(*members, strict=True))
        self.begin = begin = min(instants)
        self._late = tuple([instant - begin for instant in instants]) if begin < now else ()
        self.next_look = max(begin + courses.least, now)
        self.due = math.inf
        self.watches = False
        self._courses = courses
        self._course = None
        self._felt = [(member, place) for member, place in enumerate(self.places) if place is not None]  # under way
        self._pressures = [0.0] * len(members)
        self._under_way = list(range(len(members)))

    def end(self, now: float) -> Sequence[Lane]:
        """Those whose ranks have come to their end by now."""
        begin, ends = self.begin, self._look(now).ends
        ended = [member for member in self._under_way if begin + ends[member] <= now]
        if ended:
            self._under_way = left = [member for member in self._under_way if begin + ends[member] > now]
            self._felt = [each for each in self._felt if each[0] in left] if left else []
            for member in ended:
                self._left(member)
        self._next_look(ends)
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
        self._next_look(course.ends)
        if self.next_look <= now:
            self._course, self._pressures = course, pressures
            for member, place in self._felt:
                self._at[member] = len(place.log)

    def _next_look(self, ends: Sequence[float]) -> None:
        left = [ends[member] for member in self._under_way]
        self.next_look = self.begin + min(left) if left else math.inf

    def _look(self, now: float) -> Course:
        """Their course by all changes before this instant."""
        begin, late, pressures, course = self.begin, self._late, self._pressures, self._course
        reached, news = self._at, []
        for member, place in self._felt:
            log, at = place.log, reached[member]
            last = len(log) - (log[-1][0] == now)
            if course is None:
                if at < last and log[at][0] == (begin + late[member] if late else begin):
                    at += 1
                pressures[member] = log[at - 1][1]
            if at < last:
                for instant, pressure in log[at:last]:
                    news.append((instant, member, pressure))
                at = last
            reached[member] = at
        if course is None:
            course = self._courses.under(tuple(pressures), late)
        if news:
            course = course.after(self._changes(news))
        self._course = course
        return course

    def _changes(self, news: list[tuple[float, int, float]]) -> tuple[Change, ...]:
        """The pressures after each instant at which some became others."""
        news.sort()
        pressures, found = self._pressures, []
        for (instant, member, pressure), (following, _, _) in zip(news, [*news[1:], (math.inf, 0, 0.0)], strict=True):
            pressures[member] = pressure
            if following > instant:
                found.append((instant - self.begin, tuple(pressures)))
        return tuple(found)
