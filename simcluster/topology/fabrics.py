"""Topology kind ``machines``: any node design on any fabric, with additional networks; and Dragonfly+.

To add a fabric: a spec with ``kind`` and ``add_to_draft(site, ports, machines)``, and its name in ``AnyFabric``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

import numpy as np
from pydantic import Field, model_validator

from simcluster.documents.base_spec import Count, Spec
from simcluster.documents.diagnostics import KeyProblem, RuleError, did_you_mean, join_or
from simcluster.topology.cluster import Cluster, make_cluster_from_draft
from simcluster.topology.draft import ClusterDraft, check_gpu_count, check_link_count
from simcluster.topology.links import COMPUTE, EdgeData, Name, Title
from simcluster.topology.machine_parts import MachineSpec, NicPort
from simcluster.topology.spec import Fields, TopologySpec
from simcluster.topology.trees import FabricBuilder, FatTreeSpec, RailOnlySpec, RailOptimisedSpec, Ratio, UplinkSpec


class DragonflyPlusSpec(Spec):
    """Dragonfly+ network: fully connected groups of leaf and spine switches, all NICs of a node on one leaf.

    In a group every leaf has a link to every spine.  Every pair of groups has equally many links, with the line rate of
    a leaf's link to a spine unless given.  Routes are minimal: at most one global link, so of a pair of groups only the
    spines that have one for it carry its traffic.
    """

    kind: Literal["dragonfly_plus"]
    nodes_per_leaf: Count
    """Number of nodes on each leaf switch."""
    leaves_per_group: Count
    """Number of leaf switches per group."""
    spines_per_group: Count
    """Number of spine switches per group."""
    global_links_per_spine: Count
    """Number of links from each spine switch to other groups."""
    oversubscription: Ratio = 1.0
    """Oversubscription of a leaf switch: bandwidth of the NICs below it over that of its uplinks."""
    leaf_to_spine: UplinkSpec = UplinkSpec()
    """Link from a leaf switch to a spine switch."""
    spine_to_spine: UplinkSpec = UplinkSpec()
    """Link between spine switches of different groups; default: equal to leaf_to_spine."""

    def add_to_draft(self, site: FabricBuilder, ports: Sequence[NicPort], machines: int) -> None:
        """Add the switches group0.leaf0, ..., group0.spine0, ..., and their links to NICs and to each other."""
        groups = range(machines // (self.nodes_per_leaf * self.leaves_per_group))
        check_link_count(len(groups) * self.leaves_per_group * self.spines_per_group, "leaf - spine")
        check_link_count(len(groups) * self.spines_per_group * self.global_links_per_spine, "spine - spine")
        leaves = [
            site.add_switches([f"group{g}.leaf{i}" for i in range(self.leaves_per_group)], "leaf") for g in groups
        ]
        spines = [
            site.add_switches([f"group{g}.spine{i}" for i in range(self.spines_per_group)], "spine") for g in groups
        ]
        in_order = [leaf for group in leaves for leaf in group]
        site.attach_nics(ports, np.array(in_order)[np.arange(machines) // self.nodes_per_leaf])
        down = self.nodes_per_leaf * sum(port.link["line_rate"] for port in ports)
        cable = uplink = self.leaf_to_spine.cable_attributes(ports[0].link)
        for own, above in zip(leaves, spines, strict=True):
            uplink = site.connect_tiers(dict.fromkeys(own, down / self.oversubscription), above, cable)
        self._add_global_links(site, spines, self.spine_to_spine.cable_attributes(uplink))

    def complaints(self, machines: int) -> list[KeyProblem]:
        """Return errors if ``machines`` nodes do not fill whole groups, or global links do not divide evenly."""
        size = self.nodes_per_leaf * self.leaves_per_group
        if machines % size:
            near = join_or(n * size for n in (machines // size, machines // size + 1) if n)
            sizes = f"nodes_per_leaf {self.nodes_per_leaf} x leaves_per_group {self.leaves_per_group} = {size}"
            return [((), f"{machines} nodes do not fill whole groups of {sizes} nodes; use {near} nodes")]
        others, spines, links = machines // size - 1, self.spines_per_group, self.global_links_per_spine
        if others and spines * links % others:
            step = others // math.gcd(spines, others)
            near = join_or(n for n in (links // step * step, links // step * step + step) if n)
            what = f"a group's {spines} spines x {links} global links per spine = {spines * links} links"
            rule = f"must be a multiple of {others}, the number of other groups (equally many links to each)"
            return [(("global_links_per_spine",), f"{what} {rule}; use {near}")]
        return []

    def _add_global_links(self, site: FabricBuilder, spines: Sequence[Sequence[int]], cable: EdgeData) -> None:
        """Add the global links between all pairs of groups, spread over the groups' spines in turn."""
        groups = len(spines)
        per_pair = self.spines_per_group * self.global_links_per_spine // max(1, groups - 1)
        for near in range(groups):
            for far in range(near + 1, groups):
                there, back = far - near - 1, groups - (far - near) - 1
                pairs: dict[tuple[int, int], int] = {}
                for link in range(per_pair):
                    a = spines[near][(there * per_pair + link) % self.spines_per_group]
                    b = spines[far][(back * per_pair + link) % self.spines_per_group]
                    pairs[a, b] = pairs.get((a, b), 0) + 1
                for pair, count in pairs.items():
                    rates = {key: count * cable[key] for key in ("line_rate", "bandwidth")}
                    site.draft.connect_switches(pair[:1], pair[1:], cable | rates)


