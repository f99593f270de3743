"""Overlap of communication with compute: per collective, per parallel axis and per rank.

A collective waits on a rank until its last member arrives, then is on the wire until its end; wire time is hidden while
the rank computes, else exposed (MODELLING.md F.6). ``hidden / wire`` is HolisticTraceAnalysis' overlap, |C and N| /
|N|.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints, concat_ranges
from simcluster.base.shown import Displayable
from simcluster.results.span_states import EXPOSED, find_covered, find_inside, span_entry_bits
from simcluster.results.timeline import Spans

_COUNTED = [5, 8]  # places of ``counted`` and ``counted_contention`` among the numbers


@dataclass(frozen=True, slots=True)
class CommKey:
    """Key of a collective (axis, kind, name), of a whole axis (axis alone), or of all communication (empty)."""

    axis: str = ""
    kind: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class OverlapSeconds:
    """Communication time of one rank or of the mean rank, split into overlapped and exposed, in seconds per step.

    ``wire`` = ``hidden`` + ``exposed`` is the time with any of these calls between its last arrival and its end.
    ``counted`` is what the breakdown of the step counts under this axis: exposed, and no axis before it (tp, cp, ep,
    pp, dp) exposed at the same instant; over all collectives it sums to the breakdown's exposed_*. ``contention`` is
    the part of ``wire``, and ``counted_contention`` that of ``counted``, that free links would have spared. ``waiting``
    is for members that are late; ``calls`` and ``bytes`` (full buffers) are those of the rank.
    """

    calls: float = 0.0
    bytes: float = 0.0
    wire: float = 0.0
    hidden: float = 0.0
    exposed: float = 0.0
    counted: float = 0.0
    waiting: float = 0.0
    contention: float = 0.0
    counted_contention: float = 0.0


@dataclass(frozen=True)
class Overlaps(Displayable):
    """Overlap of all communication with compute: of every simulated rank, and the mean over all ranks.

    Keys are in order: all communication, then each axis and its collectives.
    """

    of_rank: Mapping[int, Mapping[CommKey, OverlapSeconds]]
    mean: Mapping[CommKey, OverlapSeconds]

    @property
    def fraction(self) -> float:
        """Share of the communication time that overlaps with compute, as in HolisticTraceAnalysis."""
        total = self.mean[CommKey()]
        return total.hidden / total.wire if total.wire else 0.0

    def rows(self) -> list[dict[str, str | float]]:
        """Return the means over ranks as rows for the result JSON: per step, in seconds and bytes."""
        return [_overlap_row(key, value) for key, value in self.mean.items()]


def _overlap_row(key: CommKey, value: OverlapSeconds) -> dict[str, str | float]:
    numbers = {name if name in ("calls", "bytes") else f"{name}_s": part for name, part in asdict(value).items()}
    return {"axis": key.axis, "kind": key.kind, "name": key.name, **numbers}


def measure_overlaps(
    spans: Spans, weights: Mapping[int, int], free: Floats, *, steps: int
) -> Overlaps:  # fmt: skip
    """Measure the overlap of communication with compute; ``free`` has each span's seconds on free links.

    ``weights[rank]`` is how many ranks a simulated rank represents.
    """
    for stream, kind in dict.fromkeys(zip(spans.stream.tolist(), spans.kind.tolist(), strict=True)):
        span_entry_bits(spans.words[stream], spans.words[kind])  # raises if the breakdown does not know it
    found = {}
    for rank in weights:
        low, high = np.searchsorted(spans.rank, [rank, rank + 1])
        found[rank] = _measure_rank(spans.of_rank(rank), free[low:high], steps)
    keys = _sort_keys(key for of_rank in found.values() for key in of_rank)
    total = sum(weights.values())
    nothing = OverlapSeconds()
    mean = {}
    for key in keys:
        parts = [(weight / total, found[rank].get(key, nothing)) for rank, weight in weights.items()]
        mean[key] = OverlapSeconds(*(
            sum(share * getattr(part, name) for share, part in parts) for name in OverlapSeconds.__slots__
        ))  # fmt: skip
    return Overlaps(found, mean)


def _sort_keys(keys: Iterable[CommKey]) -> list[CommKey]:
    place = {axis: number for number, axis in enumerate(("", *EXPOSED))}
    return sorted(dict.fromkeys(keys), key=lambda key: (place[key.axis], key.kind, key.name))


def _measure_rank(spans: Spans, free: Floats, steps: int) -> dict[CommKey, OverlapSeconds]:
    rank = CommunicationTime(spans, free)
    every = np.zeros(len(spans), dtype=bool)
    found: dict[CommKey, Floats] = {}
    for axis in EXPOSED:
        on_axis = spans.stream == spans.code(axis)
        if not on_axis.any():
            continue
        every |= on_axis
        found[CommKey(axis)] = rank.measure(on_axis)
        names = spans.kind[on_axis] * len(spans.words) + spans.name[on_axis]
        pairs = [divmod(pair, len(spans.words)) for pair in np.unique(names).tolist()]
        keys = {CommKey(axis, spans.words[kind], spans.words[name]): (kind, name) for kind, name in pairs}
        for key in _sort_keys(keys):
            kind, name = keys[key]
            found[key] = rank.measure(on_axis & (spans.kind == kind) & (spans.name == name), counts=True)
            found[CommKey(axis)][_COUNTED] += found[key][_COUNTED]
    total = rank.measure(every)
    for whole in (key for key in found if not key.kind):
        total[_COUNTED] += found[whole][_COUNTED]
    return {key: OverlapSeconds(*(numbers / steps).tolist()) for key, numbers in {CommKey(): total, **found}.items()}


class CommunicationTime:
    """Time of one rank, cut at every start and end of a span, so that every state is a mask over the pieces."""

    def __init__(self, spans: Spans, free: Floats) -> None:
        self._spans = spans
        self._edges = np.unique(np.concatenate([spans.ready, spans.start, spans.end]))
        self._length = np.diff(self._edges)
        self._start, self._end = (np.searchsorted(self._edges, times) for times in (spans.start, spans.end))
        compute = spans.stream == spans.code("compute")
        self._computing = find_covered(len(self._edges), self._start[compute], self._end[compute])
        self._uncounted = ~self._computing
        took = spans.end - spans.start
        self._contended = np.divide(took - free, took, out=np.zeros(len(spans)), where=took > 0)

    def measure(self, which: Bools, *, counts: bool = False) -> Floats:
        """Return ``OverlapSeconds`` of some spans; with ``counts``, also count their exposed time, once per instant."""
        spans, chosen = self._spans, np.flatnonzero(which)
        place, depth, contended = self._on_wire(chosen)
        length, computing = self._length[place], self._computing[place]
        lost = length * np.clip(contended / depth, 0.0, 1.0)
        own = self._uncounted[place] if counts else np.zeros(len(place), dtype=bool)
        self._uncounted[place[own]] = False
        late = chosen[spans.ready[chosen] < spans.start[chosen]]
        waiting = (
            find_inside(self._edges, spans.ready[late], spans.start[late]) if len(late) else np.zeros(0, dtype=np.int64)
        )
        return np.array([
            len(chosen), spans.bytes[chosen].sum(), length.sum(), length[computing].sum(), length[~computing].sum(),
            length[own].sum(), self._length[waiting].sum(), lost.sum(), lost[own].sum(),
        ])  # fmt: skip

    def _on_wire(self, chosen: Ints) -> tuple[Ints, Floats, Floats]:
        first, last, part = self._start[chosen], self._end[chosen], self._contended[chosen]
        if not part.any() and (last[:-1] <= first[1:]).all():  # one after the other
            place = np.repeat(first, last - first) + concat_ranges(last - first)
            return place, np.ones(len(place)), np.zeros(len(place))
        depth = self._concurrency_by_interval(first, last, np.ones(len(chosen)))
        place = np.flatnonzero(depth > 0)
        return place, depth[place], self._concurrency_by_interval(first, last, part)[place]

    def _concurrency_by_interval(self, first: Ints, last: Ints, weight: Floats) -> Floats:
        size = len(self._edges)
        found: Floats = np.cumsum((np.bincount(first, weight, size) - np.bincount(last, weight, size))[:-1])
        return found
