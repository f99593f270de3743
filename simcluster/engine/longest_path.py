"""A program as one longest path: when everything begins and ends, without events.  An accelerator of the engine.

The same rules as the engine's, so the same times to the bit (durations lie on the clock's grid): an op follows the one
before it on its lane and those that it waits for; a meeting begins with its last arrival and takes what its transfers
take with their links to themselves.  Whether they have, ``overlaps`` tells from the times that come out
(MODELLING.md I.5).  One case goes op by op (``Once``); many cases of durations, of recorded jobs, go level by level,
each behind all that it waits for (``LongestPath``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.errors import InputError
from simcluster.base.telling import phase
from simcluster.programs.program import Program
from simcluster.traffic.traffic import Traffic


class NeedsEventsError(InputError):
    """What is no longest path; the message says why."""


@dataclass(frozen=True)
class PathTimes:
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

    Raises NeedsEventsError for what is no longest path (step by step, interference, speeds that change, transfers over
    links), InputError for ops that wait for each other.
    """

    def __init__(self, program: Program) -> None:
        own, count = meeting_seconds(program, None), len(program.seconds)
        unit = Once(replace(program, seconds=[1.0] * count), [1.0] * len(own))  # starts are how many are before
        meeting = np.array(program.meeting, dtype=np.int64)
        shared = np.array([meeting.parties > 1 for meeting in program.meetings] + [False])
        named = np.where(shared[meeting], count + meeting, np.arange(count))  # ops that meet are one node
        _, first, node = np.unique(named, return_index=True, return_inverse=True)
        op, other = _waits(program)
        self._levels, place = _levels(node[op], node[other], np.array(unit.start, dtype=np.int64)[first])
        self._node = place[node]
        self._first = np.empty(len(first), dtype=np.int64)
        self._first[place] = first
        meeting = meeting[self._first]
        self._meets = np.flatnonzero(meeting >= 0)
        self._meeting_seconds = np.array(own)[meeting[self._meets]][:, None]
        counts = np.bincount(op, minlength=count)
        meets = np.bincount(node, minlength=len(first))[node] > 1
        self._waiting, self._opening = np.flatnonzero(meets & (counts > 0)), np.flatnonzero(meets & (counts == 0))
        self._awaited = self._node[other[meets[op]]]
        of_waiting = counts[self._waiting]
        self._offsets = np.cumsum(of_waiting) - of_waiting if len(of_waiting) else None

    def __call__(self, seconds: Floats) -> PathTimes:
        """Times for durations [op, case]; those of ops that meet are the meeting's own."""
        start, end = self._sweep(seconds)
        ready = start[self._node]  # of all but those that wait for others in a meeting
        if self._offsets is not None:
            ready[self._waiting] = np.maximum.reduceat(end[self._awaited], self._offsets, axis=0)
        ready[self._opening] = 0.0
        return PathTimes(ready, start[self._node], end[self._node])

    def total(self, seconds: Floats) -> Floats:
        """Seconds per case until everything is over: as the total of what the call returns, and less work."""
        return np.asarray(self._sweep(seconds)[1].max(axis=0))

    def _sweep(self, seconds: Floats) -> tuple[Floats, Floats]:
        """Start and end of every node; the last one is the beginning of time."""
        count, cases = len(self._first), seconds.shape[1]
        start, end = np.zeros((count + 1, cases)), np.zeros((count + 1, cases))
        end[:count] = seconds[self._first]  # durations, until the ends are known
        end[self._meets] = self._meeting_seconds
        for low, high, awaited in self._levels:
            begin = start[low:high]
            end.take(awaited, axis=0).max(axis=0, out=begin)
            end[low:high] += begin
        return start, end


def alone_seconds(traffic: Traffic, capacity: Sequence[float] | None) -> float:
    """What a transfer takes with its links to itself, as the network would have it."""
    if not traffic.usage and not traffic.round_bytes:
        return traffic.latency_seconds
    if capacity is None:
        raise NeedsEventsError("longest path: transfers over links that others share need the engine's events")
    if traffic.round_bytes and traffic.alone_rate(capacity) <= 0:
        raise NeedsEventsError("a transfer crosses a link that carries nothing")
    return traffic.alone_seconds(capacity) if traffic.round_bytes else traffic.latency_seconds


