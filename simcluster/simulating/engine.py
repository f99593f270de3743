"""Plays a program with SimPy: a process per lane, meetings on the network; records when ops were ready, began, ended.

The engine knows no model, schedule, scenario or folding.  Imports the program, the network and the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import simpy

from simcluster.errors import InputError
from simcluster.lowering.program import Meeting, Program, RowTimes
from simcluster.lowering.slowed import RowColumns, SlowedRows, joined
from simcluster.simulating.agenda import happens
from simcluster.simulating.courses import RowEnds
from simcluster.simulating.lockstep import Columns, Expanded, Form, Forms, Stretch
from simcluster.simulating.network import Network
from simcluster.simulating.pacing import Pacing, rows_of
from simcluster.simulating.stepwise import Stepwise
from simcluster.simulating.tasks import Flight, Task

Times = npt.NDArray[np.float64]


class DeadlockError(InputError):
    """Ops that wait for each other for ever; the message names the ranks and what each waits for."""


@dataclass(frozen=True)
class Record:
    """Seconds per op: when it could have begun by itself, when it began, when it ended; ``last`` is the op that arrived
    last at its meeting, of equals the first op (itself elsewhere).  ``events`` counts what SimPy played.  ``slowed``
    has, for every op that communication beside it slowed down, when its rows started and ended, in seconds from its
    start.  ``kind`` is how the program was played, as "events" or as one longest "path", and ``why`` not otherwise."""

    ready: Times
    start: Times
    end: Times
    last: npt.NDArray[np.int64]
    events: int
    slowed: Mapping[int, RowTimes] = field(default_factory=dict)
    kind: str = "events"
    why: str = ""


def _slowed_rows(alone: Mapping[int, Callable[[], RowEnds]], expanded: Expanded) -> RowColumns:
    return joined([rows_of(alone), expanded.slowed()])


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
        self._pacing = Pacing(self._env, self._network, program)
        self._steps = steps
        count = len(program.seconds)
        self._ready = [0.0] * count
        self._start = [0.0] * count
        self._end = [0.0] * count
        self._last = np.arange(count)  # in few places written to: those of ops that meet, one a stretch
        self._done = bytearray(count)
        self._waiters: dict[int, simpy.Event] = {}
        self._arrivals: dict[int, dict[int, simpy.Event]] = {}  # by the number of the meeting: the ops that are there
        self._players: dict[int, tuple[Stepwise, dict[int, simpy.Event]]] = {}
        self._forms = Forms(program, capacity)
        self._in_step = {first: number for number, each in enumerate(program.in_step) for first in each.firsts}
        self._together: list[tuple[int, Form, Task]] = []  # what has been played in step: its number

    def run(self) -> Record:
        ranks = self._program.lane_rank
        lanes = [
            self._env.process(self._lane(ops, rank)) for ops, rank in zip(self._queues(), ranks, strict=True) if ops
        ]
        self._env.run()
        if any(lane.is_alive for lane in lanes):
            raise DeadlockError(self._explain())
        events = next(self._env._eid)  # all that were scheduled have been played: the queue is empty
        ready, start, end = np.array(self._ready), np.array(self._start), np.array(self._end)
        last = self._last
        expanded = Expanded(self._program, self._stretches(), Columns(ready, start, end, last))
        slowed = SlowedRows(partial(_slowed_rows, self._pacing.slowed, expanded))
        return Record(ready=ready, start=start, end=end, last=last, events=events, slowed=slowed)

    def _queues(self) -> list[list[int]]:
        """What every lane plays: of what is done in step with others the first op alone."""
        if not self._in_step:
            return self._program.lanes
        inner = bytearray(len(self._done))
        for each in self._program.in_step:
            for first in each.firsts:
                inner[first + 1 : first + each.length] = b"\1" * (each.length - 1)
        return [[op for op in ops if not inner[op]] for ops in self._program.lanes]

    def _stretches(self) -> list[Stretch]:
        """What has been played in step."""
        found = []
        for number, form, task in self._together:
            firsts = self._program.in_step[number].firsts
            ready = tuple([self._ready[first] for first in firsts])
            found.append(Stretch(firsts, form, task.begin, task.kept()(), ready, self._last[firsts[0]], task.slowed))
        return found

    def _lane(self, ops: Sequence[int], rank: int) -> Generator[simpy.Event, object, None]:
        """One in-order queue of a rank: wait for what the op needs, do it, tell who waits for it."""
        env, program, done, waiters, in_step = self._env, self._program, self._done, self._waiters, self._in_step
        seconds, after, meeting, rows = program.seconds, program.after, program.meeting, program.rows
        ready, start, end = self._ready, self._start, self._end
        place = self._pacing.place(rank)
        for op in ops:
            for other in after[op]:
                if not done[other]:
                    event = waiters.get(other)
                    if event is None:
                        event = waiters[other] = simpy.Event(env)
                    yield event
            ready[op] = start[op] = env.now
            last = op
            if in_step and op in in_step:
                yield self._go_in_step(in_step[op], op)
                last = self._last_of(op)  # that is what others wait for
                done[op:last] = b"\1" * (last - op)
            elif meeting[op] >= 0:
                yield self._meet(meeting[op], op)
            else:
                over = None if place is None else self._pacing.compute(op, place, rows[op])
                yield simpy.Timeout(env, seconds[op]) if over is None else over
            end[last] = env.now
            done[last] = 1
            if last in waiters:
                happens(waiters.pop(last))

    def _meet(self, number: int, op: int) -> simpy.Event:
        """Arrive at a meeting; the event succeeds when the op's part in it is over."""
        meeting = self._program.meetings[number]
        over = simpy.Event(self._env)
        if meeting.steps >= 0:
            self._step_by_step(number, meeting, op, over)
        elif meeting.parties == 1:
            self._hold(meeting, (over,))
        else:
            arrivals = self._arrivals.setdefault(number, {})
            arrivals[op] = over
            if len(arrivals) == meeting.parties:
                del self._arrivals[number]
                self._all_there(arrivals)
                for member in arrivals:
                    self._start[member] = self._env.now
                self._hold(meeting, tuple(arrivals.values()))
        return over

    def _last_of(self, op: int) -> int:
        """The last op of a rank's stretch that begins with this one."""
        return op + self._program.in_step[self._in_step[op]].length - 1

    def _go_in_step(self, number: int, op: int) -> simpy.Event:
        """Arrive where ranks begin to go in step; the event succeeds when the op's rank has come to the end."""
        stretch = self._program.in_step[number]
        over = simpy.Event(self._env)
        arrivals = self._arrivals.setdefault(self._program.meeting[op], {})
        arrivals[op] = over
        firsts = stretch.firsts
        if len(arrivals) == len(firsts):
            del self._arrivals[self._program.meeting[op]]
            self._all_there(arrivals)
            ranks = [self._program.lane_rank[self._program.lane[first]] for first in firsts]
            form = self._forms.of(stretch)
            task = self._pacing.together(firsts, ranks, form.courses, [arrivals[first] for first in firsts])
            self._together.append((number, form, task))
        return over

    def _all_there(self, ops: Iterable[int]) -> None:
        """Of those that arrive now the first op is named: it does not depend on the order of events."""
        ready, now, latest = self._ready, self._env.now, self._last
        last = min([op for op in ops if ready[op] == now])
        for op in ops:
            latest[op] = last

    def _hold(self, meeting: Meeting, over: Sequence[simpy.Event]) -> None:
        """All are there: play a meeting's activities, after which its events succeed."""
        flight = self._pacing.begin(meeting) if meeting.ranks else None
        if meeting.traffics:
            self._move(meeting, 0, over, flight)
            return
        if flight:
            self._pacing.finish(flight)
        for event in over:  # one of them has yet to come to wait for it
            event.succeed()

    def _move(self, meeting: Meeting, index: int, over: Sequence[simpy.Event], flight: Flight | None) -> None:
        """Play a meeting's activities one after the other, from this one on."""
        if index < len(meeting.traffics):
            then = partial(self._move, meeting, index + 1, over, flight)
            if flight:
                self._pacing.start(flight, index, then)
            else:
                self._network.start(meeting.traffics[index], then)
            return
        if flight:
            self._pacing.finish(flight)
        for event in over:
            happens(event)

    def _step_by_step(self, number: int, meeting: Meeting, op: int, over: simpy.Event) -> None:
        """Arrive at a meeting whose members begin and end one by one."""
        position = self._program.position[op]
        if number not in self._players:
            waiting: dict[int, simpy.Event] = {}
            player = self._steps[meeting.steps](self._network, lambda done: waiting[done].succeed())
            self._players[number] = player, waiting
        player, waiting = self._players[number]
        waiting[position] = over
        arrivals = self._arrivals.setdefault(number, {})
        arrivals[op] = over
        if len(arrivals) == meeting.parties:
            del self._arrivals[number], self._players[number]
            self._all_there(arrivals)
        player.arrive(position)

    def _explain(self) -> str:
        """What every stuck lane waits for."""
        program = self._program
        lines = []
        for ops in program.lanes:
            stuck = next((op for op in ops if not self._done[op]), None)
            if stuck is None:
                continue
            missing = [other for other in program.after[stuck] if not self._done[other]]
            if missing:
                what = "for " + " and ".join(program.describe(other) for other in missing[:3])
            else:
                arrived = [program.describe(op) for op in self._arrivals.get(program.meeting[stuck], ())]
                parties = program.meetings[program.meeting[stuck]].parties
                what = f"for the other members of its group ({len(arrived)} of {parties} have arrived)"
            lines.append(f"  {program.describe(stuck)} waits {what}")
        shown = "\n".join(lines[:12])
        more = f"\n  ... and {len(lines) - 12} more" if len(lines) > 12 else ""
        return (
            f"deadlock: {len(lines)} lanes wait for each other and nothing can happen any more\n{shown}{more}\n"
            "  Every send needs a receive, and all members of a group must run its collectives in the same order."
        )
