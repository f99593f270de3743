"""Dragonfly+: groups that are two-level trees, each pair of groups joined directly by links between their spines.

Source: A. Shpiner et al., "Dragonfly+: low cost topology for scaling datacenters", HiPINEB 2017.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from simcluster.documents.diagnostics import Complaint, listed
from simcluster.documents.spec import Count, Spec
from simcluster.topology.links import EdgeData
from simcluster.topology.machine_parts import NicPort
from simcluster.topology.sizes import check_links
from simcluster.topology.trees import Ratio, Site, UplinkSpec


class DragonflyPlusSpec(Spec):
    """Groups of ``leaves_per_group`` leaves with ``nodes_per_leaf`` machines each, all NICs of a machine on one leaf.

    In a group every leaf has a link to every spine; together they carry its NICs' line rate / ``oversubscription``.
    Every spine has ``global_links_per_spine`` links out of the group, dealt out so that each pair of groups has equally
    many, with the line rate of a leaf's link to a spine unless given.  Routes are minimal: at most one global link, so
    of a pair of groups only the spines that have one for it carry its traffic.
    """

    kind: Literal["dragonfly_plus"]
    nodes_per_leaf: Count
    leaves_per_group: Count
    spines_per_group: Count
    global_links_per_spine: Count
    oversubscription: Ratio = 1.0
    leaf_to_spine: UplinkSpec = UplinkSpec()
    spine_to_spine: UplinkSpec = UplinkSpec()

    def add(self, site: Site, ports: Sequence[NicPort], machines: int) -> None:
        """Switches group0.leaf0, ..., group0.spine0, ..., and the links from the ports on."""
        groups = machines // (self.nodes_per_leaf * self.leaves_per_group)
        check_links(groups * self.leaves_per_group * self.spines_per_group, "leaf - spine")
        check_links(groups * self.spines_per_group * self.global_links_per_spine, "spine - spine")
        leaves = [
            site.switches([f"group{g}.leaf{i}" for i in range(self.leaves_per_group)], "leaf") for g in range(groups)
        ]
        spines = [
            site.switches([f"group{g}.spine{i}" for i in range(self.spines_per_group)], "spine") for g in range(groups)
        ]
        in_order = [leaf for group in leaves for leaf in group]
        site.attach(ports, np.array(in_order)[np.arange(machines) // self.nodes_per_leaf])
        down = self.nodes_per_leaf * sum(port.link["line_rate"] for port in ports)
        cable = uplink = self.leaf_to_spine.cable(ports[0].link)
        for own, above in zip(leaves, spines, strict=True):
            uplink = site.join(dict.fromkeys(own, down / self.oversubscription), above, cable)
        self._join_groups(site, spines, self.spine_to_spine.cable(uplink))

    def complaints(self, machines: int) -> list[Complaint]:
        """What does not come out even with so many machines: every leaf, group and pair of groups must be alike."""
        size = self.nodes_per_leaf * self.leaves_per_group
        if machines % size:
            near = listed(n * size for n in (machines // size, machines // size + 1) if n)
            sizes = f"nodes_per_leaf {self.nodes_per_leaf} x leaves_per_group {self.leaves_per_group} = {size}"
            return [((), f"{machines} machines do not fill whole groups of {sizes}; use {near} nodes")]
        others, spines, links = machines // size - 1, self.spines_per_group, self.global_links_per_spine
        if others and spines * links % others:
            step = others // math.gcd(spines, others)
            near = listed(n for n in (links // step * step, links // step * step + step) if n)
            what = f"the {spines} x {links} = {spines * links} global links of a group's spines"
            rule = f"do not divide among its {others} other groups, and every pair of groups has as many"
            return [(("global_links_per_spine",), f"{what} {rule}; use {near}")]
        return []

    def _join_groups(self, site: Site, spines: Sequence[Sequence[int]], cable: EdgeData) -> None:
        """Global link l of a pair of groups ends at the next spine of either, counted by distance around the groups."""
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
                    site.draft.connect(pair[:1], pair[1:], cable | rates)
