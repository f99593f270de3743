"""Plays an execution trace on a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.devices.device import Device, load_device
from simcluster.engine.run import simulate_tables
from simcluster.importers.astra_network import Dimension, groups_along
from simcluster.interop.chakra.graph import COPIES, Cost, lower
from simcluster.interop.chakra.trace import ChakraTrace, TraceNode
from simcluster.topology import Cluster
from simcluster.traffic.methods import Methods, activities, phases_of
from simcluster.traffic.nccl import load_platform
from simcluster.traffic.traffic import Traffic, copy_pattern, group_of, patterns


class PlayedNode(NamedTuple):
    """One node as it was played: seconds from the start of the trace."""

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
    nodes: tuple[PlayedNode, ...]
    events: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
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
    """Play a trace: rank r on GPU number r.

    A node that computes takes what the trace says; where that is nothing, or ``roofline`` is set and it has num_ops,
    the time of its num_ops and tensor_size (bytes) by the device's peak and memory bandwidth, whichever is longer.
    ``dimensions`` are those of the ASTRA-sim network that involved_dim speaks of.  Collectives are done as NCCL does
    them on the platform ``nccl`` ("auto": the cluster's, "none": the links alone).
    """
    ranks = len(trace.ranks)
    if ranks > cluster.num_gpus:
        raise InputError(f"the trace has {ranks} ranks and the cluster {cluster.num_gpus} GPUs; use a larger cluster")
    device = load_device(cluster.device)
    timed = Counter[str]()
    seconds = _timer(device, precision, roofline, timed)
    groups = _Groups(trace, tuple(dimensions))
    program, nodes = lower(trace, seconds=seconds, group_of=groups.of, cost=_costs(cluster, nccl))
    simulated = simulate_tables(
        program.tables(cluster.capacity),
        lambda op: f"rank {nodes[op][0]}: {nodes[op][1].label}",
        keeps_times=True,
    )
    assert simulated.times is not None
    played = tuple(
        PlayedNode(rank, node.id, node.name, node.kind, float(start), float(end))
        for (rank, node), start, end in zip(nodes, simulated.times.start, simulated.times.end, strict=True)
    )
    by_rank: list[list[PlayedNode]] = [[] for _ in range(ranks)]
    for node in played:
        by_rank[node.rank].append(node)
    last = tuple(max((node.end for node in own), default=0.0) for own in by_rank)
    compute = tuple(_covered(own, ("comp",)) for own in by_rank)
    busy = [_covered(own, ("comp", "send", "coll", *COPIES)) for own in by_rank]
    exposed = tuple(whole - own for whole, own in zip(busy, compute, strict=True))
    notes = []
    if timed["counted"]:
        by = f"by the peak ({precision}) and memory bandwidth of {device.name}"
        notes.append(f"{timed['counted']} of the nodes that compute are timed {by}")
    if timed["nothing"]:
        notes.append(f"{timed['nothing']} of them have neither a duration nor num_ops and take no time")
    return PlayedTrace(trace.name, max(last), last, compute, exposed, played, simulated.events, tuple(notes))


def _timer(device: Device, precision: str, roofline: bool, timed: Counter[str]) -> Callable[[int, TraceNode], float]:
    """How long nodes compute; counts those that do not say it."""
    peak, bandwidth = device.peak_flops(precision), device.memory_bandwidth

    def seconds(rank: int, node: TraceNode) -> float:
        has_work = "num_ops" in node.attributes or "tensor_size" in node.attributes
        if node.seconds > 0 and not (roofline and has_work):
            return node.seconds
        timed["counted" if has_work else "nothing"] += 1
        return max(node.number("num_ops", 0) / peak, node.number("tensor_size", 0) / bandwidth)

    return seconds


class _Groups:
    """Which ranks a collective is over."""

    def __init__(self, trace: ChakraTrace, dimensions: tuple[Dimension, ...]) -> None:
        self._trace, self._dimensions = trace, dimensions
        self._along: dict[tuple[bool, ...], dict[int, tuple[int, ...]]] = {}

    def of(self, rank: int, node: TraceNode) -> tuple[str, tuple[int, ...]]:
        name = node.attributes.get("pg_name")
        if name not in (None, ""):
            group = self._trace.groups.get(str(name))
            if group is None:
                known = ", ".join(list(self._trace.groups)[:8]) or "none"
                raise InputError(
                    f"{self._trace.name}, rank {rank}: {node.label}: there is no process group {str(name)[:40]!r} "
                    f"(known: {known}); give its ranks in comm_groups.json beside the traces, or with --groups"
                )
            return str(name), group
        involved = node.attributes.get("involved_dim")
        if involved is None or (isinstance(involved, tuple) and all(involved)):
            return "all", tuple(range(len(self._trace.ranks)))
        chosen = tuple(bool(each) for each in involved) if isinstance(involved, tuple) else (bool(involved),)
        if len(chosen) != len(self._dimensions):
            raise InputError(
                f"{self._trace.name}, rank {rank}: {node.label}: involved_dim speaks of {len(chosen)} dimensions and "
                f"the cluster has {len(self._dimensions) or 'none'}; play it on an ASTRA-sim network file"
            )
        if chosen not in self._along:
            lines = groups_along(self._dimensions, chosen)
            self._along[chosen] = {npu: tuple(line) for line in lines for npu in line}
        return "dim " + "".join("01"[each] for each in chosen), self._along[chosen][rank]


def _costs(cluster: Cluster, nccl: str) -> Cost:
    """What moves collectives, kept by group, kind and size."""
    name = cluster.nccl if nccl == "auto" else nccl
    methods = Methods({}, platform=None if name in (None, "none") else load_platform(name))

    @cache
    def of(ranks: tuple[int, ...], kind: str, size: float) -> tuple[Traffic, ...]:
        if kind in COPIES.values():
            return (copy_pattern(cluster, ranks[0], kind).traffic(size),)
        group = group_of(cluster, ranks)
        method = methods.of(group, kind, size)
        return activities(patterns(cluster, ranks, phases_of(method, group, kind)), size, method)

    return of


def _covered(nodes: Sequence[PlayedNode], kinds: Sequence[str]) -> float:
    """Seconds in which at least one node of these kinds is on."""
    total, until = 0.0, 0.0
    for start, end in sorted((node.start, node.end) for node in nodes if node.kind in kinds):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
