"""Links of topology files and graphs, node labels for reports, and levels of switches.

The line rate (by the standard) and the efficiency (the payload's share of it) are kept apart, each with its source, so
that it is clear what a bandwidth already contains. A link of a usual kind is a preset of the catalogue: ``{preset:
ndr}``, with other values written next to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias

import networkx as nx
from pydantic import AfterValidator, Field, model_validator

from simcluster.base.texts import escape_line_breaks
from simcluster.base.units import BytesPerSecond, Seconds
from simcluster.documents.base_spec import Spec
from simcluster.documents.catalogue import load_link_entry

Fraction: TypeAlias = Annotated[float, Field(strict=True, gt=0, le=1)]
Name: TypeAlias = Annotated[str, Field(min_length=1)]
Title: TypeAlias = Annotated[Name, AfterValidator(escape_line_breaks)]
Graph: TypeAlias = "nx.DiGraph[str]"
EdgeData: TypeAlias = dict[str, Any]

COMPUTE = "compute"
"""Name of the network that collectives use; any other name is a separate network."""


class PresetSpec(Spec):
    """Link description in a topology file; its key ``preset`` names a catalogue entry that fills in missing keys."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, document: object) -> object:
        if not isinstance(document, Mapping) or "preset" not in document:
            return document
        written = {key: value for key, value in document.items() if key != "preset"}
        preset = load_link_entry(document["preset"])
        return {key: value for key, value in preset.items() if key in cls.model_fields} | written


class RateSpec(PresetSpec):
    """Bandwidth of a link in one direction, without its latency."""

    line_rate: BytesPerSecond
    """Nominal (specified) rate of one direction of the link."""
    efficiency: Fraction = 1.0
    """Share of the line rate that is available to payload."""
    source: str = ""
    medium: Name | None = None  # nvlink, pcie, infiniband, ethernet, ...; the builder knows what is usual
    """Type of link, such as nvlink, pcie, infiniband or ethernet; default: the usual type between its ends."""

    def edge_attributes(self, medium: str, latency: float) -> EdgeData:
        """Return the graph attributes of one direction of the link; ``latency`` is in seconds."""
        return make_edge_data(self.line_rate, self.efficiency, latency, self.source, self.medium or medium)


class LinkSpec(RateSpec):
    """Link with a bandwidth and a latency."""

    latency: Seconds
    """Latency of the first byte from one end to the other; collectives use NCCL's latencies instead if the platform is
    known (collectives.nccl)."""

    def link_attributes(self, medium: str) -> EdgeData:
        """Return the graph attributes of one direction of the link."""
        return self.edge_attributes(medium, self.latency)


def make_edge_data(line_rate: float, efficiency: float, latency: float, source: str, medium: str) -> EdgeData:
    """Return the attributes of a directed graph edge (the docstring of module ``cluster`` lists them)."""
    return {
        "line_rate": line_rate,
        "efficiency": efficiency,
        "bandwidth": line_rate * efficiency,
        "latency": latency,
        "source": source,
        "medium": medium,
    }


def add_gpus(graph: Graph, placed: Iterable[tuple[str, int, int]]) -> None:
    """Add GPUs to a graph, given as (name, host number, index in the host)."""
    graph.add_nodes_from((name, {"kind": "gpu", "host": host, "local": local}) for name, host, local in placed)


def add_switches(graph: Graph, names: Iterable[str], tier: str, network: str = COMPUTE) -> None:
    """Add fabric switches of one tier to a graph, labelled with their network unless collectives use that network."""
    graph.add_nodes_from(names, kind="switch", tier=tier, **_network_attribute(network))


def add_nics(graph: Graph, names: Iterable[str], ports: int = 1, network: str = COMPUTE) -> None:
    """Add NICs to a graph, each with ``ports`` cables."""
    several = {"ports": ports} if ports > 1 else {}
    graph.add_nodes_from(names, kind="nic", **several, **_network_attribute(network))


def collective_network(graph: Graph) -> Graph:
    """Return the part of the graph that collectives use, without NICs and switches of other networks.

    The graph itself where there is no other network (storage, management).
    """
    others = [node for node, data in graph.nodes(data=True) if data.get("network", COMPUTE) != COMPUTE]
    if not others:
        return graph
    part = graph.copy()
    part.remove_nodes_from(others)
    return part


def connect_pairs(graph: Graph, pairs: Iterable[tuple[str, str]], data: EdgeData) -> None:
    """Add full-duplex links between pairs of nodes: one edge per direction, with equal attributes."""
    graph.add_edges_from((edge for a, b in pairs for edge in ((a, b), (b, a))), **data)


def resource_of_medium(medium: str) -> str:
    """Return the resource that a link of this medium counts as: nvlink, pcie or network."""
    return medium if medium in ("nvlink", "pcie") else "network"


def _network_attribute(network: str) -> dict[str, str]:
    return {} if network == COMPUTE else {"network": network}


def node_label(graph: Graph, node: str) -> str:
    """Return a graph node's label for reports."""
    return label_for_attributes(graph.nodes[node])


def label_for_attributes(data: Mapping[str, Any]) -> str:
    """Return the report label for these node attributes: the network (unless compute), and the kind or tier."""
    name = str(data["tier"]) if data["kind"] == "switch" else str(data["kind"])
    network = data.get("network", COMPUTE)
    return name if network == COMPUTE else f"{network} {name}"


def other_network_names(graph: Graph) -> list[str]:
    """Return the names of networks that collectives do not use, in graph order."""
    names = dict.fromkeys(str(data.get("network", COMPUTE)) for _, data in graph.nodes(data=True))
    return [name for name in names if name != COMPUTE]


def switch_levels(graph: Graph) -> dict[str, int]:
    """Return each switch's level: 1 if linked to a node, else 1 more than the lowest level among its neighbours."""
    switches = [node for node, data in graph.nodes(data=True) if data["kind"] == "switch"]
    among = set(switches)
    frontier = [s for s in switches if any(other not in among for other in graph.pred[s])]
    level = dict.fromkeys(frontier, 1)
    while frontier:
        reached = [other for node in frontier for other in graph.adj[node] if other in among and other not in level]
        frontier = list(dict.fromkeys(reached))
        level.update(dict.fromkeys(frontier, max(level.values(), default=0) + 1))
    return level
