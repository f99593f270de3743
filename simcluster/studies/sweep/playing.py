"""One variant played to its numbers, in whatever process; and many of them, on whatever executor."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from functools import partial
from itertools import islice
from typing import Any, Protocol

from simcluster.base.effort import however_long, most_seconds
from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.results.result import numbers
from simcluster.scenario.scenario import Variant
from simcluster.step.simulate import replay

Row = dict[str, Any]
"""``status`` (ok, refused: no such scenario, failed), ``error``, and the numbers of the result."""
Numbered = tuple[int, Any]
"""A task and its number: a variant here; ``longrun/studies`` plays chunks of runs in the same way."""
Finished = tuple[int, Row]
Measure = Callable[[Any], Row]
"""A function of a module that plays a task."""

KILLED: Row = {"status": "failed", "error": "its process was killed; out of memory?"}
"""The row of a variant that kills whatever plays it."""

_CHUNK_SECONDS = 0.2  # short variants travel together: a task by itself costs an executor up to 3 ms
_MOST_TOGETHER = 64
_LOOK_SECONDS = 5.0
_AHEAD = 3  # tasks that wait for each worker: few, so that little is played twice after a kill


def measured(variant: Variant) -> Row:
    """The numbers of a variant's result; the reason, if it cannot be or fails."""
    try:
        return {"status": "ok", "error": "", **numbers(replay(variant.scenario()).to_dict())}
    except InputError as problem:
        return {"status": "refused", "error": str(problem)}
    except Exception as problem:  # one variant must not end a sweep of thousands
        return {"status": "failed", "error": f"{type(problem).__name__}: {problem}"}


def play_serially(variants: Iterable[Numbered], measure: Measure = measured) -> Iterator[list[Finished]]:
    """One after the other, here."""
    for number, variant in variants:
        yield [(number, measure(variant))]


class Lookout(Protocol):
    """Who looks after an executor that may be lost."""

    def task(self) -> Callable[..., tuple[list[Finished], float]]:
        """The function that plays a measure and a chunk there."""

    def look(self) -> None:
        """InputError where it is lost; asked while nothing is finished."""

    def killed(self, problem: Exception) -> bool:
        """Has a task killed who played it?  InputError where it failed for another reason."""


class _Nobody:
    """Of executors that say so themselves."""

    def task(self) -> Callable[..., tuple[list[Finished], float]]:
        return play_chunk

    def look(self) -> None:
        """Nothing can be known."""

    def killed(self, problem: Exception) -> bool:
        if isinstance(problem, BrokenExecutor):
            raise InputError(
                f"the executor is broken ({problem}); what is finished is stored, where a file keeps it: run the same "
                "again with a new one"
            ) from None
        raise problem


def play_on(
    executor: Executor,
    workers: int,
    variants: Iterable[Numbered],
    measure: Measure = measured,
    lookout: Lookout | None = None,
) -> Iterator[list[Finished]]:
    """On an executor, whatever is done first; a few tasks ahead for each worker, not all at once.

    A chunk that kills who plays it is played again, each variant by itself; one that does so then, too, is a row that
    says so.  InputError if a variant cannot be sent there, or the executor is lost.
    """
    lookout = lookout or _Nobody()
    play = lookout.task()
    if math.isinf(most_seconds()):
        play = partial(_however_long, play)
    rest = iter(variants)
    together = 1
    suspects: list[Numbered] = []
    under_way: dict[Future[tuple[list[Finished], float]], list[Numbered]] = {}
    first = True

    def chunk_of() -> list[Numbered]:
        return [suspects.pop()] if suspects else list(islice(rest, together))

    try:
        while True:
            while len(under_way) < _AHEAD * workers and (chunk := chunk_of()):
                if first:
                    check_sendable(measure, chunk)
                    first = False
                under_way[_submitted(executor, lookout, play, measure, chunk)] = chunk
            if not under_way:
                return
            finished, _ = wait(under_way, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
            if not finished:
                lookout.look()
            for future in [each for each in under_way if each in finished]:
                chunk = under_way.pop(future)
                try:
                    rows, seconds = future.result()
                except (Exception, CancelledError) as problem:  # whatever executors raise
                    if lookout.killed(problem) and len(chunk) > 1:
                        suspects += chunk
                        continue
                    rows, seconds = [(chunk[0][0], dict(KILLED))], 0.0
                each = seconds / len(rows)
                together = max(1, min(_MOST_TOGETHER, int(_CHUNK_SECONDS / each) if each else _MOST_TOGETHER))
                yield rows
    finally:
        for future in under_way:
            future.cancel()


def _submitted(
    executor: Executor, lookout: Lookout, play: Callable[..., Any], measure: Measure, chunk: Sequence[Numbered]
) -> Future[tuple[list[Finished], float]]:
    """A task, on its way; InputError where the executor is lost, which may be noticed here first."""
    try:
        return executor.submit(play, measure, chunk)
    except Exception as problem:  # whatever executors raise
        lookout.killed(problem)
        raise


def _however_long(
    play: Callable[..., tuple[list[Finished], float]], measure: Measure, chunk: Sequence[Numbered]
) -> tuple[list[Finished], float]:
    """A task of a command that begins work however long it takes (--yes): so does who plays it."""
    with however_long():
        return play(measure, chunk)


def play_chunk(measure: Measure, chunk: Sequence[Numbered]) -> tuple[list[Finished], float]:
    """Variants of one task, and the seconds that they took."""
    begun = time.perf_counter()
    with collector_off():  # between variants it would go through all that they share
        rows = [(number, measure(variant)) for number, variant in chunk]
    return rows, time.perf_counter() - begun


def check_sendable(measure: Measure, chunk: Sequence[Numbered]) -> None:
    """InputError if these cannot be sent to another process."""
    try:
        pickle.dumps((measure, chunk))
    except Exception as problem:  # pickle raises what it likes
        raise InputError(
            f"cannot be sent to another process: {problem}; what an executor runs, and every value that varies, must "
            "be at the top level of a module and plain data"
        ) from None


__all__ = [
    "KILLED", "Finished", "Lookout", "Measure", "Numbered", "Row", "check_sendable", "measured", "play_chunk",
    "play_on", "play_serially",
]  # fmt: skip
