"""Computation and communication beside each other on a rank: two rates that change when either starts or ends.

A computation takes (1 + sensitivity x pressure) times as long while communication is under way on its rank, a
communication (1 + drag) times as long while one of its ranks computes (modelling.md C.5; ``interference.py`` says where
the numbers come from).  A GPU whose own speed changes as time goes on is played here, too.  A chain of ops is one event
still (``rhythm.py``).  Rates are brought in line once an instant, after all else of that instant.  Imports the network,
profiles, program and rhythm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import simpy

from simcluster.lowering.program import Meeting, Pace, Program, RowTimes
from simcluster.lowering.rhythm import Chain, Playing
from simcluster.planning.profiles import STEADY, Profile
from simcluster.simulating.network import Activity, Network, at_end_of_instant


class Flight:
    """A meeting under way that disturbs computation on its ranks, or is disturbed by it."""

    __slots__ = ("activity", "dragged", "meeting")

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self.activity: Activity | None = None
        self.dragged = False


class _Rank:
    """What goes on on one rank."""

    __slots__ = ("flights", "pressure", "tasks")

    def __init__(self) -> None:
        self.pressure = 0.0
        self.flights: dict[Flight, None] = {}
        self.tasks: dict[_Task, None] = {}


class Pacing:
    """The ranks on which communication and computation slow each other down.

    ``slowed`` has, for every op that was, when its rows started and ended, in seconds from the op's start.
    """

    def __init__(self, env: simpy.Environment, network: Network, program: Program) -> None:
        self._env = env
        self._network = network
        self._ranks = {rank: _Rank() for meeting in program.meetings for rank in meeting.ranks}
        self._ranks |= {rank: _Rank() for rank in program.speeds if rank not in self._ranks}
        self._speeds = program.speeds
        self._row_sets = program.row_sets
        self._chains: dict[int, Chain | None] = {}  # by the number of their rows; None for what computes nothing
        self._touched: dict[int, None] = {}
        self._due = False
        self.slowed: dict[int, RowTimes] = {}

    def disturbs(self, rank: int, rows: int) -> bool:
        """May communication or the rank's own speed slow down what leaves these rows (by their number) on the rank?"""
        return rank in self._ranks and self._chain(rows) is not None

    # --- computation ------------------------------------------------------------------------------------------------

    def compute(self, op: int, rank: int, rows: int) -> simpy.Event:
        """The op begins now; the event succeeds at its end."""
        here, chain = self._ranks[rank], self._chain(rows)
        assert chain is not None
        task = _Task(op, rank, self._env, chain, here.pressure, self._speeds.get(rank))
        here.tasks[task] = None
        if here.flights:
            self._touch(rank)
        self._wake(task, task.end)
        return task.over

    def _chain(self, rows: int) -> Chain | None:
        if rows not in self._chains:
            paces = [row.pace or Pace(row.end - row.start) for row in self._row_sets[rows]]
            computes = any(pace.sensitivity is not None for pace in paces)
            self._chains[rows] = Chain(paces) if computes else None
        return self._chains[rows]

    def _wake(self, task: _Task, instant: float) -> None:
        """Look at the task again at this instant, and no more at the one that was asked for before."""
        if task.due == instant:
            return
        task.due = instant
        timer = simpy.Timeout(self._env, instant - self._env.now, instant)
        assert timer.callbacks is not None
        timer.callbacks.append(partial(self._awake, task))

    def _awake(self, task: _Task, timer: simpy.Event) -> None:
        instant: float = timer._value
        if task.due != instant:
            return
        task.due = math.inf
        here = self._ranks[task.rank]
        if here.flights:
            self._touch(task.rank)
        if instant < task.end:
            return  # it has only turned from computing to communicating or back
        del here.tasks[task]
        if task.slowed:
            self.slowed[task.op] = task.rows()
        task.over._ok, task.over._value = True, None  # it happens now: no event of its own
        callbacks, task.over.callbacks = task.over.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(task.over)

    # --- communication ----------------------------------------------------------------------------------------------

    def begin(self, meeting: Meeting) -> Flight:
        """The meeting's transfer is under way from now on."""
        flight = Flight(meeting)
        for rank in meeting.ranks:
            self._ranks[rank].flights[flight] = None
            self._touch(rank)
        return flight

    def start(self, flight: Flight, number: int, then: Callable[[], object]) -> None:
        """Begin one of the meeting's activities."""
        drag = 1.0 + flight.meeting.drag if flight.dragged else 1.0
        flight.activity = self._network.start(flight.meeting.traffics[number], then, drag)

    def finish(self, flight: Flight) -> None:
        """The meeting is over."""
        for rank in flight.meeting.ranks:
            del self._ranks[rank].flights[flight]
            self._touch(rank)

    # --- rates ------------------------------------------------------------------------------------------------------

    def _touch(self, rank: int) -> None:
        """Something began or ended on the rank: bring rates in line at the end of this instant."""
        self._touched[rank] = None
        if not self._due:
            self._due = True
            at_end_of_instant(self._env, self._settle)

    def _settle(self, _: simpy.Event) -> None:
        self._due = False
        now = self._env.now
        touched, self._touched = self._touched, {}
        dragging: dict[Flight, None] = {}
        for rank in touched:
            here = self._ranks[rank]
            pressure = max((flight.meeting.pressure for flight in here.flights), default=0.0)
            if pressure != here.pressure:
                here.pressure = pressure
                for task in here.tasks:
                    task.press(now, pressure)
            turning = [flight for flight in here.flights if flight.meeting.drag]
            dragging |= dict.fromkeys(turning)
            for task in here.tasks:
                self._wake(task, task.turn(now) if turning else task.end)
        for flight in dragging:
            self._drag(flight, now)

    def _drag(self, flight: Flight, now: float) -> None:
        """Slow the transfer down while one of its ranks computes."""
        ranks = (self._ranks[rank] for rank in flight.meeting.ranks)
        dragged = any(task.computes(now) for rank in ranks for task in rank.tasks)
        if dragged != flight.dragged:
            flight.dragged = dragged
            if flight.activity is not None:
                self._network.set_drag(flight.activity, 1.0 + flight.meeting.drag if dragged else 1.0)


class _Task:
    """An op at work."""

    __slots__ = ("begin", "due", "end", "op", "over", "playing", "rank", "slowed")

    def __init__(
        self, op: int, rank: int, env: simpy.Environment, chain: Chain, pressure: float, speed: Profile | None
    ) -> None:
        self.op, self.rank = op, rank
        self.over = simpy.Event(env)
        self.due = math.inf
        self.begin = env.now
        self.slowed = pressure > 0 or speed is not None
        self.playing = Playing(chain, env.now, pressure, speed or STEADY)
        self.end = self.playing.finish()

    def press(self, now: float, pressure: float) -> None:
        """Go on under another pressure."""
        self.playing.press(now, pressure)
        self.end = self.playing.finish()
        self.slowed = self.slowed or pressure > 0

    def computes(self, now: float) -> bool:
        """Does it compute at this instant, or is it in one of its collectives?"""
        self.playing.advance(now)
        return self.playing.computes

    def turn(self, now: float) -> float:
        """When it will next begin or cease to compute, or be over."""
        self.playing.advance(now)
        return self.playing.turn()

    def rows(self) -> RowTimes:
        """When its rows started and ended, in seconds from its own start, once all are over."""
        self.playing.advance(self.end)
        times = zip(self.playing.start, self.playing.end, strict=True)
        return tuple((start - self.begin, end - self.begin) for start, end in times)
