"""Chakra execution traces in memory, and the reader of their files (NAME.RANK.et).

Field names and numbers are those of schema/protobuf/et_def.proto (mlcommons/chakra, package ChakraProtoMsg): a file is
a GlobalMetadata followed by Nodes, each preceded by its length as a varint. Sizes are limited.
"""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.compressed_files import read_maybe_gzip
from simcluster.documents.diagnostics import quote_value
from simcluster.documents.yaml_documents import require_unique_keys

Value = bool | int | float | str | bytes | tuple[bool | int | float | str | bytes, ...]

KINDS = ("invalid", "metadata", "mem_load", "mem_store", "comp", "send", "recv", "coll")
"""Kinds of nodes, by their numbers in the schema (NodeType)."""

COLLECTIVES = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter"),
    *("reduce_scatter_block", "barrier"),
)
"""Collectives, by their numbers in the schema (CollectiveCommType)."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One node of a rank's Chakra execution graph.

    ``after`` are the ids of its data and control dependencies; ``seconds`` is its duration, 0 if the trace has none.
    """

    id: int
    name: str
    kind: str
    after: tuple[int, ...] = ()
    seconds: float = 0.0
    attributes: Mapping[str, Value] = field(default_factory=dict)

    def integer_attribute(self, key: str, default: int | None = None, *, minimum: int = 0) -> int:
        """Return an attribute as an integer; raise InputError if missing or not a whole number."""
        value = self.attributes.get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**62:
            has = "has no attribute" if value is None else f"has {str(value)[:40]!r} as"
            raise InputError(f"{self.label} {has} {key!r}; it must be a whole number from {minimum}")
        return value

    @property
    def label(self) -> str:
        """Description of the node for error messages: id, name and kind."""
        return f"node {self.id} ({self.name[:60]!r}, {self.kind})"


@dataclass(frozen=True)
class ChakraTrace:
    """Chakra trace of a job: the nodes of every rank, and the ranks of every process group."""

    name: str
    ranks: tuple[tuple[TraceNode, ...], ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def sorted_nodes(self, rank: int) -> list[TraceNode]:
        """Return a rank's nodes in topological order; among nodes that are ready, the lowest id comes first.

        Raises InputError for a duplicate id, a dependency on an id that is not in the trace, and a cycle.
        """
        nodes, where = self.ranks[rank], f"{self.name}, rank {rank}"
        by_id = {node.id: node for node in nodes}
        if len(by_id) < len(nodes):
            counts = Counter(node.id for node in nodes)
            twice = next(node for node in nodes if counts[node.id] > 1)
            raise InputError(f"{where}: {twice.label}: its id is a duplicate; every node needs a unique id")
        for node in nodes:
            for other in node.after:
                if other not in by_id:
                    raise InputError(f"{where}: {node.label} waits for node {other}, which is not in the trace; add it")
        sorter = TopologicalSorter({node.id: node.after for node in nodes})
        try:
            sorter.prepare()
        except CycleError as problem:
            stuck = next(node for node in nodes if node.id in problem.args[1])
            raise InputError(
                f"{where}: {stuck.label} waits for itself through other nodes; a trace must have no cycles"
            ) from None
        ready: list[int] = []
        found = []
        while sorter.is_active():
            for number in sorter.get_ready():
                heapq.heappush(ready, number)
            found.append(by_id[heapq.heappop(ready)])
            sorter.done(found[-1].id)
        return found


_MAX_MESSAGE = 16_000_000
_SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32"),
    *("sfixed64", "bool", "string", "bytes"),
)
"""Value types in the schema's order: type k is field 2 k + 3 of an AttributeProto, its list 2 k + 4."""

_MESSAGES = {
    "GlobalMetadata": {1: ("version", "string"), 2: ("attr", "AttributeProto*")},
    "Node": {
        1: ("id", "uint64"), 2: ("name", "string"), 3: ("type", "NodeType"), 4: ("ctrl_deps", "uint64*"),
        5: ("data_deps", "uint64*"), 6: ("start_time_micros", "uint64"), 7: ("duration_micros", "uint64"),
        10: ("attr", "AttributeProto*"),
    },
}  # fmt: skip
"""Fields by number; * marks repeated ones."""


