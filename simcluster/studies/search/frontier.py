"""Best-first order of layouts by lower bounds, tightened as late as possible, and the ranking of results."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simcluster.base.errors import InputError
from simcluster.studies.search.bound import Bounds
from simcluster.studies.search.layout import Layout
from simcluster.studies.search.memory import LayoutMemory
from simcluster.studies.search.space import CAUSE, find_broken_keys

FULL = "too much memory: what its schedule keeps"
ROOMY = "has been searched: it holds less"
NO_ROOM = "too much memory: model state and the first forwards alone"
_FRONT_MEMORY_FACTOR = 0.95  # of the memory of a point of the front: the next one's
_TIGHTEST_LEVEL = 2  # how often a bound can be tightened


class Candidate(NamedTuple):
    """A layout to simulate: its number and the lower bound of its score."""

    number: int
    layout: Layout
    bound: float


class Evaluator(NamedTuple):
    """Bounds and memory of the layouts of one search space."""

    bounds: Bounds
    memory: LayoutMemory


@dataclass
class BoundCache:
    """Cached score bounds, memory floors and rule checks of layouts, by number.

    Searches of the same layouts share it. ``judge`` returns the evaluator of a layout, ``score`` the value of a step's
    seconds to the objective. ``bounds`` are (least score, how many times it was tightened).
    """

    layouts: Sequence[Layout]
    judge: Callable[[Layout], Evaluator]
    score: Callable[[Layout, float], float]

    def __post_init__(self) -> None:
        self.floors = [self.judge(layout).memory.floor(layout) for layout in self.layouts]
        self.bounds: dict[int, tuple[float, int]] = {}
        self._wrong: dict[object, str] = {}

    def first(self, number: int) -> tuple[float, int]:
        """Return the cached bound of a layout's score and its level, computed by the outline if missing."""
        if number not in self.bounds:
            layout = self.layouts[number]
            self.bounds[number] = self.score(layout, self.judge(layout).bounds.outline(layout)), 0
        return self.bounds[number]

    def tighter(self, number: int) -> tuple[float, int]:
        """Tighten the bound of a layout's score by one level; return it, never below the previous one."""
        (before, level), layout = self.bounds[number], self.layouts[number]
        bounds = self.judge(layout).bounds
        seconds = (bounds.with_ends, bounds.with_schedule)[level](layout)
        self.bounds[number] = max(before, self.score(layout, seconds)), level + 1
        return self.bounds[number]

    def reason(self, layout: Layout) -> str:
        """Return why a layout is illegal, "" for a legal one.

        All other rules have been checked (``space``); the remaining ones depend on the schedule as it is made, and are
        checked for layouts that are to be simulated.
        """
        name = layout._replace(tp=0, sequence_parallel=False, recompute="", cp_comm="", order=())
        if name not in self._wrong:
            key = next(iter(find_broken_keys(layout.on(self.judge(layout).bounds.base))), "")
            self._wrong[name] = CAUSE.get(key, key)
        return self._wrong[name]

    def most(self, number: int) -> float:
        """Return the planned bytes on the fullest GPU of a layout."""
        layout = self.layouts[number]
        return self.judge(layout).memory.most(layout)

    def fits(self, number: int, capacity: float) -> bool:
        """Return whether a layout is legal and needs at most ``capacity`` bytes per GPU."""
        try:
            within = self.floors[number] <= capacity and not self.reason(self.layouts[number])
            return within and self.most(number) <= capacity
        except InputError:
            return False

    def narrower(self, number: int) -> float:
        """Return the memory limit (bytes) of the next point of the memory front after this layout."""
        return _FRONT_MEMORY_FACTOR * self.most(number)


class Frontier:
    """Queue of the layouts that may need between ``above`` and ``capacity`` bytes per GPU, lowest bound first.

    ``refused`` has least score and reason of those that turned out to be impossible.
    """

    def __init__(self, known: BoundCache, capacity: float, above: float = 0.0) -> None:
        self._known, self._capacity, self._above = known, capacity, above
        self._heap = [(*known.first(number), number) for number, floor in enumerate(known.floors) if floor <= capacity]
        heapq.heapify(self._heap)
        self._possible: set[int] = set()
        self.refused: list[tuple[float, str]] = []

    def next(self, limit: float, between: Callable[[], object] = lambda: None) -> Candidate | None:
        """Return the next layout to simulate; None if all remaining bounds are ``limit`` or more.

        ``between`` is called whenever a bound was tightened, which can take seconds.
        """
        known = self._known
        while self._heap and self._heap[0][0] < limit:
            bound, level, number = heapq.heappop(self._heap)
            if level > 0 and number not in self._possible:
                if reason := self._why_impossible(number):
                    self.refused.append((bound, reason))
                    continue
                self._possible.add(number)
            if level == _TIGHTEST_LEVEL:
                return Candidate(number, known.layouts[number], bound)
            heapq.heappush(self._heap, (*known.tighter(number), number))
            between()
        return None

    @property
    def lowest(self) -> float:
        """Least score bound of the remaining layouts; inf if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    @property
    def left(self) -> list[tuple[float, int]]:
        """Score bounds and numbers of the remaining layouts."""
        return [(bound, number) for bound, _, number in self._heap]

    def _why_impossible(self, number: int) -> str:
        if reason := self._known.reason(self._known.layouts[number]):
            return reason
        try:
            most = self._known.most(number)
        except InputError:
            return CAUSE["pipeline.schedule"]
        return FULL if most > self._capacity else ROOMY if self._above and most <= self._above else ""


class Ranking:
    """Ranking of simulated layouts by score; of several layouts of one program, the first number is shown.

    ``top`` of them are wanted, with scores below ``below``.
    """

    def __init__(self, layouts: Sequence[Layout], top: int, below: float = float("inf")) -> None:
        self._layouts, self._top, self._below = layouts, top, below
        self._scores: list[tuple[float, int]] = []
        self._best: list[tuple[float, int]] | None = []  # None: another one has been added since

    def add(self, score: float, number: int) -> None:
        """Add a simulated layout."""
        if score < self._below and (score, number) not in self._scores:
            insort(self._scores, (score, number))
            self._best = None

    @property
    def best(self) -> list[tuple[float, int]]:
        """Scores and numbers of the best layouts, best first."""
        if self._best is None:
            found: dict[object, tuple[float, int]] = {}
            for score, number in self._scores:
                found.setdefault((self._layouts[number].unordered, score), (score, number))
                if len(found) == self._top:
                    break
            self._best = list(found.values())
        return self._best

    @property
    def limit(self) -> float:
        """Score below which another layout would be among the best."""
        return self.best[-1][0] if len(self.best) == self._top else self._below


def find_rivals(layouts: Sequence[Layout], scores: Mapping[int, float], winner: int, *, next_too: bool) -> list[int]:
    """Return the numbers of the best layouts whose tp, or whose pp, differs from the winner's.

    With ``next_too`` the best of another program than the winner's comes before them. ``scores`` are those of the
    layouts that had to be simulated.
    """
    ordered, own = sorted(scores, key=lambda number: (scores[number], number)), layouts[winner]
    others = [[each for each in ordered if getattr(layouts[each], axis) != getattr(own, axis)] for axis in ("tp", "pp")]
    if next_too:
        mine = own.unordered, scores[winner]
        others.insert(0, [each for each in ordered if (layouts[each].unordered, scores[each]) != mine])
    return [some[0] for some in others if some]
