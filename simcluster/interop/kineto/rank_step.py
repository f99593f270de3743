"""One rank's work in a step: host activities, ops, and the dependencies between them.

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
    HostPhaseLookup,
    PhaseLayer,
    RankProfile,
    StreamOp,
    find_host_activities,
    launch_order,
)
from simcluster.interop.replay.step_graph import HOST

_RESOLUTION = 1e-6
"""Seconds by which an op may begin before an awaited op ends: the recorder's resolution."""
_MIN_PAUSE = 3e-6
"""Shortest stream pause (s) that may be a wait."""
_MAX_REMAINDER = 20e-6
"""Longest time (s) from an end to the start that it explains (or half the pause, if longer)."""

OpWaits = dict[int, tuple[int, ...]]
"""Indices of the ops that each op waits for, by the index of the waiting op."""


def _group_by_stream(ops: Sequence[StreamOp]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for place in launch_order(ops):
        found.setdefault(ops[place].stream, []).append(place)
    return found


def _find_recorded_waits(profile: RankProfile, ops: Sequence[StreamOp]) -> OpWaits:
    streams = _group_by_stream(ops)
    issued = {stream: [ops[place].launch_time for place in places] for stream, places in streams.items()}
    found: dict[int, set[int]] = {}
    for wait in profile.waits:
        if wait.stream not in streams or wait.awaited_stream not in streams:
            continue
        first = bisect_left(issued[wait.stream], wait.waiting_after)
        last = bisect_left(issued[wait.awaited_stream], wait.awaited_before) - 1
        if last >= 0 and first < len(issued[wait.stream]):
            found.setdefault(streams[wait.stream][first], set()).add(streams[wait.awaited_stream][last])
    return {place: tuple(sorted(others)) for place, others in found.items()}


def _infer_waits(ops: Sequence[StreamOp], calls: Sequence[float]) -> OpWaits:
    """Infer which ops each op waits for, from launches, stream pauses and cudaStreamWaitEvent calls."""
    streams, order = _group_by_stream(ops), launch_order(ops)
    rank = {place: number for number, place in enumerate(order)}
    by_end = sorted(range(len(ops)), key=lambda place: ops[place].end)
    ends = [ops[place].end for place in by_end]
    work = [place for place in order if ops[place].comm is None]

    def earlier_launches(places: Sequence[int], place: int) -> Iterator[int]:
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
            next((each for each in earlier_launches(own, place) if ops[each].end <= op.start + _RESOLUTION), -1)
            for own in others
        )
        return [other for other in over if other >= 0]

    found: OpWaits = {}
    for places in streams.values():
        until = -1.0
        for place in places:
            op = ops[place]
            if op.comm:
                last = next(earlier_launches(work, place), place)
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
class ProfiledRankStep:
    """One rank's work in a step, as arrays with an entry per host activity or per op.

    Columns over host activities (``HostActivity``): ``ends``, ``launched_ops``, ``wait_ends`` and ``operator_names``;
    ``waits_of_activities`` and ``waits_of_ops`` have the ops that an activity or op waits for, by index of the waiting
    one; ``labels`` and ``host_labels`` are the phase and layer of ops and activities. ``begin`` is the step's start.
    """

    begin: float
    ends: Floats
    launched_ops: Ints
    wait_ends: Floats
    operator_names: tuple[str, ...]
    waits_of_activities: dict[int, tuple[int, ...]]
    host_labels: tuple[PhaseLayer, ...]
    waits_of_ops: OpWaits
    labels: tuple[PhaseLayer, ...]

    @property
    def num_activities(self) -> int:
        """Number of host activities."""
        return len(self.ends)


def build_rank_step(profile: RankProfile, labels: HostPhaseLookup, step: int, ops: list[StreamOp]) -> ProfiledRankStep:
    """Build one rank's work in a step from the step's ops, sorted by start.

    On a CPU the host's own work counts towards the step, on a GPU only up to the last launch.
    """
    begin, end = min((op.start for op in ops), default=math.inf), -math.inf
    if not profile.on_device:
        first = min((call.start for call in profile.operators), default=0.0)
        last = max((call.end for call in profile.operators), default=0.0)
        begin, end = next(((start, end) for number, start, end in profile.steps if number == step), (first, last))
    doings, thread = find_host_activities(profile, ops, (begin, end))
    begins = [-math.inf, *(each.end for each in doings)]
    host_labels = labels.labels_at(thread, begins[:-1]) if thread >= 0 else [PhaseLayer(HOST, "")] * len(doings)
    of_ops = [PhaseLayer(OTHER, "")] * len(ops)
    by_thread: dict[int, list[tuple[float, int]]] = {}
    for place, op in enumerate(ops):
        if not math.isnan(op.launch_start):
            by_thread.setdefault(op.thread, []).append((op.launch_start, place))
    for each_thread, launches in by_thread.items():
        launches.sort()
        found = labels.labels_at(each_thread, [time for time, _ in launches])
        for (_, place), label in zip(launches, found, strict=True):
            of_ops[place] = label
    waits: OpWaits = {}
    if profile.on_device:
        waits = _find_recorded_waits(profile, ops) if profile.waits else _infer_waits(ops, profile.wait_calls)
    same: dict[PhaseLayer, PhaseLayer] = {}
    return ProfiledRankStep(
        begin=begin, ends=np.array([each.end for each in doings], dtype=np.float64),
        launched_ops=np.array([each.launched_op for each in doings], dtype=np.int64),
        wait_ends=np.array([each.wait_end for each in doings], dtype=np.float64),
        operator_names=tuple([each.name for each in doings]),
        waits_of_activities={number: each.awaited_ops for number, each in enumerate(doings) if each.awaited_ops},
        host_labels=tuple([same.setdefault(label, label) for label in host_labels]),
        waits_of_ops=waits, labels=tuple([same.setdefault(label, label) for label in of_ops]),
    )  # fmt: skip
