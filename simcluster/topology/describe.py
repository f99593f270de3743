"""What a cluster is, in numbers for people: counts, bandwidths inside and out of machines, bisection, longest path."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import networkx as nx

from simcluster.topology.cluster import Cluster
from simcluster.topology.links import Graph
from simcluster.topology.symmetry import maximum_flows, node_classes
from simcluster.units import format_bytes_per_second, format_seconds

_LINK_KEYS = ("medium", "line_rate", "efficiency", "bandwidth", "latency", "source")


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """Links that are alike: ``count`` of them each way (or one way only), B/s per direction, ``latency`` in seconds."""

    ends: str
    medium: str
    count: int
    one_way: bool
    line_rate: float
    efficiency: float
    bandwidth: float
    latency: float
    source: str


@dataclass(frozen=True, slots=True)
class TopologyReport:
    """A cluster in numbers (B/s and s).

    * ``inside``: what one GPU can send to the others of its machine (0 if it is alone); ``outside``: what it can send
      out of the machine when the others are silent, ``outside_shared`` when all of them send.  The least of all GPUs.
    * ``bisection``: the maximum flow from the first half of the machines (of the GPUs, if there is one machine) to the
      rest, in placement order, in the weaker direction.
    * ``oversubscription``: for each tier with another above it, line rate down over line rate up, of its worst switch.
    * ``longest_hops``, ``longest_latency``: of the routes from one GPU of each kind of place.
    """

    name: str
    device: str
    gpus: int
    machines: int
    nodes: tuple[tuple[str, int], ...]
    links: tuple[LinkGroup, ...]
    inside: float
    outside: float
    outside_shared: float
    bisection: float
    oversubscription: tuple[tuple[str, float], ...]
    longest_hops: int
    longest_latency: float

    def lines(self) -> list[str]:
        """The report as ``simcluster topology`` prints it."""
        rate = format_bytes_per_second
        lines = [f"{self.name}: {_gpus(self)}", "nodes        " + ", ".join(f"{n:,} {kind}" for kind, n in self.nodes)]
        width = max((len(group.ends) for group in self.links), default=0)
        for i, g in enumerate(self.links):
            line = f" = {rate(g.line_rate)} x {g.efficiency:g}" if g.efficiency < 1 else ""
            head = "links" if i == 0 else ""
            ways = "one way" if g.one_way else "each way"
            text = f"{g.count:,} x {rate(g.bandwidth)} {ways}{line}, {format_seconds(g.latency)}, {g.medium}"
            lines.append(f"{head:<13}{g.ends:<{width}}  {text}")
        none = "alone in its machine" if self.gpus == self.machines else "no link inside its machine"
        inside = f"{rate(self.inside)} to the others of its machine" if self.inside else none
        lines.append(f"per GPU      {inside}")
        if self.outside:
            shared = f"{rate(self.outside_shared)} when all of the machine send"
            lines.append(f"             {rate(self.outside)} out of it; {shared}")
        if self.gpus > 1:
            count, of = (self.machines, "machine") if self.machines > 1 else (self.gpus, "GPU")
            halves = f"{count // 2:,} {of}{'s' if count > 3 else ''} to the other {count - count // 2:,}"
            lines.append(f"bisection    {rate(self.bisection)} from {halves}")
        lines += [
            f"{tier + ' switch':<13}{ratio:.3g}:1 oversubscribed"
            if ratio > 1
            else f"{tier + ' switch':<13}not oversubscribed ({ratio:.3g}:1)"
            for tier, ratio in self.oversubscription
        ]
        lines.append(f"longest path {self.longest_hops} links, {format_seconds(self.longest_latency)}")
        return lines + self._source_lines()

    def _source_lines(self) -> list[str]:
        by_text: dict[str, list[str]] = {}
        for group in self.links:
            if group.source:
                by_text.setdefault(group.source, []).append(group.ends)
        lines: list[str] = []
        for text, ends in by_text.items():
            head = "" if lines else "sources"
            source = f"{', '.join(dict.fromkeys(ends))}: {text}"
            lines += textwrap.wrap(source, 118, initial_indent=f"{head:<13}", subsequent_indent=" " * 15)
        return lines

    def format(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines())


def describe(cluster: Cluster) -> TopologyReport:
    """The report of a cluster; each kind of place is looked at once, however many GPUs share it."""
    graph = cluster.graph
    classes = node_classes(graph, {node: data["kind"] for node, data in graph.nodes(data=True)})
    examples = list({classes[gpu]: i for i, gpu in reversed(list(enumerate(cluster.gpus)))}.values())
    mates = _machines(cluster)
    hops, seconds = _longest(cluster, examples)
    alone, shared, inside = [], [], []
    for gpu in examples:
        name, machine = cluster.gpus[gpu], mates[cluster.host_of[gpu]]
        others = frozenset(machine) - {name}
        inside.append(_flow(graph, [name], others.__contains__))
        alone.append(_flow(graph, [name], lambda node: graph.nodes[node]["kind"] == "switch"))
        shared.append(_flow(graph, machine, lambda node: graph.nodes[node]["kind"] == "switch") / len(machine))
    device = cluster.device if isinstance(cluster.device, str) else str(cluster.device.get("name", "described inline"))
    return TopologyReport(
        name=cluster.name,
        device=device,
        gpus=len(cluster.gpus),
        machines=len(mates),
        nodes=_count_nodes(graph),
        links=_link_groups(graph),
        inside=min(inside),
        outside=min(alone),
        outside_shared=min(shared),
        bisection=bisection_bandwidth(cluster),
        oversubscription=_oversubscription(graph),
        longest_hops=hops,
        longest_latency=seconds,
    )


def bisection_bandwidth(cluster: Cluster) -> float:
    """B/s between two halves of the cluster; see ``TopologyReport.bisection``.  0 for a single GPU."""
    mates = list(_machines(cluster).values())
    groups = mates if len(mates) > 1 else [[gpu] for gpu in cluster.gpus]
    if len(groups) == 1:
        return 0.0
    side = {gpu: int(i >= len(groups) // 2) for i, group in enumerate(groups) for gpu in group}
    return min(maximum_flows(cluster.graph, side))


def label(graph: Graph, node: str) -> str:
    """What a node is called in a report: its kind, or for a switch its tier."""
    data = graph.nodes[node]
    return str(data["tier"]) if data["kind"] == "switch" else str(data["kind"])


def switch_levels(graph: Graph) -> dict[str, int]:
    """Level of every switch: 1 if a machine is linked to it, else one more than the lowest switch that is."""
    switches = [node for node, data in graph.nodes(data=True) if data["kind"] == "switch"]
    among = set(switches)
    frontier = [s for s in switches if any(other not in among for other in graph.pred[s])]
    level = dict.fromkeys(frontier, 1)
    while frontier:
        reached = [other for node in frontier for other in graph.adj[node] if other in among and other not in level]
        frontier = list(dict.fromkeys(reached))
        level.update(dict.fromkeys(frontier, max(level.values(), default=0) + 1))
    return level


def _gpus(report: TopologyReport) -> str:
    each = report.gpus / report.machines
    size = (
        "" if report.gpus == report.machines else f" of {each:g}" if each == int(each) else f", {each:.3g} on average"
    )
    machines = f"{report.machines:,} machine{'s' if report.machines > 1 else ''}"
    return f"{report.gpus:,} GPU{'s' if report.gpus > 1 else ''} ({report.device}) in {machines}{size}"


def _machines(cluster: Cluster) -> dict[int, list[str]]:
    mates: dict[int, list[str]] = {}
    for gpu, host in zip(cluster.gpus, cluster.host_of, strict=True):
        mates.setdefault(host, []).append(gpu)
    return mates


def _count_nodes(graph: Graph) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for _, data in graph.nodes(data=True):
        name = f"{data['tier']} switch" if data["kind"] == "switch" else str(data["kind"])
        counts[name] = counts.get(name, 0) + 1
    return tuple(counts.items())


def _link_groups(graph: Graph) -> tuple[LinkGroup, ...]:
    """Groups in graph order; a link and its like in the other direction count once."""
    labels = {node: label(graph, node) for node in graph}
    counts: dict[tuple[str, bool, tuple[object, ...]], int] = {}
    examples: dict[tuple[str, bool, tuple[object, ...]], dict[str, Any]] = {}
    for a, b, data in graph.edges(data=True):
        back = graph.adj[b].get(a)
        first, second = labels[a], labels[b]
        two_way = back is not None and all(back[key] == data[key] for key in _LINK_KEYS)
        if two_way and (f"{second} - {first}", False, tuple(data[key] for key in _LINK_KEYS)) in counts:
            first, second = second, first
        key = (f"{first} {'-' if two_way else '>'} {second}", not two_way, tuple(data[key] for key in _LINK_KEYS))
        counts[key] = counts.get(key, 0) + 1
        examples.setdefault(key, data)
    return tuple(
        LinkGroup(ends=key[0], one_way=key[1], count=n if key[1] else n // 2, **examples[key])
        for key, n in counts.items()
    )


def _oversubscription(graph: Graph) -> tuple[tuple[str, float], ...]:
    level = switch_levels(graph)
    worst: dict[str, float] = {}
    for switch, height in level.items():
        up = down = 0.0
        for other, data in graph.adj[switch].items():
            if level.get(other, 0) > height:
                up += data["line_rate"]
            elif level.get(other, 0) < height:
                down += data["line_rate"]
        if up:
            tier = label(graph, switch)
            worst[tier] = max(down / up, worst.get(tier, 0.0))
    return tuple(worst.items())


def _longest(cluster: Cluster, examples: Iterable[int]) -> tuple[int, float]:
    routes = [cluster.route(src, dst) for src in examples for dst in range(len(cluster.gpus))]
    seconds = max(cluster.path_latency(route) for route in set(routes))
    return max(map(len, routes)), seconds


def _flow(graph: Graph, sources: Iterable[str], is_sink: Callable[[str], bool]) -> float:
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
            if turns_back or (not sink and kind in ("gpu", "switch")):
                continue
            target = end if sink else other
            have = network[node][target]["capacity"] if network.has_edge(node, target) else 0.0
            network.add_edge(node, target, capacity=have + data["bandwidth"])
            if not sink and other not in seen:
                seen.add(other)
                stack.append(other)
    return float(nx.maximum_flow_value(network, start, end, flow_func=nx.algorithms.flow.edmonds_karp))
