"""Simulation of a job with the compiled engine, and conversion of its results to a ``StepRecord``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.clock import bind_to_current_grid, round_all_to_tick
from simcluster.engine.op_times import OpTimesReader
from simcluster.engine.run import EngineRun, simulate_tables
from simcluster.engine.tables import csr_offsets, csr_part_indices
from simcluster.engine.tabulate import JobTables
from simcluster.planning.ops import MAIN
from simcluster.reference import step_record
from simcluster.reference.step_record import OpTable, RankOpTable, RankOpTimes, RankRecord, StepRecord


def template_rank_ops(job: JobTables) -> list[RankOpTable]:
    """Return for each template (program shared by equal ranks) the ops of a rank that runs it."""
    ops, found = job.columns, []
    on_main = np.array([name == MAIN for name in ops.lane_names], dtype=bool)
    receiver = np.repeat(np.arange(len(ops)), np.diff(ops.wait_first))
    for template, (begin, end) in enumerate(pairwise(ops.op_first.tolist())):
        own, (first, last) = slice(begin, end), ops.wait_first[[begin, end]]
        received = first + np.flatnonzero(ops.wait_peer[first:last] >= 0)
        lane, receivers, sends = ops.lane[own], receiver[received] - begin, ops.awaited[received]
        lanes = {"lane": lane - ops.lane_first[template], "on_main": on_main[lane], "receiver": receivers}
        found.append(RankOpTable.from_columns(ops, own, sends, **lanes, pair=ops.pairs[own], meets=ops.pairs[sends]))
    return found


def lane_ranks_and_stages(job: JobTables) -> tuple[Int32s, Int32s]:
    """Return the rank and the pipeline stage of every lane (in-order op queue), as two arrays."""
    instances = job.tables.instances
    lanes = np.diff(instances.lane_first)
    return np.repeat(instances.number, lanes), np.repeat(job.columns.stages[instances.template], lanes)


def list_all_ops(job: JobTables) -> OpTable:
    """Return the ops of all simulated ranks, in the order of the op numbers in the engine's tables."""
    columns, instances, groups = job.columns, job.tables.instances, job.tables.groups
    instance = np.repeat(np.arange(len(instances.template)), np.diff(instances.op_first))
    like = csr_part_indices(columns.op_first, instances.template)
    meets = np.flatnonzero(columns.slot[like] >= 0)
    group = instances.group[instance[meets], columns.slot[like[meets]]]
    meeting = np.full(len(like), -1, dtype=np.int32)
    meeting[meets] = groups.place_first[group] + job.tables.templates.place[like[meets]]
    parties = np.ones(len(like), dtype=np.int32)
    parties[meets] = np.bincount(meeting[meets])[meeting[meets]]
    labels, label = _op_labels(job, like, meets, group)
    lane_rank, lane_stage = lane_ranks_and_stages(job)
    return OpTable(
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
        lane_name=[columns.lane_names[at] for at in csr_part_indices(columns.lane_first, instances.template).tolist()],
        speeds={int(instances.number[place]): profile for place, profile in job.tables.speeds.items()},
        make_dependencies=lambda: step_record.OpDependencies(
            csr_offsets(np.diff(columns.wait_first)[like]).astype(np.int64), _awaited_ops(job, instance, like)[0]
        ),
    )


def _op_seconds(job: JobTables, instance: Ints, like: Ints) -> Floats:
    columns, instances = job.columns, job.tables.instances
    seconds = columns.seconds[like]
    own = instances.own_seconds[instance] >= 0
    seconds[own] = instances.seconds  # those of one instance after the other
    return round_all_to_tick(seconds * np.where(columns.sensitivity[like] >= 0, instances.slowness[instance], 1.0))


