"""Writer of Chakra execution traces, from a trace in memory or from a simulated run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.atomic_files import open_atomic, write_text_atomic
from simcluster.base.errors import InputError
from simcluster.interop.chakra import trace as schema
from simcluster.interop.chakra.simulation import COPY_DIRECTIONS
from simcluster.interop.chakra.trace import COLLECTIVES, KINDS, ChakraTrace, TraceNode, Value
from simcluster.planning.offload import HOST

if TYPE_CHECKING:
    from simcluster.reference.step_record import OpSpanLabel
    from simcluster.results.simulated_run import Run

_MEMORY_KINDS = {way: kind for kind, way in COPY_DIRECTIONS.items()}
_INTEGER_TYPES = {"comm_src": "int32", "comm_dst": "int32", "comm_tag": "int32", "tensor_size": "uint64"}


def write_chakra_trace(trace: ChakraTrace, folder: str | Path) -> list[Path]:
    """Write a Chakra trace: one file per rank (NAME.RANK.et), and the process groups as JSON.

    Durations are whole microseconds, as the schema requires; the attribute ``simcluster_seconds`` has the exact value.
    Raises InputError if the folder cannot be written.
    """
    folder = Path(folder)
    files: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rank, nodes in enumerate(trace.ranks):
            files.append(folder / f"{trace.name}.{rank}.et")
            with open_atomic(files[-1]) as file:
                file.write(_encode_nodes(nodes))
        if trace.groups:
            groups = {name: list(ranks) for name, ranks in trace.groups.items()}
            write_text_atomic(folder / "comm_groups.json", json.dumps(groups, indent=1) + "\n")
    except OSError as problem:
        raise InputError(f"cannot write {folder}: {problem.strerror}") from None
    return files


def _encode_nodes(nodes: tuple[TraceNode, ...]) -> bytes:
    known = schema.load_message_classes()
    parts = [schema.serialize_with_length(known["GlobalMetadata"](version="1.0.0"))]
    for node in nodes:
        out = known["Node"](id=node.id, name=node.name, type=KINDS.index(node.kind), data_deps=node.after)
        if node.seconds > 0:
            out.duration_micros = max(1, round(node.seconds * 1e6))
        more = {schema.EXACT_SECONDS_KEY: node.seconds} if abs(out.duration_micros / 1e6 - node.seconds) <= 1e-6 else {}
        for name, value in {**node.attributes, **more}.items():
            _set_attribute(out.attr.add(name=name), name, value)
        parts.append(schema.serialize_with_length(out))
    return b"".join(parts)


def _set_attribute(attribute: Any, name: str, value: Value) -> None:
    kinds = {bool: "bool", int: "int64", float: "double", str: "string", bytes: "bytes"}
    if isinstance(value, tuple):
        kind = kinds[type(value[0] if value else False)]
        getattr(attribute, f"{kind}_list").values.extend(value)
    else:
        kind = _INTEGER_TYPES.get(name, "int64") if type(value) is int else kinds[type(value)]
        setattr(attribute, f"{kind}_val", value)


def write_run_as_chakra(run: Run, folder: str | Path, name: str) -> list[Path]:
    """Write a simulated run as Chakra execution traces; requires a run that simulated every rank.

    The nodes are computation with its duration, collectives, messages, and copies with their bytes. Each waits for the
    node before it on the same queue. A rendezvous send waits for a one-byte message that announces its receiver, so
    that simulating the trace may add one latency per send. A copy to host memory is a mem_store, one from it a mem_load
    (ASTRA-sim's remote memory); host computation has is_cpu_op. Raises InputError if the run is folded or too large.
    """
    if len(run.weights) < len(run.ranks):
        raise InputError("the run simulates one rank on behalf of several; simulate it with folded=False")
    if len(run.record.ops) > schema.MAX_NODES:
        raise InputError(f"the run has {len(run.record.ops):,} ops; the limit is {schema.MAX_NODES:,}: use fewer GPUs")
    return write_chakra_trace(_RunTraceBuilder(run, name).build(), folder)


def require_writable_op_count(run: Run, where: str) -> None:
    """Raise InputError if a run would have too many ops to write once every rank is simulated."""
    record = run.record
    pairs = zip(record.ops.ops_of_lanes, record.lane_rank.tolist(), strict=True)
    ops = sum(len(lane) * run.weights[rank] for lane, rank in pairs)
    if ops > schema.MAX_NODES:
        raise InputError(
            f"{where}: has {ops:,} ops on {len(run.ranks):,} ranks; the limit is {schema.MAX_NODES:,}: use "
            "fewer GPUs, microbatches or layers"
        )


class _RunTraceBuilder:
    def __init__(self, run: Run, name: str) -> None:
        self._run, self._name, self._ops = run, name, run.record.ops
        self._rank: list[int] = self._ops.lane_rank[self._ops.lane].tolist()
        self._groups: dict[str, tuple[int, ...]] = {}
        self._number: dict[str, str] = {}
        self._ids = count(len(self._ops))  # of nodes that are not ops
        self._tags = Counter[tuple[int, int]]()
        self._messages: dict[int, Mapping[str, Value]] = {}  # attributes of every message, by op
        self._receive_of_send: dict[int, int] = {}  # of rendezvous messages
        self._send_of_receive: dict[int, int] = {}
        self._ready_node: dict[int, int] = {}  # by send: the node that announces its receiver

    def build(self) -> ChakraTrace:
        ops, waits = self._ops, self._ops.dependencies
        ranks: dict[int, list[TraceNode]] = {rank: [] for rank in range(len(self._run.ranks))}
        self._pair_rendezvous_messages(ranks)
        arrivals = self._add_receive_nodes(ranks)
        for lane, own in enumerate(ops.ops_of_lanes):
            rank, before = int(ops.lane_rank[lane]), -1
            for op in own.tolist():
                after = [] if before < 0 else [before]
                awaited = waits.op[waits.offsets[op] : waits.offsets[op + 1]].tolist()
                after += [other if self._rank[other] == rank else arrivals[other, op] for other in awaited]
                ranks[rank] += self._make_op_nodes(op, rank, tuple(dict.fromkeys(after)))
                before = op
        ordered = tuple(tuple(sorted(nodes, key=lambda node: node.id)) for nodes in ranks.values())
        return ChakraTrace(self._name, ordered, self._groups)

    def _op_label(self, op: int) -> OpSpanLabel:
        label: OpSpanLabel = self._ops.labels[self._ops.label[op]]
        return label

    def _pair_rendezvous_messages(self, ranks: dict[int, list[TraceNode]]) -> None:
        """Pair every rendezvous send with the receive op of the same transfer."""
        ops = self._ops
        sends = {meeting: op for op, meeting in enumerate(ops.meeting.tolist())
                 if ops.label[op] >= 0 and self._op_label(op).kind == "send"}  # fmt: skip
        for op in np.flatnonzero(ops.label < 0).tolist():
            send = sends[int(ops.meeting[op])]
            source, target = self._rank[send], self._rank[op]
            self._receive_of_send[send], self._send_of_receive[op], self._ready_node[send] = op, send, next(self._ids)
            self._messages[send] = self._make_message_attributes(source, target, self._op_label(send).bytes)
            self._messages[op] = self._make_message_attributes(target, source, 1)
            ready = TraceNode(self._ready_node[send], "receiver is there", "recv", (), 0.0, self._messages[op])
            ranks[source].append(ready)

    def _add_receive_nodes(self, ranks: dict[int, list[TraceNode]]) -> dict[tuple[int, int], int]:
        """Add a receive node for each message; skip rendezvous messages, whose receive is already an op."""
        found = {}
        for send, op in zip(*(column.tolist() for column in self._ops.receives), strict=True):
            found[send, op] = self._receive_of_send.get(send, -1)
            if found[send, op] < 0:
                label, target = self._op_label(send), self._rank[op]
                if send not in self._messages:
                    self._messages[send] = self._make_message_attributes(self._rank[send], target, label.bytes)
                found[send, op] = next(self._ids)
                ranks[target].append(
                    TraceNode(found[send, op], f"receive {label.name}", "recv", (), 0.0, self._messages[send])
                )
        return found

    def _make_message_attributes(self, source: int, target: int, size: float) -> Mapping[str, Value]:
        tag = self._tags[source, target]
        self._tags[source, target] += 1
        size = _round_byte_count(size)
        return {"is_cpu_op": False, "comm_src": source, "comm_dst": target, "comm_tag": tag, "comm_size": size}

    def _make_op_nodes(self, op: int, rank: int, after: tuple[int, ...]) -> Iterator[TraceNode]:
        if op in self._send_of_receive:
            name = self._op_label(self._send_of_receive[op]).name
            yield TraceNode(next(self._ids), f"ready to receive {name}", "send", after, 0.0, self._messages[op])
            yield TraceNode(op, f"receive {name}", "recv", after, 0.0, self._messages[self._send_of_receive[op]])
            return
        shown, seconds, attributes = self._op_label(op), 0.0, self._messages.get(op)
        label = f"{shown.kind} {shown.name}" + (f" layer {shown.layer}" if shown.layer >= 0 else "")
        if shown.kind in COLLECTIVES:
            kind, attributes = "coll", self._make_collective_attributes(rank, shown, int(self._ops.lane[op]))
        elif shown.kind == "send":
            kind, after = "send", (*after, self._ready_node[op]) if op in self._ready_node else after
        elif shown.kind == "copy":
            size = _round_byte_count(shown.bytes)
            kind, attributes = _MEMORY_KINDS[shown.stream], {"is_cpu_op": False, "tensor_size": size}
        elif self._ops.meeting[op] >= 0:
            raise InputError(f"rank {rank}: {label} has no equivalent node in an execution trace")
        else:
            kind, attributes = "comp", {"is_cpu_op": shown.stream == HOST}
            seconds = float(self._run.record.times.end[op] - self._run.record.times.start[op])
        if attributes is None:
            raise InputError(f"rank {rank}: {label} has no receiver, so it cannot be written as a trace node")
        yield TraceNode(op, label, kind, after, seconds, attributes)

    def _make_collective_attributes(self, rank: int, shown: OpSpanLabel, lane: int) -> Mapping[str, Value]:
        communicators = self._run.folding.communicators
        name = communicators.group_name(shown.axis, rank)
        queue = self._ops.lane_name[lane]
        known = name if queue == "main" else f"{name} {queue}"
        ranks = tuple(sorted(communicators.member_ranks(communicators.find_communicator(shown.axis, rank))))
        group = self._number.setdefault(known, str(len(self._number)))  # ASTRA-sim needs numbers
        self._groups.setdefault(group, ranks)
        share = len(ranks) if shown.kind == "all_gather" else 1
        return {
            "is_cpu_op": False, "comm_type": COLLECTIVES.index(shown.kind),
            "comm_size": _round_byte_count(shown.bytes / share), "pg_name": group, "simcluster_group": known,
        }  # fmt: skip


def _round_byte_count(amount: float) -> int:
    return max(1, round(amount))
