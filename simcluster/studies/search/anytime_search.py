"""Anytime layout search: whenever it is stopped, it reports the best layout so far and a proven gap to the optimum.

It simulates the scenario's own layout, then what practice would try (``choose_first_layouts``), then layouts by
ascending bounds, which are computed meanwhile. The result does not depend on the order or on the number of workers.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial

from simcluster.base.time_limit import Deadline
from simcluster.studies.search.evaluation import LayoutTask, LayoutWorkers, Progress, Row, SearchState, SimulatedLayouts
from simcluster.studies.search.first_layouts import choose_first_layouts, find_own_layout
from simcluster.studies.search.frontier import BoundCache, Frontier, LayoutCandidate, LayoutRanking, find_rivals
from simcluster.studies.search.layout import Layout
from simcluster.studies.search.plan_request import MemoryLimit

MAX_NEAR_MISSES = 3
_REPORT_SECONDS = 0.5  # seconds between reports of progress, unless a better layout was found
_POLL_SECONDS = 0.1  # seconds between looks at finished tasks while bounds are computed
_OWN_LAYOUT = -1  # the number of the scenario's own layout, where it is not in the space


class AnytimeSearch:
    """Search of a space of layouts; when it is stopped, its attributes hold the results so far.

    ``best`` are score and number of the best layouts, ``tight`` the numbers of layouts that beat the winner and leave
    less memory free, ``points`` those of the front; ``proven`` is true when all of it is complete.
    """

    def __init__(
        self, known: BoundCache, limit: MemoryLimit, top: int, simulated: SimulatedLayouts, workers: LayoutWorkers,
        deadline: Deadline, tell: Progress,
    ) -> None:  # fmt: skip
        self.known, self.limit, self.top, self.simulated = known, limit, top, simulated
        self.ranking = LayoutRanking(known.layouts, top)
        self.frontier: Frontier | None = None
        self.tight: list[int] = []
        self.points: list[int] = []
        self.proven = self.settled = False
        self.own: Row | None = None
        self._lower: float | None = None  # no layout that was not simulated has a better score
        self.deadline = deadline
        self._workers, self._tell = workers, tell
        self._first: deque[int] = deque()
        self._running: dict[int, LayoutCandidate | None] = {}  # by number; None: it has not had its turn
        self._refused: dict[int, str] = {}  # why a layout could not be simulated
        self._own_number = _OWN_LAYOUT
        self._tried: tuple[Layout | None, float] = None, 0.0
        self._phase, self._began, self._reported, self._num_simulated = "bounds", time.monotonic(), 0.0, 0
        self._looked = self._began
        self._reported_best: list[tuple[float, int]] = []

    @property
    def best(self) -> list[tuple[float, int]]:
        """Scores and layout numbers of the best layouts so far, best first."""
        return self.ranking.best

    @property
    def gap(self) -> float | None:
        """Largest fraction by which an untested layout can still beat the best score; None if not yet known."""
        if self.settled:
            return 0.0
        if self._lower is None or not self.best:
            return None
        return max(0.0, 1 - self._lower / self.best[0][0])

    @property
    def seconds_since_start(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self._began

    def score(self, number: int) -> float:
        """Return the score of a simulated layout."""
        return self.known.score(self.known.layouts[number], self.simulated.rows[number]["step_time_s"])

    def count_layouts_left(self) -> int | None:
        """Return how many layouts may still need to be simulated; None until all lower bounds are known."""
        if self.frontier is None:
            return None
        if self.settled:
            return 0
        limit, bounds, rows = self.ranking.score_to_beat, self.known.bounds, self.simulated.rows
        open_ = sum(bound < limit and number not in rows for bound, number in self.frontier.remaining_layouts)
        return open_ + sum(number in bounds and bounds[number][0] < limit for number in self._running)

    # --- the search ---------------------------------------------------------------------------------------------------

    def run(self, *, own: bool, front: bool, near_misses: bool) -> None:
        """Run the search to its end; keep the results so far if an exception ends the search early.

        ``own``: simulate the scenario's own layout as well.
        """
        self._begin_first_layouts(own)
        for number, floor in enumerate(self.known.floors):  # outlines, while the first layouts are simulated
            if floor <= self.limit.usable_bytes:
                self._collect_at_intervals(None, self.ranking)
                self.known.first_bound(number)
        self.frontier = Frontier(self.known, self.limit.usable_bytes)
        self._exhaust_frontier(self.frontier, self.ranking, "layouts")
        if not self.best:
            return
        self.settled = True
        if near_misses and self.limit.headroom:
            ranking = LayoutRanking(self.known.layouts, MAX_NEAR_MISSES, self.best[0][0])
            tight = Frontier(self.known, self.limit.limit_bytes, above=self.limit.usable_bytes)
            self._exhaust_frontier(tight, ranking, "less memory free")
            self.tight = [number for _, number in ranking.best]
        self.points = [self.best[0][1]] if front else []
        while front:  # the best in less and less memory
            ranking = LayoutRanking(self.known.layouts, 1)
            less = Frontier(self.known, self.known.next_memory_limit(self.points[-1]))
            self._exhaust_frontier(less, ranking, "less memory")
            self.points += [number for _, number in ranking.best]
            front = bool(ranking.best)
        self.proven = True
        self.simulate_breakdowns()

    def simulate_breakdowns(self) -> None:
        """Simulate the best layouts, their closest rivals and the scenario's own layout again, with time breakdowns."""
        self._phase = "accounts"
        self._running.clear()
        best = [number for _, number in self.best]
        wanted = [*best[:2], *self.list_rivals(), *best, *self.tight, *self.points]
        missing = deque(number for number in dict.fromkeys(wanted) if "account" not in self.simulated.rows[number])
        if self.own is not None and "account" not in self.own and self._own_number not in missing:
            missing.insert(1, self._own_number)
        aside = LayoutRanking(self.known.layouts, 1)
        while missing or self._running:
            while missing and self._workers.num_idle:
                self._begin_simulation(missing.popleft(), None, aside, breakdown=True)
            self._collect_rows(_REPORT_SECONDS, None, aside)

    def _begin_first_layouts(self, own: bool) -> None:
        """Start simulating the scenario's own layout (or the nearest that fits), then a few typical layouts."""
        known, capacity = self.known, self.limit.usable_bytes
        found, fits = find_own_layout(self.simulated.base, known, capacity) if own else (None, False)
        if found is not None:
            self._own_number = found if fits else _OWN_LAYOUT
            self._announce_layout(found)
            self._first.extend([found] if fits else [found, _OWN_LAYOUT])
        self._assign_first_layouts()
        self._collect_rows(0.0)
        others = choose_first_layouts(known, capacity, partial(self._collect_at_intervals, None, self.ranking))
        if others and found is None:
            self._announce_layout(others[0])
        self._first.extend(number for number in others if number != found)
        if own and found is None:
            self._first.insert(1, _OWN_LAYOUT)
        self._assign_first_layouts()
        self._collect_rows(0.0)

    def _announce_layout(self, number: int) -> None:
        """Report the first layout to be simulated, and the lower bound of its step time."""
        layout = self.known.layouts[number]
        self._tried = layout, self.known.first_bound(number)[0] / self.known.score(layout, 1.0)
        self._tell(self.search_state())

    def _assign_first_layouts(self) -> None:
        while self._first and self._workers.num_idle:
            self._begin_simulation(self._first.popleft(), None, self.ranking)

    def _exhaust_frontier(self, frontier: Frontier, ranking: LayoutRanking, phase: str) -> None:
        """Simulate candidate layouts from the queue until none of the rest can enter the ranking."""
        self._phase = phase
        while True:
            self._raise_lower_bound(frontier, ranking)
            self._assign_first_layouts()
            between = partial(self._collect_at_intervals, frontier, ranking)
            candidate = frontier.next_candidate(ranking.score_to_beat, between) if self._workers.num_idle else None
            if candidate is not None:
                self._take_candidate(candidate, frontier, ranking)
            elif not self._running and not self._first:
                return
            else:
                self._collect_rows(_REPORT_SECONDS, frontier, ranking)

    def _collect_at_intervals(self, frontier: Frontier | None, ranking: LayoutRanking) -> None:
        """Record the results of finished workers at regular intervals while lower bounds are being computed."""
        if time.monotonic() - self._looked < _POLL_SECONDS:
            return
        self._looked = time.monotonic()
        if frontier is not None:
            self._raise_lower_bound(frontier, ranking)
        self._collect_rows(0.0, frontier, ranking)
        self._assign_first_layouts()

    def _raise_lower_bound(self, frontier: Frontier, ranking: LayoutRanking) -> None:
        if ranking is self.ranking:
            running = [self.known.bounds[each][0] for each in self._running if each in self.known.bounds]
            self._lower = max(self._lower or 0.0, min([frontier.lowest_bound, *running]))

    def _take_candidate(self, candidate: LayoutCandidate, frontier: Frontier, ranking: LayoutRanking) -> None:
        """Add a candidate layout to the ranking if its result is known; otherwise start to simulate the layout."""
        number = candidate.number
        if number in self._refused:
            frontier.refused.append((candidate.bound, self._refused[number]))
        elif number in self.simulated.rows:
            ranking.add_layout(self.score(number), number)
        elif number in self._running:
            self._running[number] = candidate
        else:
            self._begin_simulation(number, candidate, ranking)
            if not self._workers.num_idle:
                self._report_progress()

    def _begin_simulation(
        self, number: int, candidate: LayoutCandidate | None, ranking: LayoutRanking, *, breakdown: bool = False
    ) -> None:
        """Start to simulate a layout, unless the store already has its result."""
        layout = self._layout_of_number(number)
        self._running[number] = candidate
        row = self.simulated.find_stored_row(layout)
        if row is not None and ("account" in row or not breakdown):
            self._record_row(number, row, self.frontier, ranking)
        else:
            each = self.known.score(layout, 1.0) if layout else 1.0
            within = ranking.score_to_beat / each if candidate else 0.0  # a best layout is reported with its account
            self._workers.submit_task(LayoutTask(self.simulated.text, layout, breakdown, within))

    def _collect_rows(
        self, seconds: float, frontier: Frontier | None = None, ranking: LayoutRanking | None = None
    ) -> None:
        """Record the results of finished simulations; wait at most ``seconds`` for the first result."""
        self.deadline.raise_if_expired()
        if self._running or not self._workers.num_idle:
            for task, row in self._workers.collect_finished(seconds):
                self.simulated.store_row(task.layout, row)
                self._num_simulated += 1
                numbers = [each for each in self._running if self._layout_of_number(each) == task.layout]
                if numbers:  # else it was begun before time was up
                    self._record_row(numbers[0], row, frontier or self.frontier, ranking or self.ranking)
        self._report_progress()

    def _layout_of_number(self, number: int) -> Layout | None:
        return None if number == _OWN_LAYOUT else self.known.layouts[number]

    def _record_row(self, number: int, row: Row, frontier: Frontier | None, ranking: LayoutRanking) -> None:
        candidate = self._running.pop(number)
        if number == self._own_number:
            self.own = row
        if number == _OWN_LAYOUT:
            return
        if row["status"] == "ok":
            self.simulated.rows[number] = row
            ranking.add_layout(self.score(number), number)
            return
        self._refused[number] = "cannot be simulated: " + str(row["error"]).partition(";")[0]
        if candidate and frontier:
            frontier.refused.append((candidate.bound, self._refused[number]))

    # --- results and progress -----------------------------------------------------------------------------------------

    def list_required_layouts(self) -> list[int]:
        """Return the numbers of the layouts that had to be simulated (all simulated ones if the search was stopped)."""
        if not self.settled:
            return sorted(self.simulated.rows)
        fitting = (each for each in self.simulated.rows if self.known.planned_bytes(each) <= self.limit.usable_bytes)
        return sorted(number for number in fitting if self.known.bounds[number][0] < self.ranking.score_to_beat)

    def list_rivals(self) -> list[int]:
        """Return the numbers of the layouts with which a plan's explanation compares the best layout."""
        first = self.best[0][1]
        scores = {number: self.score(number) for number in (first, *self.list_required_layouts())}
        return find_rivals(self.known.layouts, scores, first, next_too=self.top == 1)

    def _report_progress(self) -> None:
        best = self.best[:1]
        if best != self._reported_best or self.seconds_since_start - self._reported >= _REPORT_SECONDS:
            self._reported, self._reported_best = self.seconds_since_start, best
            self._tell(self.search_state())

    def search_state(self) -> SearchState:
        """Return the current progress of the search, for reports."""
        number = self.best[0][1] if self.best else None
        layout = None if number is None else self.known.layouts[number]
        step = 0.0 if number is None else float(self.simulated.rows[number]["step_time_s"])
        left = self.count_layouts_left() if self.ranking.score_to_beat < float("inf") else None
        return SearchState(
            self._phase, layout, step, self.gap, len(self.simulated.rows), left, self.seconds_since_start,
            self._estimate_seconds_left(left), *self._tried, number is not None and number == self._own_number,
        )  # fmt: skip

    def _estimate_seconds_left(self, left: int | None) -> float | None:
        """Estimate the remaining time (s) from the mean time per layout and the fraction of layouts simulated."""
        limit = self.ranking.score_to_beat
        if self._phase != "layouts" or not left or not self._num_simulated or limit == float("inf"):
            return None
        over = sum(1 for bound, level in self.known.bounds.values() if level and bound >= limit)
        share = self._num_simulated / (self._num_simulated + over)
        return share * left * self.seconds_since_start / self._num_simulated
