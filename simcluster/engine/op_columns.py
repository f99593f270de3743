"""Ops of stage programs in columns; every segment is read once, and a program costs only numpy copies. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain, count
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.engine.tables import int32s, offsets, part_indices
from simcluster.planning.ops import Group, Item, Op, Segment, StageProgram, Work
from simcluster.planning.perturbations import Computations
from simcluster.reference.record import Label

Name = TypeVar("Name", bound=Hashable)


class Numbers(dict[Name, int]):
    """Numbers of names, counted from 0 in order of first use."""

    def __missing__(self, name: Name) -> int:
        return self.setdefault(name, len(self))


class GroupWork(NamedTuple):
    """Work of an op with other ranks, and whether it slows down computation."""

    work: Work
    interferes: bool


class ProgramItems(NamedTuple):
    """Items of a program, lane by lane, with the numbers of their keys and segments and of what they wait for."""

    stage: int
    items: list[Item]
    keys: Ints
    segments: Ints
    need_stages: Ints
    need_keys: Ints


class Segments:
    """Segments of programs, each read once per stage, and the distinct shapes of programs.

    Segment i has the ops ``ops[first[i] : first[i + 1]]``, as numbers of ``shapes``, and ``seconds`` for each.
    Ops and programs have one shape if they differ only in seconds; ``programs`` has the first of each.

    A shape of ops has the numbers of its label, lane, kind of communicator, and work among ``works`` of that kind (-1:
    none; a receive has neither label nor work); its sensitivity, -1 for what is not a computation; whether it pairs
    with a receive; and the ops of its segment that it waits for.
    """

    def __init__(self) -> None:
        self.labels, self.lanes, self.groups = Numbers[Label](), Numbers[str](), Numbers[Group]()
        self.works: defaultdict[int, Numbers[GroupWork]] = defaultdict(Numbers)
        self._keys, self._counter = dict[Hashable, int](), count()
        self.shapes = Numbers[tuple[int, int, int, int, float, bool, tuple[int, ...]]]()
        self.first, self.ops, self.seconds = [0], list[int](), list[float]()
        self.programs: list[ProgramItems] = []
        self._of_program = Numbers[Hashable]()
        self._read: defaultdict[int, dict[int, int]] = defaultdict(dict)  # by stage the numbers of ops, by identity
        self._segments: defaultdict[int, dict[Segment, int]] = defaultdict(dict)  # by stage
        self._like: list[int] = []  # by segment the first with equal ops
        self._with_ops: dict[tuple[int, ...], int] = {}

    def read(self, program: StageProgram) -> tuple[int, Ints]:
        """Return the number of a program's shape, and the segment number of each of its items."""
        items, known = [*chain.from_iterable(program.lanes.values())], self._segments[program.stage]
        of_items = [item.segment for item in items]
        for segment in dict.fromkeys(of_items):
            if segment not in known:
                known[segment] = self._number_segment(segment, program.stage)
        segments = np.array([*map(known.__getitem__, of_items)], dtype=np.int64)
        keys, like = self.number_keys(item.key for item in items), np.array(self._like, dtype=np.int64)[segments]
        number = self._of_program[
            program.stage, tuple(map(len, program.lanes.values())), like.tobytes(), keys.tobytes()
        ]
        if number == len(self.programs):
            needs = [*chain.from_iterable([item.needs for item in items])]
            stages, needed = [stage for stage, _ in needs], self.number_keys(key for _, key in needs)
            own = ProgramItems(program.stage, items, keys, segments, np.array(stages, dtype=np.int64), needed)
            self.programs.append(own)
        return number, segments

    def number_keys(self, keys: Iterable[Hashable]) -> Ints:
        """Return numbers of items' keys, equal for equal keys."""
        return np.array([*map(self._keys.setdefault, keys, self._counter)], dtype=np.int64)

    def _number_segment(self, segment: Segment, stage: int) -> int:
        known, number = self._read[stage], len(self._like)
        for op in segment.ops:
            if id(op) not in known:
                known[id(op)] = self._number_shape(op, stage)
        ops = tuple([known[id(op)] for op in segment.ops])
        self._like.append(self._with_ops.setdefault(ops, number))
        self.ops += ops
        self.seconds += [op.work.seconds for op in segment.ops]
        self.first.append(len(self.ops))
        return number

    def _number_shape(self, op: Op, stage: int) -> int:
        work = op.work
        label = Label(
            op.stream, op.kind, op.name, op.layer, work.axis, work.size * work.load, op.memory, (), work.sensitivity
        )
        group, sensitivity = work.group(stage), -1.0 if work.sensitivity is None else work.sensitivity
        lane, number = self.lanes[op.lane], -1 if work.joins else self.labels[label]
        if group is None:
            return self.shapes[number, lane, -1, -1, sensitivity, False, op.after]
        kind, pairs = self.groups[group], work.joins or work.parties(1) > 1
        shared = -1 if work.joins else self.works[kind][GroupWork(work, work.slows_compute(op.lane))]
        return self.shapes[number, lane, kind, shared, sensitivity, pairs, op.after]


