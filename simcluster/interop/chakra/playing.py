"""Plays an execution trace on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.devices.device import Device, load_device
from simcluster.engine.engine import play
from simcluster.importers.astra_network import Dimension, groups_along
from simcluster.interop.chakra.graph import COPIES, Cost, lower
from simcluster.interop.chakra.trace import ChakraTrace, TraceNode
from simcluster.nccl import load_platform
from simcluster.topology import Cluster
from simcluster.traffic.methods import Methods, activities, phases_of
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
    if ranks > len(cluster.gpus):
        raise InputError(f"the trace has {ranks} ranks and the cluster {len(cluster.gpus)} GPUs; use a larger cluster")
    device = load_device(cluster.device)
    timer = _Timer(device, precision, roofline)
    groups = _Groups(trace, tuple(dimensions))
    lowered = lower(trace, seconds=timer.seconds, group_of=groups.of, cost=_costs(cluster, nccl))
    record = play(lowered.program, cluster.capacity.tolist())
    played = tuple(
        PlayedNode(rank, node.id, node.name, node.kind, float(start), float(end))
        for (rank, node), start, end in zip(lowered.nodes, record.start, record.end, strict=True)
    )
    computing: list[list[tuple[float, float]]] = [[] for _ in range(ranks)]
    moving: list[list[tuple[float, float]]] = [[] for _ in range(ranks)]
    last = [0.0] * ranks
    for each in played:
        last[each.rank] = max(last[each.rank], each.end)
        if each.kind in ("comp", "send", "coll", *COPIES):
            (computing if each.kind == "comp" else moving)[each.rank].append((each.start, each.end))
    compute = [_covered(spans) for spans in computing]
    exposed = [_covered(a + b) - busy for a, b, busy in zip(computing, moving, compute, strict=True)]
    return PlayedTrace(
        trace.name, max(last), tuple(last), tuple(compute), tuple(exposed), played, record.events, timer.notes()
    )


class _Timer:
    """How long nodes compute."""

    def __init__(self, device: Device, precision: str, roofline: bool) -> None:
        self._peak, self._bandwidth = device.peak_flops(precision), device.memory_bandwidth
        self._device, self._precision, self._roofline = device, precision, roofline
        self._given = self._counted = self._nothing = 0

    def seconds(self, rank: int, node: TraceNode) -> float:
        has_work = "num_ops" in node.attributes or "tensor_size" in node.attributes
        if node.seconds > 0 and not (self._roofline and has_work):
            self._given += 1
            return node.seconds
        if not has_work:
            self._nothing += 1
            return 0.0
        self._counted += 1
        flops, size = node.number("num_ops", 0), node.number("tensor_size", 0)
        return max(flops / self._peak, size / self._bandwidth)

    def notes(self) -> tuple[str, ...]:
        found = []
        if self._counted:
            by = f"by the peak ({self._precision}) and memory bandwidth of {self._device.name}"
            found.append(f"{self._counted} of the nodes that compute are timed {by}")
        if self._nothing:
            found.append(f"{self._nothing} of them have neither a duration nor num_ops and take no time")
        return tuple(found)


class _Groups:
    """Which ranks a collective is over."""

    def __init__(self, trace: ChakraTrace, dimensions: tuple[Dimension, ...]) -> None:
        self._trace, self._dimensions = trace, dimensions
        self._world = tuple(range(len(trace.ranks)))
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
            return "all", self._world
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


def _covered(spans: list[tuple[float, float]]) -> float:
    """Seconds in which at least one of the spans is on."""
    total, until = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
