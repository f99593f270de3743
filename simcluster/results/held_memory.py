"""Memory held by a rank over time, summed from its changes; compiled, see ``base.pointers``."""

from __future__ import annotations

from typing import Any

import cython

if not cython.compiled:
    from simcluster.base.merge_sort import MergeSort
    from simcluster.base.pointers import Buffers, doubles


class HeldMemory:
    """Memory changes of a rank, frees first, then by op: ``source`` indexes times, ``delta`` is in bytes."""

    def __init__(self, source: Any, pool: Any, delta: Any, pools: int) -> None:
        self.buffers = buffers = Buffers()
        self._count = len(source)
        self._pools = pools
        self._source = buffers.given_ints("source", source)
        self._pool = buffers.given_ints("pool", pool)
        self._delta = buffers.given_doubles("delta", delta)
        self._held = buffers.doubles("held", pools)
        self._sort = MergeSort()
        self._sort.make_room(self._count)

    def peak(self, times: Any) -> list[Any]:
        """Return the last allocation before the first peak (-1 for none), and the bytes of each pool at the peak.

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
