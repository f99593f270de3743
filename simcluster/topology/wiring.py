"""Names, links and routes of a cluster from its graph, including switch trees and paths to host memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.errors import InputError
from simcluster.base.link_columns import LinkValues, PerLink, TreeFlows
from simcluster.topology.access_paths import WHOLE, ShortestPaths, Spread, split_evenly
from simcluster.topology.links import Graph, compute_part, label_for_attributes
from simcluster.topology.policies import RoutingSpec
from simcluster.topology.routing import Router


def host_way(graph: Graph, link_index: Mapping[tuple[str, str], int], gpu: str, direction: str) -> Spread:
    """Return the links from a GPU to host memory (``direction`` "d2h") or back ("h2d"), in order.

    "storage": from host memory to the fabric, none on a node without one; "peers": there and back. InputError without
    any.
    """
    if direction in ("storage", "peers"):
        cables = _nic_links(graph, gpu)
        parts = split_evenly(WHOLE, len(cables)) if cables else []
        ways = [cables] if direction == "storage" else [cables, [(switch, port) for port, switch in cables]]
        return tuple(
            [(link_index[cable], part / WHOLE) for way in ways for cable, part in zip(way, parts, strict=True)]
        )
    nodes = _path_to_host(graph, gpu, direction)
    if direction == "h2d":
        nodes.reverse()
    return tuple([(link_index[pair], 1.0) for pair in pairwise(nodes)])


def _path_to_host(graph: Graph, gpu: str, direction: str) -> list[str]:
    """Return the graph nodes from a GPU to the nearest host bridge, or over the GPU's PCIe link."""
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


def _nic_links(graph: Graph, gpu: str) -> list[tuple[str, str]]:
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


def find_meeting_paths(
    router: Router, links: Sequence[tuple[str, str]], gpus: Sequence[int], hosts: Sequence[int], turn: int
) -> list[list[str]]:
    """Return for each GPU the nodes up to the switch in which all of them meet; ``hosts`` has each one's machine.

    Of equally near switches it is number ``turn`` (modulo how many there are, in natural order of names). InputError
    when there is none.
    """
    exits = []
    for gpu, host in zip(gpus, hosts, strict=True):
        other = next((other for other, at in zip(gpus, hosts, strict=True) if at != host), None)
        if other is None:
            raise InputError(f"{router.gpus[gpu]} and the others of its group share no switch that could reduce")
        exits.append([router.gpus[gpu]])  # to the first switch of the fabric, on its route to another machine
        for link in router.route(gpu, other):
            exits[-1].append(links[link][1])
            if exits[-1][-1] in router.ways.switches:
                break
    top = _find_common_switch(router.ways, list(dict.fromkeys(path[-1] for path in exits)), turn)
    return [path + _path_to_top(router.ways, path[-1], top) for path in exits]


def links_both_ways(router: Router, path: Sequence[str]) -> tuple[Spread, Spread]:
    """Return the links along a path of graph nodes, and the links back."""
    index = router.link_index
    pairs = [list(itertools.pairwise(way)) for way in (path, path[::-1])]
    for a, b in itertools.chain(*pairs):
        if (a, b) not in index:
            raise InputError(f"no link from {a} to {b}: what is reduced in a switch comes back the way it went")
    up, down = (tuple([(index[pair], 1.0) for pair in way]) for way in pairs)
    return up, down


def _find_common_switch(ways: ShortestPaths, leaves: Sequence[str], turn: int) -> str:
    """Return the switch nearest to the farthest of these leaves; of several, the one nearest to all leaves."""
    cost: dict[str, tuple[int, int]] = {}
    hops = [ways.hops_across(((leaf, 0),)) for leaf in leaves]
    for switch in hops[0]:
        if all(switch in each for each in hops):
            distances = [each[switch] for each in hops]
            cost[switch] = max(distances), sum(distances)
    if not cost:
        raise InputError(f"the switches {leaves[0]} and {leaves[-1]} have no switch above both that could reduce")
    best = min(cost.values())
    found = ways.in_order(switch for switch, each in cost.items() if each == best)
    return found[turn % len(found)]


def _path_to_top(ways: ShortestPaths, leaf: str, top: str) -> list[str]:
    towards, path = ((top, 0),), [leaf]
    if leaf not in ways.hops_across(towards):
        raise InputError(f"there is no way from switch {leaf} to {top}, in which its traffic would be reduced")
    while path[-1] != top:
        path.append(ways.onward(towards, path[-1])[0])
    return path[1:]


Rows: TypeAlias = tuple[Ints, Ints, Floats]
"""(flow, link, fraction) of every link that a flow crosses, in columns."""


class LinkKind(NamedTuple):
    """Kind of link: the report labels of both ends, and the medium."""

    begin: str
    end: str
    medium: str


def find_link_kinds(graph: Graph, links: Sequence[tuple[str, str]]) -> tuple[Ints, list[LinkKind]]:
    """Return the kinds of links that are given by their nodes in a graph."""
    labels = {node: label_for_attributes(data) for node, data in graph.nodes(data=True)}
    known: dict[LinkKind, int] = {}
    kinds = [LinkKind(labels[a], labels[b], str(graph[a][b]["medium"])) for a, b in links]
    return np.array([known.setdefault(kind, len(known)) for kind in kinds], dtype=np.int64), list(known)


