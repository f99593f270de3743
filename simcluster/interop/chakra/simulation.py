"""Simulation of Chakra execution traces on a cluster.

A rank has one queue for GPU computation, one for CPU computation (``is_cpu_op``), one per process group (collectives of
a communicator run in order), one per destination rank and tag for sends, and one per direction between GPU and host
memory (mem_store, mem_load). Each queue runs its nodes in the order of ``ChakraTrace.sorted_nodes``. A collective
begins when its last member arrives; the k-th of a group on one rank matches the k-th on the others. A send starts as
soon as its dependencies are done; its receive ends on arrival. Sends and receives of two ranks with one tag match in
order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from simcluster.base.clock import round_to_tick
from simcluster.base.errors import InputError
from simcluster.devices.device import load_device
from simcluster.engine.explicit_program import ExplicitProgram
from simcluster.engine.run import simulate_tables
from simcluster.engine.tables import CommunicationKind
from simcluster.importers.astra_network import NetworkDimension, group_npus_along_axes
from simcluster.interop.chakra.trace import COLLECTIVES, ChakraTrace, TraceNode
from simcluster.topology import Cluster
from simcluster.traffic.collective_methods import MethodChooser, make_traffics, phases_of_method
from simcluster.traffic.nccl.platforms import load_platform
from simcluster.traffic.traffic import Traffic, host_copy_pattern, link_patterns, make_group

TrafficFunction = Callable[[tuple[int, ...], str, float], tuple[Traffic, ...]]
"""(ranks, kind, bytes) -> traffic of a collective, "send", or copy ("d2h", "h2d"); sizes by nccl-tests' convention."""
GroupLookup = Callable[[int, TraceNode], tuple[str, tuple[int, ...]]]
"""(rank, node) -> name and ranks of the collective's process group."""

_EQUIVALENT_COLLECTIVES = {"reduce_scatter_block": "reduce_scatter", "barrier": "all_reduce"}
COPY_DIRECTIONS = {"mem_store": "d2h", "mem_load": "h2d"}
"""Kinds of nodes that copy between GPU and host memory, and their direction."""
_BARRIER_BYTES = 4.0
_NO_TRAFFIC = (Traffic((), 0.0, 1, 0.0),)


