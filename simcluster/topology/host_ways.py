"""The ways between a GPU and its host's memory, and from there to storage: which links a copy takes.

Over PCIe switches to the nearest host bridge (NVLink-C2C where the GPU hangs on the host's processor by it).  Where the
machine's description ends at a NIC, as that of a DGX does, the GPU's one PCIe link stands for the way: the x16 uplink
that the GPU has into the PCIe switch, over which it reaches host memory and its NIC alike.  So a copy to the host
contends with what the GPU sends to other machines by its NIC, and with nothing on NVLink (modelling of the observation
in NVIDIA/nccl issue 1023).  The host's memory itself has no limit here.

What the host's memory sends to storage for a GPU goes over the cables of the NICs nearest to that GPU, in equal parts,
beside what the GPU itself sends there.  What it sends to a peer's memory takes the same cables, and those back for what
its own peer sends at the same time: machines keep each other's copies in a circle.  The fabric between does not limit
either.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from simcluster.base.errors import InputError
from simcluster.topology.access_paths import WHOLE, Spread, split
from simcluster.topology.links import Graph


def host_way(graph: Graph, link_index: Mapping[tuple[str, str], int], gpu: str, direction: str) -> Spread:
    """Links from the GPU to host memory ("d2h") or back ("h2d"), in order; InputError where there is none.

    "storage": from host memory to the fabric, none on a machine without one; "peers": there and back.
    """
    if direction in ("storage", "peers"):
        cables = _cables(graph, gpu)
        parts = split(WHOLE, len(cables)) if cables else []
        ways = [cables] if direction == "storage" else [cables, [(switch, port) for port, switch in cables]]
        return tuple(
            [(link_index[cable], part / WHOLE) for way in ways for cable, part in zip(way, parts, strict=True)]
        )
    nodes = _nodes(graph, gpu, direction)
    if direction == "h2d":
        nodes.reverse()
    return tuple([(link_index[pair], 1.0) for pair in pairwise(nodes)])


def _nodes(graph: Graph, gpu: str, direction: str) -> list[str]:
    """From the GPU to the host bridge that is the fewest hops away, or over the GPU's own PCIe link."""
    near = graph.adj if direction == "d2h" else graph.pred
    paths = [[gpu]]
    seen = {gpu: None}
    for path in paths:
        for node in near[path[-1]]:
            if graph.nodes[node]["kind"] == "host":
                return [*path, node]
            if graph.nodes[node]["kind"] == "pcie" and node not in seen:
                seen[node] = None
                paths.append([*path, node])
    for kind in ("pcie", "nic"):
        own = [node for node in near[gpu] if graph.nodes[node]["kind"] == kind]
        own.sort(key=lambda node: "network" in graph.nodes[node])  # the NIC of the collectives first
        if own:
            return [gpu, own[0]]
    raise InputError(
        f"GPU {gpu} has no link to host memory: its cluster has neither a host bridge nor a PCIe link to a PCIe "
        "switch or a NIC; use a topology whose machines have them, such as dgx_h100 or pcie_ethernet"
    )


def _cables(graph: Graph, gpu: str) -> list[tuple[str, str]]:
    """From the NICs that are the fewest hops away (the GPU itself, where that has switch ports) to their switches."""
    kinds = graph.nodes(data="kind")
    near, seen = [gpu], {gpu: None}
    while near:
        found = [(node, other) for node in near for other in graph.adj[node] if kinds[other] == "switch"]
        if found:
            return found
        passed = [node for node in near if node == gpu or kinds[node] not in ("gpu", "nic")]
        near = list(dict.fromkeys([other for node in passed for other in graph.adj[node] if other not in seen]))
        seen |= dict.fromkeys(near)
    return []
