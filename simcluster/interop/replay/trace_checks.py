"""Checks and repairs of a recorded trace before the replay, including corrections of worker clocks.

What can be repaired without guessing times is repaired, with a note on what was assumed. Notes also report what makes a
trace doubtful although it can be replayed: missing ranks, units. If a message ends before its send begins, every
worker's clock is shifted by one constant, so that the members of a group end together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.interop.replay.recorded_trace import (
    BACKWARD,
    COLLECTIVE_SCOPES,
    FORWARD,
    GRADIENT_NORM,
    MESSAGE_TYPES,
    WEIGHT_GRADIENT,
    RecordedTrace,
)
from simcluster.interop.replay.step_graph import StepGraph, is_communication_type

_COUNTED_TYPES = (FORWARD, BACKWARD, WEIGHT_GRADIENT, GRADIENT_NORM, "optimizer", *MESSAGE_TYPES, *COLLECTIVE_SCOPES)
_KNOWN_TYPES = (*_COUNTED_TYPES[:5], "gc", *_COUNTED_TYPES[5:])
_REMEDY = "Skip the step (--steps), or record it again"
_MAX_SECONDS = 1e12  # 30,000 years: a damaged number, whose sums would be infinite
_MAX_PASS_SECONDS = 60.0  # longest plausible forward of a microbatch (s); beyond it the unit is doubtful


def check_trace(trace: RecordedTrace, steps: Sequence[int] | None = None) -> tuple[RecordedTrace, list[str]]:
    """Check and repair a recorded trace; return the selected steps, and notes on all assumptions.

    Raises InputError for what makes a replay meaningless: no ops, invalid times, a worker that is missing throughout, a
    duplicate op. Steps that lack a worker are skipped, with a note.
    """
    if not len(trace):
        raise InputError(
            f"trace {trace.name!r} has no rows: nothing was recorded, or the file is truncated; record it again"
        )
    notes: list[str] = []
    if steps is not None:
        require_steps(f"trace {trace.name!r}", steps, np.unique(trace.step).tolist())
        trace = trace.select_rows(np.isin(trace.step, list(steps)))
    _reject_bad_rows(trace)
    _require_all_workers(trace)
    trace = _skip_incomplete_steps(trace, notes)
    _reject_duplicate_ops(trace)
    _require_both_pass_types(trace)
    notes += _missing_rank_notes(trace)
    passes = trace.duration[trace.type_mask([FORWARD])]
    if len(passes) and float(np.median(passes)) > _MAX_PASS_SECONDS:
        notes.append(
            f"a forward takes {float(np.median(passes)):,.0f} s (median): start_ts and duration are assumed to be "
            "seconds; convert them first if they are milliseconds or microseconds"
        )
    if strange := _find_unknown_types(trace):
        notes.append(
            f"unknown op types: {', '.join(strange)}; they count as compute of their worker, in recorded order"
        )
    return trace, notes


def require_steps(name: str, steps: Sequence[int], recorded: Collection[int]) -> None:
    """Raise InputError if the trace lacks one of the requested steps."""
    missing = [step for step in steps if step not in recorded]
    if missing:
        known = ", ".join(map(str, list(recorded)[:12])) + (", ..." if len(recorded) > 12 else "")
        raise InputError(f"steps: {name} has no step {missing[0]}; choose from: {known}")


def _find_unknown_types(trace: RecordedTrace) -> list[str]:
    return [word for word in trace.optype_names if word not in _KNOWN_TYPES and trace.type_mask([word]).any()]


def _reject_bad_rows(trace: RecordedTrace) -> None:
    negative = f"duration {{:g}} s is negative; an op ends after it begins.  {_REMEDY}"
    rules = (
        (~(np.abs(trace.start_ts) < _MAX_SECONDS), f"start_ts is not a number of seconds.  {_REMEDY}"),
        (~(np.abs(trace.duration) < _MAX_SECONDS), f"duration is not a number of seconds.  {_REMEDY}"),
        (trace.duration < 0, negative),
        *(
            (getattr(trace, name) < 0, f"{name} must not be negative; count it from 0")
            for name in ("dp_rank", "stage", "step")
        ),
    )
    for bad, what in rules:
        if bad.any():
            first, count = int(np.flatnonzero(bad)[0]), int(bad.sum())
            more = f" ({count - 1} more rows like it)" if count > 1 else ""
            what = what.format(trace.duration[first])
            raise InputError(f"trace {trace.name!r}, {trace.describe(first)}{more}: {what}")


def _require_all_workers(trace: RecordedTrace) -> None:
    replicas, stages = trace.replicas, trace.stages
    if replicas * stages > len(trace):  # no table of missing ones: a damaged number may be 2^62
        largest = int(np.argmax(trace.dp_rank if replicas > stages else trace.stage))
        raise InputError(
            f"trace {trace.name!r}, {trace.describe(largest)}: dp ranks 0 to {replicas - 1} and stages 0 to "
            f"{stages - 1} must all be recorded, since others wait for them, but there are only {len(trace):,} "
            "rows: remove the row, or record all workers"
        )
    there = np.zeros((replicas, stages), dtype=bool)
    there[trace.dp_rank, trace.stage] = True
    if not there.all():
        dp, stage = np.argwhere(~there)[0]
        raise InputError(
            f"trace {trace.name!r} has no row of dp_rank {dp}, stage {stage} ({int((~there).sum())} of "
            f"{there.size} workers are missing); dp ranks 0 to {replicas - 1} and stages 0 to {stages - 1} must all be "
            "recorded, since others wait for them: remove the rest of that replica, or record it"
        )


def _skip_incomplete_steps(trace: RecordedTrace, notes: list[str]) -> RecordedTrace:
    stages, worker = trace.stages, trace.worker_numbers
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
        raise InputError(f"trace {trace.name!r}: {where}; no step has all workers: record all in each step")
    left = f"{int((~whole).sum())} of {len(steps)} steps are skipped: {', '.join(map(str, steps[~whole]))}"
    notes.append(f"{where}; {left}")
    return trace.select_rows(whole[position])


def _require_both_pass_types(trace: RecordedTrace) -> None:
    for optype, other in ((FORWARD, BACKWARD), (BACKWARD, FORWARD)):
        if trace.type_mask([other]).any() and not trace.type_mask([optype]).any():
            strange = _find_unknown_types(trace)
            named = f" (is it called {strange[0]!r} there?)" if strange else ""
            raise InputError(
                f"trace {trace.name!r} has {other} but no {optype}{named}; every trace needs both: name the ops as the "
                f"format does: {', '.join(_KNOWN_TYPES)}"
            )


def _reject_duplicate_ops(trace: RecordedTrace) -> None:
    keys = (trace.step, trace.dp_rank, trace.stage, trace.optype, trace.seq_id, trace.mc)
    order = np.lexsort(keys[::-1])
    same: Bools = np.asarray((np.diff(np.stack(keys)[:, order], axis=1) == 0).all(axis=0))
    if same.any():
        place = int(np.flatnonzero(same)[0])
        first, second = sorted((int(order[place]), int(order[place + 1])))
        raise InputError(
            f"trace {trace.name!r}, {trace.describe(second)}: duplicate of the op in row {trace.row[first]}; step, "
            "dp_rank, stage, optype, seq_id and mc together must identify one op: remove a row"
        )


def reject_unequal_replicas(trace: RecordedTrace) -> None:
    """Raise InputError if replicas run different ops, or if a step lacks a collective that most steps have.

    This finds lost rows that leave nothing unmatched: one of two members of an embedding's all-reduce.
    """
    steps, step = np.unique(trace.step, return_inverse=True)
    replicas, stages = trace.replicas, trace.stages
    for optype in _COUNTED_TYPES:
        ops = np.flatnonzero(trace.type_mask([optype]))
        place = np.ravel_multi_index((step[ops], trace.dp_rank[ops], trace.stage[ops]), (len(steps), replicas, stages))
        counts = np.bincount(place, minlength=len(steps) * replicas * stages).reshape(len(steps), replicas, stages)
        wrong = np.argwhere(counts != np.median(counts, axis=1, keepdims=True).round())
        if len(wrong):
            number, dp, stage = wrong[0].tolist()
            own = counts[number, :, stage]
            usual = int(np.argmax(own != own[dp]))
            more, fewer = (dp, usual) if own[dp] > own[usual] else (usual, dp)
            same = (step[ops] == number) & (trace.stage[ops] == stage) & (trace.dp_rank[ops] == more)
            last = ops[np.flatnonzero(same)[np.argsort(trace.seq_id[ops][same])[-1]]]
            raise InputError(
                f"trace {trace.name!r}, {trace.describe(int(last))}: dp_rank {more} has {own[more]} {optype} ops in "
                f"this step and stage, but dp_rank {fewer} has {own[fewer]}; replicas run the same ops, so a row is "
                f"missing, or belongs to another step.  {_REMEDY}"
            )
        there = counts.sum(axis=1) > 0
        some = np.argwhere(there != (there.mean(axis=0) > 0.5))
        if len(some) and optype in COLLECTIVE_SCOPES:
            number, stage = some[0].tolist()
            has, others = ("a", "none") if there[number, stage] else ("no", "one")
            raise InputError(
                f"trace {trace.name!r}: step {steps[number]} has {has} {optype} on stage {stage}, and most other steps "
                f"have {others}: a row is missing.  {_REMEDY}"
            )


def _missing_rank_notes(trace: RecordedTrace) -> list[str]:
    replicas, stages = trace.replicas, trace.stages
    between = [op for op, scope in COLLECTIVE_SCOPES.items() if scope == "replicas" and trace.type_mask([op]).any()]
    if replicas == 1 and between:
        return [
            f"only one dp rank is recorded, and it runs {', '.join(between)}: waiting for other dp ranks is "
            "unknown and counts as transfer"
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
        f"rank numbers suggest {room} {what}, but only {there} are recorded: the replay assumes that the "
        "job had no others"
    ]


_TOLERANCE = 1e-3  # seconds by which a member may end before the last arrival: clock differences on a node
_MAX_ROUNDS = 50


def set_op_seconds(graphs: Sequence[StepGraph], name: str) -> tuple[tuple[StepGraph, ...], list[str]]:
    """Compute the duration of every op; return the updated step graphs, and notes on assumptions about clocks.

    Raises InputError if a message ends before it begins and no clock shift explains it.
    """
    notes: list[str] = []
    found = [_compute_op_seconds(graph) for graph in graphs]
    if min(_min_or_zero(seconds) for seconds in found) < -_TOLERANCE:
        shifts = _estimate_clock_shifts(graphs)
        late = [shifts[graph.worker][:, None] for graph in graphs]
        graphs = [
            replace(graph, recorded_start=graph.recorded_start - by, recorded_end=graph.recorded_end - by)
            for graph, by in zip(graphs, late, strict=True)
        ]
        found = [_compute_op_seconds(graph) for graph in graphs]
        _reject_negative_seconds(graphs, found, name)
        stages = graphs[0].stages
        worker = int(np.argmax(np.abs(shifts)))
        notes.append(
            "clocks differ: messages end before they begin.  Assumed that members of a group end together, and shifted "
            f"{int((np.abs(shifts) > _TOLERANCE).sum())} of {len(shifts)} workers' clocks by more than "
            f"{_TOLERANCE * 1e3:g} ms, the most for dp_rank "
            f"{worker // stages}, stage {worker % stages} (by {'-' if shifts[worker] > 0 else '+'}"
            f"{format_seconds(abs(float(shifts[worker])))})"
        )
    negative = sum(int((seconds < 0).sum()) for seconds in found)
    if negative:
        worst = min(range(len(graphs)), key=lambda k: _min_or_zero(found[k]))
        op, step = np.unravel_index(int(np.argmin(found[worst])), found[worst].shape)
        notes.append(
            f"{negative} collectives or messages end before their last member begins, by up to "
            f"{-_min_or_zero(found[worst]) * 1e6:.0f} us (step {graphs[worst].steps[step]}, "
            f"{graphs[worst].describe_op(int(op))}): clocks differ by that much; these take 0 s in the replay"
        )
    made = (replace(graph, seconds=np.maximum(seconds, 0.0)) for graph, seconds in zip(graphs, found, strict=True))
    return tuple(made), notes


def _min_or_zero(seconds: Floats) -> float:
    return float(seconds.min(initial=0.0))


def _compute_op_seconds(graph: StepGraph) -> Floats:
    """Return the duration (s) of every op; a send is given the duration of its receive."""
    seconds = graph.recorded_end - graph.recorded_start
    receives = graph.type_mask(lambda optype: optype.endswith("-recv"))
    of_size: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for group in graph.groups:
        of_size[len(group)].append(group)
    for groups in of_size.values():
        members = np.array(groups)  # [group, member]
        seconds[members] = graph.recorded_end[members] - graph.recorded_start[members].max(axis=1, keepdims=True)
        received, first = receives[members].any(axis=1), receives[members].argmax(axis=1)
        seconds[members[received]] = seconds[members[received, first[received]]][:, None]
    return seconds


def _estimate_clock_shifts(graphs: Sequence[StepGraph]) -> Floats:
    """Estimate how far (s) each worker's clock is ahead, assuming that all ranks end a collective together."""
    ends: dict[int, list[tuple[Ints, Floats]]] = defaultdict(list)  # worker -> (peers, own end - each peer's)
    for graph in graphs:
        for group in graph.groups:
            for op in group:
                peers = [other for other in group if other != op]
                ahead = np.median(graph.recorded_end[op] - graph.recorded_end[peers], axis=1)
                ends[int(graph.worker[op])].append((graph.worker[peers], ahead))
    shifts = np.zeros(int(max(graph.worker.max() for graph in graphs)) + 1)
    pairs = {
        worker: [np.concatenate(columns) for columns in zip(*found, strict=True)] for worker, found in ends.items()
    }
    for _ in range(_MAX_ROUNDS):
        before = shifts.copy()
        for worker, (others, lead) in pairs.items():
            shifts[worker] = np.median(lead + shifts[others])
        shifts -= np.median(shifts)
        if np.abs(shifts - before).max() < 1e-9:
            break
    return shifts


def _reject_negative_seconds(graphs: Sequence[StepGraph], found: Sequence[Floats], name: str) -> None:
    for graph, seconds in zip(graphs, found, strict=True):
        op, step = np.unravel_index(int(np.argmin(seconds)), seconds.shape)
        if seconds[op, step] < -_TOLERANCE and is_communication_type(graph.optype[op]):
            raise InputError(
                f"trace {name!r}, step {graph.steps[step]}, {graph.describe_op(int(op))}: ends "
                f"{-seconds[op, step] * 1e3:.3g} ms before its last member begins, and no constant shift of the "
                "workers' clocks explains it; align the clocks when recording (one clock per node, or an offset per "
                "step), or skip the step (--steps)"
            )
