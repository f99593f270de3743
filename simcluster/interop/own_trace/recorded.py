"""The recorded side: the steps of a profiled job as they were recorded, not as they would replay."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.interop.kineto.comm import MESSAGES
from simcluster.interop.kineto.job import ProfiledJob
from simcluster.interop.kineto.kernel_kinds import UNMATCHED, KernelNames
from simcluster.interop.kineto.labels import BACKWARD
from simcluster.interop.kineto.rebuild import Profiled
from simcluster.interop.own_trace.axes import AxisNames
from simcluster.interop.own_trace.side import MESSAGE, NANO, PHASE_OF, PHASES, KernelTime, StepSide, Unmatched
from simcluster.results.timeline import COLUMNS, Spans

_STRETCH = re.compile(r"(forward|backward|input_grad|weight_grad|recompute|optimizer|other) (\w+)")
"""What kernels of a simulation's trace are called where a span is not split into its kernels."""
_NUMBER = re.compile(r"(\d+)$")
_FEW = 0.5
_ROW = (
    "stream", "kind", "name", "group", "op", "step", "rank", "layer", "bytes", "ready", "start", "end", "launched",
)  # fmt: skip


def of_stretches(job: ProfiledJob) -> bool:
    """Is it the trace of a simulation, whose kernels are stretches of several?"""
    graph = job.steps_of_ranks[0]
    own = [source.name for source in graph.source if source is not None and source.comm is None and not source.copy]
    told = [name for name in own if (match := _STRETCH.fullmatch(name)) and match[1] != "optimizer"]
    return len(told) > _FEW * len(own)


def partial(job: ProfiledJob) -> bool:
    """Are there communications of which not every member was recorded (whose waiting is not known)?"""
    there = frozenset(job.ranks)
    return any(
        not source.comm.ranks
        or (source.comm.size != 1 and not (source.comm.meets and frozenset(source.comm.ranks) <= there))
        for graph in job.steps_of_ranks
        for source in graph.source
        if source is not None and source.comm is not None
    )


def recorded_side(job: ProfiledJob, axes: AxisNames, names: KernelNames, *, stretches: bool) -> StepSide:
    """The steps of a job on all its ranks."""
    words: dict[str, int] = {
        "": 0,
        "compute": 1,
        "h2d": 2,
        "d2h": 3,
        MESSAGE: 4,
        **{p: 5 + n for n, p in enumerate(PHASES)},
    }
    rows: list[tuple[Any, ...]] = []
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    strange: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    steps = job.steps_of_ranks
    _require_ops(steps)
    order = sorted(range(len(steps)), key=lambda place: steps[place].steps[0])
    for place, number in enumerate(order):
        rows += [
            (*(words.setdefault(text, len(words)) for text in row[:4]), *row[4:])
            for row in _rows(job, steps[number], place, axes, names, stretches, sums, strange)
        ]
    columns: dict[str, Any] = dict(zip(_ROW, map(np.array, zip(*rows, strict=True)), strict=True))
    for name in ("stage", "chunk", "microbatch"):
        columns[name] = np.full(len(rows), -1 if name != "stage" else 0)
    sort = np.lexsort((columns["end"], columns["start"], columns["rank"]))
    begins, lengths = _steps([steps[number] for number in order])
    count = len(job.ranks) * len(steps)
    spans = Spans(tuple(words), *(columns[name][sort] for name in ("op", *COLUMNS)))
    return StepSide(
        spans, dict.fromkeys(job.ranks, 1), begins, lengths,
        {key: KernelTime(launches / count, took / count) for key, (launches, took) in sums.items()},
        columns["launched"][sort],
        tuple(sorted((Unmatched(name, many / count, took / count) for name, (many, took) in strange.items()),
                     key=lambda each: -each.seconds)),
    )  # fmt: skip


def _require_ops(graphs: Sequence[Profiled]) -> None:
    """InputError for a step in which nothing was recorded."""
    for graph in graphs:
        if not len(graph.began):
            raise InputError(
                f"cannot compare with the trace: nothing was recorded in its step {graph.steps[0]}; leave that step "
                "out, or record whole steps again"
            )


def _steps(graphs: Sequence[Profiled]) -> tuple[Floats, Floats]:
    """When every step begins, on one clock, and how long it takes: until the next begins, where that was recorded."""
    begins = np.array([graph.offset + float(graph.began[:, 0].min()) for graph in graphs])
    lengths = np.array([float(graph.measured[0]) for graph in graphs])
    for place, (graph, after) in enumerate(pairwise(graphs)):
        if after.steps[0] == graph.steps[0] + 1:
            lengths[place] = begins[place + 1] - begins[place]
    return begins, np.round(lengths / NANO) * NANO


def _rows(
    job: ProfiledJob,
    graph: Profiled,
    step: int,
    axes: AxisNames,
    names: KernelNames,
    stretches: bool,
    sums: Mapping[tuple[str, str], list[float]],
    strange: Mapping[str, list[float]],
) -> Iterator[tuple[Any, ...]]:
    """What devices did, and into ``sums`` and ``strange`` the launches and seconds of kernels.

    What autograd knows nothing of is of forward up to the last of backward, and of the optimizer behind it.
    """
    arrived = graph.began[:, 0].copy()
    for group in graph.groups:
        arrived[list(group)] = arrived[list(group)].max()
    arrived = np.minimum(arrived, graph.ended[:, 0])
    began, ended, starts, workers = (
        each.tolist() for each in (graph.began[:, 0], graph.ended[:, 0], arrived, graph.worker)
    )
    backward: dict[int, float] = {}  # the last begin of a kernel of backward, by worker
    for op, label in enumerate(graph.labels):
        if label.phase == BACKWARD and graph.source[op] is not None:
            backward[workers[op]] = max(began[op], backward.get(workers[op], 0.0))
    for op, source in enumerate(graph.source):
        if source is None:
            continue
        rank, label = job.ranks[workers[op]], graph.labels[op]
        times = began[op] + graph.offset, starts[op] + graph.offset, ended[op] + graph.offset
        launched = source.launched - source.start + times[0]
        layer = int(found[1]) if (found := _NUMBER.search(label.layer)) else -1
        if (comm := source.comm) is not None:
            axis = axes.axis(comm, rank)
            kind = MESSAGE if comm.kind in MESSAGES and axis == "pp" else comm.kind
            size = 0.0 if math.isnan(comm.bytes) else comm.bytes
            yield axis, kind, source.name, comm.what or comm.group, op, step, rank, layer, size, *times, launched
            continue
        if source.copy:
            stream = "h2d" if "HtoD" in source.name else "d2h"
            yield stream, "copy", source.name, "", op, step, rank, layer, 0.0, *times, launched
            continue
        phase, kind = _work(source.name, label.phase, names, stretches)
        if phase == "other" and not _STRETCH.fullmatch(source.name) and workers[op] in backward:
            phase = "forward" if began[op] < backward[workers[op]] else "optimizer"
        for sum_ in (sums[phase, kind], *([strange[source.name]] if kind == UNMATCHED else [])):
            sum_[0] += 1
            sum_[1] += times[2] - times[1]
        yield "compute", phase, source.name, "", op, step, rank, layer, 0.0, *times, launched


def _work(name: str, phase: str, names: KernelNames, stretches: bool) -> tuple[str, str]:
    """Phase and kind of a kernel."""
    if stretches and (match := _STRETCH.fullmatch(name)):
        return PHASE_OF.get(match[1], "other"), match[2]
    kind = names.kind(name)
    return "optimizer" if kind == "optimizer" and phase == "other" else phase, kind
