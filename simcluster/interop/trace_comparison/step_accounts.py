"""Time accounting of steps from GPU work alone, by the same rules for a trace and a simulation.

At any instant a rank is in one state: it computes (by phase); else it communicates, and all members have arrived
(exposed, by axis); else it copies; else a communication waits for a member (waiting, by axis; for a message that is
bubble); else nothing runs: until a message begins, or after its last op while others continue, that is bubble (without
a pipeline: the end); all other pauses are the host's, or between kernels (idle). Where not every member was recorded,
waiting cannot be distinguished from transfer: it counts as exposed, and so does the bubble with messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from simcluster.base.arrays import Bools, Floats
from simcluster.interop.kineto import ProfiledJob
from simcluster.results.result import Result
from simcluster.results.span_states import EXPOSED, find_inside
from simcluster.results.timeline import COLUMNS, Spans

PHASES = ("forward", "backward", "optimizer", "other")
"""Phases of computation; recomputation is part of backward, where a profiler sees it."""
PHASE_OF_KIND = {
    "forward": "forward", "recompute": "backward", "backward": "backward", "input_grad": "backward",
    "weight_grad": "backward", "optimizer": "optimizer",
}  # fmt: skip
COPY_STREAMS = ("d2h", "h2d", "storage")
NANOSECOND = 1e-9
"""Profilers count whole nanoseconds; simulated times are rounded to them."""
MESSAGE_KIND = "send_recv"
"""Kind of messages between stages: either half, or both in one kernel."""


class KernelTime(NamedTuple):
    """Launches and seconds of kernels of one phase and kind, as means per rank and step."""

    launches: float
    seconds: float


class UnmatchedKernel(NamedTuple):
    """A kernel name that no pattern matches, with launches and seconds per rank and step."""

    name: str
    launches: float
    seconds: float


@dataclass(frozen=True)
class StepSide:
    """Steps of some ranks, simulated or recorded, as spans and sums by kernel.

    ``spans`` have the columns of a timeline, without host work; the ``kind`` of computation is its phase, of messages
    ``MESSAGE_KIND``. ``step`` is the index of a step, which begins at ``begins[step]`` and takes ``lengths[step]``
    seconds, until the next begins. ``weights[rank]`` is the number of ranks that one represents. ``kernels`` are by
    phase and kind; ``launched`` is each span's launch time, NaN if unknown.
    """

    spans: Spans
    weights: Mapping[int, int]
    begins: Floats
    lengths: Floats
    kernels: Mapping[tuple[str, str], KernelTime]
    launched: Floats
    unmatched: tuple[UnmatchedKernel, ...] = ()

    @property
    def num_rank_steps(self) -> int:
        """Number of (rank, step) pairs."""
        return sum(self.weights.values()) * len(self.lengths)

    @property
    def seconds(self) -> float:
        """Mean step time (s)."""
        return float(self.lengths.mean())


def select_spans(spans: Spans, keep: Bools, **columns: Any) -> Spans:
    """Return the spans that a mask or index selects, with some columns replaced."""
    found = {name: columns.get(name, getattr(spans, name))[keep] for name in ("op", *COLUMNS)}
    return Spans(spans.words, *found.values())


class CallTime(NamedTuple):
    """Communication of one parallel axis and kind, as means per rank and step.

    ``seconds`` count from the last arrival on, ``exposed`` those of them without computation, ``waiting`` the time
    before it.
    """

    calls: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    exposed: float = 0.0
    waiting: float = 0.0


class LayerTimes(NamedTuple):
    """Forward and backward compute seconds of a layer per step, on the ranks that have it."""

    forward: float
    backward: float


@dataclass(frozen=True)
class StepAccount:
    """Where step time goes, in seconds of the mean rank and step.

    ``states`` sum to ``seconds``. ``rank_compute`` and ``rank_idle`` are by rank. ``launch_delay`` is the part of
    ``idle`` before the host launched the next op, where launches are known.
    """

    seconds: float
    states: Mapping[str, float]
    calls: Mapping[tuple[str, str], CallTime]
    layers: Mapping[int, LayerTimes]
    rank_compute: Mapping[int, float]
    rank_idle: Mapping[int, float]
    launch_delay: float


def account_steps(side: StepSide, *, stages: int, merged: bool) -> StepAccount:
    """Return where the step time of a trace or simulation goes; if ``merged``, waiting is communication."""
    states: dict[str, float] = defaultdict(float)
    calls: dict[tuple[str, str], Floats] = defaultdict(lambda: np.zeros(len(CallTime._fields)))
    layers: dict[int, Floats] = defaultdict(lambda: np.zeros(3))
    computed, paused = dict.fromkeys(side.weights, 0.0), dict.fromkeys(side.weights, 0.0)
    late, steps = 0.0, len(side.lengths)
    for (rank, weight), step in product(side.weights.items(), range(steps)):
        one = _RankStep(side, rank, step, merged=merged)
        share = weight / side.num_rank_steps
        for name, seconds in one.state_seconds(stages):
            states[name] += share * seconds
            paused[rank] += seconds / steps if name == "idle" else 0.0
        for key, numbers in one.call_numbers():
            calls[key] = calls[key] + share * numbers
        for layer, numbers in one.layer_seconds():
            layers[layer] = layers[layer] + weight * np.append(numbers, 1.0)
        computed[rank] += float(one.length[one.computing].sum()) / steps
        late += share * one.launch_delay
    return StepAccount(
        side.seconds, dict(states), {key: CallTime(*numbers.tolist()) for key, numbers in sorted(calls.items())},
        {layer: LayerTimes(*(sums[:2] / sums[2]).tolist()) for layer, sums in sorted(layers.items())}, computed, paused,
        late,
    )  # fmt: skip


class _RankStep:
    """One rank's step, cut at every start and end, so that every state is a mask over the pieces."""

    def __init__(self, side: StepSide, rank: int, step: int, *, merged: bool) -> None:
        spans = side.spans
        low, high = np.searchsorted(spans.rank, [rank, rank + 1])
        own = np.arange(low, high)[spans.step[low:high] == step]
        self._spans, self._merged = select_spans(spans, own), merged
        begin, whole = float(side.begins[step]), round(float(side.lengths[step]) / NANOSECOND) * NANOSECOND
        ready, start, end, self._launched = (
            np.round((times - begin) / NANOSECOND) * NANOSECOND
            for times in (self._spans.ready, self._spans.start, self._spans.end, side.launched[own])
        )
        self._on_axis = {axis: self._spans.stream == spans.code(axis) for axis in EXPOSED}
        if merged:
            start = np.where(np.any(list(self._on_axis.values()), axis=0), ready, start)
        self._ready, self._start, self._end = (np.clip(each, 0.0, whole) for each in (ready, start, end))
        self._edges = np.unique(np.concatenate([self._ready, self._start, self._end, [0.0, whole]]))
        self.length, self.launch_delay = np.diff(self._edges), 0.0
        self._computes = self._spans.stream == spans.code("compute")
        self.computing = self._busy_mask(self._computes)

    def _busy_mask(self, which: Bools) -> Bools:
        return find_inside(self._edges, self._start[which], self._end[which])

    def _waiting_mask(self, which: Bools) -> Bools:
        late = which & (self._ready < self._start)
        return find_inside(self._edges, self._ready[late], self._start[late])

    def state_seconds(self, stages: int) -> Iterator[tuple[str, float]]:
        """Yield state names (computing, exposed, waiting, idle) with their seconds, some names repeatedly."""
        spans, free = self._spans, np.ones(len(self.length), dtype=bool)
        copies = np.isin(spans.stream, [spans.code(way) for way in COPY_STREAMS if way in spans.words])
        masks = [(phase, self._busy_mask(self._computes & (spans.kind == spans.code(phase)))) for phase in PHASES]
        masks += [(f"exposed_{axis}", self._busy_mask(mask)) for axis, mask in self._on_axis.items()]
        masks += [("copying", self._busy_mask(copies))]
        masks += [("bubble" if axis == "pp" else f"waiting_{axis}", self._waiting_mask(mask))
                  for axis, mask in self._on_axis.items()]  # fmt: skip
        for name, mask in masks:
            yield name, float(self.length[mask & free].sum())
            free &= ~mask
        for name, seconds in self._pauses_by_cause(free, pipeline=stages > 1):
            yield "exposed_pp" if self._merged and name == "bubble" else name, seconds

    def _pauses_by_cause(self, free: Bools, *, pipeline: bool) -> Iterator[tuple[str, float]]:
        begun = set(np.searchsorted(self._edges, self._start[self._on_axis["pp"]]).tolist())
        edges = np.flatnonzero(np.diff(np.concatenate([[False], free, [False]]).astype(np.int8)))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            seconds = float(self._edges[last] - self._edges[first])
            if last == len(self.length):
                yield "bubble" if pipeline else "end", seconds
            elif pipeline and last in begun:
                yield "bubble", seconds
            else:
                next_ = self._launched[self._start == self._edges[last]]
                if len(next_) and np.nanmin(np.append(next_, np.inf)) < np.inf:
                    at = min(float(np.nanmin(next_)), float(self._edges[last]))
                    self.launch_delay += max(0.0, at - float(self._edges[first]))
                yield "idle", seconds

    def call_numbers(self) -> Iterator[tuple[tuple[str, str], Floats]]:
        """Yield the values of ``CallTime`` by parallel axis and kind."""
        for axis, on_axis in self._on_axis.items():
            for kind in np.unique(self._spans.kind[on_axis]).tolist():
                own = on_axis & (self._spans.kind == kind)
                numbers = (
                    own.sum(), self._spans.bytes[own].sum(), (self._end - self._start)[own].sum(),
                    self.length[self._busy_mask(own) & ~self.computing].sum(),
                    self.length[self._waiting_mask(own) & ~self.computing].sum(),
                )  # fmt: skip
                yield (axis, self._spans.words[kind]), np.array(numbers, dtype=np.float64)

    def layer_seconds(self) -> Iterator[tuple[int, Floats]]:
        """Yield forward and backward seconds by layer."""
        spans, took = self._spans, self._end - self._start
        compute = self._computes & (spans.layer >= 0)
        phases = [compute & (spans.kind == spans.code(phase)) for phase in ("forward", "backward")]
        for layer in np.unique(spans.layer[compute]).tolist():
            yield layer, np.array([took[(spans.layer == layer) & phase].sum() for phase in phases])