@cache
def load_message_classes() -> dict[str, Any]:
    """Return Chakra's protobuf classes GlobalMetadata and Node; raise InputError without protobuf."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise InputError("execution traces need protobuf; pip install 'simcluster[chakra]'") from None
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    kinds = file.enum_type.add(name="NodeType")
    for number, kind in enumerate(KINDS):
        kinds.value.add(name=f"NODE_{kind.upper()}", number=number)
    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    _add_field(attribute, "name", 1, "string")
    _add_field(attribute, "doc_string", 2, "string")
    for place, scalar in enumerate(_SCALARS):
        of_list = f"{scalar.capitalize()}List"
        values = file.message_type.add(name=of_list)
        _add_field(values, "values", 1, scalar, repeated=True)
        _add_field(attribute, f"{scalar}_val", 2 * place + 3, scalar, oneof=True)
        _add_field(attribute, f"{scalar}_list", 2 * place + 4, of_list, oneof=True)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (key, kind) in fields.items():
            _add_field(message, key, number, kind.removesuffix("*"), repeated=kind.endswith("*"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


def _add_field(message: Any, name: str, number: int, kind: str, *, repeated: bool = False, oneof: bool = False) -> None:
    known = kind if kind in _SCALARS else "enum" if kind == "NodeType" else "message"
    label = "LABEL_REPEATED" if repeated else "LABEL_OPTIONAL"
    field = message.field.add(name=name, number=number, type=f"TYPE_{known.upper()}", label=label)
    if known != kind:
        field.type_name = f".ChakraProtoMsg.{kind}"
    if oneof:
        field.oneof_index = 0


def serialize_with_length(message: Any) -> bytes:
    """Serialize a protobuf message, preceded by its length as a varint."""
    body: bytes = message.SerializeToString()
    size, head = len(body), b""
    while size > 0x7F:
        head, size = head + bytes([size & 0x7F | 0x80]), size >> 7
    return head + bytes([size]) + body


def split_protobuf_messages(raw: bytes, source: str) -> Iterator[memoryview]:
    """Yield a trace file's protobuf messages; raise InputError for a truncated or oversized message."""
    view, place = memoryview(raw), 0
    while place < len(view):
        begin, size, shift = place, 0, 0
        while True:
            if place >= len(view) or shift > 35:
                raise InputError(
                    f"{source}: byte {begin}: the length of a message is cut off; the file is "
                    f"truncated: copy or record it again"
                )
            byte = view[place]
            size |= (byte & 0x7F) << shift
            place, shift = place + 1, shift + 7
            if byte < 0x80:
                break
        if size > _MAX_MESSAGE:
            raise InputError(f"{source}: byte {begin}: a message has {size:,} bytes: not an execution trace")
        if place + size > len(view):
            raise InputError(
                f"{source}: byte {begin}: a message of {size:,} bytes is cut off after {len(view) - place:,}; "
                "the file is truncated: copy or record it again"
            )
        yield view[place : place + size]
        place += size


MAX_BYTES = 256_000_000
"""Limit of one rank's file, unpacked: about 2 million nodes."""
MAX_NODES = 2_000_000
"""Limit of the nodes of all ranks together: about 3 GB when simulated."""
MAX_ITEMS = 10_000_000
"""Limit of the dependencies and list items of all ranks together."""
_FILE_NAME = re.compile(r"(.+)\.(\d{1,9})\.et(\.gz)?")
EXACT_SECONDS_KEY = "simcluster_seconds"
"""Attribute with the exact duration, since the schema's is in whole microseconds."""


def read_chakra_trace(path: str | Path, groups: str | Path | None = None) -> ChakraTrace:
    """Read a job's Chakra trace from a folder, or from a path prefix (``traces/job`` reads job.0.et, job.1.et, ...).

    ``groups`` is a JSON file with the ranks of every process group, {"0": [0, 1, 2, 3]} (default: comm_groups.json in
    the same folder, if it exists). Raises InputError naming the file that is missing, truncated, too large or not a
    trace.
    """
    files = _find_trace_files(Path(path))
    first = files[0]
    table = Path(groups) if groups is not None else first.parent / "comm_groups.json"
    known = read_process_groups(table, len(files)) if groups is not None or table.is_file() else {}
    read = Counter[str]()
    match = _FILE_NAME.fullmatch(first.name)
    assert match
    return ChakraTrace(match[1], tuple([tuple(_read_nodes(file, read)) for file in files]), known)


