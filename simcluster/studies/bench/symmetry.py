"""The equitable partition of a cluster's nodes, so that a question about thousands is answered on a handful.

The classes are the coarsest equitable partition (colour refinement): two nodes share a class only if their links lead,
with equal capacity and latency, to the same classes in the same numbers.  In arrays, because clusters have 10^5 links.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Ints
from simcluster.base.multiset_hash import mixed, numbered
from simcluster.base.runs import begins
from simcluster.topology.links import Graph

LINK_KEYS = ("medium", "line_rate", "efficiency", "bandwidth", "latency", "source")


@dataclass(frozen=True, eq=False, slots=True)
class LinkTable:
    """The directed links of a graph as arrays, in graph order.

    ``start`` and ``end`` are places in ``nodes``; ``sort`` is a place in ``sorts``, the different values of the links'
    attributes (LINK_KEYS).
    """

    nodes: tuple[str, ...]
    start: Ints
    end: Ints
    sort: Ints
    sorts: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, graph: Graph) -> LinkTable:
        """The table of a graph's links."""
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
        """An attribute of every link."""
        place = LINK_KEYS.index(key)
        return np.array([values[place] for values in self.sorts])[self.sort] if self.sorts else np.zeros(0)

    def backward(self) -> Ints:
        """For every link the one between the same nodes the other way, -1 where there is none."""
        size = len(self.nodes)
        there, back = self.start * size + self.end, self.end * size + self.start
        order = np.argsort(there)
        found = order[np.minimum(np.searchsorted(there, back, sorter=order), len(order) - 1)] if len(order) else order
        return np.where(there[found] == back, found, -1)


def node_classes(table: LinkTable, colour: Mapping[str, Hashable]) -> Ints:
    """Class number of every node; nodes of different ``colour`` are never in one class.  Numbered in graph order."""
    classes = _numbered([colour[node] for node in table.nodes])
    kind = _numbered(list(zip(table.values("bandwidth").tolist(), table.values("latency").tolist(), strict=True)))
    here = np.concatenate([table.start, table.end])
    other = np.concatenate([table.end, table.start])
    way = np.concatenate([2 * kind, 2 * kind + 1])
    order = np.argsort(here, kind="stable")
    here, other, way = here[order], other[order], mixed(way[order], 1)
    first = begins(here)
    count = _count(classes)
    while True:
        # the multiset of (link, class at its end)
        around = np.zeros(len(table.nodes), dtype=np.uint64)
        if len(first):
            around[here[first]] = np.add.reduceat(mixed(way ^ mixed(classes[other])), first)
        finer, _ = numbered(mixed(around) ^ mixed(classes, 1))
        finer_count = _count(finer)
        if finer_count == count:
            return classes
        classes, count = finer, finer_count


def maximum_flows(graph: Graph, side: Mapping[str, int], table: LinkTable | None = None) -> tuple[float, float]:
    """Most B/s from all nodes with ``side`` 0 to all with ``side`` 1, and back; the other nodes pass on what they get.

    Computed between classes, with their links added up.  That is exact: by equitability a flow between classes spreads
    over their links in proportion to capacity and is conserved at every node.
    """
    table = table or LinkTable.of(graph)
    classes = node_classes(table, {node: (data["kind"], side.get(node)) for node, data in graph.nodes(data=True)})
    size = _count(classes)
    codes, link = np.unique(classes[table.start] * size + classes[table.end], return_inverse=True)
    capacities = np.bincount(link, weights=table.values("bandwidth")) if len(codes) else np.zeros(0)
    quotient: nx.DiGraph[int] = nx.DiGraph()
    quotient.add_nodes_from(range(size))
    for code, capacity in zip(codes.tolist(), capacities.tolist(), strict=True):
        if code // size != code % size:
            quotient.add_edge(code // size, code % size, capacity=capacity)
    class_of = dict(zip(table.nodes, classes.tolist(), strict=True))
    sides = [sorted({class_of[node] for node, end in side.items() if end == wanted}) for wanted in (0, 1)]
    return _flow(quotient, sides[0], sides[1]), _flow(quotient, sides[1], sides[0])


def _flow(network: nx.DiGraph[int], sources: Iterable[int], sinks: Iterable[int]) -> float:
    joined = network.copy()
    start, end = -1, -2  # classes are numbered from 0
    joined.add_nodes_from((start, end))
    joined.add_edges_from((start, source) for source in sources)  # no capacity: unlimited
    joined.add_edges_from((sink, end) for sink in sinks)
    # augmenting paths: on a few dozen classes quick, and exact enough with floats
    return float(nx.maximum_flow_value(joined, start, end, flow_func=nx.algorithms.flow.edmonds_karp))


def _count(classes: Ints) -> int:
    return int(classes.max()) + 1 if len(classes) else 0


def _numbered(labels: Iterable[Hashable]) -> Ints:
    """Numbers of labels, by first appearance."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)
