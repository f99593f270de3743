"""Simulation of a sweep's variants in this process or on an executor; each variant yields a row of numbers."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from simcluster.base.errors import InputError
from simcluster.base.gc_pause import pause_gc
from simcluster.base.progress import estimate_limit, no_time_limit
from simcluster.results.result import flatten_result
from simcluster.scenario.scenario import ScenarioVariant
from simcluster.step.simulate import simulate_scenario

Row = dict[str, Any]
"""``status`` (ok, refused: invalid, failed), ``error``, and the numbers of the result."""
Numbered = tuple[int, Any]
"""A task and its number: a variant here; ``longrun/studies`` simulates chunks of runs in the same way."""
Finished = tuple[int, Row]
Measure = Callable[[Any], Row]
"""A function of a module that simulates a task."""
Chunk: TypeAlias = "tuple[list[Finished], float]"
"""The rows of a task's variants, and the seconds that they took."""

KILLED: Row = {"status": "failed", "error": "the process was killed; out of memory?"}
"""The row of a variant that kills its process."""

_CHUNK_SECONDS = 0.2  # short variants travel together: one task costs an executor up to 3 ms
_MOST_TOGETHER = 64
_LOOK_SECONDS = 5.0
_TASKS_AHEAD = 3  # tasks that wait for each worker: few, so that little is simulated twice after a kill


def simulate_variant(variant: ScenarioVariant) -> Row:
    """Simulate a variant; return a row with its numbers, or with the reason why it is invalid or failed."""
    try:
        return {"status": "ok", "error": "", **flatten_result(simulate_scenario(variant.scenario()).to_dict())}
    except InputError as problem:
        return {"status": "refused", "error": str(problem)}
    except Exception as problem:  # one variant must not end a sweep of thousands
        return {"status": "failed", "error": f"{type(problem).__name__}: {problem}"}


def simulate_serially(variants: Iterable[Numbered], measure: Measure = simulate_variant) -> Iterator[list[Finished]]:
    """Simulate variants one after the other in this process; yield lists of finished rows."""
    for number, variant in variants:
        yield [(number, measure(variant))]


class ExecutorMonitor:
    """Checks during a sweep whether the executor is still alive; subclasses know more about their executors."""

    def chunk_function(self) -> Callable[..., Chunk]:
        """Return the function that simulates a chunk of tasks on the executor."""
        return simulate_chunk

    def check_alive(self) -> None:
        """Raise InputError if the executor is lost; called while no task finishes."""

    def has_killed_process(self, problem: Exception) -> bool:
        """Return whether a failed task killed its process; raise InputError if it failed in any other way."""
        if isinstance(problem, BrokenExecutor):
            raise InputError(
                f"the executor is broken ({problem}); finished rows are stored if a store was given: run it "
                "again with a new executor"
            ) from None
        raise problem


def simulate_on_executor(
    executor: Executor, workers: int, variants: Iterable[Numbered], measure: Measure = simulate_variant,
    monitor: ExecutorMonitor | None = None,
) -> Iterator[list[Finished]]:  # fmt: skip
    """Simulate variants on an executor; yield lists of rows as they are finished.

    A few tasks are submitted ahead for each worker. A chunk that kills its process is simulated again, each variant
    alone; one that does so again is a failed row. InputError if a variant cannot be sent there, or the executor is
    lost.
    """
    monitor = monitor or ExecutorMonitor()
    simulate = monitor.chunk_function()
    if math.isinf(estimate_limit()):
        simulate = partial(_without_time_limit, simulate)
    rest, together, sent = iter(variants), 1, False
    suspects: list[Numbered] = []
    under_way: dict[Future[Chunk], list[Numbered]] = {}
    try:
        while True:
            while len(under_way) < _TASKS_AHEAD * workers:
                chunk = [suspects.pop()] if suspects else list(islice(rest, together))
                if not chunk:
                    break
                if not sent:
                    check_sendable(measure, chunk)
                sent = True
                try:
                    future = executor.submit(simulate, measure, chunk)
                except Exception as problem:  # any exception: a lost executor may be noticed here first
                    monitor.has_killed_process(problem)
                    raise
                under_way[future] = chunk
            if not under_way:
                return
            finished, _ = wait(under_way, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
            if not finished:
                monitor.check_alive()
            for future in [each for each in under_way if each in finished]:
                chunk = under_way.pop(future)
                try:
                    rows, seconds = future.result()
                except (Exception, CancelledError) as problem:  # executors raise anything
                    if monitor.has_killed_process(problem) and len(chunk) > 1:
                        suspects += chunk
                        continue
                    rows, seconds = [(chunk[0][0], dict(KILLED))], 0.0
                each = seconds / len(rows)
                together = max(1, min(_MOST_TOGETHER, int(_CHUNK_SECONDS / each) if each else _MOST_TOGETHER))
                yield rows
    finally:
        for future in under_way:
            future.cancel()


def _without_time_limit(simulate: Callable[..., Chunk], measure: Measure, chunk: Sequence[Numbered]) -> Chunk:
    """Simulate a chunk of tasks without a time limit, as a command does with the option --yes."""
    with no_time_limit():
        return simulate(measure, chunk)


def simulate_chunk(measure: Measure, chunk: Sequence[Numbered]) -> Chunk:
    """Simulate a chunk of tasks in this process; return their rows and the total time (s)."""
    begun = time.perf_counter()
    with pause_gc():  # between variants it would traverse all that they share
        rows = [(number, measure(variant)) for number, variant in chunk]
    return rows, time.perf_counter() - begun


def check_sendable(measure: Measure, chunk: Sequence[Numbered]) -> None:
    """Raise InputError if the measuring function or its tasks cannot be pickled for another process."""
    try:
        pickle.dumps((measure, chunk))
    except Exception as problem:  # pickle raises anything
        raise InputError(
            f"the task cannot be sent to another process: {problem}; define its function at the top level of a module, "
            "and use plain data as varied values"
        ) from None
