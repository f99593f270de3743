"""Topology kinds ``dgx`` (NVSwitch, one NIC per GPU) and ``pcie_box`` (shared NICs), on a fat tree.

Idealised on purpose: all NVSwitch chips of a node are one graph node without a limit, and PCIe is omitted where nothing
contends for it. ``fabrics`` (kind machines) makes such nodes part by part.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Count
from simcluster.topology.cluster import Cluster, make_cluster_from_draft
from simcluster.topology.draft import ClusterDraft, RecordingGraph, check_gpu_count, check_link_count
from simcluster.topology.links import COMPUTE, EdgeData, Graph, LinkSpec, Title, add_gpus, add_nics, connect_pairs
from simcluster.topology.machine_parts import NicPort
from simcluster.topology.spec import Fields, TopologySpec
from simcluster.topology.trees import FabricBuilder, TreeSpec

_CABLE = {"line_rate": "50 GB/s", "latency": "1 us"}


class FabricSpec(TreeSpec):
    """Fat tree that connects the NICs of all nodes."""


class DgxSpec(TopologySpec):
    """Nodes with NVSwitches between their GPUs, one NIC per GPU by default, and a rail-optimised fat tree.

    In each unit there is one leaf per rail: NIC i of every node goes to leaf i, so GPUs with equal index in their nodes
    are one leaf apart, others go over a spine.  The PCIe switches that GPUs and NICs share in pairs are not modelled.
    """

    EXAMPLE: ClassVar[Fields] = {
        "nodes": 3, "gpus_per_node": 2, "nvlink": {"line_rate": "450 GB/s", "latency": "1 us"}, "pcie": _CABLE,
        "nic": _CABLE, "fabric": {"nodes_per_unit": 2},
    }  # fmt: skip

    kind: Literal["dgx"]
    name: Title = "DGX cluster"
    nodes: Count
    """Number of nodes."""
    gpus_per_node: Count = 8
    """Number of GPUs per node."""
    nics_per_node: Count | None = None
    """Number of NICs per node; default: one per GPU."""
    nvlink: LinkSpec
    """Link between a GPU and the NVSwitches of its node."""
    pcie: LinkSpec
    """Link between a GPU and its NIC."""
    nic: LinkSpec
    """Link between a NIC and its leaf switch."""
    fabric: FabricSpec
    """Rail-optimised fat tree that connects the NICs of all nodes."""

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.nics_per_node not in (None, self.gpus_per_node):
            raise InputError(
                f"nics_per_node is {self.nics_per_node}, but kind dgx needs one NIC per GPU ({self.gpus_per_node}): "
                "remove nics_per_node, or use kind pcie_box or graph for shared NICs"
            )
        check_gpu_count(self.nodes * self.gpus_per_node)
        return self

    def build(self) -> Cluster:
        """Build the cluster: node0.gpu0, node0.nic0, node0.nvswitch, ..., unit0.leaf0 (rail 0), ..., spine0, ..."""
        graph, rails = RecordingGraph(), range(self.gpus_per_node)
        gpus, nics = ([f"node0.{part}{i}" for i in rails] for part in ("gpu", "nic"))
        add_gpus(graph, ((gpu, 0, i) for i, gpu in enumerate(gpus)))
        graph.add_node("node0.nvswitch", kind="nvswitch")
        add_nics(graph, nics)
        connect_pairs(graph, ((gpu, "node0.nvswitch") for gpu in gpus), self.nvlink.link_attributes("nvlink"))
        connect_pairs(graph, zip(gpus, nics, strict=True), self.pcie.link_attributes("pcie"))
        draft = ClusterDraft()
        draft.add_machines(graph, self.nodes, "node", ("gpu", "nvswitch", "nic"))
        ports = _make_nic_ports(graph, self.nic.link_attributes("infiniband"))
        self.fabric.add_tree_by_rail(FabricBuilder(draft, COMPUTE), ports, self.nodes)
        return make_cluster_from_draft(self.name, self.device, draft, self.routing, self.nccl)


class PcieBoxSpec(TopologySpec):
    """Nodes without NVLink: GPUs under PCIe switches and one host bridge; all nodes of a unit share a leaf switch."""

    EXAMPLE: ClassVar[Fields] = {
        "nodes": 3, "gpus_per_node": 4, "gpus_per_pcie_switch": 2, "nics_per_node": 2, "pcie": _CABLE, "nic": _CABLE,
        "fabric": {"nodes_per_unit": 2},
    }  # fmt: skip

    kind: Literal["pcie_box"]
    name: Title = "PCIe boxes"
    nodes: Count
    """Number of nodes."""
    gpus_per_node: Count
    """Number of GPUs per node."""
    gpus_per_pcie_switch: Count = 4
    """Number of GPUs under each PCIe switch."""
    nics_per_node: Count = 1
    """Number of NICs per node, shared by all GPUs of the node."""
    pcie: LinkSpec
    """Link between a GPU and its PCIe switch, and between the host bridge and a NIC."""
    upstream: LinkSpec | None = None
    """Link between a PCIe switch and the host bridge; default: equal to pcie."""
    nic: LinkSpec
    """Link between a NIC and its leaf switch."""
    fabric: FabricSpec
    """Fat tree that connects the NICs of all nodes."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        check_gpu_count(self.nodes * self.gpus_per_node)
        check_link_count(self.nodes * self.nics_per_node, "nic - leaf")
        return self

    def build(self) -> Cluster:
        """Build the cluster: node0.gpu0, node0.pcie0, node0.host, node0.nic0, ..., leaf0, ..., spine0, ..."""
        graph = RecordingGraph()
        pcie = self.pcie.link_attributes("pcie")
        upstream = pcie if self.upstream is None else self.upstream.link_attributes("pcie")
        gpus = [f"node0.gpu{i}" for i in range(self.gpus_per_node)]
        nics = [f"node0.nic{i}" for i in range(self.nics_per_node)]
        switch_of = [f"node0.pcie{i // self.gpus_per_pcie_switch}" for i in range(self.gpus_per_node)]
        host = "node0.host"
        add_gpus(graph, ((gpu, 0, i) for i, gpu in enumerate(gpus)))
        graph.add_nodes_from(dict.fromkeys(switch_of), kind="pcie")
        graph.add_node(host, kind="host")
        add_nics(graph, nics)
        connect_pairs(graph, zip(gpus, switch_of, strict=True), pcie)
        connect_pairs(graph, ((switch, host) for switch in dict.fromkeys(switch_of)), upstream)
        connect_pairs(graph, ((host, nic) for nic in nics), pcie)
        draft = ClusterDraft()
        draft.add_machines(graph, self.nodes, "node")
        ports = _make_nic_ports(graph, self.nic.link_attributes("ethernet"))
        self.fabric.add_tree_by_unit(FabricBuilder(draft, COMPUTE), ports, self.nodes)
        return make_cluster_from_draft(self.name, self.device, draft, self.routing, self.nccl)


def _make_nic_ports(graph: Graph, link: EdgeData) -> list[NicPort]:
    """Return the ports of a node's NICs, each NIC on a separate rail."""
    nics = [place for place, node in enumerate(graph) if graph.nodes[node]["kind"] == "nic"]
    return [NicPort(place, rail, COMPUTE, 0, link) for rail, place in enumerate(nics)]
