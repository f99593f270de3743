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

from simcluster.base.arrays import Bools, Floats, Int32s, Ints
from simcluster.results.host_waits import covered, held_up_by_host, inside, until_barriers
from simcluster.results.interval_states import active_states
from simcluster.results.span_states import COMPUTE_KINDS, EXPOSED, StateCodes
from simcluster.results.timeline import Spans

BREAKDOWN = (
    "forward", "backward", "recompute", "exposed_tp", "exposed_pp", "exposed_dp", "exposed_cp", "exposed_ep", "bubble",
    "straggler_wait", "optimizer", "checkpoint", "data", "validation", "offload", "other",
)  # fmt: skip

HELD_BY = {"optimizer": "optimizer", "checkpoint": "checkpoint", "offload": "copy"}
"""Entries for what is done beside where a rank waits for it, and its kind: of several at once, the first."""
STALLS = ("checkpoint", "data", "validation")
"""Entries for which a rank's own process stands, whether others are idle meanwhile or not."""


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
    codes: StateCodes | None = None,
) -> RankTime:
    """Return how one rank (the spans are its own) spent the time from 0 to ``total``.

    ``stage_ends[stage]`` is when the last rank of a stage is done; after ``worked`` only writes of a checkpoint are
    under way.  ``codes`` are those of the spans' words.
    """
    codes = codes or StateCodes(spans.words)
    late = codes.in_stage[spans.stream] & (spans.ready < spans.start)
    done = spans.end[spans.stream != codes.storage].max(initial=0.0)
    stage_done = max((stage_ends[stage] for stage in np.bincount(spans.stage).nonzero()[0].tolist()), default=0.0)
    behind = min(worked, total)
    ends = [0.0, stage_done, behind, total]
    edges = np.unique(np.concatenate([spans.ready[late], spans.start, spans.end, ends]))
    length = np.diff(edges)
    first, last = np.searchsorted(edges, spans.start), np.searchsorted(edges, spans.end)
    states = dict.fromkeys(BREAKDOWN, 0.0)
    free, computing, communicating = _busy(states, codes.of_spans(spans), first, last, length)
    standing = edges[:-1] >= behind
    if codes.checkpoint >= 0:
        standing |= inside(edges, *until_barriers(spans))
    states["checkpoint"] += float(length[free & standing].sum())
    free &= ~standing
    if codes.of_host[spans.stream].any():
        _count_host(states, spans, codes, edges, free)
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


def _busy(
    states: dict[str, float], state: Int32s, first: Ints, last: Ints, length: Floats
) -> tuple[Bools, Bools, Bools]:  # fmt: skip
    """Add the seconds of computation and exposed communication to ``states``; return where the rank does neither, where
    it computes and where it communicates."""
    names = [*COMPUTE_KINDS, *(f"exposed_{axis}" for axis in EXPOSED)]
    counted = state >= 0
    active = active_states(len(length) + 1, first[counted], last[counted], state[counted], len(names))
    computation = (1 << len(COMPUTE_KINDS)) - 1
    free = active == 0
    for number, name in enumerate(names):
        before = (1 << number) - 1  # of several at once, the first
        states[name] = float(length[(active & (before | 1 << number)) == 1 << number].sum())
    return free, (active & computation) != 0, (active & ~computation) != 0


def _count_host(states: dict[str, float], spans: Spans, codes: StateCodes, edges: Floats, free: Bools) -> None:
    """Add the seconds in which the rank stands or waits for its host to ``states``, and take them from ``free``."""
    length = np.diff(edges)
    first, last = np.searchsorted(edges, spans.start), np.searchsorted(edges, spans.end)

    def during(some: Bools) -> Bools:
        return covered(len(edges), first[some], last[some])

    for state in STALLS:
        stalled = free & during((spans.kind == codes.code(state)) & (spans.stream == codes.code("host")))
        states[state] += float(length[stalled].sum())
        free &= ~stalled
    held_up = held_up_by_host(spans, edges, free)
    free &= ~held_up
    for state, kind in HELD_BY.items():
        by_it = held_up & during((spans.kind == codes.code(kind)) & (spans.stream != codes.compute))
        states[state] += float(length[by_it].sum())
        held_up &= ~by_it
    states["other"] += float(length[held_up].sum())
