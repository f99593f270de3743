"""Equivalence classes of a cluster's graph nodes, and the bandwidths and routes of one GPU from each class.

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

from simcluster.base.arrays import Ints, hash64, number_by_first_use, run_starts
from simcluster.topology.cluster import Cluster
from simcluster.topology.links import Graph

LINK_KEYS = ("medium", "line_rate", "efficiency", "bandwidth", "latency", "source")


@dataclass(frozen=True, eq=False, slots=True)
class LinkTable:
    """Columns of a graph's directed links: start node, end node and attributes, in the graph's order.

    ``start`` and ``end`` are indices into ``nodes``; ``kind`` is an index into ``kinds``, the distinct values of the
    links' attributes (LINK_KEYS).
    """

    nodes: tuple[str, ...]
    start: Ints
    end: Ints
    kind: Ints
    kinds: tuple[tuple[Any, ...], ...]

    @classmethod
    def from_graph(cls, graph: Graph) -> LinkTable:
        """Make the table of all directed links of a graph."""
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

    def attribute_values(self, key: str) -> npt.NDArray[Any]:
        """Return one attribute of all links, such as ``bandwidth``, as an array."""
        place = LINK_KEYS.index(key)
        return np.array([values[place] for values in self.kinds])[self.kind] if self.kinds else np.zeros(0)

    def find_reverse_links(self) -> Ints:
        """Return, for each link, the index of the link in the opposite direction; -1 if there is none."""
        size = len(self.nodes)
        there, back = self.start * size + self.end, self.end * size + self.start
        order = np.argsort(there)
        found = order[np.minimum(np.searchsorted(there, back, sorter=order), len(order) - 1)] if len(order) else order
        return np.where(there[found] == back, found, -1)


def find_node_classes(table: LinkTable, colour: Mapping[str, Hashable]) -> Ints:
    """Return each graph node's equivalence class number; nodes of different ``colour`` are never equivalent."""
    classes = _index_labels([colour[node] for node in table.nodes])
    columns = (table.attribute_values(name).tolist() for name in ("bandwidth", "latency"))
    kind = _index_labels(list(zip(*columns, strict=True)))
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
        finer, _ = number_by_first_use(hash64(around) ^ hash64(classes, 1))
        if _count_classes(finer) == _count_classes(classes):
            return classes
        classes = finer


def compute_maximum_flows(graph: Graph, side: Mapping[str, int], table: LinkTable | None = None) -> tuple[float, float]:
    """Return the maximum flows (B/s) between two sides of a graph: from side 0 to side 1, and from side 1 to side 0.

    Computed between classes, with their links added up. That is exact: by equitability a flow between classes spreads
    over their links in proportion to capacity and is conserved at every node.
    """
    table = table or LinkTable.from_graph(graph)
    classes = find_node_classes(table, {node: (data["kind"], side.get(node)) for node, data in graph.nodes(data=True)})
    size = _count_classes(classes)
    codes, link = np.unique(classes[table.start] * size + classes[table.end], return_inverse=True)
    capacities = np.bincount(link, weights=table.attribute_values("bandwidth")) if len(codes) else np.zeros(0)
    quotient: nx.DiGraph[int] = nx.DiGraph()
    quotient.add_nodes_from(range(size))
    for code, capacity in zip(codes.tolist(), capacities.tolist(), strict=True):
        if code // size != code % size:
            quotient.add_edge(code // size, code % size, capacity=capacity)
    class_of = dict(zip(table.nodes, classes.tolist(), strict=True))
    sides = [sorted({class_of[node] for node, end in side.items() if end == wanted}) for wanted in (0, 1)]

    def flow_between(sources: Iterable[int], sinks: Iterable[int]) -> float:
        joined, start, end = quotient.copy(), -1, -2  # classes are numbered from 0
        joined.add_nodes_from((start, end))
        joined.add_edges_from((start, source) for source in sources)  # no capacity: unlimited
        joined.add_edges_from((sink, end) for sink in sinks)
        return _compute_maximum_flow(joined, start, end)

    return flow_between(sides[0], sides[1]), flow_between(sides[1], sides[0])


def _compute_maximum_flow(network: Any, start: Hashable, end: Hashable) -> float:
    # augmenting paths are fast and exact enough on a few dozen nodes
    return float(nx.maximum_flow_value(network, start, end, flow_func=nx.algorithms.flow.edmonds_karp))


def _count_classes(classes: Ints) -> int:
    return int(classes.max()) + 1 if len(classes) else 0


def _index_labels(labels: Iterable[Hashable]) -> Ints:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)


# --- GPUs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuClass:
    """Class of equivalent GPUs, represented by its first GPU, with the GPUs on that GPU's node."""

    gpu: int
    node_gpus: tuple[int, ...]