def _find_trace_files(path: Path) -> list[Path]:
    folder, prefix = (path, None) if path.is_dir() else (path.parent, path.name)
    if not folder.is_dir():
        raise InputError(f"{path}: there is no such folder and no file {path}.0.et; name a folder or prefix of traces")
    jobs: dict[str, dict[int, Path]] = {}
    for file in sorted(folder.iterdir()):
        match = _FILE_NAME.fullmatch(file.name)
        if match and (prefix is None or match[1] == prefix):
            of_job = jobs.setdefault(match[1], {})
            if int(match[2]) in of_job:
                raise InputError(f"{file}: rank {int(match[2])} has two files; keep one")
            of_job[int(match[2])] = file
    if not jobs:
        raise InputError(f"{path}: there are no execution traces; their names are NAME.RANK.et, as in job.0.et")
    if len(jobs) > 1:
        names = ", ".join(list(jobs)[:5])
        raise InputError(f"{path}: has traces of several jobs ({names}); name one job, as in {path / next(iter(jobs))}")
    found = next(iter(jobs.values()))
    lost = next((rank for rank in range(len(found)) if rank not in found), None)
    if lost is not None:
        raise InputError(f"{path}: there are {len(found)} traces, but none of rank {lost}; number the ranks from 0")
    return [found[rank] for rank in range(len(found))]


def _read_nodes(source: Path, read: Counter[str]) -> list[TraceNode]:
    """Return the nodes of a trace file; count them in ``read``, over all files, to enforce a memory limit."""
    from google.protobuf.message import DecodeError

    raw, known = read_maybe_gzip(source, MAX_BYTES), load_message_classes()
    if not raw:
        raise InputError(f"{source}: the file is empty; record it again")
    found: list[TraceNode] = []
    for place, body in enumerate(split_protobuf_messages(raw, str(source))):
        try:
            message = known["Node" if place else "GlobalMetadata"].FromString(body)
        except DecodeError:
            what = f"message {place}" if place else "the header"
            raise InputError(
                f"{source}: {what} is not a message of an execution trace (et_def.proto); copy or record the file again"
            ) from None
        if not place:
            continue
        found.append(_parse_node(message, source))
        lists = sum(len(value) for value in found[-1].attributes.values() if isinstance(value, tuple))
        read.update(nodes=1, items=len(message.data_deps) + len(message.ctrl_deps) + lists)
        if read["nodes"] > MAX_NODES or read["items"] > MAX_ITEMS:
            raise InputError(
                f"{source}: the traces have more than {MAX_NODES:,} nodes, or more than {MAX_ITEMS:,} dependencies and "
                "attribute-list items in total; simulate fewer ranks or a part of the trace"
            )
    if not found:
        raise InputError(f"{source}: has a header but no nodes; record it again")
    return found


def _parse_node(message: Any, source: Path) -> TraceNode:
    attributes: dict[str, Value] = {}
    for each in message.attr:
        field = each.WhichOneof("value")
        if each.name in attributes:
            raise InputError(f"{source}: node {message.id}: attribute {each.name[:60]!r} occurs twice; keep one")
        if field is not None:
            value = getattr(each, field)
            attributes[each.name] = tuple(value.values) if field.endswith("_list") else value
    if not 1 <= message.type < len(KINDS):
        raise InputError(f"{source}: node {message.id}: type {message.type} is unknown; use 1 to {len(KINDS) - 1}")
    seconds = message.duration_micros / 1e6
    exact = attributes.pop(EXACT_SECONDS_KEY, None)
    if isinstance(exact, float) and abs(exact - seconds) <= 1e-6:
        seconds = exact
    after = dict.fromkeys((*message.data_deps, *message.ctrl_deps))
    return TraceNode(message.id, message.name, KINDS[message.type], tuple(after), seconds, attributes)


def read_process_groups(path: Path, ranks: int) -> dict[str, tuple[int, ...]]:
    """Read process groups (name to ranks) from a JSON file; raise InputError for an invalid group."""
    try:
        with path.open("rb") as file:
            raw = file.read(64_000_001)
        if len(raw) > 64_000_000:
            raise InputError(f"{path}: the file is larger than 64,000,000 bytes; name a file of process groups")
        data = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=require_unique_keys)
    except OSError as problem:
        raise InputError(f"{path}: cannot be read: {problem.strerror}") from None
    except InputError as problem:
        raise InputError(str(problem) if str(problem).startswith(str(path)) else f"{path}: {problem}") from None
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{path}: is not JSON: {str(problem)[:100]}") from None
    if not isinstance(data, Mapping):
        raise InputError(f'{path}: is {quote_value(data)}; give the ranks of each group, as in {{"0": [0, 1, 2, 3]}}')
    for name, members in data.items():
        wrong = not isinstance(members, list) or not members
        wrong = wrong or any(isinstance(rank, bool) or not isinstance(rank, int) for rank in members)
        if wrong or len(set(members)) < len(members) or not all(0 <= rank < ranks for rank in members):
            raise InputError(
                f"{path}: group {name[:40]!r} is {quote_value(members)}; a group must be a list of ranks from 0 to "
                f"{ranks - 1}, as in [0, 1]"
            )
    return {name: tuple(members) for name, members in data.items()}
