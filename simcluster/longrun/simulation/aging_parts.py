"""Parts of a cause that age: when the next of them ends (``longrun/lives.py`` has the same for arrays)."""

from __future__ import annotations

import math

import cython
import numpy as np

from simcluster.longrun.lives import Lives

if not cython.compiled:
    from simcluster.base.event_queue import EventQueue
    from simcluster.base.pointers import doubles

_INF = math.inf


class AgingParts:
    """The parts of the start, in the order in which they end, and the ends of their replacements.

    Times are seconds of exposure; ``at`` is the last end, ``first`` the next end of the first ``parts``, if it is
    ``drawn``; ``failed`` of them have ended.  ``life`` is the number of the draw of a new part's life.
    """

    def __init__(self, lives: Lives, life: int) -> None:
        self.life, self.parts, self.closed = life, lives.count, lives.youngest == lives.oldest
        self.scale, self.shape, self.age = lives.law.scale, lives.law.shape, lives.youngest
        self.one, self.table = np.empty(1), (np.empty(0), np.empty(0)) if self.closed else lives.table
        self.seconds, self.hazards = doubles(self.table[0]), doubles(self.table[1])
        self.length, self.ends = len(self.table[0]), EventQueue(64)
        self.clear()

    def clear(self) -> cython.void:
        """Begin a run."""
        self.at = self.first = self.failed = 0.0
        self.drawn = False
        while self.ends.count:
            self.ends.pop()

    def next_gap(self, unit: cython.double) -> cython.double:
        """Return the seconds from the last end to the next; ``unit`` is exponential with mean 1."""
        before: cython.double = self.at
        if not self.drawn:
            self.drawn = True
            self.first = self.later(unit / (self.parts - self.failed)) if self.failed < self.parts else _INF
        self.at = self.first
        if self.ends.count and self.ends.chains[0].time < self.at:
            self.at = self.ends.chains[0].time
        return self.at - before

    def replace(self, life: cython.double) -> cython.void:
        """Replace the part that has ended by a new one that lives that long."""
        if self.first == self.at:
            self.failed += 1
            self.drawn = False
        else:
            self.ends.pop()
        self.ends.put(self.at + life, 0)

    def later(self, hazard: cython.double) -> cython.double:
        """Return when a part will have gone through so much more hazard than at the last end."""
        if self.closed:
            before: cython.double = self.power((self.age + self.at) / self.scale, self.shape)
            return self.scale * self.power(before + hazard, 1 / self.shape) - self.age
        hazard += self.interpolate(self.at, self.seconds, self.hazards)
        return self.interpolate(hazard, self.hazards, self.seconds)

    def power(self, base: cython.double, exponent: cython.double) -> cython.double:
        """Return a power by numpy's loop over arrays, whose last bit may differ from that of C."""
        self.one[0] = base
        return float((self.one**exponent)[0])

    def interpolate(self, x: cython.double, known: cython.p_double, values: cython.p_double) -> cython.double:
        """Return the value at ``x``, as ``numpy.interp``."""
        low: cython.int = 0
        high: cython.int = self.length - 1
        middle: cython.int
        if x < known[0]:
            return values[0]
        if x >= known[high]:
            return values[high]
        while high - low > 1:  # known[low] <= x < known[high]
            middle = (low + high) // 2
            if known[middle] <= x:
                low = middle
            else:
                high = middle
        if known[low] == x:
            return values[low]
        slope: cython.double = (values[high] - values[low]) / (known[high] - known[low])
        return slope * (x - known[low]) + values[low]
