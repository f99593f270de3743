"""Tokens to their experts and back with one copy for each machine, relayed inside it (DeepEP, HybridEP).

The size is what a rank would send with a copy for every expert that its tokens visit, so a copy for some ranks together
is a part of it: how often a token visits any of them, over the experts that it visits.  Between machines a token goes
along its rail once for each machine that it visits, and from the GPU there over NVLink once for each rank; inside its
own machine over NVLink at once.  Both are under way together: the slower of NVLink and NIC sets the pace.  Back it is
the other way round: what a machine's ranks give for a token is added up on its rail before it leaves.  Sources:
arXiv:2412.19437 section 3.2.2; deepseek-ai/DeepEP, csrc/kernels/internode.cu and Hybrid-EP_Implementation.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from simcluster.collectives.description import Hop, Phase
from simcluster.collectives.group import Group

DISPATCH, COMBINE = "expert_dispatch", "expert_combine"
"""Kinds of what travels: tokens to experts, and what these give back."""


@dataclass(frozen=True, slots=True)
class TokenRoutes:
    """A router's choice: ``top_k`` of ``experts``, which are in ``groups`` of which ``top_groups`` may be visited.

    All choices are equally likely (balanced experts).
    """

    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1

    def visits(self, experts: float) -> float:
        """How often a token visits any of so many experts that are next to each other, 0 to 1 (hypergeometric).

        >>> TokenRoutes(256, 8).visits(256), round(8 * TokenRoutes(256, 8).visits(32), 2)
        (1.0, 5.29)
        >>> round(8 * TokenRoutes(256, 8, groups=8, top_groups=4).visits(32), 2)
        3.63
        """
        own = self.experts // self.groups
        open_to = self.top_groups * own
        if experts < own:  # a part of a group
            return self.top_groups / self.groups * (1.0 - _none_of(open_to, round(experts), self.top_k))
        held = round(experts / own)
        chosen = range(max(0, held + self.top_groups - self.groups), min(held, self.top_groups) + 1)
        missed = sum(
            _ways(held, number, self.groups, self.top_groups) * _none_of(open_to, number * own, self.top_k)
            for number in chosen
        )
        return 1.0 - missed


def _none_of(experts: int, some: int, chosen: int) -> float:
    """How often so many that are chosen from all experts are none of some."""
    return comb(experts - some, chosen) / comb(experts, chosen)


def _ways(held: int, number: int, groups: int, chosen: int) -> float:
    """How often ``number`` of the ``chosen`` groups are among those ``held`` (hypergeometric)."""
    return comb(held, number) * comb(groups - held, chosen - number) / comb(groups, chosen)


def to_experts(group: Group, routes: TokenRoutes) -> Sequence[Phase]:
    """Dispatch: along the rails, and over NVLink from there on."""
    return _phases(_along_rails(group, routes), _inside(group, routes))


def from_experts(group: Group, routes: TokenRoutes) -> Sequence[Phase]:
    """Combine: over NVLink to the rail that the token came by, and along it."""
    return _phases(_back(_inside(group, routes)), _back(_along_rails(group, routes)))


def _along_rails(group: Group, routes: TokenRoutes) -> list[Hop]:
    """Every rank to one of every other machine, of its place there; the channel is the receiver's."""
    found = []
    machines = group.machines
    for turn in range(1, len(machines)):
        for number, ranks in enumerate(machines):
            there = machines[(number + turn) % len(machines)]
            share = routes.visits(routes.experts * len(there) / group.num_ranks) / routes.top_k
            for place, rank in enumerate(ranks):
                relay = there[place % len(there)]
                found.append(Hop(rank, relay, share, channel=relay, lane=turn))
    return found


def _inside(group: Group, routes: TokenRoutes) -> list[Hop]:
    """Every rank to the others of its machine, with its tokens and those that came to it; the channel is its own."""
    machines, found = group.machines, []
    each = routes.visits(routes.experts / group.num_ranks) / routes.top_k
    for ranks in machines:
        for place, rank in enumerate(ranks):
            came = sum(len(range(place, len(other), len(ranks))) for other in machines if other is not ranks)
            found += [Hop(rank, other, (1 + came) * each, channel=rank) for other in ranks if other != rank]
    return found


def _back(hops: Sequence[Hop]) -> list[Hop]:
    return [Hop(hop.target, hop.source, hop.share, channel=hop.channel, lane=hop.lane) for hop in hops]


def _phases(*hops: Sequence[Hop]) -> Sequence[Phase]:
    return tuple(Phase(rounds=1, hops=tuple(some), chunks=1, reduces=False, pipelined=True) for some in hops if some)


RELAYED = {DISPATCH: to_experts, COMBINE: from_experts}
"""The description of each kind."""
