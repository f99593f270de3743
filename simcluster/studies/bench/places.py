"""Equivalence classes of a cluster's nodes and GPUs, and the bandwidths and routes of one GPU per class.

The classes are the coarsest equitable partition (colour refinement): two nodes share a class only if their links lead,
with equal capacity and latency, to the same classes in the same numbers. So thousands of nodes are measured on a
handful. In arrays, because clusters have 10^5 links.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Ints, hash64, renumber, run_starts
from simcluster.topology.cluster import Cluster
from simcluster.topology.links import Graph

LINK_KEYS = ("medium", "line_rate", "efficiency", "bandwidth", "latency", "source")


@dataclass(frozen=True, eq=False, slots=True)
class LinkTable:
    """Columns of a graph's directed links: ends and attributes, in the graph's order.

    ``start`` and ``end`` are indices into ``nodes``; ``sort`` is an index into ``sorts``, the distinct values of the
    links' attributes (LINK_KEYS).
    """

    nodes: tuple[str, ...]
    start: Ints
    end: Ints
    sort: Ints
    sorts: tuple[tuple[Any, ...], ...]

    @classmethod
    def from_graph(cls, graph: Graph) -> LinkTable:
        """Make the table of a graph's links."""
        place = {node: i for i, node in enumerate(graph)}
        sorts: dict[tuple[Any, ...], int] = {}
        flat: list[int] = []
        for a, near in graph.adj.items():
            start = place[a]
            for b, data in near.items():
                values = tuple([data[key] for key in LINK_KEYS])
                flat += (start, place[b], sorts.setdefault(values, len(sorts)))
        columns = np.array(flat, dtype=np.int64).reshape(-1, 3)
        return cls(tuple(place), columns[:, 0], columns[:, 1], columns[:, 2], tuple(sorts))

    def values(self, key: str) -> npt.NDArray[Any]:
        """Return one attribute of each link as an array, such as ``bandwidth``."""
        place = LINK_KEYS.index(key)
        return np.array([values[place] for values in self.sorts])[self.sort] if self.sorts else np.zeros(0)

    def reverse_links(self) -> Ints:
        """Return for each link the index of the link in the opposite direction, or -1."""
        size = len(self.nodes)
        there, back = self.start * size + self.end, self.end * size + self.start
        order = np.argsort(there)
        found = order[np.minimum(np.searchsorted(there, back, sorter=order), len(order) - 1)] if len(order) else order
        return np.where(there[found] == back, found, -1)


def node_classes(table: LinkTable, colour: Mapping[str, Hashable]) -> Ints:
    """Return the equivalence class of each node, in graph order; different ``colour`` means different class."""
    classes = _number_labels([colour[node] for node in table.nodes])
    kind = _number_labels(list(zip(table.values("bandwidth").tolist(), table.values("latency").tolist(), strict=True)))
    here = np.concatenate([table.start, table.end])
    other = np.concatenate([table.end, table.start])
    way = np.concatenate([2 * kind, 2 * kind + 1])
    order = np.argsort(here, kind="stable")
    here, other, way = here[order], other[order], hash64(way[order], 1)
    first = run_starts(here)
    while True:
        # the multiset of (link, class at its end)
        around = np.zeros(len(table.nodes), dtype=np.uint64)
        if len(first):
            around[here[first]] = np.add.reduceat(hash64(way ^ hash64(classes[other])), first)
        finer, _ = renumber(hash64(around) ^ hash64(classes, 1))
        if _count_classes(finer) == _count_classes(classes):
            return classes
        classes = finer


def maximum_flows(graph: Graph, side: Mapping[str, int], table: LinkTable | None = None) -> tuple[float, float]:
    """Return the maximum flow (B/s) from the nodes with ``side`` 0 to those with ``side`` 1, and back.

    Computed between classes, with their links added up. That is exact: by equitability a flow between classes spreads
    over their links in proportion to capacity and is conserved at every node.
    """
    table = table or LinkTable.from_graph(graph)
    classes = node_classes(table, {node: (data["kind"], side.get(node)) for node, data in graph.nodes(data=True)})
    size = _count_classes(classes)
    codes, link = np.unique(classes[table.start] * size + classes[table.end], return_inverse=True)
    capacities = np.bincount(link, weights=table.values("bandwidth")) if len(codes) else np.zeros(0)
    quotient: nx.DiGraph[int] = nx.DiGraph()
    quotient.add_nodes_from(range(size))
    for code, capacity in zip(codes.tolist(), capacities.tolist(), strict=True):
        if code // size != code % size:
            quotient.add_edge(code // size, code % size, capacity=capacity)
    class_of = dict(zip(table.nodes, classes.tolist(), strict=True))
    sides = [sorted({class_of[node] for node, end in side.items() if end == wanted}) for wanted in (0, 1)]

    def flow(sources: Iterable[int], sinks: Iterable[int]) -> float:
        joined, start, end = quotient.copy(), -1, -2  # classes are numbered from 0
        joined.add_nodes_from((start, end))
        joined.add_edges_from((start, source) for source in sources)  # no capacity: unlimited
        joined.add_edges_from((sink, end) for sink in sinks)
        return _maximum_flow(joined, start, end)

    return flow(sides[0], sides[1]), flow(sides[1], sides[0])


def _maximum_flow(network: Any, start: Hashable, end: Hashable) -> float:
    # augmenting paths are fast and exact enough on a few dozen nodes
    return float(nx.maximum_flow_value(network, start, end, flow_func=nx.algorithms.flow.edmonds_karp))


def _count_classes(classes: Ints) -> int:
    return int(classes.max()) + 1 if len(classes) else 0


def _number_labels(labels: Iterable[Hashable]) -> Ints:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)