def meeting_seconds(program: Program, capacity: Sequence[float] | None) -> list[float]:
    """What every meeting takes once all have arrived; NeedsEventsError where that depends on what is beside it."""
    for name, _ in _others(program, _OF_PROGRAM):
        if getattr(program, name):
            raise NeedsEventsError(_WHY.get(name, f"the program has {name}"))
    known: dict[int, float] = {}  # by the identity of the traffics, which meetings share
    found = []
    for meeting in program.meetings:
        for name, nothing in _others(meeting, _OF_MEETING):
            if getattr(meeting, name) != nothing:
                raise NeedsEventsError(_WHY.get(name, f"a meeting has {name}"))
        seconds = known.get(id(meeting.traffics))
        if seconds is None:
            seconds = sum(alone_seconds(traffic, capacity) for traffic in meeting.traffics)
            known[id(meeting.traffics)] = seconds
        found.append(seconds)
    return found


_OF_PROGRAM = frozenset((
    "seconds", "meeting", "position", "after", "lane", "rows", "step", "chunk", "microbatch", "lanes", "lane_rank",
    "lane_name", "lane_stage", "meetings", "row_sets", "traffics", "receives", "in_step",
))  # fmt: skip
"""Columns of a program that a longest path goes by, or that change no time (``whole`` has unfolded ``in_step``)."""
_OF_MEETING = frozenset(("parties", "traffics", "ranks"))
_WHY = {
    **dict.fromkeys(("speeds", "capacities"), "GPUs or links change their speed as time goes on (faults)"),
    "steps": "collectives are played step by step",
    **dict.fromkeys(("pressure", "drag"), "communication slows down the computation beside it (overlap.interference)"),
}


def _others(thing: object, known: frozenset[str]) -> tuple[tuple[str, object], ...]:
    """Fields that a longest path does not go by, with what they are where nothing is said."""
    kind: Any = type(thing)
    return _others_of(kind, known)


@cache
def _others_of(kind: Any, known: frozenset[str]) -> tuple[tuple[str, object], ...]:
    return tuple((each.name, each.default) for each in fields(kind) if each.name not in known)


class Once:
    """One case, op by op: as fast as it can be found in which ``order`` ops can be timed (lists of those that meet).

    Lanes are gone along until an op waits for one that has no end yet; whichever lane comes first, times are the same.
    ``last`` is the op that arrived last at an op's meeting, of equals the first; itself elsewhere.  Raises InputError
    for ops that wait for each other.
    """

    def __init__(self, program: Program, meeting_seconds: Sequence[float]) -> None:
        count = len(program.seconds)
        self.ready, self.start, self.end = [0.0] * count, [0.0] * count, [-1.0] * count
        self.last = list(range(count))
        self.order: list[int | list[int]] = []
        self._program = program
        self._meeting_seconds = meeting_seconds
        alone = [meeting.parties == 1 for meeting in program.meetings]  # as if they were computed
        met = enumerate(program.meeting)
        self._meets = [-1 if number < 0 or alone[number] else number for number in program.meeting]
        self._seconds = [
            program.seconds[op] if number < 0 or not alone[number] else meeting_seconds[number] for op, number in met
        ]
        self._next = [0] * len(program.lanes)
        self._free = [0.0] * len(program.lanes)
        self._waiting: dict[int, list[int]] = {}  # lanes by the op that their next one waits for
        self._arrived: dict[int, list[int]] = {}  # by meeting
        self._todo = list(range(len(program.lanes)))
        with phase(lambda: f"simulating, {1 - self.end.count(-1.0) / max(count, 1):.0%} of ops done"):
            self._go_on()
        if min(self.end, default=0.0) < 0:
            stuck = [op for op, end in enumerate(self.end) if end < 0]
            raise InputError(f"{len(stuck)} ops wait for each other, the first {program.describe(stuck[0])}")

    def _go_on(self) -> None:
        """Along lanes as far as they go."""
        program, ready, start, end = self._program, self.ready, self.start, self.end
        after, meeting, seconds, lanes = program.after, self._meets, self._seconds, program.lanes
        order, waiting, todo, reached, free = self.order, self._waiting, self._todo, self._next, self._free
        while todo:
            lane = todo.pop()
            ops, now = lanes[lane], free[lane]
            for at in range(reached[lane], len(ops)):
                op = ops[at]
                begin = now
                for other in after[op]:
                    done = end[other]
                    if done < 0:
                        waiting.setdefault(other, []).append(lane)
                        reached[lane], free[lane] = at, now
                        break
                    if done > begin:
                        begin = done
                else:
                    ready[op] = start[op] = begin
                    if meeting[op] < 0:
                        now = end[op] = begin + seconds[op]
                        order.append(op)
                        if op in waiting:
                            todo += waiting.pop(op)
                        continue
                    reached[lane] = at + 1
                    self._meet(meeting[op], op)
                break

    def _meet(self, number: int, op: int) -> None:
        """Arrive; with the last one the meeting is timed, and all go on."""
        members = self._arrived.setdefault(number, [])
        members.append(op)
        if len(members) < self._program.meetings[number].parties:
            return
        ready, lanes = self.ready, self._program.lane
        begin = max([ready[member] for member in members])
        last = min([member for member in members if ready[member] == begin])
        over = begin + self._meeting_seconds[number]
        for member in members:
            self.start[member], self.end[member], self.last[member] = begin, over, last
            self._free[lanes[member]] = over
            self._todo.append(lanes[member])
            if member in self._waiting:
                self._todo += self._waiting.pop(member)
        self.order.append(members)


