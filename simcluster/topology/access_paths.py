"""Shortest paths in a cluster graph, and the ports by which they leave and enter nodes.

A cluster is *machines* (nodes: what remains connected when the switches are taken out) around a *fabric* (the
switches). Distances are needed between switches only, and each GPU's way to and from them is a few hops found once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import networkx as nx

from simcluster.base.texts import natural_key

WHOLE = 2**40
"""Fractions of a flow are multiples of 1 / WHOLE, so that sums of thousands of them are exact in any order (as on the
clock's grid), and what enters a node leaves it to the last bit."""

Spread: TypeAlias = tuple[tuple[int, float], ...]
"""(link, fraction of the bytes) of a flow; one path has fractions of 1, in order."""

Signature: TypeAlias = tuple[tuple[str, int], ...]
"""Where a GPU is entered from the fabric: (switch, hops from that switch to the GPU), one per switch."""


@dataclass(frozen=True, slots=True)
class FabricPort:
    """Port between a GPU and the fabric: ``node`` (a NIC, or the GPU) has a link with ``switch``, ``hops`` away."""

    node: str
    switch: str
    hops: int  # between the GPU and node


@dataclass(frozen=True, slots=True)
class GpuPorts:
    """Ports by which every GPU leaves and enters its node, with a key that is equal for equal entry ports."""

    exits: Sequence[Sequence[FabricPort]]
    entries: Sequence[Sequence[FabricPort]]
    signatures: Sequence[Signature]


def split_evenly(whole: int, parts: int) -> list[int]:
    """Split a whole number into ``parts`` numbers as equal as possible, the larger ones first."""
    each, more = divmod(whole, parts)
    return [each + 1] * more + [each] * (parts - more)


class ShortestPaths:
    """Shortest paths in one graph: neighbours, distances and ports, computed on demand."""

    def __init__(self, graph: nx.DiGraph[str], gpus: Sequence[str]) -> None:
        self._graph = graph
        self._gpus = tuple(gpus)
        self._gpu_index = {gpu: i for i, gpu in enumerate(gpus)}
        ends = ("gpu", "nic")
        self._ends = frozenset(node for node, data in graph.nodes(data=True) if data["kind"] in ends)
        self.switches = frozenset(node for node, data in graph.nodes(data=True) if data["kind"] == "switch")
        self.position = {node: i for i, node in enumerate(sorted(graph, key=natural_key))}
        self._next = {node: self.in_order(to) for node, to in graph.succ.items()}
        self._previous = {node: self.in_order(to) for node, to in graph.pred.items()}
        self._onto, self._from = self._between_switches(self._next), self._between_switches(self._previous)
        self.near = self._build_gpu_ports(self._nearest_ports)
        self.tree_order = self._number_by_leaf()
        self._mates: dict[tuple[str, ...], list[int]] = {}
        self._inside: dict[str, dict[str, int]] = {}
        self._walks: dict[tuple[str, str], list[str] | None] = {}
        self._fabric: dict[Signature, dict[str, int]] = {}
        self._forward: dict[tuple[Signature, str], list[str]] = {}

    @cached_property
    def all(self) -> GpuPorts:
        """All ports of GPUs, not only those nearest to them (``near``)."""
        return self._build_gpu_ports(self._ports_of_gpu)

    def in_order(self, nodes: Iterable[str]) -> list[str]:
        """Return graph nodes sorted by name in natural order (gpu2 before gpu10)."""
        return sorted(nodes, key=self.position.__getitem__)

    # --- in a machine ------------------------------------------------------------------------------------------------

    def hops_inside(self, end: str) -> dict[str, int]:
        """Return the number of hops to the graph node ``end`` from every node of the same machine that can reach it."""
        if end not in self._inside:
            self._inside[end] = self._hops_from(end, self._previous)
        return self._inside[end]

    def walk_inside(self, start: str, end: str, dst: int) -> list[str]:
        """Return the path between two graph nodes of a machine; ties: the faster, then path ``dst`` mod k."""
        known = self.only_walk_inside(start, end)
        return self._walk_inside(start, end, dst)[0] if known is None else known

    def only_walk_inside(self, start: str, end: str) -> list[str] | None:
        """Return the path between two graph nodes of a machine if it is the same for every ``dst``, else None."""
        if (start, end) not in self._walks:
            path, ties = self._walk_inside(start, end, 0)
            self._walks[start, end] = None if ties else path
        return self._walks[start, end]

    def _walk_inside(self, start: str, end: str, dst: int) -> tuple[list[str], bool]:
        """Return the path between two graph nodes of a machine, and whether there were several to choose from."""
        hops = self.hops_inside(end)
        path, ties = [start], False
        while path[-1] != end:
            here, left = path[-1], hops[path[-1]] - 1
            candidates = [
                node for node in self._next[here] if hops.get(node) == left and (node == end or node not in self._ends)
            ]
            if len(candidates) > 1:
                fastest = max(self.bandwidth(here, node) for node in candidates)
                candidates = [node for node in candidates if self.bandwidth(here, node) == fastest]
            ties = ties or len(candidates) > 1
            path.append(candidates[dst % len(candidates)])
        return path, ties

    def nvlink_mates(self, gpu: int) -> list[int]:
        """Return the GPUs linked to this one directly or by one NVSwitch, in order."""
        name = self._gpus[gpu]
        doors = tuple(node for node in self._next[name] if self._graph.nodes[node]["kind"] in ("gpu", "nvswitch"))
        if doors not in self._mates:
            index = self._gpu_index
            near = [end for node in doors for end in ([node] if node in index else self._next[node])]
            self._mates[doors] = sorted({index[end]: None for end in near if end in index})
        return [mate for mate in self._mates[doors] if mate != gpu]

    # --- over the fabric ---------------------------------------------------------------------------------------------

    def hops_across(self, signature: Signature) -> dict[str, int]:
        """Return the number of hops from every switch to a GPU whose entry ports have this signature."""
        if signature not in self._fabric:
            distance: dict[str, int] = {}
            waiting: dict[int, list[str]] = defaultdict(list)
            for switch, start in signature:
                waiting[start].append(switch)
            hops = 0
            while waiting:
                frontier = [switch for switch in waiting.pop(hops, ()) if switch not in distance]
                distance.update(dict.fromkeys(frontier, hops))
                hops += 1
                fresh = {node: None for switch in frontier for node in self._from[switch] if node not in distance}
                if fresh:
                    waiting[hops].extend(fresh)
            self._fabric[signature] = distance
        return self._fabric[signature]

    def onward(self, signature: Signature, switch: str) -> list[str]:
        """Return the switches that follow ``switch`` on shortest paths to a GPU with this signature."""
        key = (signature, switch)
        if key not in self._forward:
            distance = self.hops_across(signature)
            nearer = distance[switch] - 1
            self._forward[key] = [node for node in self._onto[switch] if distance.get(node) == nearer]
        return self._forward[key]

    def parts_of_fabric(self) -> dict[str, int]:
        """Return a number for every switch, equal for switches that can reach each other.

        Where one-way links make that impossible, every switch has its own number.
        """
        fabric: nx.DiGraph[str] = nx.DiGraph()
        fabric.add_nodes_from(self._onto)
        fabric.add_edges_from((node, other) for node, onto in self._onto.items() for other in onto)
        parts = list(nx.strongly_connected_components(fabric))
        if len(parts) > nx.number_weakly_connected_components(fabric):
            parts = [{switch} for switch in self._onto]
        return {switch: number for number, part in enumerate(parts) for switch in part}

    # --- found once --------------------------------------------------------------------------------------------------

    def _hops_from(self, start: str, neighbours: Mapping[str, list[str]]) -> dict[str, int]:
        """Return the hops from ``start`` to the nodes of its machine; GPUs and NICs are reached but not passed."""
        seen = {start: 0}
        frontier = {start: 0}
        while frontier:
            frontier = self._next_frontier(frontier, seen, neighbours)
        return seen

    def _next_frontier(
        self, frontier: Mapping[str, int], seen: dict[str, int], neighbours: Mapping[str, list[str]]
    ) -> dict[str, int]:
        """Return the graph nodes of a machine one hop beyond the ``frontier``, and add them to ``seen``."""
        reached: dict[str, int] = {}
        for node, hops in frontier.items():
            if hops and node in self._ends:
                continue
            for other in neighbours[node]:
                if other not in seen and other not in self.switches:
                    seen[other] = reached[other] = hops + 1
        return reached

    def _build_gpu_ports(self, find: Callable[[str, Mapping[str, list[str]]], list[FabricPort]]) -> GpuPorts:
        exits, entries = ([find(gpu, neighbours) for gpu in self._gpus] for neighbours in (self._next, self._previous))
        return GpuPorts(exits, entries, [ports_signature(ports) for ports in entries])

    def _ports_of_gpu(self, gpu: str, neighbours: Mapping[str, list[str]]) -> list[FabricPort]:
        """Return a GPU's ports to or from the switches, sorted by NIC and switch."""
        return self._ports_at(self._hops_from(gpu, neighbours), neighbours)

    def _nearest_ports(self, gpu: str, neighbours: Mapping[str, list[str]]) -> list[FabricPort]:
        seen = {gpu: 0}
        frontier = {gpu: 0}
        while frontier:
            ports = self._ports_at(frontier, neighbours)
            if ports:
                return ports
            frontier = self._next_frontier(frontier, seen, neighbours)
        return []

    def _ports_at(self, nodes: Mapping[str, int], neighbours: Mapping[str, list[str]]) -> list[FabricPort]:
        gpus = self._gpu_index
        ports = [
            FabricPort(node, switch, hops)
            for node, hops in nodes.items()
            if hops == 0 or node not in gpus
            for switch in neighbours[node]
            if switch in self.switches
        ]
        position = self.position
        return ports if len(ports) < 2 else sorted(ports, key=lambda port: (position[port.node], position[port.switch]))

    def _number_by_leaf(self) -> dict[str, int]:
        """Return the place in tree order of each port node: leaf by leaf, then by its first GPU."""
        first: dict[str, tuple[int, int, int]] = {}
        for gpu, ports in enumerate(self.near.entries):
            for port in ports:
                first.setdefault(port.node, (self.position[port.switch], gpu, self.position[port.node]))
        return {node: number for number, node in enumerate(sorted(first, key=first.__getitem__))}

    def _between_switches(self, neighbours: Mapping[str, list[str]]) -> dict[str, list[str]]:
        among = self.switches
        return {node: [other for other in to if other in among] for node, to in neighbours.items() if node in among}

    def bandwidth(self, node: str, other: str) -> float:
        """Return the bandwidth (B/s) of a link."""
        return float(self._graph.adj[node][other]["bandwidth"])


def ports_signature(ports: Iterable[FabricPort]) -> Signature:
    """Return the signature of a GPU's entry ports: an equal key for GPUs that are entered by the same switches."""
    nearest: dict[str, int] = {}
    for port in ports:
        nearest[port.switch] = min(port.hops + 1, nearest.get(port.switch, port.hops + 1))
    return tuple(sorted(nearest.items()))
