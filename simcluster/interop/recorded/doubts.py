"""What makes a trace doubtful though it can be replayed: rows that others have, ranks that are not there, units."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.errors import InputError
from simcluster.interop.recorded.trace import BACKWARD, FORWARD, MESSAGES, NORM, SCOPES, WEIGHT, Trace

_COUNTED = (FORWARD, BACKWARD, WEIGHT, NORM, "optimizer", *MESSAGES, *SCOPES)
_WAY_OUT = "Leave the step out (--steps), or record it again"
_LONGEST_PASS = 60.0  # seconds that the forward of a microbatch may take before its unit is doubted


def refuse_uneven(trace: Trace) -> None:
    """Replicas run the same ops, and the same stages take part in collectives in every step; InputError if not.

    This finds rows that are lost without leaving anything unmatched: one of two members of an embedding's all-reduce.
    """
    steps, step = np.unique(trace.step, return_inverse=True)
    replicas, stages = int(trace.dp_rank.max()) + 1, int(trace.stage.max()) + 1
    for optype in _COUNTED:
        ops = np.flatnonzero(trace.is_type([optype]))
        place = np.ravel_multi_index((step[ops], trace.dp_rank[ops], trace.stage[ops]), (len(steps), replicas, stages))
        counts = np.bincount(place, minlength=len(steps) * replicas * stages).reshape(len(steps), replicas, stages)
        wrong = np.argwhere(counts != np.median(counts, axis=1, keepdims=True).round())
        if len(wrong):
            number, dp, stage = wrong[0].tolist()
            usual = int(np.argmax(counts[number, :, stage] != counts[number, dp, stage]))
            _refuse(trace, ops, counts[number, :, stage], optype, int(steps[number]), (dp, usual, stage))
        there = counts.sum(axis=1) > 0
        some = np.argwhere(there != (there.mean(axis=0) > 0.5))
        if len(some) and optype in SCOPES:
            number, stage = some[0].tolist()
            has, others = ("a", "none") if there[number, stage] else ("no", "one")
            raise InputError(
                f"trace {trace.name!r}: step {steps[number]} has {has} {optype} on stage {stage}, and most other steps "
                f"have {others}: a row was lost.  {_WAY_OUT}"
            )


def _refuse(trace: Trace, ops: Ints, counts: Ints, optype: str, step: int, places: tuple[int, int, int]) -> None:
    dp, usual, stage = places
    more, fewer = (dp, usual) if counts[dp] > counts[usual] else (usual, dp)
    same = (trace.step[ops] == step) & (trace.stage[ops] == stage) & (trace.dp_rank[ops] == more)
    last = ops[np.flatnonzero(same)[np.argsort(trace.seq_id[ops][same])[-1]]]
    raise InputError(
        f"trace {trace.name!r}, {trace.describe(int(last))}: dp_rank {more} has {counts[more]} {optype} in this step "
        f"and stage, dp_rank {fewer} {counts[fewer]}; replicas run the same ops, so a row was lost, or is not of this "
        f"step.  {_WAY_OUT}"
    )


def doubts(trace: Trace) -> list[str]:
    """What a reader should know before trusting a replay."""
    found = [*_ranks(trace)]
    passes = trace.duration[trace.is_type([FORWARD])]
    if len(passes) and float(np.median(passes)) > _LONGEST_PASS:
        found.append(
            f"a forward takes {float(np.median(passes)):,.0f} s (median): start_ts and duration are taken for seconds; "
            "divide them first if they are milliseconds or microseconds"
        )
    return found


def _ranks(trace: Trace) -> list[str]:
    """Replicas or stages whose rank numbers are left out, and replicas that nobody recorded."""
    replicas, stages = int(trace.dp_rank.max()) + 1, int(trace.stage.max()) + 1
    between = [optype for optype, scope in SCOPES.items() if scope == "replicas" and trace.is_type([optype]).any()]
    if replicas == 1 and between:
        return [
            f"one dp rank is recorded, and it runs {', '.join(between)}: whether those waited for other dp ranks is "
            "not known, and counts as their own time"
        ]
    if replicas == 1 or stages == 1:
        return []
    grid = np.full((replicas, stages), -1, dtype=np.int64)
    grid[trace.dp_rank, trace.stage] = trace.rank
    by_replica, by_stage = int(grid[1, 0] - grid[0, 0]), int(grid[0, 1] - grid[0, 0])
    regular = grid[0, 0] + np.add.outer(np.arange(replicas) * by_replica, np.arange(stages) * by_stage)
    if min(by_replica, by_stage) < 1 or (grid != regular).any():
        return []
    room, there, what = by_stage // by_replica, replicas, "dp ranks"
    if by_replica > by_stage:
        room, there, what = by_replica // by_stage, stages, "stages"
    if room <= there:
        return []
    return [
        f"rank numbers leave room for {room} {what}, and {there} are recorded: the others are left out as if the job "
        "had been without them"
    ]
