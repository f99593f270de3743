"""The ops of a job and their times, a part of its ranks at a time: columns of all would take too much memory.  Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.engine.table_ops import ops_of
from simcluster.engine.tables import Instances, Tables
from simcluster.engine.tabulate import JobTables
from simcluster.reference.record import OpTimes
from simcluster.reference.record_parts import RecordPart

_AT_ONCE = 1_000_000
"""Ops of a part, unless ranks that send to each other have more: 0.2 GB while they are measured."""


def parts_of(job: JobTables) -> list[Ints]:
    """Return the instances of every part: those that send to each other are in the same one.

    None of a job with few ops, nor of one that writes to storage, which may continue when all else is over.
    """
    instances = job.tables.instances
    if instances.op_first[-1] <= 4 * _AT_ONCE or any(op.stream == "storage" for op in job.segments.ops):
        return []
    label = _connected(instances)
    order = np.argsort(label, kind="stable")
    ops = np.cumsum(np.diff(instances.op_first)[order].astype(np.int64))
    begins = np.flatnonzero(np.diff(label[order], prepend=-1))
    part = np.concatenate([[0], ops])[begins] // _AT_ONCE
    return [np.sort(some) for some in np.split(order, begins[np.flatnonzero(np.diff(part)) + 1])]


def part_of(job: JobTables, some: Ints, times: OpTimes) -> RecordPart:
    """Return the ops of instances, which have all their peers among them, with their times."""
    instances = job.tables.instances
    counts = np.diff(instances.op_first)[some].astype(np.int64)
    first = instances.op_first[some].astype(np.int64)
    moved = first - np.concatenate([[0], np.cumsum(counts)])[:-1]
    ready, start, end, last = (
        np.concatenate([column[begin : begin + count] for begin, count in zip(first, counts, strict=True)])
        for column in times
    )
    last = last - np.repeat(moved, counts)
    culprit = np.repeat(instances.number[some], counts)
    others = np.flatnonzero(last != np.arange(len(last)))
    own = np.repeat(some, counts)[others]
    whose = np.searchsorted(instances.op_first, last[others] + np.repeat(moved, counts)[others], side="right") - 1
    culprit[others] = instances.number[whose]
    last[others[whose != own]] = -1
    ops = ops_of(replace(job, tables=_only(job.tables, some)))
    return RecordPart(ops, OpTimes(ready, start, end, last), culprit)


def _connected(instances: Instances) -> Ints:
    """Return a label for every instance: the lowest of those that are connected by sends."""
    label = np.arange(len(instances.number))
    own, slot = np.nonzero(instances.peer >= 0)
    peer = instances.peer[own, slot]
    while True:
        lower = label.copy()
        np.minimum.at(lower, own, label[peer])
        np.minimum.at(lower, peer, label[own])
        lower = lower[lower]
        if (lower == label).all():
            return label
        label = lower


def _only(tables: Tables, some: Ints) -> Tables:
    """Return the tables of these instances, which have all peers among them, and of their groups."""
    instances, groups = tables.instances, tables.groups
    place = np.full(len(instances.number) + 1, -1, dtype=np.int32)
    place[some] = np.arange(len(some))
    used = np.unique(instances.group[some])
    used = used[used >= 0]
    renumbered = np.full(len(groups.kind_first) + 1, -1, dtype=np.int32)
    renumbered[used] = np.arange(len(used))
    speeds = {int(place[rank]): profile for rank, profile in tables.speeds.items() if place[rank] >= 0}
    return tables._replace(
        instances=instances._replace(
            template=instances.template[some],
            group=renumbered[instances.group[some]],
            peer=place[instances.peer[some]],
            position=instances.position[some],
            op_first=_first(np.diff(instances.op_first)[some]),
            lane_first=_first(np.diff(instances.lane_first)[some]),
            rank_first=_first(np.diff(instances.rank_first)[some]),
            number=instances.number[some],
            slowness=instances.slowness[some],
            own_seconds=instances.own_seconds[some],
        ),
        groups=groups._replace(
            place_first=_first(np.diff(groups.place_first)[used]), kind_first=groups.kind_first[used]
        ),
        speeds=speeds,
    )


def _first(counts: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Return where the part of each begins, and the end of all."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
