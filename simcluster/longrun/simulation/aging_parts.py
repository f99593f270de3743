"""Parts of a cause that age: when the next of them ends."""

from __future__ import annotations

import math

import numpy as np

from simcluster.longrun.lives import Lives


class AgingParts:
    """The parts that are there from the begin, in the order in which they end, and the ones that replaced them.

    Times are seconds of exposure; ``life`` is the number of the draw of a new part's life.
    """

    def __init__(self, lives: Lives, life: int) -> None:
        self.lives, self.life = lives, life
        self.clear()

    def clear(self) -> None:
        """Begin a run."""
        self._at, self._failed = 0.0, 0.0
        self._first: float | None = None
        self._replaced: list[float] = []

    def next_gap(self, unit: float) -> float:
        """Return the seconds from the last end to the next; ``unit`` is exponential with mean 1."""
        if self._first is None:
            found = self.lives.first(np.array([self._at]), np.array([self._failed]), np.array([unit]))
            self._first = float(found[0])
        before, self._at = self._at, min(self._first, *self._replaced, math.inf)
        return self._at - before

    def replace(self, life: float) -> None:
        """Replace the part that has ended by a new one that lives that long."""
        if self._first == self._at:
            self._failed, self._first = self._failed + 1, None
        else:
            self._replaced.remove(self._at)
        self._replaced.append(self._at + life)
