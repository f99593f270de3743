"""What nodes of a cluster's graph are called in reports, and the levels of its switches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simcluster.topology.links import COMPUTE, Graph


def label(graph: Graph, node: str) -> str:
    """What a node is called in a report."""
    return called(graph.nodes[node])


def called(data: Mapping[str, Any]) -> str:
    """What nodes with these attributes are called: kind, or for a switch tier, after the name of another network."""
    name = str(data["tier"]) if data["kind"] == "switch" else str(data["kind"])
    network = data.get("network", COMPUTE)
    return name if network == COMPUTE else f"{network} {name}"


def network_names(graph: Graph) -> list[str]:
    """The networks that collectives do not use, in graph order."""
    names = dict.fromkeys(str(data.get("network", COMPUTE)) for _, data in graph.nodes(data=True))
    return [name for name in names if name != COMPUTE]


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
