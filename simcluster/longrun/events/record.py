"""The account of one run, its log, and its way along the checkpoint pattern."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import simpy

from simcluster.longrun.pattern import MEMORY, STORAGE, CheckpointPattern
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
        """Seconds of a fate, by a cause."""
        self.fates[0, FATES.index(fate), number] += seconds

    def lost(self, number: int, seconds: float, at: float) -> None:
        """So much training has been undone by a cause."""
        self.add("lost", number, seconds)
        if seconds > 0:
            self.log.append(RunRow(self.env.now, self.env.now, "lost", self.names[number], "", at))

    def struck(self, cause: str, at: float) -> None:
        """A cause has struck."""
        self.strikes.append(RunRow(self.env.now, self.env.now, STRIKE, cause, "", at))

    def begin(self, fate: str, number: int, which: str) -> None:
        """The job stands from now on."""
        self._begun, self._doing = self.env.now, (fate, number, which)

    def end(self, at: float) -> None:
        """It stands no longer, or for something else: what it stood for is written down."""
        (fate, number, which), self._doing = self._doing, ("", -1, "")
        seconds = self.env.now - self._begun
        if not fate or seconds <= 0:
            return
        self.add(fate, number, seconds)
        if fate == "restart":
            self.parts[0, self.part_names.index(which)] += seconds
        self.log.append(RunRow(self._begun, self.env.now, fate, self.names[number], which, at))

    def trained(self, row: RunRow) -> None:
        """A piece of training; where nothing has come between, it goes on what was written down before."""
        last = self.log[-1] if self.log else None
        if last is not None and last.what == row.what == TRAINING and last[3:5] == row[3:5] and last.end == row.begin:
            row = row._replace(begin=last.begin, steps=last.steps + row.steps, snapshots=last.snapshots + row.snapshots)
            self.log.pop()
        self.log.append(row)


_NAMES = {"stall": "checkpoint", "verify": "verification"}
Phase = tuple[str, float, float]


class PatternWalk:
    """Where the job is: ``snapshot`` is the last that was taken, ``safe[level]`` the last that is there.

    With ``detail`` every phase on the way is told; without, cycles that lie wholly before the aim are jumped over.
    """

    def __init__(self, pattern: CheckpointPattern, goal: float, *, detail: bool = False) -> None:
        self.pattern, self.detail = pattern, detail
        self.goal_at = pattern.at_steps(goal) if math.isfinite(goal) else math.inf
        self.last = int(goal // pattern.steps) if math.isfinite(goal) else math.inf
        self.phases = [[(what, seconds) for what, seconds, _ in cycle] for cycle in pattern.phases]
        self.ends = [float(end) for end in pattern.ends]
        self.at, self.snapshot, self.safe = 0.0, 0, [0, 0]
        self.phase, self.until = 0, self.phases[0][0][1]  # the phase that is going on, and when it ends

    def to(self, at: float) -> list[Phase]:
        """What is done on the way there: (what, begin, end) on the nominal clock; nothing without ``detail``."""
        told: list[Phase] = []
        if not self.detail:
            self._jump(at)
        while True:
            what, _ = self.phases[self.snapshot % len(self.phases)][self.phase]
            end = min(self.until, at)
            if self.detail and end > self.at:
                told += self._named(what, self.at, end)
            self.at = end
            if self.until > at:
                return told
            if what == "write":
                self._is_safe(self.snapshot)
            if self.phase == 3:
                self.snapshot, self.phase = self.snapshot + 1, 0
            else:
                self.phase += 1
            self.until += self.phases[self.snapshot % len(self.phases)][self.phase][1]

    def _is_safe(self, snapshot: int) -> None:
        """Its write is done; the last of the run is written by the closing checkpoint."""
        if snapshot <= self.last:
            self.safe[MEMORY] = max(snapshot, self.safe[MEMORY])
            if snapshot % len(self.phases) == 0:
                self.safe[STORAGE] = max(snapshot, self.safe[STORAGE])

    def _jump(self, at: float) -> None:
        """To the cycle before the one that is going on there; a write is done before the next snapshot is taken."""
        cycles = len(self.phases)
        whole = int(at // self.pattern.period)
        snapshot = whole * cycles + bisect_right(self.ends, at - whole * self.pattern.period) - 2
        if snapshot > self.snapshot:
            before = min(snapshot - 1, self.last)
            for safe in (before, before // cycles * cycles):
                if safe >= self.snapshot:
                    self._is_safe(int(safe))
            self._begin(snapshot)

    def _begin(self, snapshot: int) -> None:
        cycles = len(self.phases)
        self.at = snapshot // cycles * self.pattern.period + self.ends[snapshot % cycles]
        self.snapshot, self.phase = snapshot, 0
        self.until = self.at + self.phases[snapshot % cycles][0][1]

    def _named(self, what: str, begin: float, end: float) -> list[Phase]:
        """Work beyond the last step is its checkpoint."""
        told = []
        if begin < self.goal_at:
            told.append((_NAMES.get(what, what), begin, min(end, self.goal_at)))
        if end > self.goal_at:
            told.append(("checkpoint", max(begin, self.goal_at), end))
        return told

    def back(self, snapshot: int) -> float:
        """To the end of a snapshot: when that was."""
        self._begin(snapshot)
        self.safe = [min(safe, snapshot) for safe in self.safe]
        return self.at
