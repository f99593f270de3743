"""Fat trees of leaf switches, spine switches and, with pods, core switches.

Idealised: a spine has as many ports as there are leaves below it (a chassis, or two physical levels without blocking
between them).  Source: C. E. Leiserson, "Fat-trees", IEEE Trans. Computers C-34, 1985; pods and cores as in M. Al-Fares
et al., "A scalable, commodity data center network architecture", SIGCOMM 2008.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import AfterValidator, model_validator

from simcluster.base.arrays import Ints
from simcluster.base.errors import InputError
from simcluster.base.units import BytesPerSecond, Seconds
from simcluster.documents.base_spec import Count, Spec
from simcluster.documents.diagnostics import RuleError
from simcluster.topology.draft import ClusterDraft, check_link_count
from simcluster.topology.links import COMPUTE, EdgeData, Fraction, Name, PresetSpec, make_edge_data
from simcluster.topology.machine_parts import NicPort

_WIDEST = 1e9  # of a tree's levels, up over down or down over up: beyond it cables cannot be counted


def _check_ratio(ratio: float) -> float:
    if not 1 / _WIDEST <= ratio <= _WIDEST:
        raise InputError(
            f"oversubscription is {ratio!r}; it is a switch's capacity down over up, and must be from "
            f"{1 / _WIDEST:g} to {_WIDEST:g}: write 1 for a non-blocking tree, 2 for half the uplinks"
        )
    return ratio


Ratio = Annotated[float, AfterValidator(_check_ratio)]


class UplinkSpec(PresetSpec):
    """Link between two switches of a fat tree."""

    line_rate: BytesPerSecond | None = None
    """Nominal rate of one cable between switches; default: the NIC's."""
    efficiency: Fraction | None = None
    """Share of the line rate that is available to payload; default: the NIC's."""
    latency: Seconds = 0.6e-6
    """Latency that a further switch and its cable add; collectives use NCCL's latencies instead if the platform is
    known."""
    medium: Name | None = None
    """Type of link, such as infiniband or ethernet; default: that of the NIC's link."""
    source: str = "0.6 us for each further switch: assumed, inside the 0.3 to 1 us usual for a switch and its cables"

    def cable_attributes(self, below: EdgeData) -> EdgeData:
        """Return the graph attributes of one uplink cable; ``below`` provides the defaults."""
        rate = self.line_rate or below["line_rate"]
        efficiency = below["efficiency"] if self.efficiency is None else self.efficiency
        return make_edge_data(rate, efficiency, self.latency, self.source, self.medium or below["medium"])


@dataclass(frozen=True, slots=True)
class FabricBuilder:
    """Builder of one fabric in a cluster draft, with the network's name and a prefix for the switches' names."""

    draft: ClusterDraft
    network: str
    prefix: str = ""

    def add_switches(self, names: Sequence[str], tier: str) -> list[int]:
        """Add switches of one tier to the fabric; return their node numbers."""
        apart = {} if self.network == COMPUTE else {"network": self.network}
        return self.draft.add_switches([self.prefix + name for name in names], {"kind": "switch", "tier": tier} | apart)

    def attach_nics(self, ports: Sequence[NicPort], leaf_of: Ints) -> None:
        """Add links from these NIC ports of every node to the node's leaf switch ``leaf_of[node]``."""
        self.draft.connect_machines([port.nic for port in ports], leaf_of, [port.link for port in ports])

    def connect_tiers(self, lower: Mapping[int, float], upper: Sequence[int], cable: EdgeData) -> EdgeData:
        """Link every lower switch to all upper switches; ``lower`` has each lower switch's total uplink rate (B/s).

        Returns the attributes of the last of them.
        """
        data = cable
        for rate, alike in itertools.groupby(lower, key=lower.__getitem__):
            each = rate / len(upper)
            data = cable | {"line_rate": each, "bandwidth": each * cable["efficiency"]}
            below, above = (np.array(list(switches), dtype=np.int32) for switches in (alike, upper))
            self.draft.connect_switches(np.repeat(below, len(above)), np.tile(above, len(below)), data)
        return data


