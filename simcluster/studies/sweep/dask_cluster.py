"""Executor on a Dask cluster; checks that all workers run the same simulator version, and reports a lost cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

from simcluster.base.errors import InputError
from simcluster.base.version import sources_digest
from simcluster.studies.sweep.variant_simulation import ExecutorMonitor, Finished, Measure, Numbered, simulate_chunk

if TYPE_CHECKING:
    from distributed import Client

Answer = TypeVar("Answer")
DASK_PREFIX = "dask://"
_CONNECT_SECONDS = 10
_CHECK_SECONDS = 30  # for workers to report their simulator; silent ones are checked with their first task
_ANSWER_SECONDS = 15  # without an answer the scheduler or its connection is lost
_GRACE_SECONDS = 2.0  # of grace for Dask's timeout
_EMPTY_SECONDS = 30  # an autoscaling cluster may be without workers for a while
_OTHER = "has other versions of simcluster, numpy, scipy, networkx or SimPy than this process; results must not mix"
_REASONS = {
    "CancelledError": "the connection to the Dask scheduler broke",
    "TimeoutError": "the Dask scheduler does not answer",
}
_LOOPS = ("asyncio", "tornado.application")
_REMEDY = "restart the workers in the environment of this command"


def compute_worker_digest() -> str:
    """Return the digest of the simulator's source files on the Dask worker that calls this function."""
    return sources_digest()


def simulate_if_same_version(digest: str, measure: Measure, chunk: Sequence[Numbered]) -> tuple[list[Finished], float]:
    """Simulate a chunk of tasks; raise InputError if this worker's source files have another digest."""
    if sources_digest() != digest:
        raise InputError(f"a worker of the Dask cluster {_OTHER}; {_REMEDY}")
    return simulate_chunk(measure, chunk)


def call_with_timeout(seconds: float, call: Callable[[], Answer]) -> Answer:
    """Return the result of a call that might hang; raise TimeoutError after ``seconds``.

    Dask's own limits do not cover a scheduler that accepts a connection and never answers, as across a network that
    drops packets.
    """
    answers: SimpleQueue[tuple[Answer | None, BaseException | None]] = SimpleQueue()

    def run_call() -> None:
        try:
            answers.put((call(), None))
        except BaseException as problem:
            answers.put((None, problem))

    Thread(target=run_call, name="call to Dask", daemon=True).start()
    try:
        answer, problem = answers.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if problem is not None:
        raise problem
    return cast("Answer", answer)


@contextmanager
def connect_to_dask(address: str) -> Iterator[tuple[Executor, int, ExecutorMonitor]]:
    """Yield an executor on a Dask cluster, its number of workers, and a monitor of the cluster.

    InputError if no scheduler answers there, it has no workers, or one of them has another simulator.
    """
    if not address.startswith(DASK_PREFIX) or address == DASK_PREFIX:
        quotes = f"{address}, without quotes" if address.isdecimal() else "a number of processes"
        raise InputError(f"executor {address!r} is invalid; write {quotes}, or dask://HOST:PORT of a Dask scheduler")
    try:
        from distributed import Client
    except ImportError:
        raise InputError(f"executor {address!r} needs Dask; pip install 'simcluster[dask]'") from None
    with _silence_dask():
        try:
            url = "tcp://" + address.removeprefix(DASK_PREFIX)
            client = call_with_timeout(_CONNECT_SECONDS + _GRACE_SECONDS, lambda: Client(url, timeout=_CONNECT_SECONDS))
        except (OSError, ValueError) as problem:
            raise InputError(
                f"executor {address!r}: no Dask scheduler answers there ({problem}); start one "
                "by the command dask scheduler, or give a number of processes"
            ) from None
        cluster = _DaskCluster(address, client)
        try:
            workers = cluster.list_workers()
            if not workers:
                raise InputError(f"executor {address!r}: the scheduler has no workers; start workers by: dask worker")
            cluster.check_workers(workers)
            yield client.get_executor(pure=False), len(workers), cluster
        finally:
            with suppress(Exception):  # a lost cluster cannot be closed
                seconds = 2 if cluster.lost else _CONNECT_SECONDS
                call_with_timeout(seconds + _GRACE_SECONDS, lambda: client.close(timeout=seconds))


