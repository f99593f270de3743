"""MoE dispatch and combine that send one copy of a token per node and relay it inside (DeepEP, HybridEP).

The size is what a rank would send with a copy for every expert that its tokens visit, so a copy for some ranks together
is a part of it: how often a token visits any of them, over the experts that it visits. Between nodes a token goes along
its rail once for each node that it visits, and from the GPU there over NVLink once for each rank; inside its sender's
node over NVLink at once. Both overlap: the slower of NVLink and NIC sets the pace. Back it is the other way round: what
a node's ranks give for a token is added up on its rail before it leaves. Sources: arXiv:2412.19437 section 3.2.2;
deepseek-ai/DeepEP, csrc/kernels/internode.cu and Hybrid-EP_Implementation.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, fsum

from simcluster.base.arrays import Floats
from simcluster.collectives.description import Hop, Phase
from simcluster.collectives.group import Group

DISPATCH, COMBINE = "expert_dispatch", "expert_combine"
"""Kinds of relayed traffic: tokens sent to experts, and expert outputs sent back."""


@dataclass(frozen=True, slots=True)
class ExpertRouting:
    """Routing of each token to ``top_k`` of ``experts``, limited to ``top_groups`` of ``groups`` of experts.

    All choices are equally likely (balanced experts); ``routing_distribution`` has those of uneven ones.
    """

    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1

    def block_visit_fraction(self, experts: float) -> float:
        """Return the fraction of tokens routed to a block of ``experts`` consecutive experts, averaged over blocks.

        Blocks begin at multiples of their size. Where they are whole groups, or groups whole blocks, all are equal.

        >>> ExpertRouting(8, 2).block_visit_fraction(8), round(8 * ExpertRouting(256, 8).block_visit_fraction(32), 2)
        (1.0, 5.29)
        >>> round(8 * ExpertRouting(256, 8, groups=8, top_groups=4).block_visit_fraction(32), 2)
        3.63
        >>> round(6 * ExpertRouting(144, 6, groups=8, top_groups=3).block_visit_fraction(24), 2)
        3.03
        """
        size = round(experts)
        each = [self.visit_fraction(range(first, first + size)) for first in range(0, self.experts - size + 1, size)]
        return each[0] if len(set(each)) == 1 else fsum(each) / len(each)

    def visit_fraction(self, experts: Iterable[int]) -> float:
        """Return the fraction of tokens routed to at least one of these experts."""
        own = self.experts // self.groups
        held = Counter(expert // own for expert in experts)
        left = tuple(sorted(own - held[group] for group in range(self.groups)))
        choices = comb(self.groups, self.top_groups) * comb(self.top_groups * own, self.top_k)
        return (choices - _count_routing_choices(left, self.top_groups, self.top_k)) / choices


@lru_cache(maxsize=1 << 12)
def _count_routing_choices(experts: tuple[int, ...], top_groups: int, top_k: int) -> int:
    """Count the ways to choose ``top_groups`` groups and ``top_k`` experts in them; ``experts`` is per group."""
    if len(set(experts)) == 1 or top_groups == len(experts):
        return comb(len(experts), top_groups) * comb(sum(experts) * top_groups // len(experts), top_k)
    counts = Counter({(0, 0): 1})  # by groups and experts chosen so far
    for own in experts:
        for (groups, chosen), many in list(counts.items()):
            if groups < top_groups:
                for number in range(min(own, top_k - chosen) + 1):
                    counts[groups + 1, chosen + number] += many * comb(own, number)
    return counts[top_groups, top_k]


def dispatch_phases(group: Group, routes: ExpertRouting) -> Sequence[Phase]:
    """Return the phases that dispatch tokens to experts: along rails between nodes, over NVLink inside nodes."""
    return tuple(phase for level in dispatch_phases_by_level(group, routes) for phase in level)


def combine_phases(group: Group, routes: ExpertRouting) -> Sequence[Phase]:
    """Return the phases that combine expert outputs: over NVLink to the rail's GPU, then back along the rail."""
    return _make_phases(_reversed_hops(_hops_inside_nodes(group, routes)), _reversed_hops(_rail_hops(group, routes)))


def dispatch_phases_by_level(group: Group, routes: ExpertRouting) -> tuple[Sequence[Phase], Sequence[Phase]]:
    """Return the dispatch as two concurrent parts: the phases between nodes, and the phases inside nodes."""
    return _make_phases(_rail_hops(group, routes)), _make_phases(_hops_inside_nodes(group, routes))


def experts_of_positions(positions: Iterable[int], routes: ExpertRouting, ranks: int) -> list[int]:
    """Return the experts held at these positions of an ep group; consecutive, equally many per rank."""
    bounds = [round(routes.experts * rank / ranks) for rank in range(ranks + 1)]
    return [expert for rank in positions for expert in range(bounds[rank], bounds[rank + 1])]


def _rail_hops(group: Group, routes: ExpertRouting) -> list[Hop]:
    """Return hops from each rank to its same-rail peer in every other node; ``channel`` is the receiver."""
    found = []
    machines = group.positions_by_node
    for turn in range(1, len(machines)):
        for number, ranks in enumerate(machines):
            there = machines[(number + turn) % len(machines)]
            share = routes.visit_fraction(experts_of_positions(there, routes, group.num_ranks)) / routes.top_k
            for place, rank in enumerate(ranks):
                relay = there[place % len(there)]
                found.append(Hop(rank, relay, share, channel=relay, lane=turn))
    return found


def _hops_inside_nodes(group: Group, routes: ExpertRouting) -> list[Hop]:
    """Return hops from each rank to the other ranks in its node, for the rank's own tokens and for relayed tokens."""
    machines, found = group.positions_by_node, []
    experts = [experts_of_positions((rank,), routes, group.num_ranks) for rank in range(group.num_ranks)]
    each = [routes.visit_fraction(own) / routes.top_k for own in experts]
    for ranks in machines:
        for place, rank in enumerate(ranks):
            came = sum(len(range(place, len(other), len(ranks))) for other in machines if other is not ranks)
            found += [Hop(rank, other, (1 + came) * each[other], channel=rank) for other in ranks if other != rank]
    return found


def _reversed_hops(hops: Sequence[Hop]) -> list[Hop]:
    return [Hop(hop.target, hop.source, hop.share, channel=hop.channel, lane=hop.lane) for hop in hops]


def _make_phases(*hops: Sequence[Hop]) -> Sequence[Phase]:
    return tuple(Phase(rounds=1, hops=tuple(some), chunks=1, reduces=False, pipelined=True) for some in hops if some)


RELAYED = {DISPATCH: dispatch_phases, COMBINE: combine_phases}
"""Function that returns the phases, for each kind of relayed traffic."""


@dataclass(frozen=True, slots=True)
class RelayLinkTimes:
    """Busy time of each link, ``between`` and ``inside`` nodes, in seconds per byte of a balanced call.

    ``machines`` are the group's positions, node by node.
    """

    machines: tuple[tuple[int, ...], ...]
    between: Floats
    inside: Floats

    def slowdown_factor(self, between: float, inside: float) -> float:
        """Return the slowdown of a call if its traffic between and inside nodes is scaled by these factors."""
        busy = self.between + self.inside
        return float((between * self.between + inside * self.inside).max() / busy.max()) if busy.size else 1.0
