"""The processes that play the states of the studio's windows: one a core, each with the results it played last.

A window's newest request wins: what it has asked before is dropped between two parts, and stopped where a part takes
long.  Answers are kept by content, so that going back is free.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.base.processes import cores
from simcluster.interactive.page.answers import AHEAD_OF, QUICK, SLOW, StateAsked, answer
from simcluster.interactive.page.hints import hint_parts
from simcluster.show.report.packing import ALIGNED

_MOST_PROCESSES = 4
_MOST_BYTES = 16_000_000  # of tiny_3d 400 states, of 64 GPUs 30
_PATIENCE = 3.0  # s that a stale part may go on before its process is stopped; to begin one anew takes as long
_TELLS_EVERY = 0.5  # s
_PAUSE = 0.4  # s without a change until what is slow begins: it would hold up answers to changes in quick succession
_BEHIND = 5  # the nice value of what is slow: a quarter of a processor that one other process asks for
_MOST_GATHERED = 200_000  # objects; a result of 64 GPUs has 40,000, and three of them are kept
MOST_SECONDS = 300.0
"""Of one part; what takes longer is stopped, and said."""


class PlayStopped(Exception):  # noqa: N818 (no error: somebody has asked for it)
    """A call was stopped with its process."""


class Worker:
    """A process that simulates: an executor of one, so that it is known where the results of a window are kept.

    ``behind`` is its nice value: how far it gives way to others where the machine is busy.
    """

    def __init__(self, behind: int = 0) -> None:
        self._behind = behind
        self._executor: ProcessPoolExecutor | None = None
        self._busy = asyncio.Lock()
        self._running: object = None
        self.windows = 0

    def hire(self) -> ProcessPoolExecutor:
        """Begin its process, if there is none: it takes a second."""
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                1, mp_context=get_context("spawn"), initializer=begin, initargs=(self._behind,)
            )
            self._executor.submit(os.getpid)
        return self._executor

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function of a module returns, called there.

        Raises what it raises; PlayStopped if it was stopped.
        """
        async with self._busy:
            executor, self._running = self.hire(), asyncio.current_task()
            try:
                return await asyncio.wrap_future(executor.submit(function, *arguments))
            except BrokenProcessPool:
                executor.shutdown(wait=False)
                self._executor = None
                raise PlayStopped from None
            finally:
                self._running = None

    async def stop(self, task: asyncio.Task[Any]) -> None:
        """End a call, and the process if it is at that one; the next call begins another process."""
        if self._running is task:
            self._terminate()
        else:
            task.cancel()

    def close(self) -> None:
        """End the process, whatever it is at."""
        self._terminate()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def _terminate(self) -> None:
        for process in tuple(((self._executor and self._executor._processes) or {}).values()):
            process.terminate()


def begin(behind: int) -> None:
    """Prepare a process: it leaves Ctrl-C to the one that began it, gives way to others, and collects less garbage."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(behind)
    spare_collector()


def spare_collector() -> None:
    """Let the garbage collector leave alone what is kept for good, and come only when much has gathered: results are in
    no cycles, and it goes through all of them (20 ms of every part of an answer)."""
    gc.freeze()
    gc.set_threshold(_MOST_GATHERED)


class StudioPool:
    """Workers, dealt to windows, one more for what is slow, and answers that were given before, as JSON by what was
    asked."""

    def __init__(self, count: int | None = None) -> None:
        self._workers = [Worker() for _ in range(count or min(cores(), _MOST_PROCESSES))]
        self._slow = Worker(_BEHIND)
        self._known: OrderedDict[object, str] = OrderedDict()
        self._size = 0

    def begin(self) -> None:
        """Begin the process that the first window will ask."""
        self._workers[0].hire()

    def window(self) -> Viewer:
        """Return a window's own way in, at the worker with the fewest."""
        worker = min(self._workers, key=lambda each: each.windows)
        worker.windows += 1
        return Viewer(self, worker, self._slow)

    def known(self, key: object) -> str | None:
        """Return an answer that was given before."""
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def keep(self, key: object, text: str) -> None:
        """Keep an answer, and forget those that were asked for longest ago."""
        self._size += len(text) - len(self._known.pop(key, ""))
        self._known[key] = text
        while self._size > _MOST_BYTES:
            self._size -= len(self._known.popitem(last=False)[1])

    def close(self) -> None:
        """End all processes."""
        for worker in (*self._workers, self._slow):
            worker.close()


@dataclass(frozen=True, slots=True, eq=False)
class ViewRequest:
    """What a window asks, its number, and what tells one content of its files from another."""

    number: int
    asked: StateAsked
    version: object


class PartAnswer(NamedTuple):
    """A part of an answer as JSON, and columns of numbers that go with it as they are."""

    text: str
    columns: bytes = b""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> PartAnswer:
        """Return what ``answers.answer`` says; ValueError for numbers that JSON has not."""
        columns = told.get("columns")
        raw = columns if isinstance(columns, bytes) else b""
        kept = {name: each for name, each in told.items() if each is not raw}
        return cls(json.dumps(kept, separators=(",", ":"), allow_nan=False), raw)

    @property
    def there(self) -> bool:
        """Return whether it is one, and no problem."""
        return self.text.startswith('{"part"')

    def message(self, number: int) -> str | bytes:
        """Return it as it is sent: the JSON, and after its line the columns, where numbers are read as they lie."""
        text = f'{{"ask":{number},"of":{self.text}}}'
        if not self.columns:
            return text
        line = text.encode()
        return b"".join((line, b" " * (-(len(line) + 1) % ALIGNED), b"\n", self.columns))


