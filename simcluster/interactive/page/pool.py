"""Worker processes that simulate for the studio's browser windows: one per core, each with recent results.

A window's newest request wins: the previous one is dropped between two parts, and stopped if a part takes long. Answers
are cached by content, so that going back is free.
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
from simcluster.base.processes import count_cores
from simcluster.interactive.page.answers import AHEAD_OF, QUICK, SLOW, PageQuery, answer_part
from simcluster.interactive.page.hints import hint_parts
from simcluster.show.report.packing import ALIGNED

_MOST_PROCESSES = 4
_MOST_BYTES = 16_000_000  # of tiny_3d 400 states, of 64 GPUs 30
_PATIENCE = 3.0  # s that a stale part may go on before its process is stopped; to begin one anew takes as long
_TELLS_EVERY = 0.5  # s
_PAUSE = 0.4  # s without a change until slow parts begin, which would delay answers to quick changes
_BEHIND = 5  # the nice value of what is slow: a quarter of a processor that one other process asks for
_MOST_GATHERED = 200_000  # objects; a result of 64 GPUs has 40,000, and three of them are kept
MOST_SECONDS = 300.0
"""Of one part; what takes longer is stopped, and said."""


class SimulationStopped(Exception):  # noqa: N818 (no error: somebody has asked for it)
    """Raised by a call whose process was stopped."""


class Worker:
    """A process that simulates; a browser window keeps its worker, which caches its recent results.

    ``behind``: the process's nice value: its priority on a busy computer.
    """

    def __init__(self, behind: int = 0) -> None:
        self._behind = behind
        self._executor: ProcessPoolExecutor | None = None
        self._busy = asyncio.Lock()
        self._running: object = None
        self.windows = 0

    def hire(self) -> ProcessPoolExecutor:
        """Start the worker process if it is not running, which takes a second."""
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                1, mp_context=get_context("spawn"), initializer=prepare_worker, initargs=(self._behind,)
            )
            self._executor.submit(os.getpid)
        return self._executor

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a module-level function in the worker process and return its result.

        Raises what it raises; PlayStopped if it was stopped.
        """
        async with self._busy:
            executor, self._running = self.hire(), asyncio.current_task()
            try:
                return await asyncio.wrap_future(executor.submit(function, *arguments))
            except BrokenProcessPool:
                executor.shutdown(wait=False)
                self._executor = None
                raise SimulationStopped from None
            finally:
                self._running = None

    async def stop(self, task: asyncio.Task[Any]) -> None:
        """Cancel a call, and stop the process if it is running that call."""
        if self._running is task:
            self._terminate()
        else:
            task.cancel()

    def close(self) -> None:
        """Stop the worker process."""
        self._terminate()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def _terminate(self) -> None:
        for process in tuple(((self._executor and self._executor._processes) or {}).values()):
            process.terminate()


def prepare_worker(behind: int) -> None:
    """Prepare a worker process: ignore Ctrl-C, lower its priority, collect garbage less often."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(behind)
    reduce_garbage_collection()


def reduce_garbage_collection() -> None:
    """Exempt permanent objects from garbage collection, and collect rarely.

    Results have no cycles, and a collection takes 20 ms of every part of an answer.
    """
    gc.freeze()
    gc.set_threshold(_MOST_GATHERED)


class StudioPool:
    """Worker processes that are assigned to browser windows, one more for slow parts, and cached page content."""

    def __init__(self, count: int | None = None) -> None:
        self._workers = [Worker() for _ in range(count or min(count_cores(), _MOST_PROCESSES))]
        self._slow = Worker(_BEHIND)
        self._known: OrderedDict[object, str] = OrderedDict()
        self._size = 0

    def begin(self) -> None:
        """Start the worker process that the first browser window will use."""
        self._workers[0].hire()

    def window(self) -> Viewer:
        """Return a viewer for a new browser window, on the worker with the fewest windows."""
        worker = min(self._workers, key=lambda each: each.windows)
        worker.windows += 1
        return Viewer(self, worker, self._slow)

    def known(self, key: object) -> str | None:
        """Return cached page content, or None."""
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def keep(self, key: object, text: str) -> None:
        """Cache page content, and drop the least recently used ones."""
        self._size += len(text) - len(self._known.pop(key, ""))
        self._known[key] = text
        while self._size > _MOST_BYTES:
            self._size -= len(self._known.popitem(last=False)[1])

    def close(self) -> None:
        """Stop all worker processes."""
        for worker in (*self._workers, self._slow):
            worker.close()


@dataclass(frozen=True, slots=True, eq=False)
class ViewRequest:
    """A request of a browser window, its number, and the version of the files that it reads."""

    number: int
    asked: PageQuery
    version: object


class PagePart(NamedTuple):
    """A part of the page's content: JSON text, and binary columns of numbers."""

    text: str
    columns: bytes = b""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> PagePart:
        """Return a page part from what ``answer_part`` returns; raise ValueError for numbers that JSON lacks."""
        columns = told.get("columns")
        raw = columns if isinstance(columns, bytes) else b""
        kept = {name: each for name, each in told.items() if each is not raw}
        return cls(json.dumps(kept, separators=(",", ":"), allow_nan=False), raw)

    @property
    def there(self) -> bool:
        """Whether the part has content and not a problem."""
        return self.text.startswith('{"part"')

    def message(self, number: int) -> str | bytes:
        """Return the message to the browser window: a line of JSON, then the aligned columns."""
        text = f'{{"ask":{number},"of":{self.text}}}'
        if not self.columns:
            return text
        line = text.encode()
        return b"".join((line, b" " * (-(len(line) + 1) % ALIGNED), b"\n", self.columns))


