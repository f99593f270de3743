"""Spare machines and repair crews, in many runs at once."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.longrun.run import SOON, Spares


class Pool:
    """Who is in repair: ``back[r, i]`` is when a machine of run r comes back (-inf: nobody)."""

    def __init__(self, spares: Spares, count: int) -> None:
        self.spares = spares
        self.back = np.full((count, 4), -np.inf)
        self.crews = None if spares.crews is None else np.full((count, spares.crews), -np.inf)
        self._ready = np.repeat(spares.ready, [spares.hot, spares.warm, spares.cold])

    def out(self, who: Ints, at: Floats) -> Ints:
        """RepairShop that are in repair then."""
        return np.asarray((self.back[who] > at[:, None] + SOON).sum(axis=1))

    def send(self, who: Ints, at: Floats, repair: Floats) -> None:
        """One machine of each of these runs goes to repair, which takes a crew ``repair`` seconds."""
        start = at
        if self.crews is not None:
            crew = self.crews[who].argmin(axis=1)
            start = np.maximum(at, self.crews[who, crew])
            self.crews[who, crew] = start + repair
        if not (self.back[who] <= at[:, None]).any(axis=1).all():
            self.back = np.concatenate([self.back, np.full_like(self.back, -np.inf)], axis=1)
        self.back[who, self.back[who].argmin(axis=1)] = start + repair

    def ready(self, who: Ints, at: Floats, needed: int) -> Floats:
        """How long the spares take that are taken now."""
        count = self.spares.count
        if not count or not self._ready.any():
            return np.zeros(len(who))
        return np.asarray(self._ready[np.minimum(self.out(who, at) + needed - 1, count - 1)])

    def enough(self, who: Ints, at: Floats, short: int) -> Floats:
        """When no more are out than there are spares, and ``short`` machines that the job can do without."""
        allowed = self.spares.count + short
        if allowed >= self.back.shape[1]:
            return at
        latest = np.sort(self.back[who], axis=1)[:, self.back.shape[1] - 1 - allowed]
        return np.maximum(at, latest)

    def missing(self, who: Ints, at: Floats) -> Ints:
        """RepairShop that the job has too few then."""
        return np.maximum(0, self.out(who, at) - self.spares.count)

    def next_back(self, who: Ints, at: Floats) -> Floats:
        """When the next one comes back."""
        rows = self.back[who]
        return np.asarray(np.where(rows > at[:, None] + SOON, rows, np.inf).min(axis=1))
