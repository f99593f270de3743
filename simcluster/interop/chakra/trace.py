"""An execution trace as plain data, and the protobuf messages of its files, made from field numbers.

Field names and numbers are those of schema/protobuf/et_def.proto (mlcommons/chakra, package ChakraProtoMsg): a file is
a GlobalMetadata and then Nodes, each behind its length as a varint.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

from simcluster.base.errors import InputError

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
    """One node of a rank's graph; ``after`` are the ids that it waits for (data and control), ``seconds`` its length
    where the trace has one, 0 where it has none."""

    id: int
    name: str
    kind: str
    after: tuple[int, ...] = ()
    seconds: float = 0.0
    attributes: Mapping[str, Value] = field(default_factory=dict)

    def number(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """Return a whole number among the attributes; InputError where it is missing or something else."""
        value = self.attributes.get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**62:
            has = "has no attribute" if value is None else f"has {str(value)[:40]!r} as"
            raise InputError(f"{self.label} {has} {key}; a whole number from {least} is expected")
        return value

    @property
    def label(self) -> str:
        """The node in a message."""
        return f"node {self.id} ({self.name[:60]!r}, {self.kind})"


@dataclass(frozen=True)
class ChakraTrace:
    """The nodes of every rank, in the order of the file; ``groups`` are the ranks of each process group by name."""

    name: str
    ranks: tuple[tuple[TraceNode, ...], ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def in_order(self, rank: int) -> list[TraceNode]:
        """Return a rank's nodes so that each comes after what it waits for; of those that could be next the lowest id.

        Raises InputError for an id that is there twice, one that is waited for and not there, and nodes that wait for
        each other in a circle.
        """
        nodes, where = self.ranks[rank], f"{self.name}, rank {rank}"
        by_id = {node.id: node for node in nodes}
        if len(by_id) < len(nodes):
            counts = Counter(node.id for node in nodes)
            twice = next(node for node in nodes if counts[node.id] > 1)
            raise InputError(f"{where}: {twice.label}: its id is there twice; every node has its own")
        for node in nodes:
            for other in node.after:
                if other not in by_id:
                    raise InputError(f"{where}: {node.label} waits for node {other}, which is not in the trace")
        sorter = TopologicalSorter({node.id: node.after for node in nodes})
        try:
            sorter.prepare()
        except CycleError as problem:
            stuck = next(node for node in nodes if node.id in problem.args[1])
            raise InputError(
                f"{where}: {stuck.label} waits for itself by way of others; a trace has no circles"
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
"""Kinds of values, in the schema's order: one is field 2 k + 3 of an AttributeProto, a list of them 2 k + 4."""

_MESSAGES = {
    "GlobalMetadata": {1: ("version", "string"), 2: ("attr", "AttributeProto*")},
    "Node": {
        1: ("id", "uint64"), 2: ("name", "string"), 3: ("type", "NodeType"), 4: ("ctrl_deps", "uint64*"),
        5: ("data_deps", "uint64*"), 6: ("start_time_micros", "uint64"), 7: ("duration_micros", "uint64"),
        10: ("attr", "AttributeProto*"),
    },
}  # fmt: skip
"""Fields by their numbers; * is for repeated ones."""


@cache
def messages() -> dict[str, Any]:
    """Return classes of GlobalMetadata and Node, in a separate pool; InputError without protobuf."""
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
    _field(attribute, "name", 1, "string")
    _field(attribute, "doc_string", 2, "string")
    for place, scalar in enumerate(_SCALARS):
        of_list = f"{scalar.capitalize()}List"
        values = file.message_type.add(name=of_list)
        _field(values, "values", 1, scalar, repeated=True)
        _field(attribute, f"{scalar}_val", 2 * place + 3, scalar, oneof=True)
        _field(attribute, f"{scalar}_list", 2 * place + 4, of_list, oneof=True)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (key, kind) in fields.items():
            _field(message, key, number, kind.removesuffix("*"), repeated=kind.endswith("*"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


def _field(message: Any, name: str, number: int, kind: str, *, repeated: bool = False, oneof: bool = False) -> None:
    known = kind if kind in _SCALARS else "enum" if kind == "NodeType" else "message"
    label = "LABEL_REPEATED" if repeated else "LABEL_OPTIONAL"
    field = message.field.add(name=name, number=number, type=f"TYPE_{known.upper()}", label=label)
    if known != kind:
        field.type_name = f".ChakraProtoMsg.{kind}"
    if oneof:
        field.oneof_index = 0


def framed(message: Any) -> bytes:
    """Return a message after its length."""
    body: bytes = message.SerializeToString()
    size, head = len(body), b""
    while size > 0x7F:
        head, size = head + bytes([size & 0x7F | 0x80]), size >> 7
    return head + bytes([size]) + body


def frames(raw: bytes, source: str) -> Iterator[memoryview]:
    """Yield the bodies of the messages in a file; InputError, with the byte, where one is cut off or absurdly long."""
    view, place = memoryview(raw), 0
    while place < len(view):
        begin, size, shift = place, 0, 0
        while True:
            if place >= len(view) or shift > 35:
                raise InputError(
                    f"{source}: byte {begin}: the length of a message is cut off; the file is not "
                    f"whole: copy or record it again"
                )
            byte = view[place]
            size |= (byte & 0x7F) << shift
            place, shift = place + 1, shift + 7
            if byte < 0x80:
                break
        if size > _MAX_MESSAGE:
            raise InputError(f"{source}: byte {begin}: a message of {size:,} bytes; this is no execution trace")
        if place + size > len(view):
            raise InputError(
                f"{source}: byte {begin}: a message of {size:,} bytes is cut off after {len(view) - place:,}; "
                "the file is not whole: copy or record it again"
            )
        yield view[place : place + size]
        place += size
