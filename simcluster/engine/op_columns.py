"""Ops of stage programs as arrays; each distinct segment of ops is converted only once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain, count
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.engine.tables import csr_offsets, csr_part_indices, to_int32
from simcluster.planning.disturbances import ComputationColumns
from simcluster.planning.ops import Group, Op, OpWork, Segment, StageProgram, WorkItem
from simcluster.reference.step_record import OpSpanLabel

Name = TypeVar("Name", bound=Hashable)


class NameNumbers(dict[Name, int]):
    """Mapping from names to numbers, assigned from 0 in order of first use."""

    def __missing__(self, name: Name) -> int:
        return self.setdefault(name, len(self))


class CommunicationWork(NamedTuple):
    """Communication of an op with other ranks, and whether it slows down concurrent computation."""

    work: OpWork
    interferes: bool


class ProgramItems(NamedTuple):
    """Items (runs of a segment) of one program, lane by lane, with their numbered keys and dependencies."""

    stage: int
    items: list[WorkItem]
    keys: Ints
    segments: Ints
    need_stages: Ints
    need_keys: Ints


class SegmentTable:
    """Op segments of all programs, each read once per stage, and the distinct shapes of programs.

    Segment i has the ops ``ops[first[i] : first[i + 1]]``, as numbers of ``shapes``, and ``seconds`` for each.
    Ops and programs have one shape if they differ only in seconds; ``programs`` has the first of each.

    A shape of ops has the numbers of its label, lane, kind of communicator, and work among ``works`` of that kind (-1:
    none; a receive has neither label nor work); its sensitivity, -1 for what is not a computation; whether it pairs
    with a receive; and the ops of its segment that it waits for.
    """

    def __init__(self) -> None:
        self.labels, self.lanes, self.groups = NameNumbers[OpSpanLabel](), NameNumbers[str](), NameNumbers[Group]()
        self.works: defaultdict[int, NameNumbers[CommunicationWork]] = defaultdict(NameNumbers)
        self._keys, self._counter = dict[Hashable, int](), count()
        self.shapes = NameNumbers[tuple[int, int, int, int, float, bool, tuple[int, ...]]]()
        self.first, self.ops, self.seconds = [0], list[int](), list[float]()
        self.programs: list[ProgramItems] = []
        self._of_program = NameNumbers[Hashable]()
        self._read: defaultdict[int, dict[int, int]] = defaultdict(dict)  # by stage the numbers of ops, by identity
        self._segments: defaultdict[int, dict[Segment, int]] = defaultdict(dict)  # by stage
        self._like: list[int] = []  # by segment the first with equal ops
        self._with_ops: dict[tuple[int, ...], int] = {}

    def add_program(self, program: StageProgram) -> tuple[int, Ints]:
        """Add a program; return its shape's number, and the segment number of each of its work items."""
        items, known = [*chain.from_iterable(program.lanes.values())], self._segments[program.stage]
        of_items = [item.segment for item in items]
        for segment in dict.fromkeys(of_items):
            if segment not in known:
                known[segment] = self._segment_number(segment, program.stage)
        segments = np.array([*map(known.__getitem__, of_items)], dtype=np.int64)
        keys, like = self.key_numbers(item.key for item in items), np.array(self._like, dtype=np.int64)[segments]
        shape = self._of_program[program.stage, tuple(map(len, program.lanes.values())), like.tobytes(), keys.tobytes()]
        if shape == len(self.programs):
            needs = [*chain.from_iterable([item.needs for item in items])]
            stages, needed = [stage for stage, _ in needs], self.key_numbers(key for _, key in needs)
            own = ProgramItems(program.stage, items, keys, segments, np.array(stages, dtype=np.int64), needed)
            self.programs.append(own)
        return shape, segments

    def key_numbers(self, keys: Iterable[Hashable]) -> Ints:
        """Return a number for each key of a work item; equal keys have equal numbers."""
        return np.array([*map(self._keys.setdefault, keys, self._counter)], dtype=np.int64)

    def _segment_number(self, segment: Segment, stage: int) -> int:
        known, number = self._read[stage], len(self._like)
        for op in segment.ops:
            if id(op) not in known:
                known[id(op)] = self._op_shape_number(op, stage)
        ops = tuple([known[id(op)] for op in segment.ops])
        self._like.append(self._with_ops.setdefault(ops, number))
        self.ops += ops
        self.seconds += [op.work.seconds for op in segment.ops]
        self.first.append(len(self.ops))
        return number

    def _op_shape_number(self, op: Op, stage: int) -> int:
        work = op.work
        size = work.size * work.load
        label = OpSpanLabel(op.stream, op.kind, op.name, op.layer, work.axis, size, op.memory, (), work.sensitivity)
        group, sensitivity = work.group(stage), -1.0 if work.sensitivity is None else work.sensitivity
        lane, number = self.lanes[op.lane], -1 if work.joins else self.labels[label]
        if group is None:
            return self.shapes[number, lane, -1, -1, sensitivity, False, op.after]
        kind, pairs = self.groups[group], work.joins or work.arrivals_needed(1) > 1
        shared = -1 if work.joins else self.works[kind][CommunicationWork(work, work.slows_compute(op.lane))]
        return self.shapes[number, lane, kind, shared, sensitivity, pairs, op.after]


