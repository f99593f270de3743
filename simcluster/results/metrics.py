"""From spans to numbers: where the time of a rank's step went, told from its spans alone.

At any instant a rank is in exactly one state: computing (by kind); else communicating (exposed, by axis); else
standing for a checkpoint; else waiting, for its host (by what that does: optimizer, checkpoint, data, validation,
offload; all else is other), for ranks of its own stage that are late (straggler_wait: members of its group, or, when
its own work is done, whoever ends the stage's) or for other stages (bubble).  So the breakdown sums to the step;
``step_time`` has that of all ranks.

There is one bubble, everywhere: the breakdown's.  It is idle time that other stages cause: no exposed communication, no
wait for a straggler of the own stage, and nothing without a pipeline.

Definitions: CONTRACT.md, "Result JSON"; overlap as HolisticTraceAnalysis counts it (|C and N| / |N|).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from simcluster.base.arrays import Bools, Floats
from simcluster.results.timeline import Spans

BREAKDOWN = (
    "forward", "backward", "recompute", "exposed_tp", "exposed_pp", "exposed_dp", "exposed_cp", "exposed_ep", "bubble",
    "straggler_wait", "optimizer", "checkpoint", "data", "validation", "offload", "other",
)  # fmt: skip

COMPUTE_KINDS = {
    "forward": ("forward",),
    "backward": ("backward", "input_grad", "weight_grad"),
    "recompute": ("recompute",),
    "optimizer": ("optimizer",),
    "other": ("other",),
}
# When several axes are in flight and nothing computes, the first of these is what holds the rank up: the collectives
# inside a layer block it, a stage boundary is next, and the reduction of gradients is waited for last.
EXPOSED = ("tp", "cp", "ep", "pp", "dp")
BESIDE = ("d2h", "h2d", "storage", "host")
"""Streams of copies to and from the host and on to storage, which are no communication between ranks, and of the host's
own work."""
HELD_BY = {
    "optimizer": "optimizer",
    "checkpoint": "checkpoint",
    "data": "data",
    "validation": "validation",
    "offload": "copy",
}
"""Entries for what is done beside where a rank waits for it, and its kind: of several at once, the first."""
SINCE = ("checkpoint", "data", "validation", "offload")
"""Entries that results saved before have not: what they count now was other."""
# A late member of one of these groups is a straggler; across stages it is a bubble.
_GROUPS_OF_A_STAGE = ("tp", "cp", "ep", "dp")


@dataclass(frozen=True)
class RankTime:
    """One rank's step in seconds.

    ``states`` are the entries of the breakdown; ``communication`` is time with something on the wire, ``overlapped``
    the part of it beside compute.
    """

    states: dict[str, float]
    communication: float
    overlapped: float


def rank_time(
    spans: Spans,
    total: float,
    stage_ends: Mapping[int, float],
    worked: float = np.inf,
    begins: Mapping[int, float] = MappingProxyType({}),
) -> RankTime:
    """How one rank (the spans are its own) spent the time from 0 to ``total``; ``stage_ends[stage]`` is when the last
    rank of a stage is done, ``begins[step]`` when the first rank computes in a step, and behind ``worked`` only writes
    of a checkpoint are under way."""
    compute = spans.stream == spans.code("compute")
    late = np.isin(spans.stream, [spans.code(axis) for axis in _GROUPS_OF_A_STAGE]) & (spans.ready < spans.start)
    done = spans.end[spans.stream != spans.code("storage")].max(initial=0.0)
    stage_done = max((stage_ends[stage] for stage in np.unique(spans.stage).tolist()), default=0.0)
    behind = min(worked, total)
    ends = [0.0, stage_done, behind, total, *begins.values()]
    edges = np.unique(np.concatenate([spans.ready[late], spans.start, spans.end, ends]))
    length = np.diff(edges)
    free = np.ones(len(length), dtype=bool)
    states = dict.fromkeys(BREAKDOWN, 0.0)
    for state, kinds in COMPUTE_KINDS.items():
        mask = compute & np.isin(spans.kind, [spans.code(kind) for kind in kinds if spans.code(kind) >= 0])
        covered = inside(edges, spans.start[mask], spans.end[mask])
        states[state] = float(length[covered & free].sum())
        free &= ~covered
    computing = ~free
    communicating = np.zeros(len(length), dtype=bool)
    for axis in EXPOSED:
        mask = spans.stream == spans.code(axis)
        if not mask.any():
            continue
        covered = inside(edges, spans.start[mask], spans.end[mask])
        communicating |= covered
        states[f"exposed_{axis}"] = float(length[covered & free].sum())
        free &= ~covered
    standing = inside(edges, *_until_barriers(spans)) | (edges[:-1] >= behind)
    states["checkpoint"] += float(length[free & standing].sum())
    free &= ~standing
    loading = inside(edges, *_until_begun(spans, begins))
    states["data"] = float(length[free & loading].sum())
    free &= ~loading
    held_up = _held_up(spans, edges, free)
    free &= ~held_up
    for state, kind in HELD_BY.items():
        mask = (spans.kind == spans.code(kind)) & ~compute
        by_it = held_up & inside(edges, spans.start[mask], spans.end[mask])
        states[state] += float(length[by_it].sum())
        held_up &= ~by_it
    states["other"] += float(length[held_up].sum())
    waiting = free & inside(edges, spans.ready[late], spans.start[late])
    waiting |= free & (edges[:-1] >= done) & (edges[1:] <= stage_done)
    if len(stage_ends) == 1:  # no other stage to wait for
        waiting = free
    states["straggler_wait"] = float(length[waiting].sum())
    states["bubble"] = float(length[free & ~waiting].sum())
    return RankTime(
        states=states,
        communication=float(length[communicating].sum()),
        overlapped=float(length[communicating & computing].sum()),
    )


def _until_barriers(spans: Spans) -> tuple[Floats, Floats]:
    """From when to when a rank's training stands for checkpoints: from the begin of its part to the barrier of all."""
    own = spans.kind == spans.code("checkpoint")
    barriers = np.flatnonzero(own & (spans.name == spans.code("barrier")))
    begun = [spans.start[own & (spans.step == step)].min() for step in spans.step[barriers].tolist()]
    return np.array(begun, dtype=np.float64), spans.start[barriers]


