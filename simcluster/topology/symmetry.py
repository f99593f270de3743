"""Nodes of a cluster that nothing tells apart, so that a question about thousands is answered on a handful.

The classes are the coarsest equitable partition (colour refinement): two nodes share a class only if their links lead,
with equal capacity and latency, to the same classes in the same numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import networkx as nx

from simcluster.topology.links import Graph


def node_classes(graph: Graph, colour: Mapping[str, Hashable]) -> dict[str, int]:
    """Class number of every node; nodes of different ``colour`` are never in one class.  Numbered in graph order."""
    kinds: dict[tuple[float, float], int] = {}
    around: dict[str, list[tuple[int, str]]] = {node: [] for node in graph}
    for a, b, data in graph.edges(data=True):
        kind = kinds.setdefault((data["bandwidth"], data["latency"]), len(kinds))
        around[a].append((2 * kind, b))
        around[b].append((2 * kind + 1, a))
    classes = _numbered({node: colour[node] for node in graph})
    count = len(set(classes.values()))
    while True:
        finer = _numbered(
            {
                node: (classes[node], tuple(sorted((kind, classes[other]) for kind, other in links)))
                for node, links in around.items()
            }
        )
        finer_count = max(finer.values()) + 1
        if finer_count == count:
            return classes
        classes, count = finer, finer_count


def maximum_flows(graph: Graph, side: Mapping[str, int]) -> tuple[float, float]:
    """Most B/s from all nodes with ``side`` 0 to all with ``side`` 1, and back; the other nodes pass on what they get.

    Computed between classes, with their links added up.  That is exact: by equitability a flow between classes spreads
    over their links in proportion to capacity and is conserved at every node.
    """
    classes = node_classes(graph, {node: (data["kind"], side.get(node)) for node, data in graph.nodes(data=True)})
    quotient: nx.DiGraph[int] = nx.DiGraph()
    for a, b, data in graph.edges(data=True):
        u, v = classes[a], classes[b]
        if u != v:
            have = quotient[u][v]["capacity"] if quotient.has_edge(u, v) else 0.0
            quotient.add_edge(u, v, capacity=have + data["bandwidth"])
    sides = [sorted({classes[node] for node, end in side.items() if end == wanted}) for wanted in (0, 1)]
    return _flow(quotient, sides[0], sides[1]), _flow(quotient, sides[1], sides[0])


def _flow(network: nx.DiGraph[int], sources: Iterable[int], sinks: Iterable[int]) -> float:
    joined = network.copy()
    start, end = -1, -2  # classes are numbered from 0
    joined.add_nodes_from((start, end))
    joined.add_edges_from((start, source) for source in sources)  # no capacity: unlimited
    joined.add_edges_from((sink, end) for sink in sinks)
    # augmenting paths: on a few dozen classes quick, and exact enough with floats
    return float(nx.maximum_flow_value(joined, start, end, flow_func=nx.algorithms.flow.edmonds_karp))


def _numbered(labels: Mapping[str, Hashable]) -> dict[str, int]:
    numbers: dict[Hashable, int] = {}
    return {node: numbers.setdefault(label, len(numbers)) for node, label in labels.items()}
