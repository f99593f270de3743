"""A program without shared links in one sweep: when everything begins and ends, for many cases of durations at once.

The same rules as the engine's, so the same times to the bit (durations lie on the clock's grid): an op follows the one
before it on its lane and those that it waits for; a meeting begins with its last arrival.  A tenth of a second where
events take a minute.  Imports the program, the clock's errors, numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simcluster.errors import InputError
from simcluster.program import Program

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Played:
    """Seconds per op and case, as the engine records them."""

    ready: Floats
    start: Floats
    end: Floats

    @property
    def total(self) -> Floats:
        """Seconds per case: the last end."""
        return np.asarray(self.end.max(axis=0, initial=0.0))


class LongestPath:
    """The order in which a program's ops can be timed; made once, used for many cases.

    Raises InputError for what needs the engine (transfers that share links, step by step, interference) and for ops
    that wait for each other.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._meeting_seconds = [_meeting_seconds(program, number) for number in range(len(program.meetings))]
        self._before = _before(program)
        self._order = _order(program, self._before)

    def __call__(self, seconds: Floats) -> Played:
        """Times for durations [op, case]; those of ops that meet are the meeting's own."""
        ready = np.zeros(seconds.shape)
        start, end = np.zeros(seconds.shape), np.zeros(seconds.shape)
        meeting = self._program.meeting
        for ops in self._order:
            for op in ops:
                before = self._before[op]
                if len(before) == 1:
                    ready[op] = end[before[0]]
                elif before:
                    ready[op] = end[before].max(axis=0)
            if meeting[ops[0]] < 0:
                op = ops[0]
                start[op] = ready[op]
                end[op] = ready[op] + seconds[op]
            else:
                start[ops] = ready[ops].max(axis=0)
                end[ops] = start[ops] + self._meeting_seconds[meeting[ops[0]]]
        return Played(ready, start, end)


def _meeting_seconds(program: Program, number: int) -> float:
    meeting = program.meetings[number]
    shared = any(traffic.usage or traffic.round_bytes for traffic in meeting.traffics)
    if meeting.steps >= 0 or meeting.pressure or meeting.drag or shared:
        raise InputError("longest path: transfers over links that others share need the engine's events")
    return sum(traffic.latency_seconds for traffic in meeting.traffics)


def _before(program: Program) -> list[list[int]]:
    """What every op waits for: the one before it on its lane, and those it names."""
    before = [list(others) for others in program.after]
    for ops in program.lanes:
        for one, other in pairwise(ops):
            before[other].append(one)
    return before


def _order(program: Program, before: list[list[int]]) -> list[list[int]]:
    """Ops so that each stands behind what it waits for; those that meet together (Kahn's algorithm)."""
    members: list[list[int]] = [[] for _ in program.meetings]
    for op, number in enumerate(program.meeting):
        if number >= 0:
            members[number].append(op)
    missing = [len(others) for others in before]
    absent = [meeting.parties for meeting in program.meetings]
    behind: list[list[int]] = [[] for _ in before]
    for op, others in enumerate(before):
        for other in others:
            behind[other].append(op)
    order: list[list[int]] = []
    free = [op for op, count in enumerate(missing) if not count]
    for op in free:  # grows while it is gone through
        number = program.meeting[op]
        if number >= 0:
            absent[number] -= 1
            if absent[number]:
                continue
        together = [op] if number < 0 else members[number]
        order.append(together)
        for done in together:
            for other in behind[done]:
                missing[other] -= 1
                if not missing[other]:
                    free.append(other)
    if sum(map(len, order)) < len(before):
        stuck = [op for op, count in enumerate(missing) if count] or list(range(len(before)))
        raise InputError(f"{len(stuck)} ops wait for each other, the first {program.describe(stuck[0])}")
    return order
