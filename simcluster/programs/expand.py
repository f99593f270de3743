"""Expansion of lockstep regions into single ops, as whoever measures wants them; the engine plays none.

One slow GPU of 16,384 (Llama 3 405B): 34,304 ops are played and stand for 276,544, which take 0.2 s to tell one by one.
512 ranks, each played by itself: 274,432 for 2,212,352.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.gc_paused import collector_off
from simcluster.programs.program import LockstepRegion, Meeting, Program, SpanRow

_T = TypeVar("_T")


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
    def __init__(self, program: Program) -> None:
        self._program = program
        first = first_ops(program)
        self._first, self._last = first[:-1].tolist(), (first[1:] - 1).tolist()
        members = [pair for stretch in program.in_step for pair in zip(stretch.ops, stretch.parts, strict=True)]
        self._members = sorted(members, key=lambda pair: pair[0])
        self._lane_of = {name: lane for lane, name in enumerate(zip(program.lane_rank, program.lane_name, strict=True))}

    def program(self) -> Program:
        """All of it."""
        program, last = self._program, self._last
        lane = self._spread(program.lane, self._lanes)
        rows, row_sets = self._rows()
        meeting, meetings = self._meetings(rows, row_sets)
        after = [tuple([last[other] for other in others]) if others else () for others in program.after]
        return replace(
            program,
            seconds=self._spread(program.seconds, lambda _, part: part.seconds),
            meeting=meeting,
            position=self._repeated(program.position),
            after=self._spread(after, lambda op, part: [after[op], *self._inside(op, part)]),
            lane=lane,
            rows=rows,
            step=self._repeated(program.step),
            chunk=self._repeated(program.chunk),
            microbatch=self._repeated(program.microbatch),
            lanes=_by_lane(lane, len(program.lanes)),
            meetings=meetings,
            row_sets=row_sets,
            receives=[(last[send], self._first[op]) for send, op in program.receives],
            in_step=[],
        )

    def _spread(self, column: Sequence[_T], own: Callable[[int, LockstepRegion], Iterable[_T]]) -> list[_T]:
        """A column with what is ``own`` to the ops of a stretch in the place of what is said of it."""
        found: list[_T] = []
        done = 0
        for op, part in self._members:
            found += column[done:op]
            found += own(op, part)
            done = op + 1
        found += column[done:]
        return found

    def _repeated(self, column: Sequence[int]) -> list[int]:
        return self._spread(column, lambda op, part: [column[op]] * len(part.lanes))

    def _lanes(self, op: int, part: LockstepRegion) -> list[int]:
        rank = self._program.lane_rank[self._program.lane[op]]
        return [self._lane_of[rank, name] for name in part.lanes]

    def _inside(self, op: int, part: LockstepRegion) -> list[tuple[int, ...]]:
        """What the ops behind the first one wait for."""
        first = self._first[op]
        return [tuple([first + place for place in places]) for places in part.after[1:]]

    def _rows(self) -> tuple[list[int], list[tuple[SpanRow, ...]]]:
        """The numbers of the ops' row sets, and these."""
        program = self._program
        inside = {program.rows[op]: part.rows for op, part in self._members}  # nobody else has these rows
        counts = [len(inside.get(number, "1")) for number in range(len(program.row_sets))]
        first = [0, *accumulate(counts)]
        sets = [own for number, rows in enumerate(program.row_sets) for own in inside.get(number, (rows,))]
        numbers = [first[number] for number in program.rows]
        return self._spread(numbers, lambda op, part: range(numbers[op], numbers[op] + len(part.rows))), sets

    def _meetings(
        self, rows: Sequence[int], row_sets: Sequence[tuple[SpanRow, ...]]
    ) -> tuple[list[int], list[Meeting]]:
        """The meeting of every op, numbered in the order of the ops that make them, and all meetings."""
        program = self._program
        meetings = [*program.meetings]
        inside = []  # by stretch, of its ops
        for stretch in program.in_step:
            own = [-1] * len(stretch.parts[0].lanes)
            for place, meeting in enumerate(stretch.parts[0].meetings):
                if meeting is not None:
                    own[place] = len(meetings)
                    meetings.append(meeting)
            inside.append(own)
        number = np.array(self._spread(program.meeting, lambda op, _: inside[-2 - program.meeting[op]]))
        receives = np.array([not each for each in row_sets])[rows]  # the sender makes the meeting
        made, first = np.unique(np.where(receives, -1, number), return_index=True)
        order = made[np.argsort(first)]
        order = order[order >= 0]
        numbers = np.full(len(meetings) + 1, -1)  # the last for those that meet nobody
        numbers[order] = np.arange(len(order))
        found = [*range(len(order)), -1]  # one object for all that meet
        return [found[each] for each in numbers[number].tolist()], [meetings[each] for each in order.tolist()]


def _by_lane(lane: Sequence[int], count: int) -> list[list[int]]:
    """The ops of every lane."""
    numbers = np.array(lane)
    ends = np.cumsum(np.bincount(numbers, minlength=count))
    return [ops.tolist() for ops in np.split(np.argsort(numbers, kind="stable"), ends[:-1])]