class TreeSpec(Spec):
    """Fat tree of two switch levels, or of three levels if the key ``units_per_pod`` is set.

    A cluster smaller than one unit is a unit of its size.  A leaf's uplinks are spread evenly over the spines, of which
    there are as many as cables of the wanted rate fit in them, at least one; none at all over a single leaf.  With
    pods, spine i of all pods meets in cores of plane i.
    """

    nodes_per_unit: Count
    """Number of nodes per unit, a group of nodes with separate leaf switches."""
    oversubscription: Ratio = 1.0
    """Oversubscription of a leaf switch: line rate of the NICs of a full unit over that of the switch's uplinks."""
    leaf_to_spine: UplinkSpec = UplinkSpec()
    """Link from a leaf switch to a spine switch."""
    units_per_pod: Count | None = None
    """Number of units per pod, a group with separate spine switches; default: no pods, two switch levels."""
    spine_oversubscription: Ratio = 1.0
    """Oversubscription of a spine switch: line rate of its links to leaves over that of its links to cores."""
    spine_to_core: UplinkSpec | None = None
    """Link from a spine switch to a core switch; default: equal to leaf_to_spine."""

    @model_validator(mode="after")
    def _check_core_keys(self) -> Self:
        if self.units_per_pod is None and (self.spine_to_core is not None or self.spine_oversubscription != 1.0):
            key = "spine_to_core" if self.spine_to_core is not None else "spine_oversubscription"
            raise RuleError([((key,), f"applies to core switches, which need pods: add units_per_pod or remove {key}")])
        return self

    def add_tree_by_unit(self, site: FabricBuilder, ports: Sequence[NicPort], machines: int) -> None:
        """Add one leaf switch per unit, and the spines and cores above: leaf0, ..., spine0, ..., core0.0, ..."""
        leaves = site.add_switches([f"leaf{u}" for u in range(-(-machines // self.nodes_per_unit))], "leaf")
        site.attach_nics(ports, np.array(leaves)[self._unit_of_machine(machines)])
        rate = _total_port_rate(ports, min(machines, self.nodes_per_unit))
        self.add_upper_tiers(site, {unit: {leaf: rate} for unit, leaf in enumerate(leaves)}, ports[0].link)

    def add_tree_by_rail(self, site: FabricBuilder, ports: Sequence[NicPort], machines: int) -> None:
        """Add one leaf switch per rail and unit, and shared spines above: unit0.leaf0 (rail 0), ..., spine0, ..."""
        by_rail = self.add_rail_leaves(site, ports, machines)
        units = zip(*(of_unit.values() for of_unit in by_rail.values()), strict=True)
        self.add_upper_tiers(site, {unit: dict(leaves) for unit, leaves in enumerate(units)}, ports[0].link)

    def add_rail_leaves(
        self, site: FabricBuilder, ports: Sequence[NicPort], machines: int
    ) -> dict[int, dict[int, tuple[int, float]]]:
        """Add the leaf switches of every rail; return their node numbers and line rates (B/s), by rail and unit.

        NIC i of every machine of a unit is on leaf i of the unit: GPUs with equal index in theirs are one leaf apart.
        """
        by_rail: dict[int, list[NicPort]] = {}
        for port in ports:
            by_rail.setdefault(port.rail, []).append(port)
        units, rails = range(-(-machines // self.nodes_per_unit)), sorted(by_rail)
        full = {rail: _total_port_rate(by_rail[rail], min(machines, self.nodes_per_unit)) for rail in rails}
        leaves = site.add_switches([f"unit{unit}.leaf{rail}" for unit in units for rail in rails], "leaf")
        found: dict[int, dict[int, tuple[int, float]]] = {}
        for place, rail in enumerate(rails):
            own = leaves[place :: len(rails)]
            found[rail] = {unit: (leaf, full[rail]) for unit, leaf in zip(units, own, strict=True)}
            site.attach_nics(by_rail[rail], np.array(own)[self._unit_of_machine(machines)])
        return found

    def _unit_of_machine(self, machines: int) -> Ints:
        """Return the unit number of every node."""
        found: Ints = np.arange(machines) // min(self.nodes_per_unit, machines)
        return found

    def add_upper_tiers(self, site: FabricBuilder, leaves: Mapping[int, Mapping[int, float]], below: EdgeData) -> None:
        """Add spine and core switches above the leaf switches, which are given by unit with their line rate (B/s).

        ``below`` has the cables' attributes, where the document does not state them.
        """
        pods: dict[int, dict[int, float]] = {}
        for unit, own in leaves.items():
            pods.setdefault(unit // self.units_per_pod if self.units_per_pod else 0, {}).update(own)
        if sum(map(len, pods.values())) < 2:
            return
        cable = self.leaf_to_spine.cable_attributes(below)
        widest = max(rate for pod in pods.values() for rate in pod.values())
        count = _count_cables(widest / self.oversubscription, cable)
        full = max(len(pod) for pod in pods.values())
        check_link_count(count * sum(map(len, pods.values())), "leaf - spine")
        spines: list[list[int]] = []
        for number, pod in pods.items():
            pod_name = f"pod{number}." if len(pods) > 1 else ""
            spines.append(site.add_switches([f"{pod_name}spine{i}" for i in range(count)], "spine"))
            site.connect_tiers({leaf: rate / self.oversubscription for leaf, rate in pod.items()}, spines[-1], cable)
        if len(pods) > 1:
            self._add_cores(site, spines, full * widest / self.oversubscription / count, cable)

    def _add_cores(self, site: FabricBuilder, spines: Sequence[Sequence[int]], down: float, below: EdgeData) -> None:
        """Add core switches above the spines; ``down`` is each spine's line rate (B/s) to a full pod's leaves."""
        cable = (self.spine_to_core or UplinkSpec()).cable_attributes(below)
        up = down / self.spine_oversubscription
        count = _count_cables(up, cable)
        check_link_count(count * len(spines) * len(spines[0]), "spine - core")
        for plane in range(len(spines[0])):
            cores = site.add_switches([f"core{plane}.{i}" for i in range(count)], "core")
            site.connect_tiers({pod[plane]: up for pod in spines}, cores, cable)


class FatTreeSpec(TreeSpec):
    """Fat tree in which all NICs of a node are on the leaf switch of the node's unit."""

    kind: Literal["fat_tree"]

    def add_to_draft(self, site: FabricBuilder, ports: Sequence[NicPort], machines: int) -> None:
        """Add the fat tree's switches and links: one leaf switch per unit."""
        self.add_tree_by_unit(site, ports, machines)


class RailOptimisedSpec(TreeSpec):
    """Fat tree with one leaf switch per rail and unit (a group of nodes), and spine switches that connect all rails."""

    kind: Literal["rail_optimised"]

    def add_to_draft(self, site: FabricBuilder, ports: Sequence[NicPort], machines: int) -> None:
        """Add the switches and links of a rail-optimised fat tree: one leaf switch per rail and unit."""
        self.add_tree_by_rail(site, ports, machines)


class RailOnlySpec(TreeSpec):
    """Fabric with a separate tree per rail; traffic between rails first goes over NVLink to the other rail (PXN).

    Source: W. Wang et al., "Rail-only: a low-cost high-performance network for training LLMs with trillion parameters",
    arXiv:2307.12169.
    """

    kind: Literal["rail_only"]

    def add_to_draft(self, site: FabricBuilder, ports: Sequence[NicPort], machines: int) -> None:
        """Add switches unit0.leaf0 (rail 0), ..., rail0.spine0, ..., and the links between NICs and switches."""
        link_of = {port.rail: port.link for port in reversed(ports)}
        for rail, of_unit in self.add_rail_leaves(site, ports, machines).items():
            own = FabricBuilder(site.draft, site.network, f"{site.prefix}rail{rail}.")
            self.add_upper_tiers(own, {unit: dict([leaf]) for unit, leaf in of_unit.items()}, link_of[rail])


def _total_port_rate(ports: Sequence[NicPort], machines: int) -> float:
    return machines * sum(float(port.link["line_rate"]) for port in ports)


def _count_cables(rate: float, cable: EdgeData) -> int:
    return max(1, int(rate / cable["line_rate"] * (1 + 1e-12)))  # 1e-12: 3 x 0.1 is still 3 cables
