"""Counts of a search: layouts that had to be simulated, and the reasons why others did not.

Many processes simulate some layouts whose turn never comes, and what practice tries first may be slow. Neither shows in
the result of a finished search, which is the same on any number of processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from simcluster.studies.search.anytime import MAX_NEAR_MISSES, AnytimeSearch
from simcluster.studies.search.frontier import NO_ROOM
from simcluster.studies.search.space import Space

PRUNED = "slower: the bound alone is at or above the last of the best"
NOT_REACHED = "not reached: the search was stopped"


class Tally:
    """Counts of a search's layouts: those that had to be simulated (``asked``), and all others by reason."""

    def __init__(self, search: AnytimeSearch) -> None:
        self._search, self._known, self._limit = search, search.known, search.ranking.limit
        self.asked = search.asked()
        self._fitting = [number for number, floor in enumerate(self._known.floors) if floor <= search.limit.usable]
        self._programs: dict[object, list[int]] = {}
        for number in sorted({*self.asked, *self._layouts_for_tight(), *search.tight}):
            self._programs.setdefault(self._program_and_score(number), []).append(number)

    @property
    def others(self) -> list[int]:
        """Layouts simulated for the best or the front that are not among the best; best first."""
        others = {*self.asked, *self._layouts_for_front()} - {number for _, number in self._search.best}
        return sorted(others, key=lambda number: (self._search.score(number), number))

    def same(self, number: int) -> list[int]:
        """Return the other layouts that are the same program as the layout with this number."""
        return [other for other in self._programs.get(self._program_and_score(number), []) if other != number]

    def counts(self, spaces: Sequence[Space]) -> dict[str, int]:
        """Return the numbers of combinations that were not simulated, by reason."""
        search, known = self._search, self._known
        counts: Counter[str] = Counter()
        for space in spaces:
            counts.update(space.found[1])
        if len(self._fitting) < len(known.layouts):
            counts[NO_ROOM] = len(known.layouts) - len(self._fitting)
        all_refused = search.frontier.refused if search.frontier else []
        refused = [reason for bound, reason in all_refused if bound < self._limit]
        counts.update(refused)
        pruned = rest = len(self._fitting) - len(self.asked) - len(refused)
        if not search.settled:
            over = {each for each in self._fitting if each in known.bounds and known.bounds[each][0] >= self._limit}
            pruned = min(rest, len(over.difference(self.asked)))
            counts[NOT_REACHED] = rest - pruned
        if pruned > 0:
            counts[PRUNED] = pruned
        return dict(counts)

    def elsewhere(self) -> dict[tuple[str, int], float]:
        """Return lower bounds of the score for each tp and pp of which no layout had to be simulated."""
        found: dict[tuple[str, int], float] = {}
        if not self._search.settled or self._limit == float("inf"):
            return found
        layouts = self._known.layouts
        tried = {(axis, getattr(layouts[number], axis)) for number in self.asked for axis in ("tp", "pp")}
        for number in self._fitting:
            for name in (("tp", layouts[number].tp), ("pp", layouts[number].pp)):
                if name not in tried:
                    found[name] = min(found.get(name, float("inf")), self._excluding_bound(number))
        return found

    def _excluding_bound(self, number: int) -> float:
        """Return the first bound of a layout's score that excludes it from the best; inf if none does."""
        known, layout = self._known, self._known.layouts[number]
        last, level = known.bounds[number]
        bounds = known.judge(layout).bounds
        for bound in (bounds.outline, bounds.with_ends)[:level]:
            least = known.score(layout, bound(layout))
            if least >= self._limit:
                return least
        return last if last >= self._limit else float("inf")

    def _program_and_score(self, number: int) -> object:
        return self._known.layouts[number].unordered, self._search.score(number)

    def _layouts_for_tight(self) -> Iterator[int]:
        """Yield the layouts that had to be simulated to find the best with too little headroom."""
        search, known = self._search, self._known
        if not search.settled or not search.limit.headroom:
            return
        ahead = search.score(search.tight[-1]) if len(search.tight) == MAX_NEAR_MISSES else search.best[0][0]
        for number in search.player.rows:
            if known.bounds[number][0] < ahead and known.most(number) > search.limit.usable:
                yield number

    def _layouts_for_front(self) -> Iterator[int]:
        """Yield the layouts that had to be simulated for the memory front, including its points."""
        search, known = self._search, self._known
        for before, point in pairwise(search.points):
            room, score = known.narrower(before), search.score(point)
            for number in search.player.rows:
                if number == point or (known.bounds[number][0] < score and known.most(number) <= room):
                    yield number