class Wiring:
    """Names, links and routes of a cluster with a graph; ``Regular`` gives the same without one."""

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
        """Number of a link by its nodes."""
        return {link: number for number, link in enumerate(self.links)}

    @cached_property
    def switches(self) -> tuple[str, ...]:
        """Names of the switches of the collectives' network."""
        nodes = self.graph.nodes(data=True)
        return tuple(node for node, data in nodes if data["kind"] == "switch" and "network" not in data)

    @cached_property
    def storage_nics(self) -> bool:
        """Whether machines have NICs on a network for storage."""
        nodes = self.graph.nodes(data=True)
        return any(data["kind"] == "nic" and data.get("network") == "storage" for _, data in nodes)

    @cached_property
    def router(self) -> Router:
        """Routes of single flows."""
        return Router(compute_part(self.graph), self.gpus, self.link_index, self.routing)

    def has(self, node: str) -> bool:
        """Return whether there is a node of this name."""
        return node in self.graph

    def named(self, links: Ints) -> list[tuple[str, str]]:
        """Return the names of both ends of some links."""
        return [self.links[link] for link in links.tolist()]

    def kinds(self, links: Ints) -> tuple[Ints, list[LinkKind]]:
        """Return the kind number of some links, and the list of kinds."""
        return find_link_kinds(self.graph, self.named(links))

    def rows(self, src: Ints, dst: Ints, number: Ints) -> Rows:
        """Return the links that flows cross, as rows (flow, link, fraction of its bytes), sorted by flow."""
        return self.one_by_one(np.flatnonzero(src != dst), src, dst, number)

    def one_by_one(self, flows: Ints, src: Ints, dst: Ints, number: Ints) -> Rows:
        """Return the links that some of the flows cross, found one flow after the other."""
        rows = [
            (place, link, fraction)
            for place in flows.tolist()
            for link, fraction in self.router.spread(int(src[place]), int(dst[place]), int(number[place]))
        ]
        flow, link, fraction = np.array(rows, dtype=np.float64).reshape(-1, 3).T  # numbers of links are exact
        return flow.astype(np.int64), link.astype(np.int64), fraction

    def loads(self, flows: TreeFlows) -> PerLink | None:
        """Return None: a graph has no closed form of loads."""
        del flows
        return None

    def uplinks(self, gpu: int) -> tuple[str, ...]:
        """Return the NICs of a GPU."""
        return self.router.uplinks(gpu)

    def nvswitch(self, gpu: int) -> str:
        """Return the NVSwitch of a GPU; "" for none."""
        near = self.graph.adj[self.gpus[gpu]]
        return next((node for node in near if self.graph.nodes[node]["kind"] == "nvswitch"), "")

    @cached_property
    def meshed(self) -> bool:
        """Whether every GPU has a link to every other GPU of its machine, if there are several."""
        machines: dict[int, list[str]] = {}
        for gpu, host in zip(self.gpus, self.hosts.tolist(), strict=True):
            machines.setdefault(host, []).append(gpu)
        return all(
            len(gpus) > 1 and all(itertools.starmap(self.graph.has_edge, itertools.permutations(gpus, 2)))
            for gpus in machines.values()
        )

    @cached_property
    def all_seats(self) -> tuple[Int32s, Int32s]:
        """Numbers of the NVSwitch (0: none) and of the NICs (-1 after the last) of all GPUs."""
        numbers, gpus = {"": 0}, range(len(self.gpus))
        switches = [numbers.setdefault(self.nvswitch(gpu), len(numbers)) for gpu in gpus]
        uplinks = [[numbers.setdefault(name, len(numbers)) for name in self.uplinks(gpu)] for gpu in gpus]
        nics = np.full((len(gpus), max(map(len, uplinks))), -1, dtype=np.int32)
        for row, own in zip(nics, uplinks, strict=True):
            row[: len(own)] = own
        return np.array(switches, dtype=np.int32), nics

    def seats(self, gpus: Ints) -> tuple[Int32s, Int32s]:
        """Return numbers of the NVSwitch (0: none) and of the NICs (-1 after the last) of some GPUs."""
        switches, nics = self.all_seats
        return switches[gpus], nics[gpus]

    def switch_ways(self, gpus: Sequence[int], turn: int) -> tuple[tuple[Spread, Spread], ...]:
        """Return for each GPU its route to the switch in which all of them meet, and the route back."""
        inside = dict.fromkeys(self.nvswitch(gpu) for gpu in gpus)
        if len(inside) == 1 and "" not in inside:
            return tuple(self.nvswitch_ways(gpu) for gpu in gpus)
        paths = find_meeting_paths(self.router, self.links, gpus, self.hosts[list(gpus)].tolist(), turn)
        return tuple(links_both_ways(self.router, path) for path in paths)

    def nvswitch_ways(self, gpu: int) -> tuple[Spread, Spread]:
        """Return the route of a GPU to its NVSwitch, and back."""
        return links_both_ways(self.router, [self.gpus[gpu], self.nvswitch(gpu)])

    def host_way(self, gpu: int, direction: str) -> Spread:
        """Return the links between a GPU and its host's memory."""
        return host_way(self.graph, self.link_index, self.gpus[gpu], direction)

    def tray(self, gpu: int) -> int:
        """Return the tray of a GPU in its rack."""
        return int(self.graph.nodes[self.gpus[gpu]].get("tray", 0))
