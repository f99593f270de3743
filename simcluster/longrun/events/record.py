"""Time account and event log of one simulated run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import simpy

from simcluster.longrun.run import FATES

TRAINING, STRIKE = "training", "strike"


class RunRow(NamedTuple):
    """Row of a run's log: what the job did from ``begin`` to ``end`` (wall s), and for which cause.

    ``which`` names the device, or the phase of a restart; ``at`` is the nominal time at the end; a row of training has
    the ``steps`` and ``snapshots`` in it. Rows without length are instants: a failure, or lost work.
    """

    begin: float
    end: float
    what: str
    cause: str
    which: str
    at: float
    steps: float = 0.0
    snapshots: int = 0


class RunRecord:
    """Time account and event log of a run: seconds by category and cause, and by phase of a restart."""

    def __init__(self, env: simpy.Environment, names: Sequence[str], parts: Sequence[str]) -> None:
        self.env, self.names, self.part_names = env, names, list(parts)
        self.fates = np.zeros((1, len(FATES), len(names)))
        self.parts = np.zeros((1, len(self.part_names)))
        self.log: list[RunRow] = []
        self.strikes: list[RunRow] = []
        self._begun, self._doing = 0.0, ("", -1, "")

    def add_seconds(self, fate: str, number: int, seconds: float) -> None:
        """Add seconds to a time category, charged to cause ``number``."""
        self.fates[0, FATES.index(fate), number] += seconds

    def log_lost_work(self, number: int, seconds: float, at: float) -> None:
        """Log that a failure of cause ``number`` has undone ``seconds`` of training."""
        self.add_seconds("lost", number, seconds)
        if seconds > 0:
            self.log.append(RunRow(self.env.now, self.env.now, "lost", self.names[number], "", at))

    def log_failure(self, cause: str, at: float) -> None:
        """Log a failure of a cause."""
        self.strikes.append(RunRow(self.env.now, self.env.now, STRIKE, cause, "", at))

    def begin_standstill(self, fate: str, number: int, which: str) -> None:
        """Record that the job stops training now, the time category, and the cause."""
        self._begun, self._doing = self.env.now, (fate, number, which)

    def end_standstill(self, at: float) -> None:
        """Log the time without training that ends now."""
        (fate, number, which), self._doing = self._doing, ("", -1, "")
        seconds = self.env.now - self._begun
        if not fate or seconds <= 0:
            return
        self.add_seconds(fate, number, seconds)
        if fate == "restart":
            self.parts[0, self.part_names.index(which)] += seconds
        self.log.append(RunRow(self._begun, self.env.now, fate, self.names[number], which, at))

    def log_training(self, row: RunRow) -> None:
        """Log a period of training, merged with the previous one if nothing came between."""
        last = self.log[-1] if self.log else None
        if last is not None and last.what == row.what == TRAINING and last[3:5] == row[3:5] and last.end == row.begin:
            row = row._replace(begin=last.begin, steps=last.steps + row.steps, snapshots=last.snapshots + row.snapshots)
            self.log.pop()
        self.log.append(row)
