"""Difference between a recorded and a simulated step, by cause, collective, kernel, layer and rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.gc_pause import pause_gc
from simcluster.documents.argument_types import check_arguments
from simcluster.interop.kineto import ProfiledJob, load_profiles
from simcluster.interop.kineto.communications import UNMATCHED_KERNEL, KernelClassifier
from simcluster.interop.kineto.profile_loader import is_kernel_trace
from simcluster.interop.trace_comparison import step_accounts as accounts
from simcluster.interop.trace_comparison import step_sides
from simcluster.interop.trace_comparison.collective_axes import AxisFinder
from simcluster.interop.trace_comparison.comparison_text import difference_sentences, difference_tables
from simcluster.interop.trace_comparison.step_accounts import KernelComparison, StepDifference, StepTimeBreakdown
from simcluster.results.result import Result
from simcluster.results.result_file import SavedResult
from simcluster.results.timeline import Spans
from simcluster.scenario.scenario import Scenario
from simcluster.show.output_blocks import TextLines
from simcluster.step.simulate import ResultLike, to_result
from simcluster.studies.whatif.difference import Comparable, RunDifference
from simcluster.studies.whatif.difference import explain_difference as diff_runs

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.interactive.report.entry import ReportedTrace

_COUNT_TOLERANCE = 0.1
"""Largest relative difference of equal counts: frameworks do small work in separate calls."""
_COMPARED_KINDS = ("attention",)
"""Kinds of which every implementation launches about the same number of kernels."""


def find_mismatches(
    result: Result, job: ProfiledJob, simulated: StepTimeBreakdown, recorded: StepTimeBreakdown,
    kernels: Sequence[KernelComparison], *, use_spans: bool,
) -> Iterator[str]:  # fmt: skip
    """Yield phrases that state why the trace seems to be of another job than the scenario."""
    comms = [source.comm for graph in job.profiled_steps for source in graph.sources if source is not None]
    world = max((max(comm.ranks, default=0) + 1 for comm in comms if comm is not None), default=len(job.ranks))
    ranks = result.facts.ranks
    if world != ranks and (world > ranks or world > len(job.ranks)):
        yield f"the trace is of a job of {world} ranks, the scenario has {ranks}"
    elif len(job.ranks) > ranks:
        yield f"the trace has {len(job.ranks)} ranks, the scenario {ranks}"
    if recorded.layers and len(recorded.layers) != len(simulated.layers):
        yield f"the trace has {len(recorded.layers)} layers per rank, the scenario {len(simulated.layers)}"

    def describe_mismatch(what: str, unit: str, one: float, two: float) -> str:
        return f"{what}: {two:,.4g}{unit} per rank and step, the scenario has {one:,.4g}"

    def count_large_calls(side: StepTimeBreakdown, axis: str) -> float:
        own = [call for (at, _), call in side.calls.items() if at == axis and call.calls]
        return sum(call.calls for call in own if call.bytes / call.calls >= 1e6)

    # frameworks make more small calls than a simulation: compare large calls, if sizes are known
    worst, worst_counts = "", (0.0, 0.0)
    if any(call.bytes for call in recorded.calls.values()):
        for axis in dict.fromkeys(axis for axis, _ in (*simulated.calls, *recorded.calls)):
            one, two = count_large_calls(simulated, axis), count_large_calls(recorded, axis)
            apart = abs(one - two)
            if apart > max(_COUNT_TOLERANCE * one, 2.0) and apart > abs(worst_counts[0] - worst_counts[1]):
                worst, worst_counts = axis, (one, two)
    if worst:
        yield describe_mismatch(f"over {worst}", " large calls", *worst_counts)
    for each in kernels:
        one, two = each.simulated.launches, each.recorded.launches
        equal = abs(one - two) <= _COUNT_TOLERANCE * max(one, two)
        if use_spans and not equal and each.phase != "optimizer":
            yield describe_mismatch(f"{each.kind} {each.phase}", "", one, two)
            return
        if not use_spans and two and not equal and each.kind in _COMPARED_KINDS and each.phase == "forward":
            yield describe_mismatch("attention forward", " kernels", one, two)


_NO_TIME = accounts.KernelTime(0.0, 0.0)
_REPLAY_NOTES = ("unexplained stream gaps", "which streams waited", "some kernels have no launch", "profiles of CPUs")
"""Prefixes of notes on assumptions of a replay, which do not apply to a step as recorded."""


@dataclass(frozen=True, repr=False)
class TraceDifference(Displayable, StepDifference):
    """Difference (s) between recorded and simulated steps, with sentences and tables that explain it."""

    def sentences(self) -> list[str]:
        """Return sentences that explain the difference: warnings first, then findings, largest first."""
        return difference_sentences(self)

    def describe(self) -> str:
        """Return a short paragraph that explains the difference."""
        return " ".join(self.sentences())

    @property
    def table(self) -> pd.DataFrame:
        """Simulated time, recorded time and difference by cause, in seconds per step."""
        import pandas as pd

        one, two = self.simulated.states, self.recorded.states
        rows = [(cause, one.get(cause, 0.0), two.get(cause, 0.0), change) for cause, change in self.causes.items()]
        return pd.DataFrame(rows, columns=["cause", "simulated", "recorded", "difference"]).set_index("cause")

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as a dict for JSON, in seconds per step."""

        def pair_rows(pairs: Iterable[Any], *names: str) -> list[dict[str, Any]]:
            return [
                {
                    **{name: getattr(pair, name) for name in names},
                    "base": pair.simulated and pair.simulated._asdict(),
                    "trace": pair.recorded and pair.recorded._asdict(),
                }
                for pair in pairs
            ]  # fmt: skip

        return {
            "base": {"name": self.names[0], "step_time_s": self.simulated.seconds},
            "trace": {
                "name": self.names[1], "step_time_s": self.recorded.seconds, "steps_s": list(self.steps),
                "ranks": list(self.job.ranks),
            },
            "difference_s": self.seconds,
            "another_job": list(self.mismatches),
            "causes_s": self.causes,
            "states_s": {"base": dict(self.simulated.states), "trace": dict(self.recorded.states)},
            "kernels": pair_rows(self.kernels, "phase", "kind"),
            "kinds_are": "stretches" if self.kernels_are_spans else "kernels",
            "not_matched": [each._asdict() for each in self.unmatched],
            "collectives": pair_rows(self.calls, "axis", "kind"),
            "waiting_is_communication": self.waiting_is_communication,
            "layers": pair_rows(self.layers, "layer"),
            "computed": [{"rank": n, "base_s": one, "trace_s": two} for n, (one, two) in self.rank_compute.items()],
            "idle_before_launch_s": self.recorded.launch_delay,
            "in_words": self.sentences(),
            "notes": list(self.notes),
        }  # fmt: skip


