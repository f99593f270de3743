"""The record of a job that the compiled engine simulates."""

from __future__ import annotations

from functools import partial

from simcluster.base.clock import later_on_this_grid
from simcluster.engine.op_parts import part_of, parts_of
from simcluster.engine.run import simulate_tables
from simcluster.engine.table_ops import lanes_of, ops_of
from simcluster.engine.tabulate import JobTables
from simcluster.reference.record import OpTimes, Record
from simcluster.reference.record_parts import LargeRecord

_KEPT = 250_000_000
"""Ops up to which their times are kept, which take 2 GB."""


def simulate_job(job: JobTables, why: str = "", *, keeps_times: bool = True) -> Record:
    """Simulate a job on the clock's grid of now.

    Times of ops that the record does not keep are simulated again once they are asked for.  Raises DeadlockError when
    ops are left that can never begin, and BeyondGridError when the clock leaves its grid.
    """

    def times() -> OpTimes:
        simulated = found if found.kept else simulate_tables(job.tables, job.describe, keeps_times=True)
        return simulated.times

    keeps_times = keeps_times and job.tables.instances.op_first[-1] <= _KEPT
    found = simulate_tables(job.tables, job.describe, keeps_times=bool(keeps_times))
    rank, stage = lanes_of(job)
    record = Record(
        lane_rank=rank,
        lane_stage=stage,
        lane_end=found.lane_end,
        events=found.events,
        engine="compiled",
        why=why,
        make_ops=later_on_this_grid(lambda: ops_of(job)),
        make_times=later_on_this_grid(times),
    )
    parts = [later_on_this_grid(partial(part_of, job, some)) for some in parts_of(job)]
    return LargeRecord(**vars(record), make_parts=parts) if parts else record
