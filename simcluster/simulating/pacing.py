"""Computation and communication beside each other on a rank: two rates that change when either starts or ends.

A computation takes (1 + sensitivity x pressure) times as long while communication is under way on its rank, a
communication (1 + drag) times as long while one of its ranks computes (modelling.md C.5; ``interference.py`` says where
the numbers come from).  A GPU whose own speed changes as time goes on is played here, too.  A chain of ops is one event
still (``rhythm.py``).  Rates are brought in line once an instant, after all else of that instant.  Imports the network,
profiles, program and rhythm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import simpy

from simcluster.lowering.program import Meeting, Pace, Program
from simcluster.lowering.rhythm import Chain, Floats, Playing
from simcluster.lowering.slowed import RowColumns, columns_of
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
        self.tasks: dict[Task, int] = {}  # with the rank's place in each


class Pacing:
    """The ranks on which communication and computation slow each other down; ``slowed`` has the ops that were."""

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
        self._drags = any(meeting.drag for meeting in program.meetings)
        self.slowed: list[Task] = []

    def paces(self, rank: int) -> bool:
        """May communication or the rank's own speed slow down its computation at all?"""
        return rank in self._ranks

    def disturbs(self, rank: int, rows: int) -> bool:
        """May communication or the rank's own speed slow down what leaves these rows (by their number) on the rank?"""
        return rank in self._ranks and self._chain(rows) is not None

    # --- computation ------------------------------------------------------------------------------------------------

    def compute(self, op: int, rank: int, rows: int) -> simpy.Event:
        """The op begins now; the event succeeds at its end."""
        chain = self._chain(rows)
        assert chain is not None
        over = simpy.Event(self._env)
        self._begin(Task((op,), (rank,), (over,)), chain)
        return over

    def together(
        self, ops: Sequence[int], ranks: Sequence[int], chain: Chain, overs: Sequence[simpy.Event]
    ) -> Task:  # fmt: skip
        """Ops of several ranks begin now, as one chain; their events succeed at their ends."""
        task = Task(ops, ranks, overs)
        self._begin(task, chain)
        return task

    def _begin(self, task: Task, chain: Chain) -> None:
        pressures: list[float] = []
        speeds: list[Profile] = []
        for member, rank in enumerate(task.ranks):
            here = self._ranks.get(rank)
            if here is not None:
                here.tasks[task] = member
                if here.flights and self._drags:
                    self._touch(rank)
            pressures.append(0.0 if here is None else here.pressure)
            speeds.append(self._speeds.get(rank, STEADY))
        task.begin(Playing(chain, self._env.now, pressures, speeds), self._env.now, pressures, speeds)
        self._wake(task, task.next_end)

    def _chain(self, rows: int) -> Chain | None:
        if rows not in self._chains:
            paces = [row.pace or Pace(row.end - row.start) for row in self._row_sets[rows]]
            computes = any(pace.sensitivity is not None for pace in paces)
            self._chains[rows] = Chain(paces) if computes else None
        return self._chains[rows]

    def _wake(self, task: Task, instant: float) -> None:
        """Look at the task again at this instant, or at an earlier one that was asked for before."""
        if task.due <= instant:
            return
        task.due = instant
        timer = simpy.Timeout(self._env, instant - self._env.now, instant)
        assert timer.callbacks is not None
        timer.callbacks.append(partial(self._awake, task))

    def _awake(self, task: Task, timer: simpy.Event) -> None:
        instant: float = timer._value
        if task.due != instant:
            return
        task.due = math.inf
        ended = task.end(instant)
        turning = self._drags and bool(self._ranks[task.ranks[0]].flights)
        if turning:
            self._touch(task.ranks[0])
        for member in ended:
            here = self._ranks.get(task.ranks[member])
            if here is not None:
                del here.tasks[task]
        if task.next_end < math.inf:
            if ended or not turning:  # else it may have turned from computing to communicating or back
                self._wake(task, task.next_end)
        elif task.slowed and len(task.ranks) == 1:
            self.slowed.append(task)
        for member in ended:
            over = task.overs[member]
            over._ok, over._value = True, None  # it happens now: no event of its own
            callbacks, over.callbacks = over.callbacks, None  # type: ignore[assignment]
            for callback in callbacks:
                callback(over)

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
        flight.activity = None  # it knows what comes after it, which knows the flight: a circle, for the collector
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
        pressed: dict[Task, None] = {}
        for rank in touched:
            here = self._ranks[rank]
            pressure = max([flight.meeting.pressure for flight in here.flights], default=0.0)
            if pressure != here.pressure:
                here.pressure = pressure
                for task, member in here.tasks.items():
                    task.pressures[member] = pressure
                    pressed[task] = None
        for task in pressed:
            task.press(now)
            self._wake(task, task.next_end)
        if self._drags:
            self._turn(touched, now)

    def _turn(self, touched: Iterable[int], now: float) -> None:
        """Bring what computation does to transfers in line."""
        dragging: dict[Flight, None] = {}
        for rank in touched:
            here = self._ranks[rank]
            turning = [flight for flight in here.flights if flight.meeting.drag]
            dragging |= dict.fromkeys(turning)
            for task in here.tasks:
                self._wake(task, task.playing.turn(now) if turning else task.next_end)
        for flight in dragging:
            self._drag(flight, now)

    def _drag(self, flight: Flight, now: float) -> None:
        """Slow the transfer down while one of its ranks computes."""
        ranks = (self._ranks[rank] for rank in flight.meeting.ranks)
        dragged = any(task.playing.computes(now) for rank in ranks for task in rank.tasks)
        if dragged != flight.dragged:
            flight.dragged = dragged
            if flight.activity is not None:
                self._network.set_drag(flight.activity, 1.0 + flight.meeting.drag if dragged else 1.0)