_STOPPED, _DONE = PartAnswer('{"stopped":true}'), PartAnswer('{"done":true}')


class Viewer:
    """What one window asks: its newest request, and the answers to it.

    Quick parts come from the window's own worker; slow ones from another, so that the next change waits for none.
    """

    def __init__(self, pool: StudioPool, worker: Worker, slow: Worker) -> None:
        self._pool, self._worker, self._slow = pool, worker, slow
        self._newest: ViewRequest | None = None
        self._came, self._rest = asyncio.Event(), asyncio.Event()
        self._said: asyncio.Queue[str | bytes] = asyncio.Queue()
        self._at: dict[Worker, asyncio.Task[Any]] = {}

    def ask(self, number: int, asked: StateAsked, version: object) -> None:
        """A request, in the place of all before it."""
        self._newest = ViewRequest(number, asked, version)
        self._came.set()

    async def leave(self) -> None:
        """Give up what is asked for."""
        self._newest = None
        for worker, task in tuple(self._at.items()):
            await worker.stop(task)

    async def close(self) -> None:
        """The window is gone."""
        await self.leave()
        self._worker.windows -= 1

    async def once(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return a call that is no request of the page: a file, a report."""
        return await self._slow.call(function, *arguments)

    async def answers(self) -> AsyncIterator[str | bytes]:
        """Messages to the window, for ever: parts of answers (``PartAnswer.message``), and what takes long."""
        tasks = [asyncio.create_task(self._quick_parts()), asyncio.create_task(self._slow_parts())]
        try:
            while True:
                yield await self._said.get()
        finally:
            for task in tasks:
                task.cancel()

    async def _quick_parts(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            if (request := self._newest) and await self._parts(request, QUICK, self._worker):
                self._rest.set()

    async def _slow_parts(self) -> None:
        while True:
            await self._rest.wait()
            self._rest.clear()
            request = self._newest
            await asyncio.sleep(_PAUSE)
            if request and self._newest is request and await self._parts(request, (*SLOW, *hint_parts()), self._slow):
                self._said.put_nowait(_DONE.message(request.number))

    async def _parts(self, request: ViewRequest, parts: Sequence[str], worker: Worker) -> bool:
        """Say these parts of an answer, one by one; False where a newer request came or there is no answer."""
        for part in parts:
            told = self._known(request, part)
            if told is None and part in AHEAD_OF and self._known(request, AHEAD_OF[part]):
                continue
            if told is None:
                told = await self._played(request, part, worker)
                if told.there and part not in AHEAD_OF:
                    self._pool.keep((request.asked, request.version, part), told.text)
            if self._newest is request or part == QUICK[0]:  # on the way of a drag its numbers are shown
                self._said.put_nowait(told.message(request.number))
            if self._newest is not request or not told.there:
                return False
        return True

    def _known(self, request: ViewRequest, part: str) -> PartAnswer | None:
        text = self._pool.known((request.asked, request.version, part))
        return None if text is None else PartAnswer(text)

    async def _played(self, request: ViewRequest, part: str, worker: Worker) -> PartAnswer:
        try:
            while True:
                self._at[worker] = task = asyncio.create_task(worker.call(answer, request.asked, part))
                task.add_done_callback(_take_exception)
                given_up = await self._wait(task, request, part, worker)
                if task.cancelled():
                    return _STOPPED
                try:
                    return PartAnswer.of(await task)
                except PlayStopped:  # by another window's wish, if not by this one's: then once more
                    if given_up or self._newest is not request:
                        return _STOPPED
        except InputError as problem:  # found when it was played
            return PartAnswer.of({"problem": str(problem).splitlines(), "remedies": []})
        except Exception as problem:  # ours; the page says so, and lives on
            return PartAnswer.of({"bug": f"{type(problem).__name__}: {problem}"[:500]})
        finally:
            self._at.pop(worker, None)

    async def _wait(self, task: asyncio.Task[Any], request: ViewRequest, part: str, worker: Worker) -> bool:
        """Until a task is done; when it is stale or takes too long it is stopped: then True."""
        clock = asyncio.get_running_loop().time
        begun = told = clock()
        while not task.done():
            await asyncio.wait([task], timeout=0.1)
            now = clock()
            stale = self._newest is not request
            if not task.done() and ((stale and now - begun > _PATIENCE) or now - begun > MOST_SECONDS):
                await worker.stop(task)
                await asyncio.wait([task])
                return True
            if not task.done() and not stale and now - told > _TELLS_EVERY:
                told = now
                self._said.put_nowait(PartAnswer.of({"doing": part, "seconds": now - begun}).message(request.number))
        return False


def _take_exception(task: asyncio.Task[Any]) -> None:
    """Take a call's exception, so that asyncio prints none where the window closed before the call ended."""
    if not task.cancelled():
        task.exception()
