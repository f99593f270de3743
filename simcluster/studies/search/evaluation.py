"""Evaluation of layouts: steps simulated in this process, other processes or an executor, and their store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from simcluster.base.errors import InputError
from simcluster.base.processes import WorkerPool, require_processes
from simcluster.base.store import Store
from simcluster.results.numbers import exposed_communication, step_time_metrics, table_metrics
from simcluster.results.result import Result
from simcluster.scenario.contents import VariantKeys
from simcluster.scenario.scenario import Base, Scenario, from_document
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.search.layout import Layout
from simcluster.studies.sweep.quick import quick_numbers, quick_step
from simcluster.studies.sweep.stage_network import NotQuickError

Row = dict[str, Any]
_KILLED = (
    "a process that simulated a layout was killed; out of memory? Finished layouts are stored (with -o): run the same "
    "command again, with fewer processes (--executor 1)"
)


class SearchState(NamedTuple):
    """Progress of a search: its phase, and the best ``layout`` so far with its step time (s).

    Another layout may be better than it by the fraction ``gap`` at most. ``left`` is how many layouts may still have to
    be simulated (None: not known yet), ``played`` how many were. ``first`` is the layout that is simulated first, since
    practice would try it, and it fits; its step takes at least ``first_time`` (s). ``own``: the best so far is the
    scenario's own layout.
    """

    phase: str
    layout: Layout | None
    step_time: float
    gap: float | None
    played: int
    left: int | None
    seconds: float
    seconds_left: float | None
    first: Layout | None = None
    first_time: float = 0.0
    own: bool = False


Progress = Callable[[SearchState], object]


class LayoutTask(NamedTuple):
    """Task to simulate a layout of a base scenario (its document as JSON); None is the scenario's own layout.

    Rows have a breakdown ``with_account``; otherwise only steps that are simulated in full and take at most
    ``account_within`` seconds have one.
    """

    text: str
    layout: Layout | None
    with_account: bool
    account_within: float = 0.0

    def play(self) -> Row:
        """Simulate the layout and return its row of numbers."""
        if self.with_account:
            return measure_with_account(self.text, self.layout)
        return measure_layout(self.text, self.layout, self.account_within)


def measure_layout(text: str, layout: Layout | None, account_within: float = 0.0) -> Row:
    """Return the numbers of a layout's step, from the quick step (``sweep.quick``) where that is exact.

    A step that is simulated in full and takes at most ``account_within`` seconds has its breakdown as well, so that it
    is not simulated again.
    """
    try:
        scenario = _with_layout(text, layout)
        try:
            return {"status": "ok", "error": "", **quick_numbers(scenario, quick_step(scenario))}
        except NotQuickError:
            pass
        result = simulate_scenario(scenario)
        account = account_columns(result) if result.step_time <= account_within else {}
        return {"status": "ok", "error": "", **step_time_metrics(result), **account}
    except InputError as problem:
        return {"status": "refused", "error": str(problem)}


def measure_with_account(text: str, layout: Layout | None) -> Row:
    """Return the numbers of a valid layout's step with the breakdown of its time.

    For 1,024 ranks it takes ten times as long.
    """
    result = simulate_scenario(_with_layout(text, layout))
    return {"status": "ok", "error": "", **step_time_metrics(result), **account_columns(result)}


def account_columns(result: Result) -> Row:
    """Return the numbers that a timed row lacks: columns of a plan's table, and the time breakdown."""
    return {
        **{name: metric.of(result) for name, metric in table_metrics("plan").items()},
        "exposed_communication_s": exposed_communication(result),
        "breakdown_s": dict(result.times.breakdown),
        "account": result.account.to_dict(),
    }


def _with_layout(text: str, layout: Layout | None) -> Scenario:
    base = _read_base(text)
    return layout.on(base) if layout else base


@lru_cache(maxsize=1)
def _read_base(text: str) -> Scenario:
    """Return a base scenario, parsed once per process so that all its layouts share one cluster object."""
    return from_document(json.loads(text))


