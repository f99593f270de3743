"""Which op of a rank's streams waited for which on another stream.

Exact where PyTorch recorded events between streams (cuda_sync).  Otherwise inferred: a collective waits for what was
launched last before it on another stream (ProcessGroupNCCL makes its stream wait for the caller's), unless it began
before that was over; another op waits for what ended in the pause before it; and, where the host called
cudaStreamWaitEvent just before launching it, for the collectives launched last that were over when it began.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from simcluster.interop.kineto.events import RankProfile, StreamOp, by_launch

_EARLY = 1e-6
"""Seconds by which an op may begin before what it waits for is over: the recorder's resolution."""
_PAUSE = 3e-6
"""Seconds that a stream must have paused for an op to have waited."""
_REMAINS = 20e-6
"""Seconds from an end to the start that it explains, at most (or half the pause, if that is more)."""

Waits = dict[int, tuple[int, ...]]
"""Places of the ops that each waits for, by its own place."""


def waited_for(profile: RankProfile, ops: Sequence[StreamOp]) -> Waits:
    """The waits of a rank's ops of one step (by start)."""
    if not profile.on_device:
        return {}
    return _recorded(profile, ops) if profile.waits else _Inferred(profile, ops).waits()


def _streams(ops: Sequence[StreamOp]) -> dict[int, list[int]]:
    """Places by stream, as launched."""
    found: dict[int, list[int]] = {}
    for place in by_launch(ops):
        found.setdefault(ops[place].stream, []).append(place)
    return found


def _recorded(profile: RankProfile, ops: Sequence[StreamOp]) -> Waits:
    streams = _streams(ops)
    issued = {stream: [ops[place].issued for place in places] for stream, places in streams.items()}
    found: dict[int, set[int]] = {}
    for wait in profile.waits:
        if wait.stream not in streams or wait.other not in streams:
            continue
        first = bisect_left(issued[wait.stream], wait.since)
        last = bisect_left(issued[wait.other], wait.recorded) - 1
        if last >= 0 and first < len(issued[wait.stream]):
            found.setdefault(streams[wait.stream][first], set()).add(streams[wait.other][last])
    return {place: tuple(sorted(others)) for place, others in found.items()}


class _Inferred:
    def __init__(self, profile: RankProfile, ops: Sequence[StreamOp]) -> None:
        self._ops, self._calls = ops, profile.wait_calls
        self._streams = _streams(ops)
        self._by_launch = by_launch(ops)
        self._rank = {place: number for number, place in enumerate(self._by_launch)}
        self._work = [place for place in self._by_launch if ops[place].comm is None]
        self._by_end = sorted(range(len(ops)), key=lambda place: ops[place].end)
        self._ends = [ops[place].end for place in self._by_end]

    def waits(self) -> Waits:
        found: Waits = {}
        for places in self._streams.values():
            before = -1.0
            for place in places:
                op = self._ops[place]
                if op.comm:
                    others = self._fork(place)
                else:
                    ready = max(before, op.launched)  # before, where that is not a number
                    others = [*self._ended_in_the_pause(place, ready), *self._called(place)]
                if others:
                    found[place] = tuple(sorted(set(others)))
                before = max(before, op.end)
        return found

    def _fork(self, place: int) -> list[int]:
        """What a collective waits for."""
        op = self._ops[place]
        number = bisect_left(self._work, self._rank[place], key=lambda other: self._rank[other]) - 1
        if number < 0:
            return []
        last = self._ops[self._work[number]]
        return [self._work[number]] if last.stream != op.stream and last.end <= op.start + _EARLY else []

    def _ended_in_the_pause(self, place: int, ready: float) -> list[int]:
        op = self._ops[place]
        pause = op.start - ready
        if pause <= _PAUSE:
            return []
        number = bisect_right(self._ends, op.start + _EARLY) - 1
        while number >= 0 and self._ends[number] > ready:
            other = self._by_end[number]
            known = self._ops[other]
            if known.stream != op.stream and self._rank[other] < self._rank[place]:
                return [other] if op.start - known.end <= max(_REMAINS, pause / 2) else []
            number -= 1
        return []

    def _called(self, place: int) -> list[int]:
        op, number = self._ops[place], self._rank[place]
        since = self._ops[self._by_launch[number - 1]].issued if number else -1.0
        if bisect_right(self._calls, op.issued) == bisect_right(self._calls, since):
            return []
        found = []
        for stream, places in self._streams.items():
            if stream == op.stream or self._ops[places[0]].comm is None:
                continue
            for other in reversed(places[: bisect_left(places, number, key=lambda each: self._rank[each])]):
                if self._ops[other].end <= op.start + _EARLY:
                    found.append(other)
                    break
        return found
