"""The two sides of a trace comparison: simulated steps as a profiler sees them, and recorded steps."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.interop.export.rank_events import KERNEL_PREFIX, KernelShare, SpanKey, span_kernel_shares
from simcluster.interop.kineto.communications import MESSAGE_KINDS, UNMATCHED_KERNEL, KernelClassifier
from simcluster.interop.kineto.profiled_job import ProfiledJob, ProfiledStep
from simcluster.interop.kineto.rank_profile import BACKWARD
from simcluster.interop.trace_comparison.collective_axes import AxisFinder
from simcluster.interop.trace_comparison.step_accounts import (
    MESSAGE_KIND,
    NANOSECOND,
    PHASE_OF_KIND,
    PHASES,
    KernelTime,
    StepSide,
    UnmatchedKernel,
    select_spans,
)
from simcluster.results.result import Result
from simcluster.results.timeline import COLUMNS, Spans

_Sums = dict[tuple[str, str], tuple[float, float]]
"""Launches and seconds by phase and kind."""


def build_simulated_side(result: Result, ranks: Sequence[int], names: KernelClassifier, *, stretches: bool) -> StepSide:
    """Return a simulated result's steps on ``ranks``; ``stretches`` counts spans instead of kernels."""
    weights = dict(sorted(Counter(result.simulated_for(rank) for rank in ranks).items()))
    spans = _to_recorded_form(result.spans, weights)
    steps = np.unique(spans.step)
    earliest = np.minimum(spans.ready, spans.start)
    begins = np.array([float(earliest[spans.step == step].min()) for step in steps])
    ends = np.append(begins[1:], float(spans.end.max()))
    kernels = _sum_by_span(spans, weights) if stretches else _sum_by_kernel(result, weights, names)
    of_mean = sum(weights.values()) * len(steps)
    return StepSide(
        select_spans(spans, np.ones(len(spans), dtype=bool), step=np.searchsorted(steps, spans.step)), weights, begins,
        ends - begins, {key: KernelTime(count / of_mean, took / of_mean) for key, (count, took) in kernels.items()},
        np.full(len(spans), np.nan),
    )  # fmt: skip


def _to_recorded_form(spans: Spans, weights: dict[int, int]) -> Spans:
    """Return the simulated GPU spans of some ranks as a profiler would record them."""
    place = {word: number for number, word in enumerate(spans.words)}
    for word in (*PHASE_OF_KIND.values(), "other", MESSAGE_KIND):
        place.setdefault(word, len(place))
    computing = spans.stream == spans.code("compute")
    phases = np.array([place[PHASE_OF_KIND.get(word, "other")] for word in spans.words])
    kinds = np.where(computing, phases[spans.kind], spans.kind)
    message = np.isin(spans.kind, [spans.code(kind) for kind in ("send", "recv") if kind in spans.words])
    kinds[message & ~computing] = place[MESSAGE_KIND]
    keep = np.isin(spans.rank, list(weights)) & (spans.stream != spans.code("host"))
    times = {name: np.round(getattr(spans, name) / NANOSECOND) * NANOSECOND for name in ("ready", "start", "end")}
    return replace(select_spans(spans, keep, kind=kinds, **times), words=tuple(place))


def _sum_by_span(spans: Spans, weights: dict[int, int]) -> _Sums:
    own = np.flatnonzero(spans.stream == spans.code("compute"))
    weight = np.array([weights[rank] for rank in spans.rank[own].tolist()], dtype=np.float64)
    keys, which = np.unique(np.stack([spans.kind[own], spans.name[own]], 1), axis=0, return_inverse=True)
    counts = np.bincount(which, weight, len(keys))
    seconds = np.bincount(which, weight * (spans.end - spans.start)[own], len(keys))
    named = [(spans.words[kind], spans.words[name]) for kind, name in keys.tolist()]
    return dict(zip(named, zip(counts.tolist(), seconds.tolist(), strict=True), strict=True))


