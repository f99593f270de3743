"""A recorded step next to the simulated one: by cause, collective, kernel, layer and rank; or a note of another job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.base.shown import Shown
from simcluster.interop.kineto import load_profiles
from simcluster.interop.kineto.job import ProfiledJob
from simcluster.interop.kineto.kernel_kinds import UNMATCHED, KernelNames
from simcluster.interop.own_trace.axes import AxisNames
from simcluster.interop.own_trace.pairs import KernelPair, StepPair
from simcluster.interop.own_trace.recorded import of_stretches, partial, played_side, recorded_side
from simcluster.interop.own_trace.side import KernelTime
from simcluster.interop.own_trace.states import CallTime, StepAccount, account
from simcluster.interop.own_trace.words import in_words
from simcluster.results.result import Result
from simcluster.step.simulate import ResultLike, result_of

if TYPE_CHECKING:
    import pandas as pd

_SAME = 0.1
"""Counts that differ by no more are taken for the same: frameworks do small things in calls of their own."""
_COUNTED = ("attention",)
"""Kinds of which every implementation launches about as many kernels."""


def doubts(
    result: Result, job: ProfiledJob, played: StepAccount, recorded: StepAccount, kernels: Sequence[KernelPair],
    *, stretches: bool,
) -> Iterator[str]:  # fmt: skip
    """What tells that it is another job, in clauses; nothing where it seems to be the same."""
    world = world_of(job)
    if world != result.facts.ranks and (world > result.facts.ranks or world > len(job.ranks)):
        yield f"the trace is of a job of {world} ranks, the scenario has {result.facts.ranks}"
    elif len(job.ranks) > result.facts.ranks:
        yield f"the trace has {len(job.ranks)} ranks, the scenario {result.facts.ranks}"
    if recorded.layers and len(recorded.layers) != len(played.layers):
        yield f"its ranks have {len(recorded.layers)} layers, the scenario's {len(played.layers)}"
    yield from _calls(played, recorded)
    for each in kernels if stretches else ():
        if not _alike(each.played.launches, each.recorded.launches) and each.phase != "optimizer":
            yield _counts(f"{each.kind} {each.phase}", "", each.played.launches, each.recorded.launches)
            return
    for each in kernels:
        if each.kind in _COUNTED and each.phase == "forward" and not stretches:
            one, two = each.played.launches, each.recorded.launches
            if two and not _alike(one, two):
                yield _counts("attention forward", " kernels", one, two)


def world_of(job: ProfiledJob) -> int:
    """How many ranks the recorded job has, as far as its groups tell."""
    comms = (source.comm for graph in job.steps_of_ranks for source in graph.source if source is not None)
    return max((max(comm.ranks, default=0) + 1 for comm in comms if comm is not None), default=len(job.ranks))


def _calls(played: StepAccount, recorded: StepAccount) -> Iterator[str]:
    """Of the axis of which most calls differ: frameworks call for small things more often than a simulation does."""
    if not any(call.bytes for call in recorded.calls.values()):
        return  # the trace does not tell sizes
    worst = ("", 0.0, 0.0)
    for axis in dict.fromkeys(axis for axis, _ in (*played.calls, *recorded.calls)):
        one, two = (_large(side, axis) for side in (played, recorded))
        if abs(one - two) > max(_SAME * one, 2.0) and abs(one - two) > abs(worst[1] - worst[2]):
            worst = axis, one, two
    if worst[0]:
        yield _counts(f"over {worst[0]}", " large calls", worst[1], worst[2])


def _large(side: StepAccount, axis: str) -> float:
    """Calls of 1 MB and more, on average of their kind."""
    own = (call for (at, _), call in side.calls.items() if at == axis)
    return sum(call.calls for call in own if _size(call) >= 1e6)


def _size(call: CallTime) -> float:
    return call.bytes / call.calls if call.calls else 0.0


def _alike(one: float, two: float) -> bool:
    return abs(one - two) <= _SAME * max(one, two)


def _counts(what: str, unit: str, one: float, two: float) -> str:
    return f"{what}: {two:,.4g}{unit} a rank and step, the scenario has {one:,.4g}"


_NOTHING = KernelTime(0.0, 0.0)
_OF_REPLAYS = ("pauses of streams", "which streams waited", "some kernels have no launch", "profiles of CPUs")
"""How notes begin that tell what a replay assumes; here a step is taken as it was recorded."""


@dataclass(frozen=True, repr=False)
class TraceDifference(Shown, StepPair):
    """By how many seconds a recorded step is longer than the simulated one, and why: ``StepPair``, told."""

    def sentences(self) -> list[str]:
        """What an engineer would say, the largest first; what makes it another job before all."""
        return in_words(self)

    def in_words(self) -> str:
        """A short paragraph: how much, by what, and on whom."""
        return " ".join(self.sentences())

    @property
    def table(self) -> pd.DataFrame:
        """Seconds a step by cause, simulated and recorded, with the difference; they sum to the steps."""
        import pandas as pd

        sides = {
            name: [side.states.get(cause, 0.0) for cause in self.causes]
            for name, side in (("simulated", self.played), ("recorded", self.recorded))
        }
        return pd.DataFrame(
            {**sides, "difference": list(self.causes.values())}, index=pd.Index(self.causes, name="cause")
        )

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


@collector_off()  # a trace is many small objects, and none of them in a cycle
def diff_trace(
    base: ResultLike,
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
        raise InputError(
            f"{job.name} has no kernels of a GPU: a step can only be compared with profiles of GPUs; record with "
            "activities=[CPU, CUDA]"
        )
    result = result_of(base, "diff")
    ranks = [rank for rank in job.ranks if rank < result.facts.ranks]
    if not ranks:
        raise InputError(
            f"{job.name} has profiles of ranks {job.ranks[0]} to {job.ranks[-1]}, and {result.scenario.name!r} has "
            f"only ranks 0 to {result.facts.ranks - 1}; give profiles of ranks that it has"
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
