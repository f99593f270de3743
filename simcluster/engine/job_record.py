"""Record of a job that the compiled engine simulates, and its ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.clock import bind_to_current_grid, round_all_to_tick
from simcluster.engine.op_times import OpTimesReader
from simcluster.engine.run import EngineRun, simulate_tables
from simcluster.engine.tables import offsets, part_indices
from simcluster.engine.tabulate import JobTables
from simcluster.planning.ops import MAIN
from simcluster.reference.record import Label, Ops, RankOps, RankRecord, RankTimes, Record, Waits


def template_rank_ops(job: JobTables) -> list[RankOps]:
    """Return for each template the ops of the ranks that run it."""
    columns, found = job.columns, []
    on_main = np.array([name == MAIN for name in columns.lane_names], dtype=bool)
    receiver = np.repeat(np.arange(len(columns)), np.diff(columns.wait_first))
    for template, (begin, end) in enumerate(pairwise(columns.op_first.tolist())):
        own, (first, last) = slice(begin, end), columns.wait_first[[begin, end]]
        received = first + np.flatnonzero(columns.wait_peer[first:last] >= 0)
        lane, receivers, sends = columns.lane[own], receiver[received] - begin, columns.awaited[received]
        lanes = {"lane": lane - columns.lane_first[template], "on_main": on_main[lane], "receiver": receivers}
        found.append(RankOps.of(columns, own, sends, **lanes, pair=columns.pairs[own], meets=columns.pairs[sends]))
    return found


def lane_ranks_and_stages(job: JobTables) -> tuple[Int32s, Int32s]:
    """Return the rank and the stage of every lane, in two arrays."""
    instances = job.tables.instances
    lanes = np.diff(instances.lane_first)
    return np.repeat(instances.number, lanes), np.repeat(job.columns.stages[instances.template], lanes)


def make_ops(job: JobTables) -> Ops:
    """Return all ops of the simulated ranks, numbered as the tables number them."""
    columns, instances, groups = job.columns, job.tables.instances, job.tables.groups
    instance = np.repeat(np.arange(len(instances.template)), np.diff(instances.op_first))
    like = part_indices(columns.op_first, instances.template)
    meets = np.flatnonzero(columns.slot[like] >= 0)
    group = instances.group[instance[meets], columns.slot[like[meets]]]
    meeting = np.full(len(like), -1, dtype=np.int32)
    meeting[meets] = groups.place_first[group] + job.tables.templates.place[like[meets]]
    parties = np.ones(len(like), dtype=np.int32)
    parties[meets] = np.bincount(meeting[meets])[meeting[meets]]
    labels, label = _op_labels(job, like, meets, group)
    lane_rank, lane_stage = lane_ranks_and_stages(job)
    return Ops(
        labels=labels,
        label=label,
        lane=columns.lane[like] + (instances.lane_first[:-1] - columns.lane_first[instances.template])[instance],
        step=columns.step[like],
        chunk=columns.chunk[like],
        microbatch=columns.microbatch[like],
        seconds=_op_seconds(job, instance, like),
        meeting=meeting,
        parties=parties,
        receives=_awaited_ops(job, instance, like, 0),
        lane_rank=lane_rank,
        lane_stage=lane_stage,
        lane_name=[columns.lane_names[lane] for lane in part_indices(columns.lane_first, instances.template).tolist()],
        speeds={int(instances.number[place]): profile for place, profile in job.tables.speeds.items()},
        make_waits=lambda: Waits(
            offsets(np.diff(columns.wait_first)[like]).astype(np.int64), _awaited_ops(job, instance, like)[0]
        ),
    )


def _op_seconds(job: JobTables, instance: Ints, like: Ints) -> Floats:
    columns, instances = job.columns, job.tables.instances
    seconds = columns.seconds[like]
    own = instances.own_seconds[instance] >= 0
    seconds[own] = instances.seconds  # those of one instance after the other
    return round_all_to_tick(seconds * np.where(columns.sensitivity[like] >= 0, instances.slowness[instance], 1.0))


def _op_labels(job: JobTables, like: Ints, meets: Ints, group: Int32s) -> tuple[list[Label], Int32s]:
    """Return the distinct labels, and the label number of every op.

    An op's code is what it shows, and the kind of communication if that moves something over links.
    """
    columns, groups, many = job.columns, job.tables.groups, len(job.moved) + 1
    code = columns.label.astype(np.int64)[like] * many
    leads = columns.work[like[meets]] >= 0
    kind = groups.kinds[groups.kind_first[group[leads]] + columns.work[like[meets[leads]]]]
    moves = np.array([bool(each) for each in job.moved], dtype=bool)
    code[meets[leads]] += np.where(moves[kind], kind + 1, 0)
    np.maximum(code, -1, out=code)
    used = np.zeros(len(columns.labels) * many + 1, dtype=bool)  # the last is that of ops without a label
    used[code] = True
    number = np.cumsum(used, dtype=np.int32) - 1
    number[-1] = -1
    labels = []
    for value in np.flatnonzero(used[:-1]).tolist():
        label, kind = divmod(value, many)
        labels.append(columns.labels[label]._replace(traffics=job.moved[kind - 1] if kind else ()))
    return labels, number[code]


def _awaited_ops(job: JobTables, instance: Ints, like: Ints, least: int = -1) -> tuple[Ints, Ints]:
    """Return the awaited ops, and the op that waits for each; ``least`` 0 keeps only those of other instances."""
    columns, instances = job.columns, job.tables.instances
    waiting = np.repeat(np.arange(len(like)), np.diff(columns.wait_first)[like])
    wait = part_indices(columns.wait_first, like)
    there = columns.wait_peer[wait] >= least
    waiting, wait = waiting[there], wait[there]
    own, stage = instance[waiting], columns.wait_peer[wait]
    whose = np.where(stage >= 0, instances.peer[own, stage], own)
    return instances.op_first[whose].astype(np.int64) + columns.wait_op[wait], waiting


_MAX_KEPT_OPS = 250_000_000
"""The most ops whose times are kept (2 GB); those of larger jobs are simulated again when they are read."""


def simulate_job(job: JobTables, why: str = "", *, keeps_times: bool = True) -> Record:
    """Simulate a job on the clock's grid of now.

    Times of ops that the record does not keep are simulated again once they are asked for.  Raises DeadlockError when
    ops are left that can never begin, and BeyondGridError when the clock leaves its grid.
    """
    keeps_times = keeps_times and bool(job.tables.instances.op_first[-1] <= _MAX_KEPT_OPS)
    found = simulate_tables(job.tables, job.describe, keeps_times=keeps_times)

    @cache
    def simulated() -> EngineRun:
        return found if found.kept else simulate_tables(job.tables, job.describe, keeps_times=True)

    @cache
    def ops() -> list[RankOps]:
        return template_rank_ops(job)

    rank, stage = lane_ranks_and_stages(job)
    return Record(
        lane_rank=rank,
        lane_stage=stage,
        lane_end=found.lane_end,
        events=found.events,
        engine="compiled",
        why=why,
        make_ops=bind_to_current_grid(lambda: make_ops(job)),
        make_times=bind_to_current_grid(lambda: simulated().times),
        make_ranks=bind_to_current_grid(lambda: _read_ranks(job, simulated(), ops())),
    )


def _read_ranks(job: JobTables, simulated: EngineRun, ops: Sequence[RankOps]) -> Iterator[RankRecord]:
    """Generate the records of a job's ranks; times share memory, so each is valid until the next."""
    assert simulated.kept is not None
    instances = job.tables.instances
    reader = OpTimesReader(job.tables, simulated.kept, max(len(each) + len(each.receiver) for each in ops))
    for instance in np.argsort(instances.number).tolist():
        template = int(instances.template[instance])
        ready, start, end, _, last = reader.columns(reader.read_received(instance, reader.read(instance, 0)))
        times = RankTimes(ready, start, end, last)
        yield RankRecord(int(instances.number[instance]), int(job.columns.stages[template]), ops[template], times)
