"""An execution trace simulated on a cluster.

A rank has one queue for its GPU's computation, one for its processor's (``is_cpu_op``), one for each process group
(collectives of a communicator follow each other), one for what it sends to each other rank with one tag, and one for
each way between its memory and its host's (mem_store, mem_load); in each, nodes come in the order of
``ChakraTrace.in_order``.  A collective begins when all its group are there; the k-th of a group on one rank is
the k-th on the others.  A send goes out as soon as it can, and its receive is over when it has arrived: the k-th
between two ranks with one tag is the k-th on the other side.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from simcluster.base.clock import on_grid
from simcluster.base.errors import InputError
from simcluster.devices.device import load_device
from simcluster.engine.explicit import ExplicitProgram
from simcluster.engine.run import simulate_tables
from simcluster.engine.tables import CommunicationKind
from simcluster.importers.astra_network import Dimension, groups_along
from simcluster.interop.chakra.trace import COLLECTIVES, ChakraTrace, TraceNode
from simcluster.topology import Cluster
from simcluster.traffic.methods import Methods, activities, phases_of
from simcluster.traffic.nccl.platforms import load_platform
from simcluster.traffic.traffic import Traffic, copy_pattern, group_of, patterns

CostFunction = Callable[[tuple[int, ...], str, float], tuple[Traffic, ...]]
"""What moves a collective (or "send", or a copy "d2h", "h2d") of so many bytes over these ranks, by nccl-tests'
convention for the size."""
GroupLookup = Callable[[int, TraceNode], tuple[str, tuple[int, ...]]]
"""The name and the ranks of the group of a collective on a rank."""

_SIMULATED_AS = {"reduce_scatter_block": "reduce_scatter", "barrier": "all_reduce"}
COPY_DIRECTIONS = {"mem_store": "d2h", "mem_load": "h2d"}
"""Nodes that move bytes between the GPU's memory and its host's, and which way."""
_BARRIER_BYTES = 4.0
_NO_TRAFFIC = (Traffic((), 0.0, 1, 0.0),)


class _ProgramBuilder:
    """The program of a trace in the making; ``seconds`` is the length of a node that computes."""

    def __init__(
        self, trace: ChakraTrace, seconds: Callable[[int, TraceNode], float], group_of: GroupLookup, cost: CostFunction
    ) -> None:
        self._trace, self._seconds, self._group_of, self._cost = trace, seconds, group_of, cost
        self._program = ExplicitProgram()
        self._nodes: list[tuple[int, TraceNode]] = []
        self._lanes: dict[tuple[int, str], int] = {}
        self._meetings: dict[tuple[tuple[int, ...], str, int], tuple[int, str, float, int, TraceNode]] = {}
        self._arrivals: dict[int, int] = defaultdict(int)
        self._sends: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self._receives: dict[tuple[int, int, int], list[int]] = defaultdict(list)

    def node_error(self, rank: int, node: TraceNode, message: str) -> InputError:
        return InputError(f"{self._trace.name}, rank {rank}: {node.label}: {message}")

    def _add_rank(self, rank: int) -> None:
        number: dict[int, int] = {}
        turns: dict[tuple[str, tuple[int, ...]], int] = defaultdict(int)
        for node in self._trace.sorted_nodes(rank):
            if node.kind == "coll":
                op = self._add_collective(rank, node, turns)
            elif node.kind in ("send", "recv"):
                op = self._add_message(rank, node)
            elif node.kind == "comp":
                lane = "cpu" if node.attributes.get("is_cpu_op") is True else "compute"
                op = self._add_op(rank, node, lane, seconds=on_grid(self._seconds(rank, node)))
            elif node.kind == "metadata":
                op = self._add_op(rank, node, f"node {node.id}")
            elif node.kind in COPY_DIRECTIONS:
                way, size = COPY_DIRECTIONS[node.kind], float(node.number("tensor_size"))
                try:
                    op = self._add_transfer(rank, node, way, way, (rank,), size)
                except InputError as problem:
                    raise self.node_error(rank, node, str(problem)) from None
            else:
                raise self.node_error(rank, node, "is not modelled; comp, send, recv, coll and memory nodes are")
            number[node.id] = op
            self._program.after[op] = tuple(number[other] for other in node.after)

    def _add_op(self, rank: int, node: TraceNode, lane: str, *, seconds: float = 0.0, meeting: int = -1) -> int:
        if (rank, lane) not in self._lanes:
            self._lanes[rank, lane] = self._program.add_lane(rank)
        self._nodes.append((rank, node))
        return self._program.add_op(self._lanes[rank, lane], seconds, meeting=meeting)

    def _add_collective(self, rank: int, node: TraceNode, turns: dict[tuple[str, tuple[int, ...]], int]) -> int:
        type_number = node.number("comm_type")
        if type_number >= len(COLLECTIVES) or COLLECTIVES[type_number] in ("gather", "scatter"):
            raise self.node_error(rank, node, f"comm_type {type_number} is not modelled; 0 (all-reduce), 1, 2, 5 to 9 are")
        kind = COLLECTIVES[type_number]
        name, group = self._group_of(rank, node)
        if rank not in group:
            raise self.node_error(rank, node, f"is on rank {rank}, which is not in its group {list(group)[:16]}")
        size = _BARRIER_BYTES if kind == "barrier" else float(node.number("comm_size"))
        size *= len(group) if kind == "all_gather" else 1  # comm_size is what a rank puts in
        turn = turns[name, group]
        turns[name, group] += 1
        key = (group, name, turn)
        if key not in self._meetings:
            traffics = self._cost(group, _SIMULATED_AS.get(kind, kind), size) if len(group) > 1 and size > 0 else ()
            self._meetings[key] = (len(self._program.meetings), kind, size, rank, node)
            self._program.meetings.append(CommunicationKind(len(group), traffics or _NO_TRAFFIC))
        meeting, other_kind, other_size, other_rank, other = self._meetings[key]
        if (kind, size) != (other_kind, other_size):
            theirs = f"rank {other_rank} has {other.label}, {other_kind} of {other_size:.0f}"
            what = f"is collective number {turn + 1} of its group, {kind} of {size:.0f} bytes, while {theirs}"
            raise self.node_error(rank, node, f"{what}; a group does all alike")
        self._arrivals[meeting] += 1
        return self._add_op(rank, node, f"group {name}", meeting=meeting)

    def _add_message(self, rank: int, node: TraceNode) -> int:
        source, target = (node.number(key, rank) for key in ("comm_src", "comm_dst"))
        own, other = (source, target) if node.kind == "send" else (target, source)
        if own != rank or other == rank or other >= len(self._trace.ranks):
            raise self.node_error(rank, node, f"goes from rank {source} to rank {target}; on rank {rank} that cannot be")
        key = (source, target, node.number("comm_tag", 0))
        if node.kind == "recv":
            op = self._add_op(rank, node, f"node {node.id}")
            self._receives[key].append(op)
            return op
        size = float(node.number("comm_size"))
        op = self._add_transfer(rank, node, f"to {target}, tag {key[2]}", "send", (source, target), size)
        self._sends[key].append(op)
        return op

    def _add_transfer(self, rank: int, node: TraceNode, lane: str, what: str, ranks: tuple[int, ...], size: float) -> int:
        self._program.meetings.append(CommunicationKind(1, self._cost(ranks, what, size) if size > 0 else _NO_TRAFFIC))
        return self._add_op(rank, node, lane, meeting=len(self._program.meetings) - 1)

    def build(self) -> tuple[ExplicitProgram, list[tuple[int, TraceNode]]]:
        """Return the program, and of each of its ops the rank and the node; messages without a partner are refused.

        Raises InputError naming rank and node for what cannot be simulated: gather and scatter, a send without its
        receive, collectives that a group does not have in common.
        """
        for rank in range(len(self._trace.ranks)):
            self._add_rank(rank)
        program = self._program
        for key in dict.fromkeys((*self._sends, *self._receives)):
            sends, receives = self._sends.get(key, []), self._receives.get(key, [])
            if len(sends) != len(receives):
                lost: Sequence[int] = max(sends, receives, key=len)
                rank, node = self._nodes[lost[min(len(sends), len(receives))]]
                half = "a receive" if node.kind == "send" else "a send"
                what = f"has no partner: rank {key[0]} sends {len(sends)} times to rank {key[1]} with tag {key[2]}"
                raise self.node_error(rank, node, f"{what}, which receives {len(receives)} times; {half} is missing")
            for send, receive in zip(sends, receives, strict=True):
                program.after[receive] = [*program.after[receive], send]
        for (group, _, turn), (meeting, kind, _, rank, node) in self._meetings.items():
            if self._arrivals[meeting] < len(group):
                what = f"only {self._arrivals[meeting]} of the {len(group)} ranks of its group have this {kind}"
                raise self.node_error(rank, node, f"{what}, number {turn + 1} of the group; all of them must")
        return program, self._nodes


class SimulatedNode(NamedTuple):
    """One node as it was simulated: seconds from the start of the trace."""

    rank: int
    node: int
    name: str
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class PlayedTrace:
    """A played trace.  ``seconds`` is when the last node ends, of each rank ``rank_seconds``; of a rank's time
    ``compute`` is when it computes and ``exposed`` when it communicates or copies and does not compute."""

    name: str
    seconds: float
    rank_seconds: tuple[float, ...]
    compute: tuple[float, ...]
    exposed: tuple[float, ...]
    nodes: tuple[SimulatedNode, ...]
    events: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        ranks = len(self.rank_seconds)
        return {
            "trace": self.name,
            "ranks": ranks,
            "nodes": len(self.nodes),
            "time_s": self.seconds,
            "compute_s": sum(self.compute) / ranks,
            "exposed_communication_s": sum(self.exposed) / ranks,
            "rank_time_s": list(self.rank_seconds),
            "engine": {"events": self.events},
            "notes": list(self.notes),
        }


def play_traces(
    trace: ChakraTrace,
    cluster: Cluster,
    *,
    dimensions: Sequence[Dimension] = (),
    roofline: bool = False,
    precision: str = "bf16",
    nccl: str = "auto",
) -> PlayedTrace:
    """Simulate a trace: rank r on GPU number r.

    A node that computes takes what the trace says; where that is nothing, or ``roofline`` is set and it has num_ops,
    the time of its num_ops and tensor_size (bytes) by the device's peak and memory bandwidth, whichever is longer.
    ``dimensions`` are those of the ASTRA-sim network that involved_dim speaks of.  Collectives are done as NCCL does
    them on the platform ``nccl`` ("auto": the cluster's, "none": the links alone).
    """
    ranks = len(trace.ranks)
    if ranks > cluster.num_gpus:
        raise InputError(f"the trace has {ranks} ranks and the cluster {cluster.num_gpus} GPUs; use a larger cluster")
    device = load_device(cluster.device)
    peak, bandwidth, timed = device.peak_flops(precision), device.memory_bandwidth, Counter[str]()

    def seconds(rank: int, node: TraceNode) -> float:
        has_work = "num_ops" in node.attributes or "tensor_size" in node.attributes
        if node.seconds > 0 and not (roofline and has_work):
            return node.seconds
        timed["counted" if has_work else "nothing"] += 1
        return max(node.number("num_ops", 0) / peak, node.number("tensor_size", 0) / bandwidth)

    groups = _group_lookup(trace, tuple(dimensions))
    program, nodes = _ProgramBuilder(trace, seconds, groups, _cost_function(cluster, nccl)).build()
    simulated = simulate_tables(
        program.tables(cluster.capacity), lambda op: f"rank {nodes[op][0]}: {nodes[op][1].label}", keeps_times=True
    )
    assert simulated.times is not None
    played = tuple(
        SimulatedNode(rank, node.id, node.name, node.kind, float(start), float(end))
        for (rank, node), start, end in zip(nodes, simulated.times.start, simulated.times.end, strict=True)
    )
    by_rank: list[list[SimulatedNode]] = [[] for _ in range(ranks)]
    for node in played:
        by_rank[node.rank].append(node)
    last = tuple(max((node.end for node in own), default=0.0) for own in by_rank)
    compute = tuple(_union_seconds(own, ("comp",)) for own in by_rank)
    busy = [_union_seconds(own, ("comp", "send", "coll", *COPY_DIRECTIONS)) for own in by_rank]
    exposed = tuple(whole - own for whole, own in zip(busy, compute, strict=True))
    notes = []
    if timed["counted"]:
        by = f"by the peak ({precision}) and memory bandwidth of {device.name}"
        notes.append(f"{timed['counted']} of the nodes that compute are timed {by}")
    if timed["nothing"]:
        notes.append(f"{timed['nothing']} of them have neither a duration nor num_ops and take no time")
    return PlayedTrace(trace.name, max(last), last, compute, exposed, played, simulated.events, tuple(notes))


def _group_lookup(trace: ChakraTrace, dimensions: tuple[Dimension, ...]) -> GroupLookup:
    """Return a function from a rank and its node to the name and the ranks of the collective's group."""

    @cache
    def along(chosen: tuple[bool, ...]) -> dict[int, tuple[int, ...]]:
        return {npu: tuple(line) for line in groups_along(dimensions, chosen) for npu in line}

    def of(rank: int, node: TraceNode) -> tuple[str, tuple[int, ...]]:
        name, where = node.attributes.get("pg_name"), f"{trace.name}, rank {rank}: {node.label}"
        if name not in (None, ""):
            group = trace.groups.get(str(name))
            if group is None:
                known = ", ".join(list(trace.groups)[:8]) or "none"
                raise InputError(
                    f"{where}: there is no process group {str(name)[:40]!r} (known: {known}); give its ranks in "
                    "comm_groups.json beside the traces, or with --groups"
                )
            return str(name), group
        involved = node.attributes.get("involved_dim")
        if involved is None or (isinstance(involved, tuple) and all(involved)):
            return "all", tuple(range(len(trace.ranks)))
        chosen = tuple(bool(each) for each in involved) if isinstance(involved, tuple) else (bool(involved),)
        if len(chosen) != len(dimensions):
            raise InputError(
                f"{where}: involved_dim speaks of {len(chosen)} dimensions and the cluster has "
                f"{len(dimensions) or 'none'}; play it on an ASTRA-sim network file"
            )
        return "dim " + "".join("01"[each] for each in chosen), along(chosen)[rank]

    return of


def _cost_function(cluster: Cluster, nccl: str) -> CostFunction:
    """Return what moves collectives, cached by group, kind and size."""
    name = cluster.nccl if nccl == "auto" else nccl
    methods = Methods({}, platform=None if name in (None, "none") else load_platform(name))

    @cache
    def of(ranks: tuple[int, ...], kind: str, size: float) -> tuple[Traffic, ...]:
        if kind in COPY_DIRECTIONS.values():
            return (copy_pattern(cluster, ranks[0], kind).traffic(size),)
        group = group_of(cluster, ranks)
        method = methods.of(group, kind, size)
        return activities(patterns(cluster, ranks, phases_of(method, group, kind)), size, method)

    return of


def _union_seconds(nodes: Sequence[SimulatedNode], kinds: Sequence[str]) -> float:
    total, until = 0.0, 0.0
    for start, end in sorted((node.start, node.end) for node in nodes if node.kind in kinds):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
