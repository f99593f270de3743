"""Memory that a rank holds over time, summed from allocations and frees; a compiled module."""

from __future__ import annotations

from typing import Any

import cython

if not cython.compiled:
    from simcluster.base.merge_sort import MergeSort
    from simcluster.base.pointers import Buffers, doubles


class HeldMemory:
    """Memory changes (bytes) of one rank in time order, each with the number of the op time at which it happens."""

    def __init__(self, source: Any, pool: Any, delta: Any, pools: int) -> None:
        self.buffers = buffers = Buffers()
        self._count = len(source)
        self._pools = pools
        self._source = buffers.view_ints("source", source)
        self._pool = buffers.view_ints("pool", pool)
        self._delta = buffers.view_doubles("delta", delta)
        self._held = buffers.doubles("held", pools)
        self._sort = MergeSort()
        self._sort.make_room(self._count)

    def peak(self, times: Any) -> list[Any]:
        """Return which allocation reaches the memory peak (-1: none), and the bytes of each memory pool at that peak.

        ``times`` are in seconds. Changes at the same instant count together.
        """
        seconds: cython.p_double = doubles(times)
        held: cython.double = 0.0
        most: cython.double = 0.0
        last: cython.int = -1
        change: cython.int
        i: cython.int
        for i in range(self._count):
            self._sort.keys[i] = seconds[self._source[i]]
        self._sort.sort(self._count)
        for i in range(self._count):
            held += self._delta[self._sort.order[i]]
            if (i == self._count - 1 or self._sort.keys[i + 1] != self._sort.keys[i]) and (last < 0 or held > most):
                most = held
                last = i
        for i in range(self._pools):
            self._held[i] = 0.0
        at: cython.int = -1
        for i in range(last + 1):
            change = self._sort.order[i]
            self._held[self._pool[change]] += self._delta[change]
            if self._delta[change] > 0:
                at = change
        return [at, *[self._held[i] for i in range(self._pools)]]
