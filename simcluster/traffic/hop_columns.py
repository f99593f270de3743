"""Hops of collectives as arrays: their routes and loads on links, computed for all hops at once.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints, unique_inverse
from simcluster.base.link_columns import LinkColumn, TreeFlows
from simcluster.collectives.description import Hop, HopList, LazyHopList, Phase
from simcluster.collectives.tree import DoubleTreeHops
from simcluster.traffic.traffic import Fabric


def find_double_tree_loads(fabric: Fabric, gpus: Ints, phases: Sequence[Phase]) -> tuple[float, LinkColumn] | None:
    """Return a double tree's data share per hop and its flows on every link; None if there is no closed form.

    None for other phases, or where the cluster has no closed form.
    """
    if not all(phase.pipelined for phase in phases):
        return None
    hops = [phase.hops for phase in phases if isinstance(phase.hops, DoubleTreeHops)]
    if not hops or len(hops) < len(phases) or any(each.walks is not hops[0].walks for each in hops):
        return None
    pairs: Counter[tuple[int, int]] = Counter()
    for each in hops:
        pairs.update(_count_hops_per_pair(each))
    below, above, tree = _tree_edges(hops[0])
    source = np.concatenate([below if each.up else above for each in hops])
    target = np.concatenate([above if each.up else below for each in hops])
    tree = np.tile(tree, len(hops))
    walks = hops[0].walks
    rails = [(order[0], 2 * rail) for rail, order in enumerate(walks.orders)]
    load = fabric.tree_link_loads(TreeFlows(gpus.reshape(walks.many, walks.size), pairs, source, target, rails, tree))
    return None if load is None else (hops[0].hop_share, load)


def _count_hops_per_pair(hops: DoubleTreeHops) -> Counter[tuple[int, int]]:
    """Count the hops between each pair of local ranks in a node; both trees contain the same chains of ranks."""
    found: Counter[tuple[int, int]] = Counter()
    for order in hops.walks.orders:
        for above, below in pairwise(order):
            found[(below, above) if hops.up else (above, below)] += 2
    return found


def _tree_edges(hops: DoubleTreeHops) -> tuple[Ints, Ints, Ints]:
    """Return arrays (child node, parent node, tree) of the hops between nodes; all rails have the same hops."""
    below = [np.flatnonzero(parents >= 0) for parents in hops.parents]
    above = [parents[own] for own, parents in zip(below, hops.parents, strict=True)]
    tree = np.repeat([0, 1], [len(own) for own in below])
    return np.concatenate(below), np.concatenate(above), tree


UNITS = 2.0**20
"""Weights that are multiples of its inverse are added up without rounding, in any order."""


@dataclass(frozen=True)
class HopColumns:
    """Hops of a collective's phases as arrays, by group position; ``weight`` is relative to the largest share."""

    share: float
    weight: Floats
    source: Ints
    target: Ints
    relay: Ints
    channel: Ints
    flow: Ints

    @classmethod
    def from_phases(cls, phases: Sequence[Phase]) -> HopColumns:
        """Return the hops of all phases as arrays, phase by phase."""
        parts = [cls._as_hop_list(phase.hops) for phase in phases]
        hops = parts[0] if len(parts) == 1 else HopList.concatenate(parts)
        share, flow = float(hops.share.max()), hops.channel + hops.lane
        relay = np.where(hops.relay == hops.source, -1, hops.relay)
        return cls(share, hops.share / share, hops.source, hops.target, relay, hops.channel, flow)

    @staticmethod
    def _as_hop_list(hops: Sequence[Hop]) -> HopList:
        if isinstance(hops, HopList | LazyHopList):
            return hops if isinstance(hops, HopList) else hops.hop_list
        hops = list(hops)  # of some each look makes them anew
        whole = [(hop.source, hop.target, hop.relay, hop.channel, hop.chunk, hop.lane) for hop in hops]
        source, target, *others = np.array(whole, dtype=np.int64).T
        return HopList(source, target, np.array([hop.share for hop in hops]), *others)

    def fold_into_window(self, group_size: int, window_size: int) -> tuple[HopColumns, Ints] | None:
        """Return the hops from the first ``window_size`` positions, and for every hop the index of its equivalent.

        Each has its full weight; the positions are ``group_size``. None where some hop has no such counterpart of equal
        weight for each of the other parts, or where adding up weights needs rounding.
        """
        turn = self.source // window_size
        source, target = self.source - turn * window_size, (self.target - turn * window_size) % group_size
        relay = np.where(self.relay < 0, -1, (self.relay - turn * window_size) % group_size)
        flows = int(self.flow.max(initial=0)) + 1
        name = ((source * group_size + target) * (group_size + 1) + relay + 1) * flows + self.flow
        names, first, which = np.unique(name, return_index=True, return_inverse=True)
        turns = group_size // window_size
        weight = np.bincount(which * turns + turn, self.weight, len(names) * turns).astype(float).reshape(-1, turns)
        units = self.weight * UNITS
        if (weight != weight[:, :1]).any() or (units != np.floor(units)).any():
            return None
        hops = HopColumns(self.share, weight[:, 0], source[first], target[first], relay[first], self.channel[first],
                     self.flow[first])  # fmt: skip
        return hops, which

    def hop_routes(self, fabric: Fabric, members: Ints) -> tuple[Ints, Ints, Floats, Floats]:
        """Return the routes of all groups' hops as rows (hop, link, fraction of bytes), and each hop's latency (s).

        Hops are numbered group by group.
        """
        source, target = members[:, self.source].ravel(), members[:, self.target].ravel()
        flow = np.tile(self.flow, len(members))
        relayed: Bools = np.tile(self.relay >= 0, len(members))
        if not relayed.any():
            return fabric.route_rows(source, target, flow)
        relay = np.where(relayed, members[:, self.relay].ravel(), target)
        first = fabric.route_rows(source, relay, flow)
        then = np.flatnonzero(relayed)
        second = fabric.route_rows(relay[then], target[then], flow[then])
        hop = np.append(first[0], then[second[0]])
        order = np.argsort(hop, kind="stable")
        hop, link, fraction = hop[order], np.append(first[1], second[1])[order], np.append(first[2], second[2])[order]
        return hop, link, fraction, fabric.route_latencies(hop, link, fraction, len(source))

    def sum_group_flows(self, hop: Ints, link: Ints, fraction: Floats) -> tuple[Ints, Ints, Floats]:
        """Sum the hops' routes to flows of each group on each link; return sorted arrays (group, link, flows).

        Sums are in the order of hops, as for one group.
        """
        group, number = np.divmod(hop, len(self.weight))
        width = int(link.max(initial=0)) + 1
        there, place = unique_inverse(group * width + link)
        flows = np.bincount(place, self.weight[number] * fraction, len(there))
        found: Ints = there // width
        return found, there - found * width, flows.astype(np.float64)
