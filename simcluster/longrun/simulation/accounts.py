"""What came of runs, as the simulation writes it: a row of flat arrays for each run."""

from __future__ import annotations

from typing import Any

import cython
import numpy as np

from simcluster.longrun.outcome import names_of
from simcluster.longrun.run import FATES, LongRun

if not cython.compiled:
    from simcluster.base.pointers import doubles, ints


class Accounts:
    """``weeks`` lists, for each run, where it was on the nominal clock when each week ended."""

    def __init__(self, run: LongRun, count: int) -> None:
        self.names, self.part_count, self.row = len(names_of(run)), len(run.restart), 0
        sizes = 1, 1, len(FATES) * self.names, self.part_count
        self.arrays = [np.zeros(count * size) for size in sizes]
        self.arrays += [np.zeros(count * self.names, dtype=np.int32) for _ in range(2)]
        self.wall, self.at = doubles(self.arrays[0]), doubles(self.arrays[1])
        self.fates, self.parts = doubles(self.arrays[2]), doubles(self.arrays[3])
        self.strikes, self.outages = ints(self.arrays[4]), ints(self.arrays[5])
        self.weeks: list[list[float]] = []
        self.week: list[float] = []

    def columns(self) -> list[Any]:
        """Return wall, at, fates, parts, strikes and outages."""
        if cython.compiled:
            return list(self.arrays)
        return [np.array(each) for each in (self.wall, self.at, self.fates, self.parts, self.strikes, self.outages)]

    def begin(self, row: cython.int) -> cython.void:
        """Write the row of this run from now on."""
        self.row, self.week = row, []
        self.weeks.append(self.week)

    def add(self, fate: cython.int, cause: cython.int, seconds: cython.double) -> cython.void:
        """Add seconds of a fate, by a cause."""
        self.fates[(self.row * 8 + fate) * self.names + cause] += seconds

    def add_part(self, part: cython.int, seconds: cython.double) -> cython.void:
        """Add seconds of a part of restarts."""
        self.parts[self.row * self.part_count + part] += seconds

    def strike(self, cause: cython.int) -> cython.int:
        """Count a strike; return the number of those before."""
        place: cython.int = self.row * self.names + cause
        self.strikes[place] += 1
        return self.strikes[place] - 1

    def stop(self, cause: cython.int) -> cython.int:
        """Count an outage; return the number of those before."""
        place: cython.int = self.row * self.names + cause
        self.outages[place] += 1
        return self.outages[place] - 1
