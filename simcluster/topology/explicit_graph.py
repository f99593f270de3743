"""Topology kind ``graph``: a cluster given node by node and link by link."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, assert_never

import networkx as nx
from pydantic import Field, model_validator

from simcluster.base.errors import InputError
from simcluster.base.texts import find_similar_words
from simcluster.documents.base_spec import Spec
from simcluster.topology.cluster import Cluster, make_cluster
from simcluster.topology.links import COMPUTE, Graph, LinkSpec, Name, Title, add_gpus, add_nics, add_switches
from simcluster.topology.spec import Fields, TopologySpec


class NodeSpec(Spec):
    """One node of a cluster graph: a GPU, a NIC or a switch."""

    name: Name
    kind: Literal["gpu", "nvswitch", "pcie", "nic", "switch", "host"]
    host: Annotated[int, Field(strict=True, ge=0)] | None = None
    """Number of the host (server) that a GPU is in."""
    tier: Name = "leaf"
    """Tier of a switch, such as leaf or spine."""
    network: Name = COMPUTE
    """Name of the network of a NIC or switch; collectives use the one named compute."""

    @model_validator(mode="after")
    def _check_network(self) -> Self:
        if self.network != COMPUTE and self.kind not in ("nic", "switch"):
            raise InputError(
                f"node {self.name!r} ({self.kind}): only nic and switch have a network; remove network {self.network!r}"
            )
        return self


class EdgeSpec(LinkSpec):
    """A link between two nodes of a cluster graph."""

    between: tuple[Name, Name]
    """Names of the two nodes that the link connects."""
    one_way: bool = False
    """Whether the link carries traffic only from its first node to its second."""


class GraphSpec(TopologySpec):
    """Cluster described by a list of nodes (GPUs, NICs, switches) and a list of links.

    GPUs are placed by ``host``, then in the order of the file. Where no GPU says its host, GPUs that are connected
    without a switch between them are one machine.
    """

    EXAMPLE: ClassVar[Fields] = {
        "nodes": [{"name": "a", "kind": "gpu"}, {"name": "b", "kind": "gpu"}, {"name": "s", "kind": "switch"}],
        "edges": [{"between": [gpu, "s"], "line_rate": "50 GB/s", "latency": "1 us"} for gpu in ("a", "b")],
    }

    kind: Literal["graph"]
    name: Title = "explicit graph"
    nodes: Annotated[tuple[NodeSpec, ...], Field(min_length=1)]
    """List of GPUs, NICs and switches of the cluster graph."""
    edges: tuple[EdgeSpec, ...]
    """List of links between the nodes of the cluster graph."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names: dict[str, None] = {}
        for node in self.nodes:
            if node.name in names:
                raise InputError(f"two nodes have the name {node.name!r}; names must be unique: change one of them")
            names[node.name] = None
        directed: dict[tuple[str, str], None] = {}
        for edge in self.edges:
            self._check_edge(edge, names, directed)
        gpus = [node for node in self.nodes if node.kind == "gpu"]
        lost = [node.name for node in gpus if node.host is None]
        if lost and len(lost) < len(gpus):
            raise InputError(f"GPU {lost[0]!r} has no 'host', but other GPUs do; give 'host' to all GPUs, or to none")
        return self

    @staticmethod
    def _check_edge(edge: EdgeSpec, names: dict[str, None], directed: dict[tuple[str, str], None]) -> None:
        a, b = edge.between
        for end in edge.between:
            if end not in names:
                close = find_similar_words(end, names, cutoff=0.5, most=3)
                hint = f"did you mean {', '.join(close)}?" if close else f"the nodes are {', '.join(list(names)[:6])}"
                raise InputError(f"edge between {a!r} and {b!r}: there is no node {end!r}; {hint}")
        if a == b:
            raise InputError(
                f"edge between {a!r} and {b!r}: a link must join two different nodes; change a name, or remove the edge"
            )
        for way in ((a, b),) if edge.one_way else ((a, b), (b, a)):
            if way in directed:
                raise InputError(
                    f"two links lead from {way[0]!r} to {way[1]!r}; keep one link, with the sum of their line rates "
                    "(or set one_way: true on both links, if each is one direction)"
                )
            directed[way] = None

    def build(self) -> Cluster:
        graph: Graph = nx.DiGraph()
        host_of = self._machine_of_gpu()
        filled: dict[int, int] = {}
        for node in self.nodes:
            match node.kind:
                case "gpu":
                    host = host_of[node.name]
                    add_gpus(graph, [(node.name, host, filled.get(host, 0))])
                    filled[host] = filled.get(host, 0) + 1
                case "switch":
                    add_switches(graph, [node.name], node.tier, node.network)
                case "nic":
                    add_nics(graph, [node.name], network=node.network)
                case "nvswitch" | "pcie" | "host":
                    graph.add_node(node.name, kind=node.kind)
                case _:
                    assert_never(node.kind)
        for edge in self.edges:
            a, b = edge.between
            data = edge.link_attributes(self._usual_medium(graph.nodes[a]["kind"], graph.nodes[b]["kind"]))
            graph.add_edges_from([(a, b)] if edge.one_way else [(a, b), (b, a)], **data)
        return make_cluster(self.name, self.device, graph, self.routing, self.nccl)

    @staticmethod
    def _usual_medium(a: str, b: str) -> str:
        """Return the default medium of a link between these two kinds of node."""
        if "switch" in (a, b):
            return "network"
        return "nvlink" if {a, b} <= {"gpu", "nvswitch"} else "pcie"

    def _machine_of_gpu(self) -> dict[str, int]:
        """Return each GPU's machine number: from the ``host`` keys, or without them from links that bypass switches."""
        gpus = [node for node in self.nodes if node.kind == "gpu"]
        given = [node.host for node in gpus if node.host is not None]
        if given:
            dense = {host: i for i, host in enumerate(sorted(set(given)))}
            return {node.name: dense[node.host] for node in gpus if node.host is not None}
        machines: nx.Graph[str] = nx.Graph()
        machines.add_nodes_from(node.name for node in self.nodes)
        switches = {node.name for node in self.nodes if node.kind == "switch"}
        machines.add_edges_from(edge.between for edge in self.edges if not switches.intersection(edge.between))
        machine_of = {name: i for i, group in enumerate(nx.connected_components(machines)) for name in group}
        dense = {machine: i for i, machine in enumerate(dict.fromkeys(machine_of[gpu.name] for gpu in gpus))}
        return {gpu.name: dense[machine_of[gpu.name]] for gpu in gpus}
