"""Spare machines and repair crews, in many runs at once."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.longrun.run import SOON, Spares


class Pool:
    """Who is in repair: ``back[run, slot]`` is when a machine of a run comes back (-inf: nobody).

    A job that can go on ``short`` waits for no spare where none is left.

    A row is looked at, and sorted, only when it has to be: from ``used[run]`` to ``room[run]`` lie slots of machines
    that are back, and while no more than those are taken nobody waits, neither a machine for a crew nor a job for a
    spare, and every spare that is taken is as ready as the first.
    """

    def __init__(self, spares: Spares, count: int, *, short: bool) -> None:
        self.spares, self.short = spares, short
        self.width = 8
        self.back = np.full((count, self.width), -np.inf)
        self.used, self.room = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self._ready = np.repeat(spares.ready, [spares.hot, spares.warm, spares.cold])
        self.made_ready = bool(self._ready.any())
        """Does any spare take time before it can be used?"""
        alike = int((self._ready == self._ready[0]).cumprod().sum()) if spares.count else 0
        self._easy = min(alike, np.iinfo(np.int64).max if spares.crews is None else spares.crews)
        """While no more are out nothing depends on how many."""

    def out(self, who: Ints, at: Floats) -> Ints:
        """Machines that are in repair then."""
        return np.asarray((self.back[who] > (at + SOON)[:, None]).sum(axis=1))

    def send(self, who: Ints, at: Floats, repairs: Floats) -> Ints:
        """Machines of each of these runs go to repair, which takes a crew so many seconds; returns how many are out.

        Where nothing depends on how many are, it is those that go now.
        """
        out = np.full(len(who), len(repairs))
        slot = self.used[who]
        full = (slot + len(repairs) > self.room[who]).nonzero()[0]
        if len(full):
            crowded = full[self._look(who[full], at[full], len(repairs))]
            if len(crowded):
                out[crowded] = self._squeeze(who[crowded], at[crowded], repairs[:, crowded])
                easy = np.ones(len(who), dtype=bool)
                easy[crowded] = False
                who, at, repairs = who[easy], at[easy], repairs[:, easy]
            slot = self.used[who]
        place = who * self.width + slot
        for repair in repairs:
            self.back.reshape(-1)[place] = at + repair
            place += 1
        self.used[who] = slot + len(repairs)
        return out

    def _look(self, who: Ints, at: Floats, machines: int) -> Ints:
        """Who is out is counted; returns the places of those where it matters when so many more are."""
        rows = np.sort(self.back[who], axis=1)
        out = (rows > at[:, None]).sum(axis=1)
        wanted = 2 * (int(out.max()) + machines)
        if wanted > self.width:
            more = max(self.width, wanted - self.width)
            self.back = np.concatenate([np.full((len(self.back), more), -np.inf), self.back], axis=1)
            self.width += more
            self.used += more
            self.room += more
            rows = np.concatenate([np.full((len(rows), more), -np.inf), rows], axis=1)
        self.back[who] = rows
        self.used[who] = 0
        self.room[who] = room = np.minimum(self.width, self._easy) - out
        return np.asarray((room < machines).nonzero()[0])

    def _squeeze(self, who: Ints, at: Floats, repairs: Floats) -> Ints:
        """Machines go to repair, first come, first served by the crews; returns how many are out.

        The latest as many as there are crews are the last that each crew has; rows are sorted, and stay so.
        """
        rows, crews = self.back[who], self.spares.crews
        out = (rows > (at + SOON)[:, None]).sum(axis=1) + len(repairs)
        for repair in repairs:
            begin = at
            if crews is not None and crews <= self.width:
                begin = np.maximum(at, rows[:, self.width - crews])
            rows[:, 0] = begin + repair
            rows.sort(axis=1)
        self.back[who] = rows
        self.room[who] = 0
        return np.asarray(out)

    def ready(self, out: Ints, needed: int) -> Floats:
        """How long the spares take that are taken now, with so many machines out, those ``needed`` among them."""
        if not self.made_ready:
            return np.zeros(len(out))
        ready = self._ready[np.minimum(out, self.spares.count) - 1]
        return np.asarray(np.where(out - needed >= self.spares.count, 0.0, ready) if self.short else ready)

    def enough(self, who: Ints, at: Floats, short: Ints) -> Floats:
        """When no more are out than there are spares, and ``short`` machines that each job can do without."""
        rows = np.sort(self.back[who], axis=1)
        place = self.width - 1 - self.spares.count - short
        last = np.take_along_axis(rows, np.clip(place, 0, self.width - 1)[:, None], axis=1)[:, 0]
        return np.where(place < 0, at, np.maximum(at, last))

    def missing(self, who: Ints, at: Floats) -> Ints:
        """Machines that the job has too few then."""
        return np.maximum(0, self.out(who, at) - self.spares.count)
