"""Writer of simulated runs as recorded traces, to test the replay on stragglers that are known.

A worker is recorded by its first tensor- and context-parallel rank; its passes include the collectives inside them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.atomic_files import open_atomic
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.compressed_files import import_pyarrow
from simcluster.interop.replay import StragglerMetrics, build_recorded_job, load_recorded_job, measure_stragglers
from simcluster.interop.replay.recorded_trace import (
    BACKWARD,
    BLOCKING_METADATA,
    COLUMNS,
    FORWARD,
    METADATA_KEY,
    WEIGHT_GRADIENT,
    RecordedTrace,
    trace_from_columns,
)
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.results.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.results.simulated_run import Run

_PASS_TYPES = {"forward": FORWARD, "weight_grad": WEIGHT_GRADIENT}
_COLLECTIVES = {
    ("dp", "all_gather"): "params-all-gather", ("dp", "reduce_scatter"): "grads-reduce-scatter",
    ("dp", "all_reduce"): "grads-all-reduce",
}  # fmt: skip
_TYPE_OF_NAME = {"embedding_gradients": "embedding-grads-all-reduce", "gradient_norm": "optimizer-clip-main-grad"}
ChunkPositionFunction = Callable[[int, int, int], int]
"""(microbatch, stage, chunk) -> the chunk's position in the model."""
_PassTimes = dict[tuple[int, str, int, int], tuple[float, float]]
"""Start and end by step, type, microbatch and chunk."""


def write_recorded_trace(result: Result, path: str | Path) -> None:
    """Write a simulated result as a recorded trace (Parquet); raise InputError if pyarrow is missing."""
    save_recorded_trace(recorded_trace_of_result(result, Path(path).stem), path)


def recorded_trace_of_result(result: Result, name: str) -> RecordedTrace:
    """Convert a simulated result to a recorded trace."""
    job, blocking = result.job, not result.scenario.overlap.pipeline
    return recorded_trace_of_run(result, job.plan, job.schedule.virtual_stage, blocking=blocking, name=name)


def save_recorded_trace(trace: RecordedTrace, path: str | Path) -> None:
    """Write a recorded trace as a Parquet file; raise InputError if pyarrow is missing or writing fails."""
    arrow, parquet = import_pyarrow(path, "write")
    columns = {name: getattr(trace, name) for name in COLUMNS if name != "optype"}
    columns["optype"] = [trace.optype_names[code] for code in trace.optype]
    table = arrow.table({name: columns[name] for name in COLUMNS})
    if trace.blocking:
        table = table.replace_schema_metadata({METADATA_KEY: json.dumps(BLOCKING_METADATA)})
    with open_atomic(path) as file:
        parquet.write_table(table, file)


def recorded_trace_of_run(
    run: Run, plan: ParallelPlan, locate: ChunkPositionFunction | None = None, *, blocking: bool = False, name: str = ""
) -> RecordedTrace:
    """Convert a simulated run to a recorded trace; with ``blocking``, each send blocks the worker.

    ``locate`` maps a stage's chunk to its position in the model (default: a loop over stages).
    """
    import pandas as pd

    located = locate or (lambda microbatch, stage, chunk: chunk * plan.pp + stage)
    known: dict[int, pd.DataFrame] = {}  # by the simulated rank that represents others
    parts = []
    for stage, dp in np.ndindex(plan.pp, plan.dp):
        rank = int(plan.grid[stage, dp, 0, 0])
        simulated = run.representative_of(rank)
        if simulated not in known:
            known[simulated] = _make_trace_rows(run.timeline_of(rank))
        parts.append(known[simulated].assign(dp_rank=dp, stage=stage, rank=rank))
    table = pd.concat(parts, ignore_index=True)
    passes = (table["mb_id"] >= 0) & table["optype"].isin([FORWARD, BACKWARD])
    places: Any = zip(passes, table["mb_id"], table["stage"], table["mc"], strict=True)
    table["gmc"] = [located(*where) if there else -1 for there, *where in places]
    table["mc"] = table["mc"].clip(lower=0).where(passes, -1)
    table["mb_id"] = table["mb_id"].where(passes, -1)
    table["duration"] = table["end"] - table["start_ts"]
    table["start_ts"] -= table.groupby("step")["start_ts"].transform("min")
    return trace_from_columns({name: table[name] for name in COLUMNS}, name=name, blocking=blocking)


