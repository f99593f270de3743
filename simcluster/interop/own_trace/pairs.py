"""A recorded step and the simulated one in pairs: causes, kernels, communication, layers, ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from simcluster.interop.kineto import ProfiledJob
from simcluster.interop.own_trace.side import PHASES, KernelTime, Unmatched
from simcluster.interop.own_trace.states import CallTime, LayerTimes, StepAccount
from simcluster.results.result import Result
from simcluster.results.span_states import EXPOSED
from simcluster.results.timeline import Spans

CAUSES = (
    *PHASES, *(f"exposed_{axis}" for axis in EXPOSED), *(f"waiting_{axis}" for axis in EXPOSED if axis != "pp"),
    "bubble", "end", "copying", "idle",
)  # fmt: skip
"""Where a step's time goes, in the order in which tables have it."""


class KernelPair(NamedTuple):
    """Kernels of a phase and kind on both sides."""

    phase: str
    kind: str
    played: KernelTime
    recorded: KernelTime


class CallPair(NamedTuple):
    """Communication of an axis and kind on both sides."""

    axis: str
    kind: str
    played: CallTime
    recorded: CallTime


class LayerPair(NamedTuple):
    """A layer on both sides; None where one has no kernel of it."""

    layer: int
    played: LayerTimes | None
    recorded: LayerTimes | None


@dataclass(frozen=True)
class StepPair:
    """By how many seconds a recorded step is longer than the simulated one, and why.

    All is of the ranks that were recorded, the mean of rank and step; ``causes`` sum to ``seconds``.  ``computed`` has
    the seconds that every rank computes, simulated and recorded.  ``stretches``: kinds are those of a simulation's
    trace, stretches of several kernels.  ``merged``: not every member of its groups was recorded, so waiting counts as
    communication.  ``doubts`` say why the trace seems to be of another job.
    """

    names: tuple[str, str]
    result: Result = field(repr=False)
    job: ProfiledJob = field(repr=False)
    played: StepAccount = field(repr=False)
    recorded: StepAccount = field(repr=False)
    steps: tuple[float, ...]
    kernels: tuple[KernelPair, ...] = field(repr=False)
    computed: Mapping[int, tuple[float, float]] = field(repr=False)
    unmatched: tuple[Unmatched, ...] = field(repr=False)
    recorded_spans: Spans = field(repr=False)
    doubts: tuple[str, ...]
    notes: tuple[str, ...] = field(repr=False)
    stretches: bool
    merged: bool

    @property
    def seconds(self) -> float:
        """Seconds per step; negative where the trace is faster."""
        return self.recorded.seconds - self.played.seconds

    @cached_property
    def causes(self) -> dict[str, float]:
        """Seconds per step by cause (``CAUSES``)."""
        return {
            name: self.recorded.states.get(name, 0.0) - self.played.states.get(name, 0.0)
            for name in CAUSES
            if name in self.recorded.states or name in self.played.states
        }

    @cached_property
    def calls(self) -> tuple[CallPair, ...]:
        """Communication by axis and kind, what differs most first."""
        keys = dict.fromkeys((*self.played.calls, *self.recorded.calls))
        pairs = [CallPair(*key, self.played.calls.get(key, CallTime()), self.recorded.calls.get(key, CallTime()))
                 for key in keys]  # fmt: skip
        return tuple(sorted(pairs, key=lambda pair: -abs(pair.recorded.exposed - pair.played.exposed)))

    @cached_property
    def layers(self) -> tuple[LayerPair, ...]:
        """Compute by layer, as far as the trace names layers."""
        keys = sorted({*self.played.layers, *self.recorded.layers}) if self.recorded.layers else []
        return tuple(LayerPair(key, self.played.layers.get(key), self.recorded.layers.get(key)) for key in keys)
