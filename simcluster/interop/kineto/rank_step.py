"""One rank's work in a step, with host activities and dependencies between ops.

Everything that one profile alone determines, so that profiles are processed in parallel (``profile_loader``);
``build_profiled_step`` combines the ranks.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.interop.kineto.rank_profile import (
    OTHER,
    HostLabels,
    RankProfile,
    StreamOp,
    TraceLabel,
    find_host_activities,
    sort_by_launch,
)
from simcluster.interop.replay.step_graph import HOST

_RESOLUTION = 1e-6
"""Seconds by which an op may begin before an awaited op ends: the recorder's resolution."""
_MIN_PAUSE = 3e-6
"""Shortest stream pause (s) that may be a wait."""
_MAX_REMAINDER = 20e-6
"""Longest time (s) from an end to the start that it explains (or half the pause, if longer)."""

Waits = dict[int, tuple[int, ...]]
"""Indices of the ops that each op waits for, by its index."""


def find_op_waits(profile: RankProfile, ops: Sequence[StreamOp]) -> Waits:
    """Return which ops each op of a rank's step waits for, as recorded or else inferred."""
    if not profile.on_device:
        return {}
    return _find_recorded_waits(profile, ops) if profile.waits else _infer_waits(ops, profile.wait_calls)


def _group_by_stream(ops: Sequence[StreamOp]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for place in sort_by_launch(ops):
        found.setdefault(ops[place].stream, []).append(place)
    return found


def _find_recorded_waits(profile: RankProfile, ops: Sequence[StreamOp]) -> Waits:
    streams = _group_by_stream(ops)
    issued = {stream: [ops[place].launch_time for place in places] for stream, places in streams.items()}
    found: dict[int, set[int]] = {}
    for wait in profile.waits:
        if wait.stream not in streams or wait.other not in streams:
            continue
        first = bisect_left(issued[wait.stream], wait.since)
        last = bisect_left(issued[wait.other], wait.recorded) - 1
        if last >= 0 and first < len(issued[wait.stream]):
            found.setdefault(streams[wait.stream][first], set()).add(streams[wait.other][last])
    return {place: tuple(sorted(others)) for place, others in found.items()}


def _infer_waits(ops: Sequence[StreamOp], calls: Sequence[float]) -> Waits:
    """Infer waits between ops from launches, pauses of streams, and calls that make a stream wait."""
    streams, order = _group_by_stream(ops), sort_by_launch(ops)
    rank = {place: number for number, place in enumerate(order)}
    by_end = sorted(range(len(ops)), key=lambda place: ops[place].end)
    ends = [ops[place].end for place in by_end]
    work = [place for place in order if ops[place].comm is None]

    def earlier_places(places: Sequence[int], place: int) -> Iterator[int]:
        last = bisect_left(places, rank[place], key=rank.__getitem__) - 1
        return map(places.__getitem__, range(last, -1, -1))

    def ops_ending_in_pause(op: StreamOp, place: int, ready: float) -> list[int]:
        pause = op.start - ready
        window = (
            by_end[bisect_right(ends, ready) : bisect_right(ends, op.start + _RESOLUTION)] if pause > _MIN_PAUSE else []
        )
        for other in reversed(window):
            if ops[other].stream != op.stream and rank[other] < rank[place]:
                return [other] if op.start - ops[other].end <= max(_MAX_REMAINDER, pause / 2) else []
        return []

    def ops_awaited_by_calls(op: StreamOp, place: int) -> list[int]:
        since = ops[order[rank[place] - 1]].launch_time if rank[place] else -1.0
        if bisect_right(calls, op.launch_time) == bisect_right(calls, since):
            return []
        others = (own for stream, own in streams.items() if stream != op.stream and ops[own[0]].comm is not None)
        over = (
            next((each for each in earlier_places(own, place) if ops[each].end <= op.start + _RESOLUTION), -1)
            for own in others
        )
        return [other for other in over if other >= 0]

    found: Waits = {}
    for places in streams.values():
        until = -1.0
        for place in places:
            op = ops[place]
            if op.comm:
                last = next(earlier_places(work, place), place)
                forks = ops[last].stream != op.stream and ops[last].end <= op.start + _RESOLUTION
                others = [last] if forks else []
            else:
                ready = max(until, op.launch_start)  # ``until`` if the launch is NaN
                others = [*ops_ending_in_pause(op, place, ready), *ops_awaited_by_calls(op, place)]
            if others:
                found[place] = tuple(sorted(set(others)))
            until = max(until, op.end)
    return found


@dataclass(frozen=True)
class RankStep:
    """One rank's work in a step, as columns over host activities and ops.

    Columns over host activities (``HostActivity``): ``ends``, ``launched_ops``, ``wait_ends`` and ``operator_names``;
    ``after`` has the ops that an activity waited for, by its index. ``waits`` has the ops that an op waits for, by its
    index; ``labels`` and ``host_labels`` are the phase and layer of ops and activities. ``begin`` is the step's start.
    """

    begin: float
    ends: Floats
    launched_ops: Ints
    wait_ends: Floats
    operator_names: tuple[str, ...]
    after: dict[int, tuple[int, ...]]
    host_labels: tuple[TraceLabel, ...]
    waits: Waits
    labels: tuple[TraceLabel, ...]

    @property
    def num_activities(self) -> int:
        """Number of host activities."""
        return len(self.ends)


def build_rank_step(profile: RankProfile, labels: HostLabels, step: int, ops: Sequence[StreamOp]) -> RankStep:
    """Return one rank's work in a step from its ops, which are sorted by start.

    On a CPU the host's own work counts towards the step, on a GPU only up to the last launch.
    """
    begin, end = min((op.start for op in ops), default=math.inf), -math.inf
    if not profile.on_device:
        first = min((call.start for call in profile.operators), default=0.0)
        last = max((call.end for call in profile.operators), default=0.0)
        begin, end = next(((start, end) for number, start, end in profile.steps if number == step), (first, last))
    doings, thread = find_host_activities(profile, ops, (begin, end))
    begins = [-math.inf, *(each.end for each in doings)]
    host_labels = labels.labels_at(thread, begins[:-1]) if thread >= 0 else [TraceLabel(HOST, "")] * len(doings)
    of_ops = [TraceLabel(OTHER, "")] * len(ops)
    by_thread: dict[int, list[tuple[float, int]]] = {}
    for place, op in enumerate(ops):
        if not math.isnan(op.launch_start):
            by_thread.setdefault(op.thread, []).append((op.launch_start, place))
    for each_thread, launches in by_thread.items():
        launches.sort()
        found = labels.labels_at(each_thread, [time for time, _ in launches])
        for (_, place), label in zip(launches, found, strict=True):
            of_ops[place] = label
    same: dict[TraceLabel, TraceLabel] = {}
    return RankStep(
        begin=begin, ends=np.array([each.end for each in doings], dtype=np.float64),
        launched_ops=np.array([each.launched_op for each in doings], dtype=np.int64),
        wait_ends=np.array([each.wait_end for each in doings], dtype=np.float64),
        operator_names=tuple([each.name for each in doings]),
        after={number: each.after for number, each in enumerate(doings) if each.after},
        host_labels=tuple([same.setdefault(label, label) for label in host_labels]), waits=find_op_waits(profile, ops),
        labels=tuple([same.setdefault(label, label) for label in of_ops]),
    )  # fmt: skip
