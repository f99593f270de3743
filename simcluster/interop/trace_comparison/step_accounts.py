"""Breakdown of step time from GPU work alone, by identical rules for traces and simulations.

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
from simcluster.results.span_states import EXPOSED, intervals_inside
from simcluster.results.timeline import COLUMNS, Spans

PHASES = ("forward", "backward", "optimizer", "other")
"""Phases of computation; recomputation is part of backward, where a profiler sees it."""
PHASE_OF_KIND = {
    "forward": "forward", "recompute": "backward", "backward": "backward", "input_grad": "backward",
    "weight_grad": "backward", "optimizer": "optimizer",
}  # fmt: skip
COPY_STREAMS = ("d2h", "h2d", "storage")
PROFILER_RESOLUTION = 1e-9
"""Profilers count whole nanoseconds; simulated times are rounded to them."""
MESSAGE_KIND = "send_recv"
"""Kind of messages between stages: either half, or both in one kernel."""


class KernelTime(NamedTuple):
    """Launches and seconds of kernels with the same phase and kind, as means per rank and step."""

    launches: float
    seconds: float


class UnmatchedKernel(NamedTuple):
    """Kernel name that no pattern matches, with its launches and seconds per rank and step."""

    name: str
    launches: float
    seconds: float


@dataclass(frozen=True)
class ComparedSteps:
    """Simulated or recorded steps of some ranks, as timeline spans and as total times by kind of kernel.

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


def select_span_rows(spans: Spans, keep: Bools, **columns: Any) -> Spans:
    """Return the spans selected by a mask or index array, with some columns replaced."""
    found = {name: columns.get(name, getattr(spans, name))[keep] for name in ("op", *COLUMNS)}
    return Spans(spans.words, *found.values())


class CallTime(NamedTuple):
    """Communication on one parallel axis with one kind of call, as means per rank and step.

    ``seconds`` count from the last arrival on, ``exposed`` those of them without computation, ``waiting`` the time
    before it.
    """

    calls: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    exposed: float = 0.0
    waiting: float = 0.0


class LayerTimes(NamedTuple):
    """Forward and backward compute time (s) of a layer per step, on the ranks that compute the layer."""

    forward: float
    backward: float


@dataclass(frozen=True)
class StepTimeBreakdown:
    """Breakdown of the step time by state, as mean seconds per rank and step.

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


def break_down_step_time(side: ComparedSteps, *, stages: int, merged: bool) -> StepTimeBreakdown:
    """Break down the step time of simulated or recorded steps; with ``merged``, waits count as communication."""
    states: dict[str, float] = defaultdict(float)
    calls: dict[tuple[str, str], Floats] = defaultdict(lambda: np.zeros(len(CallTime._fields)))
    layers: dict[int, Floats] = defaultdict(lambda: np.zeros(3))
    computed, paused = dict.fromkeys(side.weights, 0.0), dict.fromkeys(side.weights, 0.0)
    late, steps = 0.0, len(side.lengths)
    rank_steps = sum(side.weights.values()) * steps
    for (rank, weight), step in product(side.weights.items(), range(steps)):
        one = _RankStepIntervals(side, rank, step, merged=merged)
        share = weight / rank_steps
        for name, seconds in one.state_seconds(stages):
            states[name] += share * seconds
            paused[rank] += seconds / steps if name == "idle" else 0.0
        for key, numbers in one.call_times():
            calls[key] = calls[key] + share * numbers
        for layer, numbers in one.layer_seconds():
            layers[layer] = layers[layer] + weight * np.append(numbers, 1.0)
        computed[rank] += float(one.length[one.computing].sum()) / steps
        late += share * one.launch_delay
    return StepTimeBreakdown(
        float(side.lengths.mean()), dict(states),
        {key: CallTime(*sums.tolist()) for key, sums in sorted(calls.items())},
        {key: LayerTimes(*(row[:2] / row[2]).tolist()) for key, row in sorted(layers.items())}, computed, paused, late,
    )  # fmt: skip


class _RankStepIntervals:
    """One rank's step, cut at every start and end of a span; each state is a mask over the intervals."""

    def __init__(self, side: ComparedSteps, rank: int, step: int, *, merged: bool) -> None:
        spans = side.spans
        low, high = np.searchsorted(spans.rank, [rank, rank + 1])
        own = np.arange(low, high)[spans.step[low:high] == step]
        self._spans, self._merged = select_span_rows(spans, own), merged
        whole = round(float(side.lengths[step]) / PROFILER_RESOLUTION) * PROFILER_RESOLUTION
        ready, start, end, self._launched = (
            np.round((times - float(side.begins[step])) / PROFILER_RESOLUTION) * PROFILER_RESOLUTION
            for times in (self._spans.ready, self._spans.start, self._spans.end, side.launched[own])
        )
        self._on_axis = {axis: self._spans.stream == spans.word_code(axis) for axis in EXPOSED}
        if merged:
            start = np.where(np.any(list(self._on_axis.values()), axis=0), ready, start)
        self._ready, self._start, self._end = (np.clip(each, 0.0, whole) for each in (ready, start, end))
        self._edges = np.unique(np.concatenate([self._ready, self._start, self._end, [0.0, whole]]))
        self.length, self.launch_delay = np.diff(self._edges), 0.0
        self._computes = self._spans.stream == spans.word_code("compute")
        self.computing = self._busy_mask(self._computes)

    def _busy_mask(self, which: Bools) -> Bools:
        return intervals_inside(self._edges, self._start[which], self._end[which])

    def _waiting_mask(self, which: Bools) -> Bools:
        late = which & (self._ready < self._start)
        return intervals_inside(self._edges, self._ready[late], self._start[late])

    def state_seconds(self, stages: int) -> Iterator[tuple[str, float]]:
        """Yield (state, seconds) pairs for the computing, exposed, waiting and idle states; states may repeat."""
        spans, free = self._spans, np.ones(len(self.length), dtype=bool)
        copies = np.isin(spans.stream, [spans.word_code(way) for way in COPY_STREAMS if way in spans.words])
        masks = [(phase, self._busy_mask(self._computes & (spans.kind == spans.word_code(phase)))) for phase in PHASES]
        masks += [(f"exposed_{axis}", self._busy_mask(mask)) for axis, mask in self._on_axis.items()]
        masks += [("copying", self._busy_mask(copies))]
        masks += [("bubble" if axis == "pp" else f"waiting_{axis}", self._waiting_mask(mask))
                  for axis, mask in self._on_axis.items()]  # fmt: skip
        for name, mask in masks:
            yield name, float(self.length[mask & free].sum())
            free &= ~mask
        for name, seconds in self._pause_seconds_by_cause(free, pipeline=stages > 1):
            yield "exposed_pp" if self._merged and name == "bubble" else name, seconds

    def _pause_seconds_by_cause(self, free: Bools, *, pipeline: bool) -> Iterator[tuple[str, float]]:
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

    def call_times(self) -> Iterator[tuple[tuple[str, str], Floats]]:
        """Yield the numbers of a ``CallTime`` for each (parallel axis, kind) of communication."""
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
        """Yield each layer's number, and its forward and backward seconds."""
        spans, took = self._spans, self._end - self._start
        compute = self._computes & (spans.layer >= 0)
        phases = [compute & (spans.kind == spans.word_code(phase)) for phase in ("forward", "backward")]
        for layer in np.unique(spans.layer[compute]).tolist():
            yield layer, np.array([took[(spans.layer == layer) & phase].sum() for phase in phases])


