"""From spans to numbers: where the time of a step went.  Each metric is a function of the table alone.

At any instant a rank is in exactly one state: computing (by kind); else communicating (exposed, by axis); else waiting,
for members of its own group that are late (straggler_wait) or for the pipeline (bubble).  So the breakdown sums to the
step.  Definitions: contract.md, "Result JSON"; overlap as HolisticTraceAnalysis counts it (|C and N| / |N|).
Imports the timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simcluster.timeline import Floats, Spans

BREAKDOWN = (
    "forward", "backward", "recompute", "exposed_tp", "exposed_pp", "exposed_dp", "exposed_cp", "exposed_ep", "bubble",
    "straggler_wait", "optimizer", "other",
)  # fmt: skip

_COMPUTE_KINDS = {
    "forward": ("forward",),
    "backward": ("backward", "input_grad", "weight_grad"),
    "recompute": ("recompute",),
    "optimizer": ("optimizer",),
    "other": ("other",),
}
# When several axes are in flight and nothing computes, the first of these is what holds the rank up: the collectives
# inside a layer block it, a stage boundary is next, and the reduction of gradients is waited for last.
_EXPOSED = ("tp", "cp", "ep", "pp", "dp")
_GROUPS_OF_A_STAGE = ("tp", "cp", "ep", "dp")  # a late member of one of these is a straggler; across stages it is a bubble


@dataclass(frozen=True)
class RankTime:
    """One rank's step in seconds.

    ``states`` are the entries of the breakdown; ``communication`` is time with something on the wire, ``overlapped``
    the part of it beside compute; ``idle_in_pipeline`` is what no microbatch's compute or communication fills between the
    pipeline's first start and last end (a rank that is done early may reduce gradients there: idle for the pipeline).
    """

    states: dict[str, float]
    communication: float
    overlapped: float
    idle_in_pipeline: float


@dataclass(frozen=True)
class StepTime:
    """A step on all ranks: means weighted by how many ranks each simulated one stands for, in seconds per step.

    ``bubble_fraction`` is idle / total over the pipeline's makespan, ``bubble_over_ideal`` idle / (total - idle).
    """

    step_seconds: float
    breakdown: dict[str, float]
    communication: float
    overlap_fraction: float
    bubble_fraction: float
    bubble_over_ideal: float
    pipeline_seconds: float


def step_time(spans: Spans, weights: dict[int, int], *, steps: int) -> StepTime:
    """The metrics of a timeline; ``weights[rank]`` is how many ranks a simulated rank stands for."""
    total = float(spans.end.max(initial=0.0))
    window = _pipeline_window(spans)
    ranks = [rank_time(spans.of_rank(rank), total, window) for rank in weights]
    share = np.array(list(weights.values()), dtype=np.float64) / sum(weights.values())
    breakdown = {name: _mean([rank.states[name] for rank in ranks], share) / steps for name in BREAKDOWN}
    communication = _mean([rank.communication for rank in ranks], share)
    overlapped = _mean([rank.overlapped for rank in ranks], share)
    idle = _mean([rank.idle_in_pipeline for rank in ranks], share)
    makespan = window[1] - window[0]
    return StepTime(
        step_seconds=total / steps,
        breakdown=breakdown,
        communication=communication / steps,
        overlap_fraction=overlapped / communication if communication else 0.0,
        bubble_fraction=idle / makespan if makespan else 0.0,
        bubble_over_ideal=idle / (makespan - idle) if makespan > idle else 0.0,
        pipeline_seconds=makespan,
    )


def _mean(values: Sequence[float], share: Floats) -> float:
    return float(np.dot(np.array(values), share))


def _pipeline_window(spans: Spans) -> tuple[float, float]:
    """First start and last end of what belongs to a microbatch, on any rank."""
    inside = (spans.microbatch >= 0) & (spans.stream == spans.code("compute"))
    if not inside.any():
        return 0.0, 0.0
    return float(spans.start[inside].min()), float(spans.end[inside].max())


def rank_time(spans: Spans, total: float, window: tuple[float, float]) -> RankTime:
    """How one rank (the spans are its own) spent the time from 0 to ``total``."""
    compute = spans.stream == spans.code("compute")
    late = np.isin(spans.stream, [spans.code(axis) for axis in _GROUPS_OF_A_STAGE]) & (spans.ready < spans.start)
    edges = np.unique(np.concatenate([spans.ready[late], spans.start, spans.end, [0.0, total, *window]]))
    length = np.diff(edges)
    free = np.ones(len(length), dtype=bool)
    states = dict.fromkeys(BREAKDOWN, 0.0)
    for state, kinds in _COMPUTE_KINDS.items():
        mask = compute & np.isin(spans.kind, [spans.code(kind) for kind in kinds if spans.code(kind) >= 0])
        covered = _covered(edges, spans.start[mask], spans.end[mask])
        states[state] = float(length[covered].sum())
        free &= ~covered
    computing = ~free
    communicating = np.zeros(len(length), dtype=bool)
    for axis in _EXPOSED:
        mask = spans.stream == spans.code(axis)
        if not mask.any():
            continue
        covered = _covered(edges, spans.start[mask], spans.end[mask])
        communicating |= covered
        states[f"exposed_{axis}"] = float(length[covered & free].sum())
        free &= ~covered
    waiting = free & _covered(edges, spans.ready[late], spans.start[late])
    states["straggler_wait"] = float(length[waiting].sum())
    states["bubble"] = float(length[free & ~waiting].sum())
    own = spans.microbatch >= 0
    idle = (edges[:-1] >= window[0]) & (edges[1:] <= window[1]) & ~_covered(edges, spans.start[own], spans.end[own])
    return RankTime(
        states=states,
        communication=float(length[communicating].sum()),
        overlapped=float(length[communicating & computing].sum()),
        idle_in_pipeline=float(length[idle].sum()),
    )


def _covered(edges: Floats, start: Floats, end: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of the intervals between consecutive edges lie inside one of the given ones (whose ends are edges)."""
    depth = np.zeros(len(edges), dtype=np.int64)
    np.add.at(depth, np.searchsorted(edges, start), 1)
    np.add.at(depth, np.searchsorted(edges, end), -1)
    covered: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.cumsum(depth[:-1]) > 0
    return covered
