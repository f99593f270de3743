"""Measurement of a cluster's bandwidths and routes for its topology report; equivalent GPUs are measured once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import networkx as nx
import numpy as np

from simcluster.base.progress import check_estimated_time, format_rough_duration, report_estimate
from simcluster.collectives.description import Hop
from simcluster.studies.bench import equivalence_classes
from simcluster.studies.bench.equivalence_classes import LINK_KEYS, LinkTable, compute_maximum_flows, find_node_classes
from simcluster.studies.bench.topology_report import LinkGroup, NetworkReport, RingReport, TopologyReport
from simcluster.topology.cluster import Cluster
from simcluster.topology.links import COMPUTE, Graph, collective_network, node_label, other_network_names, switch_levels
from simcluster.traffic.fairness import solo_rate
from simcluster.traffic.traffic import find_group_rings, hop_link_fractions, sum_usage

_SECONDS_PER_GPU = 1.3e-4
"""Seconds per GPU for its nodes, links and routes (80,000 of them on rails: 10 s)."""


def measure_cluster(cluster: Cluster) -> TopologyReport:
    """Return the topology report of a cluster: device counts, bandwidths, bisection, longest route.

    InputError for a cluster so large that it would take too long.
    """
    estimate = _SECONDS_PER_GPU * cluster.num_gpus
    duration = format_rough_duration(estimate)
    what = f"cluster {cluster.name}: it would take about {duration} to describe its {cluster.num_gpus:,} GPUs"
    check_estimated_time(estimate, what, "describe fewer nodes of the same kind")
    report_estimate(cluster.name, estimate)
    graph = collective_network(cluster.graph)
    table = LinkTable.from_graph(graph)
    labels = {node: node_label(graph, node) for node in graph}
    class_of = find_node_classes(table, {node: data["kind"] for node, data in graph.nodes(data=True)}).tolist()
    by_node = dict(zip(table.nodes, class_of, strict=True))
    classes = [by_node[gpu] for gpu in cluster.gpus]
    found = equivalence_classes.find_representative_gpus(cluster, classes)
    leaf_of = equivalence_classes.leaf_switch_set_ids(cluster, graph)
    hops, seconds = equivalence_classes.find_longest_route(cluster, found, classes, leaf_of)
    ports = [equivalence_classes.count_nic_ports(cluster, graph, place) for place in found]
    outside = [equivalence_classes.measure_bandwidth_out_of_node(cluster, graph, place) for place in found]
    machines = len(equivalence_classes.list_gpus_by_node(cluster))
    device = cluster.device if isinstance(cluster.device, str) else str(cluster.device.get("name", "described inline"))
    return TopologyReport(
        name=cluster.name,
        device=device,
        gpus=cluster.num_gpus,
        machines=machines,
        nodes=_count_devices_by_kind(graph),
        links=_group_equal_links(table, labels),
        nics=max(ports),
        nics_per_gpu=max(count / len(place.node_gpus) for count, place in zip(ports, found, strict=True)),
        rails=max(len(equivalence_classes.find_leaf_switches(cluster, graph, place.node_gpus)) for place in found),
        inside=min(equivalence_classes.measure_bandwidth_inside_node(cluster, graph, place) for place in found),
        outside=min(alone for alone, _ in outside),
        outside_shared=min(min(both) for both in outside),
        way_out=_list_links_between_nodes(cluster, labels),
        bisection=_measure_bisection(cluster, graph, table),
        oversubscription=_measure_oversubscription(graph),
        longest_hops=hops,
        longest_latency=seconds,
        all_reduce=_measure_ring_all_reduce(cluster, classes, leaf_of, labels),
        networks=tuple(_measure_network(cluster.graph, name, machines) for name in other_network_names(cluster.graph)),
    )


def _measure_ring_all_reduce(
    cluster: Cluster, classes: Sequence[int], leaf_of: Sequence[int], label: Mapping[str, str]
) -> RingReport | None:
    gpus = range(cluster.num_gpus)
    if len(gpus) < 2:
        return None
    kinds: dict[tuple[int, ...], int] = {}  # the first node of every kind
    for machine, own in equivalence_classes.list_gpus_by_node(cluster).items():
        kinds.setdefault(tuple(classes[gpu] for gpu in own), machine)
    rings, host, leaf = find_group_rings(cluster, gpus), np.array(cluster.host_of), np.array(leaf_of)
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
            spreads.append(hop_link_fractions(cluster, gpus, Hop(source, target, 1.0, relay, channel)))
    usage = sum_usage((1.0, spread) for spread in spreads)
    flows = dict(usage)
    rate = float(solo_rate(usage, cluster.capacity))  # type: ignore[arg-type]  # an array is indexed as a sequence is
    tight = min(flows, key=lambda link: (cluster.capacity[link] / flows[link], link))
    a, b = cluster.links[tight]
    return RingReport(busbw=len(rings) * rate, channels=len(rings), rate=rate, limit=f"{label[a]} - {label[b]}")


# --- counts ---------------------------------------------------------------------------------------------------------


def _count_devices_by_kind(graph: Graph) -> tuple[tuple[str, int], ...]:
    kinds = (
        f"{data['tier']} switch" if data["kind"] == "switch" else str(data["kind"])
        for _, data in graph.nodes(data=True)
    )
    return tuple(Counter(kinds).items())


def _group_equal_links(table: LinkTable, labels: Mapping[str, str]) -> tuple[LinkGroup, ...]:
    if not len(table.start):
        return ()
    names = list(dict.fromkeys(labels[node] for node in table.nodes))
    number = {name: i for i, name in enumerate(names)}
    label_of = np.array([number[labels[node]] for node in table.nodes])
    back = table.find_reverse_links()
    two_way = (back >= 0) & (table.kind[back] == table.kind)
    first, second = label_of[table.start], label_of[table.end]
    swap = two_way & (first > second)
    low, high = np.where(swap, second, first), np.where(swap, first, second)
    codes = ((low * len(names) + high) * 2 + two_way) * len(table.kinds) + table.kind
    _, example, count = np.unique(codes, return_index=True, return_counts=True)
    groups = []
    for i in np.argsort(example).tolist():
        link = int(example[i])
        both = bool(two_way[link])
        ends = f"{names[low[link]]} {'-' if both else '>'} {names[high[link]]}"
        values = dict(zip(LINK_KEYS, table.kinds[table.kind[link]], strict=True))
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


def _list_links_between_nodes(cluster: Cluster, labels: Mapping[str, str]) -> tuple[tuple[str, float], ...]:
    first, *_, last = [0, *(mates[0] for mates in equivalence_classes.list_gpus_by_node(cluster).values())]
    way = [(cluster.links[link], float(cluster.capacity[link])) for link in cluster.route(first, last)]
    there = way[: -(-len(way) // 2)]
    back = [((b, a), rate) for (a, b), rate in reversed(way)]
    ends = [(f"{labels[a]} - {labels[b]}", rate) for (a, b), rate in [*there, *back[: len(way) // 2]]]
    return tuple(dict.fromkeys(ends))


# --- bandwidths -----------------------------------------------------------------------------------------------------


def _measure_bisection(cluster: Cluster, graph: Graph, table: LinkTable | None) -> float:
    mates = list(equivalence_classes.list_gpus_by_node(cluster).values())
    groups = mates if len(mates) > 1 else [[gpu] for gpu in range(cluster.num_gpus)]
    if len(groups) == 1:
        return 0.0
    if len(mates) == 1:  # traffic between GPUs of one node stays inside
        graph, table = _subgraph_inside_node(graph, cluster.gpus), None
    side = {cluster.gpus[gpu]: int(i >= len(groups) // 2) for i, group in enumerate(groups) for gpu in group}
    return min(compute_maximum_flows(graph, side, table))


def _subgraph_inside_node(graph: Graph, gpus: Iterable[str]) -> Graph:
    way = ["gpu", "nvswitch"]
    if not all(equivalence_classes.has_nvlink(graph, gpu) for gpu in gpus):
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
        nodes=_count_devices_by_kind(part),
        links=_group_equal_links(table, {node: node_label(near, node) for node in near}),
        per_machine=out / machines,
        bisection=min(compute_maximum_flows(part, side)) if len(nics) > 1 else 0.0,
        oversubscription=_measure_oversubscription(part),
    )


def _subgraph(graph: Graph, nodes: Iterable[str]) -> Graph:
    wanted = frozenset(nodes)
    part: Graph = nx.DiGraph()
    part.add_nodes_from((node, data) for node, data in graph.nodes(data=True) if node in wanted)
    part.add_edges_from((a, b, data) for a in part for b, data in graph.adj[a].items() if b in wanted)
    return part
