"""Measurement of a cluster for its topology report; equivalent GPUs are measured once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import networkx as nx
import numpy as np

from simcluster.base.telling import report_estimate, require_time_limit, rough_duration
from simcluster.collectives.description import Hop
from simcluster.studies.bench import places
from simcluster.studies.bench.places import LINK_KEYS, LinkTable, maximum_flows, node_classes
from simcluster.studies.bench.report import LinkGroup, NetworkReport, RingReport, TopologyReport
from simcluster.topology.cluster import Cluster
from simcluster.topology.links import COMPUTE, Graph, compute_part, network_names, node_label, switch_levels
from simcluster.traffic.fairness import solo_rate
from simcluster.traffic.traffic import group_rings, hop_spread, sum_usage

_SECONDS_PER_GPU = 1.3e-4
"""Seconds per GPU for its nodes, links and routes (80,000 of them on rails: 10 s)."""


def measure_cluster(cluster: Cluster) -> TopologyReport:
    """Measure a cluster: counts, bandwidths, bisection, longest route; return its topology report.

    InputError for a cluster so large that it would take too long.
    """
    estimate = _SECONDS_PER_GPU * cluster.num_gpus
    what = (
        f"cluster {cluster.name}: its {cluster.num_gpus:,} GPUs would take about {rough_duration(estimate)} to describe"
    )
    require_time_limit(estimate, what, "describe fewer nodes of the same kind")
    report_estimate(cluster.name, estimate)
    graph = compute_part(cluster.graph)
    table = LinkTable.from_graph(graph)
    labels = {node: node_label(graph, node) for node in graph}
    class_of = node_classes(table, {node: data["kind"] for node, data in graph.nodes(data=True)}).tolist()
    by_node = dict(zip(table.nodes, class_of, strict=True))
    classes = [by_node[gpu] for gpu in cluster.gpus]
    found = places.representative_gpus(cluster, classes)
    leaf_of = places.number_leaf_sets(cluster, graph)
    hops, seconds = places.find_longest_route(cluster, found, classes, leaf_of)
    ports = [places.count_nic_ports(cluster, graph, place) for place in found]
    outside = [places.bandwidth_out_of_node(cluster, graph, place) for place in found]
    num_machines = len(places.gpus_by_node(cluster))
    device = cluster.device if isinstance(cluster.device, str) else str(cluster.device.get("name", "described inline"))
    return TopologyReport(
        name=cluster.name,
        device=device,
        gpus=cluster.num_gpus,
        machines=num_machines,
        nodes=_count_nodes(graph),
        links=_link_groups(table, labels),
        nics=max(ports),
        nics_per_gpu=max(count / len(place.machine) for count, place in zip(ports, found, strict=True)),
        rails=max(len(places.find_leaf_switches(cluster, graph, place.machine)) for place in found),
        inside=min(places.bandwidth_inside_node(cluster, graph, place) for place in found),
        outside=min(alone for alone, _ in outside),
        outside_shared=min(min(both) for both in outside),
        way_out=_find_way_out(cluster, labels),
        bisection=_measure_bisection(cluster, graph, table),
        oversubscription=_measure_oversubscription(graph),
        longest_hops=hops,
        longest_latency=seconds,
        all_reduce=_measure_ring_all_reduce(cluster, classes, leaf_of, labels),
        networks=tuple(_measure_network(cluster.graph, name, num_machines) for name in network_names(cluster.graph)),
    )


def bisection_bandwidth(cluster: Cluster) -> float:
    """Return the bandwidth (B/s) between two halves of the cluster, 0 for a single GPU.

    ``TopologyReport.bisection`` defines the halves.
    """
    return _measure_bisection(cluster, compute_part(cluster.graph), None)


def _measure_ring_all_reduce(
    cluster: Cluster, classes: Sequence[int], leaf_of: Sequence[int], label: Mapping[str, str]
) -> RingReport | None:
    gpus = range(cluster.num_gpus)
    if len(gpus) < 2:
        return None
    kinds: dict[tuple[int, ...], int] = {}  # the first node of every kind
    for machine, own in places.gpus_by_node(cluster).items():
        kinds.setdefault(tuple(classes[gpu] for gpu in own), machine)
    rings, host, leaf = group_rings(cluster, gpus), np.array(cluster.host_of), np.array(leaf_of)
    example = np.zeros(host.max() + 1, dtype=bool)
    example[list(kinds.values())] = True
    spreads = []
    for channel, ring in enumerate(rings):
        order, relays = np.array(ring.order), np.array(ring.relays)
        following = np.roll(order, -1)
        exits = np.where(relays < 0, order, relays)
        beyond = (host[order] != host[following]) & (leaf[exits] != leaf[following])
        wanted = np.flatnonzero(beyond | example[host[order]] | example[host[following]])
        for source, target, relay in zip(*(part[wanted].tolist() for part in (order, following, relays)), strict=True):
            spreads.append(hop_spread(cluster, gpus, Hop(source, target, 1.0, relay, channel)))
    usage = sum_usage((1.0, spread) for spread in spreads)
    flows = dict(usage)
    rate = float(solo_rate(usage, cluster.capacity))  # type: ignore[arg-type]  # an array is indexed as a sequence is
    tight = min(flows, key=lambda link: (cluster.capacity[link] / flows[link], link))
    a, b = cluster.links[tight]
    return RingReport(busbw=len(rings) * rate, channels=len(rings), rate=rate, limit=f"{label[a]} - {label[b]}")


# --- counts ---------------------------------------------------------------------------------------------------------


def _count_nodes(graph: Graph) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for _, data in graph.nodes(data=True):
        name = f"{data['tier']} switch" if data["kind"] == "switch" else str(data["kind"])
        counts[name] = counts.get(name, 0) + 1
    return tuple(counts.items())


def _link_groups(table: LinkTable, labels: Mapping[str, str]) -> tuple[LinkGroup, ...]:
    if not len(table.start):
        return ()
    names = list(dict.fromkeys(labels[node] for node in table.nodes))
    number = {name: i for i, name in enumerate(names)}
    label_of = np.array([number[labels[node]] for node in table.nodes])
    back = table.reverse_links()
    two_way = (back >= 0) & (table.sort[back] == table.sort)
    first, second = label_of[table.start], label_of[table.end]
    swap = two_way & (first > second)
    low, high = np.where(swap, second, first), np.where(swap, first, second)
    codes = ((low * len(names) + high) * 2 + two_way) * len(table.sorts) + table.sort
    _, example, count = np.unique(codes, return_index=True, return_counts=True)
    groups = []
    for i in np.argsort(example).tolist():
        link = int(example[i])
        both = bool(two_way[link])
        ends = f"{names[low[link]]} {'-' if both else '>'} {names[high[link]]}"
        values = dict(zip(LINK_KEYS, table.sorts[table.sort[link]], strict=True))
        groups.append(LinkGroup(ends=ends, one_way=not both, count=int(count[i]) // (2 if both else 1), **values))
    return tuple(groups)


def _measure_oversubscription(graph: Graph) -> tuple[tuple[str, float], ...]:
    level = switch_levels(graph)
    worst: dict[str, float] = {}
    for switch, height in level.items():
        up = down = across = 0.0
        for other, data in graph.adj[switch].items():
            at = level.get(other, 0)
            up += data["line_rate"] if at > height else 0.0
            down += data["line_rate"] if at < height else 0.0
            across += data["line_rate"] if at == height else 0.0
        tier = str(graph.nodes[switch]["tier"])
        for rate, name in ((up, tier), (across, f"{tier} across")):
            if rate:
                worst[name] = max(down / rate, worst.get(name, 0.0))
    return tuple(worst.items())


def _find_way_out(cluster: Cluster, labels: Mapping[str, str]) -> tuple[tuple[str, float], ...]:
    first, *_, last = [0, *(mates[0] for mates in places.gpus_by_node(cluster).values())]
    way = [(cluster.links[link], float(cluster.capacity[link])) for link in cluster.route(first, last)]
    there = way[: -(-len(way) // 2)]
    back = [((b, a), rate) for (a, b), rate in reversed(way)]
    ends = [(f"{labels[a]} - {labels[b]}", rate) for (a, b), rate in [*there, *back[: len(way) // 2]]]
    return tuple(dict.fromkeys(ends))


# --- bandwidths -----------------------------------------------------------------------------------------------------


def _measure_bisection(cluster: Cluster, graph: Graph, table: LinkTable | None) -> float:
    mates = list(places.gpus_by_node(cluster).values())
    groups = mates if len(mates) > 1 else [[gpu] for gpu in range(cluster.num_gpus)]
    if len(groups) == 1:
        return 0.0
    if len(mates) == 1:  # traffic between GPUs of one node stays inside
        graph, table = _node_subgraph(graph, cluster.gpus), None
    side = {cluster.gpus[gpu]: int(i >= len(groups) // 2) for i, group in enumerate(groups) for gpu in group}
    return min(maximum_flows(graph, side, table))


def _node_subgraph(graph: Graph, gpus: Iterable[str]) -> Graph:
    way = ["gpu", "nvswitch"]
    if not all(places.has_nvlink(graph, gpu) for gpu in gpus):
        way += ["pcie", "host", "switch"]  # a switch: GPUs that are ports themselves
    part = graph.copy()
    part.remove_nodes_from([node for node, data in graph.nodes(data=True) if data["kind"] not in way])
    return part


# --- other networks -------------------------------------------------------------------------------------------------


def _measure_network(graph: Graph, name: str, machines: int) -> NetworkReport:
    nodes = [node for node, data in graph.nodes(data=True) if data.get("network", COMPUTE) == name]
    part = _subgraph(graph, nodes)
    nics = [node for node in part if part.nodes[node]["kind"] == "nic"]
    near = _subgraph(graph, [*nodes, *(other for nic in nics for other in graph.adj[nic])])
    near.remove_edges_from([(a, b) for a, b in near.edges if a not in part and b not in part])
    side = {nic: int(i >= len(nics) // 2) for i, nic in enumerate(nics)}
    out = sum(data["bandwidth"] for nic in nics for data in part.adj[nic].values())
    table = LinkTable.from_graph(near)
    return NetworkReport(
        name=name,
        nodes=_count_nodes(part),
        links=_link_groups(table, {node: node_label(near, node) for node in near}),
        per_machine=out / machines,
        bisection=min(maximum_flows(part, side)) if len(nics) > 1 else 0.0,
        oversubscription=_measure_oversubscription(part),
    )


def _subgraph(graph: Graph, nodes: Iterable[str]) -> Graph:
    wanted = frozenset(nodes)
    part: Graph = nx.DiGraph()
    part.add_nodes_from((node, data) for node, data in graph.nodes(data=True) if node in wanted)
    part.add_edges_from((a, b, data) for a in part for b, data in graph.adj[a].items() if b in wanted)
    return part
