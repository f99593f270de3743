"""Fat trees: leaves above machines, spines above leaves and, with pods, cores above spines.

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
from simcluster.documents.diagnostics import RuleError
from simcluster.documents.spec import Count, Spec
from simcluster.topology.draft import Draft, check_link_count
from simcluster.topology.links import COMPUTE, EdgeData, Fraction, Name, PresetSpec, edge_data
from simcluster.topology.machine_parts import NicPort

_WIDEST = 1e9  # of a tree's levels, up over down or down over up: beyond it cables cannot be counted


def _check_positive(ratio: float) -> float:
    if not 1 / _WIDEST <= ratio <= _WIDEST:
        raise InputError(
            f"oversubscription is {ratio!r}; it is leaf capacity down over up and must be above zero, from "
            f"{1 / _WIDEST:g} to {_WIDEST:g}: write 1 for a non-blocking tree, 2 for half the uplinks"
        )
    return ratio


Ratio = Annotated[float, AfterValidator(_check_positive)]


class UplinkSpec(PresetSpec):
    """A link between two switches."""

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

    def cable(self, below: EdgeData) -> EdgeData:
        """Return the attributes of one uplink cable, given those of the links below."""
        rate = self.line_rate or below["line_rate"]
        efficiency = below["efficiency"] if self.efficiency is None else self.efficiency
        return edge_data(rate, efficiency, self.latency, self.source, self.medium or below["medium"])


@dataclass(frozen=True, slots=True)
class Site:
    """Draft, network name and prefix of switch names of one fabric under construction."""

    draft: Draft
    network: str
    prefix: str = ""

    def switches(self, names: Sequence[str], tier: str) -> list[int]:
        """Add switches of a tier; return their numbers."""
        apart = {} if self.network == COMPUTE else {"network": self.network}
        return self.draft.add_switches([self.prefix + name for name in names], {"kind": "switch", "tier": tier} | apart)

    def attach(self, ports: Sequence[NicPort], leaf_of: Ints) -> None:
        """Add links from the ports, which every machine has, to the leaf of each machine."""
        self.draft.attach([port.nic for port in ports], leaf_of, [port.link for port in ports])

    def join(self, lower: Mapping[int, float], upper: Sequence[int], cable: EdgeData) -> EdgeData:
        """Add links from every lower switch to all upper ones, which share its uplink line rate (B/s) evenly.

        Returns the attributes of the last of them.
        """
        data = cable
        for rate, alike in itertools.groupby(lower, key=lower.__getitem__):
            each = rate / len(upper)
            data = cable | {"line_rate": each, "bandwidth": each * cable["efficiency"]}
            below, above = (np.array(list(switches), dtype=np.int32) for switches in (alike, upper))
            self.draft.connect(np.repeat(below, len(above)), np.tile(above, len(below)), data)
        return data


class TreeSpec(Spec):
    """A tree of two levels, or of three with ``units_per_pod``.

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
    def _cores_need_pods(self) -> Self:
        if self.units_per_pod is None and (self.spine_to_core is not None or self.spine_oversubscription != 1.0):
            key = "spine_to_core" if self.spine_to_core is not None else "spine_oversubscription"
            raise RuleError([((key,), "is about cores, and there are none without pods: give units_per_pod as well")])
        return self

    def add_by_unit(self, site: Site, ports: Sequence[NicPort], machines: int) -> None:
        """Add one leaf per unit, and the tiers above: leaf0, ..., spine0, ... (pod0.spine0, ..., core0.0, ...)."""
        leaves = site.switches([f"leaf{u}" for u in range(-(-machines // self.nodes_per_unit))], "leaf")
        site.attach(ports, np.array(leaves)[self._unit_of_machine(machines)])
        rate = _full_rate(ports, min(machines, self.nodes_per_unit))
        self.grow(site, {unit: {leaf: rate} for unit, leaf in enumerate(leaves)}, ports[0].link)

    def add_by_rail(self, site: Site, ports: Sequence[NicPort], machines: int) -> None:
        """Add one leaf switch per rail and unit, below shared spines: unit0.leaf0 (rail 0), ..., spine0, ..."""
        by_rail = self.rail_leaves(site, ports, machines)
        units = zip(*(of_unit.values() for of_unit in by_rail.values()), strict=True)
        self.grow(site, {unit: dict(leaves) for unit, leaves in enumerate(units)}, ports[0].link)

    def rail_leaves(
        self, site: Site, ports: Sequence[NicPort], machines: int
    ) -> dict[int, dict[int, tuple[int, float]]]:
        """Add the leaf switches of every rail; return them by rail and unit, with the line rate (B/s) of a full one.

        NIC i of every machine of a unit is on leaf i of the unit: GPUs with equal index in theirs are one leaf apart.
        """
        by_rail: dict[int, list[NicPort]] = {}
        for port in ports:
            by_rail.setdefault(port.rail, []).append(port)
        units, rails = range(-(-machines // self.nodes_per_unit)), sorted(by_rail)
        full = {rail: _full_rate(by_rail[rail], min(machines, self.nodes_per_unit)) for rail in rails}
        leaves = site.switches([f"unit{unit}.leaf{rail}" for unit in units for rail in rails], "leaf")
        found: dict[int, dict[int, tuple[int, float]]] = {}
        for place, rail in enumerate(rails):
            own = leaves[place :: len(rails)]
            found[rail] = {unit: (leaf, full[rail]) for unit, leaf in zip(units, own, strict=True)}
            site.attach(by_rail[rail], np.array(own)[self._unit_of_machine(machines)])
        return found

    def _unit_of_machine(self, machines: int) -> Ints:
        """Return the unit number of every machine; all are in the first unit if it is larger than arrays allow."""
        found: Ints = np.arange(machines) // min(self.nodes_per_unit, machines)
        return found

    def grow(self, site: Site, leaves: Mapping[int, Mapping[int, float]], below: EdgeData) -> None:
        """Add spines and cores over leaf switches given by unit, each with the line rate (B/s) of its full ports.

        ``below`` has the cables' attributes, where the document does not state them.
        """
        pods: dict[int, dict[int, float]] = {}
        for unit, own in leaves.items():
            pods.setdefault(unit // self.units_per_pod if self.units_per_pod else 0, {}).update(own)
        if sum(map(len, pods.values())) < 2:
            return
        cable = self.leaf_to_spine.cable(below)
        widest = max(rate for pod in pods.values() for rate in pod.values())
        count = _count_cables(widest / self.oversubscription, cable)
        full = max(len(pod) for pod in pods.values())
        check_link_count(count * sum(map(len, pods.values())), "leaf - spine")
        spines: list[list[int]] = []
        for number, pod in pods.items():
            pod_name = f"pod{number}." if len(pods) > 1 else ""
            spines.append(site.switches([f"{pod_name}spine{i}" for i in range(count)], "spine"))
            site.join({leaf: rate / self.oversubscription for leaf, rate in pod.items()}, spines[-1], cable)
        if len(pods) > 1:
            self._add_cores(site, spines, full * widest / self.oversubscription / count, cable)

    def _add_cores(self, site: Site, spines: Sequence[Sequence[int]], down: float, below: EdgeData) -> None:
        """Add core switches over the spines, each of which has ``down`` B/s of line rate to a full pod's leaves."""
        cable = (self.spine_to_core or UplinkSpec()).cable(below)
        up = down / self.spine_oversubscription
        count = _count_cables(up, cable)
        check_link_count(count * len(spines) * len(spines[0]), "spine - core")
        for plane in range(len(spines[0])):
            cores = site.switches([f"core{plane}.{i}" for i in range(count)], "core")
            site.join({pod[plane]: up for pod in spines}, cores, cable)


class FatTreeSpec(TreeSpec):
    """Fat tree in which all NICs of a node are on one leaf switch, that of the node's unit."""

    kind: Literal["fat_tree"]

    def add(self, site: Site, ports: Sequence[NicPort], machines: int) -> None:
        """Add the fat tree's switches and links, by unit."""
        self.add_by_unit(site, ports, machines)


class RailOptimisedSpec(TreeSpec):
    """Fat tree with one leaf switch per rail and unit (a group of nodes), and spine switches that connect all rails."""

    kind: Literal["rail_optimised"]

    def add(self, site: Site, ports: Sequence[NicPort], machines: int) -> None:
        """Add the switches and links of a rail-optimised fat tree."""
        self.add_by_rail(site, ports, machines)


class RailOnlySpec(TreeSpec):
    """Fabric with a separate tree per rail; traffic between rails first goes over NVLink to the other rail (PXN).

    Source: W. Wang et al., "Rail-only: a low-cost high-performance network for training LLMs with trillion parameters",
    arXiv:2307.12169.
    """

    kind: Literal["rail_only"]

    def add(self, site: Site, ports: Sequence[NicPort], machines: int) -> None:
        """Add switches unit0.leaf0 (rail 0), ..., rail0.spine0, ..., and the links between NICs and switches."""
        link_of = {port.rail: port.link for port in reversed(ports)}
        for rail, of_unit in self.rail_leaves(site, ports, machines).items():
            own = Site(site.draft, site.network, f"{site.prefix}rail{rail}.")
            self.grow(own, {unit: dict([leaf]) for unit, leaf in of_unit.items()}, link_of[rail])


def _full_rate(ports: Sequence[NicPort], machines: int) -> float:
    return machines * sum(float(port.link["line_rate"]) for port in ports)


def _count_cables(rate: float, cable: EdgeData) -> int:
    return max(1, int(rate / cable["line_rate"] * (1 + 1e-12)))  # 1e-12: 3 x 0.1 is still 3 cables
