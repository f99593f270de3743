"""Plays a program with SimPy: a process per lane, meetings on the network; records when ops were ready, began, ended.

The engine knows no model, schedule, scenario or folding.  Imports the program, the network and the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import simpy

from simcluster.errors import InputError
from simcluster.lowering.program import Meeting, Program, RowTimes
from simcluster.simulating.network import Network
from simcluster.simulating.pacing import Flight, Pacing
from simcluster.simulating.stepwise import Stepwise

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


class _CountingEnvironment(simpy.Environment):
    """SimPy's environment with a count of the events played."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.played = 0

    def step(self) -> None:
        self.played += 1
        super().step()


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
        self._env = _CountingEnvironment()
        self._network = Network(self._env, capacity, program.capacities)
        self._pacing = Pacing(self._env, self._network, program)
        self._steps = steps
        count = len(program.seconds)
        self._ready = [0.0] * count
        self._start = [0.0] * count
        self._end = [0.0] * count
        self._last = list(range(count))
        self._done = bytearray(count)
        self._waiters: dict[int, list[simpy.Event]] = {}
        self._arrivals: dict[int, list[tuple[int, simpy.Event]]] = {}
        self._players: dict[int, tuple[Stepwise, dict[int, simpy.Event]]] = {}

    def run(self) -> Record:
        ranks = self._program.lane_rank
        lanes = [
            self._env.process(self._lane(ops, rank))
            for ops, rank in zip(self._program.lanes, ranks, strict=True)
            if ops
        ]
        self._env.run()
        if any(lane.is_alive for lane in lanes):
            raise DeadlockError(self._explain())
        return Record(
            ready=np.array(self._ready),
            start=np.array(self._start),
            end=np.array(self._end),
            last=np.array(self._last, dtype=np.int64),
            events=self._env.played,
            slowed=self._pacing.slowed,
        )

    def _lane(self, ops: Sequence[int], rank: int) -> Generator[simpy.Event, object, None]:
        """One in-order queue of a rank: wait for what the op needs, do it, tell who waits for it."""
        env, program, done = self._env, self._program, self._done
        seconds, after, meeting = program.seconds, program.after, program.meeting
        for op in ops:
            for other in after[op]:
                if not done[other]:
                    event = simpy.Event(env)
                    self._waiters.setdefault(other, []).append(event)
                    yield event
            self._ready[op] = self._start[op] = env.now
            if meeting[op] >= 0:
                yield self._meet(meeting[op], op)
            elif self._pacing.disturbs(rank, program.rows[op]):
                yield self._pacing.compute(op, rank, program.rows[op])
            else:
                yield simpy.Timeout(env, seconds[op])
            self._end[op] = env.now
            done[op] = 1
            if op in self._waiters:
                for event in self._waiters.pop(op):
                    event.succeed()

    def _meet(self, number: int, op: int) -> simpy.Event:
        """Arrive at a meeting; the event succeeds when the op's part in it is over."""
        meeting = self._program.meetings[number]
        over = simpy.Event(self._env)
        if meeting.steps >= 0:
            self._step_by_step(number, meeting, op, over)
            return over
        arrivals = self._arrivals.setdefault(number, [])
        arrivals.append((op, over))
        if len(arrivals) == meeting.parties:
            del self._arrivals[number]
            last = self._latest(arrivals)
            for member, _ in arrivals:
                self._start[member] = self._env.now
                self._last[member] = last
            flight = self._pacing.begin(meeting) if meeting.ranks else None
            self._move(meeting, 0, [event for _, event in arrivals], flight)
        return over

    def _latest(self, arrivals: Sequence[tuple[int, simpy.Event]]) -> int:
        """Of those that arrive now, the first op: it does not depend on the order of events."""
        return min(op for op, _ in arrivals if self._ready[op] == self._env.now)

    def _move(self, meeting: Meeting, index: int, over: Sequence[simpy.Event], flight: Flight | None) -> None:
        """Play a meeting's activities one after the other."""
        if index == len(meeting.traffics):
            if flight:
                self._pacing.finish(flight)
            for event in over:
                event.succeed()
            return

        def then() -> None:
            self._move(meeting, index + 1, over, flight)

        if flight:
            self._pacing.start(flight, index, then)
        else:
            self._network.start(meeting.traffics[index], then)

    def _step_by_step(self, number: int, meeting: Meeting, op: int, over: simpy.Event) -> None:
        """Arrive at a meeting whose members begin and end one by one."""
        position = self._program.position[op]
        if number not in self._players:
            waiting: dict[int, simpy.Event] = {}
            player = self._steps[meeting.steps](self._network, lambda done: waiting[done].succeed())
            self._players[number] = player, waiting
        player, waiting = self._players[number]
        waiting[position] = over
        arrivals = self._arrivals.setdefault(number, [])
        arrivals.append((op, over))
        if len(arrivals) == meeting.parties:
            del self._arrivals[number], self._players[number]
            last = self._latest(arrivals)
            for member, _ in arrivals:
                self._last[member] = last
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
                arrived = [program.describe(op) for op, _ in self._arrivals.get(program.meeting[stuck], [])]
                parties = program.meetings[program.meeting[stuck]].parties
                what = f"for the other members of its group ({len(arrived)} of {parties} have arrived)"
            lines.append(f"  {program.describe(stuck)} waits {what}")
        shown = "\n".join(lines[:12])
        more = f"\n  ... and {len(lines) - 12} more" if len(lines) > 12 else ""
        return (
            f"deadlock: {len(lines)} lanes wait for each other and nothing can happen any more\n{shown}{more}\n"
            "  Every send needs a receive, and all members of a group must run its collectives in the same order."
        )