@pause_gc()  # a trace has many small objects and no cycles
def diff_trace(
    base: ResultLike, trace: str | Path | ProfiledJob, *, kernels: str | Path | None = None,
    steps: Sequence[int] | None = None,
) -> TraceDifference:  # fmt: skip
    """Compare recorded steps with the simulated step; return the difference by cause.

    ``trace`` is a PyTorch or Nsight Systems profile: a file, or a folder with one per rank. ``kernels`` is a table of
    kernel names that precedes the built-in one (``kernel_kinds.yaml``); ``steps`` selects steps of the trace. Raises
    InputError for what cannot be read, and for profiles without GPUs.
    """
    names = KernelClassifier(kernels)
    job = trace if isinstance(trace, ProfiledJob) else load_profiles(trace, steps)
    if not job.profiled_steps[0].on_device:
        raise InputError(
            f"{job.name} has no GPU kernels, and only profiles of GPUs can be compared with a simulation; record with "
            "activities=[CPU, CUDA]"
        )
    result = to_result(base, "diff")
    ranks = [rank for rank in job.ranks if rank < result.facts.ranks]
    if not ranks:
        raise InputError(
            f"{job.name} has profiles of ranks {job.ranks[0]} to {job.ranks[-1]}, and {result.scenario.name!r} has "
            f"only ranks 0 to {result.facts.ranks - 1}; give profiles of these ranks"
        )
    stretches, merged = step_sides.has_span_kernels(job), step_sides.lacks_recorded_members(job)
    two = step_sides.build_recorded_steps(job, AxisFinder(result, job), names, use_spans=stretches)
    one = step_sides.build_simulated_steps(result, ranks, names, use_spans=stretches)
    stages = result.scenario.parallel.pp
    simulated, recorded = (accounts.break_down_step_time(side, stages=stages, merged=merged) for side in (one, two))
    computed = {n: (simulated.rank_compute[result.representative_of(n)], recorded.rank_compute[n]) for n in ranks}
    keys = dict.fromkeys((*one.kernels, *two.kernels))
    pairs = [KernelComparison(*key, one.kernels.get(key, _NO_TIME), two.kernels.get(key, _NO_TIME)) for key in keys]
    found = [pair for pair in pairs if pair.kind != UNMATCHED_KERNEL]
    found.sort(key=lambda pair: -abs(pair.recorded.seconds - pair.simulated.seconds))
    title = result.scenario.name, job.name
    return TraceDifference(
        title, result, job, simulated, recorded, tuple(two.lengths.tolist()), tuple(found), computed, two.unmatched,
        two.spans, tuple(find_mismatches(result, job, simulated, recorded, found, use_spans=stretches)),
        tuple(note for note in job.notes if not note.startswith(_REPLAY_NOTES)), stretches, merged,
    )  # fmt: skip