def _until_begun(spans: Spans, begins: Mapping[int, float]) -> tuple[Floats, Floats]:
    """From when to when a rank waits for its data while nobody computes: what all wait for is no bubble."""
    own = np.flatnonzero(spans.kind == spans.code("data"))
    until = np.array([begins.get(step, 0.0) for step in spans.step[own].tolist()], dtype=np.float64)
    ends = np.minimum(spans.end[own], until)
    there = ends > spans.start[own]
    return spans.start[own][there], ends[there]


def _held_up(spans: Spans, edges: Floats, free: Bools) -> Bools:
    """Which intervals of a rank that neither computes nor communicates are spent on waiting for its host.

    Idle time belongs to copies and host work where it ends as one of them ends, and as far back as they reach without
    a break: a copy that ends in the middle of a bubble holds nothing up.
    """
    found = np.zeros(len(free), dtype=bool)
    own = np.isin(spans.stream, [spans.code(stream) for stream in BESIDE if stream in spans.words])
    if not own.any():
        return found
    beside = free & inside(edges, spans.start[own], spans.end[own])
    for place in np.unique(np.searchsorted(edges, spans.end[own])).tolist():
        if place < len(free) and free[place]:
            continue
        while place and beside[place - 1] and not found[place - 1]:
            place -= 1
            found[place] = True
    return found


def inside(edges: Floats, start: Floats, end: Floats) -> Bools:
    """Which of the intervals between consecutive edges lie inside one of the given ones (whose ends are edges)."""
    depth = np.zeros(len(edges), dtype=np.int64)
    np.add.at(depth, np.searchsorted(edges, start), 1)
    np.add.at(depth, np.searchsorted(edges, end), -1)
    covered: Bools = np.cumsum(depth[:-1]) > 0
    return covered
