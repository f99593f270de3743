"""Measurement of how long a rank waits for each other rank; a compiled module."""

from __future__ import annotations

from typing import Any

import cython
import numpy as np

from simcluster.reference.step_record import RankOpTable

if not cython.compiled:
    from simcluster.base.merge_sort import MergeSort
    from simcluster.base.pointers import Buffers, doubles, ints


class RankWaits:
    """Measurement of how long ranks that execute the same ops wait for other ranks."""

    def __init__(self, ops: RankOpTable) -> None:
        self.buffers = buffers = Buffers()
        self._count = len(ops)
        self._on_main = buffers.view_ints("on_main", ops.on_main)
        self._pair = buffers.view_ints("pair", ops.pair)
        main = ops.ops_by_lane[ops.on_main[ops.ops_by_lane]]
        self._main = buffers.view_ints("main", main)
        self._main_count = len(main)
        self._busy = buffers.doubles("busy", len(main) + 1)
        sent = np.flatnonzero(~ops.meets)
        self._messages = len(sent)
        self._message = buffers.view_ints("message", sent + len(ops))
        self._receiver = buffers.view_ints("receiver", ops.receiver[sent])
        self._before = buffers.view_ints("before", ops.previous_ops[ops.receiver[sent]])
        self._sort = MergeSort()
        self._sort.make_room(len(ops))
        self._pairs = buffers.ints("pairs", len(ops))
        room = 2 * len(ops) + self._messages  # each wait may be for another rank
        self._of = buffers.ints("of", room)
        self._in_pair = buffers.ints("in_pair", room)
        self._seconds = buffers.doubles("seconds", room)
        self._until = buffers.doubles("until", room)

    def measure(self, ready: Any, start: Any, end: Any, last: Any) -> list[tuple[int, bool, float]]:
        """Return each awaited rank, whether a pipeline message (or else a collective) is awaited, and seconds."""
        self._ready, self._start, self._end = doubles(ready), doubles(start), doubles(end)
        self._last = ints(last)
        self._found = 0
        op: cython.int
        i: cython.int
        place: cython.int
        many: cython.int = 0
        gap: cython.double
        self._sum_main()
        for op in range(self._count):
            if self._ready[op] < self._start[op]:
                if self._pair[op]:
                    self._pairs[many] = op
                    many += 1
                else:
                    place = self._place_of(self._last[op], 0)
                    self._seconds[place] += self._idle(op, self._ready[op])
        self._sort_pairs(many)
        for i in range(many):
            op = self._pairs[i]
            place = self._place_of(self._last[op], 1)
            self._seconds[place] += self._idle(op, max(self._ready[op], self._until[place]))
            self._until[place] = max(self._until[place], self._start[op])
        for i in range(self._messages):  # until the send begins: from then on it communicates
            gap = min(self._start[self._message[i]], self._ready[self._receiver[i]])
            if self._before[i] >= 0:
                gap -= self._end[self._before[i]]
            if gap > 0.0:
                place = self._place_of(self._last[self._message[i]], 1)
                self._seconds[place] += gap
        return [(self._of[i], self._in_pair[i] == 1, self._seconds[i]) for i in range(self._found)]

    def _place_of(self, rank: cython.int, in_pair: cython.int) -> cython.int:
        place: cython.int = self._found - 1
        while place >= 0:
            if self._of[place] == rank and self._in_pair[place] == in_pair:
                return place
            place -= 1
        place = self._found
        self._found += 1
        self._of[place] = rank
        self._in_pair[place] = in_pair
        self._seconds[place] = self._until[place] = 0.0
        return place

    def _sort_pairs(self, many: cython.int) -> cython.void:
        i: cython.int
        turn: cython.int
        for turn in range(2):
            for i in range(many):
                self._sort.keys[i] = self._ready[self._pairs[i]] if turn else self._start[self._pairs[i]]
            self._sort.sort(many)
            for i in range(many):
                self._sort.order[i] = self._pairs[self._sort.order[i]]
            for i in range(many):
                self._pairs[i] = self._sort.order[i]

    def _sum_main(self) -> cython.void:
        i: cython.int
        op: cython.int
        self._busy[0] = 0.0
        for i in range(self._main_count):
            op = self._main[i]
            self._busy[i + 1] = self._busy[i] + (self._end[op] - self._start[op])

    def _idle(self, op: cython.int, begin: cython.double) -> cython.double:
        """Return how long (s) the main lane of ops is idle from ``begin`` until the op starts."""
        idle: cython.double = self._start[op] - begin
        if not self._on_main[op]:
            idle -= self._busy_until(self._start[op]) - self._busy_until(begin)
        return max(idle, 0.0)

    def _busy_until(self, time: cython.double) -> cython.double:
        low: cython.int = 0
        high: cython.int = self._main_count
        middle: cython.int
        while low < high:
            middle = (low + high) >> 1
            if self._start[self._main[middle]] <= time:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return 0.0
        low = low - 1
        return self._busy[low] + (min(time, self._end[self._main[low]]) - self._start[self._main[low]])
