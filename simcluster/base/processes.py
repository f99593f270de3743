"""Worker processes: a single asynchronous call (``ProcessCall``), and a pool for many tasks (``WorkerPool``)."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from simcluster.base.errors import InputError

T = TypeVar("T")
Task = TypeVar("Task")
Answer = TypeVar("Answer")

_WORKER = """
import pickle
from simcluster.base.errors import InputError
try:
    answer = pickle.load(sys.stdin.buffer)()
except InputError as error:
    answer = error
sys.stdout.buffer.write(pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))
"""


def check_process_count(count: int) -> None:
    """Raise InputError if the number of processes is below 1."""
    if count < 1:
        raise InputError(f"{count} processes cannot simulate anything; use at least 1 (--executor 1, --workers 1)")


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProcessCall(Generic[T]):
    """Function call in a new Python process, concurrent with this process.

    The function is one of a module, bound to picklable arguments.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{_WORKER}"]
        self._helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._helper.stdin is not None
        self._helper.stdin.write(pickle.dumps(call, protocol=pickle.HIGHEST_PROTOCOL))
        self._helper.stdin.close()

    def result(self) -> T:
        """Wait for the call and return its result, or raise its InputError."""
        assert self._helper.stdout is not None
        answer = self._helper.stdout.read()
        self._helper.stdout.close()
        if self._helper.wait():
            raise RuntimeError("a worker process has failed; its message is above")
        found = pickle.loads(answer)
        if isinstance(found, InputError):
            raise found
        return found  # type: ignore[no-any-return]


def map_in_processes(call: Callable[[Sequence[int]], Sequence[T]], numbers: Sequence[int], processes: int) -> list[T]:
    """Call a function on parts of ``numbers`` in several processes; return all results in order.

    ``call`` is a function of a module, bound to what can be pickled, that takes a list of numbers and returns a result
    for each. Of n processes each gets every n-th number.
    """
    dealt = [numbers[place::processes] for place in range(processes)]
    helpers = [ProcessCall(partial(call, own)) for own in dealt[1:]]
    answers = [call(dealt[0]), *(helper.result() for helper in helpers)]
    return [answers[place % processes][place // processes] for place in range(len(numbers))]


def multiprocessing_context() -> BaseContext:
    """Return the multiprocessing context: fork where that is safe, otherwise spawn.

    A forked copy has all that this process has imported and read (0.01 s); it is safe on Linux with no other thread,
    whose locks a copy could hold forever. A spawned Python imports everything anew (0.6 s).
    """
    copied = sys.platform == "linux" and threading.active_count() == 1
    return get_context("fork" if copied else "spawn")


class WorkerPool(Generic[Task, Answer]):
    """Pool of worker processes, each of which calls one function on one task at a time.

    Each has its own pipe, so that the task of a process that dies is known and no process waits for another. They end
    when their pipe closes, also if this process is killed.
    """

    def __init__(self, call: Callable[[Task], Answer], count: int) -> None:
        self._call = call
        self._members = [self._start_worker() for _ in range(count)]

    def _start_worker(self) -> tuple[BaseProcess, Connection]:
        ways = multiprocessing_context()
        mine, theirs = ways.Pipe()
        process = ways.Process(target=_serve_tasks, args=(self._call, theirs, mine))  # type: ignore[attr-defined]
        with _block_signals():
            process.start()
        theirs.close()
        return process, mine

    def submit(self, worker: int, task: Task) -> None:
        """Send a task to an idle worker; if the worker has died, ``wait_for_results`` reports it."""
        with suppress(OSError):
            self._members[worker][1].send(task)

    def wait_for_results(self, workers: list[int], seconds: float | None = None) -> list[tuple[int, Answer | None]]:
        """Wait until any of these workers is done; return (worker, result) pairs, None for a dead worker.

        A dead worker is replaced. Raises what the function raised. Waits at most ``seconds``, if given.
        """
        pipes = {self._members[member][1]: member for member in workers}
        there = wait(list(pipes), seconds)
        return [(pipes[pipe], self._receive_result(pipes[pipe])) for pipe in pipes if pipe in there]

    def _receive_result(self, worker: int) -> Answer | None:
        process, pipe = self._members[worker]
        try:
            answer, error = pipe.recv()
        except (EOFError, OSError):
            pipe.close()
            process.join()
            self._members[worker] = self._start_worker()
            return None
        if error is not None:
            raise error
        return answer  # type: ignore[no-any-return]

    def close(self, *, at_once: bool = False) -> None:
        """Stop the workers: after their current tasks, or immediately if ``at_once`` is true."""
        for process, pipe in self._members:
            pipe.close()
            if at_once:
                process.terminate()
        for process, _ in self._members:
            process.join()


@contextmanager
def _block_signals() -> Iterator[None]:
    """Block SIGINT and SIGTERM while a child process starts, until it has set signal handlers.

    A copy of this process would raise what the handlers of this one raise: that unwinds its copy of the stack, so the
    copy would continue the work of this process, which waits for its end.
    """
    _mask_stop_signals(signal.SIG_BLOCK)
    try:
        yield
    finally:
        _mask_stop_signals(signal.SIG_UNBLOCK)


def _mask_stop_signals(how: int) -> None:
    if sys.platform != "win32":
        signal.pthread_sigmask(how, (signal.SIGINT, signal.SIGTERM))


def _serve_tasks(call: Callable[[Task], Answer], pipe: Connection, parent_end: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked copy inherits the handler of its parent
    try:
        _mask_stop_signals(signal.SIG_UNBLOCK)
        parent_end.close()
        while True:
            task = pipe.recv()
            try:
                answer = call(task), None
            except Exception as error:  # raised in the parent
                pipe.send((None, error))
            else:
                pipe.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # no process waits for it any more
