"""Interference: communication slows down computation on its ranks while it is under way.

A computation takes (1 + sensitivity x pressure) times as long while communication is under way on its rank
(MODELLING.md C.5; ``devices.interference`` says where the numbers come from).  A GPU whose own speed changes as time
goes on is played here, too.  A chain of ops is one event still (``programs.chain``).  What communication presses is in
line once an instant, after all else of that instant; of that, only who computes past the time it takes undisturbed
needs to be told (``compute_tasks``).  Where computation slows communication down as well, that is
``mutual_interference``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import simpy

from simcluster.base.profiles import STEADY
from simcluster.engine.calendar import Agenda, Instant, Lane, Lanes, at_end_of_instant
from simcluster.engine.compute_tasks import Flight, LateTask, Member, RankState, Task, comes
from simcluster.engine.lone_task import LoneTask
from simcluster.engine.trajectories import Courses, TimedChain
from simcluster.engine.varying_speed import Followed
from simcluster.programs.chain import Chain
from simcluster.programs.program import ChainPace, Meeting, Program
from simcluster.programs.slowed import RowColumns, columns_of


class Pacing:
    """The ranks on which communication slows down computation; ``slowed`` has the ops that were.

    It says of each when its rows started and ended, in seconds from its begin.  ``lanes`` whose
    computation is over go on, all of an instant at once.
    """

    _drags = False  # does computation slow down communication?

    def __init__(self, env: simpy.Environment, program: Program, lanes: Lanes) -> None:
        self._env = env
        self._lanes = lanes
        speeds = program.speeds
        meetings = {id(meeting): meeting for meeting in program.all_meetings()}  # most are many times the same
        ranks = dict.fromkeys(rank for meeting in meetings.values() for rank in meeting.ranks)
        ranks |= dict.fromkeys(speeds)
        self._places = {rank: RankState(speeds.get(rank, STEADY)) for rank in ranks}
        self._follows = self._drags or bool(speeds)
        self._row_sets = program.row_sets
        self._courses: dict[int, Courses | None] = {}  # by the number of their rows; None for what computes nothing
        self._known: dict[tuple[ChainPace, ...], Courses] = {}
        self._places_of: dict[int, list[RankState]] = {}  # by the identity of the meeting
        self._looks: Agenda[Task] = Agenda(env)
        self._touched: dict[RankState, None] = {}
        self._settle_due = False
        self.slowed: dict[int, TimedChain] = {}

    @property
    def now(self) -> float:
        """The present instant."""
        return self._env._now

    def place(self, rank: int) -> RankState | None:
        """The rank, if communication or its own speed may slow down its computation at all."""
        return self._places.get(rank)

    # --- computation ------------------------------------------------------------------------------------------------

    def compute(self, op: int, place: RankState, rows: int, lane: Lane) -> bool:
        """The op, which leaves these rows (by their number), begins now; the lane goes on at its end.

        False if it computes nothing: then nothing slows it down, and it is not begun.
        """
        try:
            courses = self._courses[rows]
        except KeyError:
            courses = self._courses[rows] = self._courses_of(rows)
        if courses is None:
            return False
        now = self._env._now
        if self._follows and (self._drags or place.speed is not STEADY):
            self._follow(Followed(op, (comes(lane, place, now),), self._over, now, courses.chain))
        else:
            task = LoneTask(op, lane, place, self._over, now, courses)
            self._wake(task, task.next_look)
        return True

    def start(self, number: int, members: Sequence[Member], courses: Courses, over: Callable[[Task], None]) -> None:
        """Ops of these ranks are at work, of several if they go in step; the lanes go on at their ends."""
        now = self._env._now
        if self._follows and (self._drags or any(place and place.speed is not STEADY for _, place, _, _ in members)):
            self._follow(Followed(number, members, over, now, courses.chain))
        else:
            task = LateTask(number, members, over, now, courses)
            self._wake(task, task.next_look)

    def _over(self, task: Task) -> None:
        """All of an op is over."""
        if task.slowed:
            self.slowed[task.number] = task.kept()

    def _follow(self, task: Followed) -> None:
        self._wake(task, task.next_look)

    def _courses_of(self, rows: int) -> Courses | None:
        paces = tuple([row.pace or ChainPace(row.end - row.start) for row in self._row_sets[rows]])
        known = self._known.get(paces)
        if known is None and any(pace.sensitivity is not None for pace in paces):
            known = self._known[paces] = Courses(Chain(paces))
        return known

    def _wake(self, task: Task, instant: float) -> None:
        """Look at the task again at this instant, or at an earlier one that was asked for before."""
        if instant < task.due:
            task.due = instant
            self._looks.put(instant, task, self._look)

    def _look(self, event: Instant) -> None:
        instant = event.instant
        over: list[Lane] = []
        for task in self._looks.take(instant):
            if task.due == instant:
                task.due = math.inf
                self._end(task, instant, over)
        self._lanes.go_on(over)

    def _end(self, task: Task, now: float, over: list[Lane]) -> None:
        """Whose ranks are over?  The others want to know of what changes from now on."""
        over += task.end(now)
        if task.next_look < math.inf:
            self._wake(task, task.next_look)
            if not task.watches:
                self._watch(task, now)
        else:
            task.over(task)

    def _watch(self, task: Task, now: float) -> None:
        for place in task.watch():
            if place.log[-1][0] == now:
                self._touch(place)

    # --- communication ----------------------------------------------------------------------------------------------

    def begin(self, meeting: Meeting, lanes: Sequence[Lane]) -> Flight:
        """The meeting's transfer is under way from now on."""
        places = self._places_of.get(id(meeting))
        if places is None:
            places = self._places_of[id(meeting)] = [self._places[rank] for rank in meeting.ranks]
        flight = Flight(meeting, places, lanes)
        pressure, now = meeting.pressure, self._env._now
        for place in places:
            place.flights.append(flight)
            if pressure > place.pressure:
                place.press(now, pressure)
                if place.watching:
                    self._touch(place)
        return flight

    def finish(self, flight: Flight) -> None:
        """The meeting is over."""
        flight.activity = None  # it knows what comes after it, which knows the flight: a circle, for the collector
        pressure, now = flight.meeting.pressure, self._env._now
        for place in flight.places:
            flights = place.flights
            flights.remove(flight)
            if pressure == place.pressure:
                left = max([each.meeting.pressure for each in flights]) if flights else 0.0
                if left < pressure:
                    place.press(now, left)
                    if place.watching:
                        self._touch(place)

    def _touch(self, place: RankState) -> None:
        """Tell who computes there, at the end of this instant."""
        self._touched[place] = None
        if not self._settle_due:
            self._settle_due = True
            at_end_of_instant(self._env, self._settle)

    def _settle(self, _: Instant) -> None:
        self._settle_due = False
        now = self._env._now
        touched, self._touched = self._touched, {}
        for task in dict.fromkeys(task for place in touched for task in place.watching):
            task.settle(now)
            self._wake(task, task.next_look)


def rows_of(slowed: Mapping[int, TimedChain]) -> RowColumns:
    """The rows of ranks' ops, in seconds from the ops' own starts."""
    if not slowed:
        return columns_of({})
    times = [own.times() for own in slowed.values()]
    start, end = (np.concatenate(each) for each in zip(*times, strict=True))
    first = np.cumsum([0, *(len(own) for own, _ in times)])
    return RowColumns(np.array(list(slowed), dtype=np.int64), first, start, end)
