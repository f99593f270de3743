"""Evaluation of layouts in ascending order of their bounds, until no other can be among the best.

Every finished one is stored at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.processes import context
from simcluster.base.sources import sources_digest
from simcluster.base.store import Store
from simcluster.engine.contention_check import crowded
from simcluster.results.numbers import columns_of, exposed_communication, timed_numbers
from simcluster.results.result import Result
from simcluster.scenario.scenario import Base, Scenario, Variant, from_document
from simcluster.simulate import replay
from simcluster.step.planned import Planned, plan
from simcluster.studies.search.frontier import Candidate, Frontier
from simcluster.studies.search.programs_path import programs_path
from simcluster.studies.search.ranking import Ranking
from simcluster.studies.search.space import Layout
from simcluster.studies.sweep.alike import NotQuickError
from simcluster.studies.sweep.quick import quick_numbers, quick_step
from simcluster.symmetry.optimistic import OptimisticFold

Row = dict[str, Any]
BOUND = "bound_s"
"""Of a row: the least seconds of a step by its whole programs."""
Progress = Callable[[int, float, float], object]
"""Called with how many layouts are played, the k-th best score so far, and the bound of the next."""


def measured(text: str, layout: Layout, worth: float, soonest: float | None) -> Row:
    """The numbers of a layout's step, played; with the account of where it went if it takes at most ``worth`` seconds,
    or by the short way (``sweep.quick``), to the bit as long, without one.

    A step that by its whole programs takes more than ``soonest`` seconds is not played yet: the row has that bound.
    With ``soonest`` None it is not asked for.  ``text`` is the base scenario's document, as JSON: a process reads
    it once.
    """
    try:
        scenario = layout.on(_base(text))
        try:
            return {"status": "ok", "error": "", **quick_numbers(scenario, quick_step(scenario))}
        except NotQuickError:
            pass
        planned, row = plan(scenario), Row()
        if soonest is not None:
            row = {BOUND: programs_path(scenario, planned.programs, planned.job.plan)}
            if row[BOUND] > soonest:
                return {"status": "later", "error": "", **row}
        result = replay_on_trust(scenario, planned)
        row = {"status": "ok", "error": "", **timed_numbers(result), **row}
        if result.step_time <= worth:
            row |= details(result)
    except InputError as problem:
        return {"status": "refused", "error": str(problem)}
    return row


def accounted(text: str, layout: Layout) -> Row:
    """The numbers of a layout's step with the account of where it went."""
    result = replay_on_trust(layout.on(_base(text)))
    return {"status": "ok", "error": "", **timed_numbers(result), **details(result)}


def details(result: Result) -> Row:
    """What a row has beside the numbers of a timed step: columns of a plan's table, and where the step went."""
    return {
        **{name: metric.of(result) for name, metric in columns_of("plan").items()},
        "exposed_communication_s": exposed_communication(result),
        "breakdown_s": dict(result.times.breakdown),
        "account": result.account.to_dict(),
    }


def replay_on_trust(scenario: Scenario, planned: Planned | None = None) -> Result:
    """``replay`` of a scenario without faults, with as few ranks as give the same times (``symmetry.optimistic``).

    Who was crowded is asked only where it can change anything: of 512 ranks that is as long as half a replay.
    """
    trust, planned = OptimisticFold(), planned or plan(scenario)
    while True:
        result = replay(scenario, trust=trust, planned=planned)
        if trust.settled or not trust.learn(crowded(result.lowered, result.record)):
            return result


@lru_cache(maxsize=1)
def _base(text: str) -> Scenario:
    return from_document(json.loads(text))


