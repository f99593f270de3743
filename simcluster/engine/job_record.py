"""The record of a job that the compiled engine simulates, and its ops one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints, Numbers, within
from simcluster.base.clock import all_on_grid, later_on_this_grid
from simcluster.engine.op_times import OpTimesReader
from simcluster.engine.run import EngineRun, simulate_tables
from simcluster.engine.tables import Tables
from simcluster.engine.tabulate import JobTables
from simcluster.planning.ops import MAIN
from simcluster.reference.record import Label, Ops, RankOps, RankRecord, RankTimes, Record, Waits


def lanes_of(job: JobTables) -> tuple[Int32s, Int32s]:
    """Return the rank and the stage of every lane."""
    instances = job.tables.instances
    stages = np.array([each.stage for each in job.columns], dtype=np.int32)[instances.template]
    lanes = np.diff(instances.lane_first)
    return np.repeat(instances.number, lanes), np.repeat(stages, lanes)


def ops_of_ranks(job: JobTables) -> list[RankOps]:
    """Return the ops of the ranks that run each template."""
    templates, instances = job.tables.templates, job.tables.instances
    labels, shown = _plain_labels(job)
    on_main = np.array([lane == MAIN for lane in job.segments.lanes])
    meets = np.array([op.work.parties(1) > 1 for op in job.segments.ops], dtype=bool)
    places, found = _places(job), []
    for template, instance in enumerate(np.unique(instances.template, return_index=True)[1]):
        columns = job.columns[template]
        first = templates.wait_first[templates.op_first[template] : templates.op_first[template + 1] + 1]
        waits = first[0] + np.flatnonzero(templates.wait_peer[first[0] : first[-1]] >= 0)
        senders = instances.template[instances.peer[instance][templates.wait_peer[waits]]]
        sends = places[templates.op_first[senders] + templates.wait_op[waits]]
        found.append(
            RankOps(
                labels=labels,
                label=shown[columns.place],
                lane=columns.lane,
                on_main=on_main[columns.lanes][columns.lane],
                step=columns.step,
                chunk=columns.chunk,
                microbatch=columns.microbatch,
                pair=meets[columns.place] | (shown[columns.place] < 0),
                receiver=np.searchsorted(first, waits, side="right") - 1,
                sent=shown[sends],
                meets=meets[sends],
            )
        )
    return found


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
    tables = job.tables
    templates, instances, groups = tables.templates, tables.instances, tables.groups
    instance, like = _expansion(job)
    slot = templates.slot[like]
    there = np.flatnonzero(slot >= 0)
    group = instances.group[instance, slot]  # without meaning where there is none
    meeting = np.full(len(like), -1, dtype=np.int32)
    meeting[there] = groups.place_first[group[there]] + templates.place[like[there]]
    parties = np.ones(len(like), dtype=np.int32)
    parties[there] = np.bincount(meeting[there])[meeting[there]]
    labels, label = _labels(job, like, group)
    waits = np.diff(templates.wait_first)[like]
    lane_rank, lane_stage = lanes_of(job)
    names = list(job.segments.lanes)
    lane, step, chunk, microbatch = (
        np.concatenate([getattr(each, name) for each in job.columns])[like]
        for name in ("lane", "step", "chunk", "microbatch")
    )
    return Ops(
        labels=labels,
        label=label,
        lane=lane + instances.lane_first[instance],
        step=step,
        chunk=chunk,
        microbatch=microbatch,
        seconds=_seconds(tables, instance, like),
        meeting=meeting,
        parties=parties,
        receives=_awaited(job, instance, like, waits, 0),
        lane_rank=lane_rank,
        lane_stage=lane_stage,
        lane_name=[names[lane] for template in instances.template for lane in job.columns[template].lanes.tolist()],
        speeds={int(instances.number[place]): profile for place, profile in tables.speeds.items()},
        make_waits=lambda: _waits(job),
    )


def _expansion(job: JobTables) -> tuple[Ints, Ints]:
    """Return the instance of every op, and the op of the templates that it is."""
    templates, instances = job.tables.templates, job.tables.instances
    counts = np.diff(instances.op_first)
    instance = np.repeat(np.arange(len(counts)), counts)
    shift = templates.op_first[instances.template] - instances.op_first[:-1]
    return instance, np.repeat(shift, counts) + np.arange(len(instance))


def _seconds(tables: Tables, instance: Ints, like: Ints) -> Floats:
    """Return the seconds of ops that ranks do alone; 0 for communication."""
    templates, instances = tables.templates, tables.instances
    seconds = templates.seconds[like]
    for own in np.flatnonzero(instances.own_seconds >= 0):
        begin, end = instances.op_first[own : own + 2]
        start = instances.own_seconds[own]
        seconds[begin:end] = instances.seconds[start : start + end - begin]
    slow = np.where((templates.sensitivity >= 0)[like], instances.slowness[instance], 1.0)
    return all_on_grid(seconds * slow)


def _labels(job: JobTables, like: Ints, group: Int32s) -> tuple[list[Label], Int32s]:
    """Return the labels, and that of every op.

    An op's code is what it shows, and the kind of communication if that moves something over links.
    """
    groups, moved = job.tables.groups, job.moved
    plain, shown = _plain_labels(job)
    many = len(moved) + 1
    code = shown[_places(job)].astype(np.int64)[like] * many
    work = job.tables.templates.work[like]
    meets = np.flatnonzero(work >= 0)
    kind = groups.kinds[groups.kind_first[group[meets]] + work[meets]]
    moves = np.array([bool(each) for each in moved], dtype=bool)
    code[meets] += np.where(moves[kind], kind + 1, 0)
    np.maximum(code, -1, out=code)
    used = np.zeros(len(plain) * many + 1, dtype=bool)  # the last is that of ops without a label
    used[code] = True
    number = np.cumsum(used, dtype=np.int32) - 1
    number[-1] = -1
    labels = []
    for value in np.flatnonzero(used[:-1]).tolist():
        label, kind = divmod(value, many)
        labels.append(plain[label]._replace(traffics=moved[kind - 1]) if kind else plain[label])
    return labels, number[code]


def _waits(job: JobTables) -> Waits:
    """Return what ops wait for besides the op before them on their lane."""
    instance, like = _expansion(job)
    counts = np.diff(job.tables.templates.wait_first)[like]
    return Waits(np.concatenate([[0], np.cumsum(counts)]), _awaited(job, instance, like, counts)[0])


def _awaited(job: JobTables, instance: Ints, like: Ints, counts: Numbers, least: int = -1) -> tuple[Ints, Ints]:
    """Return awaited ops, and the op that waits for each; 0 as the ``least`` peer leaves those of other instances."""
    templates, instances = job.tables.templates, job.tables.instances
    waiting = np.repeat(np.arange(len(like)), counts)
    wait = templates.wait_first[like[waiting]] + within(counts)
    there = templates.wait_peer[wait] >= least
    waiting, wait = waiting[there], wait[there]
    own, peer = instance[waiting], templates.wait_peer[wait]
    whose = np.where(peer >= 0, instances.peer[own, peer], own)
    return instances.op_first[whose].astype(np.int64) + templates.wait_op[wait], waiting


_KEPT = 250_000_000
"""The most ops whose times are kept (2 GB); those of larger jobs are simulated again when they are read."""


def simulate_job(job: JobTables, why: str = "", *, keeps_times: bool = True) -> Record:
    """Simulate a job on the clock's grid of now.

    Times of ops that the record does not keep are simulated again once they are asked for.  Raises DeadlockError when
    ops are left that can never begin, and BeyondGridError when the clock leaves its grid.
    """
    keeps_times = keeps_times and bool(job.tables.instances.op_first[-1] <= _KEPT)
    found = simulate_tables(job.tables, job.describe, keeps_times=keeps_times)

    @cache
    def simulated() -> EngineRun:
        return found if found.kept else simulate_tables(job.tables, job.describe, keeps_times=True)

    @cache
    def ops() -> list[RankOps]:
        return ops_of_ranks(job)

    rank, stage = lanes_of(job)
    return Record(
        lane_rank=rank,
        lane_stage=stage,
        lane_end=found.lane_end,
        events=found.events,
        engine="compiled",
        why=why,
        make_ops=later_on_this_grid(lambda: ops_of(job)),
        make_times=later_on_this_grid(lambda: simulated().times),
        make_ranks=later_on_this_grid(lambda: _ranks(job, simulated(), ops())),
    )


def _ranks(job: JobTables, simulated: EngineRun, ops: Sequence[RankOps]) -> Iterator[RankRecord]:
    """Generate the ranks of a job; their times share memory, so each is valid until the next."""
    assert simulated.kept is not None
    instances = job.tables.instances
    reader = OpTimesReader(job.tables, simulated.kept, max(len(each) + len(each.receiver) for each in ops))
    for instance in np.argsort(instances.number).tolist():
        template = int(instances.template[instance])
        ready, start, end, _, last = reader.columns(reader.read_received(instance, reader.read(instance, 0)))
        times = RankTimes(ready, start, end, last)
        yield RankRecord(int(instances.number[instance]), job.columns[template].stage, ops[template], times)
