"""What came of runs: wall time, steps, and what became of every second, by run; the same from both simulations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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

    def columns(self) -> dict[str, Any]:
        """All that came of the runs, by field: what is sent and kept."""
        return {name: getattr(self, name) for name in (*_COLUMNS, "weekly")}

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
            "validation": pattern.validation * pattern.spent("steps", until),
        }
        productive = self.at - sum(own.values())
        return (
            {"productive": productive}
            | own
            | {fate: self.fates[:, number].sum(axis=1) for number, fate in enumerate(FATES)}
        )


_COLUMNS = ("wall", "at", "steps", "fates", "parts", "strikes", "outages")


class GatheredOutcomes:
    """Room for the outcomes of ``count`` runs, which come in chunks, in any order, and are not held twice."""

    def __init__(self, run: LongRun, count: int) -> None:
        self._run, self._count = run, count
        self._found: dict[str, Any] = {}
        self._weekly: dict[int, Floats] = {}

    def add(self, first: int, chunk: Mapping[str, Any]) -> None:
        """The runs from ``first`` on: fields of ``Outcomes`` by name."""
        for name in _COLUMNS:
            rows = chunk[name]
            if name not in self._found:
                self._found[name] = np.empty((self._count, *rows.shape[1:]), rows.dtype)
            self._found[name][first : first + len(rows)] = rows
        self._weekly[first] = chunk["weekly"]

    def outcomes(self) -> Outcomes:
        """All of them, once all are there."""
        weekly = np.full((self._count, max(rows.shape[1] for rows in self._weekly.values())), np.nan)
        for first, rows in self._weekly.items():
            weekly[first : first + len(rows), : rows.shape[1]] = rows
        return Outcomes(self._run, weekly=weekly, **self._found)