def _make_trace_rows(spans: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    passes: _PassTimes = {}
    every: Any = spans.itertuples()
    rest = []
    for span in every:
        if span.stream == "compute" and span.microbatch >= 0:
            key = span.step, _PASS_TYPES.get(span.kind, BACKWARD), span.microbatch, span.chunk
            begin, end = passes.get(key, (span.start, span.end))
            passes[key] = min(begin, span.start), max(end, span.end)
        else:
            rest.append(span)
    others = []
    for span in rest:
        if span.stream in ("tp", "cp", "ep") and span.microbatch >= 0:
            _extend_pass(passes, span)
        else:
            others.append(_make_row_outside_passes(span, passes))
    rows = [(step, optype, *times, chunk, number, times[0]) for (step, optype, number, chunk), times in passes.items()]
    table = pd.DataFrame(
        [*rows, *others], columns=["step", "optype", "start_ts", "end", "mc", "mb_id", "order"]
    ).sort_values(["step", "order", "optype"])
    return table.assign(seq_id=table.groupby(["step", "optype"]).cumcount())


def _extend_pass(passes: _PassTimes, span: Any) -> None:
    """Extend the pass that contains a collective, or else the next pass, so that it includes the collective."""
    keys = [(span.step, phase, span.microbatch, span.chunk) for phase in (FORWARD, BACKWARD, WEIGHT_GRADIENT)]
    known, times = [key for key in keys if key in passes], passes.__getitem__
    inside = [key for key in known if times(key)[0] <= span.ready <= times(key)[1]]
    later = [key for key in known if times(key)[0] > span.ready]  # as a backward begins with its input's all-gather
    if known:
        key = max(inside, key=times) if inside else min(later, key=times) if later else max(known, key=times)
        passes[key] = min(times(key)[0], span.ready), max(times(key)[1], span.end)


def _make_row_outside_passes(span: Any, passes: _PassTimes) -> tuple[object, ...]:
    """Return the trace row of an op that belongs to no pass, such as a message or a collective."""
    if span.kind in ("send", "recv"):
        kind, phase = ("forward", FORWARD) if span.name == "activation" else ("backward", BACKWARD)
        order, _ = passes.get((span.step, phase, span.microbatch, span.chunk), (span.ready, 0.0))
        return span.step, f"{kind}-{span.kind}", span.ready, span.end, span.chunk, span.microbatch, order
    if span.stream == "compute":
        return span.step, span.name.replace("_", "-"), span.start, span.end, -1, -1, span.start
    optype = _TYPE_OF_NAME.get(span.name) or _COLLECTIVES.get((span.stream, span.kind)) or f"{span.name}-{span.kind}"
    return span.step, optype.replace("_", "-"), span.ready, span.end, -1, -1, span.ready


class StragglerEstimator:
    """Estimator of straggler metrics from a simulated run's trace, as if the trace were of a real job."""

    def __init__(self, result: Result, name: str) -> None:
        self._recorded = build_recorded_job(recorded_trace_of_result(result, name))

    @cached_property
    def metrics(self) -> StragglerMetrics:
        """Straggler metrics estimated from the run's trace."""
        return measure_stragglers(self._recorded)

    def time_share_without(self, workers: Sequence[int]) -> float:
        """Return the share of the run's time that remains if the given workers' ops take typical times."""
        (without,) = self._recorded.step_seconds_keeping(lambda graph: ~np.isin(graph.worker, workers))
        return float(without.sum() / self.metrics.replayed.sum())


@check_arguments
def replay_trace(job: str | Path | Result, steps: Sequence[int] | None = None) -> StragglerMetrics:
    """Replay a recorded trace (a Parquet file, or the trace of a result) and return straggler metrics.

    ``steps`` are those to read (default: all). Raises InputError, naming the row, for a trace that cannot be replayed.
    """
    if isinstance(job, str | Path):
        return measure_stragglers(load_recorded_job(job, steps))
    return measure_stragglers(build_recorded_job(recorded_trace_of_result(job, job.scenario.name), steps))
