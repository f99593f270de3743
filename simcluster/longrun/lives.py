"""Lives of many equal parts, each with an age of its own: when they end, one after the other.

A part that fails is replaced by a new one; all others grow older.  To renew all of them at each failure, as a single
Weibull gap for the whole job does, is wrong by a factor N^(1/k - 1): 26 for 2,048 parts of shape 0.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.scenario.run_times import WeibullTime

_AGES, _GRID = 64, 4096


@dataclass(frozen=True)
class Lives:
    """``count`` parts with independent lives of a Weibull ``law``, in seconds of exposed time.

    Their ages when the run begins lie evenly from ``youngest`` to ``oldest`` (s).
    """

    count: int
    law: WeibullTime
    youngest: float = 0.0
    oldest: float = 0.0

    @cached_property
    def table(self) -> tuple[Floats, Floats]:
        """(seconds from now, hazard that a part drawn at random has gone through by then)."""
        ages = self.youngest + (self.oldest - self.youngest) * (np.arange(_AGES) + 0.5) / _AGES
        scale, shape = self.law.scale, self.law.shape
        ages = np.unique(ages)
        at = scale * np.concatenate([[0.0], np.logspace(-12, 2, _GRID)])
        left = np.exp(-(((ages[:, None] + at) / scale) ** shape) + (ages[:, None] / scale) ** shape).mean(axis=0)
        kept = left > 0
        return at[kept], -np.log(left[kept])

    def later(self, since: Floats, hazard: Floats) -> Floats:
        """When a part has gone through so much more hazard than at ``since``."""
        if self.youngest == self.oldest:  # in closed form
            scale, shape, age = self.law.scale, self.law.shape, self.youngest
            return scale * (((age + since) / scale) ** shape + hazard) ** (1 / shape) - age
        at, known = self.table
        return np.interp(np.interp(since, at, known) + hazard, known, at)

    def first(self, since: Floats, failed: Floats, unit: Floats) -> Floats:
        """When the next of those that have been there from the begin ends: order statistics, one after the other.

        ``failed`` of them have ended before ``since``; ``unit`` are exponential numbers of mean 1.  inf: none is left.
        """
        left = self.count - failed
        return np.where(left > 0, self.later(since, unit / np.maximum(left, 1)), np.inf)