CAUSES = (
    *PHASES, *(f"exposed_{axis}" for axis in EXPOSED), *(f"waiting_{axis}" for axis in EXPOSED if axis != "pp"),
    "bubble", "end", "copying", "idle",
)  # fmt: skip
"""Causes of step time, in the order of tables."""


class KernelPair(NamedTuple):
    """Simulated and recorded time of kernels of one phase and kind."""

    phase: str
    kind: str
    simulated: KernelTime
    recorded: KernelTime

    @property
    def name(self) -> str:
        """Kernel kind and phase, as displayed."""
        return f"{self.kind} {self.phase}" if self.kind != self.phase else self.kind


class CallPair(NamedTuple):
    """Simulated and recorded communication of one parallel axis and kind."""

    axis: str
    kind: str
    simulated: CallTime
    recorded: CallTime


class LayerPair(NamedTuple):
    """Simulated and recorded compute time of a layer (None if a side has no kernel of it)."""

    layer: int
    simulated: LayerTimes | None
    recorded: LayerTimes | None


@dataclass(frozen=True)
class StepDifference:
    """Difference between a recorded step and the simulated one, by cause.

    All times are of the recorded ranks, the mean of rank and step; ``causes`` sum to ``seconds``. ``rank_compute`` has
    each rank's compute seconds, simulated and recorded. ``stretches``: kernel kinds are the spans of a simulation's
    trace. ``merged``: some group members were not recorded, so waiting counts as communication. ``mismatches`` are
    reasons why the trace may be of another job.
    """

    names: tuple[str, str]
    result: Result = field(repr=False)
    job: ProfiledJob = field(repr=False)
    simulated: StepAccount = field(repr=False)
    recorded: StepAccount = field(repr=False)
    steps: tuple[float, ...]
    kernels: tuple[KernelPair, ...] = field(repr=False)
    rank_compute: Mapping[int, tuple[float, float]] = field(repr=False)
    unmatched: tuple[UnmatchedKernel, ...] = field(repr=False)
    recorded_spans: Spans = field(repr=False)
    mismatches: tuple[str, ...]
    notes: tuple[str, ...] = field(repr=False)
    stretches: bool
    merged: bool

    @property
    def seconds(self) -> float:
        """Seconds per step by which the recorded step is longer; negative if it is faster."""
        return self.recorded.seconds - self.simulated.seconds

    @cached_property
    def causes(self) -> dict[str, float]:
        """Difference in seconds per step by cause (``CAUSES``)."""
        return {
            name: self.recorded.states.get(name, 0.0) - self.simulated.states.get(name, 0.0)
            for name in CAUSES
            if name in self.recorded.states or name in self.simulated.states
        }

    @cached_property
    def calls(self) -> tuple[CallPair, ...]:
        """Communication by axis and kind, largest difference first."""
        keys = dict.fromkeys((*self.simulated.calls, *self.recorded.calls))
        pairs = [CallPair(*key, self.simulated.calls.get(key, CallTime()), self.recorded.calls.get(key, CallTime()))
                 for key in keys]  # fmt: skip
        return tuple(sorted(pairs, key=lambda pair: -abs(pair.recorded.exposed - pair.simulated.exposed)))

    @cached_property
    def layers(self) -> tuple[LayerPair, ...]:
        """Compute by layer, as far as the trace names layers."""
        keys = sorted({*self.simulated.layers, *self.recorded.layers}) if self.recorded.layers else []
        return tuple(LayerPair(key, self.simulated.layers.get(key), self.recorded.layers.get(key)) for key in keys)