@dataclass
class LayoutPlayer:
    """Rows of one base scenario's simulated layouts, by number, backed by a store of finished rows.

    ``text`` is the scenario's document as JSON, as ``measured`` takes it.
    """

    base: Scenario
    store: Store
    rows: dict[int, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        document = self.base.document()
        self.text = json.dumps(document)
        self._keys = VariantKeys(Base(document))

    def stored(self, layout: Layout | None) -> Row | None:
        """Return the stored row of a layout (None: the scenario's own layout), or None if there is none."""
        return self.store.row(self._key_of_layout(layout))

    def keep(self, layout: Layout | None, row: Row) -> None:
        """Store a finished row; it replaces an earlier one."""
        key = self._key_of_layout(layout)
        self.store.forget([key])
        self.store.add([(key, row)])

    def _key_of_layout(self, layout: Layout | None) -> str:
        return self._keys.key_of_changes(*(layout.values().items() if layout else ()))


class Workers(Protocol):
    """Interface of workers that simulate layouts: ``free`` of them are idle."""

    @property
    def free(self) -> int: ...

    def begin(self, task: LayoutTask) -> None:
        """Give a task to a free worker."""

    def finished(self, seconds: float) -> list[tuple[LayoutTask, Row]]:
        """Return finished tasks with their rows, after waiting at most ``seconds`` for one."""


class LocalWorker:
    """Single worker in this process, which simulates its task when finished tasks are requested."""

    def __init__(self) -> None:
        self._tasks: list[LayoutTask] = []

    @property
    def free(self) -> int:
        return 1 - len(self._tasks)

    def begin(self, task: LayoutTask) -> None:
        self._tasks.append(task)

    def finished(self, seconds: float) -> list[tuple[LayoutTask, Row]]:
        tasks, self._tasks = self._tasks, []
        return [(task, task.play()) for task in tasks]


class ProcessWorkers:
    """Workers in separate processes, which are ended at once when the search ends."""

    def __init__(self, count: int) -> None:
        self._crew: WorkerPool[LayoutTask, Row] = WorkerPool(LayoutTask.play, count)
        self._idle = list(range(count))
        self._busy: dict[int, LayoutTask] = {}

    @property
    def free(self) -> int:
        return len(self._idle)

    def begin(self, task: LayoutTask) -> None:
        member = self._idle.pop(0)
        self._busy[member] = task
        self._crew.submit(member, task)

    def finished(self, seconds: float) -> list[tuple[LayoutTask, Row]]:
        found = []
        for member, row in self._crew.wait_for_results(list(self._busy), seconds):
            task = self._busy.pop(member)
            self._idle.append(member)
            if row is None:
                raise InputError(_KILLED)
            found.append((task, row))
        return found

    def close(self) -> None:
        self._crew.close(now=True)


class ExecutorWorkers:
    """Workers of a concurrent.futures.Executor that belongs to the caller."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._many = int(getattr(executor, "_max_workers", 0) or 4)
        self._busy: dict[Future[Row], LayoutTask] = {}

    @property
    def free(self) -> int:
        return self._many - len(self._busy)

    def begin(self, task: LayoutTask) -> None:
        self._busy[self._executor.submit(task.play)] = task

    def finished(self, seconds: float) -> list[tuple[LayoutTask, Row]]:
        done = wait(self._busy, timeout=seconds, return_when=FIRST_COMPLETED).done
        try:
            return [(self._busy.pop(each), each.result()) for each in list(self._busy) if each in done]
        except BrokenProcessPool:
            raise InputError(_KILLED) from None

    def close(self) -> None:
        for future in self._busy:
            future.cancel()


@contextmanager
def make_workers(executor: Executor | int | None) -> Iterator[Workers]:
    """Yield workers for a search: a number of processes, this process (None or 1), or an executor's."""
    if executor is None or executor == 1:
        yield LocalWorker()
        return
    if isinstance(executor, int):
        require_processes(executor)
    workers = ProcessWorkers(executor) if isinstance(executor, int) else ExecutorWorkers(executor)
    try:
        yield workers
    finally:
        workers.close()
