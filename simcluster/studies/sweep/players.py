"""Split a sweep over processes: variants that share most intermediate results go to the same process.

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

from simcluster.base.processes import WorkerPool, require_processes
from simcluster.documents.diagnostics import reject_argument
from simcluster.studies.sweep.dask_cluster import connect_to_dask
from simcluster.studies.sweep.playing import (
    KILLED,
    ExecutorMonitor,
    Finished,
    Measure,
    Numbered,
    check_sendable,
    simulate_chunk,
    simulate_on_executor,
    simulate_serially,
)

_CHUNK_SECONDS = 0.1  # work between reports of a process: rows that a kill may cost, and the wait at the end
_MOST_TOGETHER = 32
_WORTH_SECONDS = 0.2  # less is not moved: another process would compute its shared parts again

Key = tuple[str, ...]


class WorkSplit:
    """Ranges of a task list, one per process; neighbours in the list share as much work as their keys."""

    def __init__(self, keys: Sequence[Key], members: int) -> None:
        self._keys = keys
        self._parts = [range(len(keys)), *(range(0) for _ in range(members - 1))]
        self._seconds = [math.inf] * members  # per task of the last that a member has done

    def take(self, member: int) -> range:
        """Return the next tasks of a process; empty if no remaining work is worth moving to it."""
        if not self._parts[member]:
            self._take_half_of_longest(member)
        part = self._parts[member]
        count = max(1, min(_MOST_TOGETHER, int(_CHUNK_SECONDS / max(self._seconds[member], 1e-9))))
        self._parts[member] = part[count:]
        return part[:count]

    def took(self, member: int, seconds: float) -> None:
        """Record the mean time (s) of a process's last tasks."""
        self._seconds[member] = seconds

    def _take_half_of_longest(self, member: int) -> None:
        """Move the second half of the longest remaining range to a process."""
        other = max(range(len(self._parts)), key=lambda each: len(self._parts[each]))
        part = self._parts[other]
        if not part or len(part) * self._seconds[other] < _WORTH_SECONDS:
            return
        quarter = len(part) // 4
        middle = range(part.start + max(quarter, 1), part.stop - quarter)
        cut = min(
            middle, key=lambda at: (self._shared_keys(at), abs(2 * at - part.start - part.stop)), default=part.start
        )
        self._parts[other], self._parts[member] = range(part.start, cut), range(cut, part.stop)

    def _shared_keys(self, at: int) -> int:
        """Return the number of leading key entries that a task shares with the previous task."""
        pairs = enumerate(zip(self._keys[at - 1], self._keys[at], strict=True))
        return next((place for place, (one, other) in pairs if one != other), len(self._keys[at]))


def simulate_in_processes(
    variants: Sequence[Numbered], keys: Sequence[Key], workers: int, measure: Measure
) -> Iterator[list[Finished]]:
    """Simulate variants in separate processes; yield lists of finished rows.

    Where a process dies, its variants are simulated again, each alone with nothing concurrent; one that kills its
    process again is a failed row. InputError if a variant cannot be sent.
    """
    require_processes(workers)
    check_sendable(measure, variants[:1])
    workers = min(workers, len(variants))
    deal, crew = WorkSplit(keys, workers), WorkerPool(partial(simulate_chunk, measure), workers)
    under_way: dict[int, Sequence[Numbered]] = {}
    suspects: list[Numbered] = []

    def give() -> None:
        """Give work to all idle processes."""
        for member in range(workers):
            if member not in under_way and not suspects and (part := deal.take(member)):
                under_way[member] = variants[part.start : part.stop]
                crew.submit(member, under_way[member])

    try:
        give()
        while under_way:
            for member, answer in crew.wait_for_results(list(under_way)):
                chunk = under_way.pop(member)
                if answer is None:
                    suspects += chunk
                    continue
                rows, seconds = answer
                deal.took(member, seconds / len(chunk))
                give()  # before the rows are stored
                yield rows
            for suspect in suspects if not under_way else ():
                crew.submit(0, [suspect])
                ((_, alone),) = crew.wait_for_results([0])
                yield [(suspect[0], dict(KILLED))] if alone is None else alone[0]
            if not under_way:
                suspects.clear()
            give()
    except BaseException:
        crew.close(now=True)
        raise
    crew.close()


@dataclass(frozen=True)
class SweepExecutor:
    """Executor of a sweep: a number of ``processes``, an ``executor`` of the caller, or by default this process.

    An ``executor`` works on ``at_once`` tasks at a time, watched by ``lookout``.
    """

    processes: int | None = None
    executor: Executor | None = None
    at_once: int = 1
    lookout: ExecutorMonitor | None = None

    def play(self, tasks: Iterable[Numbered], keys: Sequence[Key], measure: Measure) -> Iterator[list[Finished]]:
        """Simulate tasks and yield lists of finished rows; neighbours with equal ``keys`` share work."""
        if self.executor is not None:
            return simulate_on_executor(self.executor, self.at_once, tasks, measure, self.lookout)
        if self.processes is not None:
            return simulate_in_processes(list(tasks), keys, self.processes, measure)
        return simulate_serially(tasks, measure)


@contextmanager
def open_executor(executor: Executor | int | str | None) -> Iterator[SweepExecutor]:
    """Yield the executor of a sweep: processes, a concurrent.futures.Executor, "dask://HOST:PORT", or None.

    InputError if no scheduler answers there, it has no workers, or one of them has another simulator.
    """
    if executor is None:
        yield SweepExecutor()
    elif isinstance(executor, Integral) and not isinstance(executor, bool):
        require_processes(int(executor))
        yield SweepExecutor(int(executor), at_once=int(executor))
    elif isinstance(executor, str):
        with connect_to_dask(executor) as (cluster, workers, lookout):
            yield SweepExecutor(executor=cluster, at_once=workers, lookout=lookout)
    elif not callable(getattr(executor, "submit", None)):
        takes = 'a number of processes, an executor of concurrent.futures, or "dask://HOST:PORT"'
        reject_argument(executor, "executor", takes)
    else:
        assert not isinstance(executor, int)
        yield SweepExecutor(executor=executor, at_once=int(getattr(executor, "_max_workers", 0) or 4))
