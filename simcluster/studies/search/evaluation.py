"""Simulation of layouts in this process, in other processes or on an executor, with a store of their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from simcluster.base.errors import InputError
from simcluster.base.processes import WorkerPool, check_process_count
from simcluster.base.store import RowStore
from simcluster.results.result import Result
from simcluster.results.step_metrics import exposed_communication, step_time_metrics, table_metrics
from simcluster.scenario.file_digests import VariantCacheKeys
from simcluster.scenario.scenario import BaseScenario, Scenario, from_document
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.search.layout import Layout
from simcluster.studies.sweep.quick_steps import quick_step_numbers, quick_step_time
from simcluster.studies.sweep.stage_network import NeedsFullRunError

Row = dict[str, Any]
_KILLED = (
    "a process that simulated a layout was killed, perhaps for lack of memory; finished layouts are stored (with -o): "
    "run the same command again with fewer processes (--executor 1)"
)


class SearchState(NamedTuple):
    """Progress of a layout search: its phase, the best layout so far, that layout's step time (s) and the proven gap.

    Another layout may be better than it by the fraction ``gap`` at most. ``num_left`` is how many layouts may still
    have to be simulated (None: not known yet), ``num_simulated`` how many were. ``first_layout`` is the layout that is
    simulated first, since practice would try it, and it fits; its step takes at least ``first_layout_bound`` (s).
    ``is_own_layout``: the best so far is the scenario's own layout.
    """

    phase: str
    layout: Layout | None
    step_time: float
    gap: float | None
    num_simulated: int
    num_left: int | None
    seconds: float
    seconds_left: float | None
    first_layout: Layout | None = None
    first_layout_bound: float = 0.0
    is_own_layout: bool = False


Progress = Callable[[SearchState], object]


class LayoutTask(NamedTuple):
    """Task of simulating a base scenario with another layout; None means the scenario's own layout.

    Rows have a breakdown ``with_breakdown``, which takes ten times as long for 1,024 ranks; otherwise only steps that
    are simulated in full and take at most ``breakdown_within`` seconds have one.
    """

    base_document: str
    layout: Layout | None
    with_breakdown: bool
    breakdown_within: float = 0.0

    def simulate(self) -> Row:
        """Simulate the layout; return its results as a flat table row."""
        if not self.with_breakdown:
            return simulate_layout(self.base_document, self.layout, self.breakdown_within)
        result = simulate_scenario(_scenario_with_layout(self.base_document, self.layout))
        return {"status": "ok", "error": "", **step_time_metrics(result), **breakdown_columns(result)}


def simulate_layout(text: str, layout: Layout | None, account_within: float = 0.0) -> Row:
    """Return the results of a layout's step, by the quick step (``sweep.quick_steps``) where the quick step is exact.

    A step that is simulated in full and takes at most ``account_within`` seconds has its breakdown as well, so that it
    is not simulated again.
    """
    try:
        scenario = _scenario_with_layout(text, layout)
        with suppress(NeedsFullRunError):
            return {"status": "ok", "error": "", **quick_step_numbers(scenario, quick_step_time(scenario))}
        result = simulate_scenario(scenario)
        account = breakdown_columns(result) if result.step_time <= account_within else {}
        return {"status": "ok", "error": "", **step_time_metrics(result), **account}
    except InputError as problem:
        return {"status": "refused", "error": str(problem)}


def breakdown_columns(result: Result) -> Row:
    """Return the results that need a full simulation: metrics of the plan table, and the time breakdown."""
    return {
        **{name: metric.formula(result) for name, metric in table_metrics("plan").items()},
        "exposed_communication_s": exposed_communication(result),
        "breakdown_s": dict(result.times.breakdown),
        "account": result.account.to_dict(),
    }


def _scenario_with_layout(text: str, layout: Layout | None) -> Scenario:
    base = _parse_base_scenario(text)
    return layout.apply_to(base) if layout else base


@lru_cache(maxsize=1)
def _parse_base_scenario(text: str) -> Scenario:
    """Parse a base scenario once per process; all layouts of the scenario share one cluster object."""
    return from_document(json.loads(text))


@dataclass
class SimulatedLayouts:
    """Results of a scenario's simulated layouts by layout number, also kept in a file if the user names one.

    ``text`` is the scenario's document as JSON, as ``simulate_layout`` takes it.
    """

    base: Scenario
    store: RowStore
    rows: dict[int, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        document = self.base.document()
        self.text = json.dumps(document)
        self._keys = VariantCacheKeys(BaseScenario(document))

    def find_stored_row(self, layout: Layout | None) -> Row | None:
        """Return the stored results of a layout (None: the scenario's own layout); None if no results are stored."""
        return self.store.read_row(self._key_of_layout(layout))

    def store_row(self, layout: Layout | None, row: Row) -> None:
        """Store the results of a simulated layout; replace earlier results of this layout."""
        key = self._key_of_layout(layout)
        self.store.delete_rows([key])
        self.store.add_rows([(key, row)])

    def _key_of_layout(self, layout: Layout | None) -> str:
        return self._keys.cache_key_of_changes(*(layout.scenario_changes().items() if layout else ()))


class LayoutWorkers(Protocol):
    """Interface of workers that simulate layouts in the background."""

    @property
    def num_idle(self) -> int: ...

    def submit_task(self, task: LayoutTask) -> None:
        """Give a task to an idle worker."""

    def collect_finished(self, seconds: float) -> list[tuple[LayoutTask, Row]]:
        """Return finished tasks with their results; wait at most ``seconds`` for the first task."""


class LocalWorker:
    """Single worker in this process; it simulates a task only when the search asks for finished tasks."""

    def __init__(self) -> None:
        self._tasks: list[LayoutTask] = []

    @property
    def num_idle(self) -> int:
        return 1 - len(self._tasks)

    def submit_task(self, task: LayoutTask) -> None:
        self._tasks.append(task)

    def collect_finished(self, seconds: float) -> list[tuple[LayoutTask, Row]]:
        tasks, self._tasks = self._tasks, []
        return [(task, task.simulate()) for task in tasks]


class ProcessWorkers:
    """Workers in separate processes, which are killed when the search ends."""

    def __init__(self, count: int) -> None:
        self._crew: WorkerPool[LayoutTask, Row] = WorkerPool(LayoutTask.simulate, count)
        self._idle = list(range(count))
        self._busy: dict[int, LayoutTask] = {}

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def submit_task(self, task: LayoutTask) -> None:
        member = self._idle.pop(0)
        self._busy[member] = task
        self._crew.submit(member, task)

    def collect_finished(self, seconds: float) -> list[tuple[LayoutTask, Row]]:
        found = []
        for member, row in self._crew.wait_for_results(list(self._busy), seconds):
            task = self._busy.pop(member)
            self._idle.append(member)
            if row is None:
                raise InputError(_KILLED)
            found.append((task, row))
        return found

    def close(self) -> None:
        self._crew.close(at_once=True)


class ExecutorWorkers:
    """Workers of the caller's concurrent.futures.Executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._many = int(getattr(executor, "_max_workers", 0) or 4)
        self._busy: dict[Future[Row], LayoutTask] = {}

    @property
    def num_idle(self) -> int:
        return self._many - len(self._busy)

    def submit_task(self, task: LayoutTask) -> None:
        self._busy[self._executor.submit(task.simulate)] = task

    def collect_finished(self, seconds: float) -> list[tuple[LayoutTask, Row]]:
        done = wait(self._busy, timeout=seconds, return_when=FIRST_COMPLETED).done
        try:
            return [(self._busy.pop(each), each.result()) for each in list(self._busy) if each in done]
        except BrokenProcessPool:
            raise InputError(_KILLED) from None

    def close(self) -> None:
        for future in self._busy:
            future.cancel()


@contextmanager
def make_workers(executor: Executor | int | None) -> Iterator[LayoutWorkers]:
    """Yield the workers of a search: N processes, this process (None or 1), or an executor's workers."""
    if executor is None or executor == 1:
        yield LocalWorker()
        return
    if isinstance(executor, int):
        check_process_count(executor)
    workers = ProcessWorkers(executor) if isinstance(executor, int) else ExecutorWorkers(executor)
    try:
        yield workers
    finally:
        workers.close()