class _ProgramBuilder:
    """Builder that converts a Chakra trace to the event engine's ops and collectives."""

    def __init__(
        self, trace: ChakraTrace, seconds: Callable[[int, TraceNode], float], groups: GroupLookup, cost: TrafficFunction
    ) -> None:
        self._trace, self._seconds, self._group_of, self._cost = trace, seconds, groups, cost
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
                op = self._add_op(rank, node, lane, seconds=round_to_tick(self._seconds(rank, node)))
            elif node.kind == "metadata":
                op = self._add_op(rank, node, f"node {node.id}")
            elif node.kind in COPY_DIRECTIONS:
                way, size = COPY_DIRECTIONS[node.kind], float(node.integer_attribute("tensor_size"))
                try:
                    op = self._add_copy(rank, node, way, way, (rank,), size)
                except InputError as problem:
                    raise self.node_error(rank, node, str(problem)) from None
            else:
                raise self.node_error(rank, node, "is not supported; use comp, send, recv, coll, mem_load or mem_store")
            number[node.id] = op
            self._program.after[op] = tuple(number[other] for other in node.after)

    def _add_op(self, rank: int, node: TraceNode, lane: str, *, seconds: float = 0.0, rendezvous: int = -1) -> int:
        if (rank, lane) not in self._lanes:
            self._lanes[rank, lane] = self._program.add_lane(rank)
        self._nodes.append((rank, node))
        return self._program.add_op(self._lanes[rank, lane], seconds, rendezvous=rendezvous)

    def _add_collective(self, rank: int, node: TraceNode, call_counts: dict[tuple[str, tuple[int, ...]], int]) -> int:
        type_number = node.integer_attribute("comm_type")
        if type_number >= len(COLLECTIVES) or COLLECTIVES[type_number] in ("gather", "scatter"):
            raise self.node_error(rank, node, f"comm_type {type_number} is not supported; use 0 to 2 or 5 to 9")
        kind = COLLECTIVES[type_number]
        name, group = self._group_of(rank, node)
        if rank not in group:
            raise self.node_error(rank, node, f"is on rank {rank}, but its group is {list(group)[:16]}; add the rank")
        size = _BARRIER_BYTES if kind == "barrier" else float(node.integer_attribute("comm_size"))
        size *= len(group) if kind == "all_gather" else 1  # comm_size is the input per rank
        turn = call_counts[name, group]
        call_counts[name, group] += 1
        key = (group, name, turn)
        if key not in self._meetings:
            common = _EQUIVALENT_COLLECTIVES.get(kind, kind)
            traffics = self._cost(group, common, size) if len(group) > 1 and size > 0 else ()
            self._meetings[key] = (len(self._program.meetings), kind, size, rank, node)
            self._program.meetings.append(CommunicationKind(len(group), traffics or _NO_TRAFFIC))
        meeting, other_kind, other_size, other_rank, other = self._meetings[key]
        if (kind, size) != (other_kind, other_size):
            theirs = f"rank {other_rank} has {other.label}, {other_kind} of {other_size:.0f} bytes, there"
            what = f"is collective {turn + 1} of its group, {kind} of {size:.0f} bytes, but {theirs}"
            raise self.node_error(rank, node, f"{what}; all ranks of a group must make the same calls")
        self._arrivals[meeting] += 1
        return self._add_op(rank, node, f"group {name}", rendezvous=meeting)

    def _add_message(self, rank: int, node: TraceNode) -> int:
        source, target = (node.integer_attribute(key, rank) for key in ("comm_src", "comm_dst"))
        own, other = (source, target) if node.kind == "send" else (target, source)
        if own != rank or other == rank or other >= len(self._trace.ranks):
            raise self.node_error(
                rank, node, f"goes from rank {source} to rank {target}; it must join rank {rank} and another rank"
            )
        key = (source, target, node.integer_attribute("comm_tag", 0))
        if node.kind == "recv":
            op = self._add_op(rank, node, f"node {node.id}")
            self._receives[key].append(op)
            return op
        size = float(node.integer_attribute("comm_size"))
        op = self._add_copy(rank, node, f"to {target}, tag {key[2]}", "send", (source, target), size)
        self._sends[key].append(op)
        return op

    def _add_copy(self, rank: int, node: TraceNode, lane: str, what: str, ranks: tuple[int, ...], size: float) -> int:
        self._program.meetings.append(CommunicationKind(1, self._cost(ranks, what, size) if size > 0 else _NO_TRAFFIC))
        return self._add_op(rank, node, lane, rendezvous=len(self._program.meetings) - 1)

    def build(self) -> tuple[ExplicitProgram, list[tuple[int, TraceNode]]]:
        """Build the event engine's program, and return the (rank, trace node) of each op with it.

        Raises InputError naming rank and node for what cannot be simulated: gather and scatter, a send or receive
        without its partner, a collective that some rank of the group lacks.
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
                what = f"has no partner: with tag {key[2]} rank {key[0]} sends {len(sends)} messages to rank {key[1]}"
                raise self.node_error(rank, node, f"{what}, which receives {len(receives)}; {half} is missing")
            for send, receive in zip(sends, receives, strict=True):
                program.after[receive] = [*program.after[receive], send]
        for (group, _, turn), (meeting, kind, _, rank, node) in self._meetings.items():
            if self._arrivals[meeting] < len(group):
                what = f"is on only {self._arrivals[meeting]} of the {len(group)} ranks of its group"
                raise self.node_error(rank, node, f"{what}; record {kind} {turn + 1} of the group on every rank")
        return program, self._nodes


class SimulatedNode(NamedTuple):
    """Node of a trace, with its simulated start and end (s from the start of the trace)."""

    rank: int
    node: int
    name: str
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class SimulatedTrace:
    """Result of simulating a Chakra trace: simulated times (s) of all ranks and nodes.

    By rank: ``compute_seconds``, and ``exposed_seconds`` of communication and copies that no compute overlaps.
    """

    name: str
    seconds: float
    rank_seconds: tuple[float, ...]
    compute_seconds: tuple[float, ...]
    exposed_seconds: tuple[float, ...]
    nodes: tuple[SimulatedNode, ...]
    events: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the simulated times as a dict for JSON."""
        size = len(self.rank_seconds)
        return {
            "trace": self.name, "ranks": size, "nodes": len(self.nodes), "time_s": self.seconds,
            "compute_s": sum(self.compute_seconds) / size, "exposed_communication_s": sum(self.exposed_seconds) / size,
            "rank_time_s": list(self.rank_seconds), "engine": {"events": self.events}, "notes": list(self.notes),
        }  # fmt: skip


