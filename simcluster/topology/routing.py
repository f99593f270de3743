"""Which links a transfer takes: shortest in hops, static by destination, as InfiniBand's fat-tree routing does.

A cluster is *machines* (what remains connected when the switches are taken out) around a *fabric* (the switches).  A
route stays in the machine if that is no longer, or leaves it once, crosses the fabric, and enters the destination's
machine once: GPUs and NICs never forward inside a machine, and no third machine does.  So distances are needed between
switches only, and each GPU's way to and from them is a few hops found once.

Ties.  At a switch, and among equally near NICs, the k candidates in natural name order ("spine2" before "spine10") are
indexed by d mod k, where d numbers the GPUs in tree order, leaf by leaf (D-Mod-K; E. Zahavi, "Fat-tree routing and node
ordering providing contention free traffic for MPI global collectives", JPDC 72, 2012).  Tree order is the GPU index
itself wherever GPUs are numbered leaf by leaf; on a rail-optimised fabric it is not, and the plain index would send a
whole rail's traffic (all d equal mod 8) over an eighth of the spines.  Inside a machine d is the GPU index.

Imports only errors.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import networkx as nx

from simcluster.errors import InputError

Signature: TypeAlias = tuple[tuple[str, int], ...]
"""Where a GPU is entered from the fabric: (switch, hops from that switch to the GPU), one per switch."""


@dataclass(frozen=True, slots=True)
class Port:
    """A way between a GPU and the fabric: ``node`` (a NIC, or the GPU) has a link with ``switch``, ``hops`` away."""

    node: str
    switch: str
    hops: int  # between the GPU and node


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key that puts spine2 before spine10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part)


class Router:
    """Routes between the GPUs of one graph; filled as they are asked for."""

    def __init__(self, graph: nx.DiGraph[str], gpus: Sequence[str], link_index: Mapping[tuple[str, str], int]) -> None:
        self._gpus = tuple(gpus)
        self._gpu_nodes = frozenset(gpus)
        ends = ("gpu", "nic")
        self._ends = frozenset(node for node, data in graph.nodes(data=True) if data["kind"] in ends)
        self._link_index = link_index
        self._switches = frozenset(node for node, data in graph.nodes(data=True) if data["kind"] == "switch")
        self._position = {node: i for i, node in enumerate(sorted(graph, key=natural))}
        self._next = {node: self._sorted(to) for node, to in graph.succ.items()}
        self._previous = {node: self._sorted(to) for node, to in graph.pred.items()}
        self._onto, self._from = self._between_switches(self._next), self._between_switches(self._previous)
        self._exits = [self._ports(gpu, self._next) for gpu in gpus]
        self._entries = [self._ports(gpu, self._previous) for gpu in gpus]
        self._signatures = [_signature(entries) for entries in self._entries]
        self._tree_order = self._number_by_leaf()
        self._inside: dict[str, dict[str, int]] = {}
        self._fabric: dict[Signature, dict[str, int]] = {}
        self._forward: dict[tuple[Signature, str], list[str]] = {}
        self._routes: dict[tuple[int, int], tuple[int, ...]] = {}

    # --- what others ask ---------------------------------------------------------------------------------------------

    def route(self, src: int, dst: int) -> tuple[int, ...]:
        """Links from GPU to GPU; InputError naming both when there is no way."""
        route = self._routes.get((src, dst))
        if route is None:
            path = self._path(src, dst)
            route = tuple(self._link_index[hop] for hop in itertools.pairwise(path))
            self._routes[src, dst] = route
        return route

    def uplinks(self, gpu: int) -> tuple[str, ...]:
        """Nodes through which the GPU leaves its machine in the fewest hops; empty when it cannot."""
        exits = self._exits[gpu]
        nearest = min((port.hops for port in exits), default=0)
        return tuple(dict.fromkeys(port.node for port in exits if port.hops == nearest))

    def check_reachable(self) -> None:
        """InputError naming two GPUs when one cannot reach the other.

        Quick when every GPU has ports and the switches reach each other; else every pair of port sets is tried.
        """
        if all(self._exits) and all(self._entries) and self._fabric_is_connected():
            return
        by_ports: dict[tuple[Signature, Signature], list[int]] = defaultdict(list)
        for gpu, exits in enumerate(self._exits):
            by_ports[_signature(exits), self._signatures[gpu]].append(gpu)
        groups = list(by_ports.values())
        for sources in groups:
            for targets in groups:
                if self._outside(sources[0], targets[0])[0] is None:  # only a way inside the machine is left
                    for src in sources:
                        for dst in targets:
                            self._path(src, dst)

    # --- one route ---------------------------------------------------------------------------------------------------

    def _path(self, src: int, dst: int) -> list[str]:
        """Nodes from GPU to GPU, both included."""
        start, end = self._gpus[src], self._gpus[dst]
        inside = self._hops_inside(end).get(start)
        outside, ports = self._outside(src, dst)
        if inside is not None and (outside is None or inside <= outside):
            return self._walk_inside(start, end, dst)
        if outside is None:
            raise InputError(
                f"GPU {start} cannot reach GPU {end}; every GPU must reach every other one through links and switches "
                "(GPUs, NICs and machines in between do not forward: join two NICs by a switch)"
            )
        port = ports[self._tree_order[dst] % len(ports)]
        across = self._walk_fabric(port.switch, dst)
        return self._walk_inside(start, port.node, dst) + across[:-1] + self._walk_inside(across[-1], end, dst)

    def _outside(self, src: int, dst: int) -> tuple[int | None, list[Port]]:
        """Hops of the shortest way over the fabric, None if there is none, and the ports by which it can leave."""
        distance = self._hops_across(self._signatures[dst])
        costs = [(port.hops + 1 + distance[port.switch], port) for port in self._exits[src] if port.switch in distance]
        best = min((cost for cost, _ in costs), default=None)
        return best, [port for cost, port in costs if cost == best]

    def _walk_inside(self, start: str, end: str, dst: int) -> list[str]:
        hops = self._hops_inside(end)
        path = [start]
        while path[-1] != end:
            left = hops[path[-1]] - 1
            candidates = [node for node in self._next[path[-1]] if hops.get(node) == left and self._may_pass(node, end)]
            path.append(candidates[dst % len(candidates)])
        return path

    def _walk_fabric(self, switch: str, dst: int) -> list[str]:
        """Switches from ``switch`` on, and the node of the destination's machine that the last one hands over to."""
        signature, order = self._signatures[dst], self._tree_order[dst]
        distance = self._hops_across(signature)
        path = [switch]
        while True:
            here = path[-1]
            doors = [
                port.node for port in self._entries[dst] if port.switch == here and port.hops + 1 == distance[here]
            ]
            onward = self._onward(signature, here)
            candidates = self._sorted(doors + onward) if doors and onward else doors or onward
            path.append(candidates[order % len(candidates)])
            if path[-1] not in self._switches:
                return path

    def _onward(self, signature: Signature, switch: str) -> list[str]:
        key = (signature, switch)
        if key not in self._forward:
            distance = self._hops_across(signature)
            nearer = distance[switch] - 1
            self._forward[key] = [node for node in self._onto[switch] if distance.get(node) == nearer]
        return self._forward[key]

    # --- distances ---------------------------------------------------------------------------------------------------

    def _hops_inside(self, end: str) -> dict[str, int]:
        """Hops to ``end`` from every node of its machine that has a way to it."""
        if end not in self._inside:
            self._inside[end] = self._spread(end, self._previous)
        return self._inside[end]

    def _hops_across(self, signature: Signature) -> dict[str, int]:
        """Hops from every switch to a GPU with this signature."""
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

    def _spread(self, start: str, neighbours: Mapping[str, list[str]]) -> dict[str, int]:
        """Hops from ``start`` along ``neighbours`` inside its machine; GPUs and NICs are reached but not passed."""
        hops = {start: 0}
        frontier = [start]
        while frontier:
            reached = []
            for node in frontier:
                for other in neighbours[node]:
                    if other not in hops and other not in self._switches:
                        hops[other] = hops[node] + 1
                        if other not in self._ends:
                            reached.append(other)
            frontier = reached
        return hops

    def _ports(self, gpu: str, neighbours: Mapping[str, list[str]]) -> list[Port]:
        """The GPU's ways to the fabric (or from it), in natural order of NIC and switch."""
        ports = [
            Port(node, switch, hops)
            for node, hops in self._spread(gpu, neighbours).items()
            if node == gpu or node not in self._gpu_nodes
            for switch in neighbours[node]
            if switch in self._switches
        ]
        return ports if len(ports) < 2 else sorted(ports, key=lambda port: self._order(port.node, port.switch))

    def _number_by_leaf(self) -> list[int]:
        """For each GPU its place in tree order: leaf by leaf, within a leaf by index; its index if it has no port."""

        def leaf(gpu: int) -> int:
            nearest = min(self._entries[gpu], key=lambda port: port.hops, default=None)
            return -1 if nearest is None else self._position[nearest.switch]

        order = [0] * len(self._gpus)
        for place, gpu in enumerate(sorted(range(len(self._gpus)), key=leaf)):
            order[gpu] = place
        return order

    def _fabric_is_connected(self) -> bool:
        """Whether every switch reaches every other one (over switches only)."""
        if not self._switches:
            return False
        start = min(self._switches, key=self._position.__getitem__)
        return all(self._count_switches(start, ways) == len(self._switches) for ways in (self._onto, self._from))

    def _count_switches(self, start: str, neighbours: Mapping[str, list[str]]) -> int:
        seen, stack = {start}, [start]
        while stack:
            fresh = [node for node in neighbours[stack.pop()] if node not in seen]
            seen.update(fresh)
            stack.extend(fresh)
        return len(seen)

    def _between_switches(self, neighbours: Mapping[str, list[str]]) -> dict[str, list[str]]:
        among = self._switches
        return {node: [other for other in to if other in among] for node, to in neighbours.items() if node in among}

    def _may_pass(self, node: str, end: str) -> bool:
        return node == end or node not in self._ends

    def _order(self, *nodes: str) -> tuple[int, ...]:
        return tuple(self._position[node] for node in nodes)

    def _sorted(self, nodes: Iterable[str]) -> list[str]:
        return sorted(nodes, key=self._position.__getitem__)


def _signature(ports: Iterable[Port]) -> Signature:
    nearest: dict[str, int] = {}
    for port in ports:
        nearest[port.switch] = min(port.hops + 1, nearest.get(port.switch, port.hops + 1))
    return tuple(sorted(nearest.items()))