def _waits(program: Program) -> tuple[Ints, Ints]:
    """Pairs of an op and one that it waits for, the one before it on its lane or one that it names; by the first."""
    named = [(op, other) for op, others in enumerate(program.after) if others for other in others]
    parts = [np.array(named, dtype=np.int64).reshape(-1, 2)]
    lanes = [np.array(ops) for ops in program.lanes if len(ops) > 1]
    parts += [np.stack([ops[1:], ops[:-1]], axis=1) for ops in lanes]
    pairs = np.concatenate(parts)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    return pairs[:, 0], pairs[:, 1]


Level = tuple[int, int, Ints]
"""Nodes ``low`` to ``high``, and the nodes that they wait for, one column each; short ones filled up with the beginning
of time, which is the node behind all others."""


_WIDE = 8
"""What waits for more than so many nodes, as a collective of many ranks does, is on a level apart from those that wait
for few: all of a level are as wide as its widest."""


def _levels(node: Ints, awaited: Ints, depth: Ints) -> tuple[list[Level], Ints]:
    """The levels behind the first, and the place of each node, by how many are at most before it.

    Pairs of a node and one that it waits for.
    """
    count = len(depth)
    pairs = np.sort(node * count + awaited)  # np.unique hashes whole numbers, which takes thirty times as long
    node, awaited = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], max(count, 1))
    counts = np.bincount(node, minlength=count)
    depth = 2 * depth + (counts > _WIDE)
    place = np.empty(count, dtype=np.int64)
    place[np.argsort(depth, kind="stable")] = np.arange(count)
    wide = np.bincount(depth)
    high = np.cumsum(wide)
    low, most = high - wide, np.zeros(len(wide), dtype=np.int64)
    np.maximum.at(most, depth, counts)
    begin = np.cumsum(most * wide) - most * wide
    column = np.arange(len(awaited)) - np.repeat(np.cumsum(counts) - counts, counts)
    filled = np.full(int((most * wide).sum()), count, dtype=np.int64)
    filled[(begin - low)[depth[node]] + column * wide[depth[node]] + place[node]] = place[awaited]
    bounds = zip(low.tolist(), high.tolist(), most.tolist(), begin.tolist(), strict=True)
    return [(one, end, filled[at : at + n * (end - one)].reshape(n, -1)) for one, end, n, at in bounds if n], place
