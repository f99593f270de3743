"""What came of runs: wall time, steps, and what became of every second, by run; the same from both players."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.longrun.run import FATES, LongRun

MAINTENANCE, REGROWTH = "maintenance", "machines missing"
"""What outages are counted under that no cause of the run has: planned work, and replicas that come and go."""


def names_of(run: LongRun) -> list[str]:
    """The causes that seconds are counted under."""
    return [*(cause.name for cause in run.causes), MAINTENANCE, REGROWTH]


@dataclass
class Outcomes:
    """What came of runs, one a row: ``wall`` seconds, ``at`` on the nominal clock, ``steps`` that are kept.

    ``fates[run, fate, cause]`` and ``parts[run, part]`` of restarts are seconds; ``strikes`` and ``outages`` are counts
    by cause (outages also by ``MAINTENANCE`` and ``REGROWTH``, last); ``weekly[run, week]`` are the steps kept at the
    end of each week that the run has reached (nan: it has not).
    """

    run: LongRun
    wall: Floats
    at: Floats
    steps: Floats
    fates: Floats
    parts: Floats
    strikes: Ints
    outages: Ints
    weekly: Floats

    def spent(self) -> dict[str, Floats]:
        """Seconds of each run by fate: they sum to ``wall``."""
        pattern, goal = self.run.pattern, self.run.goal_at
        until = np.minimum(self.at, goal)
        closing = self.at - until
        verified = np.minimum(closing, pattern.verify)
        stalled = np.minimum(closing - verified, pattern.storage.stall)
        own = {
            "checkpoint": pattern.spent("stall", until) + stalled,
            "write": pattern.spent("write", until) + closing - verified - stalled,
            "verification": pattern.spent("verify", until) + verified,
        }
        productive = self.at - sum(own.values())
        return (
            {"productive": productive}
            | own
            | {fate: self.fates[:, number].sum(axis=1) for number, fate in enumerate(FATES)}
        )

    def joined(self, other: Outcomes) -> Outcomes:
        """Both, one after the other."""
        weeks = max(self.weekly.shape[1], other.weekly.shape[1])
        fields = ("wall", "at", "steps", "fates", "parts", "strikes", "outages")
        both = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in fields}
        padded = [
            np.pad(each.weekly, ((0, 0), (0, weeks - each.weekly.shape[1])), constant_values=np.nan)
            for each in (self, other)
        ]
        return Outcomes(self.run, weekly=np.concatenate(padded), **both)