def simulate_trace(
    trace: ChakraTrace, cluster: Cluster, *, dimensions: Sequence[NetworkDimension] = (), roofline: bool = False,
    precision: str = "bf16", nccl: str = "auto",
) -> SimulatedTrace:  # fmt: skip
    """Simulate a Chakra trace on a cluster, with rank r on GPU r.

    A compute node takes its recorded duration. Without one, or with ``roofline``, it takes the longer of num_ops at the
    device's peak and tensor_size (bytes) at its memory bandwidth. ``dimensions`` are those of the ASTRA-sim network
    that involved_dim refers to. ``nccl`` is the NCCL platform for collectives ("auto": the cluster's, "none": links
    alone).
    """
    ranks = len(trace.ranks)
    if ranks > cluster.num_gpus:
        raise InputError(f"the trace has {ranks} ranks, the cluster only {cluster.num_gpus} GPUs; use a larger cluster")
    device = load_device(cluster.device)
    peak, bandwidth, timed = device.peak_flops(precision), device.memory_bandwidth, Counter[str]()

    def compute_node_seconds(rank: int, node: TraceNode) -> float:
        has_work = "num_ops" in node.attributes or "tensor_size" in node.attributes
        if node.seconds > 0 and not (roofline and has_work):
            return node.seconds
        timed["counted" if has_work else "nothing"] += 1
        return max(node.integer_attribute("num_ops", 0) / peak, node.integer_attribute("tensor_size", 0) / bandwidth)

    groups = _make_group_lookup(trace, tuple(dimensions))
    program, nodes = _ProgramBuilder(trace, compute_node_seconds, groups, _make_traffic_function(cluster, nccl)).build()
    simulated = simulate_tables(
        program.make_tables(cluster.capacity), lambda op: f"rank {nodes[op][0]}: {nodes[op][1].label}", keeps_times=True
    )
    assert simulated.times is not None
    node_times = tuple(
        SimulatedNode(rank, node.id, node.name, node.kind, float(start), float(end))
        for (rank, node), start, end in zip(nodes, simulated.times.start, simulated.times.end, strict=True)
    )
    by_rank: list[list[SimulatedNode]] = [[] for _ in range(ranks)]
    for node in node_times:
        by_rank[node.rank].append(node)
    last = tuple(max((node.end for node in own), default=0.0) for own in by_rank)
    compute = tuple(_busy_seconds(own, ("comp",)) for own in by_rank)
    busy = [_busy_seconds(own, ("comp", "send", "coll", *COPY_DIRECTIONS)) for own in by_rank]
    exposed = tuple(whole - own for whole, own in zip(busy, compute, strict=True))
    notes = []
    if timed["counted"]:
        by = f"the peak FLOP/s ({precision}) and memory bandwidth of {device.name}"
        notes.append(f"{timed['counted']} compute nodes take times estimated from {by}")
    if timed["nothing"]:
        notes.append(f"{timed['nothing']} compute nodes have neither a duration nor num_ops: they take 0 s")
    return SimulatedTrace(trace.name, max(last), last, compute, exposed, node_times, simulated.events, tuple(notes))


def _make_group_lookup(trace: ChakraTrace, dimensions: tuple[NetworkDimension, ...]) -> GroupLookup:
    """Return a function that finds a collective node's process group: name and ranks."""

    @cache
    def groups_along_dimensions(involved: tuple[bool, ...]) -> dict[int, tuple[int, ...]]:
        return {npu: tuple(line) for line in group_npus_along_axes(dimensions, involved) for npu in line}

    def find_group(rank: int, node: TraceNode) -> tuple[str, tuple[int, ...]]:
        name, where = node.attributes.get("pg_name"), f"{trace.name}, rank {rank}: {node.label}"
        if name not in (None, ""):
            group = trace.groups.get(str(name))
            if group is None:
                known = ", ".join(list(trace.groups)[:8]) or "none"
                raise InputError(
                    f"{where}: there is no process group {str(name)[:40]!r} (known: {known}); give its ranks in "
                    "comm_groups.json next to the traces, or with --groups"
                )
            return str(name), group
        involved = node.attributes.get("involved_dim")
        if involved is None or (isinstance(involved, tuple) and all(involved)):
            return "all", tuple(range(len(trace.ranks)))
        chosen = tuple(bool(each) for each in involved) if isinstance(involved, tuple) else (bool(involved),)
        if len(chosen) != len(dimensions):
            raise InputError(
                f"{where}: involved_dim lists {len(chosen)} dimensions, but the cluster has "
                f"{len(dimensions) or 'none'}; name an ASTRA-sim network file with the same number"
            )
        return "dim " + "".join("01"[each] for each in chosen), groups_along_dimensions(chosen)[rank]

    return find_group


def _make_traffic_function(cluster: Cluster, nccl: str) -> TrafficFunction:
    """Return a cached function that computes the network traffic of a collective, message or copy."""
    name = cluster.nccl if nccl == "auto" else nccl
    methods = MethodChooser({}, platform=None if name in (None, "none") else load_platform(name))

    @cache
    def find_traffic(ranks: tuple[int, ...], kind: str, size: float) -> tuple[Traffic, ...]:
        if kind in COPY_DIRECTIONS.values():
            return (host_copy_pattern(cluster, ranks[0], kind).make_traffic(size),)
        group = make_group(cluster, ranks)
        method = methods.choose_method(group, kind, size)
        return make_traffics(link_patterns(cluster, ranks, phases_of_method(method, group, kind)), size, method)

    return find_traffic


def _busy_seconds(nodes: Sequence[SimulatedNode], kinds: Sequence[str]) -> float:
    total, until = 0.0, 0.0
    for start, end in sorted((node.start, node.end) for node in nodes if node.kind in kinds):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
