"""Classes of GPUs that nothing tells apart: what one GPU of each class can reach, and how fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import networkx as nx

from simcluster.topology.cluster import Cluster
from simcluster.topology.links import Graph


@dataclass(frozen=True, slots=True)
class GpuClass:
    """A GPU that stands for all in its place, and the GPUs of its machine, itself included (numbers)."""

    gpu: int
    machine: tuple[int, ...]


def machines(cluster: Cluster) -> dict[int, list[int]]:
    """GPUs by machine, both by number."""
    mates: dict[int, list[int]] = {}
    for gpu, host in enumerate(cluster.host_of):
        mates.setdefault(host, []).append(gpu)
    return mates


def places(cluster: Cluster, classes: Sequence[int]) -> list[GpuClass]:
    """The first GPU of every class; ``classes`` are the GPUs'."""
    mates = machines(cluster)
    first: dict[int, int] = {}
    for gpu, of_gpu in enumerate(classes):
        first.setdefault(of_gpu, gpu)
    return [GpuClass(gpu, tuple(mates[cluster.host_of[gpu]])) for gpu in first.values()]


# --- ports and routes -----------------------------------------------------------------------------------------------


def nic_ports(cluster: Cluster, graph: Graph, place: GpuClass) -> int:
    """NIC ports of the place's machine; a NIC that stands for several counts as those."""
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


def leaves(cluster: Cluster, graph: Graph, gpus: Iterable[int]) -> list[str]:
    """Switches that the GPUs' nearest NICs are linked to, in order."""
    exits = dict.fromkeys(node for gpu in gpus for node in cluster.uplinks(gpu))
    return list(dict.fromkeys(s for node in exits for s in graph.adj[node] if graph.nodes[s]["kind"] == "switch"))


def leaf_numbers(cluster: Cluster, graph: Graph) -> list[int]:
    """For every GPU a number for the set of switches that its nearest NICs are linked to."""
    numbers: dict[tuple[str, ...], int] = {}
    return [numbers.setdefault(tuple(leaves(cluster, graph, [gpu])), len(numbers)) for gpu in range(cluster.num_gpus)]


def longest_routes(
    cluster: Cluster, found: Iterable[GpuClass], classes: Sequence[int], leaf_of: Sequence[int]
) -> tuple[int, float]:
    """Hops and seconds of the longest routes from each place to its machine and to every class at every leaf.

    For each class and leaf the first GPU and the last are tried, so that one is in another machine if any is.
    """
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    for gpu, key in enumerate(zip(classes, leaf_of, strict=True)):
        first.setdefault(key, gpu)
        last[key] = gpu
    routes = {
        cluster.route(place.gpu, dst): None
        for place in found
        for dst in (*first.values(), *last.values(), *place.machine)
    }
    return max(map(len, routes)), max(cluster.path_latency(route) for route in routes)


# --- bandwidths -----------------------------------------------------------------------------------------------------


def inside(cluster: Cluster, graph: Graph, place: GpuClass) -> float:
    """B/s from the GPU to the others of its machine together; over NVLink alone where it has NVLink."""
    name = cluster.gpus[place.gpu]
    others = frozenset(cluster.gpus[gpu] for gpu in place.machine) - {name}
    shut = ("pcie", "host", "nic") if has_nvlink(graph, name) else ("nic",)
    return _flow(graph, [name], others.__contains__, lambda node: graph.nodes[node]["kind"] not in shut)


def outside(cluster: Cluster, graph: Graph, place: GpuClass) -> tuple[float, float]:
    """B/s of the GPU out of its machine by the NICs nearest to it: alone, and when all of the machine send."""
    own = frozenset(cluster.uplinks(place.gpu))
    all_own = frozenset(node for gpu in place.machine for node in cluster.uplinks(gpu))
    shared = [cluster.gpus[gpu] for gpu in place.machine]
    alone = _flow(graph, [cluster.gpus[place.gpu]], *_through(graph, own))
    return alone, _flow(graph, shared, *_through(graph, all_own)) / len(shared)


def has_nvlink(graph: Graph, gpu: str) -> bool:
    """Whether the GPU is linked to an NVSwitch or to another GPU."""
    return any(graph.nodes[other]["kind"] in ("gpu", "nvswitch") for other in graph.adj[gpu])


def _through(graph: Graph, nics: frozenset[str]) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
    """A flow to the switches, past no other NICs than these."""

    def is_switch(node: str) -> bool:
        return bool(graph.nodes[node]["kind"] == "switch")

    return is_switch, lambda node: graph.nodes[node]["kind"] != "nic" or node in nics


def _flow(graph: Graph, sources: Iterable[str], is_sink: Callable[[str], bool], passes: Callable[[str], bool]) -> float:
    """Most B/s from the sources to all sinks together, as routes go: not by other GPUs or back out of a NIC."""
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
    return float(nx.maximum_flow_value(network, start, end, flow_func=nx.algorithms.flow.edmonds_karp))
