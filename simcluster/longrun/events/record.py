"""The account of one run, and its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import simpy

from simcluster.longrun.run import FATES

TRAINING, STRIKE = "training", "strike"


class RunRow(NamedTuple):
    """What the job did from ``begin`` to ``end`` (wall seconds), by which ``cause``, on ``which`` named part.

    ``at`` is where on the nominal clock it was at the end; a row of training has the ``steps`` and ``snapshots`` in it.
    Rows without length are instants: a cause strikes, work is lost.
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
    """The account of a run and its log; ``names`` are the causes, ``parts`` those of a restart."""

    def __init__(self, env: simpy.Environment, names: Sequence[str], parts: Sequence[str]) -> None:
        self.env, self.names, self.part_names = env, names, list(parts)
        self.fates = np.zeros((1, len(FATES), len(names)))
        self.parts = np.zeros((1, len(self.part_names)))
        self.log: list[RunRow] = []
        self.strikes: list[RunRow] = []
        self._begun, self._doing = 0.0, ("", -1, "")

    def add(self, fate: str, number: int, seconds: float) -> None:
        """Add seconds of a fate, by a cause."""
        self.fates[0, FATES.index(fate), number] += seconds

    def lost(self, number: int, seconds: float, at: float) -> None:
        """Log that a cause has undone training (s)."""
        self.add("lost", number, seconds)
        if seconds > 0:
            self.log.append(RunRow(self.env.now, self.env.now, "lost", self.names[number], "", at))

    def struck(self, cause: str, at: float) -> None:
        """Log a strike of a cause."""
        self.strikes.append(RunRow(self.env.now, self.env.now, STRIKE, cause, "", at))

    def begin(self, fate: str, number: int, which: str) -> None:
        """Note that the job stands from now on."""
        self._begun, self._doing = self.env.now, (fate, number, which)

    def end(self, at: float) -> None:
        """Log what the job stood for, which is over now."""
        (fate, number, which), self._doing = self._doing, ("", -1, "")
        seconds = self.env.now - self._begun
        if not fate or seconds <= 0:
            return
        self.add(fate, number, seconds)
        if fate == "restart":
            self.parts[0, self.part_names.index(which)] += seconds
        self.log.append(RunRow(self._begun, self.env.now, fate, self.names[number], which, at))

    def trained(self, row: RunRow) -> None:
        """Log a stretch of training; where nothing has come between, extend the stretch before."""
        last = self.log[-1] if self.log else None
        if last is not None and last.what == row.what == TRAINING and last[3:5] == row[3:5] and last.end == row.begin:
            row = row._replace(begin=last.begin, steps=last.steps + row.steps, snapshots=last.snapshots + row.snapshots)
            self.log.pop()
        self.log.append(row)
