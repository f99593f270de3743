"""Links and routes of a cluster, computed from its graph."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.errors import InputError
from simcluster.base.link_columns import LinkColumn, LinkValues, TreeFlows
from simcluster.topology.access_paths import WHOLE, ShortestPaths, Spread, split_evenly
from simcluster.topology.links import Graph, collective_network, label_for_attributes
from simcluster.topology.policies import RoutingSpec
from simcluster.topology.routing import Router


def _path_to_host(graph: Graph, gpu: str, direction: str) -> list[str]:
    """Return the graph nodes from a GPU to the nearest host bridge; without a bridge, the ends of its PCIe link."""
    near = graph.adj if direction == "d2h" else graph.pred
    paths = [[gpu]]
    seen = {gpu: None}
    for path in paths:
        for node in near[path[-1]]:
            if graph.nodes[node]["kind"] == "host":
                return [*path, node]
            if graph.nodes[node]["kind"] == "pcie" and node not in seen:
                seen[node] = None
                paths.append([*path, node])
    for kind in ("pcie", "nic"):
        own = [node for node in near[gpu] if graph.nodes[node]["kind"] == kind]
        own.sort(key=lambda node: "network" in graph.nodes[node])  # the NIC of the collectives first
        if own:
            return [gpu, own[0]]
    raise InputError(
        f"GPU {gpu} has no link to host memory: its cluster has neither a host bridge nor a PCIe link to a PCIe "
        "switch or a NIC; use a topology whose machines have them, such as dgx_h100 or pcie_ethernet"
    )


def _nic_uplinks(graph: Graph, gpu: str) -> list[tuple[str, str]]:
    """Return the links from the NICs nearest to a GPU (or the GPU itself) to their switches."""
    kinds = graph.nodes(data="kind")
    near, seen = [gpu], {gpu: None}
    while near:
        found = [(node, other) for node in near for other in graph.adj[node] if kinds[other] == "switch"]
        if found:
            return found
        passed = [node for node in near if node == gpu or kinds[node] not in ("gpu", "nic")]
        near = list(dict.fromkeys([other for node in passed for other in graph.adj[node] if other not in seen]))
        seen |= dict.fromkeys(near)
    return []


def find_paths_to_common_switch(
    router: Router, links: Sequence[tuple[str, str]], gpus: Sequence[int], hosts: Sequence[int], turn: int
) -> list[list[str]]:
    """Return each GPU's path (graph nodes) to the switch where all paths meet; ``hosts`` has each GPU's node.

    Of equally near switches it is number ``turn`` (modulo how many there are, in natural order of names). InputError
    when there is none.
    """
    exits = []
    for gpu, host in zip(gpus, hosts, strict=True):
        other = next((other for other, at in zip(gpus, hosts, strict=True) if at != host), None)
        if other is None:
            raise InputError(f"{router.gpus[gpu]} and its group share no switch that can reduce; use another algorithm")
        exits.append([router.gpus[gpu]])  # to the first switch of the fabric, on its route to another machine
        for link in router.route(gpu, other):
            exits[-1].append(links[link][1])
            if exits[-1][-1] in router.ways.switches:
                break
    top = _find_common_switch(router.ways, list(dict.fromkeys(path[-1] for path in exits)), turn)
    return [path + _path_to_switch(router.ways, path[-1], top) for path in exits]


def links_there_and_back(router: Router, path: Sequence[str]) -> tuple[Spread, Spread]:
    """Return the links along a path of graph nodes, and the links of the same path in reverse."""
    index = router.link_index
    pairs = [list(itertools.pairwise(way)) for way in (path, path[::-1])]
    for a, b in itertools.chain(*pairs):
        if (a, b) not in index:
            raise InputError(f"in-network reduction needs a link from {a} to {b}; add it, or use another algorithm")
    up, down = (tuple([(index[pair], 1.0) for pair in way]) for way in pairs)
    return up, down


def _find_common_switch(ways: ShortestPaths, leaves: Sequence[str], turn: int) -> str:
    """Return the switch that is nearest to the farthest of these leaves; ties: least total distance."""
    cost: dict[str, tuple[int, int]] = {}
    hops = [ways.hops_by_switch(((leaf, 0),)) for leaf in leaves]
    for switch in hops[0]:
        if all(switch in each for each in hops):
            distances = [each[switch] for each in hops]
            cost[switch] = max(distances), sum(distances)
    if not cost:
        raise InputError(f"no switch above {leaves[0]} and {leaves[-1]} can reduce their data; use another algorithm")
    best = min(cost.values())
    found = ways.sort_by_name(switch for switch, each in cost.items() if each == best)
    return found[turn % len(found)]


def _path_to_switch(ways: ShortestPaths, leaf: str, top: str) -> list[str]:
    towards, path = ((top, 0),), [leaf]
    if leaf not in ways.hops_by_switch(towards):
        raise InputError(f"no path from switch {leaf} to switch {top}, which reduces its data; use another algorithm")
    while path[-1] != top:
        path.append(ways.next_switches(towards, path[-1])[0])
    return path[1:]


Rows: TypeAlias = tuple[Ints, Ints, Floats]
"""(flow, link, fraction) of every link that a flow crosses, in columns."""


class LinkKind(NamedTuple):
    """Kind of link: labels of both ends for reports, and the medium."""

    begin: str
    end: str
    medium: str


class Wiring:
    """Names, links and routes of a cluster with a graph; ``RegularWiring`` provides the same without a graph."""

    def __init__(self, graph: Graph, gpus: tuple[str, ...], hosts: Sequence[int], routing: RoutingSpec) -> None:
        self.routing = routing
        self.graph, self.gpus = graph, gpus
        self.hosts = np.array(hosts, dtype=np.int64)
        self.links = tuple(graph.edges)
        self.link_capacity, self.link_latency = (
            LinkValues(np.fromiter((data[key] for *_, data in graph.edges(data=True)), np.float64, len(self.links)))
            for key in ("bandwidth", "latency")
        )

    @cached_property
    def link_index(self) -> dict[tuple[str, str], int]:
        """Link numbers by the names of both ends."""
        return {link: number for number, link in enumerate(self.links)}

    @cached_property
    def switches(self) -> tuple[str, ...]:
        """Names of the switches of the network that collectives use."""
        nodes = self.graph.nodes(data=True)
        return tuple(node for node, data in nodes if data["kind"] == "switch" and "network" not in data)

    @cached_property
    def has_storage_nics(self) -> bool:
        """Whether nodes have separate NICs on a storage network."""
        nodes = self.graph.nodes(data=True)
        return any(data["kind"] == "nic" and data.get("network") == "storage" for _, data in nodes)

    @cached_property
    def router(self) -> Router:
        """Router of single flows."""
        return Router(collective_network(self.graph), self.gpus, self.link_index, self.routing)

    def has_node(self, node: str) -> bool:
        """Return whether the cluster has a node of this name."""
        return node in self.graph

    def link_names(self, links: Ints) -> list[tuple[str, str]]:
        """Return the names of both ends of these links."""
        return [self.links[link] for link in links.tolist()]

    def link_kinds(self, links: Ints) -> tuple[Ints, list[LinkKind]]:
        """Return each link's kind number, and the list of kinds."""
        labels = {node: label_for_attributes(data) for node, data in self.graph.nodes(data=True)}
        known: dict[LinkKind, int] = {}
        kinds = [LinkKind(labels[a], labels[b], str(self.graph[a][b]["medium"])) for a, b in self.link_names(links)]
        return np.array([known.setdefault(kind, len(known)) for kind in kinds], dtype=np.int64), list(known)

    def route_rows(self, src: Ints, dst: Ints, number: Ints) -> Rows:
        """Return the routes of many flows as rows (flow, link, fraction of the flow's bytes), sorted by flow."""
        return self.route_one_by_one(np.flatnonzero(src != dst), src, dst, number)

    def route_one_by_one(self, flows: Ints, src: Ints, dst: Ints, number: Ints) -> Rows:
        """Return the routes of ``flows`` as rows (flow, link, fraction), computed one flow at a time."""
        rows = [
            (place, link, fraction)
            for place in flows.tolist()
            for link, fraction in self.router.spread_route(int(src[place]), int(dst[place]), int(number[place]))
        ]
        flow, link, fraction = np.array(rows, dtype=np.float64).reshape(-1, 3).T  # numbers of links are exact
        return flow.astype(np.int64), link.astype(np.int64), fraction

    def tree_link_loads(self, flows: TreeFlows) -> LinkColumn | None:
        """Return None: a cluster with a graph has no closed form of loads."""
        del flows
        return None

    def exit_nics(self, gpu: int) -> tuple[str, ...]:
        """Return the NICs through which a GPU's traffic leaves its node."""
        return self.router.exit_nics(gpu)

    def nvswitch(self, gpu: int) -> str:
        """Return the name of the GPU's NVSwitch; "" if it has none."""
        near = self.graph.adj[self.gpus[gpu]]
        return next((node for node in near if self.graph.nodes[node]["kind"] == "nvswitch"), "")

    @cached_property
    def meshed(self) -> bool:
        """Whether every GPU of a node has a direct link to every other GPU of the node."""
        machines: dict[int, list[str]] = {}
        for gpu, host in zip(self.gpus, self.hosts.tolist(), strict=True):
            machines.setdefault(host, []).append(gpu)
        return all(
            len(gpus) > 1 and all(itertools.starmap(self.graph.has_edge, itertools.permutations(gpus, 2)))
            for gpus in machines.values()
        )

    @cached_property
    def all_nvswitch_and_nic_numbers(self) -> tuple[Int32s, Int32s]:
        """NVSwitch number (0: none) and NIC numbers (padded with -1) of every GPU."""
        numbers, gpus = {"": 0}, range(len(self.gpus))
        switches = [numbers.setdefault(self.nvswitch(gpu), len(numbers)) for gpu in gpus]
        uplinks = [[numbers.setdefault(name, len(numbers)) for name in self.exit_nics(gpu)] for gpu in gpus]
        nics = np.full((len(gpus), max(map(len, uplinks))), -1, dtype=np.int32)
        for row, own in zip(nics, uplinks, strict=True):
            row[: len(own)] = own
        return np.array(switches, dtype=np.int32), nics

    def nvswitch_and_nic_numbers(self, gpus: Ints) -> tuple[Int32s, Int32s]:
        """Return each GPU's NVSwitch number (0: none) and its NIC numbers (padded with -1)."""
        switches, nics = self.all_nvswitch_and_nic_numbers
        return switches[gpus], nics[gpus]

    def routes_to_common_switch(self, gpus: Sequence[int], turn: int) -> tuple[tuple[Spread, Spread], ...]:
        """Return, for each GPU, the route to the switch where all these GPUs' paths meet, and the route back."""
        inside = dict.fromkeys(self.nvswitch(gpu) for gpu in gpus)
        if len(inside) == 1 and "" not in inside:
            return tuple(self.nvswitch_routes(gpu) for gpu in gpus)
        paths = find_paths_to_common_switch(self.router, self.links, gpus, self.hosts[list(gpus)].tolist(), turn)
        return tuple(links_there_and_back(self.router, path) for path in paths)

    def nvswitch_routes(self, gpu: int) -> tuple[Spread, Spread]:
        """Return the route from a GPU to its NVSwitch, and the route back."""
        return links_there_and_back(self.router, [self.gpus[gpu], self.nvswitch(gpu)])

    def host_memory_route(self, gpu: int, direction: str) -> Spread:
        """Return the links between a GPU and host memory, in order: from the GPU ("d2h") or to it ("h2d").

        "storage": from host memory to the fabric, none on a node without one; "peers": there and back. InputError
        without any.
        """
        if direction in ("storage", "peers"):
            cables = _nic_uplinks(self.graph, self.gpus[gpu])
            parts = split_evenly(WHOLE, len(cables)) if cables else []
            ways = [cables] if direction == "storage" else [cables, [(switch, port) for port, switch in cables]]
            return tuple(
                [(self.link_index[link], part / WHOLE) for way in ways for link, part in zip(way, parts, strict=True)]
            )
        nodes = _path_to_host(self.graph, self.gpus[gpu], direction)
        if direction == "h2d":
            nodes.reverse()
        return tuple([(self.link_index[pair], 1.0) for pair in pairwise(nodes)])

    def tray_of_gpu(self, gpu: int) -> int:
        """Return the GPU's tray number in its rack; 0 without trays."""
        return int(self.graph.nodes[self.gpus[gpu]].get("tray", 0))