def _op_labels(job: JobTables, like: Ints, meets: Ints, group: Int32s) -> tuple[list[step_record.OpSpanLabel], Int32s]:
    """Return the distinct labels, and the index of every op's label (-1 for none).

    An op's code is what it shows, and the kind of communication if that moves something over links.
    """
    columns, groups, many = job.columns, job.tables.groups, len(job.link_traffic) + 1
    code = columns.label.astype(np.int64)[like] * many
    leads = columns.work[like[meets]] >= 0
    kind = groups.kinds[groups.kind_first[group[leads]] + columns.work[like[meets[leads]]]]
    moves = np.array([bool(each) for each in job.link_traffic], dtype=bool)
    code[meets[leads]] += np.where(moves[kind], kind + 1, 0)
    np.maximum(code, -1, out=code)
    used = np.zeros(len(columns.labels) * many + 1, dtype=bool)  # the last is that of ops without a label
    used[code] = True
    number = np.cumsum(used, dtype=np.int32) - 1
    number[-1] = -1
    labels = []
    for value in np.flatnonzero(used[:-1]).tolist():
        label, kind = divmod(value, many)
        labels.append(columns.labels[label]._replace(traffics=job.link_traffic[kind - 1] if kind else ()))
    return labels, number[code]


def _awaited_ops(job: JobTables, instance: Ints, like: Ints, least: int = -1) -> tuple[Ints, Ints]:
    """Return all dependencies as two arrays (awaited op, waiting op); with ``least`` = 0 only those across ranks."""
    columns, instances = job.columns, job.tables.instances
    waiting = np.repeat(np.arange(len(like)), np.diff(columns.wait_first)[like])
    wait = csr_part_indices(columns.wait_first, like)
    there = columns.wait_peer[wait] >= least
    waiting, wait = waiting[there], wait[there]
    own, stage = instance[waiting], columns.wait_peer[wait]
    whose = np.where(stage >= 0, instances.peer[own, stage], own)
    return instances.op_first[whose].astype(np.int64) + columns.wait_op[wait], waiting


_MAX_KEPT_OPS = 250_000_000
"""Most ops whose times are kept in memory (2 GB); larger jobs are simulated again when their times are read."""


def simulate_job(job: JobTables, reason: str = "") -> StepRecord:
    """Simulate a job with the compiled engine, on the current clock grid, and return its record.

    Times of ops that the record does not keep are simulated again once they are asked for.  Raises DeadlockError when
    ops are left that can never begin, and BeyondGridError when the clock leaves its grid.
    """
    keeps_times = bool(job.tables.instances.op_first[-1] <= _MAX_KEPT_OPS)
    found = simulate_tables(job.tables, job.describe_op, keeps_times=keeps_times)

    @cache
    def run_with_times() -> EngineRun:
        return found if found.recorded_times else simulate_tables(job.tables, job.describe_op, keeps_times=True)

    template_ops = cache(lambda: template_rank_ops(job))
    rank, stage = lane_ranks_and_stages(job)
    return StepRecord(
        lane_rank=rank,
        lane_stage=stage,
        lane_end=found.lane_end,
        events=found.events,
        engine="compiled",
        why=reason,
        make_ops=bind_to_current_grid(lambda: list_all_ops(job)),
        make_times=bind_to_current_grid(lambda: run_with_times().times),
        make_ranks=bind_to_current_grid(lambda: _read_rank_records(job, run_with_times(), template_ops())),
    )


def _read_rank_records(job: JobTables, simulated: EngineRun, ops: Sequence[RankOpTable]) -> Iterator[RankRecord]:
    """Generate the record of each simulated rank; reading a record overwrites the arrays of the record before."""
    assert simulated.recorded_times is not None
    instances = job.tables.instances
    reader = OpTimesReader(job.tables, simulated.recorded_times, max(len(each) + len(each.receiver) for each in ops))
    for instance in np.argsort(instances.number).tolist():
        template = int(instances.template[instance])
        many = reader.read_received_messages(instance, reader.read_instance(instance, 0))
        ready, start, end, _, last = reader.time_columns(many)
        times = RankOpTimes(ready, start, end, last)
        yield RankRecord(int(instances.number[instance]), int(job.columns.stages[template]), ops[template], times)
