"""The breakdown of a rank's step: where its time went, from its spans alone.

At any instant a rank is in exactly one state: computing (by kind); else communicating (exposed, by axis); else
standing for a checkpoint, for data or a validation; else waiting, for its host (by what that does: optimizer, offload;
all else is other), for ranks of its own stage that are late (straggler_wait: members of its group, or, when
its own work is done, whoever ends the stage's) or for other stages (bubble).  So the breakdown sums to the step;
``step_time`` has that of all ranks.

There is one bubble, everywhere: the breakdown's.  It is idle time that other stages cause: no exposed communication, no
wait for a straggler of the own stage, and nothing without a pipeline.

Definitions: CONTRACT.md, "Result JSON"; overlap as HolisticTraceAnalysis counts it (|C and N| / |N|).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Bools
from simcluster.results.host_waits import covered, held_up_by_host, inside, until_barriers
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
HELD_BY = {"optimizer": "optimizer", "checkpoint": "checkpoint", "offload": "copy"}
"""Entries for what is done beside where a rank waits for it, and its kind: of several at once, the first."""
STALLS = ("checkpoint", "data", "validation")
"""Entries for which a rank's own process stands, whether others are idle meanwhile or not."""
# A late member of one of these groups is a straggler; across stages it is a bubble.
GROUPS_OF_A_STAGE = ("tp", "cp", "ep", "dp")


@dataclass(frozen=True)
class RankTime:
    """One rank's step in seconds.

    ``states`` are the entries of the breakdown; ``communication`` is time with something on the wire, ``overlapped``
    the part of it beside compute.
    """

    states: dict[str, float]
    communication: float
    overlapped: float


def rank_time(spans: Spans, total: float, stage_ends: Mapping[int, float], worked: float = np.inf) -> RankTime:
    """How one rank (the spans are its own) spent the time from 0 to ``total``; ``stage_ends[stage]`` is when the last
    rank of a stage is done, and behind ``worked`` only writes of a checkpoint are under way."""
    compute = spans.stream == spans.code("compute")
    late = np.isin(spans.stream, [spans.code(axis) for axis in GROUPS_OF_A_STAGE]) & (spans.ready < spans.start)
    done = spans.end[spans.stream != spans.code("storage")].max(initial=0.0)
    stage_done = max((stage_ends[stage] for stage in np.unique(spans.stage).tolist()), default=0.0)
    behind = min(worked, total)
    ends = [0.0, stage_done, behind, total]
    edges = np.unique(np.concatenate([spans.ready[late], spans.start, spans.end, ends]))
    length = np.diff(edges)
    first, last = np.searchsorted(edges, spans.start), np.searchsorted(edges, spans.end)

    def during(some: Bools) -> Bools:
        return covered(len(edges), first[some], last[some])

    free = np.ones(len(length), dtype=bool)
    states = dict.fromkeys(BREAKDOWN, 0.0)
    for state, kinds in COMPUTE_KINDS.items():
        mask = compute & np.isin(spans.kind, [spans.code(kind) for kind in kinds])
        there = during(mask)
        states[state] = float(length[there & free].sum())
        free &= ~there
    computing = ~free
    communicating = np.zeros(len(length), dtype=bool)
    for axis in EXPOSED:
        mask = spans.stream == spans.code(axis)
        if not mask.any():
            continue
        there = during(mask)
        communicating |= there
        states[f"exposed_{axis}"] = float(length[there & free].sum())
        free &= ~there
    standing = inside(edges, *until_barriers(spans)) | (edges[:-1] >= behind)
    states["checkpoint"] += float(length[free & standing].sum())
    free &= ~standing
    for state in STALLS:
        mask = (spans.kind == spans.code(state)) & (spans.stream == spans.code("host"))
        stalled = free & during(mask)
        states[state] += float(length[stalled].sum())
        free &= ~stalled
    held_up = held_up_by_host(spans, edges, free)
    free &= ~held_up
    for state, kind in HELD_BY.items():
        mask = (spans.kind == spans.code(kind)) & ~compute
        by_it = held_up & during(mask)
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
