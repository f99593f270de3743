"""What a topology file says of a link, and how links and nodes enter the graph.

Line rate (what the standard says) and efficiency (what payload gets of it) are kept apart, each with its source, so
that nobody has to guess what a bandwidth already contains.  Imports ``spec`` and ``units``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias

import networkx as nx
from pydantic import Field

from simcluster.spec import Spec
from simcluster.units import BytesPerSecond, Seconds

Count: TypeAlias = Annotated[int, Field(strict=True, ge=1)]
Fraction: TypeAlias = Annotated[float, Field(strict=True, gt=0, le=1)]
Name: TypeAlias = Annotated[str, Field(min_length=1)]
Graph: TypeAlias = "nx.DiGraph[str]"
EdgeData: TypeAlias = dict[str, Any]


class RateSpec(Spec):
    """The speed of one direction of a cable or trace: payload gets ``line_rate`` x ``efficiency``."""

    line_rate: BytesPerSecond
    efficiency: Fraction = 1.0
    source: str = ""
    medium: Name | None = None  # nvlink, pcie, infiniband, ethernet, ...; the builder knows what is usual

    def edge(self, medium: str, latency: float) -> EdgeData:
        """Edge attributes of one direction, with ``latency`` seconds."""
        return edge_data(self.line_rate, self.efficiency, latency, self.source, self.medium or medium)


class LinkSpec(RateSpec):
    """A link with its own latency: what the first byte needs from one end to the other."""

    latency: Seconds

    def link(self, medium: str) -> EdgeData:
        """Edge attributes of one direction."""
        return self.edge(medium, self.latency)


def edge_data(line_rate: float, efficiency: float, latency: float, source: str, medium: str) -> EdgeData:
    """Attributes of a directed edge, as listed in ``cluster``."""
    return {
        "line_rate": line_rate,
        "efficiency": efficiency,
        "bandwidth": line_rate * efficiency,
        "latency": latency,
        "source": source,
        "medium": medium,
    }


def add_gpus(graph: Graph, placed: Iterable[tuple[str, int, int]]) -> None:
    """GPUs given as (name, host, index in the host)."""
    graph.add_nodes_from((name, {"kind": "gpu", "host": host, "local": local}) for name, host, local in placed)


def add_switches(graph: Graph, names: Iterable[str], tier: str) -> None:
    """Fabric switches of one tier."""
    graph.add_nodes_from(names, kind="switch", tier=tier)


def connect(graph: Graph, pairs: Iterable[tuple[str, str]], data: EdgeData) -> None:
    """Full-duplex links between the pairs: one edge each way with the same attributes."""
    graph.add_edges_from((edge for a, b in pairs for edge in ((a, b), (b, a))), **data)
