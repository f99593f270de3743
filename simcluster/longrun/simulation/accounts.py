"""Time accounts (seconds by category and cause) of compiled simulated runs, as flat arrays with a row per run."""

from __future__ import annotations

import cython
import numpy as np

from simcluster.base.arrays import Floats
from simcluster.longrun.long_run import FATES, LongRun, RunOutcomes, cause_names

if not cython.compiled:
    from simcluster.base.pointers import doubles, ints


class Accounts:
    """Seconds by time category and cause, and failure counts, of simulated runs; ``row`` is the current run's row.

    ``weeks`` has, for each run so far, the nominal times at the ends of its weeks.
    """

    def __init__(self, run: LongRun, count: int) -> None:
        self.run, self.names, self.parts_of_restart = run, len(cause_names(run)), len(run.restart)
        self.row = 0
        shapes = {"wall": (), "at": (), "fates": (len(FATES), self.names), "parts": (self.parts_of_restart,)}
        self.columns = {name: np.zeros((count, *shape)) for name, shape in shapes.items()}
        self.counts = {name: np.zeros((count, self.names), dtype=np.int32) for name in ("strikes", "outages")}
        self.wall, self.at = doubles(self.columns["wall"]), doubles(self.columns["at"])
        self.fates, self.parts = doubles(self.columns["fates"]), doubles(self.columns["parts"])
        self.strikes, self.outages = ints(self.counts["strikes"]), ints(self.counts["outages"])
        self.weeks: list[list[float]] = []

    def add_seconds(self, fate: cython.int, cause: cython.int, seconds: cython.double) -> cython.void:
        """Add seconds to a time category (such as lost or restart) of the current run, charged to a cause."""
        self.fates[(self.row * 8 + fate) * self.names + cause] += seconds

    def count_event(self, counts: cython.p_int, cause: cython.int) -> cython.int:
        """Count a failure or outage of a cause in the current run; return how many the run had before."""
        place: cython.int = self.row * self.names + cause
        counts[place] += 1
        return counts[place] - 1

    def outcomes(self) -> RunOutcomes:
        """Return the outcomes of all runs."""
        weekly = np.full((len(self.weeks), max(map(len, self.weeks), default=0)), np.nan)
        for row, weeks in zip(weekly, self.weeks, strict=True):
            row[: len(weeks)] = weeks
        there = ~np.isnan(weekly)
        weekly[there] = self._kept_steps(weekly[there])
        strikes, outages = (counts.astype(np.int64) for counts in self.counts.values())
        return RunOutcomes(
            self.run, steps=self._kept_steps(self.columns["at"]), weekly=weekly, **self.columns,
            strikes=strikes[:, : len(self.run.causes)], outages=outages,
        )  # fmt: skip

    def _kept_steps(self, at: Floats) -> Floats:
        return np.minimum(
            self.run.pattern.total_until("steps", np.minimum(at, self.run.goal_nominal_time)), self.run.goal
        )