_STOPPED, _DONE = PagePart('{"stopped":true}'), PagePart('{"done":true}')


class Viewer:
    """The newest request of a browser window, and the content sent in reply.

    Quick parts come from the window's worker; slow ones from another, so that the next change need not wait.
    """

    def __init__(self, pool: StudioPool, worker: Worker, slow: Worker) -> None:
        self._pool, self._worker, self._slow = pool, worker, slow
        self._newest: ViewRequest | None = None
        self._came, self._rest = asyncio.Event(), asyncio.Event()
        self._said: asyncio.Queue[str | bytes] = asyncio.Queue()
        self._at: dict[Worker, asyncio.Task[Any]] = {}

    def ask(self, number: int, asked: PageQuery, version: object) -> None:
        """Replace the browser window's request by a new one."""
        self._newest = ViewRequest(number, asked, version)
        self._came.set()

    async def leave(self) -> None:
        """Cancel the browser window's request."""
        self._newest = None
        for worker, task in tuple(self._at.items()):
            await worker.stop(task)

    async def close(self) -> None:
        """Cancel everything after the browser window was closed."""
        await self.leave()
        self._worker.windows -= 1

    async def once(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the worker outside the page's requests, for a file or a report."""
        return await self._slow.call(function, *arguments)

    async def answers(self) -> AsyncIterator[str | bytes]:
        """Yield messages to the browser window: parts of the content, and notices of what takes long."""
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
            if (request := self._newest) and await self._send(request, QUICK, self._worker):
                self._rest.set()

    async def _slow_parts(self) -> None:
        while True:
            await self._rest.wait()
            self._rest.clear()
            request = self._newest
            await asyncio.sleep(_PAUSE)
            if request and self._newest is request and await self._send(request, (*SLOW, *hint_parts()), self._slow):
                self._said.put_nowait(_DONE.message(request.number))

    async def _send(self, request: ViewRequest, parts: Sequence[str], worker: Worker) -> bool:
        for part in parts:
            told = self._known_part(request, part)
            if told is None and part in AHEAD_OF and self._known_part(request, AHEAD_OF[part]):
                continue
            if told is None:
                told = await self._compute_part(request, part, worker)
                if told.there and part not in AHEAD_OF:
                    self._pool.keep((request.asked, request.version, part), told.text)
            if self._newest is request or part == QUICK[0]:  # on the way of a drag its numbers are shown
                self._said.put_nowait(told.message(request.number))
            if self._newest is not request or not told.there:
                return False
        return True

    def _known_part(self, request: ViewRequest, part: str) -> PagePart | None:
        text = self._pool.known((request.asked, request.version, part))
        return None if text is None else PagePart(text)

    async def _compute_part(self, request: ViewRequest, part: str, worker: Worker) -> PagePart:
        try:
            while True:
                self._at[worker] = task = asyncio.create_task(worker.call(answer_part, request.asked, part))
                task.add_done_callback(_take_exception)
                given_up = await self._wait_for_task(task, request, part, worker)
                if task.cancelled():
                    return _STOPPED
                try:
                    return PagePart.of(await task)
                except SimulationStopped:  # by another window's wish, if not by this one's: then once more
                    if given_up or self._newest is not request:
                        return _STOPPED
        except InputError as problem:  # found when it was played
            return PagePart.of({"problem": str(problem).splitlines(), "remedies": []})
        except Exception as problem:  # ours; the page says so, and lives on
            return PagePart.of({"bug": f"{type(problem).__name__}: {problem}"[:500]})
        finally:
            self._at.pop(worker, None)

    async def _wait_for_task(self, task: asyncio.Task[Any], request: ViewRequest, part: str, worker: Worker) -> bool:
        """Wait for a task; stop it if it is outdated or takes too long, and return whether it was stopped."""
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
                self._said.put_nowait(PagePart.of({"doing": part, "seconds": now - begun}).message(request.number))
        return False


def _take_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve a call's exception, so that asyncio does not print it after the window closed."""
    if not task.cancelled():
        task.exception()
