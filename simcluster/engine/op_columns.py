"""Ops of stage programs in columns: every segment is read once, and every program costs some numpy copies.

``SegmentOps`` collects the ops of all segments of a job; an ``OpColumns`` has the ops of one program, numbered lane by
lane and item by item as the program lists them.  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import chain, compress
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.planning.ops import Group, Op, Segment, StageProgram, Work
from simcluster.planning.perturbations import Computations

NO_WORK = -1
"""The work of an op that only takes part in another's (a receive), or that is alone."""


class GroupWork(NamedTuple):
    """What an op does with others, and whether that slows down computation."""

    work: Work
    interferes: bool


class SegmentOps:
    """Ops of the segments of a job, one segment after the other; ``communications`` are the distinct ones."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.lanes: dict[str, int] = {}
        self.groups: dict[Group, int] = {}
        self.communications: dict[GroupWork, int] = {}
        self._known: dict[tuple[int, int], tuple[int, Segment]] = {}  # by id and stage: its place, and the segment
        self._first = [0]
        self._lane: list[int] = []
        self._group: list[int] = []
        self._communication: list[int] = []
        self._after: list[tuple[int, ...]] = []
        self._work_numbers: dict[tuple[int, bool], int] = {}  # by identity; ``ops`` keeps the works

    def place(self, segment: Segment, stage: int) -> int:
        """Return the place of a segment among all."""
        known = self._known.get((id(segment), stage))
        if known is None:
            known = self._known[id(segment), stage] = len(self._first) - 1, segment
            for op in segment.ops:
                self._add(op, stage)
            self._first.append(len(self.ops))
        return known[0]

    def _add(self, op: Op, stage: int) -> None:
        work = op.work
        together = work.group(stage)
        self.ops.append(op)
        self._lane.append(self.lanes.setdefault(op.lane, len(self.lanes)))
        self._after.append(op.after)
        self._group.append(-1 if together is None else self.groups.setdefault(together, len(self.groups)))
        if together is None or work.joins:
            self._communication.append(NO_WORK)
            return
        presses = work.presses(op.lane)
        number = self._work_numbers.get((id(work), presses))
        if number is None:
            number = self.communications.setdefault(GroupWork(work, presses), len(self.communications))
            self._work_numbers[id(work), presses] = number
        self._communication.append(number)

    @cached_property
    def first(self) -> Ints:
        """Where the ops of every segment begin, and the end of all; from here on no segment is added."""
        return np.array(self._first, dtype=np.int64)

    @cached_property
    def lane(self) -> Int32s:
        """The lane of every op, by its place in ``lanes``."""
        return np.array(self._lane, dtype=np.int32)

    @cached_property
    def group(self) -> Int32s:
        """The kind of communicator that every op uses, by its place in ``groups``; -1 for none."""
        return np.array(self._group, dtype=np.int32)

    @cached_property
    def communication(self) -> Int32s:
        """What every op does with others, by its place in ``communications``; ``NO_WORK`` for nothing."""
        return np.array(self._communication, dtype=np.int32)

    @cached_property
    def seconds(self) -> Floats:
        """Seconds of what a rank does alone, 0 for communication."""
        own = [op.work.seconds if group < 0 else 0.0 for op, group in zip(self.ops, self._group, strict=True)]
        return np.array(own, dtype=np.float64)

    @cached_property
    def sensitivity(self) -> Floats:
        """How much concurrent communication slows down a computation; -1 for what is none."""
        own = [op.work.sensitivity for op in self.ops]
        return np.array([-1.0 if each is None else each for each in own], dtype=np.float64)

    @cached_property
    def after(self) -> tuple[Ints, Ints]:
        """Ops of its segment that every op waits for: where they begin, and how far before the op each one is."""
        counts = np.array(list(map(len, self._after)), dtype=np.int64)
        begins = np.repeat(self.first[:-1], np.diff(self.first)).tolist()
        back = [
            place - begin - other
            for place, (begin, others) in enumerate(zip(begins, self._after, strict=True))
            for other in others
        ]
        return np.concatenate([[0], np.cumsum(counts)]), np.array(back, dtype=np.int64)


class OpColumns:
    """The ops of a stage's program in columns.

    ``place`` is that of every op among the ``SegmentOps``, ``item`` the item it belongs to, ``begins`` and ``ends`` the
    first and the last op of every item, and ``index`` the place of every op in its item.
    """

    def __init__(self, program: StageProgram, segments: SegmentOps) -> None:
        self.program, self.stage, self._segments = program, program.stage, segments
        items = list(chain.from_iterable(program.lanes.values()))
        columns: list[tuple[Any, ...]] = list(zip(*items, strict=True)) or [()] * 7
        self.segments, self.keys, needs, step, chunk, microbatch, also = columns
        place = segments.place
        self._which = np.array([place(segment, program.stage) for segment in self.segments], dtype=np.int64)
        self.step, self.chunk, self.microbatch = (
            np.array(each, dtype=np.int32) for each in (step, chunk, microbatch)
        )  # fmt: skip
        self.end_of: dict[Hashable, int] = dict(zip(self.keys, range(len(items)), strict=True))
        if any(also):
            self.end_of |= {other: item for item, others in enumerate(also) for other in others}
        waits = list(chain.from_iterable(needs))
        self._waiting = np.repeat(np.arange(len(items)), np.array(list(map(len, needs)), dtype=np.int64))
        self._awaited_stage = np.array([need[0] for need in waits], dtype=np.int64)
        self._awaited: list[Hashable] = [need[1] for need in waits]
        found = np.unique(self._awaited_stage).tolist()
        self.peers: list[int] = [stage for stage in found if stage != program.stage]

    @cached_property
    def _counts(self) -> Ints:
        return np.asarray(np.diff(self._segments.first)[self._which])

    @cached_property
    def ends(self) -> Ints:
        """The last op of every item."""
        return np.asarray(np.cumsum(self._counts) - 1)

    @cached_property
    def begins(self) -> Ints:
        """The first op of every item."""
        return np.asarray(self.ends + 1 - self._counts)

    @cached_property
    def item(self) -> Ints:
        """The item of every op."""
        return np.repeat(np.arange(len(self._counts)), self._counts)

    @cached_property
    def index(self) -> Ints:
        """The place of every op in its item."""
        return np.asarray(np.arange(len(self.item)) - self.begins[self.item])

    @cached_property
    def place(self) -> Ints:
        """The place of every op among those of all segments."""
        return np.asarray(self._segments.first[self._which][self.item] + self.index)

    def __len__(self) -> int:
        return len(self.place)

    @cached_property
    def computing(self) -> Ints:
        """The ops that are computations."""
        return np.flatnonzero(self._segments.sensitivity[self.place] >= 0)

    @cached_property
    def computations(self) -> Computations:
        """The keys, steps and numbers of computations, by item."""
        counts = np.bincount(self.item[self.computing], minlength=len(self.keys))
        return Computations(self.keys, self.step.tolist(), counts.tolist())

    @cached_property
    def lanes(self) -> tuple[Int32s, Int32s]:
        """The lanes of the program by their numbers among all, in order of first use, and that of every op here."""
        return _numbered(self._segments.lane[self.place])

    @cached_property
    def slots(self) -> tuple[Int32s, Int32s]:
        """The kinds of communicators that the program uses, by number among all, and that of every op here; -1: none.
        """  # fmt: skip
        found = self._segments.group[self.place]
        there = found >= 0
        groups, slot = _numbered(found[there])
        column = np.full(len(found), -1, dtype=np.int32)
        column[there] = slot
        return groups, column

    def meeting_keys(self, ops: Ints) -> tuple[list[Hashable], Ints]:
        """Return the names by which ops find the others they meet: the keys of their items, and their index there.

        A receive has that of the send that it answers.
        """
        keys: list[Any] = list(map(self.keys.__getitem__, self.item[ops].tolist()))
        places = self.place[ops]
        joins = (self._segments.communication[places] == NO_WORK).tolist()
        for number in compress(range(len(keys)), joins):
            keys[number] = keys[number][1]
        return keys, self.index[ops]

    def waits(self, peers: Sequence[OpColumns]) -> tuple[Ints, Ints, Ints]:
        """Return what ops wait for besides the op before them on their lane: the op, the awaited op, and whose it is.

        ``peers`` are the programs of the ranks with the same place in the stages ``self.peers``, in whose numbers the
        awaited ops are; -1 is the rank itself.
        """
        first, back = self._segments.after
        counts = np.diff(first)[self.place]
        op = np.repeat(np.arange(len(self)), counts)
        within = np.arange(len(op)) - np.repeat(np.cumsum(counts) - counts, counts)
        other = op - back[first[self.place[op]] + within]
        ops, others, whose, turns = [op], [other], [np.full(len(op), -1)], [np.zeros(len(op), dtype=np.int64)]
        for number, (stage, there) in enumerate([(self.stage, self), *zip(self.peers, peers, strict=True)], -1):
            needs = np.flatnonzero(self._awaited_stage == stage)
            items = [there.end_of[self._awaited[need]] for need in needs.tolist()]
            ops.append(self.begins[self._waiting[needs]])
            others.append(there.ends[np.array(items, dtype=np.int64)])
            whose.append(np.full(len(items), number))
            turns.append(1 + needs)
        column = np.concatenate(ops)
        order = np.lexsort((np.concatenate(turns), column))  # as ``reference.nodes``: needs in the order of the item
        return column[order], np.concatenate(others)[order], np.concatenate(whose)[order]


def own_seconds(columns: OpColumns, program: StageProgram) -> Floats | None:
    """Return the seconds of ops of a rank's own program, None where more than these differs from the stage's."""
    items = list(chain.from_iterable(program.lanes.values()))
    if len(items) != len(columns.keys) or list(program.lanes) != list(columns.program.lanes):
        return None
    known: dict[tuple[int, int], list[float] | None] = {}  # by identity of the segments
    found: list[float] = []
    for item, key, segment in zip(items, columns.keys, columns.segments, strict=True):
        own = item.segment
        if item.key != key:
            return None
        pair = id(segment), id(own)
        if pair not in known:
            known[pair] = _seconds(segment, own, columns.stage)
        seconds = known[pair]
        if seconds is None:
            return None
        found += seconds
    return np.array(found)


def _seconds(segment: Segment, own: Segment, stage: int) -> list[float] | None:
    """Return the seconds of ops of a segment, None where more than these differs from the other's."""
    if len(own.ops) != len(segment.ops):
        return None
    found = []
    for mine, other in zip(own.ops, segment.ops, strict=True):
        work, planned = mine.work, other.work
        alone = work.group(stage) is None
        found.append(work.seconds if alone else 0.0)
        if mine is other:
            continue
        retimed = alone and planned.group(stage) is None and work.sensitivity == planned.sensitivity
        if (work != planned and not retimed) or _SHOWN(mine) != _SHOWN(other):
            return None
    return found


_SHOWN = attrgetter("stream", "kind", "name", "layer", "lane", "after", "memory")


def _numbered(column: Int32s) -> tuple[Int32s, Int32s]:
    """Return the distinct values of a column in order of first use, and the place of each one's there."""
    values, first, which = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order))
    return values[order], place[which]