def list_gpus_by_node(cluster: Cluster) -> dict[int, list[int]]:
    """Return the GPU indices of each node, by node number."""
    mates: dict[int, list[int]] = {}
    for gpu, host in enumerate(cluster.host_of):
        mates.setdefault(host, []).append(gpu)
    return mates


def find_representative_gpus(cluster: Cluster, classes: Sequence[int]) -> list[GpuClass]:
    """Return the first GPU of each equivalence class, and the GPUs on its node."""
    mates = list_gpus_by_node(cluster)
    first: dict[int, int] = {}
    for gpu, of_gpu in enumerate(classes):
        first.setdefault(of_gpu, gpu)
    return [GpuClass(gpu, tuple(mates[cluster.host_of[gpu]])) for gpu in first.values()]


def count_nic_ports(cluster: Cluster, graph: Graph, gpu_class: GpuClass) -> int:
    """Return the number of NIC ports on a GPU's node, including every port of a merged NIC."""
    gpus = {cluster.gpus[gpu] for gpu in gpu_class.node_gpus}
    inside = [node for node, data in graph.nodes(data=True) if data["kind"] in ("pcie", "host")]
    part = graph.subgraph((*gpus, *inside))
    reached = gpus.union(*(nx.descendants(part, gpu) for gpu in gpus))
    nics = {other for node in reached for other in graph.adj[node] if graph.nodes[other]["kind"] == "nic"}
    return sum(int(graph.nodes[nic].get("ports", 1)) for nic in nics)


def find_leaf_switches(cluster: Cluster, graph: Graph, gpus: Iterable[int]) -> list[str]:
    """Return the leaf switches that are linked to the nearest NICs of these GPUs."""
    exits = dict.fromkeys(node for gpu in gpus for node in cluster.exit_nics(gpu))
    return list(dict.fromkeys(s for node in exits for s in graph.adj[node] if graph.nodes[s]["kind"] == "switch"))


def leaf_switch_set_ids(cluster: Cluster, graph: Graph) -> list[int]:
    """Return an integer for each GPU, equal for GPUs that are linked to the same set of leaf switches."""
    sets = (tuple(find_leaf_switches(cluster, graph, [gpu])) for gpu in range(cluster.num_gpus))
    return [int(each) for each in _index_labels(sets)]


def find_longest_route(
    cluster: Cluster, gpu_classes: Iterable[GpuClass], classes: Sequence[int], leaf_of: Sequence[int]
) -> tuple[int, float]:
    """Return the largest number of links and the largest latency (s) of a route between two GPUs.

    For each class and leaf the first GPU and the last are tried, so that one is in another node if any is.
    """
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    for gpu, key in enumerate(zip(classes, leaf_of, strict=True)):
        first.setdefault(key, gpu)
        last[key] = gpu
    ends = (*first.values(), *last.values())
    routes = {cluster.route(place.gpu, end): None for place in gpu_classes for end in (*ends, *place.node_gpus)}
    return max(map(len, routes)), max(cluster.path_latency(route) for route in routes)


def measure_bandwidth_inside_node(cluster: Cluster, graph: Graph, gpu_class: GpuClass) -> float:
    """Return the bandwidth (B/s) from a GPU to the other GPUs of its node, over NVLink alone if the GPU has NVLink."""
    name = cluster.gpus[gpu_class.gpu]
    rest = frozenset(cluster.gpus[gpu] for gpu in gpu_class.node_gpus) - {name}
    shut = ("pcie", "host", "nic") if has_nvlink(graph, name) else ("nic",)
    return _maximum_flow_to_sinks(graph, [name], rest.__contains__, lambda node: graph.nodes[node]["kind"] not in shut)


def measure_bandwidth_out_of_node(cluster: Cluster, graph: Graph, gpu_class: GpuClass) -> tuple[float, float]:
    """Return a GPU's bandwidth (B/s) out of its node when only this GPU sends, and when all GPUs of the node send."""

    def bandwidth_to_switches(gpus: Sequence[int]) -> float:  # past no other NICs than the nearest
        nics = frozenset(node for gpu in gpus for node in cluster.exit_nics(gpu))
        names = [cluster.gpus[gpu] for gpu in gpus]
        kinds = graph.nodes(data="kind")
        return _maximum_flow_to_sinks(
            graph, names, lambda at: kinds[at] == "switch", lambda at: kinds[at] != "nic" or at in nics
        )

    return bandwidth_to_switches([gpu_class.gpu]), bandwidth_to_switches(gpu_class.node_gpus) / len(gpu_class.node_gpus)


def has_nvlink(graph: Graph, gpu: str) -> bool:
    """Return whether the GPU is linked to an NVSwitch or to another GPU."""
    return any(graph.nodes[other]["kind"] in ("gpu", "nvswitch") for other in graph.adj[gpu])


def _maximum_flow_to_sinks(
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
    return _compute_maximum_flow(network, start, end)
