"""A recorded step beside the simulated one: by cause, collective, kind of kernel, layer and rank, and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.interop.kineto import ProfiledJob, load_profiles
from simcluster.interop.kineto.kernel_kinds import UNMATCHED, KernelNames
from simcluster.results.metrics import EXPOSED
from simcluster.results.result import Result
from simcluster.results.timeline import Spans
from simcluster.scenario.scenario import Scenario, load
from simcluster.simulate import simulate
from simcluster.studies.own_trace.axes import AxisNames
from simcluster.studies.own_trace.other_job import doubts
from simcluster.studies.own_trace.played import played_side
from simcluster.studies.own_trace.recorded import of_stretches, partial, recorded_side
from simcluster.studies.own_trace.side import PHASES, KernelTime, Unmatched
from simcluster.studies.own_trace.states import CallTime, LayerTimes, StepAccount, account
from simcluster.studies.own_trace.words import in_words

CAUSES = (
    *PHASES, *(f"exposed_{axis}" for axis in EXPOSED), *(f"waiting_{axis}" for axis in EXPOSED if axis != "pp"),
    "bubble", "end", "copying", "idle",
)  # fmt: skip
"""Where a step's time goes, in the order in which tables have it."""
_NOTHING = KernelTime(0.0, 0.0)
_OF_REPLAYS = ("pauses of streams", "which streams waited", "some kernels have no launch", "profiles of CPUs")
"""How notes begin that tell what a replay assumes; here a step is taken as it was recorded."""


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
class TraceDifference:
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

    def sentences(self) -> list[str]:
        """What an engineer would say, the largest first; what makes it another job before all."""
        return in_words(self)

    def in_words(self) -> str:
        """A short paragraph: how much, by what, and on whom."""
        return " ".join(self.sentences())

    def __repr__(self) -> str:
        return f"<TraceDifference {self.names[1]!r} against {self.names[0]!r}: {self.seconds:+.6g} s a step>"

    def to_dict(self) -> dict[str, Any]:
        """As JSON: seconds per step."""
        return {
            "base": {"name": self.names[0], "step_time_s": self.played.seconds},
            "trace": {
                "name": self.names[1], "step_time_s": self.recorded.seconds, "steps_s": list(self.steps),
                "ranks": list(self.job.ranks),
            },
            "difference_s": self.seconds,
            "another_job": list(self.doubts),
            "causes_s": self.causes,
            "states_s": {"base": dict(self.played.states), "trace": dict(self.recorded.states)},
            "kernels": [
                {"phase": each.phase, "kind": each.kind, "base": each.played._asdict(),
                 "trace": each.recorded._asdict()}
                for each in self.kernels
            ],
            "kinds_are": "stretches" if self.stretches else "kernels",
            "not_matched": [each._asdict() for each in self.unmatched],
            "collectives": [
                {"axis": each.axis, "kind": each.kind, "base": each.played._asdict(), "trace": each.recorded._asdict()}
                for each in self.calls
            ],
            "waiting_is_communication": self.merged,
            "layers": [
                {"layer": each.layer, "base": each.played and each.played._asdict(),
                 "trace": each.recorded and each.recorded._asdict()}
                for each in self.layers
            ],
            "computed": [{"rank": rank, "base_s": one, "trace_s": two} for rank, (one, two) in self.computed.items()],
            "idle_before_launch_s": self.recorded.late,
            "in_words": self.sentences(),
            "notes": list(self.notes),
        }  # fmt: skip


def diff_trace(
    base: str | Path | Scenario | Result,
    trace: str | Path | ProfiledJob,
    *,
    kernels: str | Path | None = None,
    steps: Sequence[int] | None = None,
) -> TraceDifference:
    """A recorded step (of PyTorch or Nsight Systems: a file, or a folder with one a rank) beside a simulated one.

    ``kernels`` is a table of names of kernels that goes before the one that ships (``kernel_kinds.yaml``); ``steps``
    picks steps of the trace.  Raises InputError for what cannot be read, and for profiles without GPUs.
    """
    names = KernelNames(kernels)
    job = trace if isinstance(trace, ProfiledJob) else load_profiles(trace, steps)
    if not job.steps_of_ranks[0].on_device:
        raise InputError(f"{job.name} has no kernels of a GPU: a step can only be compared with profiles of GPUs")
    result = base if isinstance(base, Result) else simulate(base if isinstance(base, Scenario) else load(base))
    ranks = [rank for rank in job.ranks if rank < result.facts.ranks]
    if not ranks:
        raise InputError(
            f"{job.name} has profiles of ranks {job.ranks[0]} to {job.ranks[-1]}, and {result.scenario.name!r} has "
            f"only ranks 0 to {result.facts.ranks - 1}; nothing can be compared"
        )
    stretches, merged = of_stretches(job), partial(job)
    two = recorded_side(job, AxisNames(result, job), names, stretches=stretches)
    one = played_side(result, ranks, names, stretches=stretches)
    stages = result.scenario.parallel.pp
    played, recorded = (account(side, stages=stages, merged=merged) for side in (one, two))
    computed = {
        rank: (played.computed[result.simulated_for(rank)], recorded.computed[rank]) for rank in ranks
    }  # fmt: skip
    keys = dict.fromkeys((*one.kernels, *two.kernels))
    pairs = [KernelPair(*key, one.kernels.get(key, _NOTHING), two.kernels.get(key, _NOTHING)) for key in keys]
    found = [pair for pair in pairs if pair.kind != UNMATCHED]
    found.sort(key=lambda pair: -abs(pair.recorded.seconds - pair.played.seconds))
    title = result.scenario.name, job.name
    return TraceDifference(
        title, result, job, played, recorded, tuple(two.lengths.tolist()), tuple(found), computed, two.unmatched,
        two.spans, tuple(doubts(result, job, played, recorded, found, stretches=stretches)),
        tuple(note for note in job.notes if not note.startswith(_OF_REPLAYS)), stretches, merged,
    )  # fmt: skip
