"""A check whether a trace is of another job than its scenario, by ranks, layers and counts of calls and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simcluster.interop.kineto.job import ProfiledJob
from simcluster.interop.own_trace.pairs import KernelPair
from simcluster.interop.own_trace.states import CallTime, StepAccount
from simcluster.results.result import Result

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
