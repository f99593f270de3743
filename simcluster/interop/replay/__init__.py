"""Replay of recorded jobs: dependencies between ops, straggler metrics, and what-if questions.

``measure_stragglers(load_recorded_job("trace.parquet")).slowdown`` is the estimator's S.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simcluster.interop.replay.graph_builder import build_step_graphs
from simcluster.interop.replay.recorded_job import RecordedJob
from simcluster.interop.replay.recorded_trace import RecordedTrace, read_recorded_trace, trace_from_columns
from simcluster.interop.replay.straggler_metrics import StragglerCost, StragglerMetrics, measure_stragglers
from simcluster.interop.replay.trace_checks import check_trace, reject_unequal_replicas, set_op_seconds

__all__ = [
    "RecordedJob", "RecordedTrace", "StragglerCost", "StragglerMetrics", "build_recorded_job", "load_recorded_job",
    "measure_stragglers", "read_recorded_trace", "trace_from_columns",
]  # fmt: skip


def load_recorded_job(path: str | Path, steps: Sequence[int] | None = None) -> RecordedJob:
    """Load a recorded job from a Parquet file: all steps, or the selected ones.

    The job's ``notes`` list repairs and assumptions. Raises InputError, naming the row, for a trace that cannot be
    replayed.
    """
    return build_recorded_job(read_recorded_trace(path), steps)


def build_recorded_job(trace: RecordedTrace, steps: Sequence[int] | None = None) -> RecordedJob:
    """Build a recorded job from a trace in memory: check the trace, then reconstruct the ops' dependencies."""
    trace, notes = check_trace(trace, steps)
    rebuilt = build_step_graphs(trace)
    reject_unequal_replicas(trace)
    graphs, more = set_op_seconds(rebuilt, trace.name)
    _, first = np.unique(trace.worker_numbers, return_index=True)
    return RecordedJob(trace.name, graphs, tuple(trace.rank[first].tolist()), (*notes, *more))
