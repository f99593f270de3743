"""The way of a job along its checkpoint pattern, one phase after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator

from simcluster.longrun.pattern import MEMORY, STORAGE, CheckpointPattern

_NAMES = {"stall": "checkpoint", "verify": "verification"}


class PatternWalk:
    """Where the job is: ``snapshot`` is the last that was taken, ``safe[level]`` the last that is there.

    ``phase`` is the number of the phase that is going on, which ends at ``until`` on the nominal clock.
    """

    def __init__(self, pattern: CheckpointPattern, goal: float) -> None:
        self.pattern, self.goal = pattern, goal
        self.goal_at = pattern.at_steps(goal) if math.isfinite(goal) else math.inf
        self.last = int(goal // pattern.steps) if math.isfinite(goal) else math.inf
        self.phases = [[(what, seconds) for what, seconds, _ in cycle] for cycle in pattern.phases]
        self.at, self.snapshot, self.phase, self.until = 0.0, 0, 0, self.phases[0][0][1]
        self.safe = [0, 0]

    def to(self, at: float) -> Iterator[tuple[str, float, float]]:
        """What is done on the way there: (what, begin, end) on the nominal clock."""
        cycles = len(self.phases)
        while True:
            what, _ = self.phases[self.snapshot % cycles][self.phase]
            end = min(self.until, at)
            if end > self.at:
                yield from self._named(what, self.at, end)
            self.at = end
            if self.until > at:
                return
            if what == "write" and self.snapshot <= self.last:
                self.safe[MEMORY] = max(self.snapshot, self.safe[MEMORY])
                if self.snapshot % cycles == 0:
                    self.safe[STORAGE] = max(self.snapshot, self.safe[STORAGE])
            if self.phase == 3:
                self.snapshot, self.phase = self.snapshot + 1, 0
            else:
                self.phase += 1
            self.until += self.phases[self.snapshot % cycles][self.phase][1]

    def _named(self, what: str, begin: float, end: float) -> Iterator[tuple[str, float, float]]:
        """Work beyond the last step is its checkpoint."""
        if begin < self.goal_at:
            yield _NAMES.get(what, what), begin, min(end, self.goal_at)
        if end > self.goal_at:
            yield "checkpoint", max(begin, self.goal_at), end

    def back(self, snapshot: int) -> float:
        """To the end of a snapshot: when that was."""
        cycles = len(self.phases)
        self.at = snapshot // cycles * self.pattern.period + float(self.pattern.ends[snapshot % cycles])
        self.snapshot, self.phase = snapshot, 0
        self.until = self.at + self.phases[snapshot % cycles][0][1]
        self.safe = [min(safe, snapshot) for safe in self.safe]
        return self.at
