"""Strikes at given times: what a log says of one cause, played again."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class StrikeTimes:
    """When a cause struck: ``at``, ascending, in seconds of its exposed time; no more after the last.

    ``lasts`` is how long each lasted, s (nan, or left out: drawn by the cause's law).
    """

    at: tuple[float, ...]
    lasts: tuple[float, ...] = ()

    def gap(self, occurrence: int) -> float:
        """Exposed seconds from the strike before (or the begin) to this one; inf where there is none."""
        if occurrence >= len(self.at):
            return math.inf
        return self.at[occurrence] - (self.at[occurrence - 1] if occurrence else 0.0)

    def lasted(self, occurrence: int) -> float:
        """How long that one lasted, s; nan where nobody says."""
        return self.lasts[occurrence] if occurrence < len(self.lasts) else math.nan
