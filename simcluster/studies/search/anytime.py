"""Anytime search: simulates layouts until none can be better; it always has a best layout and a proven gap.

It simulates the scenario's own layout, then what practice would try (``first_layouts``), then layouts by ascending
bounds, which are computed meanwhile. The result does not depend on the order or on the number of workers.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial

from simcluster.base.time_limit import Deadline
from simcluster.studies.search.evaluation import LayoutPlayer, LayoutTask, Progress, Row, SearchState, Workers
from simcluster.studies.search.first_layouts import find_own_layout, first_layouts
from simcluster.studies.search.frontier import BoundCache, Candidate, Frontier, Ranking, find_rivals
from simcluster.studies.search.layout import Layout
from simcluster.studies.search.plan_request import MemoryLimit

MAX_NEAR_MISSES = 3
_REPORT_SECONDS = 0.5  # seconds between reports of progress, unless a better layout was found
_POLL_SECONDS = 0.1  # seconds between looks at finished tasks while bounds are computed
_OWN_LAYOUT = -1  # the number of the scenario's own layout, where it is not in the space


class AnytimeSearch:
    """An anytime search of a space of layouts, whose attributes hold its results whenever it is stopped.

    ``best`` are score and number of the best layouts, ``tight`` the numbers of layouts that beat the winner and leave
    less memory free, ``points`` those of the front; ``proven`` is true when all of it is complete.
    """

    def __init__(
        self, known: BoundCache, limit: MemoryLimit, top: int, player: LayoutPlayer, workers: Workers,
        deadline: Deadline, tell: Progress,
    ) -> None:  # fmt: skip
        self.known, self.limit, self.top, self.player = known, limit, top, player
        self.ranking = Ranking(known.layouts, top)
        self.frontier: Frontier | None = None
        self.tight: list[int] = []
        self.points: list[int] = []
        self.proven = self.settled = False
        self.own: Row | None = None
        self._lower: float | None = None  # no layout that was not simulated has a better score
        self.deadline = deadline
        self._workers, self._tell = workers, tell
        self._first: deque[int] = deque()
        self._running: dict[int, Candidate | None] = {}  # by number; None: it has not had its turn
        self._refused: dict[int, str] = {}  # why a layout could not be simulated
        self._own_number = _OWN_LAYOUT
        self._tried: tuple[Layout | None, float] = None, 0.0
        self._phase, self._began, self._reported, self._plays = "bounds", time.monotonic(), 0.0, 0
        self._looked = self._began
        self._reported_best: list[tuple[float, int]] = []

    @property
    def best(self) -> list[tuple[float, int]]:
        """Scores and numbers of the best layouts, best first."""
        return self.ranking.best

    @property
    def gap(self) -> float | None:
        """Largest fraction of the best score by which another layout can still beat it; None if not known."""
        if self.settled:
            return 0.0
        if self._lower is None or not self.best:
            return None
        return max(0.0, 1 - self._lower / self.best[0][0])

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self._began

    def score(self, number: int) -> float:
        """Return the score of a simulated layout."""
        return self.known.score(self.known.layouts[number], self.player.rows[number]["step_time_s"])

    def left(self) -> int | None:
        """Return the number of layouts that may still have to be simulated; None while bounds are missing."""
        if self.frontier is None:
            return None
        if self.settled:
            return 0
        limit, bounds, rows = self.ranking.limit, self.known.bounds, self.player.rows
        open_ = sum(bound < limit and number not in rows for bound, number in self.frontier.left)
        return open_ + sum(number in bounds and bounds[number][0] < limit for number in self._running)

    # --- the search ---------------------------------------------------------------------------------------------------

    def run(self, *, own: bool, front: bool, near_misses: bool) -> None:
        """Run the search to its end; results found before an exception are kept.

        ``own``: simulate the scenario's own layout as well.
        """
        self._begin_with_first(own)
        for number, floor in enumerate(self.known.floors):  # outlines, while the first layouts are simulated
            if floor <= self.limit.usable:
                self._collect_at_intervals(None, self.ranking)
                self.known.first(number)
        self.frontier = Frontier(self.known, self.limit.usable)
        self._exhaust_frontier(self.frontier, self.ranking, "layouts")
        if not self.best:
            return
        self.settled = True
        if near_misses and self.limit.headroom:
            ranking = Ranking(self.known.layouts, MAX_NEAR_MISSES, self.best[0][0])
            tight = Frontier(self.known, self.limit.whole, above=self.limit.usable)
            self._exhaust_frontier(tight, ranking, "less memory free")
            self.tight = [number for _, number in ranking.best]
        self.points = [self.best[0][1]] if front else []
        while front:  # the best in less and less memory
            ranking = Ranking(self.known.layouts, 1)
            self._exhaust_frontier(Frontier(self.known, self.known.narrower(self.points[-1])), ranking, "less memory")
            self.points += [number for _, number in ranking.best]
            front = bool(ranking.best)
        self.proven = True
        self.account()

    def account(self) -> None:
        """Simulate the best layouts, their rivals and the scenario's own layout with time breakdowns."""
        self._phase = "accounts"
        self._running.clear()
        best = [number for _, number in self.best]
        wanted = [*best[:2], *self.rivals(), *best, *self.tight, *self.points]
        missing = deque(number for number in dict.fromkeys(wanted) if "account" not in self.player.rows[number])
        if self.own is not None and "account" not in self.own and self._own_number not in missing:
            missing.insert(1, self._own_number)
        aside = Ranking(self.known.layouts, 1)
        while missing or self._running:
            while missing and self._workers.free:
                self._begin(missing.popleft(), None, aside, account=True)
            self._collect(_REPORT_SECONDS, None, aside)

    def _begin_with_first(self, own: bool) -> None:
        """Simulate the scenario's own layout, or the nearest one that fits, then the usual layouts of practice."""
        known, capacity = self.known, self.limit.usable
        found, fits = find_own_layout(self.player.base, known, capacity) if own else (None, False)
        if found is not None:
            self._own_number = found if fits else _OWN_LAYOUT
            self._announce_layout(found)
            self._first.extend([found] if fits else [found, _OWN_LAYOUT])
        self._deal_first_layouts()
        self._collect(0.0)
        others = first_layouts(known, capacity, partial(self._collect_at_intervals, None, self.ranking))
        if others and found is None:
            self._announce_layout(others[0])
        self._first.extend(number for number in others if number != found)
        if own and found is None:
            self._first.insert(1, _OWN_LAYOUT)
        self._deal_first_layouts()
        self._collect(0.0)

    def _announce_layout(self, number: int) -> None:
        """Report the layout that is simulated first and the lower bound of its step time."""
        layout = self.known.layouts[number]
        self._tried = layout, self.known.first(number)[0] / self.known.score(layout, 1.0)
        self._tell(self.state())

    def _deal_first_layouts(self) -> None:
        """Give the first layouts to idle workers."""
        while self._first and self._workers.free:
            self._begin(self._first.popleft(), None, self.ranking)

    def _exhaust_frontier(self, frontier: Frontier, ranking: Ranking, phase: str) -> None:
        """Simulate the candidates of a frontier until no other one can enter the ranking."""
        self._phase = phase
        while True:
            self._raise_lower(frontier, ranking)
            self._deal_first_layouts()
            between = partial(self._collect_at_intervals, frontier, ranking)
            candidate = frontier.next(ranking.limit, between) if self._workers.free else None
            if candidate is not None:
                self._take_candidate(candidate, frontier, ranking)
            elif not self._running and not self._first:
                return
            else:
                self._collect(_REPORT_SECONDS, frontier, ranking)

    def _collect_at_intervals(self, frontier: Frontier | None, ranking: Ranking) -> None:
        """Record results of finished tasks at intervals while lower bounds are tightened."""
        if time.monotonic() - self._looked < _POLL_SECONDS:
            return
        self._looked = time.monotonic()
        if frontier is not None:
            self._raise_lower(frontier, ranking)
        self._collect(0.0, frontier, ranking)
        self._deal_first_layouts()

    def _raise_lower(self, frontier: Frontier, ranking: Ranking) -> None:
        if ranking is self.ranking:
            running = [self.known.bounds[each][0] for each in self._running if each in self.known.bounds]
            self._lower = max(self._lower or 0.0, min([frontier.lowest, *running]))

    def _take_candidate(self, candidate: Candidate, frontier: Frontier, ranking: Ranking) -> None:
        """Use the known result of a candidate layout, or begin to simulate it."""
        number = candidate.number
        if number in self._refused:
            frontier.refused.append((candidate.bound, self._refused[number]))
        elif number in self.player.rows:
            ranking.add(self.score(number), number)
        elif number in self._running:
            self._running[number] = candidate
        else:
            self._begin(number, candidate, ranking)
            if not self._workers.free:
                self._report_progress()

    def _begin(self, number: int, candidate: Candidate | None, ranking: Ranking, *, account: bool = False) -> None:
        """Begin to simulate a layout, or take its row from the store."""
        layout = self._layout_of_number(number)
        self._running[number] = candidate
        row = self.player.stored(layout)
        if row is not None and ("account" in row or not account):
            self._record_row(number, row, self.frontier, ranking)
        else:
            each = self.known.score(layout, 1.0) if layout else 1.0
            within = ranking.limit / each if candidate else 0.0  # a best layout is reported with its account
            self._workers.begin(LayoutTask(self.player.text, layout, account, within))

    def _collect(self, seconds: float, frontier: Frontier | None = None, ranking: Ranking | None = None) -> None:
        """Record the rows of finished tasks, after waiting at most ``seconds`` for one."""
        self.deadline.check()
        if self._running or not self._workers.free:
            for task, row in self._workers.finished(seconds):
                self.player.keep(task.layout, row)
                self._plays += 1
                numbers = [each for each in self._running if self._layout_of_number(each) == task.layout]
                if numbers:  # else it was begun before time was up
                    self._record_row(numbers[0], row, frontier or self.frontier, ranking or self.ranking)
        self._report_progress()

    def _layout_of_number(self, number: int) -> Layout | None:
        return None if number == _OWN_LAYOUT else self.known.layouts[number]

    def _record_row(self, number: int, row: Row, frontier: Frontier | None, ranking: Ranking) -> None:
        candidate = self._running.pop(number)
        if number == self._own_number:
            self.own = row
        if number == _OWN_LAYOUT:
            return
        if row["status"] == "ok":
            self.player.rows[number] = row
            ranking.add(self.score(number), number)
            return
        self._refused[number] = "cannot be simulated: " + str(row["error"]).partition(";")[0]
        if candidate and frontier:
            frontier.refused.append((candidate.bound, self._refused[number]))

    # --- results and progress -----------------------------------------------------------------------------------------

    def asked(self) -> list[int]:
        """Return the numbers of the layouts that had to be simulated; of a stopped search, of all simulated ones."""
        if not self.settled:
            return sorted(self.player.rows)
        fitting = (number for number in self.player.rows if self.known.most(number) <= self.limit.usable)
        return sorted(number for number in fitting if self.known.bounds[number][0] < self.ranking.limit)

    def rivals(self) -> list[int]:
        """Return the numbers of the layouts with which the winner is compared in the explanation."""
        first = self.best[0][1]
        scores = {number: self.score(number) for number in (first, *self.asked())}
        return find_rivals(self.known.layouts, scores, first, next_too=self.top == 1)

    def _report_progress(self) -> None:
        best = self.best[:1]
        if best != self._reported_best or self.seconds - self._reported >= _REPORT_SECONDS:
            self._reported, self._reported_best = self.seconds, best
            self._tell(self.state())

    def state(self) -> SearchState:
        """Return the progress of the search."""
        number = self.best[0][1] if self.best else None
        layout = None if number is None else self.known.layouts[number]
        step = 0.0 if number is None else float(self.player.rows[number]["step_time_s"])
        left = self.left() if self.ranking.limit < float("inf") else None
        return SearchState(
            self._phase, layout, step, self.gap, len(self.player.rows), left, self.seconds, self._seconds_left(left),
            *self._tried, number is not None and number == self._own_number,
        )  # fmt: skip

    def _seconds_left(self, left: int | None) -> float | None:
        """Estimate the remaining seconds from the fraction of layouts that had to be simulated and their mean time."""
        limit = self.ranking.limit
        if self._phase != "layouts" or not left or not self._plays or limit == float("inf"):
            return None
        over = sum(1 for bound, level in self.known.bounds.values() if level and bound >= limit)
        share = self._plays / (self._plays + over)
        return share * left * self.seconds / self._plays
