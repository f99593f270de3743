"""Best-first order of layouts: by ascending lower bounds, which are made tighter as late as possible."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simcluster.base.errors import InputError
from simcluster.studies.search.bound import Bounds
from simcluster.studies.search.memory import LayoutMemory
from simcluster.studies.search.space import REASONS, Layout, broken_keys

FULL = "too much memory: what its schedule keeps"
_NARROWER = 0.95  # of the memory of a point of the front: the next one's
_TIGHTEST = 2  # how often a bound can be made tighter
ROOMY = "has been searched: it holds less"
NO_ROOM = "too much memory: model state and the first forwards alone"


class Candidate(NamedTuple):
    """A layout to simulate: its number, and least score."""

    number: int
    layout: Layout
    bound: float


class Evaluator(NamedTuple):
    """Evaluator of one search space: bounds and memory of its layouts, which share nothing with those of another."""

    bounds: Bounds
    memory: LayoutMemory

    def broken(self, layout: Layout) -> str:
        """The key of the first rule that the laid-out scenario breaks, "" for none: asked of those that are to be
        played only."""
        return next(iter(broken_keys(layout.on(self.bounds.base))), "")


@dataclass
class BoundCache:
    """A cache of bounds: what has been found out of layouts, by number; searches of the same layouts share it.

    ``judge`` says whose bounds and memory are asked for a layout, ``score`` what a step's seconds are worth to the
    objective.  ``bounds`` are (least score, how many times it was made tighter).
    """

    layouts: Sequence[Layout]
    judge: Callable[[Layout], Evaluator]
    score: Callable[[Layout, float], float]

    def __post_init__(self) -> None:
        self.floors = [self.judge(layout).memory.floor(layout) for layout in self.layouts]
        self.bounds: dict[int, tuple[float, int]] = {}
        self._wrong: dict[object, str] = {}

    def first(self, number: int) -> tuple[float, int]:
        """What is known of a bound; the outline at least."""
        if number not in self.bounds:
            layout = self.layouts[number]
            self.bounds[number] = self.score(layout, self.judge(layout).bounds.outline(layout)), 0
        return self.bounds[number]

    def tighter(self, number: int) -> tuple[float, int]:
        """The next tighter bound, never below the one before."""
        (before, level), layout = self.bounds[number], self.layouts[number]
        bounds = self.judge(layout).bounds
        seconds = (bounds.with_ends, bounds.with_schedule)[level](layout)
        self.bounds[number] = max(before, self.score(layout, seconds)), level + 1
        return self.bounds[number]

    def reason(self, layout: Layout) -> str:
        """Why a layout turns out to be illegal, "" if it does not: asked of those that are to be played only.

        All other rules have been asked (``space``); what is left depends on the schedule as it is made.
        """
        spread = layout.cp, layout.ep, layout.etp
        schedule = layout.micro_batch, layout.schedule, layout.chunks
        name = layout.gpus, layout.pp, layout.dp, *schedule, layout.zero, *spread
        if name not in self._wrong:
            key = self.judge(layout).broken(layout)
            self._wrong[name] = REASONS.get(key, key)
        return self._wrong[name]

    def most(self, number: int) -> float:
        """Bytes that a layout holds on its fullest GPU."""
        layout = self.layouts[number]
        return self.judge(layout).memory.most(layout)


def narrower(known: BoundCache, number: int) -> float:
    """Return the bytes that the point of a front after a layout may hold."""
    return _NARROWER * known.most(number)


class Frontier:
    """The layouts that may fit in so many bytes and hold more than ``above``, lowest bound first."""

    def __init__(self, known: BoundCache, capacity: float, above: float = 0.0) -> None:
        self._known, self._capacity, self._above = known, capacity, above
        fitting = [number for number, floor in enumerate(known.floors) if floor <= capacity]
        self._heap = [(*known.first(number), number) for number in fitting]
        heapq.heapify(self._heap)
        self._possible: dict[int, None] = {}  # those that are known to fit, and to be legal
        self.refused: list[tuple[float, str]] = []  # least score and reason of those that turned out to be impossible

    @property
    def layouts(self) -> Sequence[Layout]:
        """All that are known, by their numbers."""
        return self._known.layouts

    def next(self, limit: float, between: Callable[[], object] = lambda: None) -> Candidate | None:
        """The next to be played; None if all that are left are bound to be ``limit`` or more.  ``between`` is called
        whenever one was made tighter: that can take seconds."""
        known = self._known
        while self._heap and self._heap[0][0] < limit:
            bound, level, number = heapq.heappop(self._heap)
            if level > 0 and number not in self._possible:
                if reason := self._impossible(number):
                    self.refused.append((bound, reason))
                    continue
                self._possible[number] = None
            if level == _TIGHTEST:
                return Candidate(number, known.layouts[number], bound)
            heapq.heappush(self._heap, (*known.tighter(number), number))
            between()
        return None

    def refuse(self, candidate: Candidate, reason: str) -> None:
        """A candidate that cannot be played."""
        self.refused.append((candidate.bound, reason))

    @property
    def lowest(self) -> float:
        """The least score of all that have not been asked for; inf if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    @property
    def left(self) -> list[tuple[float, int]]:
        """Least scores and numbers of all that were never asked for."""
        return [(bound, number) for bound, _, number in self._heap]

    def _impossible(self, number: int) -> str:
        known, layout = self._known, self._known.layouts[number]
        if reason := known.reason(layout):
            return reason
        try:
            most = known.most(number)
            if most > self._capacity:
                return FULL
            return ROOMY if self._above and most <= self._above else ""
        except InputError:
            return REASONS["pipeline.schedule"]
