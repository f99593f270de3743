"""Spare machines and repair crews, in many runs at once."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.longrun.run import SOON, Spares


class Pool:
    """Who is in repair: ``back[i, r]`` is when a machine of run r comes back (-inf: nobody).

    A job that can go on ``short`` waits for no spare where none is left.
    """

    def __init__(self, spares: Spares, count: int, *, short: bool) -> None:
        self.spares, self.short = spares, short
        self.back = np.full((4, count), -np.inf)
        self.crews = None if spares.crews is None else np.full((spares.crews, count), -np.inf)
        self._ready = np.repeat(spares.ready, [spares.hot, spares.warm, spares.cold])
        self.made_ready = bool(self._ready.any())
        """Does any spare take time before it can be used?"""

    def out(self, who: Ints, at: Floats) -> Ints:
        """Machines that are in repair then."""
        return _how_many(self.back[:, who] > at + SOON)

    def send(self, who: Ints, at: Floats, repairs: Floats) -> Ints:
        """Machines of each of these runs go to repair, which takes a crew so many seconds; returns how many are out."""
        rows = self._rows(who)
        out = _how_many(rows > at + SOON) + len(repairs)
        if out.max() > len(rows) - len(repairs):
            self.back = np.concatenate([self.back, np.full((4 + len(repairs), self.back.shape[1]), -np.inf)])
            rows = self._rows(who)
        everyone = np.arange(len(who))
        for repair in repairs:
            place = rows.argmin(axis=0)
            rows[place, everyone] = served = self._served(who, at, repair)
            if rows is not self.back:
                self.back[place, who] = served
        return out

    def _rows(self, who: Ints) -> Floats:
        """``back`` of these runs; itself where they are all."""
        return self.back if len(who) == self.back.shape[1] else self.back[:, who]

    def _served(self, who: Ints, at: Floats, repair: Floats) -> Floats:
        """When a machine is back that goes to repair now: first come, first served by the crews."""
        if self.crews is None:
            return np.asarray(at + repair)
        crew = self.crews[:, who].argmin(axis=0)
        back = np.maximum(at, self.crews[crew, who]) + repair
        self.crews[crew, who] = back
        return np.asarray(back)

    def ready(self, out: Ints, needed: int) -> Floats:
        """How long the spares take that are taken now, with so many machines out, those ``needed`` among them."""
        if not self.made_ready:
            return np.zeros(len(out))
        ready = self._ready[np.minimum(out, self.spares.count) - 1]
        return np.asarray(np.where(out - needed >= self.spares.count, 0.0, ready) if self.short else ready)

    def enough(self, who: Ints, at: Floats, short: Ints) -> Floats:
        """When no more are out than there are spares, and ``short`` machines that each job can do without."""
        rows = np.sort(self.back[:, who], axis=0)
        place = len(rows) - 1 - self.spares.count - short
        last = np.take_along_axis(rows, np.clip(place, 0, len(rows) - 1)[None], axis=0)[0]
        return np.where(place < 0, at, np.maximum(at, last))

    def missing(self, who: Ints, at: Floats) -> Ints:
        """Machines that the job has too few then."""
        return np.maximum(0, self.out(who, at) - self.spares.count)


def _how_many(are: Bools) -> Ints:
    """Counted down the columns."""
    if len(are) < 128:
        few = are.view(np.int8).sum(axis=0, dtype=np.int8)  # in few bytes it is much faster
        return np.asarray(few.astype(np.int64))
    return np.asarray(are.sum(axis=0))