class OpColumns:
    """Ops of all programs as arrays, program by program, then lane by lane and item by item.

    A row of ``programs`` is the number of a program's shape, and by stage that of the ranks with the same place there,
    for whose ops it may wait.

    Columns of Templates have their names here; the ``place`` of rendezvous is -1 until it is known.  Further ones per
    op: its ``program``, ``item``, ``step``, ``chunk`` and ``microbatch``; its ``lane`` among the ``lane_names`` of all
    programs; and its ``label`` and whether it ``pairs`` with a receive (see Segments).  ``awaited`` are the ops of
    ``wait_op`` in these columns.  Items of program i begin at ``item_first[i]``, the ops of an item at ``begins``.
    """

    def __init__(self, segments: SegmentTable, programs: Ints) -> None:
        own = [segments.programs[number] for number in programs[:, 0].tolist()]
        self.stages = to_int32([each.stage for each in own])
        self.item_first = csr_offsets([len(each.items) for each in own])
        self._items = [*chain.from_iterable(each.items for each in own)]
        which = np.concatenate([each.segments for each in own])
        self._segment_first, ops = np.array(segments.first), np.array(segments.ops, dtype=np.int32)
        place, begins = csr_part_indices(self._segment_first, which), csr_offsets(np.diff(self._segment_first)[which])
        self.op_first, self.begins = begins[self.item_first], begins[:-1]
        self.program = np.repeat(np.arange(len(own), dtype=np.int32), np.diff(self.op_first))
        self.item = np.repeat(np.arange(len(which), dtype=np.int32), np.diff(begins))
        self.step, self.chunk, self.microbatch = (
            to_int32([*map(attrgetter(name), self._items)])[self.item] for name in ("step", "chunk", "microbatch")
        )
        shape = ops[place]
        *columns, sensitivity, pairs, _ = [*zip(*segments.shapes, strict=True)] or [()] * 7
        self.label, lane, self.slot, self.work = (to_int32(each)[shape] for each in columns)
        self.sensitivity, self.pairs = np.array(sensitivity, dtype=float)[shape], np.array(pairs, dtype=bool)[shape]
        self._seconds = np.where(to_int32(columns[2])[ops] < 0, np.array(segments.seconds), 0.0)
        self.seconds = self._seconds[place]
        self.labels, self.groups = [*segments.labels], [*segments.groups]
        self.works = [[*segments.works[group]] for group in range(len(self.groups))]
        self.place = np.full(len(self), -1, dtype=np.int32)
        self._assign_lane_numbers(lane, [*segments.lanes])
        self._keys = np.concatenate([each.keys for each in own])
        self._add_dependencies(segments, own, programs, shape)
        receives = np.flatnonzero(self.label[self.begins] < 0)
        self._keys[receives] = segments.key_numbers(self._items[item].key[1] for item in receives.tolist())

    def __len__(self) -> int:
        return len(self.program)

    def _assign_lane_numbers(self, lane: Int32s, names: Sequence[str]) -> None:
        """Assign numbers to the lanes (op queues) of each program; ``lane`` has each op's index in ``names``."""
        used = self.program * len(names) + lane
        first = np.full(len(self.stages) * len(names), len(self))
        np.minimum.at(first, used, np.arange(len(self)))
        lanes = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(self))]
        number = np.empty(len(first), dtype=np.int32)
        number[lanes] = np.arange(len(lanes))
        self.lane, self.lane_names = number[used], [names[each % len(names)] for each in lanes.tolist()]
        self.lane_first = to_int32(np.searchsorted(self.program[first[lanes]], np.arange(len(self.stages) + 1)))
        order = np.argsort(self.lane, kind="stable")
        self.lane_op = to_int32(order - self.op_first[self.program])
        self.lane_op_first = csr_offsets(np.bincount(self.lane, minlength=len(lanes)))
        self.lane_rank = np.zeros(len(lanes), dtype=np.int32)

    def _add_dependencies(self, segments: SegmentTable, own: Sequence[ProgramItems], rows: Ints, shape: Int32s) -> None:
        after = [others for *_, others in segments.shapes]
        after_first = csr_offsets([*map(len, after)])
        waiting = np.flatnonzero(np.diff(after_first)[shape])
        op = np.repeat(waiting, np.diff(after_first)[shape[waiting]])
        others = to_int32([*chain.from_iterable(after)])[csr_part_indices(after_first, shape[waiting])]
        others = self.begins[self.item[op]] + others
        items, every = self._items, np.arange(len(self._items))
        needing = np.repeat(every, [len(item.needs) for item in items])
        named = np.repeat(every, [len(item.also) for item in items])
        stage, key = (np.concatenate([getattr(each, name) for each in own]) for name in ("need_stages", "need_keys"))
        ends, also = np.append(every, named), segments.key_numbers(chain.from_iterable([item.also for item in items]))
        of_item, place = self.program[self.begins].astype(np.int64), np.zeros(int(rows.max()) + 1, dtype=np.int64)
        place[rows[:, 0]] = np.arange(len(rows))
        within = self.stages[of_item[needing]] == stage
        whose = np.where(within, of_item[needing], place[rows[of_item[needing], 1 + stage]])
        names = np.append(self._keys, also)
        size = int(max(names.max(initial=0), key.max(initial=0))) + 1
        codes, sought = of_item[ends] * size + names, whose * size + key
        order = np.argsort(codes)
        found = order[np.searchsorted(codes, sought, sorter=order)]
        assert np.array_equal(codes[found], sought), "internal error: an item depends on an item that no program has"
        op = np.append(op, self.begins[needing])
        order = np.argsort(op, kind="stable")  # as ``reference.dependency_graph``: needs in the order of the item
        self.wait_first = csr_offsets(np.bincount(op, minlength=len(self)))
        self.awaited = np.append(others, np.append(self.begins, len(self))[ends[found] + 1] - 1)[order]
        self.wait_op = to_int32(self.awaited - self.op_first[self.program[self.awaited]])
        self.wait_peer = to_int32(np.append(np.full(len(others), -1), np.where(within, -1, stage))[order])

    def durations_of_segments(self, segments: Ints) -> Floats:
        """Return the durations (s) of all ops of these segments, in order."""
        return self._seconds[csr_part_indices(self._segment_first, segments)]

    def find_computations(self, program: int) -> tuple[Floats, Ints, ComputationColumns]:
        """Return a program's op durations, the indices of its compute ops, and the work items of these ops."""
        ops, items = (slice(*first[program : program + 2].tolist()) for first in (self.op_first, self.item_first))
        found, own = np.flatnonzero(self.sensitivity[ops] >= 0), self._items[items]
        counts = np.bincount(self.item[ops][found] - items.start, minlength=len(own)).tolist()
        return self.seconds[ops], found, ComputationColumns([one.key for one in own], [one.step for one in own], counts)

    def rendezvous_keys(self, ops: Ints) -> Ints:
        """Return a key per op (work item's key, and index in the item), equal for all ops of one communication.

        A receive has the key of the send that it answers.
        """
        item = self.item[ops]
        return self._keys[item] * len(self) + ops - self.begins[item]
