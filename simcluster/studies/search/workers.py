"""Players of layouts: this process, processes of our own, or an executor that is given."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from simcluster.base.errors import InputError
from simcluster.base.processes import Crew, require_processes
from simcluster.studies.search.playing import Row, accounted, measured
from simcluster.studies.search.space import Layout

_KILLED = (
    "a process that played a layout was killed; out of memory? What is finished is stored (with -o): run the same "
    "command again, with fewer processes (--executor 1)"
)


class LayoutTask(NamedTuple):
    """A layout to simulate, of a base scenario (its document as JSON); None is the scenario's own.

    All have an account ``with_account``; otherwise those that are simulated in full and take at most
    ``account_within`` seconds.
    """

    text: str
    layout: Layout | None
    with_account: bool
    account_within: float = 0.0

    def play(self) -> Row:
        """Its numbers."""
        if self.with_account:
            return accounted(self.text, self.layout)
        return measured(self.text, self.layout, self.account_within)


class Workers(Protocol):
    """Who plays layouts: ``free`` of them have nothing to do."""

    @property
    def free(self) -> int: ...

    def begin(self, task: LayoutTask) -> None:
        """Give one that is free a task."""

    def finished(self, seconds: float) -> list[tuple[LayoutTask, Row]]:
        """What is done, waiting for it so long at most."""


class InThisProcess:
    """Plays here, one at a time, when it is asked what is done."""

    def __init__(self) -> None:
        self._task: LayoutTask | None = None

    @property
    def free(self) -> int:
        """One if nothing waits to be played."""
        return int(self._task is None)

    def begin(self, task: LayoutTask) -> None:
        """To be played when somebody waits for it."""
        self._task = task

    def finished(self, seconds: float) -> list[tuple[LayoutTask, Row]]:
        """The task, played, however long it takes."""
        if self._task is None:
            return []
        task, self._task = self._task, None
        return [(task, task.play())]


class InProcesses:
    """Processes of our own, which end at once when they are told to."""

    def __init__(self, count: int) -> None:
        self._crew: Crew[LayoutTask, Row] = Crew(LayoutTask.play, count)
        self._idle = list(range(count))
        self._busy: dict[int, LayoutTask] = {}

    @property
    def free(self) -> int:
        """How many have nothing to do."""
        return len(self._idle)

    def begin(self, task: LayoutTask) -> None:
        """Send it to one of them."""
        member = self._idle.pop(0)
        self._busy[member] = task
        self._crew.begin(member, task)

    def finished(self, seconds: float) -> list[tuple[LayoutTask, Row]]:
        """Of those that are busy, those that are first."""
        found = []
        for member, row in self._crew.finished(list(self._busy), seconds):
            task = self._busy.pop(member)
            self._idle.append(member)
            if row is None:
                raise InputError(_KILLED)
            found.append((task, row))
        return found

    def close(self) -> None:
        """Whatever they are at."""
        self._crew.close(now=True)


class OnExecutor:
    """Any concurrent.futures.Executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._many = int(getattr(executor, "_max_workers", 0) or 4)
        self._busy: dict[Future[Row], LayoutTask] = {}

    @property
    def free(self) -> int:
        """How many more it plays at once."""
        return self._many - len(self._busy)

    def begin(self, task: LayoutTask) -> None:
        """Submit it."""
        self._busy[self._executor.submit(task.play)] = task

    def finished(self, seconds: float) -> list[tuple[LayoutTask, Row]]:
        """In the order in which they were submitted."""
        done = wait(self._busy, timeout=seconds, return_when=FIRST_COMPLETED).done
        try:
            return [(self._busy.pop(each), each.result()) for each in list(self._busy) if each in done]
        except BrokenProcessPool:
            raise InputError(_KILLED) from None

    def close(self) -> None:
        """Take back what has not begun; the executor is somebody else's."""
        for future in self._busy:
            future.cancel()


@contextmanager
def workers_of(executor: Executor | int | None) -> Iterator[Workers]:
    """Who plays: so many processes of our own, this one for none or 1, or a given executor."""
    if executor is None or executor == 1:
        yield InThisProcess()
        return
    if isinstance(executor, int):
        require_processes(executor)
    workers = InProcesses(executor) if isinstance(executor, int) else OnExecutor(executor)
    try:
        yield workers
    finally:
        workers.close()
