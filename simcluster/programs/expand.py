"""Expansion of lockstep regions into single ops, as whoever measures wants them; the engine plays none.

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
from simcluster.programs.program import InStep, LockstepRegion, Meeting, Program, SpanRow
from simcluster.programs.slowed import within


def first_ops(program: Program) -> Ints:
    """By op of a program the first of those that it stands for when all are counted one by one, and their number."""
    first = np.ones(len(program.seconds) + 1, dtype=np.int64)
    first[0] = 0
    members = [op + 1 for stretch in program.in_step for op in stretch.ops]
    first[members] = [len(part.lanes) for stretch in program.in_step for part in stretch.parts]
    return np.cumsum(first, out=first)


@collector_off()
def whole(program: Program) -> Program:
    """The program with every op of its stretches by itself, numbered in the same order; itself if it has none."""
    return _Whole(program).program() if program.in_step else program


class _Whole:
    """Columns of all ops: ``of`` is the op of the program that each belongs to, ``place`` its place there."""

    def __init__(self, program: Program) -> None:
        self._program = program
        first = first_ops(program)
        counts = np.diff(first)
        self._first, self._last = first[:-1], first[1:] - 1
        self._of, self._place = np.repeat(np.arange(len(counts)), counts), within(counts)
        self._stretches: dict[int, list[InStep]] = {}  # by the identity of their parts
        for stretch in program.in_step:
            self._stretches.setdefault(id(stretch.parts), []).append(stretch)
        self._parts: dict[int, tuple[LockstepRegion, list[int]]] = {}  # by their identity, and whose they are
        for alike in self._stretches.values():
            for part, *ops in zip(alike[0].parts, *[stretch.ops for stretch in alike], strict=True):
                self._parts.setdefault(id(part), (part, []))[1].extend(ops)

    def program(self) -> Program:
        """All of it."""
        program = self._program
        lane = self._lanes()
        rows, row_sets = self._rows()
        meeting, meetings = self._meetings(rows, row_sets)
        sends, receivers = np.array(program.receives, dtype=np.int64).reshape(-1, 2).T
        return replace(
            program,
            seconds=self._seconds(),
            meeting=meeting,
            position=self._repeated(program.position).tolist(),
            after=self._after(),
            lane=_objects(range(len(program.lanes)))[lane].tolist(),
            rows=rows.tolist(),
            step=self._repeated(program.step).tolist(),
            chunk=self._repeated(program.chunk).tolist(),
            microbatch=self._repeated(program.microbatch).tolist(),
            lanes=_by_lane(lane, len(program.lanes)),
            meetings=meetings,
            row_sets=row_sets,
            receives=list(zip(self._last[sends].tolist(), self._first[receivers].tolist(), strict=True)),
            in_step=[],
        )

    def _repeated(self, column: Sequence[int]) -> Ints:
        """A column with what it says of a stretch said of all ops of that."""
        return np.asarray(np.array(column, dtype=np.int64)[self._of])

    def _inside(self, ops: Sequence[int], part: LockstepRegion) -> Ints:
        """The ops of a part of these members [member, op]."""
        first: Ints = self._first[np.array(ops, dtype=np.int64)]
        return first[:, None] + np.arange(len(part.lanes))

    def _seconds(self) -> list[float]:
        found = _objects(self._program.seconds)[self._of]
        for part, ops in self._parts.values():
            found[self._inside(ops, part)] = _objects(part.seconds)
        own: list[float] = found.tolist()
        return own

    def _lanes(self) -> Ints:
        program = self._program
        own = np.array(program.lane, dtype=np.int64)
        found, rank_of = own[self._of], np.array(program.lane_rank, dtype=np.int64)[own]
        lane_of = {name: lane for lane, name in enumerate(zip(program.lane_rank, program.lane_name, strict=True))}
        for part, ops in self._parts.values():
            ranks, which = np.unique(rank_of[ops], return_inverse=True)
            lanes = np.array([[lane_of[rank, name] for name in part.lanes] for rank in ranks.tolist()])
            found[self._inside(ops, part)] = lanes[which]
        return found

    def _after(self) -> list[tuple[int, ...]]:
        """What every op waits for: of a stretch what is awaited before it, and inside, from its first op on."""
        last, first = self._last.tolist(), self._first.tolist()
        inside = {op: part.after for part, ops in self._parts.values() for op in ops}
        found: list[tuple[int, ...]] = []
        for op, others in enumerate(self._program.after):
            found.append(tuple([last[other] for other in others]) if others else ())
            if op in inside:
                begin = first[op]
                found += [tuple([begin + place for place in own]) if own else () for own in inside[op][1:]]
        return found

    def _rows(self) -> tuple[Ints, list[tuple[SpanRow, ...]]]:
        """The numbers of the ops' row sets, and these."""
        program = self._program
        inside = {
            program.rows[op]: part.rows for part, ops in self._parts.values() for op in ops
        }  # no others have them
        counts = [len(inside.get(number, "1")) for number in range(len(program.row_sets))]
        first = np.cumsum([0, *counts])
        sets = [own for number, rows in enumerate(program.row_sets) for own in inside.get(number, (rows,))]
        return first[np.array(program.rows, dtype=np.int64)][self._of] + self._place, sets

    def _meetings(self, rows: Ints, row_sets: Sequence[tuple[SpanRow, ...]]) -> tuple[list[int], list[Meeting]]:
        """The meeting of every op, numbered in the order of the ops that make them, and all meetings."""
        program = self._program
        meetings = [*program.meetings]
        number = self._repeated(program.meeting)
        for alike in self._stretches.values():
            part = alike[0].parts[0]
            own = [meeting for meeting in part.meetings if meeting is not None]
            numbers = np.full((len(alike), len(part.lanes)), -1)
            places = [place for place, meeting in enumerate(part.meetings) if meeting is not None]
            numbers[:, places] = len(meetings) + np.arange(len(alike) * len(own)).reshape(len(alike), -1)
            meetings += own * len(alike)
            for ops in zip(*[stretch.ops for stretch in alike], strict=True):
                number[self._inside(ops, part)] = numbers
        receives = np.array([not each for each in row_sets])[rows]  # the sender makes the meeting
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
