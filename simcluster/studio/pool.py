"""Who plays the states of the studio's windows: one process a core, each with the results that it has played last.

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
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.processes import cores
from simcluster.studio.answers import PARTS, StateAsked, answer

_MOST_PROCESSES = 4
_MOST_BYTES = 64_000_000
_PATIENCE = 1.0  # s that a stale part may go on before its process is stopped; to begin one anew takes as long
_TELLS_EVERY = 0.5  # s
_REFUSED = ('{"problem"', '{"bug"')  # how an answer begins that has no parts to follow
MOST_SECONDS = 300.0
"""Of one part; what takes longer is stopped, and said."""


class PlayStopped(Exception):  # noqa: N818 (no error: somebody has asked for it)
    """A call was stopped with its process."""


class Worker:
    """A process that plays: an executor of one, so that it is known where the results of a window are kept."""

    def __init__(self) -> None:
        self._executor: ProcessPoolExecutor | None = None
        self._number: Future[int] | None = None
        self._busy = asyncio.Lock()
        self.windows = 0

    def hire(self) -> ProcessPoolExecutor:
        """Begin its process, if there is none: it takes a second."""
        if self._executor is None:
            self._executor = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=begin)
            self._number = self._executor.submit(os.getpid)
        return self._executor

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of a module returns, called there.  Raises what it raises; PlayStopped if it was stopped."""
        async with self._busy:
            executor = self.hire()
            try:
                return await asyncio.wrap_future(executor.submit(function, *arguments))
            except BrokenProcessPool:
                executor.shutdown(wait=False)
                self._executor = None
                raise PlayStopped from None

    async def stop(self) -> None:
        """End what it is at; it goes on with the next call in a process of its own."""
        with suppress(ProcessLookupError, BrokenProcessPool):
            if self._executor is not None and self._number is not None:
                os.kill(await asyncio.wrap_future(self._number), signal.SIGTERM)

    def close(self) -> None:
        """Let it go, whatever it is at."""
        if self._executor is None or self._number is None:
            return
        with suppress(ProcessLookupError, BrokenProcessPool, CancelledError):
            if self._number.done():
                os.kill(self._number.result(), signal.SIGTERM)
        self._executor.shutdown(wait=False, cancel_futures=True)


def begin() -> None:
    """What a process does first: leaves Ctrl-C to the one that began it, and lets go of what is never let go of, which
    the garbage collector would go through for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()


class StudioPool:
    """Workers, dealt to windows, and answers that were given before, as JSON by what was asked."""

    def __init__(self, count: int | None = None) -> None:
        self._workers = [Worker() for _ in range(count or min(cores(), _MOST_PROCESSES))]
        self._known: OrderedDict[object, str] = OrderedDict()
        self._size = 0

    def begin(self) -> None:
        """Begin the process that the first window will ask."""
        self._workers[0].hire()

    def window(self) -> Viewer:
        """A window's own way in, at the worker with the fewest."""
        worker = min(self._workers, key=lambda each: each.windows)
        worker.windows += 1
        return Viewer(self, worker)

    def known(self, key: object) -> str | None:
        """An answer that was given before."""
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
        for worker in self._workers:
            worker.close()


class Viewer:
    """What one window asks: its newest request, and the answers to it."""

    def __init__(self, pool: StudioPool, worker: Worker) -> None:
        self._pool, self._worker = pool, worker
        self._newest: tuple[int, StateAsked, object] | None = None
        self._came = asyncio.Event()
        self._working = self._refused = False

    def ask(self, number: int, asked: StateAsked, version: object) -> None:
        """A request, in the place of all before it; ``version`` tells one content of its files from another."""
        self._newest = number, asked, version
        self._came.set()

    async def leave(self) -> None:
        """Give up what is asked for."""
        self._newest = None
        self._came.set()
        if self._working:
            await self._worker.stop()

    async def close(self) -> None:
        """The window is gone."""
        await self.leave()
        self._worker.windows -= 1

    async def once(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A call beside the requests: a file, a report."""
        return await self._worker.call(function, *arguments)

    async def answers(self) -> AsyncIterator[str]:
        """Messages to the window, for ever: parts of answers, as JSON, and what takes long."""
        while True:
            await self._came.wait()
            self._came.clear()
            request, self._refused = self._newest, False
            if request is None:
                continue
            for part in PARTS:
                async for message in self._part(part, *request):
                    yield message
                if self._newest is not request or self._refused:
                    break
            else:
                yield _message(request[0], '{"done":true}')

    async def _part(self, part: str, number: int, asked: StateAsked, version: object) -> AsyncIterator[str]:
        key = (asked, version, part)
        text = self._pool.known(key)
        if text is None:
            task = asyncio.create_task(self._worker.call(answer, asked, part))
            self._working = True
            try:
                async for seconds in self._waiting(task):
                    yield _message(number, json.dumps({"part": part, "seconds": seconds}))
                text = await self._said(task, part)
            finally:
                self._working = False
            if text is None:
                if self._newest is not None and self._newest[0] == number:
                    yield _message(number, '{"stopped":true}')
                return
            self._pool.keep(key, text)
        self._refused = text.startswith(_REFUSED)
        if self._newest is not None and (self._newest[0] == number or part == "answer"):
            yield _message(number, text)

    async def _said(self, task: asyncio.Task[Any], part: str) -> str | None:
        """A part's answer as JSON; None where it was stopped."""
        try:
            found = await task
        except PlayStopped:
            return None
        except InputError as problem:
            found = {"problem": str(problem).splitlines(), "remedies": []}  # found when it was played
        except Exception as problem:  # ours; the page says so, and lives on
            found = {"bug": f"{type(problem).__name__}: {problem}"[:500]}
        return json.dumps(found if "sections" in found else {**found, "refused": part}, separators=(",", ":"))

    async def _waiting(self, task: asyncio.Task[Any]) -> AsyncIterator[float]:
        """Seconds gone, now and then, until a task is done; it is stopped when it is stale, or takes too long."""
        clock = asyncio.get_running_loop().time
        begun, request, told = clock(), self._newest, 0.0
        while not task.done():
            await asyncio.wait([task], timeout=0.1)
            gone = clock() - begun
            stale = self._newest is not request
            if not task.done() and ((stale and gone > _PATIENCE) or gone > MOST_SECONDS):
                await self._worker.stop()
                await asyncio.wait([task], timeout=5)
                return
            if not task.done() and gone - told > _TELLS_EVERY:
                told = gone
                yield gone


def _message(number: int, text: str) -> str:
    return f'{{"ask":{number},"of":{text}}}'
