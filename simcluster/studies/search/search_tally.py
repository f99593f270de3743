"""Counts of a layout search: layouts that had to be simulated, and reasons for skipping the others.

Many processes simulate some layouts whose turn never comes, and what practice tries first may be slow. Neither shows in
the result of a finished search, which is the same on any number of processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from simcluster.studies.search.anytime_search import MAX_NEAR_MISSES, AnytimeSearch
from simcluster.studies.search.frontier import NO_ROOM
from simcluster.studies.search.layout_space import LayoutSpace

PRUNED = "slower: the lower bound is not below the slowest of the best layouts"
NOT_REACHED = "not simulated: the search was stopped"


class SearchTally:
    """Counts of the layouts of a finished or stopped search, and of the reasons for not simulating layouts."""

    def __init__(self, search: AnytimeSearch) -> None:
        self._search, self._known, self._limit = search, search.known, search.ranking.score_to_beat
        self.required_layouts = search.list_required_layouts()
        self._fitting = [each for each, floor in enumerate(self._known.floors) if floor <= search.limit.usable_bytes]
        self._programs: dict[object, list[int]] = {}
        for number in sorted({*self.required_layouts, *self._iterate_near_misses(), *search.tight}):
            self._programs.setdefault(self._program_and_score(number), []).append(number)

    @property
    def other_layouts(self) -> list[int]:
        """Numbers of simulated layouts that are not among the best, best first."""
        others = {*self.required_layouts, *self._iterate_front_layouts()} - {number for _, number in self._search.best}
        return sorted(others, key=lambda number: (self._search.score(number), number))

    def same_program_layouts(self, number: int) -> list[int]:
        """Return the numbers of other layouts that run the same program as this one."""
        return [other for other in self._programs.get(self._program_and_score(number), []) if other != number]

    def count_not_simulated(self, spaces: Sequence[LayoutSpace]) -> dict[str, int]:
        """Return the number of combinations of layout values that were not simulated, by reason."""
        search, known = self._search, self._known
        counts: Counter[str] = Counter()
        for space in spaces:
            counts.update(space.layouts_and_counts[1])
        if len(self._fitting) < len(known.layouts):
            counts[NO_ROOM] = len(known.layouts) - len(self._fitting)
        all_refused = search.frontier.refused if search.frontier else []
        refused = [reason for bound, reason in all_refused if bound < self._limit]
        counts.update(refused)
        pruned = rest = len(self._fitting) - len(self.required_layouts) - len(refused)
        if not search.settled:
            over = {each for each in self._fitting if each in known.bounds and known.bounds[each][0] >= self._limit}
            pruned = min(rest, len(over.difference(self.required_layouts)))
            counts[NOT_REACHED] = rest - pruned
        if pruned > 0:
            counts[PRUNED] = pruned
        return dict(counts)

    def bounds_elsewhere(self) -> dict[tuple[str, int], float]:
        """Return the lowest score bound for each untried size of tp or pp, by (axis, size)."""
        found: dict[tuple[str, int], float] = {}
        if not self._search.settled or self._limit == float("inf"):
            return found
        layouts = self._known.layouts
        tried = {(axis, getattr(layouts[number], axis)) for number in self.required_layouts for axis in ("tp", "pp")}
        for number in self._fitting:
            for name in (("tp", layouts[number].tp), ("pp", layouts[number].pp)):
                if name not in tried:
                    found[name] = min(found.get(name, float("inf")), self._excluding_bound(number))
        return found

    def _excluding_bound(self, number: int) -> float:
        """Return the roughest score bound that proves a layout is not among the best; infinity if none does."""
        known, layout = self._known, self._known.layouts[number]
        last, level = known.bounds[number]
        bounds = known.evaluator_of(layout).bounds
        for bound in (bounds.outline_bound, bounds.bound_with_ends)[:level]:
            least = known.score(layout, bound(layout))
            if least >= self._limit:
                return least
        return last if last >= self._limit else float("inf")

    def _program_and_score(self, number: int) -> object:
        return self._known.layouts[number].without_rank_order, self._search.score(number)

    def _iterate_near_misses(self) -> Iterator[int]:
        """Yield the near misses that the search simulated: fast layouts that leave too little memory free."""
        search, known = self._search, self._known
        if not search.settled or not search.limit.headroom:
            return
        ahead = search.score(search.tight[-1]) if len(search.tight) == MAX_NEAR_MISSES else search.best[0][0]
        for number in search.simulated.rows:
            if known.bounds[number][0] < ahead and known.planned_bytes(number) > search.limit.usable_bytes:
                yield number

    def _iterate_front_layouts(self) -> Iterator[int]:
        """Yield the layouts that had to be simulated to find the fastest layout for each smaller memory limit."""
        search, known = self._search, self._known
        for before, point in pairwise(search.points):
            room, score = known.next_memory_limit(before), search.score(point)
            for number in search.simulated.rows:
                if number == point or (known.bounds[number][0] < score and known.planned_bytes(number) <= room):
                    yield number
