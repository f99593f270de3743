"""The ops of a played program one by one, in columns: what timelines, memory and metrics ask of them.

What ops wait for and whom they meet is not here: only a critical path and a search for who waited ask for that
(``expand.whole``), which takes several times as long.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Bools, Ints
from simcluster.base.profiles import Profile
from simcluster.programs.program import InStep, LockstepRegion, Program, SpanRow
from simcluster.programs.slowed import within


@dataclass(frozen=True, eq=False)
class ToldOps:
    """Columns over ops: the place of the op's rows in ``row_sets``, its lane, step, chunk and microbatch, and whether
    it ``met`` others.

    ``receives`` are transfer ops and the ops on the receiver that wait for them, ``speeds`` those of the program.
    """

    row_sets: Sequence[tuple[SpanRow, ...]] = field(repr=False)
    rows: Ints
    lane: Ints
    step: Ints
    chunk: Ints
    microbatch: Ints
    met: Bools
    receives: tuple[Ints, Ints]
    lane_rank: Ints
    lane_stage: Ints
    speeds: Mapping[int, Profile]

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def different_rows(self) -> tuple[list[tuple[SpanRow, ...]], Ints]:
        """The row sets that are objects of their own, in their order, and for every op the place of its own there."""
        different = {id(own): own for own in self.row_sets}
        place = {name: number for number, name in enumerate(different)}
        places = ints([place[id(own)] for own in self.row_sets])
        return list(different.values()), places[self.rows]


def told_ops(program: Program) -> ToldOps:
    """All ops of a program, those of its stretches one by one."""
    return Columns(program).told()


def first_ops(program: Program) -> Ints:
    """By op of a program the first of those that it stands for when all are counted one by one, and their number."""
    first = np.ones(len(program.seconds) + 1, dtype=np.int64)
    first[0] = 0
    members = [op + 1 for stretch in program.in_step for op in stretch.ops]
    first[members] = [len(part.lanes) for stretch in program.in_step for part in stretch.parts]
    return np.cumsum(first, out=first)


class Columns:
    """Columns of all ops: ``of`` is the op of the program that each belongs to, ``place`` its place there.

    ``first`` and ``last`` are those that an op of the program stands for.

    ``stretches`` that do the same are together, and of every part there are the ``members``: the ops whose it is.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        first = first_ops(program)
        counts = np.diff(first)
        self.first, self.last = first[:-1], first[1:] - 1
        self.of, self.place = np.repeat(np.arange(len(counts)), counts), within(counts)
        alike: dict[int, list[InStep]] = {}  # by the identity of their parts
        for stretch in program.in_step:
            alike.setdefault(id(stretch.parts), []).append(stretch)
        self.stretches = list(alike.values())
        members: dict[int, tuple[LockstepRegion, list[int]]] = {}  # by the identity of the part
        for own in self.stretches:
            for part, *ops in zip(own[0].parts, *[stretch.ops for stretch in own], strict=True):
                members.setdefault(id(part), (part, []))[1].extend(ops)
        self.members = list(members.values())

    def told(self) -> ToldOps:
        """What is told of them."""
        program = self.program
        rows, row_sets = self._rows()
        sends, receivers = np.array(program.receives, dtype=np.int64).reshape(-1, 2).T
        return ToldOps(
            row_sets=row_sets,
            rows=rows,
            lane=self._lanes(),
            step=self.repeated(program.step),
            chunk=self.repeated(program.chunk),
            microbatch=self.repeated(program.microbatch),
            met=self._met(),
            receives=(self.last[sends], self.first[receivers]),
            lane_rank=ints(program.lane_rank),
            lane_stage=ints(program.lane_stage),
            speeds=program.speeds,
        )

    def repeated(self, column: Sequence[int]) -> Ints:
        """A column with what it says of a stretch said of all ops of that."""
        return np.asarray(ints(column)[self.of])

    def inside(self, ops: Sequence[int], part: LockstepRegion) -> Ints:
        """The ops of a part of these members [member, op]."""
        first: Ints = self.first[ints(ops)]
        return first[:, None] + np.arange(len(part.lanes))

    def _lanes(self) -> Ints:
        program = self.program
        own = ints(program.lane)
        found, rank_of = own[self.of], ints(program.lane_rank)[own]
        lane_of = {name: lane for lane, name in enumerate(zip(program.lane_rank, program.lane_name, strict=True))}
        for part, ops in self.members:
            ranks, which = np.unique(rank_of[ops], return_inverse=True)
            lanes = np.array([[lane_of[rank, name] for name in part.lanes] for rank in ranks.tolist()])
            found[self.inside(ops, part)] = lanes[which]
        return found

    def _rows(self) -> tuple[Ints, list[tuple[SpanRow, ...]]]:
        """The numbers of the ops' row sets, and these."""
        program = self.program
        inside = {program.rows[op]: part.rows for part, ops in self.members for op in ops}  # no others have them
        counts = [len(inside.get(number, "1")) for number in range(len(program.row_sets))]
        first = np.cumsum([0, *counts])
        sets = [own for number, rows in enumerate(program.row_sets) for own in inside.get(number, (rows,))]
        return first[ints(program.rows)][self.of] + self.place, sets

    def _met(self) -> Bools:
        found = (ints(self.program.meeting) >= 0)[self.of]
        for part, ops in self.members:
            found[self.inside(ops, part)] = [meeting is not None for meeting in part.meetings]
        return np.asarray(found)


def ints(values: Sequence[int]) -> Ints:
    """As a column."""
    return np.array(values, dtype=np.int64)
