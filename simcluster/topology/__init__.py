"""Clusters as graphs of GPUs, NICs, switches and links: builders, and routes of flows.

A new kind is a ``TopologySpec`` with fields, ``build()`` and an ``EXAMPLE``, and a line in TOPOLOGIES. Reading order:
``spec``, ``cluster`` (the built graph), ``draft`` (what builders write), ``uniform`` (the smallest ones),
``machine_parts``, ``trees``, ``dragonfly``, ``fabrics`` (any node on any fabric), ``machines``, ``explicit``, ``sites``
(several of them); ``wiring`` answers queries on any of them from the graph (``routing``); of equal nodes on trees
``regular`` answers in closed form, many flows at once (``paths``; links as ``numbering`` has them), and the graph is
made only on demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from pydantic import TypeAdapter

from simcluster.documents.kinds import RegisteredModel
from simcluster.topology.cluster import Cluster, Device
from simcluster.topology.explicit import GraphSpec
from simcluster.topology.fabrics import DragonflyPlusSpec, MachinesSpec
from simcluster.topology.links import LinkSpec, RateSpec
from simcluster.topology.machine_parts import HostSpec, MachineSpec, NicSpec
from simcluster.topology.machines import DgxSpec, FabricSpec, PcieBoxSpec
from simcluster.topology.sites import sites_kind
from simcluster.topology.spec import TopologySpec
from simcluster.topology.trees import FatTreeSpec, RailOnlySpec, RailOptimisedSpec, UplinkSpec
from simcluster.topology.uniform import FlatSpec, LeafSpineSpec

_OF_ONE_SITE: dict[str, type[TopologySpec]] = {
    "machines": MachinesSpec,
    "dgx": DgxSpec,
    "pcie_box": PcieBoxSpec,
    "flat": FlatSpec,
    "leaf_spine": LeafSpineSpec,
    "graph": GraphSpec,
}
SitesSpec = sites_kind(_OF_ONE_SITE)
TOPOLOGIES: dict[str, type[TopologySpec]] = {**_OF_ONE_SITE, "sites": SitesSpec}
"""Every kind of topology, with its spec."""
AnyTopology: TypeAlias = Annotated[TopologySpec, RegisteredModel(TOPOLOGIES)]
_ADAPTER: TypeAdapter[TopologySpec] = TypeAdapter(AnyTopology)


def parse_topology(document: Mapping[str, object]) -> TopologySpec:
    """Parse a topology document; ``.build()`` of the result makes its cluster.

    pydantic.ValidationError (with the path of each wrong key) for a document that is not one.

    >>> port = {"line_rate": "50 GB/s"}
    >>> flat = {"kind": "flat", "device": "h100", "gpus": 4, "link": port, "path_latency": "5 us"}
    >>> parse_topology(flat).build().gpus
    ('gpu0', 'gpu1', 'gpu2', 'gpu3')
    """
    return _ADAPTER.validate_python(document)


__all__ = [
    "TOPOLOGIES",
    "AnyTopology",
    "Cluster",
    "Device",
    "DgxSpec",
    "DragonflyPlusSpec",
    "FabricSpec",
    "FatTreeSpec",
    "FlatSpec",
    "GraphSpec",
    "HostSpec",
    "LeafSpineSpec",
    "LinkSpec",
    "MachineSpec",
    "MachinesSpec",
    "NicSpec",
    "PcieBoxSpec",
    "RailOnlySpec",
    "RailOptimisedSpec",
    "RateSpec",
    "SitesSpec",
    "TopologySpec",
    "UplinkSpec",
    "parse_topology",
]
