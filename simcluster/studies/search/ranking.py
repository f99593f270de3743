"""The best of the layouts that were played, each program once whatever its orders of ranks are called.

Replicas of a stage side by side or stages of a pipeline are two orders of the same ranks; where the links are alike
both are one program on other machines, and take the same to the bit.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from simcluster.studies.search.space import Layout


class Ranking:
    """Scores of played layouts, by number; of several that are one program the first number is the one shown.

    ``top`` of them are wanted, of scores below ``below``.
    """

    def __init__(self, layouts: Sequence[Layout], top: int, below: float = float("inf")) -> None:
        self._layouts, self._top, self._below = layouts, top, below
        self._scores: list[tuple[float, int]] = []
        self._best: list[tuple[float, int]] | None = []  # None: another one has been added since

    def add(self, score: float, number: int) -> None:
        """One that was played; if it is there, it stays as it is."""
        if score < self._below and (score, number) not in self._scores:
            insort(self._scores, (score, number))
            self._best = None

    @property
    def best(self) -> list[tuple[float, int]]:
        """Score and number of the best, best first."""
        if self._best is None:
            found: dict[object, tuple[float, int]] = {}
            for score, number in self._scores:
                found.setdefault(program(self._layouts[number], score), (score, number))
                if len(found) == self._top:
                    break
            self._best = list(found.values())
        return self._best

    @property
    def limit(self) -> float:
        """The score below which another one would be among the best."""
        best = self.best
        return best[-1][0] if len(best) == self._top else self._below


def program(layout: Layout, score: float) -> object:
    """What two layouts share that are one program: all but the order of their ranks, and what they come to."""
    return layout._replace(order=()), score