def _sum_by_kernel(result: Result, weights: dict[int, int], names: KernelClassifier) -> _Sums:
    """Return launches and seconds by phase and kernel kind, with simulated spans split into kernels."""
    spans, shares = result.spans, span_kernel_shares(result)
    words = spans.words
    found: _Sums = {}
    seen: Counter[tuple[object, ...]] = Counter()
    made: dict[tuple[str, str, int, int], _Sums] = {}
    own = np.flatnonzero((spans.stream == spans.code("compute")) & np.isin(spans.rank, list(weights)))
    columns = (spans.rank, spans.kind, spans.name, spans.layer, spans.step, spans.chunk, spans.microbatch)
    took = (spans.end - spans.start)[own].tolist()
    rows = np.stack([each[own] for each in columns], 1).tolist()
    for (rank, kind, name, *rest), seconds in zip(rows, took, strict=True):
        key = words[kind], words[name], rest[0]
        known = shares.get(key, ())
        place = 0
        if len(known) > 1:
            seen[rank, *key, *rest] += 1
            place = (seen[rank, *key, *rest] - 1) % len(known)
        if (*key, place) not in made:
            made[(*key, place)] = _sum_span_kernels(key, known[place] if known else (), names)
        for at, (count, share) in made[(*key, place)].items():
            before = found.get(at, (0.0, 0.0))
            found[at] = before[0] + weights[rank] * count, before[1] + weights[rank] * share * seconds
    return found


def _sum_span_kernels(key: SpanKey, known: Sequence[KernelShare], names: KernelClassifier) -> _Sums:
    """Return the number of a span's kernels by phase and kind, and their share of the span's time."""
    phase = PHASE_OF_KIND.get(key[0], "other")
    if not known:
        return {(phase, names.kind(f"{key[0]} {key[1]}")): (1.0, 1.0)}
    sums: _Sums = {}
    for each in known:
        at = phase, names.kind(KERNEL_PREFIX + each.name)
        count, share = sums.get(at, (0.0, 0.0))
        sums[at] = count + 1.0, share + each.share
    return sums


_STRETCH_NAME = re.compile(r"(forward|backward|input_grad|weight_grad|recompute|optimizer|other) (\w+)")
"""Kernel names in a simulation's trace whose spans are not split into kernels."""
_NUMBER = re.compile(r"(\d+)$")
_STRETCH_SHARE = 0.5
_ROW_COLUMNS = (
    "stream", "kind", "name", "group", "op", "step", "rank", "layer", "bytes", "ready", "start", "end", "launched",
)  # fmt: skip


def has_span_kernels(job: ProfiledJob) -> bool:
    """Return whether a trace is of a simulation whose kernels are spans of several kernels."""
    graph = job.profiled_steps[0]
    own = [source.name for source in graph.sources if source is not None and source.comm is None and not source.copy]
    stretches = [name for name in own if (match := _STRETCH_NAME.fullmatch(name)) and match[1] != "optimizer"]
    return len(stretches) > _STRETCH_SHARE * len(own)


def lacks_recorded_members(job: ProfiledJob) -> bool:
    """Return whether some communication lacks recorded members, so that its waiting is unknown."""
    there = frozenset(job.ranks)
    return any(
        not source.comm.ranks
        or (source.comm.size != 1 and not (source.comm.has_known_members and frozenset(source.comm.ranks) <= there))
        for graph in job.profiled_steps
        for source in graph.sources
        if source is not None and source.comm is not None
    )


def build_recorded_side(job: ProfiledJob, axes: AxisFinder, names: KernelClassifier, *, stretches: bool) -> StepSide:
    """Return the recorded steps of a job on all its ranks; raise InputError if a step has no ops."""
    words = {word: place for place, word in enumerate(("", "compute", "h2d", "d2h", MESSAGE_KIND, *PHASES))}
    rows: list[tuple[Any, ...]] = []
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    strange: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    steps = sorted(job.profiled_steps, key=lambda graph: graph.steps[0])
    for place, graph in enumerate(steps):
        if not len(graph.recorded_start):
            raise InputError(
                f"cannot compare with the trace: its step {graph.steps[0]} has no ops; leave that step "
                "out, or record whole steps again"
            )
        rows += [
            (*(words.setdefault(text, len(words)) for text in row[:4]), *row[4:])
            for row in _recorded_op_rows(job, graph, place, axes, names, stretches, sums, strange)
        ]
    columns: dict[str, Any] = dict(zip(_ROW_COLUMNS, map(np.array, zip(*rows, strict=True)), strict=True))
    columns |= {"stage": np.zeros(len(rows), dtype=np.int64)}
    columns |= {name: np.full(len(rows), -1) for name in ("chunk", "microbatch")}
    sort = np.lexsort((columns["end"], columns["start"], columns["rank"]))
    begins, lengths = _step_bounds(steps)
    count = len(job.ranks) * len(steps)
    spans = Spans(tuple(words), *(columns[name][sort] for name in ("op", *COLUMNS)))
    unmatched = (UnmatchedKernel(name, many / count, took / count) for name, (many, took) in strange.items())
    return StepSide(
        spans, dict.fromkeys(job.ranks, 1), begins, lengths,
        {key: KernelTime(launches / count, took / count) for key, (launches, took) in sums.items()},
        columns["launched"][sort], tuple(sorted(unmatched, key=lambda each: -each.seconds)),
    )  # fmt: skip


