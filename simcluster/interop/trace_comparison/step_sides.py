"""The two sides of a trace comparison: recorded steps, and simulated steps in the same form."""

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
    PHASE_OF_KIND,
    PHASES,
    PROFILER_RESOLUTION,
    ComparedSteps,
    KernelTime,
    UnmatchedKernel,
    select_span_rows,
)
from simcluster.results.result import Result
from simcluster.results.timeline import COLUMNS, Spans

_KernelSums = dict[tuple[str, str], tuple[float, float]]
"""Launches and seconds by phase and kind."""


def build_simulated_steps(run: Result, ranks: list[int], names: KernelClassifier, *, use_spans: bool) -> ComparedSteps:
    """Convert a result to simulated steps on ``ranks``; ``use_spans`` counts spans instead of kernels."""
    weights = dict(sorted(Counter(run.representative_of(rank) for rank in ranks).items()))
    spans = _convert_to_recorded_form(run.spans, weights)
    steps = np.unique(spans.step)
    earliest = np.minimum(spans.ready, spans.start)
    begins = np.array([float(earliest[spans.step == step].min()) for step in steps])
    ends = np.append(begins[1:], float(spans.end.max()))
    kernels = _sum_time_by_span(spans, weights) if use_spans else _sum_time_by_kernel_kind(run, weights, names)
    total = sum(weights.values()) * len(steps)
    return ComparedSteps(
        select_span_rows(spans, np.ones(len(spans), dtype=bool), step=np.searchsorted(steps, spans.step)), weights,
        begins, ends - begins, {key: KernelTime(count / total, took / total) for key, (count, took) in kernels.items()},
        np.full(len(spans), np.nan),
    )  # fmt: skip


def _convert_to_recorded_form(spans: Spans, weights: dict[int, int]) -> Spans:
    """Convert the simulated GPU spans of some ranks to the form in which a profiler records them."""
    place = {word: number for number, word in enumerate(spans.words)}
    for word in (*PHASE_OF_KIND.values(), "other", MESSAGE_KIND):
        place.setdefault(word, len(place))
    computing = spans.stream == spans.word_code("compute")
    phases = np.array([place[PHASE_OF_KIND.get(word, "other")] for word in spans.words])
    kinds = np.where(computing, phases[spans.kind], spans.kind)
    message = np.isin(spans.kind, [spans.word_code(kind) for kind in ("send", "recv") if kind in spans.words])
    kinds[message & ~computing] = place[MESSAGE_KIND]
    keep = np.isin(spans.rank, list(weights)) & (spans.stream != spans.word_code("host"))
    tick = PROFILER_RESOLUTION
    times = {name: np.round(getattr(spans, name) / tick) * tick for name in ("ready", "start", "end")}
    return replace(select_span_rows(spans, keep, kind=kinds, **times), words=tuple(place))


def _sum_time_by_span(spans: Spans, weights: dict[int, int]) -> _KernelSums:
    own = np.flatnonzero(spans.stream == spans.word_code("compute"))
    weight = np.array([weights[rank] for rank in spans.rank[own].tolist()], dtype=np.float64)
    keys, which = np.unique(np.stack([spans.kind[own], spans.name[own]], 1), axis=0, return_inverse=True)
    counts = np.bincount(which, weight, len(keys))
    seconds = np.bincount(which, weight * (spans.end - spans.start)[own], len(keys))
    named = [(spans.words[kind], spans.words[name]) for kind, name in keys.tolist()]
    return dict(zip(named, zip(counts.tolist(), seconds.tolist(), strict=True), strict=True))


def _sum_time_by_kernel_kind(result: Result, weights: dict[int, int], names: KernelClassifier) -> _KernelSums:
    """Sum launches and seconds by phase and kind of kernel, after splitting simulated spans into kernels."""
    spans, shares = result.spans, span_kernel_shares(result)
    words = spans.words
    found: _KernelSums = {}
    seen: Counter[tuple[object, ...]] = Counter()
    made: dict[tuple[str, str, int, int], _KernelSums] = {}
    own = np.flatnonzero((spans.stream == spans.word_code("compute")) & np.isin(spans.rank, list(weights)))
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


def _sum_span_kernels(key: SpanKey, known: Sequence[KernelShare], names: KernelClassifier) -> _KernelSums:
    """Return, by phase and kind, a span's number of kernels and their share of the span's time."""
    phase = PHASE_OF_KIND.get(key[0], "other")
    if not known:
        return {(phase, names.classify(f"{key[0]} {key[1]}")): (1.0, 1.0)}
    sums: _KernelSums = {}
    for each in known:
        at = phase, names.classify(KERNEL_PREFIX + each.name)
        count, share = sums.get(at, (0.0, 0.0))
        sums[at] = count + 1.0, share + each.share
    return sums


_SPAN_KERNEL_NAME = re.compile(r"(forward|backward|input_grad|weight_grad|recompute|optimizer|other) (\w+)")
"""Kernel names in a simulation's trace whose spans are not split into kernels."""
_NUMBER = re.compile(r"(\d+)$")
_MIN_SPAN_KERNEL_SHARE = 0.5
_ROW_COLUMNS = (
    "stream", "kind", "name", "group", "op", "step", "rank", "layer", "bytes", "ready", "start", "end", "launched",
)  # fmt: skip