class Task:
    """Ops at work: one of a rank, or those that ranks do in step, with the events of their ends."""

    __slots__ = ("_begin", "_ends", "due", "ops", "overs", "playing", "pressures", "ranks", "slowed")

    playing: Playing

    def __init__(self, ops: Sequence[int], ranks: Sequence[int], overs: Sequence[simpy.Event]) -> None:
        self.ops, self.ranks, self.overs = ops, ranks, overs
        self.due = math.inf

    def begin(self, playing: Playing, now: float, pressures: list[float], speeds: Sequence[Profile]) -> None:
        """Begin now, under these pressures and at these speeds."""
        self.playing, self._begin, self.pressures = playing, now, pressures
        self.slowed = any(pressures) or any(speed is not STEADY for speed in speeds)
        self._ends = playing.ends()

    @property
    def next_end(self) -> float:
        """When the next of the ranks comes to its end; infinite when all have."""
        return min(self._ends)

    def end(self, now: float) -> list[int]:
        """Ranks (by their place) that have come to their end now."""
        ended = [member for member, end in enumerate(self._ends) if end == now]
        if ended:
            if len(ended) == len(self._ends) or min(end for end in self._ends if end != now) == math.inf:
                self.playing.advance(now)
            for member in ended:
                self._ends[member] = math.inf
        return ended

    def press(self, now: float) -> None:
        """Go on under the pressures that are now."""
        self.playing.press(now, self.pressures)
        over = [end == math.inf for end in self._ends]
        self._ends = [math.inf if gone else end for gone, end in zip(over, self.playing.ends(), strict=True)]
        self.slowed = self.slowed or any(self.pressures)

    def times(self) -> tuple[Floats, Floats]:
        """When the rows of a rank's op started and ended, in seconds from its own start, once all are over."""
        start, end = self.playing.times()
        return start - self._begin, end - self._begin


def rows_of(tasks: Sequence[Task]) -> RowColumns:
    """The rows of ranks' ops, once all are over, in seconds from the ops' own starts."""
    if not tasks:
        return columns_of({})
    times = [task.times() for task in tasks]
    start, end = (np.concatenate(each) for each in zip(*times, strict=True))
    first = np.cumsum([0, *(len(own) for own, _ in times)])
    return RowColumns(np.array([task.ops[0] for task in tasks], dtype=np.int64), first, start, end)
