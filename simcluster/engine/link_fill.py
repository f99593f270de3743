"""The level at which a link is shared by users who want different rates; compiled."""

from __future__ import annotations

import math

import cython

if not cython.compiled:
    from simcluster.base.pointers import Buffers

_INFINITE = cython.declare(cython.double, math.inf)
_PARTIALS = 64  # a sum of float64 numbers has at most 40


class LinkFill:
    """Users of one link: what each wants (``want``, B/s) for each of its ``flows``."""

    def __init__(self) -> None:
        self.buffers = Buffers()
        self._partial = self.buffers.doubles("partial", _PARTIALS)

    def make_room(self, room: cython.int) -> cython.void:
        """Make room for that many users."""
        self.want = self.buffers.doubles("want", room)
        self.flows = self.buffers.doubles("flows", room)

    def level(self, capacity: cython.double, count: cython.int) -> cython.double:
        """Return the level at which users share a link when some want less; infinite when all do."""
        left: cython.double = capacity
        share: cython.double = capacity / self._sum(count, 0.0, _INFINITE)
        want: cython.double = _INFINITE
        following: cython.double
        i: cython.int
        for i in range(count):
            if self.want[i] < want:
                want = self.want[i]
        while want < share:
            left -= self._sum(count, want, want) * want
            following = _INFINITE
            rest: cython.bint = False
            for i in range(count):
                if self.want[i] > want:
                    rest = True
                    if self.want[i] < following:
                        following = self.want[i]
            if not rest:
                return _INFINITE
            want = following
            following = left / self._sum(count, want, _INFINITE)
            if following > share:
                share = following
        return share

    def _sum(self, count: cython.int, low: cython.double, high: cython.double) -> cython.double:
        """Return the sum, rounded once, of the flows of activities that want a rate from ``low`` to ``high``.

        Like ``math.fsum``, it adds partial sums that do not overlap (Shewchuk 1997).
        """
        partials: cython.int = 0
        kept: cython.int
        x: cython.double
        y: cython.double
        sum_: cython.double
        error: cython.double
        i: cython.int
        j: cython.int
        for i in range(count):
            if not low <= self.want[i] <= high:
                continue
            x = self.flows[i]
            kept = 0
            for j in range(partials):
                y = self._partial[j]
                if abs(x) < abs(y):
                    x, y = y, x
                sum_ = x + y
                error = y - (sum_ - x)
                if error != 0.0:
                    self._partial[kept] = error
                    kept += 1
                x = sum_
            self._partial[kept] = x
            partials = kept + 1
        partials -= 1
        sum_ = self._partial[partials]
        error = 0.0
        while partials > 0 and error == 0.0:
            partials -= 1
            x = sum_
            y = self._partial[partials]
            sum_ = x + y
            error = y - (sum_ - x)
        if partials > 0 and error * self._partial[partials - 1] > 0.0:  # half way between two: the rest decides
            y = error * 2.0
            x = sum_ + y
            if y == x - sum_:
                sum_ = x
        return sum_
