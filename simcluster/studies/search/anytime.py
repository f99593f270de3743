"""An anytime search: plays layouts until nothing can be better, and always knows the best so far and a proven gap.

First the scenario's own layout, then what practice would try (``first_layouts``); then by ascending bounds, which go on
being worked out meanwhile.  What is found in the end is the same whatever was played first, and by however many.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial

from simcluster.base.time_limit import Deadline
from simcluster.studies.search.asked import MemoryLimit
from simcluster.studies.search.first_layouts import first_layouts, own_number
from simcluster.studies.search.frontier import BoundCache, Candidate, Frontier, narrower
from simcluster.studies.search.playing import LayoutPlayer, Row
from simcluster.studies.search.progress import Progress, SearchState
from simcluster.studies.search.ranking import Ranking
from simcluster.studies.search.rivals import rivals
from simcluster.studies.search.space import Layout
from simcluster.studies.search.workers import LayoutTask, Workers

MOST_TIGHT = 3
_PATIENCE = 0.5  # seconds: how often it is told how far a search is, besides of every better layout
_LOOK = 0.1  # seconds: how often it is asked what is done while bounds are worked out
_OWN = -1  # the number of the scenario's own layout, where it is none of the space


class AnytimeSearch:
    """An anytime search of one space; what it has found stands in it whenever it is stopped.

    ``best`` are score and number of the best, ``tight`` numbers of those that beat the winner and leave less free,
    ``points`` those of the front; ``proven`` says that all of it is what there is.
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
        self._lower: float | None = None  # no layout that was not played has a better score
        self.deadline = deadline
        self._workers, self._tell = workers, tell
        self._first: deque[int] = deque()
        self._under_way: dict[int, Candidate | None] = {}  # by number; None: it has not had its turn
        self._turned: dict[int, str] = {}  # could not be played, and why
        self._own_number = _OWN
        self._tried: tuple[Layout | None, float] = None, 0.0
        self._phase, self._began, self._told, self._plays = "bounds", time.monotonic(), 0.0, 0
        self._looked = self._began
        self._told_of: list[tuple[float, int]] = []

    # --- what there is ------------------------------------------------------------------------------------------------

    @property
    def best(self) -> list[tuple[float, int]]:
        """Score and number, best first."""
        return self.ranking.best

    @property
    def gap(self) -> float | None:
        """By what part of its score another layout may be better than the first, at most; None if nothing is known."""
        if self.settled:
            return 0.0
        if self._lower is None or not self.best:
            return None
        return max(0.0, 1 - self._lower / self.best[0][0])

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def score(self, number: int) -> float:
        """Of a layout that was played."""
        return self.known.score(self.known.layouts[number], self.player.rows[number]["step_time_s"])

    def left(self) -> int | None:
        """How many may still have to be played; None while bounds are missing."""
        if self.frontier is None:
            return None
        if self.settled:
            return 0
        limit, bounds = self.ranking.limit, self.known.bounds
        open_ = (number for bound, number in self.frontier.left if bound < limit and number not in self.player.rows)
        waiting = sum(1 for number in self._under_way if number in bounds and bounds[number][0] < limit)
        return sum(1 for _ in open_) + waiting

    # --- the search ---------------------------------------------------------------------------------------------------

    def run(self, *, own: bool, front: bool, near_misses: bool) -> None:
        """Search for everything that was asked for; whatever it raises, what is found so far stands.  ``own``: the
        scenario's own layout, too."""
        self._begin_with_first(own)
        self._bound_all()
        self.frontier = Frontier(self.known, self.limit.usable)
        self._go_through(self.frontier, self.ranking, "layouts")
        if not self.best:
            return
        self.settled = True
        if near_misses:
            self.tight = self._tight()
        self._front(front)
        self.proven = True
        self.account()

    def account(self) -> None:
        """Where the time of the best went, of their rivals and of one's own layout; also after time was up."""
        self._phase = "accounts"
        self._under_way.clear()
        best = [number for _, number in self.best]
        wanted = [*best[:2], *self.rivals(), *best, *self.tight, *self.points]
        missing = deque(number for number in dict.fromkeys(wanted) if "account" not in self.player.rows[number])
        if self.own is not None and "account" not in self.own and self._own_number not in missing:
            missing.insert(1, self._own_number)
        aside = Ranking(self.known.layouts, 1)
        while missing or self._under_way:
            while missing and self._workers.free:
                self._begin(missing.popleft(), None, aside, account=True)
            self._collect(_PATIENCE, None, aside)

    def _begin_with_first(self, own: bool) -> None:
        """Simulate the scenario's own layout, or the one nearest to it that fits, then what practice would try."""
        known, capacity = self.known, self.limit.usable
        found, fits = own_number(self.player.base, known, capacity) if own else (None, False)
        if found is not None:
            self._own_number = found if fits else _OWN
            self._announce(found)
            self._first.extend([found] if fits else [found, _OWN])
        self._deal()
        self._collect(0.0)
        others = first_layouts(known, capacity, partial(self._meanwhile, None, self.ranking))
        if others and found is None:
            self._announce(others[0])
        self._first.extend(number for number in others if number != found)
        if own and found is None:
            self._first.insert(1, _OWN)
        self._deal()
        self._collect(0.0)

    def _announce(self, number: int) -> None:
        """Report the layout that is simulated first, and the least that its step takes."""
        layout = self.known.layouts[number]
        self._tried = layout, self.known.first(number)[0] / self.known.score(layout, 1.0)
        self._tell(self.state())

    def _deal(self) -> None:
        """The first layouts to whoever is free."""
        while self._first and self._workers.free:
            self._begin(self._first.popleft(), None, self.ranking)

    def _bound_all(self) -> None:
        """The outlines of all that may fit, while the first layouts are played."""
        fitting = [number for number, floor in enumerate(self.known.floors) if floor <= self.limit.usable]
        for number in fitting:
            self._meanwhile(None, self.ranking)
            self.known.first(number)

    def _go_through(self, frontier: Frontier, ranking: Ranking, phase: str) -> None:
        """Plays the candidates of a frontier until no other can be among the best of the ranking."""
        self._phase = phase
        while True:
            if ranking is self.ranking:
                self._lower = self._lowest(frontier)
            self._deal()
            between = partial(self._meanwhile, frontier, ranking)
            candidate = frontier.next(ranking.limit, between) if self._workers.free else None
            if candidate is not None:
                self._take(candidate, frontier, ranking)
            elif not self._under_way and not self._first:
                return
            else:
                self._collect(_PATIENCE, frontier, ranking)

    def _meanwhile(self, frontier: Frontier | None, ranking: Ranking) -> None:
        """While bounds are made tighter: what is done already, now and then."""
        if time.monotonic() - self._looked < _LOOK:
            return
        self._looked = time.monotonic()
        if frontier is not None and ranking is self.ranking:
            self._lower = self._lowest(frontier)
        self._collect(0.0, frontier, ranking)
        self._deal()

    def _lowest(self, frontier: Frontier) -> float:
        under_way = [self.known.bounds[each][0] for each in self._under_way if each in self.known.bounds]
        return max(self._lower or 0.0, min([frontier.lowest, *under_way]))

    def _take(self, candidate: Candidate, frontier: Frontier, ranking: Ranking) -> None:
        """One whose turn it is: what is known of it, or its play."""
        number = candidate.number
        if number in self._turned:
            frontier.refuse(candidate, self._turned[number])
        elif number in self.player.rows:
            ranking.add(self.score(number), number)
        elif number in self._under_way:
            self._under_way[number] = candidate
        else:
            self._begin(number, candidate, ranking)
            if not self._workers.free:
                self._tell_now()

    def _begin(
        self, number: int, candidate: Candidate | None, ranking: Ranking, *, account: bool = False
    ) -> None:  # fmt: skip
        """Begin to simulate a layout, or take its row from the store."""
        layout = None if number == _OWN else self.known.layouts[number]
        self._under_way[number] = candidate
        row = self.player.stored(layout)
        if row is not None and ("account" in row or not account):
            self._note(number, row, self.frontier, ranking)
        else:
            each = self.known.score(layout, 1.0) if layout else 1.0
            within = ranking.limit / each if candidate else 0.0  # a best layout is reported with its account
            self._workers.begin(LayoutTask(self.player.text, layout, account, within))

    def _collect(self, seconds: float, frontier: Frontier | None = None, ranking: Ranking | None = None) -> None:
        """What is done, waiting for it so long at most."""
        self.deadline.check()
        if self._under_way or not self._workers.free:
            for task, row in self._workers.finished(seconds):
                number = self._number_of(task.layout)
                self.player.keep(task.layout, row)
                self._plays += 1
                if number is not None:
                    self._note(number, row, frontier or self.frontier, ranking or self.ranking)
        self._tell_now()

    def _number_of(self, layout: Layout | None) -> int | None:
        """Of what is under way; None for what was before time was up."""
        if layout is None:
            return _OWN if _OWN in self._under_way else None
        numbers = (number for number in self._under_way if number != _OWN)
        return next((number for number in numbers if self.known.layouts[number] == layout), None)

    def _note(self, number: int, row: Row, frontier: Frontier | None, ranking: Ranking) -> None:
        candidate = self._under_way.pop(number)
        if number == self._own_number:
            self.own = row
        if number == _OWN:
            return
        if row["status"] == "ok":
            self.player.rows[number] = row
            ranking.add(self.score(number), number)
            return
        self._turned[number] = "cannot be played: " + str(row["error"]).partition(";")[0]
        if candidate and frontier:
            frontier.refuse(candidate, self._turned[number])

    # --- behind the proof of the best ---------------------------------------------------------------------------------

    def _tight(self) -> list[int]:
        """Return the best that beat the winner, fit, and do not leave the headroom."""
        if not self.limit.headroom:
            return []
        ranking = Ranking(self.known.layouts, MOST_TIGHT, self.best[0][0])
        self._go_through(Frontier(self.known, self.limit.whole, above=self.limit.usable), ranking, "less memory free")
        return [number for _, number in ranking.best]

    def _front(self, wanted: bool) -> None:
        """The best layouts in less and less memory, each in at most 95 % of what the one before it holds."""
        self.points = [self.best[0][1]] if wanted else []
        while wanted:
            ranking = Ranking(self.known.layouts, 1)
            self._go_through(Frontier(self.known, narrower(self.known, self.points[-1])), ranking, "less memory")
            if not ranking.best:
                return
            self.points.append(ranking.best[0][1])

    def asked(self) -> list[int]:
        """Numbers of the layouts that had to be played for the best, whatever else was; of a search that was stopped,
        all that were."""
        best = self.best
        if not self.settled:
            return sorted(self.player.rows)
        worst = best[-1][0] if len(best) == self.top else float("inf")
        fitting = (number for number in self.player.rows if self.known.most(number) <= self.limit.usable)
        return sorted(number for number in fitting if self.known.bounds[number][0] < worst)

    def rivals(self) -> list[int]:
        """What the winner is explained against."""
        first, asked = self.best[0][1], self.asked()
        scores = {number: self.score(number) for number in (first, *asked)}
        return rivals(self.known.layouts, scores, first, next_too=self.top == 1)

    # --- how far it is ------------------------------------------------------------------------------------------------

    def _tell_now(self) -> None:
        best = self.best[:1]
        if best != self._told_of or self.seconds - self._told >= _PATIENCE:
            self._told, self._told_of = self.seconds, best
            self._tell(self.state())

    def state(self) -> SearchState:
        """How far it is."""
        best = self.best
        layout = self.known.layouts[best[0][1]] if best else None
        step = float(self.player.rows[best[0][1]]["step_time_s"]) if best else 0.0
        left = self.left() if self.ranking.limit < float("inf") else None
        return SearchState(
            self._phase, layout, step, self.gap, len(self.player.rows), left, self.seconds, self._seconds_left(left),
            *self._tried, bool(best) and best[0][1] == self._own_number,
        )  # fmt: skip

    def _seconds_left(self, left: int | None) -> float | None:
        """By how many of those whose turn could have come had to be played, and what one took so far."""
        limit = self.ranking.limit
        if self._phase != "layouts" or not left or not self._plays or limit == float("inf"):
            return None
        over = sum(1 for bound, level in self.known.bounds.values() if level and bound >= limit)
        share = self._plays / (self._plays + over)
        return share * left * self.seconds / self._plays
