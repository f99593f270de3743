"""Computation at work on ranks: what presses on it, and when it will be over.

A rank's chain of ops, or that of ranks which go in step, is one task.  Ranks that keep their speed go through courses
that others know, too, and what changes before such a chain can be over at all is kept until then and looked at in one
go: of 11,368 changes in Llama 3 405B on 16,384 GPUs that leaves 4,204 looks.  A chain whose rank changes its speed, or
that slows down transfers itself, is followed change by change.  Imports SimPy, courses, rhythm and profiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import simpy

from simcluster.lowering.program import Meeting
from simcluster.lowering.rhythm import Chain, Playing
from simcluster.planning.profiles import STEADY, Profile
from simcluster.simulating.courses import Change, Courses, RowEnds
from simcluster.simulating.network import Activity


class Place:
    """A rank on which computation may be slowed down, and what goes on there."""

    __slots__ = ("flights", "pressure", "speed", "tasks")

    def __init__(self, speed: Profile) -> None:
        self.speed = speed
        self.pressure = 0.0
        self.flights: dict[Flight, None] = {}
        self.tasks: dict[Task, int] = {}  # with the rank's number in each


class Flight:
    """A meeting under way that disturbs computation at its places, or is disturbed by it."""

    __slots__ = ("activity", "dragged", "meeting", "places")

    def __init__(self, meeting: Meeting, places: Sequence[Place]) -> None:
        self.meeting, self.places = meeting, places
        self.activity: Activity | None = None
        self.dragged = False


class Task:
    """Ops at work, of ranks at these places (None: nothing slows it down), with the events of their ends.

    ``due`` is when somebody will look at it again, ``next_look`` when that will be worth it: infinite once all is over.
    """

    __slots__ = ("begin", "due", "next_look", "ops", "overs", "places", "pressures", "slowed")

    def __init__(
        self, ops: Sequence[int], places: Sequence[Place | None], overs: Sequence[simpy.Event], now: float
    ) -> None:
        self.ops, self.places, self.overs, self.begin = ops, places, overs, now
        self.pressures = [0.0 if place is None else place.pressure for place in places]
        self.slowed = any(self.pressures)
        self.due = self.next_look = math.inf

    def end(self, now: float) -> Sequence[int]:
        """Ranks (by their number here) that have come to their end by now."""
        raise NotImplementedError

    def press(self, now: float) -> bool:
        """Go on under the pressures that are now; is ``next_look`` another one?"""
        raise NotImplementedError

    def kept(self) -> Callable[[], RowEnds]:
        """What says when rows started and ended, in seconds from the begin, once all are over; no more than that."""
        raise NotImplementedError


class Single(Task):
    """An op of one rank that keeps its speed."""

    __slots__ = ("_changes", "_course", "_early")

    def __init__(self, op: int, place: Place, over: simpy.Event, now: float, courses: Courses) -> None:
        self.ops, self.places, self.overs, self.begin = (op,), (place,), (over,), now
        pressure = place.pressure
        self.pressures = [pressure]
        self.slowed = pressure > 0.0
        self.due = math.inf
        self.next_look = now + courses.least
        self._course = courses.under((pressure,))
        self._changes: list[Change] = []
        self._early = True

    def end(self, now: float) -> Sequence[int]:
        """The rank, if it has come to its end by now."""
        self._early = False
        self._look()
        if self.next_look > now:
            return ()
        self.next_look = math.inf
        return (0,)

    def press(self, now: float) -> bool:
        """Go on under the pressure that is now."""
        pressure = self.pressures[0]
        self.slowed = self.slowed or pressure > 0.0
        self._changes.append((now - self.begin, (pressure,)))
        if self._early:
            return False
        self._look()
        return True

    def _look(self) -> None:
        if self._changes:
            self._course = self._course.after(tuple(self._changes))
            self._changes = []
        self.next_look = self.begin + self._course.ends[0]

    def kept(self) -> Callable[[], RowEnds]:
        """When rows started and ended: the course knows."""
        return self._course.times


class Several(Task):
    """Ops that ranks do in step, all of which keep their speed."""

    __slots__ = ("_changes", "_course", "_early", "_over")

    def __init__(
        self, ops: Sequence[int], places: Sequence[Place | None], overs: Sequence[simpy.Event], now: float,
        courses: Courses,
    ) -> None:  # fmt: skip
        super().__init__(ops, places, overs, now)
        self.next_look = now + courses.least
        self._course = courses.under(tuple(self.pressures))
        self._changes: list[Change] = []
        self._early = True
        self._over: dict[int, None] = {}

    def end(self, now: float) -> Sequence[int]:
        """Ranks that have come to their end by now."""
        self._early = False
        ends = self._look()
        ended = [member for member, end in ends.items() if end <= now]
        self._over |= dict.fromkeys(ended)
        self.next_look = min((end for end in ends.values() if end > now), default=math.inf)
        return ended

    def press(self, now: float) -> bool:
        """Go on under the pressures that are now."""
        self.slowed = self.slowed or any(self.pressures)
        self._changes.append((now - self.begin, tuple(self.pressures)))
        if self._early:
            return False
        self.next_look = min(self._look().values())
        return True

    def _look(self) -> dict[int, float]:
        """When will those that are not over be over?"""
        if self._changes:
            self._course = self._course.after(tuple(self._changes))
            self._changes = []
        begin, over = self.begin, self._over
        return {member: begin + end for member, end in enumerate(self._course.ends) if member not in over}

    def kept(self) -> Callable[[], RowEnds]:
        """When rows started and ended: the course knows."""
        return self._course.times


class Followed(Task):
    """Ops of ranks whose speed changes as time goes on, or that slow down transfers; several if they go in step."""

    __slots__ = ("_ends", "_playing")

    def __init__(
        self, ops: Sequence[int], places: Sequence[Place | None], overs: Sequence[simpy.Event], now: float, chain: Chain
    ) -> None:
        super().__init__(ops, places, overs, now)
        speeds = [STEADY if place is None else place.speed for place in places]
        self.slowed = self.slowed or any(speed is not STEADY for speed in speeds)
        self._playing = Playing(chain, now, self.pressures, speeds)
        self._ends = self._playing.ends()
        self.next_look = min(self._ends)

    def end(self, now: float) -> Sequence[int]:
        """Ranks that have come to their end now."""
        ended = [member for member, end in enumerate(self._ends) if end == now]
        for member in ended:
            self._ends[member] = math.inf
        self.next_look = min(self._ends)
        if ended and self.next_look == math.inf:
            self._playing.advance(now)
        return ended

    def press(self, now: float) -> bool:
        """Go on under the pressures that are now."""
        self._playing.press(now, self.pressures)
        both = zip(self._ends, self._playing.ends(), strict=True)
        self._ends = [math.inf if before == math.inf else end for before, end in both]
        self.next_look = min(self._ends)
        self.slowed = self.slowed or any(self.pressures)
        return True

    def computes(self, now: float) -> bool:
        """Does it compute at this instant, or is it in one of its collectives?"""
        return self._playing.computes(now)

    def turn(self, now: float) -> float:
        """When it will next begin or cease to compute, or be over, if nothing changes."""
        return self._playing.turn(now)

    def kept(self) -> Callable[[], RowEnds]:
        """When rows started and ended: the chain knows."""
        return partial(_since, self._playing, self.begin)


def _since(playing: Playing, begin: float) -> RowEnds:
    start, end = playing.times()
    return start - begin, end - begin
