"""Plays a program with SimPy: lanes of ops, meetings on the network; records when ops were ready, began and ended.

SimPy keeps the time.  A lane is a generator that stops at every op; what ends the op lets it go on, at once and
without an event.  The engine knows no model, schedule, scenario or folding.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import simpy

from simcluster.base.clock import BeyondGridError, later_on_this_grid
from simcluster.base.errors import DeadlockError
from simcluster.base.telling import phase
from simcluster.engine.calendar import Lane, Lanes, Timer
from simcluster.engine.compute_tasks import Flight, RankState
from simcluster.engine.interference import Pacing
from simcluster.engine.lockstep import Lockstep
from simcluster.engine.mutual_interference import Dragging
from simcluster.engine.network import Network
from simcluster.engine.record import Record, Told, when_over
from simcluster.engine.stepwise import Stepwise
from simcluster.programs.program import Meeting, OpTimes, Program
from simcluster.programs.slowed import SlowedRows
from simcluster.reference.instants import process_events

StepsFactory = Callable[[Network, Callable[[int], object]], Stepwise]


def play(program: Program, capacity: Sequence[float], steps: Sequence[StepsFactory] = ()) -> Record:
    """Run the program to its end.

    ``capacity`` is B/s per link number of the traffics; ``steps`` makes the step-by-step players that meetings name.
    Raises DeadlockError when ops are left that can never begin.
    """
    return _Engine(program, capacity, steps).run()


class _Engine:
    def __init__(self, program: Program, capacity: Sequence[float], steps: Sequence[StepsFactory]) -> None:
        self._program = program
        self._env = simpy.Environment(0.0)
        self._network = Network(self._env, capacity, program.capacities)
        self._lanes = Lanes()
        if any(meeting.drag for meeting in program.meetings):
            self._pacing: Pacing = Dragging(self._env, self._network, program, self._lanes)
        else:
            self._pacing = Pacing(self._env, program, self._lanes)
        self._lockstep = Lockstep(program, capacity, self._pacing)
        self._steps = steps
        count = len(program.seconds)
        self._ready, self._start, self._end = (array("d", bytes(8 * count)) for _ in range(3))  # starts: of who meets
        self._last = np.arange(count)  # in few places written to: those of ops that meet, one a stretch
        self._waiting: list[tuple[Lane, ...] | None] = [()] * count  # by the op that they wait for; None: it is over
        self._arrivals: dict[int, dict[int, Lane]] = {}  # by the number of the meeting: the ops that are there
        self._players: dict[int, tuple[Stepwise, dict[int, Lane]]] = {}

    def run(self) -> Record:
        lanes: list[Lane] = []
        for ops, rank in zip(self._program.lanes, self._program.lane_rank, strict=True):
            lanes.append(self._lane(ops, rank, lanes, len(lanes)))
        with phase(lambda: f"simulating, {self._waiting.count(None) / max(len(self._waiting), 1):.0%} of ops done"):
            self._lanes.go_on(lanes)
            events = process_events(self._env)
        if self._waiting.count(None) < len(self._waiting):
            stuck = dict(self._stuck())
            endless = any(not missing and self._program.meeting[op] == -1 for op, missing in stuck.items())
            if endless or self._env.peek() < math.inf:
                raise BeyondGridError
            raise DeadlockError(self._explain(stuck))
        ready, start, end = (np.frombuffer(times) for times in (self._ready, self._start, self._end))
        columns = OpTimes(ready, np.maximum(ready, start, out=start), end, self._last)
        told = Told(self._program, self._lockstep, self._pacing.slowed, columns)
        return Record(
            when_over(self._program, self._end),
            later_on_this_grid(told.columns),
            events,
            SlowedRows(later_on_this_grid(told.slowed)),
        )

    def _lane(self, ops: Sequence[int], rank: int, lanes: Sequence[Lane], own: int) -> Lane:
        """One in-order queue of a rank: wait for what the op needs, do it, tell who waits for it.

        Wherever it stops somebody keeps it (it is ``own`` of the lanes) to let it go on.
        """
        me = lanes[own]
        env, program, waiting, just_me = self._env, self._program, self._waiting, (me,)
        seconds, after, meeting, rows = program.seconds, program.after, program.meeting, program.rows
        ready, end, go_on = self._ready, self._end, self._lanes.go_on
        place = self._pacing.place(rank)
        timer = Timer(env, lambda _: go_on(just_me))
        for op in ops:
            for other in after[op]:
                others = waiting[other]
                if others is not None:
                    waiting[other] = others + just_me
                    yield
            ready[op] = env._now
            number = meeting[op]
            if number != -1:
                self._meet(number, op, me, place)
            elif place is None or not self._pacing.compute(op, place, rows[op], me):
                timer.wait(seconds[op])
            yield
            end[op] = env._now
            others, waiting[op] = waiting[op], None
            if others:
                go_on(others)

    def _meet(self, number: int, op: int, lane: Lane, place: RankState | None) -> None:
        """Arrive at a meeting, or where ranks begin to go in step; the lane goes on when the op's part is over."""
        if number < -1:
            ops = self._lockstep.arrive(-2 - number, op, lane, place)
            if ops:
                self._all_there(ops)
            return
        meeting = self._program.meetings[number]
        if meeting.steps >= 0:
            self._step_by_step(number, meeting, op, lane)
        elif meeting.parties == 1:
            self._move(self._pacing.begin(meeting, (lane,)))
        else:
            arrivals = self._arrivals.setdefault(number, {})
            arrivals[op] = lane
            if len(arrivals) == meeting.parties:
                del self._arrivals[number]
                self._all_there(arrivals)
                for member in arrivals:
                    self._start[member] = self._env._now
                self._move(self._pacing.begin(meeting, tuple(arrivals.values())))

    def _all_there(self, ops: Iterable[int]) -> None:
        """Of those that arrive now the first op is named: it does not depend on the order of events."""
        ready, now, latest = self._ready, self._env._now, self._last
        last = min([op for op in ops if ready[op] == now])
        for op in ops:
            latest[op] = last

    def _move(self, flight: Flight) -> None:
        """Play the next of a meeting's activities; after the last one its lanes go on."""
        meeting, moved = flight.meeting, flight.moved
        if moved < len(meeting.traffics):
            flight.moved = moved + 1
            drag = 1.0 + meeting.drag if flight.dragged else 1.0
            flight.activity = self._network.start(meeting.traffics[moved], partial(self._move, flight), drag)
        else:
            self._pacing.finish(flight)
            self._lanes.go_on(flight.lanes)

    def _step_by_step(self, number: int, meeting: Meeting, op: int, lane: Lane) -> None:
        """Arrive at a meeting whose members begin and end one by one."""
        position = self._program.position[op]
        if number not in self._players:
            waiting: dict[int, Lane] = {}
            player = self._steps[meeting.steps](self._network, lambda done: self._lanes.go_on((waiting[done],)))
            self._players[number] = player, waiting
        player, waiting = self._players[number]
        waiting[position] = lane
        arrivals = self._arrivals.setdefault(number, {})
        arrivals[op] = lane
        if len(arrivals) == meeting.parties:
            del self._arrivals[number], self._players[number]
            self._all_there(arrivals)
        player.arrive(position)

    def _stuck(self) -> Iterator[tuple[int, list[int]]]:
        """The op at which each lane is stuck, and the ops that it waits for: none where it waits for others of its
        meeting, or has no meeting and never ends."""
        for ops in self._program.lanes:
            stuck = next((op for op in ops if self._waiting[op] is not None), None)
            if stuck is not None:
                yield stuck, [other for other in self._program.after[stuck] if self._waiting[other] is not None]

    def _explain(self, found: Mapping[int, Sequence[int]]) -> str:
        """What every stuck lane waits for."""
        program = self._program
        lines = []
        for stuck, missing in found.items():
            if missing:
                what = "for " + " and ".join(program.describe(other) for other in missing[:3])
            else:
                number = program.meeting[stuck]
                arrived = len(self._arrivals.get(number, ())) + self._lockstep.arrived(-2 - number)
                parties = program.meetings[number].parties if number >= 0 else len(program.in_step[-2 - number].ops)
                what = f"for the other members of its group ({arrived} of {parties} have arrived)"
            lines.append(f"  {program.describe(stuck)} waits {what}")
        shown = "\n".join(lines[:12])
        more = f"\n  ... and {len(lines) - 12} more" if len(lines) > 12 else ""
        return (
            f"deadlock: {len(lines)} lanes wait for each other and nothing can happen any more\n{shown}{more}\n"
            "  Every send needs a receive, and all members of a group must run its collectives in the same order."
        )
