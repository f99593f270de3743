"""A factor that holds in windows of time, once or again and again: plain data, for faults and for what plans by them.

Instants lie on the clock's grid.  Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simcluster.base.clock import on_grid


@dataclass(frozen=True, slots=True)
class Window:
    """``value`` from ``start`` to ``end`` (s), 1 elsewhere; with a ``period`` in the first ``length`` of each.

    The first period begins at the start; the end cuts what it meets.
    """

    value: float
    start: float = 0.0
    end: float = math.inf
    period: float = math.inf
    length: float = math.inf

    def at(self, instant: float) -> float:
        """The factor from this instant on."""
        if not self.start <= instant < self.end:
            return 1.0
        _, over = self._turn(self._number(instant))
        return self.value if instant < over else 1.0

    def after(self, instant: float) -> float:
        """The next edge of a window."""
        if instant < self.start:
            return self.start
        if instant >= self.end:
            return math.inf
        number = self._number(instant)
        _, over = self._turn(number)
        if instant < over:
            return over
        begin, _ = self._turn(number + 1)
        return begin if begin < self.end else math.inf

    def _turn(self, number: int) -> tuple[float, float]:
        """Begin and end of the window with this number."""
        if math.isinf(self.period):
            return self.start, min(self.end, on_grid(self.start + self.length))
        begin = on_grid(self.start + number * self.period)
        return begin, min(self.end, on_grid(begin + self.length))

    def _number(self, instant: float) -> int:
        """The window that has begun last."""
        if math.isinf(self.period):
            return 0
        number = int((instant - self.start) // self.period)
        while self._turn(number + 1)[0] <= instant:
            number += 1
        while number and self._turn(number)[0] > instant:
            number -= 1
        return number
