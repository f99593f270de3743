"""The bubble that a schedule has by itself: what its formula says, to be held against a replayed step's.  Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simcluster.schedules.actions import Schedule
from simcluster.schedules.timing import EqualCosts, play

_EQUAL = EqualCosts(F=1, B=2, I=1, W=1)
"""Passes that are alike on every stage and chunk, as schedules are usually drawn."""


@dataclass(frozen=True, slots=True)
class OwnBubble:
    """Idle part of the makespan, mean over stages; ``formula`` is its closed form for any F and B, "" where there is
    none.  P, M and v are stages, microbatches and chunks a stage."""

    fraction: float
    formula: str

    def describe(self) -> str:
        """In words: 3.5% by the schedule alone, (P-1)/(vM+P-1)."""
        return f"{self.fraction:.1%} by the schedule alone" + (f", {self.formula}" if self.formula else "")


def own_bubble(schedule: Schedule) -> OwnBubble:
    """The schedule played with equal passes (F = I = W, B = 2 F) and nothing else: no messages, no optimizer.

    >>> from simcluster.schedules import gpipe
    >>> own_bubble(gpipe(4, 12)).describe()
    '20.0% by the schedule alone, (P-1)/(M+P-1)'
    """
    stages, microbatches, chunks = schedule.num_stages, schedule.num_microbatches, schedule.num_chunks
    fraction = float(play(schedule, _EQUAL).bubble_over_total)
    whole = all(action.kind in "FB" for row in schedule.rows for action in row)
    known = (stages - 1) / (chunks * microbatches + stages - 1)
    if stages == 1 or not whole or not math.isclose(fraction, known, rel_tol=1e-12):
        return OwnBubble(fraction, "")
    return OwnBubble(fraction, "(P-1)/(M+P-1)" if chunks == 1 else "(P-1)/(vM+P-1)")
