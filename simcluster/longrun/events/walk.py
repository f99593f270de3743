"""The way of a job along its checkpoint pattern, one phase after the other."""

from __future__ import annotations

import math
from bisect import bisect_right

from simcluster.longrun.pattern import MEMORY, STORAGE, CheckpointPattern

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
        """The cycle after that snapshot begins."""
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
