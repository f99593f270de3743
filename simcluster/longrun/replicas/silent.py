"""Silent errors in many runs at once: weights that are wrong, who finds out, and where a run goes back to."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.longrun.pattern import STORAGE
from simcluster.longrun.replicas.state import RunsState


class SilentErrors:
    """Weights wrong ``since`` (nominal) by a ``cause``; somebody finds out (wall), or a verification (nominal)."""

    def __init__(self, state: RunsState) -> None:
        self.state, count = state, state.count
        self.since = np.full(count, np.inf)
        self.cause = np.full(count, -1)
        self.found_at, self.verified_at = np.full(count, np.inf), np.full(count, np.inf)

    def corrupt(self, who: Ints, number: int, occurrence: Ints) -> None:
        """They are wrong from here on, if they were not."""
        state, pattern, cause = self.state, self.state.run.pattern, self.state.run.causes[number]
        fresh = np.isinf(self.since[who])
        who, occurrence = who[fresh], occurrence[fresh]
        at = state.at[who]
        self.cause[who] = number
        if pattern.verify:
            self.verified_at[who] = verified = pattern.next_verified(at)
            self.since[who] = np.maximum(at, pattern.begun(verified))
        else:
            self.since[who] = at
            self.found_at[who] = state.now[who] + state.lasts(cause, occurrence, who)

    def gone_back(self, who: Ints, target: Floats) -> None:
        """What is wrong since later than there is undone."""
        clean = who[self.since[who] >= target]
        self.since[clean] = self.found_at[clean] = self.verified_at[clean] = np.inf

    def clean(self, who: Ints) -> Floats:
        """Where a run goes back to: the latest snapshot from before that is still kept, or its begin."""
        pattern = self.state.run.pattern
        before = pattern.taken(self.since[who]) // pattern.cycles * pattern.cycles
        oldest = pattern.taken(self.state.target(who, STORAGE)) - (pattern.keep - 1) * pattern.cycles
        return np.where(before >= oldest, pattern.end(before), 0.0)