@dataclass
class _DaskCluster(ExecutorMonitor):
    """Monitor of a Dask cluster: checks the workers, and the connection to the scheduler."""

    address: str
    client: Client
    lost: bool = field(default=False, init=False)
    _empty_since: float | None = field(default=None, init=False)

    def list_workers(self) -> list[str]:
        """Return the addresses of the workers; raise InputError if the scheduler does not answer."""
        try:
            if self.client.status != "running":
                raise ConnectionError(_REASONS["CancelledError"])  # Dask tries to reconnect without a message
            about: dict[str, Any] = call_with_timeout(
                _ANSWER_SECONDS + _GRACE_SECONDS,
                lambda: self.client.sync(self.client.scheduler.identity, callback_timeout=_ANSWER_SECONDS),
            )
        except Exception as problem:  # whatever Dask, its sockets and its event loop raise
            raise self._lost_cluster_error(problem) from None
        return list(about["workers"])

    def check_workers(self, workers: Sequence[str]) -> None:
        """Raise InputError if a worker lacks the simulator or has another version; skip workers that do not answer."""
        from distributed import wait

        mine = sources_digest()
        asked = {worker: self.client.submit(compute_worker_digest, workers=[worker], pure=False) for worker in workers}
        with suppress(Exception):  # some may be on their way down
            wait(list(asked.values()), timeout=_CHECK_SECONDS)
        for worker, future in asked.items():
            if future.status not in ("error", "finished"):
                continue
            try:
                problem = future.exception(timeout=_ANSWER_SECONDS)
                same = problem is None and future.result(timeout=_ANSWER_SECONDS) == mine
            except (OSError, RuntimeError) as lost:  # the scheduler is gone by now
                raise self._lost_cluster_error(lost) from None
            if problem is not None:
                why = f"cannot run simcluster: {problem}"
                raise InputError(f"executor {self.address!r}: worker {worker} {why}; {_REMEDY}")
            if not same:
                raise InputError(f"executor {self.address!r}: worker {worker} {_OTHER}: {_REMEDY}")

    def chunk_function(self) -> Callable[..., tuple[list[Finished], float]]:
        return partial(simulate_if_same_version, sources_digest())

    def check_alive(self) -> None:
        if self.list_workers():
            self._empty_since = None
            return
        self._empty_since = self._empty_since or time.monotonic()
        if time.monotonic() - self._empty_since > _EMPTY_SECONDS:
            raise self._lost_cluster_error("the Dask cluster has no workers left")

    def has_killed_process(self, problem: Exception) -> bool:
        from distributed import KilledWorker

        if isinstance(problem, KilledWorker):
            return True
        if isinstance(problem, InputError):
            raise problem
        raise self._lost_cluster_error(problem)

    def _lost_cluster_error(self, problem: object) -> InputError:
        self.lost = True
        why = str(problem) or _REASONS.get(type(problem).__name__, type(problem).__name__)
        return InputError(
            f"executor {self.address!r}: the Dask cluster is lost ({why}); finished rows are stored, if a "
            "file was given: run the same command again when the scheduler and workers are back"
        )


@contextmanager
def _silence_dask() -> Iterator[None]:
    """Silence Dask's logs and tracebacks; this module's messages replace them.

    The event loop of a lost cluster continues to complain afterwards, so then all stays silent.
    """
    logs = [logging.getLogger(name) for name in ("distributed", *logging.root.manager.loggerDict)]
    before = {log: log.level for log in logs if log.name.partition(".")[0] == "distributed"}
    for log in before:  # some have separate levels
        log.setLevel(logging.CRITICAL + 1)
    for name in _LOOPS:
        logging.getLogger(name).addFilter(_is_foreign_record)  # the same filter is added once
    yield
    for log, level in before.items():
        log.setLevel(level)
    for name in _LOOPS:
        logging.getLogger(name).removeFilter(_is_foreign_record)


def _is_foreign_record(record: logging.LogRecord) -> bool:
    """Return whether a log record of an event loop comes from code other than Dask."""
    trace = record.exc_info[2] if record.exc_info else None
    while trace is not None:
        if "distributed" in trace.tb_frame.f_globals.get("__name__", ""):
            return False
        trace = trace.tb_next
    return "distributed" not in record.getMessage()