def _step_bounds(graphs: Sequence[ProfiledStep]) -> tuple[Floats, Floats]:
    """Return start and length (s) of every step on one clock; a step lasts until the next one."""
    begins = np.array([graph.offset + float(graph.recorded_start[:, 0].min()) for graph in graphs])
    lengths = np.array([float(graph.measured_seconds[0]) for graph in graphs])
    for place, (graph, after) in enumerate(pairwise(graphs)):
        if after.steps[0] == graph.steps[0] + 1:
            lengths[place] = begins[place + 1] - begins[place]
    return begins, np.round(lengths / NANOSECOND) * NANOSECOND


def _recorded_op_rows(
    job: ProfiledJob, graph: ProfiledStep, step: int, axes: AxisFinder, names: KernelClassifier, stretches: bool,
    sums: Mapping[tuple[str, str], list[float]], strange: Mapping[str, list[float]],
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """Yield a timeline row for each recorded GPU op, and add up launches and seconds by kernel kind.

    Ops unknown to autograd count as forward up to the last backward, and as the optimizer after it.
    """
    began, ended, starts, workers = (
        each.tolist()
        for each in (graph.recorded_start[:, 0], graph.recorded_end[:, 0], graph.last_arrivals, graph.worker)
    )
    backward: dict[int, float] = {}  # start of the last backward kernel, by worker
    for op, label in enumerate(graph.labels):
        if label.phase == BACKWARD and graph.sources[op] is not None:
            backward[workers[op]] = max(began[op], backward.get(workers[op], 0.0))
    for op, source in enumerate(graph.sources):
        if source is None:
            continue
        rank, label = job.ranks[workers[op]], graph.labels[op]
        times = began[op] + graph.offset, starts[op] + graph.offset, ended[op] + graph.offset
        launched = source.launch_start - source.start + times[0]
        layer = int(found[1]) if (found := _NUMBER.search(label.layer)) else -1
        if (comm := source.comm) is not None:
            axis = axes.find_axis(comm, rank)
            kind = MESSAGE_KIND if comm.kind in MESSAGE_KINDS and axis == "pp" else comm.kind
            size = 0.0 if math.isnan(comm.bytes) else comm.bytes
            yield axis, kind, source.name, comm.what or comm.group, op, step, rank, layer, size, *times, launched
            continue
        if source.copy:
            stream = "h2d" if "HtoD" in source.name else "d2h"
            yield stream, "copy", source.name, "", op, step, rank, layer, 0.0, *times, launched
            continue
        match = _STRETCH_NAME.fullmatch(source.name)
        if stretches and match:
            phase, kind = PHASE_OF_KIND.get(match[1], "other"), match[2]
        else:
            phase, kind = label.phase, names.kind(source.name)
            phase = "optimizer" if kind == "optimizer" and phase == "other" else phase
        if phase == "other" and not match and workers[op] in backward:
            phase = "forward" if began[op] < backward[workers[op]] else "optimizer"
        for sum_ in (sums[phase, kind], *([strange[source.name]] if kind == UNMATCHED_KERNEL else [])):
            sum_[0] += 1
            sum_[1] += times[2] - times[1]
        yield "compute", phase, source.name, "", op, step, rank, layer, 0.0, *times, launched
