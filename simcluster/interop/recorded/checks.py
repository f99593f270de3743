"""What a trace must be before it is replayed; the message names the row.

What can be repaired without guessing at times is repaired, with a note that says what was assumed.  Notes also say
what makes a trace doubtful though it can be replayed: ranks that are not there, units.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from simcluster.base.arrays import Bools, Ints
from simcluster.base.errors import InputError
from simcluster.interop.recorded.trace import BACKWARD, FORWARD, MESSAGES, NORM, SCOPES, WEIGHT, Trace

_KNOWN = (FORWARD, BACKWARD, WEIGHT, NORM, "optimizer", "gc", *MESSAGES, *SCOPES)
_COUNTED = (FORWARD, BACKWARD, WEIGHT, NORM, "optimizer", *MESSAGES, *SCOPES)
_WAY_OUT = "Leave the step out (--steps), or record it again"
_MOST_SECONDS = 1e12  # 30,000 years: a damaged number, of which sums would be infinite
_LONGEST_PASS = 60.0  # seconds that the forward of a microbatch may take before its unit is doubted


def check(trace: Trace, steps: Sequence[int] | None = None) -> tuple[Trace, list[str]]:
    """The trace (of these steps only), and what was repaired or assumed.

    Raises InputError for what makes a replay meaningless: no ops, times that are none, a worker that is missing
    throughout, an op that is there twice.  Steps that lack a worker which others have are left out, with a note.
    """
    if not len(trace):
        raise InputError(
            f"trace {trace.name!r} has no rows: nothing was recorded, or the file was cut; record it again"
        )
    notes: list[str] = []
    trace = _steps(trace, steps)
    _refuse_rows(trace)
    _refuse_workers(trace)
    trace = _whole_steps(trace, notes)
    _refuse_twice(trace)
    _refuse_one_way(trace)
    notes += _doubts(trace)
    if strange := _strange(trace):
        notes.append(
            f"op types that are not of the format: {', '.join(strange)}; taken for work of their own worker alone, in "
            "the order recorded"
        )
    return trace, notes


def _steps(trace: Trace, steps: Sequence[int] | None) -> Trace:
    if steps is None:
        return trace
    require_steps(f"trace {trace.name!r}", steps, np.unique(trace.step).tolist())
    return trace.where(np.isin(trace.step, list(steps)))


def require_steps(name: str, steps: Sequence[int], there: Collection[int]) -> None:
    """InputError where a trace of this name has not all of the steps that are asked for."""
    missing = [step for step in steps if step not in there]
    if missing:
        known = ", ".join(map(str, list(there)[:12])) + (", ..." if len(there) > 12 else "")
        raise InputError(f"steps: {name} has no step {missing[0]}; name some that it has: {known}")


def _strange(trace: Trace) -> list[str]:
    return [word for word in trace.words if word not in _KNOWN and trace.is_type([word]).any()]


def _first(trace: Trace, bad: Bools) -> str:
    count = int(bad.sum())
    more = f" ({count - 1} more rows like it)" if count > 1 else ""
    return trace.describe(int(np.flatnonzero(bad)[0])) + more


def _refuse_rows(trace: Trace) -> None:
    """Times must be some, and workers and steps be counted from 0."""
    negative = f"duration {{:g}} s is negative; an op ends after it begins.  {_WAY_OUT}"
    rules = (
        (~(np.abs(trace.start_ts) < _MOST_SECONDS), f"start_ts is no number of seconds.  {_WAY_OUT}"),
        (~(np.abs(trace.duration) < _MOST_SECONDS), f"duration is no number of seconds.  {_WAY_OUT}"),
        (trace.duration < 0, negative),
        *(
            (getattr(trace, name) < 0, f"{name} must not be negative; count it from 0")
            for name in ("dp_rank", "stage", "step")
        ),
    )
    for bad, what in rules:
        if bad.any():
            seconds = trace.duration[np.flatnonzero(bad)[0]]
            raise InputError(f"trace {trace.name!r}, {_first(trace, bad)}: {what.format(seconds)}")


def _refuse_workers(trace: Trace) -> None:
    """Workers must fill the grid of dp ranks and stages."""
    replicas, stages = trace.replicas, trace.stages
    if replicas * stages > len(trace):  # no table of those that are missing: a damaged number may be 2^62
        largest = int(np.argmax(trace.dp_rank if replicas > stages else trace.stage))
        raise InputError(
            f"trace {trace.name!r}, {trace.describe(largest)}: dp ranks 0 to {replicas - 1} and stages 0 to "
            f"{stages - 1} must all be there, since others wait for them, and {len(trace):,} rows are fewer "
            "than they: take the row out, or record all of them"
        )
    there = np.zeros((replicas, stages), dtype=bool)
    there[trace.dp_rank, trace.stage] = True
    if not there.all():
        dp, stage = np.argwhere(~there)[0]
        raise InputError(
            f"trace {trace.name!r} has no row of dp_rank {dp}, stage {stage} ({int((~there).sum())} of "
            f"{there.size} workers are missing); dp ranks 0 to {replicas - 1} and stages 0 to {stages - 1} must all be "
            "there, since others wait for them: take what is left of that replica out, or record it"
        )


def _whole_steps(trace: Trace, notes: list[str]) -> Trace:
    """Leaves out steps that not every worker has."""
    stages, worker = trace.stages, trace.worker
    steps, position = np.unique(trace.step, return_inverse=True)
    there = np.zeros((len(steps), int(worker.max()) + 1), dtype=bool)
    there[position, worker] = True
    whole: Bools = np.asarray(there.all(axis=1))
    if whole.all():
        return trace
    lacking = int(np.argmin(whole))
    step, missing = steps[lacking], int(np.flatnonzero(~there[lacking])[0])
    where = f"step {step} has no row of dp_rank {missing // stages}, stage {missing % stages}"
    if not whole.any():
        raise InputError(f"trace {trace.name!r}: {where}, and no step has all workers; nothing can be replayed")
    left = f"{int((~whole).sum())} of {len(steps)} steps are left out: {', '.join(map(str, steps[~whole]))}"
    notes.append(f"{where}; {left}")
    return trace.where(whole[position])


def _refuse_one_way(trace: Trace) -> None:
    """A step of training goes forward and backward; other names for that are not guessed at."""
    for optype, other in ((FORWARD, BACKWARD), (BACKWARD, FORWARD)):
        if trace.is_type([other]).any() and not trace.is_type([optype]).any():
            strange = _strange(trace)
            named = f" (is it called {strange[0]!r} there?)" if strange else ""
            raise InputError(
                f"trace {trace.name!r} has {other} but no {optype}{named}; every trace needs both: name the ops "
                f"as the format does: "
                f"{', '.join(_KNOWN)}"
            )


def _refuse_twice(trace: Trace) -> None:
    keys = (trace.step, trace.dp_rank, trace.stage, trace.optype, trace.seq_id, trace.mc)
    order = np.lexsort(keys[::-1])
    same: Bools = np.asarray((np.diff(np.stack(keys)[:, order], axis=1) == 0).all(axis=0))
    if same.any():
        place = int(np.flatnonzero(same)[0])
        first, second = sorted((int(order[place]), int(order[place + 1])))
        raise InputError(
            f"trace {trace.name!r}, {trace.describe(second)}: the same op as in row {trace.row[first]}; step, dp_rank, "
            "stage, optype, seq_id and mc together must name one op"
        )


def refuse_uneven(trace: Trace) -> None:
    """Replicas run the same ops, and the same stages take part in collectives in every step; InputError if not.

    This finds rows that are lost without leaving anything unmatched: one of two members of an embedding's all-reduce.
    """
    steps, step = np.unique(trace.step, return_inverse=True)
    replicas, stages = trace.replicas, trace.stages
    for optype in _COUNTED:
        ops = np.flatnonzero(trace.is_type([optype]))
        place = np.ravel_multi_index((step[ops], trace.dp_rank[ops], trace.stage[ops]), (len(steps), replicas, stages))
        counts = np.bincount(place, minlength=len(steps) * replicas * stages).reshape(len(steps), replicas, stages)
        wrong = np.argwhere(counts != np.median(counts, axis=1, keepdims=True).round())
        if len(wrong):
            number, dp, stage = wrong[0].tolist()
            usual = int(np.argmax(counts[number, :, stage] != counts[number, dp, stage]))
            _refuse_count(trace, ops, counts[number, :, stage], optype, int(steps[number]), (dp, usual, stage))
        there = counts.sum(axis=1) > 0
        some = np.argwhere(there != (there.mean(axis=0) > 0.5))
        if len(some) and optype in SCOPES:
            number, stage = some[0].tolist()
            has, others = ("a", "none") if there[number, stage] else ("no", "one")
            raise InputError(
                f"trace {trace.name!r}: step {steps[number]} has {has} {optype} on stage {stage}, and most other steps "
                f"have {others}: a row was lost.  {_WAY_OUT}"
            )


def _refuse_count(trace: Trace, ops: Ints, counts: Ints, optype: str, step: int, places: tuple[int, int, int]) -> None:
    dp, usual, stage = places
    more, fewer = (dp, usual) if counts[dp] > counts[usual] else (usual, dp)
    same = (trace.step[ops] == step) & (trace.stage[ops] == stage) & (trace.dp_rank[ops] == more)
    last = ops[np.flatnonzero(same)[np.argsort(trace.seq_id[ops][same])[-1]]]
    raise InputError(
        f"trace {trace.name!r}, {trace.describe(int(last))}: dp_rank {more} has {counts[more]} {optype} in this step "
        f"and stage, dp_rank {fewer} {counts[fewer]}; replicas run the same ops, so a row was lost, or is not of this "
        f"step.  {_WAY_OUT}"
    )


def _doubts(trace: Trace) -> list[str]:
    """What a reader should know before trusting a replay."""
    found = _ranks(trace)
    passes = trace.duration[trace.is_type([FORWARD])]
    if len(passes) and float(np.median(passes)) > _LONGEST_PASS:
        found.append(
            f"a forward takes {float(np.median(passes)):,.0f} s (median): start_ts and duration are taken for seconds; "
            "divide them first if they are milliseconds or microseconds"
        )
    return found


def _ranks(trace: Trace) -> list[str]:
    """Replicas or stages whose rank numbers are left out, and replicas that nobody recorded."""
    replicas, stages = trace.replicas, trace.stages
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
