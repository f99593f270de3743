"""Writes execution traces: given ones, and those of a run of ours.  Imports the messages and a run's program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.chakra.messages import framed, messages
from simcluster.chakra.reading import MAX_NODES
from simcluster.chakra.trace import COLLECTIVES, KINDS, Node, Trace, Value
from simcluster.errors import InputError

if TYPE_CHECKING:
    from simcluster.lowering.program import SpanRow
    from simcluster.result import Run

MAX_RANKS = 1024
_EXACT = "simcluster_seconds"
_FIELDS = {"comm_src": "int32_val", "comm_dst": "int32_val", "comm_tag": "int32_val", "tensor_size": "uint64_val"}


def write_traces(trace: Trace, folder: str | Path) -> list[Path]:
    """NAME.RANK.et for every rank, and comm_groups.json where there are groups; the folder is made.

    Lengths are in whole microseconds, as the schema has them, and in full in an attribute of ours.
    InputError where the system refuses to write.
    """
    folder = Path(folder)
    files: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rank, nodes in enumerate(trace.ranks):
            files.append(folder / f"{trace.name}.{rank}.et")
            files[-1].write_bytes(_encoded(nodes))
        if trace.groups:
            groups = {name: list(ranks) for name, ranks in trace.groups.items()}
            (folder / "comm_groups.json").write_text(json.dumps(groups, indent=1) + "\n", encoding="utf-8")
    except OSError as problem:
        raise InputError(f"cannot write {folder}: {problem.strerror}") from None
    return files


def _encoded(nodes: tuple[Node, ...]) -> bytes:
    known = messages()
    parts = [framed(known["GlobalMetadata"](version="1.0.0"))]
    for node in nodes:
        message = known["Node"](id=node.id, name=node.name, type=KINDS.index(node.kind), data_deps=node.after)
        if node.seconds > 0:
            message.duration_micros = max(1, round(node.seconds * 1e6))
        exact = {_EXACT: node.seconds} if abs(message.duration_micros / 1e6 - node.seconds) <= 1e-6 else {}
        for name, value in {**node.attributes, **exact}.items():
            _set(message.attr.add(name=name), name, value)
        parts.append(framed(message))
    return b"".join(parts)


def _set(attribute: Any, name: str, value: Value) -> None:
    """The value in the field of its kind; numbers as ASTRA-sim reads them (int64, ranks int32, sizes of tensors
    uint64)."""
    if isinstance(value, tuple):
        first = value[0] if value else False
        field = {bool: "bool_list", int: "int64_list", float: "double_list", str: "string_list", bytes: "bytes_list"}
        getattr(attribute, field[type(first)]).values.extend(value)
        return
    field = {bool: "bool_val", int: _FIELDS.get(name, "int64_val"), float: "double_val", str: "string_val"}
    setattr(attribute, field.get(type(value), "bytes_val"), value)


def write_run(run: Run, folder: str | Path, name: str) -> list[Path]:
    """The traces of a run in which every rank and op was played by itself (simulate(folded=False, collapsed=False))."""
    return write_traces(trace_of(run, name), folder)


def trace_of(run: Run, name: str) -> Trace:
    """A run as an execution trace: computation with the time it took, collectives and messages with their bytes.

    What a rank does in order on one queue waits for what came before it there.  Raises InputError for a run that is
    folded, too large, or copies to its host's memory, which has no node in ASTRA-sim.
    """
    if len(run.ranks) > MAX_RANKS:
        raise InputError(f"the run has {len(run.ranks):,} ranks; traces of at most {MAX_RANKS:,} are written")
    if len(run.weights) < len(run.ranks):
        raise InputError("the run plays one rank for several; simulate it with folded=False, collapsed=False")
    if len(run.lowered.program.seconds) > MAX_NODES:
        raise InputError(f"the run has {len(run.lowered.program.seconds):,} ops; at most {MAX_NODES:,} are written")
    return _Writing(run, name).trace()


class _Writing:
    def __init__(self, run: Run, name: str) -> None:
        self._run, self._name = run, name
        self._program = run.lowered.program
        self._groups: dict[str, tuple[int, ...]] = {}
        self._number: dict[str, str] = {}
        self._members: dict[str, dict[str, list[int]]] = {}
        self._target = {send: self._program.lane_rank[self._program.lane[op]] for send, op in self._program.receives}
        self._next = len(self._program.seconds)
        self._tags: dict[tuple[int, int], int] = {}
        self._tag_of: dict[int, int] = {}

    def trace(self) -> Trace:
        program = self._program
        ranks: dict[int, list[Node]] = {rank: [] for rank in range(len(self._run.ranks))}
        arrivals = self._receives(ranks)
        for lane, ops in enumerate(program.lanes):
            rank, before = program.lane_rank[lane], -1
            for op in ops:
                after = [] if before < 0 else [before]
                for other in program.after[op]:
                    same = program.lane_rank[program.lane[other]] == rank
                    after.append(other if same else arrivals[other, op])
                node = self._node(op, rank, tuple(dict.fromkeys(after)))
                if node is not None:
                    ranks[rank].append(node)
                    before = op
        ordered = tuple(tuple(sorted(nodes, key=lambda node: node.id)) for nodes in ranks.values())
        return Trace(self._name, ordered, self._groups)

    def _receives(self, ranks: dict[int, list[Node]]) -> dict[tuple[int, int], int]:
        """A receive for every message, with an id of its own; the k-th of two ranks has tag k on both sides."""
        found = {}
        for send, op in self._program.receives:
            source = self._program.lane_rank[self._program.lane[send]]
            target = self._program.lane_rank[self._program.lane[op]]
            tag = self._tags.setdefault((source, target), 0)
            self._tags[source, target] += 1
            self._tag_of[send] = tag
            row = self._row(send)
            place = {"comm_src": source, "comm_dst": target, "comm_tag": tag, "comm_size": _size(row.bytes)}
            ranks[target].append(
                Node(self._next, f"receive {row.name}", "recv", (), 0.0, {"is_cpu_op": False, **place})
            )
            found[send, op] = self._next
            self._next += 1
        return found

    def _row(self, op: int) -> SpanRow:
        rows = self._program.row_sets[self._program.rows[op]]
        if not rows:
            raise InputError("the run sends at a rendezvous, which no execution trace can say; use pipeline.p2p: async")
        if len(rows) > 1:
            raise InputError("the run plays several ops as one; simulate it with folded=False, collapsed=False")
        return rows[0]

    def _node(self, op: int, rank: int, after: tuple[int, ...]) -> Node | None:
        row = self._row(op)
        record = self._run.record
        label = f"{row.kind} {row.name}" + (f" layer {row.layer}" if row.layer >= 0 else "")
        if row.kind in COLLECTIVES:
            return Node(op, label, "coll", after, 0.0, self._collective(rank, row, self._program.lane[op]))
        if row.kind == "send":
            if op not in self._target:
                raise InputError(f"rank {rank}: nobody waits for {label}; this cannot be written")
            place = {"comm_src": rank, "comm_dst": self._target[op], "comm_tag": self._tag_of[op]}
            return Node(op, label, "send", after, 0.0, {"is_cpu_op": False, **place, "comm_size": _size(row.bytes)})
        if self._program.meeting[op] >= 0 or row.kind in ("copy", "offload"):
            raise InputError(f"rank {rank}: {label} has no node in an execution trace; leave memory.offload out")
        seconds = float(record.end[op] - record.start[op])
        return Node(op, label, "comp", after, seconds, {"is_cpu_op": False})

    def _collective(self, rank: int, row: SpanRow, lane: int) -> Mapping[str, Value]:
        name = self._run.lowered.communicators.group_name(row.axis, rank)
        if row.axis not in self._members:
            members: dict[str, list[int]] = {}
            for each in range(len(self._run.ranks)):
                own = self._run.lowered.communicators.group_name(row.axis, each)
                members.setdefault(own, []).append(each)
            self._members[row.axis] = members
        queue = self._program.lane_name[lane]
        known = name if queue == "main" else f"{name} {queue}"
        ranks = tuple(self._members[row.axis][name])
        group = self._number.setdefault(known, str(len(self._number)))  # ASTRA-sim wants numbers
        self._groups.setdefault(group, ranks)
        share = len(ranks) if row.kind == "all_gather" else 1
        return {
            "is_cpu_op": False,
            "comm_type": COLLECTIVES.index(row.kind),
            "comm_size": _size(row.bytes / share),
            "pg_name": group,
            "simcluster_group": known,
        }


def _size(amount: float) -> int:
    return max(1, round(amount))
