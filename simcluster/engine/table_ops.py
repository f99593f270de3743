"""The ops of a job's tables, one by one, as its record shows them.  Pure."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.clock import all_on_grid
from simcluster.base.runs import within
from simcluster.engine.tabulate import JobTables
from simcluster.planning.ops import MAIN
from simcluster.reference.record import Label, Ops, RankOps, Waits


def lanes_of(job: JobTables) -> tuple[Int32s, Int32s]:
    """Return the rank and the stage of every lane."""
    instances = job.tables.instances
    stages = np.array([each.stage for each in job.columns], dtype=np.int32)[instances.template]
    lanes = np.diff(instances.lane_first)
    return np.repeat(instances.number, lanes), np.repeat(stages, lanes)


def ops_of_ranks(job: JobTables) -> list[RankOps]:
    """Return the ops of the ranks that run each template."""
    labels, shown = _plain_labels(job)
    return [_ops_of_template(job, template, labels, shown) for template in range(len(job.columns))]


def _ops_of_template(job: JobTables, template: int, labels: list[Label], shown: Int32s) -> RankOps:
    templates, instances, columns = job.tables.templates, job.tables.instances, job.columns[template]
    begin, end = templates.op_first[template], templates.op_first[template + 1]
    first = templates.wait_first[begin : end + 1]
    waits = first[0] + np.flatnonzero(templates.wait_peer[first[0] : first[-1]] >= 0)
    instance = int(np.flatnonzero(instances.template == template)[0])
    senders = instances.template[instances.peer[instance][templates.wait_peer[waits]]]
    sends = _places(job)[templates.op_first[senders] + templates.wait_op[waits]]
    main = np.array([lane == MAIN for lane in job.segments.lanes])
    meets = np.array([op.work.parties(1) > 1 for op in job.segments.ops], dtype=bool)
    return RankOps(
        labels=labels,
        label=shown[columns.place],
        lane=columns.lane,
        on_main=main[columns.lanes][columns.lane],
        step=columns.step,
        chunk=columns.chunk,
        microbatch=columns.microbatch,
        pair=meets[columns.place] | (shown[columns.place] < 0),
        receiver=np.searchsorted(first, waits, side="right") - 1,
        sent=shown[sends],
        meets=meets[sends],
    )


def _places(job: JobTables) -> Ints:
    """Return the place of every op of the templates among those of all segments."""
    return np.concatenate([each.place for each in job.columns])


def _plain_labels(job: JobTables) -> tuple[list[Label], Int32s]:
    """Return the labels of ops, without traffic, and the number of the label of every segment op, -1 for receives."""
    found: dict[Label, int] = {}
    shown = []
    for op in job.segments.ops:
        work = op.work
        if work.joins:
            shown.append(-1)
            continue
        label = Label(
            op.stream, op.kind, op.name, op.layer, work.axis, work.size * work.load, op.memory,
            sensitivity=work.sensitivity,
        )  # fmt: skip
        shown.append(found.setdefault(label, len(found)))
    return list(found), np.array(shown, dtype=np.int32)


def ops_of(job: JobTables) -> Ops:
    """Return all ops of the simulated ranks, numbered as the tables number them."""
    return _Expansion(job).ops()


class _Expansion:
    """Ops of all instances: ``like`` is the op of the templates that each of them is, ``instance`` whose it is."""

    def __init__(self, job: JobTables) -> None:
        self._job = job
        templates, instances = job.tables.templates, job.tables.instances
        counts = np.diff(instances.op_first)
        self._instance = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self._like = np.repeat(templates.op_first[instances.template], counts) + within(counts)
        self._slot = templates.slot[self._like]
        self._group = instances.group[self._instance, self._slot]  # without meaning where the slot is -1

    def ops(self) -> Ops:
        """Return the columns over ops."""
        tables, job, like = self._job.tables, self._job, self._like
        instances, groups = tables.instances, tables.groups
        labels, label = self._labels()
        there = np.flatnonzero(self._slot >= 0)
        meeting = np.full(len(like), -1, dtype=np.int32)
        meeting[there] = groups.place_first[self._group[there]] + tables.templates.place[like[there]]
        parties = np.ones(len(like), dtype=np.int32)
        parties[there] = np.bincount(meeting[there])[meeting[there]]
        sends, waiting = self._awaited(receives=True)
        names = list(job.segments.lanes)
        lane_rank, lane_stage = lanes_of(job)
        lane, step, chunk, microbatch = (
            np.concatenate([getattr(each, name) for each in job.columns])[like]
            for name in ("lane", "step", "chunk", "microbatch")
        )
        return Ops(
            labels=labels,
            label=label,
            lane=lane + instances.lane_first[self._instance],
            step=step,
            chunk=chunk,
            microbatch=microbatch,
            seconds=self._seconds(),
            meeting=meeting,
            parties=parties,
            receives=(sends, waiting),
            lane_rank=lane_rank,
            lane_stage=lane_stage,
            lane_name=[names[lane] for template in instances.template for lane in job.columns[template].lanes.tolist()],
            speeds={int(instances.number[place]): profile for place, profile in tables.speeds.items()},
            make_waits=self._waits,
        )

    def _seconds(self) -> Floats:
        """Return the seconds of ops that ranks do alone; 0 for communication."""
        templates, instances = self._job.tables.templates, self._job.tables.instances
        seconds = templates.seconds[self._like]
        for instance in np.flatnonzero(instances.own_seconds >= 0):
            begin, end = instances.op_first[instance : instance + 2]
            start = instances.own_seconds[instance]
            seconds[begin:end] = instances.seconds[start : start + end - begin]
        slow = np.where(templates.sensitivity[self._like] >= 0, instances.slowness[self._instance], 1.0)
        return all_on_grid(seconds * slow)

    def _labels(self) -> tuple[list[Label], Int32s]:
        """Return the labels, and that of every op.

        An op's code is what it shows, and the kind of communication if that moves something over links.
        """
        groups, moved = self._job.tables.groups, self._job.moved
        plain, shown = _plain_labels(self._job)
        many = len(moved) + 1
        code = shown[_places(self._job)].astype(np.int64)[self._like] * many
        work = self._job.tables.templates.work[self._like]
        meets = np.flatnonzero(work >= 0)
        kind = groups.kinds[groups.kind_first[self._group[meets]] + work[meets]]
        moves = np.array([bool(each) for each in moved], dtype=bool)
        code[meets] += np.where(moves[kind], kind + 1, 0)
        used = np.zeros(len(plain) * many + 1, dtype=bool)
        used[np.maximum(code, -1)] = True
        number = np.cumsum(used, dtype=np.int32) - 1
        number[-1] = -1
        labels = []
        for value in np.flatnonzero(used[:-1]).tolist():
            label, kind = divmod(value, many)
            labels.append(plain[label]._replace(traffics=moved[kind - 1]) if kind else plain[label])
        return labels, number[np.maximum(code, -1)]

    def _waits(self) -> Waits:
        """Return what ops wait for besides the op before them on their lane."""
        counts = np.diff(self._job.tables.templates.wait_first)[self._like]
        return Waits(np.concatenate([[0], np.cumsum(counts)]), self._awaited()[0])

    def _awaited(self, *, receives: bool = False) -> tuple[Ints, Ints]:
        """Return awaited ops, and the ops that wait for each of them; of other instances alone if for ``receives``."""
        templates, instances = self._job.tables.templates, self._job.tables.instances
        counts = np.diff(templates.wait_first)[self._like]
        waiting = np.repeat(np.arange(len(counts)), counts)
        wait = templates.wait_first[self._like[waiting]] + within(counts)
        if receives:
            there = templates.wait_peer[wait] >= 0
            waiting, wait = waiting[there], wait[there]
        instance, peer = self._instance[waiting], templates.wait_peer[wait]
        whose = np.where(peer >= 0, instances.peer[instance, peer], instance)
        return instances.op_first[whose].astype(np.int64) + templates.wait_op[wait], waiting
