"""Time account (seconds by category and cause) and event log of one simulated run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import simpy

from simcluster.longrun.long_run import FATES

TRAINING, STRIKE = "training", "strike"


class RunLogRow(NamedTuple):
    """Row of a simulated run's log: an activity of the job from ``begin`` to ``end`` (wall s), and its cause.

    ``part`` names the device, or the phase of a restart; ``at`` is the nominal time at the end; a row of training has
    the ``steps`` and ``snapshots`` in it. Rows without length are instants: a failure, or lost work.
    """

    begin: float
    end: float
    activity: str
    cause: str
    part: str
    at: float
    steps: float = 0.0
    snapshots: int = 0


class RunRecord:
    """Event log of one run, and the run's seconds by time category, cause and restart phase."""

    def __init__(self, env: simpy.Environment, names: Sequence[str], parts: Sequence[str]) -> None:
        self.env, self.names, self.part_names = env, names, list(parts)
        self.fates = np.zeros((1, len(FATES), len(names)))
        self.parts = np.zeros((1, len(self.part_names)))
        self.log: list[RunLogRow] = []
        self.strikes: list[RunLogRow] = []
        self._begun, self._doing = 0.0, ("", -1, "")

    def add_seconds(self, category: str, cause_id: int, seconds: float) -> None:
        """Add seconds to a time category (such as lost or restart), charged to a failure cause."""
        self.fates[0, FATES.index(category), cause_id] += seconds

    def log_lost_work(self, cause_id: int, seconds: float, at: float) -> None:
        """Log that a failure of a cause has undone ``seconds`` of training."""
        self.add_seconds("lost", cause_id, seconds)
        if seconds > 0:
            self.log.append(RunLogRow(self.env.now, self.env.now, "lost", self.names[cause_id], "", at))

    def log_failure(self, cause: str, at: float) -> None:
        """Log a failure of a cause."""
        self.strikes.append(RunLogRow(self.env.now, self.env.now, STRIKE, cause, "", at))

    def begin_standstill(self, category: str, cause_id: int, detail: str) -> None:
        """Record that training stops now: time category, cause, and the device or restart phase."""
        self._begun, self._doing = self.env.now, (category, cause_id, detail)

    def end_standstill(self, at: float) -> None:
        """Log the standstill that ends now, and count its duration in the time category and cause."""
        (fate, number, which), self._doing = self._doing, ("", -1, "")
        seconds = self.env.now - self._begun
        if not fate or seconds <= 0:
            return
        self.add_seconds(fate, number, seconds)
        if fate == "restart":
            self.parts[0, self.part_names.index(which)] += seconds
        self.log.append(RunLogRow(self._begun, self.env.now, fate, self.names[number], which, at))

    def log_training(self, row: RunLogRow) -> None:
        """Log a period of training, merged with the previous period if nothing interrupted training."""
        last = self.log[-1] if self.log else None
        if last and last.activity == row.activity == TRAINING and last[3:5] == row[3:5] and last.end == row.begin:
            row = row._replace(begin=last.begin, steps=last.steps + row.steps, snapshots=last.snapshots + row.snapshots)
            self.log.pop()
        self.log.append(row)
