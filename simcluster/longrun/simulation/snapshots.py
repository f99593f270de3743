"""A run on its nominal clock, and the snapshots that are there (``longrun/pattern.py`` has the same for arrays)."""

from __future__ import annotations

import math

import cython

from simcluster.longrun.run import LongRun

if not cython.compiled:
    from simcluster.base.pointers import Buffers


class Snapshots:
    """``at`` on the nominal clock; ``in_memory_at`` and ``stored_at``: where the run goes back to at least."""

    def __init__(self, run: LongRun) -> None:
        pattern = run.pattern
        self.cycles, self.in_memory, self.period = pattern.cycles, pattern.memory is not None, pattern.period
        self.last = float(run.goal // pattern.steps) if math.isfinite(run.goal) else math.inf
        self.buffers = Buffers()
        self.ends = self.buffers.given_doubles("ends", pattern.ends)
        self.safe_within = self.buffers.given_doubles("safe_within", pattern.safe_within)
        self.at = self.in_memory_at = self.stored_at = 0.0
        self.stalls = self.buffers.given_doubles("stalls", [cycle[3][1] for cycle in pattern.phases])

    def split(self, at: cython.double) -> cython.longlong:
        """Return the whole periods until then; ``rest`` are the seconds in the present one."""
        whole: cython.longlong = cython.cast(cython.longlong, at / self.period)
        self.rest = at - whole * self.period
        if self.rest < 0:  # rounding
            whole -= 1
            self.rest += self.period
        return whole

    def end(self, snapshot: cython.longlong) -> cython.double:
        """Return when the n-th snapshot has been taken; the 0th is the run's begin."""
        return snapshot // self.cycles * self.period + self.ends[snapshot % self.cycles]

    def taken(self, at: cython.double) -> cython.longlong:
        """Return the number of snapshots that have been taken until then, safe or not."""
        whole: cython.longlong = self.split(at)
        within: cython.int = 0
        while within < self.cycles - 1 and self.ends[within + 1] <= self.rest:
            within += 1
        return whole * self.cycles + within

    def next_end(self) -> cython.double:
        """Return when the present cycle will end with a snapshot."""
        return self.end(self.taken(self.at) + 1)

    def next_verified(self) -> cython.double:
        """Return when the verification of that cycle will be done, or that of the next if it is over."""
        snapshot: cython.longlong = self.taken(self.at) + 1
        found: cython.double = self.end(snapshot) - self.stalls[(snapshot - 1) % self.cycles]
        if found >= self.at:
            return found
        return self.end(snapshot + 1) - self.stalls[snapshot % self.cycles]

    def target(self, stored: cython.bint) -> cython.double:
        """Return the end of the latest snapshot that survives: any that is safe now, or one that is ``stored``."""
        whole: cython.longlong = self.split(self.at)
        within: cython.int = 0
        while within < self.cycles and self.safe_within[within] <= self.rest:
            within += 1
        snapshot: cython.longlong = max(0, whole * self.cycles + within - 1)
        if stored and self.in_memory:
            snapshot = snapshot // self.cycles * self.cycles
        if snapshot > self.last:
            snapshot = cython.cast(cython.longlong, self.last)
        return max(self.end(snapshot), self.stored_at if stored else self.in_memory_at)
