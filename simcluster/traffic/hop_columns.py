"""Hops of collectives as arrays: routes of all hops at once, and their loads on links; trees of chains.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints, compact
from simcluster.base.link_columns import PerLink, TreeFlows
from simcluster.collectives.description import ColumnHops, Hop, HopList, Phase
from simcluster.collectives.tree import ChainedTrees
from simcluster.traffic.traffic import Fabric


def load_chained_trees(fabric: Fabric, gpus: Ints, phases: Sequence[Phase]) -> tuple[float, PerLink] | None:
    """Return the activity of one group's double tree of chains: its share, and its flows on every link.

    None for other phases, or where the cluster has no closed form.
    """
    if not all(phase.pipelined for phase in phases):
        return None
    hops = [phase.hops for phase in phases if isinstance(phase.hops, ChainedTrees)]
    if not hops or len(hops) < len(phases) or any(each.walks is not hops[0].walks for each in hops):
        return None
    pairs: Counter[tuple[int, int]] = Counter()
    for each in hops:
        pairs.update(_count_pairs(each))
    below, above, tree = _tree_edges(hops[0])
    source = np.concatenate([below if each.up else above for each in hops])
    target = np.concatenate([above if each.up else below for each in hops])
    tree = np.tile(tree, len(hops))
    walks = hops[0].walks
    rails = [(order[0], 2 * rail) for rail, order in enumerate(walks.orders)]
    load = fabric.loads(TreeFlows(gpus.reshape(walks.many, walks.size), pairs, source, target, rails, tree))
    return None if load is None else (hops[0].share, load)


def _count_pairs(hops: ChainedTrees) -> Counter[tuple[int, int]]:
    """Return the number of hops between each pair of places inside every node; each chain is in both trees."""
    found: Counter[tuple[int, int]] = Counter()
    for order in hops.walks.orders:
        for above, below in pairwise(order):
            found[(below, above) if hops.up else (above, below)] += 2
    return found


def _tree_edges(hops: ChainedTrees) -> tuple[Ints, Ints, Ints]:
    """Return the node, parent node and tree of hops between the heads of chains, equal on every rail."""
    below = [np.flatnonzero(parents >= 0) for parents in hops.parents]
    above = [parents[own] for own, parents in zip(below, hops.parents, strict=True)]
    tree = np.repeat([0, 1], [len(own) for own in below])
    return np.concatenate(below), np.concatenate(above), tree


UNITS = 2.0**20
"""Weights that are multiples of its inverse are added up without rounding, in any order."""


@dataclass(frozen=True)
class HopColumns:
    """Hops of phases in columns, by position in the group; ``weight`` is a hop's share relative to the largest."""

    share: float
    weight: Floats
    source: Ints
    target: Ints
    relay: Ints
    channel: Ints
    flow: Ints

    @classmethod
    def of(cls, phases: Sequence[Phase]) -> HopColumns:
        """Return the hops of all phases in columns, phase by phase."""
        parts = [cls._as_hop_list(phase.hops) for phase in phases]
        hops = parts[0] if len(parts) == 1 else HopList.joined(parts)
        share, flow = float(hops.share.max()), hops.channel + hops.lane
        relay = np.where(hops.relay == hops.source, -1, hops.relay)
        return cls(share, hops.share / share, hops.source, hops.target, relay, hops.channel, flow)

    @staticmethod
    def _as_hop_list(hops: Sequence[Hop]) -> HopList:
        if isinstance(hops, HopList | ColumnHops):
            return hops if isinstance(hops, HopList) else hops.listed
        hops = list(hops)  # of some each look makes them anew
        whole = [(hop.source, hop.target, hop.relay, hop.channel, hop.chunk, hop.lane) for hop in hops]
        source, target, *others = np.array(whole, dtype=np.int64).T
        return HopList(source, target, np.array([hop.share for hop in hops]), *others)

    def turned_back(self, size: int, cut: int) -> tuple[HopColumns, Ints] | None:
        """Return the hops that begin in the first ``cut`` positions, and the counterpart there of every hop.

        Each has its full weight; the positions are ``size``. None where some hop has no such counterpart of equal
        weight for each of the other parts, or where adding up weights needs rounding.
        """
        turn = self.source // cut
        source, target = self.source - turn * cut, (self.target - turn * cut) % size
        relay = np.where(self.relay < 0, -1, (self.relay - turn * cut) % size)
        flows = int(self.flow.max(initial=0)) + 1
        name = ((source * size + target) * (size + 1) + relay + 1) * flows + self.flow
        names, first, which = np.unique(name, return_index=True, return_inverse=True)
        turns = size // cut
        weight = np.bincount(which * turns + turn, self.weight, len(names) * turns).astype(float).reshape(-1, turns)
        units = self.weight * UNITS
        if (weight != weight[:, :1]).any() or (units != np.floor(units)).any():
            return None
        hops = HopColumns(self.share, weight[:, 0], source[first], target[first], relay[first], self.channel[first],
                     self.flow[first])  # fmt: skip
        return hops, which

    def ways(self, fabric: Fabric, members: Ints) -> tuple[Ints, Ints, Floats, Floats]:
        """Return the routes of all groups' hops as rows (hop, link, fraction), and the latency (s) of every hop.

        Hops are numbered group by group.
        """
        source, target = members[:, self.source].ravel(), members[:, self.target].ravel()
        flow = np.tile(self.flow, len(members))
        relayed: Bools = np.tile(self.relay >= 0, len(members))
        if not relayed.any():
            return fabric.routes(source, target, flow)
        relay = np.where(relayed, members[:, self.relay].ravel(), target)
        first = fabric.routes(source, relay, flow)
        then = np.flatnonzero(relayed)
        second = fabric.routes(relay[then], target[then], flow[then])
        hop = np.append(first[0], then[second[0]])
        order = np.argsort(hop, kind="stable")
        hop, link, fraction = hop[order], np.append(first[1], second[1])[order], np.append(first[2], second[2])[order]
        return hop, link, fraction, fabric.latencies(hop, link, fraction, len(source))

    def usages(self, hop: Ints, link: Ints, fraction: Floats) -> tuple[Ints, Ints, Floats]:
        """Return the flows of each group on each link as rows (group, link, flows), sorted, from the routes of hops.

        Sums are in the order of hops, as for one group.
        """
        group, number = np.divmod(hop, len(self.weight))
        width = int(link.max(initial=0)) + 1
        there, place = compact(group * width + link)
        flows = np.bincount(place, self.weight[number] * fraction, len(there))
        found: Ints = there // width
        return found, there - found * width, flows.astype(np.float64)
