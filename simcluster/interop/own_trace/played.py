"""The simulated side: the steps of a result, of the ranks that a trace has, as a profiler would see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from simcluster.interop.export.launches import PREFIX, KernelShare, SpanKey, kernel_shares
from simcluster.interop.kineto.kernel_kinds import KernelNames
from simcluster.interop.own_trace.side import MESSAGE, NANO, PHASE_OF, KernelTime, StepSide, part_of
from simcluster.results.result import Result
from simcluster.results.timeline import Spans


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
