"""Slow devices in many runs at once, and the pace of each run that comes of them."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.longrun.replicas.state import RunsState


class SpellsOfRuns:
    """``[slot, run]``: until when a device is slow, at which pace, noticed when, under which cause (-1: none).

    ``worst`` is the pace of the job, ``by`` its cause, ``next`` the next end or notice of any (s).
    """

    def __init__(self, state: RunsState) -> None:
        self.state, count = state, state.count
        self.end = np.full((2, count), np.inf)
        self.noticed = np.full((2, count), np.inf)
        self.pace = np.ones((2, count))
        self.cause = np.full((2, count), -1)
        self.next = np.full(count, np.inf)
        self.worst, self.by = np.ones(count), np.full(count, -1)

    def begin(self, who: Ints, number: int, occurrence: Ints) -> None:
        """A device is slow, from now on."""
        state, cause = self.state, self.state.run.causes[number]
        assert cause.paces is not None
        uniform = state.uniform(cause.name, "spell", occurrence, 2, who)
        level = np.searchsorted(np.cumsum(cause.shares)[:-1], uniform[:, 0], side="right")
        device = np.minimum((uniform[:, 1] * cause.devices).astype(np.int64), cause.devices - 1)
        slot = self._free(who)
        now = state.now[who]
        self.end[slot, who] = now + state.lasts(cause, occurrence, who)
        self.pace[slot, who] = cause.paces[level, cause.column(device) if cause.column else 0]
        self.cause[slot, who] = number
        if state.run.straggler != "leave":
            noticed = state.draw(state.run.noticed, cause.name, "noticed", occurrence, who)
            self.noticed[slot, who] = now + noticed
        self.look(who)

    def _free(self, who: Ints) -> Ints:
        """A slot that nothing is in."""
        free = self.cause[:, who] < 0
        if not free.any(axis=0).all():
            for name, empty in (("end", np.inf), ("noticed", np.inf), ("pace", 1.0), ("cause", -1)):
                rows = getattr(self, name)
                setattr(self, name, np.concatenate([rows, np.full_like(rows, empty)]))
            free = self.cause[:, who] < 0
        return np.asarray(free.argmax(axis=0))

    def over(self, who: Ints) -> None:
        """Those whose time is up are forgotten."""
        self._forget(who, self.end[:, who] <= self.state.now[who])
        self.look(who)

    def repaired(self, who: Ints, now: Floats) -> None:
        """At a restart, those that have been noticed are gone."""
        noticed = self.noticed[:, who]
        self._forget(who, (self.cause[:, who] >= 0) & (np.isinf(noticed) | (noticed <= now)))

    def _forget(self, who: Ints, over: Bools) -> None:
        slots, rows = np.nonzero(over)
        rows = who[rows]
        self.end[slots, rows] = self.noticed[slots, rows] = np.inf
        self.pace[slots, rows] = 1.0
        self.cause[slots, rows] = -1

    def look(self, who: Ints) -> None:
        """The pace of the worst that slows each run, and what happens next."""
        paces = self.pace[:, who]
        slot = paces.argmax(axis=0)
        pace, by = paces.max(axis=0), self.cause[slot, who]
        if self.state.run.short:
            short = np.array([1.0, *self.state.run.short])[self.state.missing[who]]
            by = np.where(short > pace, len(self.state.names) - 1, by)
            pace = np.maximum(pace, short)
        self.worst[who], self.by[who] = pace, by
        self.next[who] = np.minimum(self.end[:, who].min(axis=0), self.noticed[:, who].min(axis=0))

    def notice(self, who: Ints) -> tuple[Ints, Ints]:
        """Runs in which one is noticed now, and its cause."""
        who = who[(self.noticed[:, who] <= self.state.now[who]).any(axis=0)]
        slot = self.noticed[:, who].argmin(axis=0)
        self.noticed[slot, who] = np.inf
        self.look(who)
        return who, self.cause[slot, who]
