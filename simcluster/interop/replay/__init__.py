"""Recorded jobs: read a trace, rebuild who waited for whom, replay it, measure its stragglers, ask what if.

job = load_trace("trace.parquet")
print(measure(job).slowdown)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simcluster.interop.replay.graph_builder import build_graphs
from simcluster.interop.replay.recorded_job import Recorded
from simcluster.interop.replay.recorded_trace import Trace, read_trace, trace_of
from simcluster.interop.replay.straggler_metrics import StragglerCost, Straggling, measure
from simcluster.interop.replay.trace_checks import check_trace, refuse_uneven, add_transfer_seconds

__all__ = [
    "Recorded",
    "StragglerCost",
    "Straggling",
    "Trace",
    "load_trace",
    "measure",
    "read_trace",
    "recorded",
    "trace_of",
]


def load_trace(path: str | Path, steps: Sequence[int] | None = None) -> Recorded:
    """Load a recorded job (or these steps of it) from a Parquet file; ``notes`` state what was repaired or assumed.

    Raises InputError, naming the row, for a trace that cannot be replayed.
    """
    return recorded(read_trace(path), steps)


def recorded(trace: Trace, steps: Sequence[int] | None = None) -> Recorded:
    """Return the job of a trace in memory, as ``load_trace``."""
    trace, notes = check_trace(trace, steps)
    rebuilt = build_graphs(trace)
    refuse_uneven(trace)
    graphs, more = add_transfer_seconds(rebuilt, trace.name)
    _, first = np.unique(trace.worker, return_index=True)
    return Recorded(trace.name, graphs, tuple(trace.rank[first].tolist()), (*notes, *more))
