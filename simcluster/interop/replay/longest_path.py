"""Fast replay of recorded jobs: longest paths through a program's ops, for many sets of op durations at once.

The rules are the engine's, so the times are equal to the bit (durations lie on the clock's grid): an op follows the one
before it on its lane and those that it waits for; ops that meet begin at the last arrival. Ops are timed level by
level, each after all that it waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simcluster.base.arrays import Floats, Ints, concat_ranges
from simcluster.engine.explicit_program import ExplicitProgram
from simcluster.engine.op_times import previous_op_on_lane
from simcluster.engine.run import simulate_tables
from simcluster.engine.tables import CommunicationKind
from simcluster.traffic.traffic import Traffic

_LEVEL_SECONDS = 2.0**-20
"""Seconds per level: millions of them stay on the clock's grid."""
_LEVEL_TRAFFIC = Traffic((), 0.0, 1, _LEVEL_SECONDS)


@dataclass(frozen=True)
class ReplayedOpTimes:
    """Replayed times (s) of all ops: ready, start and end; one array column per set of op durations."""

    ready: Floats
    start: Floats
    end: Floats


class LongestPath:
    """Longest-path solver for one program: sorts the ops once, then computes times for many sets of durations.

    Messages and collectives take the latency of their traffics alone. Raises DeadlockError if ops wait for each other.
    """

    def __init__(self, program: ExplicitProgram) -> None:
        count = len(program.seconds)
        meeting = np.array(program.meeting, dtype=np.int64)
        shared = np.array([each.parties > 1 for each in program.meetings] + [False])
        named = np.where(shared[meeting], count + meeting, np.arange(count))  # ops that meet are one node
        _, first, node = np.unique(named, return_index=True, return_inverse=True)
        depth, op, other = _find_depths_and_waits(program)
        self._levels, place = _build_levels(node[op], node[other], depth[first])
        self._node = place[node]
        self._first = np.empty(len(first), dtype=np.int64)
        self._first[place] = first
        meeting = meeting[self._first]
        self._meets = np.flatnonzero(meeting >= 0)
        takes = [sum(each.latency_seconds for each in own.traffics) for own in program.meetings]
        self._meeting_seconds = np.array(takes)[meeting[self._meets]][:, None]
        counts = np.bincount(op, minlength=count)
        meets = np.bincount(node, minlength=len(first))[node] > 1
        self._waiting, self._opening = np.flatnonzero(meets & (counts > 0)), np.flatnonzero(meets & (counts == 0))
        self._awaited = self._node[other[meets[op]]]
        of_waiting = counts[self._waiting]
        self._offsets = np.cumsum(of_waiting) - of_waiting if len(of_waiting) else None

    def __call__(self, seconds: Floats) -> ReplayedOpTimes:
        """Compute the times of all ops; each column of ``seconds`` [op, column] is one set of op durations."""
        start, end = self._start_and_end_times(seconds)
        ready = start[self._node]  # except for ops of meetings that wait for others
        if self._offsets is not None:
            ready[self._waiting] = np.maximum.reduceat(end[self._awaited], self._offsets, axis=0)
        ready[self._opening] = 0.0
        return ReplayedOpTimes(ready, start[self._node], end[self._node])

    def total_seconds(self, seconds: Floats) -> Floats:
        """Compute only the total time (s) for each set of op durations (a column of ``seconds``)."""
        return np.asarray(self._start_and_end_times(seconds)[1].max(axis=0))

    def _start_and_end_times(self, seconds: Floats) -> tuple[Floats, Floats]:
        count, cases = len(self._first), seconds.shape[1]
        start, end = np.zeros((count + 1, cases)), np.zeros((count + 1, cases))
        end[:count] = seconds[self._first]  # durations, until the ends are known
        end[self._meets] = self._meeting_seconds
        for low, high, awaited in self._levels:
            begin = start[low:high]
            end.take(awaited, axis=0).max(axis=0, out=begin)
            end[low:high] += begin
        return start, end


def _find_depths_and_waits(program: ExplicitProgram) -> tuple[Ints, Ints, Ints]:
    """Return the length of the longest chain before each op, and all (op, awaited op) pairs.

    An op waits for its predecessor on the lane, and for the ops in its ``after``.
    """
    unit = {each.parties: CommunicationKind(each.parties, [_LEVEL_TRAFFIC]) for each in program.meetings}
    meetings = [unit[each.parties] for each in program.meetings]
    tables = replace(program, seconds=[_LEVEL_SECONDS] * len(program.seconds), meetings=meetings).make_tables([])
    ranks = [program.lane_rank[lane] for lane in program.lane]
    times = simulate_tables(tables, lambda op: f"rank {ranks[op]}", keeps_times=True).times
    before = previous_op_on_lane(tables.templates)
    follows = np.flatnonzero(before >= 0)
    op = np.append(np.repeat(np.arange(len(before)), np.diff(tables.templates.wait_first)), follows)
    order = np.argsort(op, kind="stable")
    awaited = np.append(tables.templates.wait_op, before[follows])[order].astype(np.int64)
    return np.rint(times.start / _LEVEL_SECONDS).astype(np.int64), op[order].astype(np.int64), awaited


Level = tuple[int, int, Ints]
"""Nodes ``low`` to ``high``, and the nodes that they wait for, one column each; padded with the node after all others,
which represents time zero."""


_MAX_NARROW = 8
"""Nodes that wait for more nodes than this (a collective of many ranks) get a separate level, since all rows of a
level are as wide as the widest."""


def _build_levels(node: Ints, awaited: Ints, depth: Ints) -> tuple[list[Level], Ints]:
    """Group nodes into levels that wait only for earlier levels; return levels (first omitted) and node positions.

    ``depth`` is the longest chain of nodes before a node.
    """
    count = len(depth)
    pairs = np.sort(node * count + awaited)  # np.unique hashes whole numbers, which takes thirty times as long
    node, awaited = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], max(count, 1))
    counts = np.bincount(node, minlength=count)
    depth = 2 * depth + (counts > _MAX_NARROW)
    place = np.empty(count, dtype=np.int64)
    place[np.argsort(depth, kind="stable")] = np.arange(count)
    wide = np.bincount(depth)
    high = np.cumsum(wide)
    low, most = high - wide, np.zeros(len(wide), dtype=np.int64)
    np.maximum.at(most, depth, counts)
    begin = np.cumsum(most * wide) - most * wide
    column = concat_ranges(counts)
    filled = np.full(int((most * wide).sum()), count, dtype=np.int64)
    filled[(begin - low)[depth[node]] + column * wide[depth[node]] + place[node]] = place[awaited]
    bounds = zip(low.tolist(), high.tolist(), most.tolist(), begin.tolist(), strict=True)
    return [(one, end, filled[at : at + n * (end - one)].reshape(n, -1)) for one, end, n, at in bounds if n], place
