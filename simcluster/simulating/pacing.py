"""Computation and communication beside each other on a rank: two rates that change when either starts or ends.

A computation takes (1 + sensitivity x pressure) times as long while communication is under way on its rank, a
communication (1 + drag) times as long while one of its ranks computes (modelling.md C.5; ``interference.py`` says where
the numbers come from).  A GPU whose own speed changes as time goes on is played here, too.  A chain of ops is one event
still (``rhythm.py``).  Rates are brought in line once an instant, after all else of that instant.  Imports the agenda,
courses, network, program, rhythm and tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import simpy

from simcluster.lowering.program import Meeting, Pace, Program
from simcluster.lowering.rhythm import Chain
from simcluster.lowering.slowed import RowColumns, columns_of
from simcluster.planning.profiles import STEADY
from simcluster.simulating.agenda import Agenda, at_end_of_instant, happens
from simcluster.simulating.courses import Courses, RowEnds
from simcluster.simulating.network import Network
from simcluster.simulating.tasks import Flight, Followed, Place, Several, Single, Task


class Pacing:
    """The ranks on which communication and computation slow each other down; ``slowed`` has the ops that were.

    It says of each when its rows started and ended, in seconds from its begin.
    """

    def __init__(self, env: simpy.Environment, network: Network, program: Program) -> None:
        self._env = env
        self._network = network
        speeds = program.speeds
        ranks = dict.fromkeys(rank for meeting in program.meetings for rank in meeting.ranks) | dict.fromkeys(speeds)
        self._places = {rank: Place(speeds.get(rank, STEADY)) for rank in ranks}
        self._row_sets = program.row_sets
        self._courses: dict[int, Courses | None] = {}  # by the number of their rows; None for what computes nothing
        self._known: dict[tuple[Pace, ...], Courses] = {}
        self._wakes: Agenda[Task] = Agenda(env)
        self._touched: dict[Place, None] = {}
        self._due = False
        self._drags = any(meeting.drag for meeting in program.meetings)
        self.slowed: dict[int, Callable[[], RowEnds]] = {}

    def place(self, rank: int) -> Place | None:
        """The rank, if communication or its own speed may slow down its computation at all."""
        return self._places.get(rank)

    # --- computation ------------------------------------------------------------------------------------------------

    def compute(self, op: int, place: Place, rows: int) -> simpy.Event | None:
        """The op, which leaves these rows (by their number), begins now; the event succeeds at its end.

        None if it computes nothing: then nothing slows it down.
        """
        try:
            courses = self._courses[rows]
        except KeyError:
            courses = self._courses[rows] = self._courses_of(rows)
        if courses is None:
            return None
        over = simpy.Event(self._env)
        if self._drags or place.speed is not STEADY:
            self._begin(Followed((op,), (place,), (over,), self._env.now, courses.chain))
        else:
            task = Single(op, place, over, self._env.now, courses)
            place.tasks[task] = 0
            self._wake(task, task.next_look)
        return over

    def together(
        self, ops: Sequence[int], ranks: Sequence[int], courses: Courses, overs: Sequence[simpy.Event]
    ) -> Task:  # fmt: skip
        """Ops of several ranks begin now, as one chain; their events succeed at their ends."""
        places = [self._places.get(rank) for rank in ranks]
        if self._drags or any(place and place.speed is not STEADY for place in places):
            return self._begin(Followed(ops, places, overs, self._env.now, courses.chain))
        return self._begin(Several(ops, places, overs, self._env.now, courses))

    def _begin(self, task: Task) -> Task:
        for number, place in enumerate(task.places):
            if place is not None:
                place.tasks[task] = number
                if self._drags and place.flights:
                    self._touch([place])
        self._wake(task, task.next_look)
        return task

    def _courses_of(self, rows: int) -> Courses | None:
        paces = tuple([row.pace or Pace(row.end - row.start) for row in self._row_sets[rows]])
        known = self._known.get(paces)
        if known is None and any(pace.sensitivity is not None for pace in paces):
            known = self._known[paces] = Courses(Chain(paces))
        return known

    def _wake(self, task: Task, instant: float) -> None:
        """Look at the task again at this instant, or at an earlier one that was asked for before."""
        if instant < task.due:
            task.due = instant
            self._wakes.put(instant, task, self._awake_all)

    def _awake_all(self, timer: simpy.Event) -> None:
        instant: float = timer._value
        for task in self._wakes.take(instant):
            if task.due == instant:
                task.due = math.inf
                self._awake(task, instant)

    def _awake(self, task: Task, instant: float) -> None:
        ended = task.end(instant)
        turning = self._drags and [place for place in task.places if place and place.flights]
        if turning:
            self._touch(turning)
        for number in ended:
            place = task.places[number]
            if place is not None:
                del place.tasks[task]
        if task.next_look < math.inf:
            if ended or not turning:  # else it may have turned from computing to communicating or back
                self._wake(task, task.next_look)
        elif task.slowed and len(task.ops) == 1:
            self.slowed[task.ops[0]] = task.kept()
        for number in ended:
            happens(task.overs[number])

    # --- communication ----------------------------------------------------------------------------------------------

    def begin(self, meeting: Meeting) -> Flight:
        """The meeting's transfer is under way from now on."""
        flight = Flight(meeting, [self._places[rank] for rank in meeting.ranks])
        for place in flight.places:
            place.flights[flight] = None
        self._touch(flight.places)
        return flight

    def start(self, flight: Flight, number: int, then: Callable[[], object]) -> None:
        """Begin one of the meeting's activities."""
        drag = 1.0 + flight.meeting.drag if flight.dragged else 1.0
        flight.activity = self._network.start(flight.meeting.traffics[number], then, drag)

    def finish(self, flight: Flight) -> None:
        """The meeting is over."""
        flight.activity = None  # it knows what comes after it, which knows the flight: a circle, for the collector
        for place in flight.places:
            del place.flights[flight]
        self._touch(flight.places)

    # --- rates ------------------------------------------------------------------------------------------------------

    def _touch(self, places: Iterable[Place]) -> None:
        """Something began or ended on the ranks: bring rates in line at the end of this instant."""
        for place in places:
            self._touched[place] = None
        if not self._due:
            self._due = True
            at_end_of_instant(self._env, self._settle)

    def _settle(self, _: simpy.Event) -> None:
        self._due = False
        now = self._env.now
        touched, self._touched = self._touched, {}
        pressed: dict[Task, None] = {}
        for place in touched:
            pressure = 0.0
            for flight in place.flights:
                if flight.meeting.pressure > pressure:
                    pressure = flight.meeting.pressure
            if pressure != place.pressure:
                place.pressure = pressure
                for task, number in place.tasks.items():
                    task.pressures[number] = pressure
                    pressed[task] = None
        for task in pressed:
            if task.press(now):
                self._wake(task, task.next_look)
        if self._drags:
            self._turn(touched, now)

    def _turn(self, touched: Iterable[Place], now: float) -> None:
        """Bring what computation does to transfers in line."""
        dragging: dict[Flight, None] = {}
        for place in touched:
            turning = [flight for flight in place.flights if flight.meeting.drag]
            dragging |= dict.fromkeys(turning)
            for task in place.tasks:
                assert isinstance(task, Followed)
                self._wake(task, task.turn(now) if turning else task.next_look)
        for flight in dragging:
            self._drag(flight, now)

    def _drag(self, flight: Flight, now: float) -> None:
        """Slow the transfer down while one of its ranks computes."""
        tasks = [task for place in flight.places for task in place.tasks]
        dragged = any(isinstance(task, Followed) and task.computes(now) for task in tasks)
        if dragged != flight.dragged:
            flight.dragged = dragged
            if flight.activity is not None:
                self._network.set_drag(flight.activity, 1.0 + flight.meeting.drag if dragged else 1.0)


def rows_of(slowed: Mapping[int, Callable[[], RowEnds]]) -> RowColumns:
    """The rows of ranks' ops, in seconds from the ops' own starts."""
    if not slowed:
        return columns_of({})
    times = [own() for own in slowed.values()]
    start, end = (np.concatenate(each) for each in zip(*times, strict=True))
    first = np.cumsum([0, *(len(own) for own, _ in times)])
    return RowColumns(np.array(list(slowed), dtype=np.int64), first, start, end)
