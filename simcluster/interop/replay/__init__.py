"""Replay of recorded jobs: dependencies, straggler metrics and what-if questions.

``measure(load_trace("trace.parquet")).slowdown`` is the estimator's S.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simcluster.interop.replay.graph_builder import build_graphs
from simcluster.interop.replay.recorded_job import Recorded
from simcluster.interop.replay.recorded_trace import Trace, read_trace, trace_of
from simcluster.interop.replay.straggler_metrics import StragglerCost, Straggling, measure
from simcluster.interop.replay.trace_checks import add_transfer_seconds, check_trace, refuse_uneven_replicas

__all__ = [
    "Recorded", "StragglerCost", "Straggling", "Trace", "load_trace", "measure", "read_trace", "recorded", "trace_of",
]  # fmt: skip


def load_trace(path: str | Path, steps: Sequence[int] | None = None) -> Recorded:
    """Load a recorded job, or some of its steps, from a Parquet file.

    The job's ``notes`` list repairs and assumptions. Raises InputError, naming the row, for a trace that cannot be
    replayed.
    """
    return recorded(read_trace(path), steps)


def recorded(trace: Trace, steps: Sequence[int] | None = None) -> Recorded:
    """Return the job of a trace in memory, checked and with its dependencies rebuilt."""
    trace, notes = check_trace(trace, steps)
    rebuilt = build_graphs(trace)
    refuse_uneven_replicas(trace)
    graphs, more = add_transfer_seconds(rebuilt, trace.name)
    _, first = np.unique(trace.worker, return_index=True)
    return Recorded(trace.name, graphs, tuple(trace.rank[first].tolist()), (*notes, *more))
