"""Stable merge sort of numbers that already form a few ascending runs (compiled module)."""

from __future__ import annotations

import cython

if not cython.compiled:
    from simcluster.base.pointers import Buffers


class MergeSort:
    """Sorter: the caller fills the array ``keys``; sorting sets ``order``, the sorting permutation."""

    def __init__(self) -> None:
        self.buffers = Buffers()
        self._room = 0
        self.make_room(64)

    def make_room(self, room: cython.int) -> cython.void:
        """Allocate space for ``room`` keys; the present keys are lost."""
        if room > self._room:
            self._room = room
            self.keys = self.buffers.doubles("keys", room)
            self.order = self.buffers.ints("order", room)
            self._keys = self.buffers.doubles("other_keys", room)
            self._order = self.buffers.ints("other_order", room)
            self._run = self.buffers.ints("run", room + 1)

    def sort(self, count: cython.int) -> cython.void:
        """Sort the first ``count`` keys."""
        runs: cython.int = 0
        run: cython.int
        i: cython.int
        for i in range(count):
            self.order[i] = i
            if i == 0 or self.keys[i] < self.keys[i - 1]:
                self._run[runs] = i
                runs += 1
        while runs > 1:
            self._run[runs] = count
            for run in range(0, runs, 2):
                self._merge(self._run[run], self._run[run + 1], self._run[min(run + 2, runs)])
                self._run[run >> 1] = self._run[run]
            runs = (runs + 1) >> 1
            self.keys, self._keys = self._keys, self.keys
            self.order, self._order = self._order, self.order

    def _merge(self, left: cython.int, right: cython.int, end: cython.int) -> cython.void:
        """Merge the adjacent runs [left, right) and [right, end)."""
        a: cython.int = left
        b: cython.int = right
        i: cython.int
        for i in range(left, end):
            if a < right and (b >= end or self.keys[a] <= self.keys[b]):
                self._keys[i] = self.keys[a]
                self._order[i] = self.order[a]
                a += 1
            else:
                self._keys[i] = self.keys[b]
                self._order[i] = self.order[b]
                b += 1