AnyFabric: TypeAlias = Annotated[
    FatTreeSpec | RailOptimisedSpec | RailOnlySpec | DragonflyPlusSpec, Field(discriminator="kind")
]

_CABLE = {"line_rate": "50 GB/s", "latency": "1 us"}


class MachinesSpec(TopologySpec):
    """Identical nodes, a fabric for collectives, and one further fabric per additional network of the nodes' NICs."""

    EXAMPLE: ClassVar[Fields] = {
        "nodes": 3, "machine": {"gpus": 2, "pcie": _CABLE, "nics": [{"count": 2, "link": _CABLE}]},
        "fabric": {"kind": "fat_tree", "nodes_per_unit": 2},
    }  # fmt: skip

    kind: Literal["machines"]
    name: Title = "cluster"
    nodes: Count
    """Number of nodes; in NVL72 topologies, a node is a rack of 72 GPUs (18 trays); public tables count trays."""
    machine: MachineSpec
    """Hardware of each node: GPUs, PCIe switches, host bridges, NICs, and their links."""
    fabric: AnyFabric
    """Network that connects the nodes' NICs and carries collectives."""
    other_networks: dict[Name, AnyFabric] = Field(default_factory=dict)
    """Additional networks by name, such as storage, that collectives do not use."""

    @model_validator(mode="after")
    def _check_fabrics(self) -> Self:
        check_gpu_count(self.nodes * self.machine.num_gpus)
        complaints: list[KeyProblem] = []
        for path, fabric in [
            (("fabric",), self.fabric),
            *((("other_networks", n), f) for n, f in self.other_networks.items()),
        ]:
            if isinstance(fabric, DragonflyPlusSpec):
                complaints += [((*path, *key), what) for key, what in fabric.complaints(self.nodes)]
        used = dict.fromkeys(nic.network for nic in self.machine.nics)
        for i, nic in enumerate(self.machine.nics):
            if nic.network != COMPUTE and nic.network not in self.other_networks:
                what = f"network {nic.network!r} has no fabric{did_you_mean(nic.network, self.other_networks)}"
                fix = f"add other_networks: {{{nic.network}: {{kind: fat_tree, nodes_per_unit: 32}}}}"
                complaints.append((("machine", "nics", i, "network"), f"{what}; {fix}, or remove the key 'network'"))
        if COMPUTE not in used:
            complaints.append((("machine", "nics"), "no NIC is on the compute network; remove 'network' from one NIC"))
        for name in self.other_networks:
            if name not in used or name == COMPUTE:
                what = f"no NIC is on this network{did_you_mean(name, [n for n in used if n != COMPUTE])}"
                complaints.append((("other_networks", name), f"{what}; add network: {name} to one of machine.nics"))
        if complaints:
            raise RuleError(complaints)
        return self

    def build(self) -> Cluster:
        """Build the cluster: first the nodes, then the switches of each fabric.

        Switches of other networks are called storage.leaf0, ...; those of planes plane0.leaf0, ...
        """
        draft = ClusterDraft()
        networks: dict[tuple[str, int], list[NicPort]] = {}
        for port in self.machine.add_to_draft(draft, self.nodes):
            networks.setdefault((port.network, port.plane), []).append(port)
        planes = any(plane for _, plane in networks)
        for (network, plane), own in networks.items():
            fabric = self.fabric if network == COMPUTE else self.other_networks[network]
            prefix = ("" if network == COMPUTE else f"{network}.") + (f"plane{plane}." if planes else "")
            fabric.add_to_draft(FabricBuilder(draft, network, prefix), own, self.nodes)
        return make_cluster_from_draft(self.name, self.device, draft, self.routing, self.nccl)
