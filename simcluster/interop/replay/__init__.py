"""Replay of recorded jobs: read a trace, rebuild its dependencies, replay it, measure stragglers, ask what if.

``replay_trace("trace.parquet").slowdown`` is the estimator's S; ``load_trace`` and ``measure`` are its two halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simcluster.documents.argument_types import checked
from simcluster.interop.replay.graph_builder import build_graphs
from simcluster.interop.replay.recorded_job import Recorded
from simcluster.interop.replay.recorded_trace import Trace, read_trace, trace_of
from simcluster.interop.replay.straggler_metrics import StragglerCost, Straggling, measure
from simcluster.interop.replay.trace_checks import add_transfer_seconds, check_trace, refuse_uneven
from simcluster.results.result import Result

__all__ = [
    "Recorded", "StragglerCost", "Straggling", "Trace", "load_trace", "measure", "read_trace", "recorded",
    "replay_trace", "trace_of",
]  # fmt: skip


def load_trace(path: str | Path, steps: Sequence[int] | None = None) -> Recorded:
    """Load a recorded job (or some of its steps) from a Parquet file; ``notes`` list repairs and assumptions.

    Raises InputError, naming the row, for a trace that cannot be replayed.
    """
    return recorded(read_trace(path), steps)


def recorded(trace: Trace, steps: Sequence[int] | None = None) -> Recorded:
    """Return the job of a trace in memory, checked and rebuilt as by ``load_trace``."""
    trace, notes = check_trace(trace, steps)
    rebuilt = build_graphs(trace)
    refuse_uneven(trace)
    graphs, more = add_transfer_seconds(rebuilt, trace.name)
    _, first = np.unique(trace.worker, return_index=True)
    return Recorded(trace.name, graphs, tuple(trace.rank[first].tolist()), (*notes, *more))


@checked
def replay_trace(job: str | Path | Result, steps: Sequence[int] | None = None) -> Straggling:
    """Replay a recorded job (a Parquet file; or a result, as its trace) and return its straggler metrics.

    ``steps`` are those to read (default: all). Raises InputError, naming the row, for a trace that cannot be replayed.
    """
    if isinstance(job, str | Path):
        return measure(load_trace(job, steps))
    from simcluster.interop.replay.trace_writer import trace_of_result

    return measure(recorded(trace_of_result(job, job.scenario.name), steps))
