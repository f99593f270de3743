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
from simcluster.base.display import Displayable
from simcluster.results.span_states import EXPOSED, covered_mask, intervals_inside, span_entry_bits
from simcluster.results.timeline import Spans

_COUNTED = [5, 8]  # places of ``counted`` and ``counted_contention`` among the numbers


@dataclass(frozen=True, slots=True)
class CommunicationKey:
    """Key of a sum over communication: over one collective, over one parallel axis, or over everything (all empty)."""

    axis: str = ""
    kind: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class OverlapSeconds:
    """Communication time per step of one rank, or averaged over ranks, divided into overlapped and exposed time.

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
    """Overlap of communication with compute: for each simulated rank, and the mean over all ranks.

    Keys are in order: all communication, then each axis and its collectives.
    """

    of_rank: Mapping[int, Mapping[CommunicationKey, OverlapSeconds]]
    mean: Mapping[CommunicationKey, OverlapSeconds]

    @property
    def fraction(self) -> float:
        """Share of the communication time that overlaps with compute, as HolisticTraceAnalysis defines it."""
        total = self.mean[CommunicationKey()]
        return total.hidden / total.wire if total.wire else 0.0

    def rows(self) -> list[dict[str, str | float]]:
        """Return the mean over ranks as rows of the result JSON: all communication, each axis, and each collective."""
        rows = []
        for key, value in self.mean.items():
            seconds = {f"{name}_s": part for name, part in asdict(value).items() if name not in ("calls", "bytes")}
            rows.append({**asdict(key), "calls": value.calls, "bytes": value.bytes, **seconds})
        return rows


def measure_overlaps(spans: Spans, weights: Mapping[int, int], free: Floats, *, steps: int) -> Overlaps:
    """Measure how much communication overlaps with compute, on each simulated rank and averaged over all ranks.

    ``weights[rank]`` is how many ranks a simulated rank represents; ``free`` has each span's seconds on free links.
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


def _sort_keys(keys: Iterable[CommunicationKey]) -> list[CommunicationKey]:
    place = {axis: number for number, axis in enumerate(("", *EXPOSED))}
    return sorted(dict.fromkeys(keys), key=lambda key: (place[key.axis], key.kind, key.name))


def _measure_rank(spans: Spans, free: Floats, steps: int) -> dict[CommunicationKey, OverlapSeconds]:
    rank = RankIntervals(spans, free)
    every = np.zeros(len(spans), dtype=bool)
    found: dict[CommunicationKey, Floats] = {}
    for axis in EXPOSED:
        on_axis = spans.stream == spans.word_code(axis)
        if not on_axis.any():
            continue
        every |= on_axis
        found[CommunicationKey(axis)] = rank.measure_overlap(on_axis)
        names = spans.kind[on_axis] * len(spans.words) + spans.name[on_axis]
        pairs = [divmod(pair, len(spans.words)) for pair in np.unique(names).tolist()]
        keys = {CommunicationKey(axis, spans.words[kind], spans.words[name]): (kind, name) for kind, name in pairs}
        for key in _sort_keys(keys):
            kind, name = keys[key]
            found[key] = rank.measure_overlap(on_axis & (spans.kind == kind) & (spans.name == name), count_exposed=True)
            found[CommunicationKey(axis)][_COUNTED] += found[key][_COUNTED]
    total = rank.measure_overlap(every)
    for whole in (key for key in found if not key.kind):
        total[_COUNTED] += found[whole][_COUNTED]
    return {key: OverlapSeconds(*(each / steps).tolist()) for key, each in {CommunicationKey(): total, **found}.items()}


class RankIntervals:
    """One rank's time, divided at every start and end of a span, to measure communication between these times."""

    def __init__(self, spans: Spans, free: Floats) -> None:
        self._spans = spans
        self._edges = np.unique(np.concatenate([spans.ready, spans.start, spans.end]))
        self._length = np.diff(self._edges)
        self._start, self._end = (np.searchsorted(self._edges, times) for times in (spans.start, spans.end))
        compute = spans.stream == spans.word_code("compute")
        self._computing = covered_mask(len(self._edges), self._start[compute], self._end[compute])
        self._uncounted = ~self._computing
        took = spans.end - spans.start
        self._contended = np.divide(took - free, took, out=np.zeros(len(spans)), where=took > 0)

    def measure_overlap(self, mask: Bools, *, count_exposed: bool = False) -> Floats:
        """Measure how much the spans selected by a boolean mask overlap with compute, over the whole run."""
        spans, chosen = self._spans, np.flatnonzero(mask)
        place, depth, contended = self._find_wire_intervals(chosen)
        length, computing = self._length[place], self._computing[place]
        lost = length * np.clip(contended / depth, 0.0, 1.0)
        own = self._uncounted[place] if count_exposed else np.zeros(len(place), dtype=bool)
        self._uncounted[place[own]] = False
        late = chosen[spans.ready[chosen] < spans.start[chosen]]
        waiting = intervals_inside(self._edges, spans.ready[late], spans.start[late]) if len(late) else np.arange(0)
        return np.array([
            len(chosen), spans.bytes[chosen].sum(), length.sum(), length[computing].sum(), length[~computing].sum(),
            length[own].sum(), self._length[waiting].sum(), lost.sum(), lost[own].sum(),
        ])  # fmt: skip

    def _find_wire_intervals(self, chosen: Ints) -> tuple[Ints, Floats, Floats]:
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
