"""Execution traces from files NAME.RANK.et, with limits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import shown
from simcluster.documents.packed import read_packed
from simcluster.documents.reading import unique_keys
from simcluster.interop.chakra.trace import KINDS, ChakraTrace, TraceNode, Value, frames, messages

MAX_BYTES = 256_000_000
"""Of one rank's file, unpacked: about 2 million nodes."""
MAX_NODES = 2_000_000
"""Of all ranks together: about 3 GB when they are played."""
MAX_ITEMS = 10_000_000
"""Dependencies and items of lists, of all ranks together."""
_NAME = re.compile(r"(.+)\.(\d{1,9})\.et(\.gz)?")
EXACT = "simcluster_seconds"
"""Our own attribute: the length in full, since the schema's is in whole microseconds."""


def read_traces(path: str | Path, groups: str | Path | None = None) -> ChakraTrace:
    """Read the traces in a folder (of one job), or those whose files begin with ``path`` (``traces/job`` for job.0.et).

    ``groups`` is a JSON file with the ranks of every process group by its name, {"0": [0, 1, 2, 3]}; left out,
    comm_groups.json beside the traces, if it is there.  Raises InputError that names the file for what is missing, cut
    off, too large or no trace.
    """
    files = _files(Path(path))
    first = files[0]
    table = Path(groups) if groups is not None else first.parent / "comm_groups.json"
    known = read_groups(table, len(files)) if groups is not None or table.is_file() else {}
    left = _Left(MAX_NODES, MAX_ITEMS)
    match = _NAME.fullmatch(first.name)
    assert match
    return ChakraTrace(match[1], tuple([tuple(_nodes(file, left)) for file in files]), known)


def _files(path: Path) -> list[Path]:
    folder, prefix = (path, None) if path.is_dir() else (path.parent, path.name)
    if not folder.is_dir():
        raise InputError(f"{path}: no such folder, and no traces {path}.0.et, ...")
    jobs: dict[str, dict[int, Path]] = {}
    for file in sorted(folder.iterdir()):
        match = _NAME.fullmatch(file.name)
        if match and (prefix is None or match[1] == prefix):
            of_job = jobs.setdefault(match[1], {})
            if int(match[2]) in of_job:
                raise InputError(f"{file}: rank {int(match[2])} has two files; keep one")
            of_job[int(match[2])] = file
    if not jobs:
        raise InputError(f"{path}: there are no execution traces; files are called NAME.RANK.et, as in job.0.et")
    if len(jobs) > 1:
        names = ", ".join(list(jobs)[:5])
        raise InputError(f"{path}: has traces of several jobs ({names}); name one, as in {path / next(iter(jobs))}")
    found = next(iter(jobs.values()))
    lost = next((rank for rank in range(len(found)) if rank not in found), None)
    if lost is not None:
        raise InputError(f"{path}: there are {len(found)} traces and none of rank {lost}; ranks are numbered from 0")
    return [found[rank] for rank in range(len(found))]


@dataclass
class _Left:
    """How much more may be read: a stranger's files are not to use all memory."""

    nodes: int
    items: int

    def take(self, message: Any, source: Path) -> None:
        self.nodes -= 1
        self.items -= len(message.data_deps) + len(message.ctrl_deps)
        for each in message.attr:
            field = each.WhichOneof("value")
            if field is not None and field.endswith("_list"):
                self.items -= len(getattr(each, field).values)
        if self.nodes < 0 or self.items < 0:
            raise InputError(
                f"{source}: the traces have more than {MAX_NODES:,} nodes together, or {MAX_ITEMS:,} dependencies and "
                "items of lists; play fewer ranks or a part of the trace"
            )


def _nodes(source: Path, left: _Left) -> list[TraceNode]:
    from google.protobuf.message import DecodeError

    raw, known = read_packed(source, MAX_BYTES), messages()
    if not raw:
        raise InputError(f"{source}: the file is empty")
    found: list[TraceNode] = []
    for place, body in enumerate(frames(raw, str(source))):
        try:
            message = known["Node" if place else "GlobalMetadata"].FromString(body)
        except DecodeError:
            what = f"message {place}" if place else "the head"
            raise InputError(
                f"{source}: {what} is no message of an execution trace (et_def.proto), as it must be; "
                "copy or record the file again"
            ) from None
        if not place:
            continue
        left.take(message, source)
        found.append(_node(message, source))
    if not found:
        raise InputError(f"{source}: has a head and no nodes")
    return found


def _node(message: Any, source: Path) -> TraceNode:
    attributes: dict[str, Value] = {}
    for each in message.attr:
        field = each.WhichOneof("value")
        if each.name in attributes:
            raise InputError(f"{source}: node {message.id}: attribute {each.name[:60]!r} is there twice")
        if field is not None:
            value = getattr(each, field)
            attributes[each.name] = tuple(value.values) if field.endswith("_list") else value
    if not 1 <= message.type < len(KINDS):
        raise InputError(f"{source}: node {message.id}: has no type that is known ({message.type})")
    seconds = message.duration_micros / 1e6
    exact = attributes.pop(EXACT, None)
    if isinstance(exact, float) and abs(exact - seconds) <= 1e-6:
        seconds = exact
    after = dict.fromkeys((*message.data_deps, *message.ctrl_deps))
    return TraceNode(message.id, message.name, KINDS[message.type], tuple(after), seconds, attributes)


def read_groups(path: Path, ranks: int) -> dict[str, tuple[int, ...]]:
    """Read the ranks of process groups by name; InputError for what is not one."""
    try:
        with path.open("rb") as file:
            raw = file.read(64_000_001)
        if len(raw) > 64_000_000:
            raise InputError(f"{path}: is larger than 64,000,000 bytes")
        data = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=unique_keys)
    except OSError as problem:
        raise InputError(f"{path}: cannot be read: {problem.strerror}") from None
    except InputError as problem:
        raise InputError(str(problem) if str(problem).startswith(str(path)) else f"{path}: {problem}") from None
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{path}: is not JSON: {str(problem)[:100]}") from None
    if not isinstance(data, Mapping):
        raise InputError(f'{path}: holds {shown(data)}; groups look like {{"0": [0, 1, 2, 3]}}')
    for name, members in data.items():
        wrong = not isinstance(members, list) or not members
        wrong = wrong or any(isinstance(rank, bool) or not isinstance(rank, int) for rank in members)
        if wrong or len(set(members)) < len(members) or not all(0 <= rank < ranks for rank in members):
            raise InputError(
                f"{path}: group {name[:40]!r} is {shown(members)}; a group must be a list of ranks from 0 to "
                f"{ranks - 1}, as in [0, 1]"
            )
    return {name: tuple(members) for name, members in data.items()}
