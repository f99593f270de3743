"""The ops of a job's tables, one by one, as its record shows them.  Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from simcluster.base.arrays import Bools, Floats, Int32s, Ints
from simcluster.base.clock import all_on_grid
from simcluster.engine.tabulate import JobTables
from simcluster.planning.ops import MAIN
from simcluster.reference.record import Label, Ops, RankOps, Waits


def ops_of(job: JobTables) -> Ops:
    """Return all ops of the simulated ranks, numbered as the tables number them."""
    return _Expansion(job).ops()


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


def _ops_of_template(job: JobTables, template: int, labels: list[Label], shown: Ints) -> RankOps:
    templates, instances, columns = job.tables.templates, job.tables.instances, job.columns[template]
    begin, end = templates.op_first[template], templates.op_first[template + 1]
    first = templates.wait_first[begin : end + 1]
    waits = first[0] + np.flatnonzero(templates.wait_peer[first[0] : first[-1]] >= 0)
    instance = int(np.flatnonzero(instances.template == template)[0])
    senders = instances.template[instances.peer[instance][templates.wait_peer[waits]]].tolist()
    sends = [job.columns[sender].place[op] for sender, op in zip(senders, templates.wait_op[waits], strict=True)]
    main = np.array([lane == MAIN for lane in job.segments.lanes])
    meets = np.array([op.work.parties(1) > 1 for op in job.segments.ops], dtype=bool)
    return RankOps(
        labels=labels,
        label=shown[columns.place].astype(np.int32),
        lane=columns.lanes[1],
        on_main=main[columns.lanes[0]][columns.lanes[1]],
        step=columns.step[columns.item],
        chunk=columns.chunk[columns.item],
        microbatch=columns.microbatch[columns.item],
        pair=meets[columns.place] | (shown[columns.place] < 0),
        receiver=np.searchsorted(first, waits, side="right") - 1,
        sent=shown[np.array(sends, dtype=np.int64)].astype(np.int32),
        meets=meets[np.array(sends, dtype=np.int64)],
    )


def _plain_labels(job: JobTables) -> tuple[list[Label], Ints]:
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
    return list(found), np.array(shown, dtype=np.int64)


class _Expansion:
    def __init__(self, job: JobTables) -> None:
        self._job, self._tables = job, job.tables
        instances = job.tables.instances
        self._template = instances.template.tolist()
        self._first = instances.op_first
        self._lane_first = instances.lane_first

    def ops(self) -> Ops:
        tables, instances, job = self._tables, self._tables.instances, self._job
        columns = job.columns
        labels, label = self._labels()
        meeting = self._meetings()
        there = meeting >= 0
        parties = np.ones(len(meeting), dtype=np.int32)
        parties[there] = np.bincount(meeting[there])[meeting[there]]
        lanes = [each.lanes[0] for each in columns]
        names = list(job.segments.lanes)
        lane_rank, lane_stage = lanes_of(job)
        numbers = [int(number) for number in instances.number]
        return Ops(
            labels=labels,
            label=label,
            lane=self._column([each.lanes[1] for each in columns], self._lane_first[:-1]),
            step=self._column([each.step[each.item] for each in columns]),
            chunk=self._column([each.chunk[each.item] for each in columns]),
            microbatch=self._column([each.microbatch[each.item] for each in columns]),
            seconds=self._seconds(),
            meeting=meeting,
            parties=parties,
            receives=self._receives(),
            lane_rank=lane_rank,
            lane_stage=lane_stage,
            lane_name=[names[lane] for template in self._template for lane in lanes[template].tolist()],
            speeds={numbers[place]: profile for place, profile in tables.speeds.items()},
            make_waits=self._waits,
        )

    def _column(self, parts: list[Any], added: Int32s | None = None) -> Int32s:
        """Return a column over all ops from those of the templates; ``added`` is added to each instance's."""
        found = np.empty(int(self._first[-1]), dtype=np.int32)
        for instance, template in enumerate(self._template):
            begin, end = self._first[instance], self._first[instance + 1]
            found[begin:end] = parts[template] if added is None else parts[template] + added[instance]
        return found

    def _seconds(self) -> Floats:
        """Return the seconds of ops that ranks do alone; 0 for communication."""
        templates, instances = self._tables.templates, self._tables.instances
        found = np.empty(int(self._first[-1]))
        for instance, template in enumerate(self._template):
            begin, end = self._first[instance], self._first[instance + 1]
            own = slice(templates.op_first[template], templates.op_first[template + 1])
            seconds = templates.seconds[own]
            if instances.own_seconds[instance] >= 0:
                start = instances.own_seconds[instance]
                seconds = instances.seconds[start : start + end - begin]
            slow = np.where(templates.sensitivity[own] >= 0, instances.slowness[instance], 1.0)
            found[begin:end] = all_on_grid(seconds * slow)
        return found

    def _meetings(self) -> Int32s:
        """Return the number of every op's meeting, -1 for none."""
        templates, instances, groups = self._tables.templates, self._tables.instances, self._tables.groups
        found = np.full(int(self._first[-1]), -1, dtype=np.int32)
        communicating = []
        for begin, end in zip(templates.op_first[:-1], templates.op_first[1:], strict=True):
            ops = np.flatnonzero(templates.slot[begin:end] >= 0)
            communicating.append((ops, templates.slot[begin:end][ops], templates.place[begin:end][ops]))
        for instance, template in enumerate(self._template):
            ops, slot, place = communicating[template]
            found[self._first[instance] + ops] = groups.place_first[instances.group[instance]][slot] + place
        return found

    def _labels(self) -> tuple[list[Label], Int32s]:
        """Return the labels, and that of every op.

        Ops of a program that show and do the same have one code per instance: what they show, and the kind of
        communication if that moves something over links.
        """
        instances, groups, kinds = self._tables.instances, self._tables.groups, self._job.kinds
        plain, shown_by = _plain_labels(self._job)
        variants = self._variants(shown_by)
        many = len(self._tables.kinds.parties) + 1
        moves = np.array([bool(kinds.moved(kind)) for kind in range(many - 1)] + [False])
        codes: list[Ints] = []
        known: dict[tuple[int, bytes], int] = {}  # ranks that run the same program in the same groups
        which = []
        for instance, template in enumerate(self._template):
            name = template, instances.group[instance].tobytes()
            which.append(known.setdefault(name, len(codes)))
            if which[-1] < len(codes):
                continue
            shown, slot, work, _ = variants[template]
            kind = np.full(len(shown), -1, dtype=np.int64)
            meets = work >= 0
            group = instances.group[instance][slot[meets]]
            kind[meets] = groups.kinds[groups.kind_first[group] + work[meets]]
            codes.append(np.where(shown < 0, -1, shown * many + np.where(moves[kind], kind + 1, 0)))
        values, number = np.unique(np.concatenate([[-1], *codes]), return_inverse=True)
        labels = []
        for value in values[1:].tolist():
            label, kind = divmod(value, many)
            labels.append(plain[label]._replace(traffics=kinds.moved(kind - 1)) if kind else plain[label])
        found = np.empty(int(self._first[-1]), dtype=np.int32)
        numbers = np.split(number[1:] - 1, np.cumsum([len(each) for each in codes])[:-1])
        for instance, template in enumerate(self._template):
            variant = variants[template][3]
            found[self._first[instance] : self._first[instance + 1]] = numbers[which[instance]][variant]
        return labels, found

    def _variants(self, shown_by: Ints) -> list[tuple[Ints, Ints, Ints, Ints]]:
        """Return, per template, the label, slot and work of its distinct ops, and which of these each op is."""
        templates, found = self._tables.templates, []
        for columns, begin, end in zip(
            self._job.columns, templates.op_first[:-1], templates.op_first[1:], strict=True
        ):  # fmt: skip
            rows: list[Any] = [shown_by[columns.place], templates.slot[begin:end], templates.work[begin:end]]
            sizes = [int(row.max(initial=-1)) + 2 for row in rows]
            values, variant = np.unique(np.ravel_multi_index([row + 1 for row in rows], sizes), return_inverse=True)
            shown, slot, work = (each.astype(np.int64) - 1 for each in np.unravel_index(values, sizes))
            found.append((shown, slot, work, variant))
        return found

    def _waits(self) -> Waits:
        """Return what ops wait for besides the op before them on their lane."""
        _, counts, _, ops = zip(*self._awaited(), strict=True)
        return Waits(np.concatenate([[0], np.cumsum(np.concatenate(counts))]), np.concatenate(ops))

    def _receives(self) -> tuple[Ints, Ints]:
        """Return transfers, and the ops on the receivers that wait for them."""
        sends, waiting = [], []
        for first, counts, there, ops in self._awaited():
            sends.append(ops[there])
            waiting.append(first + np.repeat(np.arange(len(counts)), counts)[there])
        return np.concatenate(sends), np.concatenate(waiting)

    def _awaited(self) -> Iterator[tuple[int, Int32s, Bools, Ints]]:
        """Yield the first op of each instance, how many ops each of its ops waits for, which of these are of other
        instances, and the ops."""
        templates, instances = self._tables.templates, self._tables.instances
        for instance, template in enumerate(self._template):
            begin, end = templates.op_first[template], templates.op_first[template + 1]
            first = templates.wait_first[begin : end + 1]
            rows = slice(first[0], first[-1])
            peer = templates.wait_peer[rows]
            whose = np.full(len(peer), instance)
            whose[peer >= 0] = instances.peer[instance][peer[peer >= 0]]
            ops = self._first[whose].astype(np.int64) + templates.wait_op[rows]
            yield self._first[instance], np.diff(first), peer >= 0, ops
