"""Spare machines and repair crews, in many runs at once."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.longrun.run import SOON, Spares


class Pool:
    """Who is in repair: ``back[i, r]`` is when a machine of run r comes back (-inf: nobody)."""

    def __init__(self, spares: Spares, count: int) -> None:
        self.spares = spares
        self.back = np.full((4, count), -np.inf)
        self.crews = None if spares.crews is None else np.full((spares.crews, count), -np.inf)
        self._ready = np.repeat(spares.ready, [spares.hot, spares.warm, spares.cold])

    def out(self, who: Ints, at: Floats) -> Ints:
        """Machines that are in repair then."""
        return np.asarray((self.back[:, who] > at + SOON).sum(axis=0))

    def send(self, who: Ints, at: Floats, repair: Floats) -> None:
        """One machine of each of these runs goes to repair, which takes a crew ``repair`` seconds."""
        start = at
        if self.crews is not None:
            crew = self.crews[:, who].argmin(axis=0)
            start = np.maximum(at, self.crews[crew, who])
            self.crews[crew, who] = start + repair
        rows = self.back[:, who]
        place = rows.argmin(axis=0)
        if (rows.min(axis=0) > at).any():
            self.back = np.concatenate([self.back, np.full_like(self.back, -np.inf)])
            place = self.back[:, who].argmin(axis=0)
        self.back[place, who] = start + repair

    def ready(self, who: Ints, at: Floats, needed: int) -> Floats:
        """How long the spares take that are taken now."""
        count = self.spares.count
        if not count or not self._ready.any():
            return np.zeros(len(who))
        return np.asarray(self._ready[np.minimum(self.out(who, at) + needed - 1, count - 1)])

    def enough(self, who: Ints, at: Floats, short: int) -> Floats:
        """When no more are out than there are spares, and ``short`` machines that the job can do without."""
        allowed = self.spares.count + short
        if allowed >= len(self.back):
            return at
        return np.maximum(at, np.sort(self.back[:, who], axis=0)[len(self.back) - 1 - allowed])

    def missing(self, who: Ints, at: Floats) -> Ints:
        """Machines that the job has too few then."""
        return np.maximum(0, self.out(who, at) - self.spares.count)

    def next_back(self, who: Ints, at: Floats) -> Floats:
        """When the next one comes back."""
        rows = self.back[:, who]
        return np.asarray(np.where(rows > at + SOON, rows, np.inf).min(axis=0))
