"""Worker processes that simulate for the studio's browser windows: one per CPU core, each with a cache.

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
from simcluster.interactive.page.hints import hint_parts
from simcluster.interactive.page.page_parts import QUICK_PARTS, REPLACED_BY, SLOW_PARTS, PageQuery, compute_page_part
from simcluster.interactive.report.packing import ALIGNED

_MOST_PROCESSES = 4
_MOST_BYTES = 16_000_000  # of tiny_3d 400 states, of 64 GPUs 30
_PATIENCE = 3.0  # s that a stale part may go on before its process is stopped; to begin one anew takes as long
_TELLS_EVERY = 0.5  # s
_PAUSE = 0.4  # s without a change until slow parts begin, which would delay answers to quick changes
_BEHIND = 5  # the nice value of what is slow: a quarter of a processor that one other process asks for
_MOST_GATHERED = 200_000  # objects; a result of 64 GPUs has 40,000, and three of them are kept
MOST_SECONDS = 300.0
"""Maximum seconds for one part of the page; a longer computation is stopped, and the page says so."""


class SimulationStopped(Exception):  # noqa: N818 (no error: somebody has asked for it)
    """Raised by ``Worker.call`` if the worker process was stopped before the call ended."""


class Worker:
    """A process that simulates for browser windows and caches recent results.

    ``niceness`` is the nice value of the process, which lowers its priority on a busy computer.
    """

    def __init__(self, niceness: int = 0) -> None:
        self._behind = niceness
        self._executor: ProcessPoolExecutor | None = None
        self._busy = asyncio.Lock()
        self._running: object = None
        self.windows = 0

    def start(self) -> ProcessPoolExecutor:
        """Start the worker process if necessary (this takes a second), and return its executor."""
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                1, mp_context=get_context("spawn"), initializer=prepare_worker, initargs=(self._behind,)
            )
            self._executor.submit(os.getpid)
        return self._executor

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a module-level function in the worker process and return the function's result.

        Raises what the function raises, and ``SimulationStopped`` if the process was stopped during the call.
        """
        async with self._busy:
            executor, self._running = self.start(), asyncio.current_task()
            try:
                return await asyncio.wrap_future(executor.submit(function, *arguments))
            except BrokenProcessPool:
                executor.shutdown(wait=False)
                self._executor = None
                raise SimulationStopped from None
            finally:
                self._running = None

    async def stop(self, task: asyncio.Task[Any]) -> None:
        """Cancel a call; if the call is already running, stop the worker process."""
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


def prepare_worker(niceness: int) -> None:
    """Set up a worker process: ignore Ctrl-C, lower the priority, collect garbage less often."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(niceness)
    reduce_garbage_collection()


def reduce_garbage_collection() -> None:
    """Exclude all current objects from garbage collection, and make collections rare.

    Results have no cycles, and a collection takes 20 ms of every part of an answer.
    """
    gc.freeze()
    gc.set_threshold(_MOST_GATHERED)


class StudioPool:
    """Worker processes that all browser windows share, an extra one for slow page parts, and a cache of page parts."""

    def __init__(self, count: int | None = None) -> None:
        self._workers = [Worker() for _ in range(count or min(count_cores(), _MOST_PROCESSES))]
        self._slow = Worker(_BEHIND)
        self._known: OrderedDict[object, str] = OrderedDict()
        self._size = 0

    def start_first_worker(self) -> None:
        """Start the worker process that the first browser window will use."""
        self._workers[0].start()

    def open_window(self) -> WindowSession:
        """Assign a new browser window to the worker with the fewest windows, and return the window's session."""
        worker = min(self._workers, key=lambda each: each.windows)
        worker.windows += 1
        return WindowSession(self, worker, self._slow)

    def find_cached(self, key: object) -> str | None:
        """Return the cached page content under a key; None if there is none."""
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def cache(self, key: object, text: str) -> None:
        """Cache page content, and drop the least recently used entries above a size limit."""
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
    """A request by a browser window, with its number and the version of the scenario files that it refers to."""

    number: int
    query: PageQuery
    version: object


class PagePart(NamedTuple):
    """A part of the studio page in the form to send: JSON text, and columns of numbers as bytes."""

    text: str
    columns: bytes = b""

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> PagePart:
        """Build a page part from what ``compute_page_part`` returns; raise ValueError for NaN or infinity."""
        columns = content.get("columns")
        raw = columns if isinstance(columns, bytes) else b""
        kept = {name: each for name, each in content.items() if each is not raw}
        return cls(json.dumps(kept, separators=(",", ":"), allow_nan=False), raw)

    @property
    def has_content(self) -> bool:
        """Whether the part shows content rather than a problem."""
        return self.text.startswith('{"part"')

    def to_message(self, number: int) -> str | bytes:
        """Return the WebSocket message: one line of JSON, followed by the columns of numbers."""
        text = f'{{"ask":{number},"of":{self.text}}}'
        if not self.columns:
            return text
        line = text.encode()
        return b"".join((line, b" " * (-(len(line) + 1) % ALIGNED), b"\n", self.columns))


