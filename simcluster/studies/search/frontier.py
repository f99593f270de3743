"""Queue of layouts by the lower bound of their score, and the ranking of simulated layouts by score."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simcluster.base.errors import InputError
from simcluster.studies.search.layout import Layout
from simcluster.studies.search.layout_memory import LayoutMemory
from simcluster.studies.search.layout_space import CAUSE, find_broken_keys
from simcluster.studies.search.step_time_bounds import StepTimeBounds

FULL = "too much memory for the activations that the schedule keeps"
ROOMY = "already searched with the lower memory limit"
NO_ROOM = "too much memory for the model state and the activations of the first forwards"
_FRONT_MEMORY_FACTOR = 0.95  # of the memory of a point of the front: the next one's
_TIGHTEST_LEVEL = 2  # how often a bound can be tightened


class LayoutCandidate(NamedTuple):
    """A layout to be simulated: its number and the lower bound of its score."""

    number: int
    bound: float


class LayoutEvaluator(NamedTuple):
    """Calculators of the step-time bounds and memory of all layouts with the same number of GPUs."""

    bounds: StepTimeBounds
    memory: LayoutMemory


@dataclass
class BoundCache:
    """Cache of the score bounds, memory bounds and rule checks of layouts, by layout number.

    Searches of the same layouts share it. ``evaluator_of`` returns the evaluator of a layout, ``score`` the value of a
    step's seconds to the objective. ``bounds`` are (least score, how many times it was tightened).
    """

    layouts: Sequence[Layout]
    evaluator_of: Callable[[Layout], LayoutEvaluator]
    score: Callable[[Layout, float], float]

    def __post_init__(self) -> None:
        self.floors = [self.evaluator_of(layout).memory.least_bytes(layout) for layout in self.layouts]
        self.bounds: dict[int, tuple[float, int]] = {}
        self._wrong: dict[object, str] = {}

    def first_bound(self, number: int) -> tuple[float, int]:
        """Return a layout's score bound and the bound's level (0 rough to 2 tight), from the cache if possible."""
        if number not in self.bounds:
            layout = self.layouts[number]
            self.bounds[number] = self.score(layout, self.evaluator_of(layout).bounds.outline_bound(layout)), 0
        return self.bounds[number]

    def tighten_bound(self, number: int) -> tuple[float, int]:
        """Compute the next tighter bound of a layout's score; return the bound and its level (1 or 2)."""
        (before, level), layout = self.bounds[number], self.layouts[number]
        bounds = self.evaluator_of(layout).bounds
        seconds = (bounds.bound_with_ends, bounds.bound_with_schedule)[level](layout)
        self.bounds[number] = max(before, self.score(layout, seconds)), level + 1
        return self.bounds[number]

    def why_illegal(self, layout: Layout) -> str:
        """Return why a layout breaks a scenario rule; "" if it is legal.

        All other rules have been checked (``layout_space``); the remaining ones depend on the schedule as it is made,
        and are checked for layouts that are to be simulated.
        """
        name = layout._replace(tp=0, sequence_parallel=False, recompute="", cp_comm="", order=())
        if name not in self._wrong:
            key = next(iter(find_broken_keys(layout.apply_to(self.evaluator_of(layout).bounds.base))), "")
            self._wrong[name] = CAUSE.get(key, key)
        return self._wrong[name]

    def planned_bytes(self, number: int) -> float:
        """Return the planned memory (bytes) of the fullest GPU under a layout."""
        layout = self.layouts[number]
        return self.evaluator_of(layout).memory.planned_bytes(layout)

    def is_legal_and_fits(self, number: int, capacity: float) -> bool:
        """Return whether a layout is legal and its fullest GPU needs at most ``capacity`` bytes."""
        try:
            within = self.floors[number] <= capacity and not self.why_illegal(self.layouts[number])
            return within and self.planned_bytes(number) <= capacity
        except InputError:
            return False

    def next_memory_limit(self, number: int) -> float:
        """Return a memory limit (bytes) slightly below the planned memory of this layout."""
        return _FRONT_MEMORY_FACTOR * self.planned_bytes(number)