# --- GPUs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuClass:
    """One GPU that represents an equivalence class of GPUs, and all GPUs of its node."""

    gpu: int
    machine: tuple[int, ...]


def gpus_by_node(cluster: Cluster) -> dict[int, list[int]]:
    """Return the GPU indices of each node, by node number."""
    mates: dict[int, list[int]] = {}
    for gpu, host in enumerate(cluster.host_of):
        mates.setdefault(host, []).append(gpu)
    return mates


def representative_gpus(cluster: Cluster, classes: Sequence[int]) -> list[GpuClass]:
    """Return the first GPU of each equivalence class, with the GPUs of its node."""
    mates = gpus_by_node(cluster)
    first: dict[int, int] = {}
    for gpu, of_gpu in enumerate(classes):
        first.setdefault(of_gpu, gpu)
    return [GpuClass(gpu, tuple(mates[cluster.host_of[gpu]])) for gpu in first.values()]


def count_nic_ports(cluster: Cluster, graph: Graph, place: GpuClass) -> int:
    """Return the number of NIC ports of a GPU's node; merged NICs count with all their ports."""
    found: dict[str, None] = {}
    stack = [cluster.gpus[gpu] for gpu in place.machine]
    seen = set(stack)
    while stack:
        for other in graph.adj[stack.pop()]:
            kind = graph.nodes[other]["kind"]
            if kind == "nic":
                found[other] = None
            elif other not in seen and kind not in ("gpu", "switch", "nvswitch"):
                seen.add(other)
                stack.append(other)
    return sum(int(graph.nodes[nic].get("ports", 1)) for nic in found)


def find_leaf_switches(cluster: Cluster, graph: Graph, gpus: Iterable[int]) -> list[str]:
    """Return the leaf switches to which the GPUs' nearest NICs are linked."""
    exits = dict.fromkeys(node for gpu in gpus for node in cluster.uplinks(gpu))
    return list(dict.fromkeys(s for node in exits for s in graph.adj[node] if graph.nodes[s]["kind"] == "switch"))


def number_leaf_sets(cluster: Cluster, graph: Graph) -> list[int]:
    """Return for each GPU an integer that identifies its set of leaf switches."""
    return [
        int(each)
        for each in _number_labels(tuple(find_leaf_switches(cluster, graph, [gpu])) for gpu in range(cluster.num_gpus))
    ]


def find_longest_route(
    cluster: Cluster, found: Iterable[GpuClass], classes: Sequence[int], leaf_of: Sequence[int]
) -> tuple[int, float]:
    """Return the most links and the longest latency (s) of a route between GPUs of any two classes.

    For each class and leaf the first GPU and the last are tried, so that one is in another node if any is.
    """
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    for gpu, key in enumerate(zip(classes, leaf_of, strict=True)):
        first.setdefault(key, gpu)
        last[key] = gpu
    ends = (*first.values(), *last.values())
    routes = {cluster.route(place.gpu, end): None for place in found for end in (*ends, *place.machine)}
    return max(map(len, routes)), max(cluster.path_latency(route) for route in routes)


def bandwidth_inside_node(cluster: Cluster, graph: Graph, place: GpuClass) -> float:
    """Return the bandwidth (B/s) from a GPU to the other GPUs of its node, by NVLink alone if it has NVLink."""
    name = cluster.gpus[place.gpu]
    others = frozenset(cluster.gpus[gpu] for gpu in place.machine) - {name}
    shut = ("pcie", "host", "nic") if has_nvlink(graph, name) else ("nic",)
    return _flow_to_sinks(graph, [name], others.__contains__, lambda node: graph.nodes[node]["kind"] not in shut)


def bandwidth_out_of_node(cluster: Cluster, graph: Graph, place: GpuClass) -> tuple[float, float]:
    """Return a GPU's bandwidth (B/s) out of its node: sending alone, and when all GPUs of the node send."""

    def to_switches(gpus: Sequence[int]) -> float:  # past no other NICs than the nearest
        nics = frozenset(node for gpu in gpus for node in cluster.uplinks(gpu))

        def kind(node: str) -> str:
            return str(graph.nodes[node]["kind"])

        names = [cluster.gpus[gpu] for gpu in gpus]
        return _flow_to_sinks(
            graph, names, lambda node: kind(node) == "switch", lambda node: kind(node) != "nic" or node in nics
        )

    return to_switches([place.gpu]), to_switches(place.machine) / len(place.machine)


def has_nvlink(graph: Graph, gpu: str) -> bool:
    """Return whether the GPU is linked to an NVSwitch or to another GPU."""
    return any(graph.nodes[other]["kind"] in ("gpu", "nvswitch") for other in graph.adj[gpu])


def _flow_to_sinks(
    graph: Graph, sources: Iterable[str], is_sink: Callable[[str], bool], passes: Callable[[str], bool]
) -> float:
    network: nx.DiGraph[str] = nx.DiGraph()
    start, end = "\0from", "\0to"  # no node of a document is called so
    network.add_nodes_from((start, end))
    network.add_edges_from((start, source) for source in sources)
    stack = list(network.adj[start])
    seen = set(stack)
    while stack:
        node = stack.pop()
        for other, data in graph.adj[node].items():
            sink, kind = is_sink(other), graph.nodes[other]["kind"]
            turns_back = graph.nodes[node]["kind"] == "nic" and kind != "switch"
            if turns_back or not (sink or (kind not in ("gpu", "switch") and passes(other))):
                continue
            target = end if sink else other
            have = network[node][target]["capacity"] if network.has_edge(node, target) else 0.0
            network.add_edge(node, target, capacity=have + data["bandwidth"])
            if not sink and other not in seen:
                seen.add(other)
                stack.append(other)
    return _maximum_flow(network, start, end)
