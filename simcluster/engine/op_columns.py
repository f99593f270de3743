"""Ops of stage programs in columns: every segment is read once, and every program costs some numpy copies.

``SegmentOps`` has the ops of all segments of a job; an ``OpColumns`` has the ops of one program, numbered lane by lane
and item by item as the program lists them.  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cache, cached_property, partial
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints, within
from simcluster.engine.tables import firsts, int32s
from simcluster.planning.ops import Group, Item, Op, Segment, StageProgram, Work
from simcluster.planning.perturbations import Computations


class GroupWork(NamedTuple):
    """What an op does with others, and whether that slows down computation."""

    work: Work
    interferes: bool


class SegmentOps:
    """Ops of the segments of programs, one segment after the other, in columns; one per segment and stage.

    Per op: ``seconds`` of what a rank does alone, 0 for communication; ``sensitivity`` to concurrent communication, -1
    for what is not a computation; its number among the ``lanes`` and among the ``groups``, the kinds of communicators
    (-1: none), and that of its ``work`` among ``works[group]``, -1 for an op that is alone or takes part in
    another's.  It waits for ops of its segment, ``back`` ops before it: from ``wait_first`` on.

    ``which[program]`` is the segment of each item; the ops of segment i begin at ``first[i]``, and ``meets[i]`` are the
    groups and works of those that meet others.
    """

    def __init__(self, programs: Sequence[StageProgram]) -> None:
        known: dict[tuple[Segment, int], int] = {}  # by identity, and by stage
        self.which = [
            np.array([known.setdefault((item.segment, program.stage), len(known)) for item in _items(program)], int)
            for program in programs
        ]
        self.ops = [op for segment, _ in known for op in segment.ops]
        self.first = firsts([len(segment.ops) for segment, _ in known])
        waits = [[index - other for other in op.after] for segment, _ in known for index, op in enumerate(segment.ops)]
        self.wait_first, self.back = firsts([*map(len, waits)]), int32s([*chain.from_iterable(waits)])
        self.lanes: dict[str, int] = {}
        self.lane = int32s([self.lanes.setdefault(op.lane, len(self.lanes)) for op in self.ops])
        self.groups: dict[Group, int] = {}
        together = [op.work.group(stage) for segment, stage in known for op in segment.ops]
        group = [-1 if each is None else self.groups.setdefault(each, len(self.groups)) for each in together]
        self.works: list[dict[GroupWork, int]] = [{} for _ in self.groups]
        work = list(map(self._number, self.ops, group))
        self.group, self.work = int32s(group), int32s(work)
        pairs = list(zip(group, work, strict=True))
        self.meets = [
            {pair for pair in pairs[begin:end] if pair[0] >= 0} for begin, end in pairwise(self.first.tolist())
        ]
        self.seconds = np.where(self.group < 0, np.array([op.work.seconds for op in self.ops]), 0.0)
        sensitivity = [-1.0 if op.work.sensitivity is None else op.work.sensitivity for op in self.ops]
        self.sensitivity = np.array(sensitivity, dtype=np.float64)

    def _number(self, op: Op, group: int) -> int:
        """Return the number of what an op does with others, -1 for nothing."""
        if group < 0 or op.work.joins:
            return -1
        return self.works[group].setdefault(GroupWork(op.work, op.work.presses(op.lane)), len(self.works[group]))


class OpColumns:
    """The ops of program ``number`` of those that segments were read from, in columns.

    ``begins`` and ``ends`` are the first and the last op of every item; ``works`` is what ops do with others, by kind
    of communicator.  Per op: its ``place`` among the segments' ops, its ``item``, its ``step``, ``chunk`` and
    ``microbatch``, its ``group`` (see SegmentOps) and its ``lane``, by the place in ``lanes``, which has the numbers
    among all lanes in order of first use.
    """

    def __init__(self, program: StageProgram, segments: SegmentOps, number: int) -> None:
        self.stage, self._segments = program.stage, segments
        columns: list[Sequence[Any]] = list(zip(*_items(program), strict=True)) or [()] * 7
        _, self.keys, needs, self._steps, chunk, microbatch, also = columns
        which = segments.which[number]
        counts = np.diff(segments.first)[which]
        self.ends = np.cumsum(counts) - 1
        self.begins = self.ends + 1 - counts
        self.item = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self.place = np.repeat(segments.first[which], counts) + within(counts)
        self.step, self.chunk, self.microbatch = (
            np.array(each, dtype=np.int32)[self.item] for each in (self._steps, chunk, microbatch)
        )
        self.group = segments.group[self.place]
        lane = segments.lane[self.place]
        used, first = np.unique(lane, return_index=True)
        self.lanes = used[np.argsort(first)]
        numbers = np.zeros(len(segments.lanes), dtype=np.int32)
        numbers[self.lanes] = np.arange(len(used))
        self.lane = numbers[lane]
        ends = self.ends.tolist()
        self.end_of: dict[Hashable, int] = dict(zip(self.keys, ends, strict=True))
        self.end_of |= {other: end for end, others in zip(ends, also, strict=True) for other in others}
        self._needs = list(chain.from_iterable(needs))
        self._waiting = np.repeat(self.begins, [*map(len, needs)])
        self.awaited_stages = sorted({stage for stage, _ in self._needs} - {self.stage})
        self.works: dict[int, list[int]] = {}
        for group, work in sorted(
            set[tuple[int, int]]().union(*[segments.meets[each] for each in np.unique(which).tolist()])
        ):
            self.works.setdefault(group, []).extend([work] if work >= 0 else [])

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
        return Computations(self.keys, self._steps, counts.tolist())

    def meeting_names(self, ops: Ints) -> list[tuple[Hashable, int]]:
        """Return the names by which ops find the others they meet: the keys of their items, and their index there.

        A receive has that of the send that it answers.
        """
        joins = (self._segments.work[self.place[ops]] < 0).tolist()
        keys: list[Any] = list(map(self.keys.__getitem__, self.item[ops].tolist()))
        return [
            (key[1] if receives else key, index)
            for key, receives, index in zip(keys, joins, (ops - self.begins[self.item[ops]]).tolist(), strict=True)
        ]

    def waits(self, programs: Sequence[OpColumns]) -> tuple[Ints, Ints, Ints]:
        """Return what ops wait for besides the op before them on their lane: the op, the awaited op, and its stage.

        ``programs`` are those of the ranks with the same place in the stages, in whose numbers the awaited ops are; the
        stage is -1 for an op of the rank itself.
        """
        first = self._segments.wait_first
        counts = np.diff(first)[self.place]
        op = np.repeat(np.arange(len(self)), counts)
        other = op - self._segments.back[first[self.place[op]] + within(counts)]
        needed = [(self if stage == self.stage else programs[stage]).end_of[key] for stage, key in self._needs]
        stages = np.array([stage for stage, _ in self._needs], dtype=np.int64)
        ops = np.concatenate([op, self._waiting])
        order = np.argsort(ops, kind="stable")  # as ``reference.nodes``: needs in the order of the item
        others = np.concatenate([other, np.array(needed, dtype=np.int64)])
        whose = np.concatenate([np.full(len(op), -1), np.where(stages == self.stage, -1, stages)])
        return ops[order], others[order], whose[order]


def _items(program: StageProgram) -> Iterator[Item]:
    """Return the items of a program, lane by lane."""
    return chain.from_iterable(program.lanes.values())


def own_seconds(planned: StageProgram, program: StageProgram) -> Floats | None:
    """Return the seconds of ops of a rank's own program, None where more than these differs from the stage's."""
    lanes, own_lanes = planned.lanes, program.lanes
    if list(lanes) != list(own_lanes) or any(len(lanes[lane]) != len(own_lanes[lane]) for lane in lanes):
        return None
    seconds_of = cache(partial(_seconds, planned.stage))  # segments are equal by identity
    found: list[float] = []
    for item, own in zip(_items(planned), _items(program), strict=True):
        seconds = seconds_of(item.segment, own.segment) if item.key == own.key else None
        if seconds is None:
            return None
        found += seconds
    return np.array(found)


def _seconds(stage: int, segment: Segment, own: Segment) -> list[float] | None:
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
