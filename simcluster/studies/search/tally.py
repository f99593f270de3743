"""What a search comes to: every combination counted once, whatever was played besides what had to be.

Many processes play some layouts whose turn never comes, and what practice tries first may be slow: neither shows in
what a finished search says, which is the same on however many processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from simcluster.studies.search.anytime import MOST_TIGHT, AnytimeSearch
from simcluster.studies.search.frontier import NO_ROOM, narrower
from simcluster.studies.search.ranking import program
from simcluster.studies.search.space import Space

PRUNED = "slower: the bound alone is at or above the last of the best"
NOT_REACHED = "not reached: the search was stopped"


class Tally:
    """The layouts that a search had to play (``asked``, numbers), and all others by reason."""

    def __init__(self, search: AnytimeSearch) -> None:
        self._search, self._known = search, search.known
        self.asked = search.asked()
        self._limit = search.ranking.limit
        self._programs: dict[object, list[int]] = {}
        for number in sorted({*self.asked, *self._of_tight(), *search.tight}):
            self._programs.setdefault(self._program(number), []).append(number)

    @property
    def others(self) -> list[int]:
        """Played for the best or the front and not among the best; best first."""
        chosen = {number for _, number in self._search.best}
        others = {*self.asked, *self._of_front()} - chosen
        return sorted(others, key=lambda number: (self._search.score(number), number))

    def same(self, number: int) -> list[int]:
        """The others that are the same program."""
        return [other for other in self._programs.get(self._program(number), []) if other != number]

    def counts(self, spaces: Sequence[Space]) -> dict[str, int]:
        """How many combinations were not played, by reason."""
        search, known = self._search, self._known
        counts: dict[str, int] = {}
        for space in spaces:
            for reason, number in space.found[1].items():
                counts[reason] = counts.get(reason, 0) + number
        fitting = set(self._fitting())
        if len(fitting) < len(known.layouts):
            counts[NO_ROOM] = len(known.layouts) - len(fitting)
        all_refused = search.frontier.refused if search.frontier else []
        refused = [reason for bound, reason in all_refused if bound < self._limit]
        for reason in refused:
            counts[reason] = counts.get(reason, 0) + 1
        rest = len(fitting) - len(self.asked) - len(refused)
        pruned = rest
        if not search.settled:
            over = {number for number in fitting if number in known.bounds and known.bounds[number][0] >= self._limit}
            pruned = min(rest, len(over.difference(self.asked)))
            counts[NOT_REACHED] = rest - pruned
        if pruned > 0:
            counts[PRUNED] = pruned
        return counts

    def elsewhere(self) -> dict[tuple[str, int], float]:
        """For every tp and pp of which no layout had to be played, the least score that one with it can have."""
        found: dict[tuple[str, int], float] = {}
        if not self._search.settled or self._limit == float("inf"):
            return found
        layouts = self._known.layouts
        played = {(axis, getattr(layouts[number], axis)) for number in self.asked for axis in ("tp", "pp")}
        for number in self._fitting():
            sizes = [(axis, getattr(layouts[number], axis)) for axis in ("tp", "pp")]
            for name in sizes:
                if name not in played:
                    found[name] = min(found.get(name, float("inf")), self._least(number))
        return found

    def _least(self, number: int) -> float:
        """The first of its bounds that is high enough, however often it was made tighter; 0 if none is."""
        known, layout = self._known, self._known.layouts[number]
        last, level = known.bounds[number]
        if level:
            bounds = known.judge(layout).bounds
            for bound in (bounds.outline, bounds.with_ends)[:level]:
                least = known.score(layout, bound(layout))
                if least >= self._limit:
                    return least
        return last if last >= self._limit else float("inf")

    def _fitting(self) -> Iterator[int]:
        usable = self._search.limit.usable
        return (number for number, floor in enumerate(self._known.floors) if floor <= usable)

    def _program(self, number: int) -> object:
        return program(self._known.layouts[number], self._search.score(number))

    def _of_tight(self) -> Iterator[int]:
        """Those that had to be played for the best that leave too little free."""
        search, known = self._search, self._known
        if not search.settled or not search.limit.headroom:
            return
        ahead = search.score(search.tight[-1]) if len(search.tight) == MOST_TIGHT else search.best[0][0]
        for number in search.player.rows:
            if known.bounds[number][0] < ahead and known.most(number) > search.limit.usable:
                yield number

    def _of_front(self) -> Iterator[int]:
        """Those that had to be played for the front, its points with them."""
        search, known, points = self._search, self._known, self._search.points
        for before, point in pairwise(points):
            room, score = narrower(known, before), search.score(point)
            for number in search.player.rows:
                if number == point or (known.bounds[number][0] < score and known.most(number) <= room):
                    yield number


__all__ = ["NOT_REACHED", "PRUNED", "Tally"]