_STOPPED, _DONE = PagePart('{"stopped":true}'), PagePart('{"done":true}')


class WindowSession:
    """State of one browser window on the server: its newest request, and the messages to send to it.

    Quick parts come from the window's worker; slow ones from another, so that the next change need not wait.
    """

    def __init__(self, pool: StudioPool, worker: Worker, slow: Worker) -> None:
        self._pool, self._worker, self._slow = pool, worker, slow
        self._newest: ViewRequest | None = None
        self._came, self._rest = asyncio.Event(), asyncio.Event()
        self._said: asyncio.Queue[str | bytes] = asyncio.Queue()
        self._at: dict[Worker, asyncio.Task[Any]] = {}

    def set_request(self, number: int, query: PageQuery, version: object) -> None:
        """Replace the browser window's request by a new one."""
        self._newest = ViewRequest(number, query, version)
        self._came.set()

    async def cancel_request(self) -> None:
        """Cancel the browser window's request."""
        self._newest = None
        for worker, task in tuple(self._at.items()):
            await worker.stop(task)

    async def close(self) -> None:
        """Cancel all calls of a browser window that was closed."""
        await self.cancel_request()
        self._worker.windows -= 1

    async def call_once(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the worker process for a download, independently of the page's requests."""
        return await self._slow.call(function, *arguments)

    async def iterate_messages(self) -> AsyncIterator[str | bytes]:
        """Yield the messages to send to the browser window: page parts, and progress of slow parts."""
        tasks = [asyncio.create_task(self._send_quick_parts()), asyncio.create_task(self._send_slow_parts())]
        try:
            while True:
                yield await self._said.get()
        finally:
            for task in tasks:
                task.cancel()

    async def _send_quick_parts(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            if (request := self._newest) and await self._send_parts(request, QUICK_PARTS, self._worker):
                self._rest.set()

    async def _send_slow_parts(self) -> None:
        while True:
            await self._rest.wait()
            self._rest.clear()
            request = self._newest
            await asyncio.sleep(_PAUSE)
            parts = (*SLOW_PARTS, *hint_parts())
            if request and self._newest is request and await self._send_parts(request, parts, self._slow):
                self._said.put_nowait(_DONE.to_message(request.number))

    async def _send_parts(self, request: ViewRequest, parts: Sequence[str], worker: Worker) -> bool:
        for part in parts:
            told = self._find_cached_part(request, part)
            if told is None and part in REPLACED_BY and self._find_cached_part(request, REPLACED_BY[part]):
                continue
            if told is None:
                told = await self._compute_part(request, part, worker)
                if told.has_content and part not in REPLACED_BY:
                    self._pool.cache((request.query, request.version, part), told.text)
            if self._newest is request or part == QUICK_PARTS[0]:  # on the way of a drag its numbers are shown
                self._said.put_nowait(told.to_message(request.number))
            if self._newest is not request or not told.has_content:
                return False
        return True

    def _find_cached_part(self, request: ViewRequest, part: str) -> PagePart | None:
        text = self._pool.find_cached((request.query, request.version, part))
        return None if text is None else PagePart(text)

    async def _compute_part(self, request: ViewRequest, part: str, worker: Worker) -> PagePart:
        try:
            while True:
                self._at[worker] = task = asyncio.create_task(worker.call(compute_page_part, request.query, part))
                task.add_done_callback(_retrieve_exception)
                given_up = await self._wait_for_task(task, request, part, worker)
                if task.cancelled():
                    return _STOPPED
                try:
                    return PagePart.from_content(await task)
                except SimulationStopped:  # by another window's wish, if not by this one's: then once more
                    if given_up or self._newest is not request:
                        return _STOPPED
        except InputError as problem:  # found when it was played
            return PagePart.from_content({"problem": str(problem).splitlines(), "remedies": []})
        except Exception as problem:  # ours; the page says so, and lives on
            return PagePart.from_content({"bug": f"{type(problem).__name__}: {problem}"[:500]})
        finally:
            self._at.pop(worker, None)

    async def _wait_for_task(self, task: asyncio.Task[Any], request: ViewRequest, part: str, worker: Worker) -> bool:
        """Wait for a task, and stop it if it is outdated or too slow; return whether it was stopped."""
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
                told, progress = now, PagePart.from_content({"doing": part, "seconds": now - begun})
                self._said.put_nowait(progress.to_message(request.number))
        return False


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's exception, so that asyncio does not log it after the browser window closed."""
    if not task.cancelled():
        task.exception()