@dataclass
class LayoutPlayer:
    """Plays layouts of one base scenario, here or on an executor; what the store has is not played again."""

    base: Scenario
    store: Store
    executor: Executor | None = None
    workers: int = 1
    rows: dict[int, Row] = field(default_factory=dict)  # by the layout's number
    played: int = 0
    _bounds: dict[int, float] = field(default_factory=dict)  # seconds by whole programs

    def __post_init__(self) -> None:
        self._document = self.base.document()
        self._text = json.dumps(self._document)
        self._fingerprint = f"{sources_digest()} {Base(self._document).fingerprint()}"  # an edited simulator plays anew

    def best(
        self,
        frontier: Frontier,
        top: int,
        score: Callable[[Layout, float], float],
        progress: Progress = lambda played, limit, bound: None,
        below: float = float("inf"),
    ) -> list[tuple[float, int]]:
        """The best ``top`` of a frontier, of scores ``below`` a limit: scores and numbers of layouts, best first."""
        ranking = Ranking(frontier.layouts, top, below)
        under_way: dict[Future[Row], Candidate] = {}
        while True:
            limit = ranking.limit
            candidate = frontier.next(limit) if len(under_way) < self.workers else None
            if candidate is not None:
                row = self._there(candidate)
                if row is None:
                    each = score(candidate.layout, 1.0)
                    soonest = None if candidate.put_back else min(limit, frontier.soonest) / each
                    under_way[self._begin(candidate.layout, limit / each, soonest)] = candidate
                else:
                    self._take(candidate, row, frontier, score, ranking)
                if len(under_way) < self.workers:
                    continue
            if not under_way:
                self.detail([number for _, number in ranking.best], frontier.layouts)
                return ranking.best
            for future in [each for each in under_way if each in wait(under_way, return_when=FIRST_COMPLETED).done]:
                done = under_way.pop(future)
                row = self._result(future)
                if done.put_back:  # what is known of it is its bound
                    self.store.forget([self._key(done.layout)])
                    row[BOUND] = self._bounds[done.number]
                self.store.add([(self._key(done.layout), row)])
                self._take(done, row, frontier, score, ranking)
                if row["status"] == "later":
                    continue
                self.played += 1
                best = ranking.best
                progress(self.played, best[-1][0] if best else 0.0, done.bound)

    def detailed(self, number: int, layout: Layout) -> Row:
        """The row of a layout that was played, with its account."""
        self.detail([number], {number: layout})
        return self.rows[number]

    def detail(self, numbers: Iterable[int], layouts: Sequence[Layout] | Mapping[int, Layout]) -> None:
        """Rows of layouts that were played get their accounts, as many at once as there are workers."""
        lacking = {number: layouts[number] for number in numbers if "account" not in self.rows[number]}
        begun = [(number, self._submit(accounted, layout)) for number, layout in lacking.items()]
        for number, future in begun:
            row, key = self._result(future), self._key(layouts[number])
            assert row["step_time_s"] == self.rows[number]["step_time_s"], (layouts[number], row)
            known = {BOUND: self._bounds[number]} if number in self._bounds else {}
            self.store.forget([key])
            self.store.add([(key, {**row, **known})])
            self.rows[number] = row

    def _there(self, candidate: Candidate) -> Row | None:
        if candidate.number in self.rows:
            return self.rows[candidate.number]
        key = self._key(candidate.layout)
        row = next(self.store.rows([key])) if self.store.done([key]) else None
        return None if row and row["status"] == "later" and candidate.put_back else row

    def _take(
        self,
        candidate: Candidate,
        row: Row,
        frontier: Frontier,
        score: Callable[[Layout, float], float],
        ranking: Ranking,
    ) -> None:
        """What was found out of a candidate: how long it takes, or at the least, or that it cannot be played."""
        if BOUND in row:
            self._bounds[candidate.number] = row[BOUND]
            frontier.raise_bound(candidate, score(candidate.layout, row[BOUND]))
        if row["status"] == "later":
            frontier.put_back(candidate)
            return
        if row["status"] != "ok":
            frontier.refuse(candidate, "cannot be played: " + str(row["error"]).partition(";")[0])
            return
        self.rows[candidate.number] = {name: value for name, value in row.items() if name != BOUND}
        ranking.add(score(candidate.layout, row["step_time_s"]), candidate.number)

    def _begin(self, layout: Layout, worth: float, soonest: float | None) -> Future[Row]:
        return self._submit(measured, layout, worth, soonest)

    def _submit(self, play: Callable[..., Row], layout: Layout, *values: float | None) -> Future[Row]:
        """A layout played on the executor, or here."""
        if self.executor is not None:
            return self.executor.submit(play, self._text, layout, *values)
        future: Future[Row] = Future()
        future.set_result(play(self._text, layout, *values))
        return future

    def _result(self, future: Future[Row]) -> Row:
        try:
            return future.result()
        except BrokenProcessPool:
            raise InputError(
                "a process that played a layout was killed; out of memory? What is finished is stored (with -o): run "
                "the same command again, with fewer processes (--executor 1)"
            ) from None

    def _key(self, layout: Layout) -> str:
        return Variant(Base(self._document), tuple(layout.values().items())).key(self._fingerprint)


@contextmanager
def workers_of(executor: Executor | int | None) -> Iterator[tuple[Executor | None, int]]:
    """An executor and how many layouts it plays at once; processes of our own for a number."""
    if executor is None or executor == 1:
        yield None, 1
    elif isinstance(executor, int):
        if executor < 1:
            raise InputError(f"{executor} processes cannot play anything; use at least 1")
        pool = ProcessPoolExecutor(executor, mp_context=context())
        try:
            yield pool, executor
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    else:
        yield executor, int(getattr(executor, "_max_workers", 0) or 4)


__all__ = ["LayoutPlayer", "Row", "measured", "workers_of"]
