"""Real machines on a fat tree: DGX with NVSwitch and one NIC per GPU, and PCIe boxes that share NICs.

Idealised on purpose: all NVSwitch chips of a machine are one node without a limit of its own, and a spine has as many
ports as there are leaves (a chassis, or two physical levels without blocking between them).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import networkx as nx
from pydantic import model_validator

from simcluster.errors import InputError
from simcluster.spec import Spec
from simcluster.topology.cluster import Cluster, make_cluster
from simcluster.topology.links import (
    Count,
    EdgeData,
    Fraction,
    Graph,
    LinkSpec,
    Name,
    add_gpus,
    add_switches,
    connect,
    edge_data,
)
from simcluster.units import BytesPerSecond, Seconds


class UplinkSpec(Spec):
    """A leaf's link to one spine.  Rate and efficiency are the NIC's where they are not given."""

    line_rate: BytesPerSecond | None = None
    efficiency: Fraction | None = None
    latency: Seconds = 0.6e-6
    source: str = "0.6 us for each further switch: assumed, inside the 0.3 to 1 us usual for a switch and its cables"


class FabricSpec(Spec):
    """Leaves for each unit of ``nodes_per_unit`` machines, and spines above all leaves.

    A leaf's uplinks together carry (NICs of a full unit on it x NIC line rate) / ``oversubscription``, spread evenly
    over the spines; a cluster smaller than one unit counts as a unit of its size.  There are as many spines as uplinks
    of the wanted line rate fit in that, at least one; none at all over a single leaf.
    """

    nodes_per_unit: Count
    oversubscription: float = 1.0
    leaf_to_spine: UplinkSpec = UplinkSpec()

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if not self.oversubscription > 0:
            raise InputError(
                f"oversubscription is {self.oversubscription!r}; it is leaf capacity down over up, so above zero: "
                "1 for a non-blocking tree, 2 for half the uplinks"
            )
        return self

    def add_spines(self, graph: Graph, leaves: Sequence[str], ports: int, nic: LinkSpec, medium: str) -> None:
        """Spines spine0, ... over ``leaves`` that each have ``ports`` NICs below them."""
        if len(leaves) < 2:
            return
        up = self.leaf_to_spine
        capacity = ports * nic.line_rate / self.oversubscription
        count = max(1, int(capacity / (up.line_rate or nic.line_rate) * (1 + 1e-12)))  # 1e-12: 3 x 0.1 is still 3 links
        spines = [f"spine{i}" for i in range(count)]
        add_switches(graph, spines, "spine")
        efficiency = nic.efficiency if up.efficiency is None else up.efficiency
        data = edge_data(capacity / count, efficiency, up.latency, up.source, nic.medium or medium)
        connect(graph, ((leaf, spine) for leaf in leaves for spine in spines), data)


class DgxSpec(Spec):
    """Machines whose GPUs meet in NVSwitches and have one NIC each, on a rail-optimised fat tree.

    In each unit there is one leaf per rail: NIC i of every machine goes to leaf i, so GPUs with equal index in their
    machines are one leaf apart, others go over a spine.  Links: GPU - NVSwitch (``nvlink``), GPU - its NIC (``pcie``),
    NIC - leaf (``nic``).  The PCIe switches that GPUs and NICs share in pairs are not modelled.
    """

    kind: Literal["dgx"]
    name: Name = "DGX cluster"
    device: Name | dict[str, object]
    nodes: Count
    gpus_per_node: Count = 8
    nics_per_node: Count | None = None
    nvlink: LinkSpec
    pcie: LinkSpec
    nic: LinkSpec
    fabric: FabricSpec

    @model_validator(mode="after")
    def _one_nic_per_gpu(self) -> Self:
        if self.nics_per_node not in (None, self.gpus_per_node):
            raise InputError(
                f"nics_per_node is {self.nics_per_node} and gpus_per_node {self.gpus_per_node}; kind dgx has one NIC "
                "per GPU: leave nics_per_node out, or use kind pcie_box or graph for shared NICs"
            )
        return self

    def build(self) -> Cluster:
        """The cluster: node0.gpu0, node0.nic0, node0.nvswitch, ..., unit0.leaf0 (rail 0), ..., spine0, ..."""
        graph: Graph = nx.DiGraph()
        rails = range(self.gpus_per_node)
        slots = [(n, i) for n in range(self.nodes) for i in rails]
        gpus = [f"node{n}.gpu{i}" for n, i in slots]
        nics = [f"node{n}.nic{i}" for n, i in slots]
        units = -(-self.nodes // self.fabric.nodes_per_unit)
        leaves = [f"unit{u}.leaf{i}" for u in range(units) for i in rails]
        add_gpus(graph, ((gpu, n, i) for gpu, (n, i) in zip(gpus, slots, strict=True)))
        graph.add_nodes_from((f"node{n}.nvswitch" for n in range(self.nodes)), kind="nvswitch")
        graph.add_nodes_from(nics, kind="nic")
        add_switches(graph, leaves, "leaf")
        to_nvswitch = ((gpu, f"node{n}.nvswitch") for gpu, (n, _) in zip(gpus, slots, strict=True))
        connect(graph, to_nvswitch, self.nvlink.link("nvlink"))
        connect(graph, zip(gpus, nics, strict=True), self.pcie.link("pcie"))
        rail_leaf = (f"unit{n // self.fabric.nodes_per_unit}.leaf{i}" for n, i in slots)
        connect(graph, zip(nics, rail_leaf, strict=True), self.nic.link("infiniband"))
        self.fabric.add_spines(graph, leaves, min(self.nodes, self.fabric.nodes_per_unit), self.nic, "infiniband")
        return make_cluster(self.name, self.device, graph)


class PcieBoxSpec(Spec):
    """Machines without NVLink: GPUs under PCIe switches under one host bridge, whose NICs all GPUs share.

    Links: GPU - PCIe switch and host bridge - NIC (``pcie``), PCIe switch - host bridge (``upstream``, like ``pcie``
    unless given), NIC - leaf (``nic``).  All machines of a unit are on one leaf.
    """

    kind: Literal["pcie_box"]
    name: Name = "PCIe boxes"
    device: Name | dict[str, object]
    nodes: Count
    gpus_per_node: Count
    gpus_per_pcie_switch: Count = 4
    nics_per_node: Count = 1
    pcie: LinkSpec
    upstream: LinkSpec | None = None
    nic: LinkSpec
    fabric: FabricSpec

    def build(self) -> Cluster:
        """The cluster: node0.gpu0, node0.pcie0, node0.host, node0.nic0, ..., leaf0, ..., spine0, ..."""
        graph: Graph = nx.DiGraph()
        pcie = self.pcie.link("pcie")
        upstream = pcie if self.upstream is None else self.upstream.link("pcie")
        units = -(-self.nodes // self.fabric.nodes_per_unit)
        leaves = [f"leaf{u}" for u in range(units)]
        for node in range(self.nodes):
            self._add_machine(graph, node, pcie, upstream)
        add_switches(graph, leaves, "leaf")
        ports = (
            (f"node{n}.nic{i}", leaves[n // self.fabric.nodes_per_unit])
            for n in range(self.nodes)
            for i in range(self.nics_per_node)
        )
        connect(graph, ports, self.nic.link("ethernet"))
        nics_per_leaf = min(self.nodes, self.fabric.nodes_per_unit) * self.nics_per_node
        self.fabric.add_spines(graph, leaves, nics_per_leaf, self.nic, "ethernet")
        return make_cluster(self.name, self.device, graph)

    def _add_machine(self, graph: Graph, node: int, pcie: EdgeData, upstream: EdgeData) -> None:
        gpus = [f"node{node}.gpu{i}" for i in range(self.gpus_per_node)]
        nics = [f"node{node}.nic{i}" for i in range(self.nics_per_node)]
        switch_of = [f"node{node}.pcie{i // self.gpus_per_pcie_switch}" for i in range(self.gpus_per_node)]
        host = f"node{node}.host"
        add_gpus(graph, ((gpu, node, i) for i, gpu in enumerate(gpus)))
        graph.add_nodes_from(dict.fromkeys(switch_of), kind="pcie")
        graph.add_node(host, kind="host")
        graph.add_nodes_from(nics, kind="nic")
        connect(graph, zip(gpus, switch_of, strict=True), pcie)
        connect(graph, ((switch, host) for switch in dict.fromkeys(switch_of)), upstream)
        connect(graph, ((host, nic) for nic in nics), pcie)
