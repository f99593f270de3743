"""The record of a job that the compiled engine simulates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from simcluster.base.clock import later_on_this_grid
from simcluster.engine.op_times import OpTimesReader
from simcluster.engine.run import EngineRun, simulate_tables
from simcluster.engine.table_ops import lanes_of, ops_of, ops_of_ranks
from simcluster.engine.tabulate import JobTables
from simcluster.reference.record import RankOps, RankRecord, RankTimes, Record

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
