"""A recorded step beside the simulated one: by cause, collective, kind of kernel, layer and rank, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.base.shown import Shown
from simcluster.interop.kineto import ProfiledJob, load_profiles
from simcluster.interop.kineto.kernel_kinds import UNMATCHED, KernelNames
from simcluster.interop.own_trace.axes import AxisNames
from simcluster.interop.own_trace.other_job import doubts
from simcluster.interop.own_trace.pairs import KernelPair, StepPair
from simcluster.interop.own_trace.played import played_side
from simcluster.interop.own_trace.recorded import of_stretches, partial, recorded_side
from simcluster.interop.own_trace.side import KernelTime
from simcluster.interop.own_trace.states import account
from simcluster.interop.own_trace.words import in_words
from simcluster.step.simulate import ResultLike, result_of

if TYPE_CHECKING:
    import pandas as pd

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
