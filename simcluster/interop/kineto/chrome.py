"""Kineto's Chrome trace as text, event by event, and the file around it, written as it comes.

Times are whole nanoseconds, so that what touches goes on doing so; files have microseconds with three decimals.  The
head has blanks behind its colons (HolisticTraceAnalysis finds a rank by ``"rank":\\s+``), events have none.  Files
are the same to the byte whenever they are written.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from io import TextIOWrapper
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any, cast

from simcluster.base.errors import InputError
from simcluster.base.written import PARTIAL, written
from simcluster.interop.kineto.comm import Comm

ENDINGS = (".json", ".json.gz")
FIRST_CORRELATION = 2**31 + 1
"""HolisticTraceAnalysis 0.5 with pandas 3 fails on a column of smaller ones."""
RANKS_WRITTEN = 30
"""Of longer groups, calls have the first ranks and "..." (as PyTorch writes them); the file's head has them all."""
_LEVEL = 6


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
    with written(path) as plain, ExitStack() as stack:
        file: IO[bytes] = plain
        if path.suffix == ".gz":
            file = cast(IO[bytes], stack.enter_context(gzip.GzipFile("", "wb", _LEVEL, fileobj=plain, mtime=0)))
        text = TextIOWrapper(file, "utf-8", newline="")
        text.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        for separator, event in zip(chain([""], repeat(",\n")), events, strict=False):
            text.write(separator + event)
        text.write("\n]}\n")
        text.detach()


def make_folder(folder: Path, own: Sequence[Path]) -> None:
    """A folder for these profiles and no others, which a reader would take for more ranks of the job."""
    try:
        folder.mkdir(exist_ok=True)
        others = sorted(path.name for path in folder.glob("*.json*") if path not in own and path.suffix != PARTIAL)
    except OSError as problem:
        raise InputError(f"cannot write profiles to {folder}: {problem.strerror}") from None
    if others:
        raise InputError(f"cannot write profiles to {folder}: it holds {others[0]}; name an empty folder")


def head_of(rank: int, world: int, groups: Mapping[str, Comm], *, backend: str, host: str) -> dict[str, Any]:
    """What a profile says of its rank, of the job and of the rank's process groups (by name)."""
    config = [
        {"pg_name": name, "pg_desc": comm.what, "pg_size": comm.size, "ranks": list(comm.ranks)}
        for name, comm in sorted(groups.items())
        if rank in comm.ranks
    ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": backend, "rank": rank, "world_size": world, "pg_config": config},
        "host_name": host,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
    }


def comm_arguments(comm: Comm, elements: tuple[int, int] | None, dtype: str) -> dict[str, Any]:
    """A collective's arguments as PyTorch writes them; ``elements`` are those it takes in and gives out."""
    shown = [*map(str, comm.ranks[:RANKS_WRITTEN]), *["..."] * (len(comm.ranks) > RANKS_WRITTEN)]
    args: dict[str, Any] = {
        "Collective name": comm.kind, "Group size": comm.size, "Process Group Name": comm.group,
        "Process Group Description": comm.what,
        "Process Group Ranks": f"[{', '.join(shown)}]",
    }  # fmt: skip
    if elements is not None:
        args |= {"In msg nelems": elements[0], "Out msg nelems": elements[1], "dtype": dtype}
    if comm.sequence >= 0:
        args["Seq"] = comm.sequence
    if comm.peer:
        args |= {"Src Rank": comm.peer[0], "Dst Rank": comm.peer[1]}
    return args
