"""Where a cluster's names, links and routes come from: a graph, or a draft of which a graph is made when needed."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.topology.draft import Draft
from simcluster.topology.links import Graph, compute_part
from simcluster.topology.paths import Paths
from simcluster.topology.policies import RoutingSpec
from simcluster.topology.regular import Regular
from simcluster.topology.routing import Router, Spread


class Wired:
    """A graph that is there."""

    regular: Regular | None = None

    def __init__(self, graph: Graph, gpus: tuple[str, ...], routing: RoutingSpec) -> None:
        self.graph, self.gpus = graph, gpus
        self.links = tuple(graph.edges)
        self.link_index = {link: number for number, link in enumerate(self.links)}
        self.capacity, self.latency = (
            _constant(np.fromiter((data[key] for *_, data in graph.edges(data=True)), np.float64, len(self.links)))
            for key in ("bandwidth", "latency")
        )
        self.router = Router(compute_part(graph), gpus, self.link_index, routing)

    def has(self, node: str) -> bool:
        """Is there such a node?"""
        return node in self.graph

    @property
    def paths(self) -> Paths:
        """Routes of many flows."""
        return self.router.paths


class Drafted:
    """What has been drafted; its graph is made when it is needed."""

    def __init__(self, draft: Draft, routing: RoutingSpec) -> None:
        self._draft, self._routing = draft, routing
        sort = draft.came[2][draft.order]
        self.capacity, self.latency = (
            _constant(np.array([data[key] for data in draft.sorts], dtype=np.float64)[sort])
            for key in ("bandwidth", "latency")
        )
        self.regular = Regular.of(draft, routing, self._spread)

    def _spread(self, src: int, dst: int, number: int) -> Spread:
        return self.router.spread(src, dst, number)

    @property
    def paths(self) -> Paths:
        """Routes of many flows, in closed form."""
        assert self.regular is not None
        return self.regular.paths

    def has(self, node: str) -> bool:
        """Is there such a node?"""
        return node in self._names

    @cached_property
    def graph(self) -> Graph:
        """All nodes and links."""
        return self._draft.graph()

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs."""
        return tuple(self._draft.gpu_names())

    @cached_property
    def links(self) -> tuple[tuple[str, str], ...]:
        """The nodes that each link leads from and to."""
        names, (start, end, _) = list(self._names), self._draft.came
        order = self._draft.order
        pairs = zip(start[order].tolist(), end[order].tolist(), strict=True)
        return tuple([(names[a], names[b]) for a, b in pairs])

    @cached_property
    def link_index(self) -> dict[tuple[str, str], int]:
        """The number of a link by its nodes."""
        return {link: number for number, link in enumerate(self.links)}

    @cached_property
    def router(self) -> Router:
        """Routes of single flows, on the graph."""
        return Router(self.graph, self.gpus, self.link_index, self._routing)

    @cached_property
    def _names(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._draft.names())}


def _constant(values: Floats) -> Floats:
    """They are shared between variants of a cluster."""
    values.flags.writeable = False
    return values