CAUSES = (
    *PHASES, *(f"exposed_{axis}" for axis in EXPOSED), *(f"waiting_{axis}" for axis in EXPOSED if axis != "pp"),
    "bubble", "end", "copying", "idle",
)  # fmt: skip
"""Causes of step time, in the order of tables."""


class KernelComparison(NamedTuple):
    """Simulated and recorded time of kernels with the same phase and kind."""

    phase: str
    kind: str
    simulated: KernelTime
    recorded: KernelTime

    @property
    def name(self) -> str:
        """Display name: kind of kernel and phase."""
        return f"{self.kind} {self.phase}" if self.kind != self.phase else self.kind


class CallComparison(NamedTuple):
    """Simulated and recorded communication on one parallel axis with one kind of call."""

    axis: str
    kind: str
    simulated: CallTime
    recorded: CallTime


class LayerComparison(NamedTuple):
    """Simulated and recorded compute time of a layer (None where a side has no kernel of the layer)."""

    layer: int
    simulated: LayerTimes | None
    recorded: LayerTimes | None


@dataclass(frozen=True)
class StepDifference:
    """Difference between recorded and simulated steps, by cause.

    All times are of the recorded ranks, the mean of rank and step; ``causes`` sum to ``seconds``. ``rank_compute`` has
    each rank's compute seconds, simulated and recorded. ``kernels_are_spans``: kernel kinds are the spans of a
    simulation's trace. ``waiting_is_communication``: some group members were not recorded, so waiting counts as
    communication. ``mismatches`` are reasons why the trace may be of another job.
    """

    names: tuple[str, str]
    result: Result = field(repr=False)
    job: ProfiledJob = field(repr=False)
    simulated: StepTimeBreakdown = field(repr=False)
    recorded: StepTimeBreakdown = field(repr=False)
    steps: tuple[float, ...]
    kernels: tuple[KernelComparison, ...] = field(repr=False)
    rank_compute: Mapping[int, tuple[float, float]] = field(repr=False)
    unmatched: tuple[UnmatchedKernel, ...] = field(repr=False)
    recorded_spans: Spans = field(repr=False)
    mismatches: tuple[str, ...]
    notes: tuple[str, ...] = field(repr=False)
    kernels_are_spans: bool
    waiting_is_communication: bool

    @property
    def seconds(self) -> float:
        """Recorded minus simulated step time (s); negative if the recorded step is shorter."""
        return self.recorded.seconds - self.simulated.seconds

    @cached_property
    def causes(self) -> dict[str, float]:
        """Difference in seconds per step for each cause of step time (``CAUSES``)."""
        return {
            name: self.recorded.states.get(name, 0.0) - self.simulated.states.get(name, 0.0)
            for name in CAUSES
            if name in self.recorded.states or name in self.simulated.states
        }

    @cached_property
    def calls(self) -> tuple[CallComparison, ...]:
        """Communication by parallel axis and kind of call, largest difference first."""
        one, two = self.simulated.calls, self.recorded.calls
        pairs = [CallComparison(*key, one.get(key, CallTime()), two.get(key, CallTime())) for key in {**one, **two}]
        return tuple(sorted(pairs, key=lambda pair: -abs(pair.recorded.exposed - pair.simulated.exposed)))

    @cached_property
    def layers(self) -> tuple[LayerComparison, ...]:
        """Compute time by layer; empty if the trace does not name layers."""
        one, two = self.simulated.layers, self.recorded.layers
        return tuple(LayerComparison(key, one.get(key), two.get(key)) for key in sorted({*one, *two}) if two)
