"""Division of a rank's time at span starts and ends, and the activity of each interval; a compiled module.

``rank_time`` defines the entries, ``span_states`` the bits of spans.
"""

from __future__ import annotations

import math
from typing import Any

import cython

from simcluster.results import span_states
from simcluster.results.span_states import SpanBits

if not cython.compiled:
    from simcluster.base.merge_sort import MergeSort
    from simcluster.base.pointers import Buffers, doubles

_INFINITE = cython.declare(cython.double, math.inf)
_COMPUTATION = cython.declare(cython.int, (1 << len(span_states.COMPUTE_KINDS)) - 1)
_LATE = cython.declare(cython.int, span_states.LATE)
_STANDING = cython.declare(cython.int, span_states.STANDING)
_STALLED = cython.declare(cython.int, span_states.STALLED)
_HELD = cython.declare(cython.int, span_states.HELD)
_HOST = cython.declare(cython.int, span_states.HOST)
_STORAGE = cython.declare(cython.int, span_states.STORAGE)
_BUBBLE = cython.declare(cython.int, len(span_states.ENTRIES) - 1)


class RankStates:
    """Measurement of the time breakdown of ranks that execute the same spans."""

    def __init__(self, spans: SpanBits) -> None:
        self.buffers = buffers = Buffers()
        self._count = len(spans.source)
        self._source = buffers.view_ints("source", spans.source)
        self._bits = buffers.view_ints("bits", spans.bits)
        self._late = buffers.view_ints("late", spans.late)
        self._checkpoint = buffers.view_ints("checkpoint", spans.checkpoint)
        self._barriers = buffers.view_ints("barriers", spans.barriers)
        self._barrier_count = len(spans.barriers)
        room: cython.int = 4 * self._count + 2 * self._barrier_count + 4
        self._sort = MergeSort()
        self._sort.make_room(room)
        self._change = buffers.ints("change", room)
        self._edge = buffers.doubles("edge", room)
        self._active = buffers.ints("active", room)
        self._host_ends = buffers.flags("host_ends", room)
        self._held_up = buffers.flags("held_up", room)
        self._depth = buffers.ints("depth", _STORAGE + 1)
        self._seconds = buffers.doubles("seconds", _BUBBLE + 3)

    def ends(self, end: Any) -> tuple[float, float]:
        """Return when a rank's last span ends, and its last span that does not write to storage (s); -1 if none."""
        seconds: cython.p_double = doubles(end)
        last: cython.double = -1.0
        done: cython.double = -1.0
        span: cython.int
        for span in range(self._count):
            last = max(last, seconds[self._source[span]])
            if not self._bits[span] & 1 << _STORAGE:
                done = max(done, seconds[self._source[span]])
        return last, done

    def measure(
        self,
        ready: Any,
        start: Any,
        end: Any,
        total: cython.double,
        stage_done: cython.double,
        worked: cython.double,
        alone: cython.bint,
    ) -> list[float]:
        """Return the seconds that a rank spends on each activity, those of its communication, and those of overlap.

        The last rank of the stage finishes at ``stage_done``; after ``worked``, only writes of a checkpoint are under
        way; ``alone`` means that there is no other stage.
        """
        done: cython.double = self._cut_time(doubles(ready), doubles(start), doubles(end))
        self._add_change(0.0, 0)
        self._add_change(stage_done, 0)
        self._add_change(worked, 0)
        self._add_change(total, 0)
        self._find_active()
        self._find_held_up(worked)
        self._sum(done, stage_done, worked, alone)
        return [self._seconds[entry] for entry in range(_BUBBLE + 3)]

    def _add_change(self, time: cython.double, change: cython.int) -> cython.void:
        self._sort.keys[self._events] = time
        self._change[self._events] = change
        self._events += 1

    def _cut_time(self, ready: cython.p_double, start: cython.p_double, end: cython.p_double) -> cython.double:
        """Divide time at the start and end of all spans; return the last end except of writes to storage (s)."""
        done: cython.double = 0.0
        begun: cython.double
        span: cython.int
        at: cython.int
        step: cython.int
        barrier: cython.int
        self._events = 0
        for span in range(self._count):
            at = self._source[span]
            if self._late[span] and ready[at] < start[at]:
                self._add_change(ready[at], 1 << _LATE)
                self._add_change(start[at], -(1 << _LATE))
            self._add_change(start[at], self._bits[span])
            self._add_change(end[at], -self._bits[span])
            if end[at] > done and not self._bits[span] & 1 << _STORAGE:
                done = end[at]
        for barrier in range(self._barrier_count):
            begun = _INFINITE
            step = self._checkpoint[self._barriers[barrier]]
            for span in range(self._count):
                if self._checkpoint[span] == step:
                    begun = min(begun, start[self._source[span]])
            self._add_change(begun, 1 << _STANDING)
            self._add_change(start[self._source[self._barriers[barrier]]], -(1 << _STANDING))
        return done

    def _find_active(self) -> cython.void:
        event: cython.int
        change: cython.int
        bits: cython.int
        bit: cython.int
        active: cython.int = 0
        self._edges = 0
        self._sort.sort(self._events)
        for bit in range(_STORAGE + 1):
            self._depth[bit] = 0
        for event in range(self._events):
            if event == 0 or self._sort.keys[event] != self._edge[self._edges - 1]:
                self._edge[self._edges] = self._sort.keys[event]
                self._host_ends[self._edges] = 0
                self._edges += 1
            change = self._change[self._sort.order[event]]
            bits = change if change > 0 else -change
            bit = 0
            while bits:
                if bits & 1:
                    self._depth[bit] += 1 if change > 0 else -1
                    active = active | 1 << bit if self._depth[bit] > 0 else active & ~(1 << bit)
                bits >>= 1
                bit += 1
            if change < 0 and -change & 1 << _HOST:
                self._host_ends[self._edges - 1] = 1
            self._active[self._edges - 1] = active

    def _is_idle(self, edge: cython.int, worked: cython.double) -> cython.bint:
        return self._edge[edge] < worked and self._active[edge] & ((1 << _LATE) - 1 | 15 << _STANDING) == 0

    def _find_held_up(self, worked: cython.double) -> cython.void:
        """Find the intervals in which a rank waits for its host: idle until a copy or host work ends."""
        edge: cython.int
        place: cython.int
        for edge in range(self._edges):
            self._held_up[edge] = 0
            if self._host_ends[edge] and (edge == self._edges - 1 or not self._is_idle(edge, worked)):
                place = edge - 1
                while (
                    place >= 0
                    and self._active[place] & 1 << _HOST
                    and self._is_idle(place, worked)
                    and not self._held_up[place]
                ):
                    self._held_up[place] = 1
                    place -= 1

    def _sum(
        self, done: cython.double, stage_done: cython.double, worked: cython.double, alone: cython.bint
    ) -> cython.void:
        edge: cython.int
        entry: cython.int
        active: cython.int
        communicates: cython.int
        length: cython.double
        for entry in range(_BUBBLE + 3):
            self._seconds[entry] = 0.0
        for edge in range(self._edges - 1):
            active = self._active[edge]
            length = self._edge[edge + 1] - self._edge[edge]
            communicates = active & ((1 << _LATE) - 1) & ~_COMPUTATION
            if communicates:
                self._seconds[_BUBBLE + 1] += length
                if active & _COMPUTATION:
                    self._seconds[_BUBBLE + 2] += length
            if communicates or active & _COMPUTATION:
                entry = _lowest(active, 0)
            elif self._edge[edge] >= worked or active & 1 << _STANDING:
                entry = _STANDING
            elif active & 7 << _STALLED:
                entry = _lowest(active, _STALLED)
            elif self._held_up[edge]:
                entry = _lowest(active | 1 << _HOST, _HELD)
            elif alone or active & 1 << _LATE or (self._edge[edge] >= done and self._edge[edge + 1] <= stage_done):
                entry = _LATE
            else:
                entry = _BUBBLE
            self._seconds[entry] += length


def _lowest(bits: cython.int, bit: cython.int) -> cython.int:
    while not bits >> bit & 1:
        bit += 1
    return bit