class Frontier:
    """Queue of the layouts to simulate, lowest score bound first, within limits of memory per GPU.

    ``refused`` has least score and reason of those that turned out to be impossible.
    """

    def __init__(self, known: BoundCache, capacity: float, above: float = 0.0) -> None:
        self._known, self._capacity, self._above = known, capacity, above
        self._heap = [(*known.first_bound(each), each) for each, floor in enumerate(known.floors) if floor <= capacity]
        heapq.heapify(self._heap)
        self._possible: set[int] = set()
        self.refused: list[tuple[float, str]] = []

    def next_candidate(self, limit: float, poll: Callable[[], object] = lambda: None) -> LayoutCandidate | None:
        """Remove and return the next layout to simulate; None if all remaining bounds reach ``limit``.

        ``poll`` is called whenever a bound was tightened, which can take seconds.
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
                return LayoutCandidate(number, bound)
            heapq.heappush(self._heap, (*known.tighten_bound(number), number))
            poll()
        return None

    @property
    def lowest_bound(self) -> float:
        """Lowest score bound of the layouts in the queue; infinity if the queue is empty."""
        return self._heap[0][0] if self._heap else float("inf")

    @property
    def remaining_layouts(self) -> list[tuple[float, int]]:
        """Score bounds and numbers of the layouts in the queue."""
        return [(bound, number) for bound, _, number in self._heap]

    def _why_impossible(self, number: int) -> str:
        if reason := self._known.why_illegal(self._known.layouts[number]):
            return reason
        try:
            most = self._known.planned_bytes(number)
        except InputError:
            return CAUSE["pipeline.schedule"]
        return FULL if most > self._capacity else ROOMY if self._above and most <= self._above else ""


class LayoutRanking:
    """Ranking of simulated layouts by score; layouts that run the same program are counted as one.

    ``top`` of them are wanted, with scores below ``below``.
    """

    def __init__(self, layouts: Sequence[Layout], top: int, below: float = float("inf")) -> None:
        self._layouts, self._top, self._below = layouts, top, below
        self._scores: list[tuple[float, int]] = []
        self._best: list[tuple[float, int]] | None = []  # None: another one has been added since

    def add_layout(self, score: float, number: int) -> None:
        """Insert a simulated layout into the ranking."""
        if score < self._below and (score, number) not in self._scores:
            insort(self._scores, (score, number))
            self._best = None

    @property
    def best(self) -> list[tuple[float, int]]:
        """Scores and numbers of the best layouts, best first."""
        if self._best is None:
            found: dict[object, tuple[float, int]] = {}
            for score, number in self._scores:
                found.setdefault((self._layouts[number].without_rank_order, score), (score, number))
                if len(found) == self._top:
                    break
            self._best = list(found.values())
        return self._best

    @property
    def score_to_beat(self) -> float:
        """Score that another layout must beat to enter the ranking."""
        return self.best[-1][0] if len(self.best) == self._top else self._below


def find_rivals(layouts: Sequence[Layout], scores: Mapping[int, float], winner: int, *, next_too: bool) -> list[int]:
    """Return the best layouts that differ from the best layout of all: one with another tp, one with another pp.

    With ``next_too`` the best of another program than the winner's comes before them. ``scores`` are those of the
    layouts that had to be simulated.
    """
    ordered, own = sorted(scores, key=lambda number: (scores[number], number)), layouts[winner]
    others = [[each for each in ordered if getattr(layouts[each], axis) != getattr(own, axis)] for axis in ("tp", "pp")]
    if next_too:
        mine = own.without_rank_order, scores[winner]
        others.insert(0, [each for each in ordered if (layouts[each].without_rank_order, scores[each]) != mine])
    return [some[0] for some in others if some]
