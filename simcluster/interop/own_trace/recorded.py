"""Both sides of a comparison: steps as a profiler would record the simulation, and as it recorded the job."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.interop.export.launches import PREFIX, KernelShare, SpanKey, kernel_shares
from simcluster.interop.kineto.comm import MESSAGES
from simcluster.interop.kineto.job import ProfiledJob
from simcluster.interop.kineto.kernel_kinds import UNMATCHED, KernelNames
from simcluster.interop.kineto.labels import BACKWARD
from simcluster.interop.kineto.rebuild import Profiled
from simcluster.interop.own_trace.axes import AxisNames
from simcluster.interop.own_trace.side import MESSAGE, NANO, PHASE_OF, PHASES, KernelTime, StepSide, Unmatched, part_of
from simcluster.results.result import Result
from simcluster.results.timeline import COLUMNS, Spans


def played_side(result: Result, ranks: Sequence[int], names: KernelNames, *, stretches: bool) -> StepSide:
    """The steps of a result on these ranks; ``stretches``: its kernels by span (as in traces without every kernel)."""
    weights = dict(sorted(Counter(result.simulated_for(rank) for rank in ranks).items()))
    spans = _as_recorded(result.spans, weights)
    steps = np.unique(spans.step)
    begins = np.array([_first(spans, int(step)) for step in steps])
    ends = np.append(begins[1:], float(spans.end.max()))
    kernels = _stretches(spans, weights) if stretches else _kernels(result, weights, names)
    of_mean = sum(weights.values()) * len(steps)
    return StepSide(
        part_of(spans, np.ones(len(spans), dtype=bool), step=np.searchsorted(steps, spans.step)), weights, begins,
        ends - begins, {key: KernelTime(count / of_mean, took / of_mean) for key, (count, took) in kernels.items()},
        np.full(len(spans), np.nan),
    )  # fmt: skip


def _as_recorded(spans: Spans, weights: dict[int, int]) -> Spans:
    """Of these ranks what their devices do; phases, and messages as one kind."""
    words = list(spans.words)
    place = {word: number for number, word in enumerate(words)}
    for word in (*PHASE_OF.values(), "other", MESSAGE):
        place.setdefault(word, len(place))
    computing = spans.stream == spans.code("compute")
    to = np.arange(len(words))
    kinds = spans.kind.copy()
    for number, word in enumerate(words):
        to[number] = place[PHASE_OF.get(word, "other")]
    kinds[computing] = to[kinds[computing]]
    message = np.isin(spans.kind, [spans.code(kind) for kind in ("send", "recv") if kind in words])
    kinds[message & ~computing] = place[MESSAGE]
    keep = np.isin(spans.rank, list(weights)) & (spans.stream != spans.code("host"))
    times = {name: np.round(getattr(spans, name) / NANO) * NANO for name in ("ready", "start", "end")}
    found = part_of(spans, keep, kind=kinds, **times)
    return Spans(tuple(place), *(getattr(found, name) for name in list(found.__dataclass_fields__)[1:]))


def _first(spans: Spans, step: int) -> float:
    own = spans.step == step
    return float(np.minimum(spans.ready[own], spans.start[own]).min())


_Sums = dict[tuple[str, str], tuple[float, float]]
"""Launches and seconds by phase and kind."""


def _stretches(spans: Spans, weights: dict[int, int]) -> _Sums:
    """Launches and seconds by phase and name of span."""
    own = np.flatnonzero(spans.stream == spans.code("compute"))
    weight = np.array([weights[rank] for rank in spans.rank[own].tolist()], dtype=np.float64)
    found: _Sums = {}
    size = len(spans.words)
    keys, which = np.unique(spans.kind[own] * size + spans.name[own], return_inverse=True)
    counts = np.bincount(which, weight, len(keys))
    seconds = np.bincount(which, weight * (spans.end - spans.start)[own], len(keys))
    for key, count, took in zip(keys.tolist(), counts.tolist(), seconds.tolist(), strict=True):
        found[spans.words[key // size], spans.words[key % size]] = count, took
    return found


def _kernels(result: Result, weights: dict[int, int], names: KernelNames) -> _Sums:
    """Launches and seconds by phase and kind of kernel, spans shared out over what they are made of."""
    spans, shares = result.spans, kernel_shares(result)
    words = spans.words
    found: _Sums = {}
    seen: Counter[tuple[object, ...]] = Counter()
    made: dict[tuple[str, str, int, int], list[tuple[tuple[str, str], float, float]]] = {}
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
            made[(*key, place)] = _made_of(key, known[place] if known else (), names)
        for at, count, share in made[(*key, place)]:
            before = found.get(at, (0.0, 0.0))
            found[at] = before[0] + weights[rank] * count, before[1] + weights[rank] * share * seconds
    return found


def _made_of(
    key: SpanKey, known: Sequence[KernelShare], names: KernelNames
) -> list[tuple[tuple[str, str], float, float]]:
    """Phases and kinds of the kernels of a span, how many there are, and the part of its time that they take."""
    phase = PHASE_OF.get(key[0], "other")
    if not known:
        return [((phase, names.kind(f"{key[0]} {key[1]}")), 1.0, 1.0)]
    sums: _Sums = {}
    for each in known:
        at = phase, names.kind(PREFIX + each.name)
        count, share = sums.get(at, (0.0, 0.0))
        sums[at] = count + 1.0, share + each.share
    return [(at, count, share) for at, (count, share) in sums.items()]


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
