"""Kineto's Chrome trace as text, event by event, and the file around it, written as it comes.

Times are whole nanoseconds, so that what touches goes on doing so; files have microseconds with three decimals.  The
head has blanks behind its colons (HolisticTraceAnalysis finds a rank by ``"rank":\\s+``), events have none.  Files
are the same to the byte whenever they are written.  Imports errors only.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any, cast

from simcluster.base.errors import InputError

ENDINGS = (".json", ".json.gz")
FIRST_CORRELATION = 2**31
"""HolisticTraceAnalysis 0.5 with pandas 3 fails on a column of smaller ones."""
_LEVEL = 6
_TOGETHER = 1000


def nanoseconds(seconds: float) -> int:
    """A moment in seconds, to the nearest nanosecond."""
    return round(seconds * 1e9)


def _microseconds(time: int) -> str:
    return f"{time // 1000}.{time % 1000:03d}"


quoted = lru_cache(maxsize=100_000)(json.dumps)
"""A text as JSON."""


def arguments(args: Mapping[str, Any]) -> str:
    """What stands between the braces of an event's args."""
    return json.dumps(args, separators=(",", ":"))[1:-1]


def joined(*parts: str) -> str:
    """Arguments behind each other; empty ones are left out."""
    return ",".join(part for part in parts if part)


def complete(category: str, name: str, place: tuple[int, int], start: int, end: int, args: str = "") -> str:
    """An event from start to end at its place: process (the rank) and thread (of the host, or a stream)."""
    return (
        f'{{"ph":"X","cat":"{category}","name":{quoted(name)},"pid":{place[0]},"tid":{place[1]},'
        f'"ts":{_microseconds(start)},"dur":{_microseconds(max(end - start, 0))},"args":{{{args}}}}}'
    )


def named(what: str, process: int, thread: int, **args: Any) -> str:
    """A name or place in the order (``what``: process_name, thread_name, thread_sort_index, ...)."""
    head = f'{{"ph":"M","name":"{what}","pid":{process},"tid":{thread},"ts":0,"args":'
    return f"{head}{{{arguments(args)}}}}}"


def counter(name: str, process: int, time: int, values: str) -> str:
    """Levels from this moment on; ``values`` as ``arguments`` makes them."""
    return f'{{"ph":"C","name":{quoted(name)},"pid":{process},"tid":0,"ts":{_microseconds(time)},"args":{{{values}}}}}'


def flow(number: int, name: str, place: tuple[int, int], time: int, *, ends: bool) -> str:
    """One end of an arrow, in the slice that is at this place at this moment."""
    phase = '"f","bp":"e"' if ends else '"s"'
    return (
        f'{{"ph":{phase},"cat":"message","name":{quoted(name)},"id":{number},"pid":{place[0]},"tid":{place[1]},'
        f'"ts":{_microseconds(time)}}}'
    )


def write_trace(path: Path, head: Mapping[str, Any], events: Iterable[str]) -> None:
    """A trace of these events: gzipped where the path ends in .gz, complete or not there at all.

    Raises InputError where it cannot be written (no folder, no permission, disk full).
    """
    part = path.with_name(path.name + ".part")
    try:
        try:
            with ExitStack() as stack:
                file: IO[bytes] = stack.enter_context(part.open("wb"))
                if path.suffix == ".gz":
                    packed = gzip.GzipFile("", "wb", _LEVEL, fileobj=file, mtime=0)
                    file = cast(IO[bytes], stack.enter_context(packed))
                for piece in _pieces(head, events):
                    file.write(piece.encode())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror}") from None


def _pieces(head: Mapping[str, Any], events: Iterable[str]) -> Iterator[str]:
    yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
    separators = chain([""], repeat(",\n"))
    for lines, separator in zip(_batches(events), separators, strict=False):
        yield separator + ",\n".join(lines)
    yield "\n]}\n"


def _batches(events: Iterable[str]) -> Iterator[list[str]]:
    lines: list[str] = []
    for event in events:
        lines.append(event)
        if len(lines) == _TOGETHER:
            yield lines
            lines = []
    if lines:
        yield lines