def has_span_kernels(job: ProfiledJob) -> bool:
    """Return whether a trace is an exported simulation in which one kernel event represents several kernels."""
    graph = job.profiled_steps[0]
    own = [source.name for source in graph.sources if source is not None and source.comm is None and not source.is_copy]
    stretches = [name for name in own if (match := _SPAN_KERNEL_NAME.fullmatch(name)) and match[1] != "optimizer"]
    return len(stretches) > _MIN_SPAN_KERNEL_SHARE * len(own)


def lacks_recorded_members(job: ProfiledJob) -> bool:
    """Return whether some communication has ranks that were not recorded, so that waits for these are unknown."""
    there = frozenset(job.ranks)
    return any(
        not each.comm.ranks
        or (each.comm.group_size != 1 and not (each.comm.has_known_members and frozenset(each.comm.ranks) <= there))
        for graph in job.profiled_steps
        for each in graph.sources
        if each is not None and each.comm is not None
    )


def build_recorded_steps(
    job: ProfiledJob, axes: AxisFinder, names: KernelClassifier, *, use_spans: bool
) -> ComparedSteps:
    """Return a job's recorded steps on all ranks; raise InputError if a step has no ops."""
    words = {word: place for place, word in enumerate(("", "compute", "h2d", "d2h", MESSAGE_KIND, *PHASES))}
    rows: list[tuple[Any, ...]] = []
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    strange: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    steps = sorted(job.profiled_steps, key=lambda graph: graph.steps[0])
    for place, graph in enumerate(steps):
        if not len(graph.recorded_start):
            raise InputError(
                f"cannot compare with the trace: its step {graph.steps[0]} has no ops; choose other "
                "steps with --steps, or record whole steps again"
            )
        rows += [
            (*(words.setdefault(text, len(words)) for text in row[:4]), *row[4:])
            for row in _recorded_op_rows(job, graph, place, axes, names, use_spans, sums, strange)
        ]
    columns: dict[str, Any] = dict(zip(_ROW_COLUMNS, map(np.array, zip(*rows, strict=True)), strict=True))
    columns |= {"stage": np.zeros(len(rows), dtype=np.int64)}
    columns |= {name: np.full(len(rows), -1) for name in ("chunk", "microbatch")}
    sort = np.lexsort((columns["end"], columns["start"], columns["rank"]))
    begins, lengths = _step_bounds(steps)
    count = len(job.ranks) * len(steps)
    spans = Spans(tuple(words), *(columns[name][sort] for name in ("op", *COLUMNS)))
    unmatched = (UnmatchedKernel(name, many / count, took / count) for name, (many, took) in strange.items())
    return ComparedSteps(
        spans, dict.fromkeys(job.ranks, 1), begins, lengths,
        {key: KernelTime(launches / count, took / count) for key, (launches, took) in sums.items()},
        columns["launched"][sort], tuple(sorted(unmatched, key=lambda each: -each.seconds)),
    )  # fmt: skip


def _step_bounds(graphs: Sequence[ProfiledStep]) -> tuple[Floats, Floats]:
    """Return each step's start and length (s) on a common clock; a step lasts until the next step starts."""
    begins = np.array([graph.offset + float(graph.recorded_start[:, 0].min()) for graph in graphs])
    lengths = np.array([float(graph.measured_seconds[0]) for graph in graphs])
    for place, (graph, after) in enumerate(pairwise(graphs)):
        if after.steps[0] == graph.steps[0] + 1:
            lengths[place] = begins[place + 1] - begins[place]
    return begins, np.round(lengths / PROFILER_RESOLUTION) * PROFILER_RESOLUTION


def _recorded_op_rows(
    job: ProfiledJob, graph: ProfiledStep, step: int, axes: AxisFinder, names: KernelClassifier, use_spans: bool,
    sums: Mapping[tuple[str, str], list[float]], unmatched: Mapping[str, list[float]],
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """Yield a timeline row for each recorded GPU op; add the op's launch and time to its kernel kind's sums.

    Ops unknown to autograd count as forward up to the last backward, and as the optimizer after it.
    """
    began, ended, starts, workers = (
        each.tolist()
        for each in (graph.recorded_start[:, 0], graph.recorded_end[:, 0], graph.last_arrival_times, graph.worker)
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
            yield axis, kind, source.name, comm.group_text or comm.group, op, step, rank, layer, size, *times, launched
            continue
        if source.is_copy:
            stream = "h2d" if "HtoD" in source.name else "d2h"
            yield stream, "copy", source.name, "", op, step, rank, layer, 0.0, *times, launched
            continue
        match = _SPAN_KERNEL_NAME.fullmatch(source.name)
        if use_spans and match:
            phase, kind = PHASE_OF_KIND.get(match[1], "other"), match[2]
        else:
            phase, kind = label.phase, names.classify(source.name)
            phase = "optimizer" if kind == "optimizer" and phase == "other" else phase
        if phase == "other" and not match and workers[op] in backward:
            phase = "forward" if began[op] < backward[workers[op]] else "optimizer"
        for sum_ in (sums[phase, kind], *([unmatched[source.name]] if kind == UNMATCHED_KERNEL else [])):
            sum_[0] += 1
            sum_[1] += times[2] - times[1]
        yield "compute", phase, source.name, "", op, step, rank, layer, 0.0, *times, launched
