"""Clusters as graphs of GPUs, NICs, switches and links: topology kinds, builders, and routes of flows.

A new kind is a ``TopologySpec`` with fields, ``build()`` and an ``EXAMPLE``, and a line in TOPOLOGIES. Reading order:
``spec``, ``cluster`` (the built graph), ``draft`` (what builders write), ``textbook_networks`` (the smallest ones),
``machine_parts``, ``trees``, ``fabrics`` (any node on any fabric), ``machines``, ``explicit_graph``, ``sites`` (several
of them); ``wiring`` answers queries on any of them from the graph (``routing``); of equal nodes on trees
``regular_wiring`` answers in closed form, many flows at once (``batch_routing``; links as ``numbering`` has them), and
the graph is made only on demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from pydantic import TypeAdapter

from simcluster.documents.field_annotations import ModelFromRegistry
from simcluster.topology.cluster import Cluster
from simcluster.topology.explicit_graph import GraphSpec
from simcluster.topology.fabrics import MachinesSpec
from simcluster.topology.links import LinkSpec, RateSpec
from simcluster.topology.machines import DgxSpec, PcieBoxSpec
from simcluster.topology.sites import make_sites_spec
from simcluster.topology.spec import TopologySpec
from simcluster.topology.textbook_networks import FlatSpec, LeafSpineSpec

_OF_ONE_SITE: dict[str, type[TopologySpec]] = {
    "machines": MachinesSpec,
    "dgx": DgxSpec,
    "pcie_box": PcieBoxSpec,
    "flat": FlatSpec,
    "leaf_spine": LeafSpineSpec,
    "graph": GraphSpec,
}
SitesSpec = make_sites_spec(_OF_ONE_SITE)
TOPOLOGIES: dict[str, type[TopologySpec]] = {**_OF_ONE_SITE, "sites": SitesSpec}
"""Spec class of every topology kind."""
AnyTopology: TypeAlias = Annotated[TopologySpec, ModelFromRegistry(TOPOLOGIES)]
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
    "FlatSpec",
    "LinkSpec",
    "RateSpec",
    "SitesSpec",
    "TopologySpec",
    "parse_topology",
]
