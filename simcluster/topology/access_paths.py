"""Shortest paths in a cluster graph, and the ports where they leave and enter a node.

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

from simcluster.base.texts import natural_sort_key

WHOLE = 2**40
"""Fractions of a flow are multiples of 1 / WHOLE, so that sums of thousands of them are exact in any order (as on the
clock's grid), and what enters a node leaves it to the last bit."""

Spread: TypeAlias = tuple[tuple[int, float], ...]
"""(link, fraction of the bytes) of a flow; one path has fractions of 1, in order."""

EntrySignature: TypeAlias = tuple[tuple[str, int], ...]
"""Switches by which a GPU is reached: (switch, hops from that switch to the GPU), one per switch."""


@dataclass(frozen=True, slots=True)
class FabricPort:
    """Port of a GPU to the fabric: a NIC (or the GPU itself), the switch linked to it, and the hops from GPU to NIC."""

    node: str
    switch: str
    hops: int  # between the GPU and node


@dataclass(frozen=True, slots=True)
class GpuPorts:
    """Ports through which the traffic of each GPU leaves and enters its node, and a signature of the entry ports."""

    exits: Sequence[Sequence[FabricPort]]
    entries: Sequence[Sequence[FabricPort]]
    signatures: Sequence[EntrySignature]


def split_evenly(whole: int, parts: int) -> list[int]:
    """Split an integer into ``parts`` integers that differ by at most 1, larger ones first."""
    each, more = divmod(whole, parts)
    return [each + 1] * more + [each] * (parts - more)


class ShortestPaths:
    """Shortest paths, distances and ports in one cluster graph, computed on demand and cached."""

    def __init__(self, graph: nx.DiGraph[str], gpus: Sequence[str]) -> None:
        self._graph = graph
        self._gpus = tuple(gpus)
        self._gpu_index = {gpu: i for i, gpu in enumerate(gpus)}
        ends = ("gpu", "nic")
        self._ends = frozenset(node for node, data in graph.nodes(data=True) if data["kind"] in ends)
        self.switches = frozenset(node for node, data in graph.nodes(data=True) if data["kind"] == "switch")
        self.position = {node: i for i, node in enumerate(sorted(graph, key=natural_sort_key))}
        self._next = {node: self.sort_by_name(to) for node, to in graph.succ.items()}
        self._previous = {node: self.sort_by_name(to) for node, to in graph.pred.items()}
        self._onto, self._from = self._switch_neighbours(self._next), self._switch_neighbours(self._previous)
        self.near = self._build_gpu_ports(self._nearest_ports)
        self.tree_order = self._port_node_indices()
        self._mates: dict[tuple[str, ...], list[int]] = {}
        self._inside: dict[str, dict[str, int]] = {}
        self._walks: dict[tuple[str, str], list[str] | None] = {}
        self._fabric: dict[EntrySignature, dict[str, int]] = {}
        self._forward: dict[tuple[EntrySignature, str], list[str]] = {}

    @cached_property
    def all_ports(self) -> GpuPorts:
        """All ports through which each GPU can reach a switch, not only the nearest ports."""
        return self._build_gpu_ports(self._ports_of_gpu)

    def sort_by_name(self, nodes: Iterable[str]) -> list[str]:
        """Return graph nodes sorted by name, with numbers in numeric order (gpu2 before gpu10)."""
        return sorted(nodes, key=self.position.__getitem__)

    # --- in a machine ------------------------------------------------------------------------------------------------

    def hops_within_machine(self, end: str) -> dict[str, int]:
        """Return the number of hops to graph node ``end`` from every graph node of the same machine."""
        if end not in self._inside:
            self._inside[end] = self._hops_from(end, self._previous)
        return self._inside[end]

    def path_within_machine(self, start: str, end: str, dst: int) -> list[str]:
        """Return the shortest path between two graph nodes of a machine; ties: fastest next link, then GPU ``dst``."""
        known = self.unique_path_within_machine(start, end)
        return self._find_path_within_machine(start, end, dst)[0] if known is None else known

    def unique_path_within_machine(self, start: str, end: str) -> list[str] | None:
        """Return the shortest path between two graph nodes of a machine; None if several paths are equally good."""
        if (start, end) not in self._walks:
            path, ties = self._find_path_within_machine(start, end, 0)
            self._walks[start, end] = None if ties else path
        return self._walks[start, end]

    def _find_path_within_machine(self, start: str, end: str, dst: int) -> tuple[list[str], bool]:
        """Return the path between two graph nodes of a machine, and whether other paths were equally good."""
        hops = self.hops_within_machine(end)
        path, ties = [start], False
        while path[-1] != end:
            here, left = path[-1], hops[path[-1]] - 1
            found = [one for one in self._next[here] if hops.get(one) == left and (one == end or one not in self._ends)]
            if len(found) > 1:
                rates = [self._graph.adj[here][node]["bandwidth"] for node in found]
                found = [node for node, rate in zip(found, rates, strict=True) if rate == max(rates)]
            ties = ties or len(found) > 1
            path.append(found[dst % len(found)])
        return path, ties

    def nvlink_peers(self, gpu: int) -> list[int]:
        """Return the sorted GPUs that share an NVLink or an NVSwitch with this GPU."""
        name = self._gpus[gpu]
        doors = tuple(node for node in self._next[name] if self._graph.nodes[node]["kind"] in ("gpu", "nvswitch"))
        if doors not in self._mates:
            index = self._gpu_index
            near = [end for node in doors for end in ([node] if node in index else self._next[node])]
            self._mates[doors] = sorted({index[end]: None for end in near if end in index})
        return [mate for mate in self._mates[doors] if mate != gpu]

    # --- over the fabric ---------------------------------------------------------------------------------------------

    def hops_by_switch(self, signature: EntrySignature) -> dict[str, int]:
        """Return the number of hops from every switch to any GPU whose entry ports have this signature."""
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

    def next_switches(self, signature: EntrySignature, switch: str) -> list[str]:
        """Return the next switches from ``switch`` on shortest paths to GPUs whose entry ports have this signature."""
        key = (signature, switch)
        if key not in self._forward:
            distance = self.hops_by_switch(signature)
            nearer = distance[switch] - 1
            self._forward[key] = [node for node in self._onto[switch] if distance.get(node) == nearer]
        return self._forward[key]

    def fabric_part_numbers(self) -> dict[str, int]:
        """Return the number of each switch's connected part of the fabric, by switch name.

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
        """Return the hops from ``start`` to every graph node of the same machine, on paths that cross no GPU or NIC."""
        seen = {start: 0}
        frontier = {start: 0}
        while frontier:
            frontier = self._next_frontier(frontier, seen, neighbours)
        return seen

    def _next_frontier(
        self, frontier: Mapping[str, int], seen: dict[str, int], neighbours: Mapping[str, list[str]]
    ) -> dict[str, int]:
        """Return the graph nodes of a machine one hop beyond ``frontier``, and add them to ``seen``."""
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
        return GpuPorts(exits, entries, [entry_ports_signature(ports) for ports in entries])

    def _ports_of_gpu(self, gpu: str, neighbours: Mapping[str, list[str]]) -> list[FabricPort]:
        """Return all ports between a GPU and the switches, sorted by NIC and switch."""
        return self._ports_of_nodes(self._hops_from(gpu, neighbours), neighbours)

    def _nearest_ports(self, gpu: str, neighbours: Mapping[str, list[str]]) -> list[FabricPort]:
        seen = {gpu: 0}
        frontier = {gpu: 0}
        while frontier:
            ports = self._ports_of_nodes(frontier, neighbours)
            if ports:
                return ports
            frontier = self._next_frontier(frontier, seen, neighbours)
        return []

    def _ports_of_nodes(self, nodes: Mapping[str, int], neighbours: Mapping[str, list[str]]) -> list[FabricPort]:
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

    def _port_node_indices(self) -> dict[str, int]:
        """Return an index for each NIC (or GPU) linked to a switch, sorted by leaf switch, then by first GPU."""
        first: dict[str, tuple[int, int, int]] = {}
        for gpu, ports in enumerate(self.near.entries):
            for port in ports:
                first.setdefault(port.node, (self.position[port.switch], gpu, self.position[port.node]))
        return {node: number for number, node in enumerate(sorted(first, key=first.__getitem__))}

    def _switch_neighbours(self, neighbours: Mapping[str, list[str]]) -> dict[str, list[str]]:
        among = self.switches
        return {node: [other for other in to if other in among] for node, to in neighbours.items() if node in among}


def entry_ports_signature(ports: Iterable[FabricPort]) -> EntrySignature:
    """Return a key of a GPU's entry ports, equal for GPUs at equal distances from the same switches."""
    nearest: dict[str, int] = {}
    for port in ports:
        nearest[port.switch] = min(port.hops + 1, nearest.get(port.switch, port.hops + 1))
    return tuple(sorted(nearest.items()))
