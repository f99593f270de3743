"""Outages that wait for a snapshot, in many runs at once."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.longrun.replicas.state import RunsState


class PlannedOutages:
    """The outage after the next snapshot: when (``at``, nominal), its cause, whose machines it replaces, maintenance.

    ``due`` is when maintenance falls due, ``back_at`` when enough machines are back that a job
    with too few is faster (wall).
    """

    def __init__(self, state: RunsState) -> None:
        self.state, count = state, state.count
        self.at = np.full(count, np.inf)
        self.cause = np.full(count, -1)
        self.replaces = np.full(count, -1)
        self.maintains = np.zeros(count, dtype=bool)
        self.due = np.full(count, state.run.maintenance.every if state.run.maintenance else np.inf)
        self.back_at = np.full(count, np.inf)

    def plan(self, who: Ints, number: int) -> None:
        """One more reason; what is planned already is done in the same."""
        if not len(who):
            return
        new = who[np.isinf(self.at[who])]
        self.cause[new] = number
        self.at[new] = self.state.run.pattern.next_end(self.state.at[new])
        if number < len(self.state.run.causes):
            self.replaces[who] = number

    def fall_due(self, who: Ints, number: int) -> None:
        """Maintenance, where it is due."""
        assert self.state.run.maintenance is not None
        every, now = self.state.run.maintenance.every, self.state.now[who]
        late = now >= self.due[who]
        who, now = who[late], now[late]
        self.due[who] += every * np.ceil((now - self.due[who]) / every + 1e-9)
        self.maintains[who] = True
        self.plan(who, number)

    def done(self, who: Ints) -> None:
        """What was planned is done."""
        self.maintains[who] = False
        self.at[who], self.replaces[who] = np.inf, -1

    def put_off(self, who: Ints) -> None:
        """Training has been set back: to the snapshot that is next from there."""
        waiting = who[self.at[who] < np.inf]
        if len(waiting):
            self.at[waiting] = self.state.run.pattern.next_end(self.state.at[waiting])
