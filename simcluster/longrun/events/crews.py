"""Spare machines and repair crews of one run, as SimPy processes."""

from __future__ import annotations

import math

import simpy

from simcluster.longrun.run import SOON, Spares


class RepairShop:
    """The machines of a run that are in repair, first come, first served by the crews.

    A job that can go on ``short`` waits for no spare where none is left.
    """

    def __init__(self, env: simpy.Environment, spares: Spares, *, short: bool) -> None:
        self.env, self.spares, self.short = env, spares, short
        self.back: list[float] = []  # when those in repair come back
        self.crews = [-math.inf] * (spares.crews or 0)

    @property
    def out(self) -> int:
        """Machines that are in repair now."""
        self.back = [back for back in self.back if back > self.env.now + SOON]
        return len(self.back)

    def send(self, repair: float) -> None:
        """One goes to repair, which takes a crew so many seconds."""
        start = self.env.now
        if self.crews:
            crew = self.crews.index(min(self.crews))
            start = max(start, self.crews[crew])
            self.crews[crew] = start + repair
        self.back.append(start + repair)

    def ready(self, needed: int) -> float:
        """How long the spares take that are taken now."""
        kinds = [
            ready
            for ready, count in zip(
                self.spares.ready, (self.spares.hot, self.spares.warm, self.spares.cold), strict=True
            )
            for _ in range(count)
        ]
        out = self.out
        if not kinds or (self.short and out >= len(kinds)):
            return 0.0
        return kinds[min(out + needed - 1, len(kinds) - 1)]

    def until(self, out: int) -> float:
        """When no more than so many are in repair; never for fewer than none."""
        if out < 0:
            return math.inf
        return sorted(self.back)[-1 - out] if self.out > out else self.env.now

    def next_back(self) -> float:
        """When the next comes back; inf if none is out."""
        return min((back for back in self.back if back > self.env.now + SOON), default=math.inf)