class OpColumns:
    """Ops of programs in columns, one program after the other, each lane by lane and item by item.

    A row of ``programs`` is the number of a program's shape, and by stage that of the ranks with the same place there,
    for whose ops it may wait.

    The columns of Templates have their names here; the ``place`` of meetings is -1 until it is known.  Further ones per
    op: its ``program``, ``item``, ``step``, ``chunk`` and ``microbatch``; its ``lane`` among the ``lane_names`` of all
    programs; and its ``label`` and whether it ``pairs`` with a receive (see Segments).  ``awaited`` are the ops of
    ``wait_op`` in these columns.  Items of program i begin at ``item_first[i]``, the ops of an item at ``begins``.
    """

    def __init__(self, segments: Segments, programs: Ints) -> None:
        own = [segments.programs[number] for number in programs[:, 0].tolist()]
        self.stages, self.item_first = int32s([each.stage for each in own]), offsets([len(each.items) for each in own])
        self._items, which = (
            [*chain.from_iterable(each.items for each in own)],
            np.concatenate([each.segments for each in own]),
        )
        self._segment_first, ops = np.array(segments.first), np.array(segments.ops, dtype=np.int32)
        place, begins = part_indices(self._segment_first, which), offsets(np.diff(self._segment_first)[which])
        self.op_first, self.begins = begins[self.item_first], begins[:-1]
        self.program = np.repeat(np.arange(len(own), dtype=np.int32), np.diff(self.op_first))
        self.item = np.repeat(np.arange(len(which), dtype=np.int32), np.diff(begins))
        self.step, self.chunk, self.microbatch = (
            int32s([*map(attrgetter(name), self._items)])[self.item] for name in ("step", "chunk", "microbatch")
        )
        shape = ops[place]
        *columns, sensitivity, pairs, _ = [*zip(*segments.shapes, strict=True)] or [()] * 7
        self.label, lane, self.slot, self.work = (int32s(each)[shape] for each in columns)
        self.sensitivity, self.pairs = np.array(sensitivity, dtype=float)[shape], np.array(pairs, dtype=bool)[shape]
        self._seconds = np.where(int32s(columns[2])[ops] < 0, np.array(segments.seconds), 0.0)
        self.seconds = self._seconds[place]
        self.labels, self.groups = [*segments.labels], [*segments.groups]
        self.works = [[*segments.works[group]] for group in range(len(self.groups))]
        self.place = np.full(len(self), -1, dtype=np.int32)
        self._number_lanes(lane, [*segments.lanes])
        self._keys = np.concatenate([each.keys for each in own])
        self._add_waits(segments, own, programs, shape)
        receives = np.flatnonzero(self.label[self.begins] < 0)
        self._keys[receives] = segments.number_keys(self._items[item].key[1] for item in receives.tolist())

    def __len__(self) -> int:
        return len(self.program)

    def _number_lanes(self, lane: Int32s, names: Sequence[str]) -> None:
        """Assign lane numbers per program in order of first use; ``lane`` is each op's lane among all names."""
        used = self.program * len(names) + lane
        first = np.full(len(self.stages) * len(names), len(self))
        np.minimum.at(first, used, np.arange(len(self)))
        lanes = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(self))]
        number = np.empty(len(first), dtype=np.int32)
        number[lanes] = np.arange(len(lanes))
        self.lane, self.lane_names = number[used], [names[each % len(names)] for each in lanes.tolist()]
        self.lane_first = int32s(np.searchsorted(self.program[first[lanes]], np.arange(len(self.stages) + 1)))
        order = np.argsort(self.lane, kind="stable")
        self.lane_op = int32s(order - self.op_first[self.program])
        self.lane_op_first = offsets(np.bincount(self.lane, minlength=len(lanes)))
        self.lane_rank = np.zeros(len(lanes), dtype=np.int32)

    def _add_waits(self, segments: Segments, own: Sequence[ProgramItems], programs: Ints, shape: Int32s) -> None:
        after = [others for *_, others in segments.shapes]
        after_first = offsets([*map(len, after)])
        waiting = np.flatnonzero(np.diff(after_first)[shape])
        op = np.repeat(waiting, np.diff(after_first)[shape[waiting]])
        others = int32s([*chain.from_iterable(after)])[part_indices(after_first, shape[waiting])]
        others = self.begins[self.item[op]] + others
        items, every = self._items, np.arange(len(self._items))
        needing, named = (
            np.repeat(every, [len(item.needs) for item in items]),
            np.repeat(every, [len(item.also) for item in items]),
        )
        stage, key = (np.concatenate([getattr(each, name) for each in own]) for name in ("need_stages", "need_keys"))
        ends, also = np.append(every, named), segments.number_keys(chain.from_iterable([item.also for item in items]))
        of_item, place = self.program[self.begins].astype(np.int64), np.zeros(int(programs.max()) + 1, dtype=np.int64)
        place[programs[:, 0]] = np.arange(len(programs))
        within = self.stages[of_item[needing]] == stage
        whose = np.where(within, of_item[needing], place[programs[of_item[needing], 1 + stage]])
        names = np.append(self._keys, also)
        size = int(max(names.max(initial=0), key.max(initial=0))) + 1
        codes, sought = of_item[ends] * size + names, whose * size + key
        order = np.argsort(codes)
        found = order[np.searchsorted(codes, sought, sorter=order)]
        assert np.array_equal(codes[found], sought), "an item needs one that is not there"
        op = np.append(op, self.begins[needing])
        order = np.argsort(op, kind="stable")  # as ``reference.nodes``: needs in the order of the item
        self.wait_first = offsets(np.bincount(op, minlength=len(self)))
        self.awaited = np.append(others, np.append(self.begins, len(self))[ends[found] + 1] - 1)[order]
        self.wait_op = int32s(self.awaited - self.op_first[self.program[self.awaited]])
        self.wait_peer = int32s(np.append(np.full(len(others), -1), np.where(within, -1, stage))[order])

    def seconds_of(self, segments: Ints) -> Floats:
        """Return the seconds of the ops of a program with these segments."""
        return self._seconds[part_indices(self._segment_first, segments)]

    def computations(self, program: int) -> tuple[Floats, Ints, Computations]:
        """Return the durations of a program's ops, which are computations, and their items' keys, steps and counts."""
        ops, items = (slice(*first[program : program + 2].tolist()) for first in (self.op_first, self.item_first))
        found, own = np.flatnonzero(self.sensitivity[ops] >= 0), self._items[items]
        counts = np.bincount(self.item[ops][found] - items.start, minlength=len(own)).tolist()
        return self.seconds[ops], found, Computations([item.key for item in own], [item.step for item in own], counts)

    def meeting_names(self, ops: Ints) -> Ints:
        """Return numbers of ops that are equal for ops that meet: same key of item, same place in the item.

        A receive has the key of the send that it answers.
        """
        item = self.item[ops]
        return self._keys[item] * len(self) + ops - self.begins[item]
