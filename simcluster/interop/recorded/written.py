"""A simulated run in the format of recorded traces, so that what replays real jobs can be tried on known ones.

A worker is recorded by its first tensor- and context-parallel rank; its passes contain the collectives inside them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.interop.recorded.trace import (
    BACKWARD,
    BLOCKING,
    COLUMNS,
    FORWARD,
    METADATA,
    WEIGHT,
    Trace,
    trace_of,
)
from simcluster.planning.parallel import Plan

if TYPE_CHECKING:
    from simcluster.results.played import Run
    from simcluster.results.result import Result

_PHASES = {"forward": FORWARD, "weight_grad": WEIGHT}
_COLLECTIVES = {
    ("dp", "all_gather"): "params-all-gather",
    ("dp", "reduce_scatter"): "grads-reduce-scatter",
    ("dp", "all_reduce"): "grads-all-reduce",
}
_NAMED = {"embedding_gradients": "embedding-grads-all-reduce", "gradient_norm": "optimizer-clip-main-grad"}

Place = Callable[[int, int, int], int]
"""(microbatch, stage, chunk) -> the chunk's place in the model."""


class _Span(NamedTuple):
    step: int
    stream: str
    kind: str
    name: str
    chunk: int
    microbatch: int
    ready: float
    start: float
    end: float


class _Op(NamedTuple):
    step: int
    optype: str
    start: float
    end: float
    chunk: int
    microbatch: int
    order: float


def write_trace(result: Result, path: str | Path) -> None:
    """A result's timeline as a trace file (Parquet).  InputError where pyarrow is missing."""
    save_trace(trace_of_result(result, Path(path).stem), path)


def trace_of_result(result: Result, name: str) -> Trace:
    """The trace of a scenario's run."""
    job, blocking = result.job, not result.scenario.overlap.pipeline
    return trace_of_run(result, job.plan, job.schedule.virtual_stage, blocking=blocking, name=name)


def save_trace(trace: Trace, path: str | Path) -> None:
    """A trace as a Parquet file.  InputError where pyarrow is missing or the system refuses."""
    try:
        import pyarrow as arrow  # type: ignore[import-untyped]  # an extra; slow to import
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]
    except ImportError:
        raise InputError(f"cannot write {path}: Parquet needs pyarrow; pip install 'simcluster[parquet]'") from None
    columns = {name: getattr(trace, name) for name in COLUMNS if name != "optype"}
    columns["optype"] = [trace.words[code] for code in trace.optype]
    table = arrow.table({name: columns[name] for name in COLUMNS})
    if trace.blocking:
        table = table.replace_schema_metadata({METADATA: json.dumps(BLOCKING)})
    try:
        parquet.write_table(table, path)
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror}") from None


def trace_of_run(run: Run, plan: Plan, place: Place | None = None, *, blocking: bool = False, name: str = "") -> Trace:
    """The trace of a run on these ranks; ``place`` says which chunk of the model a stage's chunk is (default: a loop).
    ``blocking``: sends hold up the sender."""
    located = place or (lambda microbatch, stage, chunk: chunk * plan.pp + stage)
    columns: dict[str, list[Any]] = {column: [] for column in COLUMNS}
    known: dict[int, list[tuple[_Op, int]]] = {}  # by the rank that was played for others
    for stage in range(plan.pp):
        for dp in range(plan.dp):
            rank = int(plan.grid[stage, dp, 0, 0])
            played = run.simulated_for(rank)
            if played not in known:
                known[played] = _numbered(_ops(_spans(run, rank)))
            for op, seq in known[played]:
                there = op.microbatch >= 0 and op.optype in (FORWARD, BACKWARD)
                row = (
                    dp, stage, rank, op.step, op.optype, op.start, op.end - op.start, seq, max(op.chunk, 0) if there
                    else -1, op.microbatch if there else -1,
                    located(op.microbatch, stage, op.chunk) if there else -1,
                )  # fmt: skip
                for column, value in zip(COLUMNS, row, strict=True):
                    columns[column].append(value)
    starts: dict[int, float] = {}
    for step, start in zip(columns["step"], columns["start_ts"], strict=True):
        starts[step] = min(start, starts.get(step, start))
    columns["start_ts"] = [
        start - starts[step] for step, start in zip(columns["step"], columns["start_ts"], strict=True)
    ]
    return trace_of(columns, name=name, blocking=blocking)


def _spans(run: Run, rank: int) -> list[_Span]:
    table = run.timeline_of(rank)
    return [_Span(*row) for row in zip(*(table[name].tolist() for name in _Span._fields), strict=True)]


def _ops(spans: list[_Span]) -> list[_Op]:
    """What a recorder would write of one rank: a pass is one op, from its first kernel to its last."""
    passes: dict[tuple[int, str, int, int], list[_Span]] = defaultdict(list)
    for span in spans:
        if span.stream == "compute" and span.microbatch >= 0:
            passes[span.step, _PHASES.get(span.kind, BACKWARD), span.microbatch, span.chunk].append(span)
    found = {
        key: [min(span.start for span in inside), max(span.end for span in inside)] for key, inside in passes.items()
    }
    others = []
    for span in spans:
        if span.stream in ("tp", "cp", "ep") and span.microbatch >= 0:
            _widen(found, span)
        elif not (span.stream == "compute" and span.microbatch >= 0):
            others.append(_other(span, found))
    made = [
        _Op(step, optype, first, last, chunk, microbatch, first)
        for (step, optype, microbatch, chunk), (first, last) in found.items()
    ]
    return made + others


def _widen(found: dict[tuple[int, str, int, int], list[float]], span: _Span) -> None:
    """A collective belongs to the pass of its microbatch that is under way, or else begins with it."""
    keys = [(span.step, phase, span.microbatch, span.chunk) for phase in (FORWARD, BACKWARD, WEIGHT)]
    passes = [found[key] for key in keys if key in found]
    inside = [times for times in passes if times[0] <= span.ready <= times[1]]
    behind = [times for times in passes if times[0] > span.ready]
    if inside:
        times = max(inside)
    elif behind:  # as a backward pass does with the all-gather of its input
        times = min(behind)
    elif passes:
        times = max(passes)
    else:
        return
    times[:] = min(times[0], span.ready), max(times[1], span.end)


def _other(span: _Span, found: dict[tuple[int, str, int, int], list[float]]) -> _Op:
    """Messages, in the order of the passes that they serve; collectives from when this rank was there; the rest."""
    order = span.ready
    if span.kind in ("send", "recv"):
        kind, phase = ("forward", FORWARD) if span.name == "activation" else ("backward", BACKWARD)
        times = found.get((span.step, phase, span.microbatch, span.chunk))
        order = times[0] if times else order
        return _Op(span.step, f"{kind}-{span.kind}", span.ready, span.end, span.chunk, span.microbatch, order)
    if span.stream == "compute":
        return _Op(span.step, span.name.replace("_", "-"), span.start, span.end, -1, -1, span.start)
    optype = _NAMED.get(span.name) or _COLLECTIVES.get((span.stream, span.kind))
    if optype is None:
        optype = f"{span.name}-{span.kind}".replace("_", "-")
    return _Op(span.step, optype, span.ready, span.end, -1, -1, order)


def _numbered(ops: list[_Op]) -> list[tuple[_Op, int]]:
    """The ops with their number among those of their type and step."""
    counts: dict[tuple[int, str], int] = defaultdict(int)
    numbered = []
    for op in sorted(ops, key=lambda op: (op.step, op.order, op.optype)):
        numbered.append((op, counts[op.step, op.optype]))
        counts[op.step, op.optype] += 1
    return numbered
