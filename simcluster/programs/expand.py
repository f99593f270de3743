"""Expansion of lockstep regions into single ops, which measurements read; the engine plays none.

One slow GPU of 16,384 (Llama 3 405B): 34,304 ops are played and stand for 276,544, which take 0.2 s to tell one by one.
512 ranks, each played by itself: 274,432 for 2,212,352.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Ints
from simcluster.base.gc_paused import collector_off
from simcluster.programs.program import Meeting, Program
from simcluster.programs.told_ops import Columns, ToldOps


@collector_off()
def whole(program: Program, told: ToldOps | None = None) -> Program:
    """The program with every op of its stretches by itself, numbered in the same order; itself if it has none.

    ``told`` is what ``told_ops`` says of it, where that is known.
    """
    return _Whole(program, told).program() if program.in_step else program


class _Whole:
    """Columns of all ops, as lists of one object each."""

    def __init__(self, program: Program, told: ToldOps | None) -> None:
        self._columns = columns = Columns(program)
        self._program, self._told = program, told or columns.told()
        self._first, self._last = columns.first, columns.last

    def program(self) -> Program:
        """All of it."""
        program, columns, told = self._program, self._columns, self._told
        meeting, meetings = self._meetings()
        return replace(
            program,
            seconds=self._seconds(),
            meeting=meeting,
            position=columns.repeated(program.position).tolist(),
            after=self._after(),
            lane=_objects(range(len(program.lanes)))[told.lane].tolist(),
            rows=told.rows.tolist(),
            step=told.step.tolist(),
            chunk=told.chunk.tolist(),
            microbatch=told.microbatch.tolist(),
            lanes=_by_lane(told.lane, len(program.lanes)),
            meetings=meetings,
            row_sets=list(told.row_sets),
            receives=list(zip(*(each.tolist() for each in told.receives), strict=True)),
            in_step=[],
        )

    def _seconds(self) -> list[float]:
        found = _objects(self._program.seconds)[self._columns.of]
        for part, ops in self._columns.members:
            found[self._columns.inside(ops, part)] = _objects(part.seconds)
        own: list[float] = found.tolist()
        return own

    def _after(self) -> list[tuple[int, ...]]:
        """What every op waits for: of a stretch what is awaited before it, and inside, from its first op on."""
        last, first = self._last.tolist(), self._first.tolist()
        inside = {op: part.after for part, ops in self._columns.members for op in ops}
        found: list[tuple[int, ...]] = []
        for op, others in enumerate(self._program.after):
            found.append(tuple([last[other] for other in others]) if others else ())
            if op in inside:
                begin = first[op]
                found += [tuple([begin + place for place in own]) if own else () for own in inside[op][1:]]
        return found

    def _meetings(self) -> tuple[list[int], list[Meeting]]:
        """The meeting of every op, numbered in the order of the ops that make them, and all meetings."""
        program = self._program
        meetings = [*program.meetings]
        number = self._columns.repeated(program.meeting)
        for alike in self._columns.stretches:
            part = alike[0].parts[0]
            own = [meeting for meeting in part.meetings if meeting is not None]
            numbers = np.full((len(alike), len(part.lanes)), -1)
            places = [place for place, meeting in enumerate(part.meetings) if meeting is not None]
            numbers[:, places] = len(meetings) + np.arange(len(alike) * len(own)).reshape(len(alike), -1)
            meetings += own * len(alike)
            for ops in zip(*[stretch.ops for stretch in alike], strict=True):
                number[self._columns.inside(ops, part)] = numbers
        receives = np.array([not each for each in self._told.row_sets])[self._told.rows]  # the sender makes the meeting
        made, first = np.unique(np.where(receives, -1, number), return_index=True)
        order = made[np.argsort(first)]
        order = order[order >= 0]
        place = np.full(len(meetings) + 1, -1)  # the last for those that meet nobody
        place[order] = np.arange(len(order))
        found: list[int] = _objects([*range(len(order)), -1])[place[number]].tolist()
        return found, [meetings[each] for each in order.tolist()]


def _objects(values: Sequence[object]) -> npt.NDArray[np.object_]:
    """Of which every op that has one names the same object: there are millions of ops."""
    return np.array(values, dtype=np.object_)


def _by_lane(lane: Ints, count: int) -> list[list[int]]:
    """The ops of every lane."""
    ends = np.cumsum(np.bincount(lane, minlength=count))
    return [ops.tolist() for ops in np.split(np.argsort(lane, kind="stable"), ends[:-1])]