def first_recorded_spans(found: TraceDifference) -> Spans:
    """Return the spans of a trace's first step, timed from the step's start, with the scenario's stage numbers."""
    spans = found.recorded_spans
    own = spans.step == 0
    plan = found.result.job.plan.stage_of_every_rank()
    begin = float(np.minimum(spans.ready, spans.start)[own].min())
    times = {name: getattr(spans, name) - begin for name in ("ready", "start", "end")}
    return accounts.select_span_rows(
        spans, own & np.isin(spans.rank, list(found.rank_compute)), stage=plan[spans.rank % len(plan)], **times
    )


def step_timelines(found: TraceDifference, ranks: Sequence[int] | None = None) -> dict[str, pd.DataFrame]:
    """Return the timelines of the first recorded and the first simulated step, for some or all ranks.

    Raises InputError for a rank that is not in the trace.
    """
    import pandas as pd

    chosen = list(found.rank_compute) if ranks is None else list(ranks)
    wrong = [rank for rank in chosen if rank not in found.rank_compute]
    if wrong:
        known = ", ".join(map(str, list(found.rank_compute)[:8])) + (", ..." if len(found.rank_compute) > 8 else "")
        raise InputError(f"the trace has no profile of rank {wrong[0]}; it has profiles of ranks {known}")
    result = found.result
    simulated = pd.concat([result.timeline_of(rank) for rank in chosen], ignore_index=True)
    simulated = simulated[simulated["step"] == simulated["step"].min()]
    recorded = first_recorded_spans(found).to_frame()
    recorded = recorded[recorded["rank"].isin(chosen)].reset_index(drop=True)
    simulated["kind"] = simulated["kind"].replace({"send": accounts.MESSAGE_KIND, "recv": accounts.MESSAGE_KIND})
    for side in (simulated, recorded):
        begin = float(side[["ready", "start"]].min().min())
        side[["ready", "start", "end"]] = side[["ready", "start", "end"]] - begin
    return {f"simulated: {found.names[0]}": simulated, f"recorded: {found.names[1]}": recorded}


def make_trace_comparer(path: str | Path, kernels: str | None) -> Callable[[Result], ReportedTrace]:
    """Read a trace; return a function that compares the trace with a result, for the report page."""
    KernelClassifier(kernels)  # rejects an invalid table early
    recorded = load_profiles(path)
    return lambda result: build_trace_section(diff_trace(result, recorded, kernels=kernels))


def build_trace_section(found: TraceDifference) -> ReportedTrace:
    """Return the report page's section about a trace: sentences, then tables."""
    from simcluster.interactive.report.entry import ReportedTrace
    from simcluster.interactive.report.html import blocks_html

    sentences, notes = TextLines(found.sentences()), TextLines([f"Note: {note}" for note in found.notes])
    shown = blocks_html([sentences, *difference_tables(found), notes])
    return ReportedTrace(found.names[1], tuple(sorted(found.rank_compute)), shown, first_recorded_spans(found))


@overload
def diff(base: Comparable, other: Scenario | Result | SavedResult) -> RunDifference: ...
@overload
def diff(
    base: Comparable, other: ProfiledJob, *, kernels: str | Path | None = None, steps: Sequence[int] | None = None
) -> TraceDifference: ...
@overload
def diff(
    base: Comparable, other: str | Path, *, kernels: str | Path | None = None, steps: Sequence[int] | None = None
) -> RunDifference | TraceDifference: ...
@check_arguments
def diff(
    base: Comparable,
    other: Comparable | ProfiledJob,
    *,
    kernels: str | Path | None = None,
    steps: Sequence[int] | None = None,
) -> RunDifference | TraceDifference:
    """Compare a scenario, result or trace with ``base``, and explain the difference in step time.

    Both are scenarios, their files, results, or saved results; ``other`` may be a recorded trace (profiles of PyTorch,
    or Nsight Systems' SQLite export: a file, or a folder). For a trace ``kernels`` is a table of kernel names that
    precedes the built-in one, and ``steps`` selects some of its steps. Raises InputError for anything else, and if
    ``base`` is a trace.
    """
    if isinstance(base, str | Path) and is_kernel_trace(base):
        raise InputError(f"{base} is a trace: pass the scenario first, as in diff(scenario, {str(base)!r})")
    if isinstance(other, ProfiledJob) or (isinstance(other, str | Path) and is_kernel_trace(other)):
        if isinstance(base, SavedResult) or (isinstance(base, str | Path) and str(base).endswith(".json")):
            raise InputError(
                "a saved result has no spans to compare with a trace; pass its scenario, or a result in memory"
            )
        return diff_trace(base, other, kernels=kernels, steps=steps)
    if kernels is not None or steps is not None:
        raise InputError(f"{'kernels' if kernels is not None else 'steps'}= applies only to traces, not to {other}")
    return diff_runs(base, other)
