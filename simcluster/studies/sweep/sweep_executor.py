"""Executors of a sweep; each process gets variants that share many intermediate results.

A variant takes some milliseconds because most of its parts are cached by others: the network of its layout (50 ms), the
order of its schedule, its passes. So each process has a separate range of all variants, ordered by that; a process that
is done takes half of the longest remaining range, cut where neighbours share least. (1,000 configurations of 175B on
1,024 GPUs, two processes: each of 23 networks is routed in one of them alone, and they end within 0.2 s of each other.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Integral

from simcluster.base.processes import WorkerPool, check_process_count
from simcluster.documents.diagnostics import reject_argument
from simcluster.studies.sweep import variant_simulation
from simcluster.studies.sweep.dask_cluster import connect_to_dask
from simcluster.studies.sweep.variant_simulation import KILLED, Finished, Measure, Numbered, simulate_on_executor

_CHUNK_SECONDS = 0.1  # work between reports of a process: rows that a kill may cost, and the wait at the end
_MOST_TOGETHER = 32
_WORTH_SECONDS = 0.2  # less is not moved: another process would compute its shared parts again

Key = tuple[str, ...]


class WorkSplit:
    """Split of a task list into a range of tasks for each process; neighbouring tasks share work."""

    def __init__(self, keys: Sequence[Key], members: int) -> None:
        self._keys = keys
        self._parts = [range(len(keys)), *(range(0) for _ in range(members - 1))]
        self.seconds_per_task = [math.inf] * members  # of the last tasks that each process has done

    def take_tasks(self, process: int) -> range:
        """Return the next tasks of a process; empty if no tasks are left, or moving tasks is not worth it."""
        if not self._parts[process]:
            self._take_half_of_longest(process)
        part = self._parts[process]
        count = max(1, min(_MOST_TOGETHER, int(_CHUNK_SECONDS / max(self.seconds_per_task[process], 1e-9))))
        self._parts[process] = part[count:]
        return part[:count]

    def _take_half_of_longest(self, member: int) -> None:
        """Move the second half of the longest remaining range to this process."""
        other = max(range(len(self._parts)), key=lambda each: len(self._parts[each]))
        part = self._parts[other]
        if not part or len(part) * self.seconds_per_task[other] < _WORTH_SECONDS:
            return
        quarter = len(part) // 4
        cuts = range(part.start + max(quarter, 1), part.stop - quarter)
        cut = min(
            cuts, key=lambda at: (self._count_shared_keys(at), abs(2 * at - part.start - part.stop)), default=part.start
        )
        self._parts[other], self._parts[member] = range(part.start, cut), range(cut, part.stop)

    def _count_shared_keys(self, task: int) -> int:
        """Count the leading entries that a task's key has in common with the previous task's key."""
        pairs = enumerate(zip(self._keys[task - 1], self._keys[task], strict=True))
        return next((place for place, (one, other) in pairs if one != other), len(self._keys[task]))


def simulate_in_processes(
    variants: Sequence[Numbered], keys: Sequence[Key], workers: int, measure: Measure
) -> Iterator[list[Finished]]:
    """Simulate variants in separate processes; yield lists of finished rows.

    Where a process dies, its variants are simulated again, each alone with nothing concurrent; one that kills its
    process again is a failed row. InputError if a variant cannot be sent.
    """
    check_process_count(workers)
    variant_simulation.check_sendable(measure, variants[:1])
    workers = min(workers, len(variants))
    deal, crew = WorkSplit(keys, workers), WorkerPool(partial(variant_simulation.simulate_chunk, measure), workers)
    under_way: dict[int, Sequence[Numbered]] = {}
    suspects: list[Numbered] = []

    def submit_work() -> None:
        """Give tasks to all idle processes."""
        for member in range(workers):
            if member not in under_way and not suspects and (part := deal.take_tasks(member)):
                under_way[member] = variants[part.start : part.stop]
                crew.submit(member, under_way[member])

    try:
        submit_work()
        while under_way:
            for member, answer in crew.wait_for_results(list(under_way)):
                chunk = under_way.pop(member)
                if answer is None:
                    suspects += chunk
                    continue
                rows, seconds = answer
                deal.seconds_per_task[member] = seconds / len(chunk)
                submit_work()  # before the rows are stored
                yield rows
            for suspect in suspects if not under_way else ():
                crew.submit(0, [suspect])
                ((_, alone),) = crew.wait_for_results([0])
                yield [(suspect[0], dict(KILLED))] if alone is None else alone[0]
            if not under_way:
                suspects.clear()
            submit_work()
    except BaseException:
        crew.close(at_once=True)
        raise
    crew.close()


@dataclass(frozen=True)
class SweepExecutor:
    """Executor of a sweep: N processes, an executor that the caller passes, or by default this process.

    An ``executor`` works on ``num_concurrent`` tasks at a time, watched by ``monitor``.
    """

    processes: int | None = None
    executor: Executor | None = None
    num_concurrent: int = 1
    monitor: variant_simulation.ExecutorMonitor | None = None

    def simulate(self, tasks: Iterable[Numbered], keys: Sequence[Key], measure: Measure) -> Iterator[list[Finished]]:
        """Simulate tasks and yield lists of finished rows; tasks with equal ``keys`` share work."""
        if self.executor is not None:
            return simulate_on_executor(self.executor, self.num_concurrent, tasks, measure, self.monitor)
        if self.processes is not None:
            return simulate_in_processes(list(tasks), keys, self.processes, measure)
        return variant_simulation.simulate_serially(tasks, measure)


@contextmanager
def open_executor(executor: Executor | int | str | None) -> Iterator[SweepExecutor]:
    """Yield the executor of a sweep, given a number of processes, an Executor, "dask://HOST:PORT" or None.

    InputError if no scheduler answers there, it has no workers, or one of them has another simulator.
    """
    if executor is None:
        yield SweepExecutor()
    elif isinstance(executor, Integral) and not isinstance(executor, bool):
        check_process_count(int(executor))
        yield SweepExecutor(int(executor), num_concurrent=int(executor))
    elif isinstance(executor, str):
        with connect_to_dask(executor) as (cluster, workers, lookout):
            yield SweepExecutor(executor=cluster, num_concurrent=workers, monitor=lookout)
    elif not callable(getattr(executor, "submit", None)):
        takes = 'a number of processes, an executor of concurrent.futures, or "dask://HOST:PORT"'
        reject_argument(executor, "executor", takes)
    else:
        assert not isinstance(executor, int)
        yield SweepExecutor(executor=executor, num_concurrent=int(getattr(executor, "_max_workers", 0) or 4))
