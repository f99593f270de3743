"""Where the time of a step went, from the work of its devices alone: the same for a trace and a simulation.

At any instant a rank is in one state: it computes (by phase); else it communicates, and all members have arrived
(exposed, by axis); else it copies; else a communication of its own waits for a member (waiting, by axis; for a message
that is bubble); else nothing runs: until a message begins, or behind its last op while others go on, that is bubble
(without a pipeline: the end); all other pauses are the host's, or between kernels (idle).  Where not every member was
recorded, waiting cannot be told from transfer: it is then counted as exposed, and so is the bubble with messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Bools, Floats
from simcluster.interop.own_trace.side import COPIES, NANO, PHASES, StepSide
from simcluster.results.span_states import EXPOSED, inside


class CallTime(NamedTuple):
    """Communication of one axis and kind, means of a rank and step: calls, bytes, seconds of the calls from the last
    arrival on, those of them in which nothing computes, and seconds of waiting for late members."""

    calls: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    exposed: float = 0.0
    waiting: float = 0.0


class LayerTimes(NamedTuple):
    """What the ranks that have a layer compute for it in a step, in seconds."""

    forward: float
    backward: float


@dataclass(frozen=True)
class StepAccount:
    """Where steps went, in seconds of the mean rank and step.

    ``states`` sum to ``seconds``.  ``computed`` and ``paused`` (*idle*) are by rank.  ``late`` is what of ``idle``
    passed before the host had launched what came next, where launches are known.
    """

    seconds: float
    states: Mapping[str, float]
    calls: Mapping[tuple[str, str], CallTime]
    layers: Mapping[int, LayerTimes]
    computed: Mapping[int, float]
    paused: Mapping[int, float]
    late: float


def account(side: StepSide, *, stages: int, merged: bool) -> StepAccount:
    """Where the steps of a side went; ``merged``: waiting counts as communication (members are missing)."""
    states: dict[str, float] = defaultdict(float)
    calls: dict[tuple[str, str], Floats] = {}
    layers: dict[int, Floats] = {}
    computed, paused = dict[int, float](), dict.fromkeys(side.weights, 0.0)
    late = 0.0
    for rank, weight in side.weights.items():
        for step in range(len(side.lengths)):
            one = _RankStep(side, rank, step, stages, merged=merged)
            share = weight / side.total
            for name, seconds in one.states():
                states[name] += share * seconds
                paused[rank] += seconds / len(side.lengths) if name == "idle" else 0.0
            for key, numbers in one.calls():
                calls[key] = calls.get(key, np.zeros(len(CallTime._fields))) + share * numbers
            for layer, numbers in one.layers():
                layers[layer] = layers.get(layer, np.zeros(3)) + weight * np.append(numbers, 1.0)
            computed[rank] = computed.get(rank, 0.0) + one.computed / len(side.lengths)
            late += share * one.late
    return StepAccount(
        side.seconds, dict(states), {key: CallTime(*numbers.tolist()) for key, numbers in sorted(calls.items())},
        {layer: LayerTimes(*(sums[:2] / sums[2]).tolist()) for layer, sums in sorted(layers.items())}, computed, paused,
        late,
    )  # fmt: skip


class _RankStep:
    """One rank's step, cut at every begin and end, so that every state is a mask over the pieces."""

    def __init__(self, side: StepSide, rank: int, step: int, stages: int, *, merged: bool) -> None:
        low, high = np.searchsorted(side.spans.rank, [rank, rank + 1])
        own = np.arange(low, high)[side.spans.step[low:high] == step]
        spans = side.spans
        self._words, self._stages, self._merged = spans.words, stages, merged
        self._stream, self._kind, self._layer = spans.stream[own], spans.kind[own], spans.layer[own]
        self._bytes, self._spans = spans.bytes[own], spans
        begin, whole = float(side.begins[step]), float(side.lengths[step])
        self._ready, self._start, self._end, self._launched = (
            np.round((times[own] - begin) / NANO) * NANO
            for times in (spans.ready, spans.start, spans.end, side.launched)
        )  # fmt: skip
        if merged:
            on_axis = np.isin(self._stream, [spans.code(axis) for axis in EXPOSED])
            self._start = np.where(on_axis, self._ready, self._start)
        whole = round(whole / NANO) * NANO
        times = np.concatenate([self._ready, self._start, self._end, [0.0, whole]])
        self._edges = np.unique(np.clip(times, 0.0, whole))
        self._ready, self._start, self._end = (
            np.clip(each, 0.0, whole) for each in (self._ready, self._start, self._end)
        )
        self._length = np.diff(self._edges)
        self.late = 0.0
        self._computing = self._on(self._stream == self._code("compute"))
        self.computed = float(self._length[self._computing].sum())

    def _code(self, word: str) -> int:
        return self._spans.code(word)

    def _on(self, which: Bools) -> Bools:
        return inside(self._edges, self._start[which], self._end[which])

    def _waits(self, which: Bools) -> Bools:
        late = which & (self._ready < self._start)
        return inside(self._edges, self._ready[late], self._start[late])

    def states(self) -> Iterator[tuple[str, float]]:
        """The names of states with their seconds; some come more than once."""
        free = np.ones(len(self._length), dtype=bool)

        def taken(mask: Bools) -> float:
            nonlocal free
            seconds = float(self._length[mask & free].sum())
            free &= ~mask
            return seconds

        compute = self._stream == self._code("compute")
        for phase in PHASES:
            yield phase, taken(self._on(compute & (self._kind == self._code(phase))))
        on_axis = {axis: self._stream == self._code(axis) for axis in EXPOSED}
        for axis, mask in on_axis.items():
            yield f"exposed_{axis}", taken(self._on(mask))
        copies = np.isin(self._stream, [self._code(way) for way in COPIES if way in self._words])
        yield "copying", taken(self._on(copies))
        for axis, mask in on_axis.items():
            yield "bubble" if axis == "pp" else f"waiting_{axis}", taken(self._waits(mask))
        for name, seconds in self._pauses(free, on_axis["pp"]):
            yield "exposed_pp" if self._merged and name == "bubble" else name, seconds

    def _pauses(self, free: Bools, messages: Bools) -> Iterator[tuple[str, float]]:
        """What nothing runs in, by what it ends with."""
        begun = np.unique(np.searchsorted(self._edges, self._start[messages]))
        edges = np.flatnonzero(np.diff(np.concatenate([[False], free, [False]]).astype(np.int8)))
        pipeline = self._stages > 1
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            seconds = float(self._edges[last] - self._edges[first])
            if last == len(self._length):
                yield "bubble" if pipeline else "end", seconds
            elif pipeline and len(begun) and begun[min(np.searchsorted(begun, last), len(begun) - 1)] == last:
                yield "bubble", seconds
            else:
                next_ = self._launched[self._start == self._edges[last]]
                if len(next_) and np.nanmin(np.append(next_, np.inf)) < np.inf:
                    at = min(float(np.nanmin(next_)), float(self._edges[last]))
                    self.late += max(0.0, at - float(self._edges[first]))
                yield "idle", seconds

    def calls(self) -> Iterator[tuple[tuple[str, str], Floats]]:
        """The numbers of ``CallTime`` by axis and kind."""
        for axis in EXPOSED:
            on_axis = self._stream == self._code(axis)
            for kind in np.unique(self._kind[on_axis]).tolist():
                own = on_axis & (self._kind == kind)
                numbers = (
                    own.sum(), self._bytes[own].sum(), (self._end - self._start)[own].sum(),
                    self._length[self._on(own) & ~self._computing].sum(),
                    self._length[self._waits(own) & ~self._computing].sum(),
                )  # fmt: skip
                yield (axis, self._words[kind]), np.array(numbers, dtype=np.float64)

    def layers(self) -> Iterator[tuple[int, Floats]]:
        """Seconds of forward and backward by layer."""
        compute = (self._stream == self._code("compute")) & (self._layer >= 0)
        took = self._end - self._start
        phases = [compute & (self._kind == self._code(phase)) for phase in ("forward", "backward")]
        for layer in np.unique(self._layer[compute]).tolist():
            own = self._layer == layer
            yield layer, np.array([took[own & phase].sum() for phase in phases])
