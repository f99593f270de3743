"""Parallel aggregated trees: all-gather and reduce-scatter in log2(N) rounds for any number of ranks.

Every chunk travels a binomial tree of its own, and a round sends what it has for one distance together: the farthest
first, with one chunk, the nearest last, with half of all, so that little crosses the far links.  Closed form on a
uniform network: ceil(log2 N) alpha + (N-1)/N S/B.  Source: S. Jeaugey, "PAT: a new algorithm for all-gather and
reduce-scatter operations at scale", 2025 (arXiv:2506.20252); NCCL runs it with one GPU a node.
Imports description and group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simcluster.collectives.description import Hop, Phase
from simcluster.collectives.group import Group


def all_gather(group: Group) -> Sequence[Phase]:
    """In the round of distance d a place hands on, d places up, what came from 0, 2d, 4d, ... places below it."""
    ranks = group.num_ranks
    return tuple(
        Phase(rounds=1, hops=tuple(_hops(group, 1 << bit)), chunks=ranks, reduces=False)
        for bit in reversed(range((ranks - 1).bit_length()))
    )


def reduce_scatter(group: Group) -> Sequence[Phase]:
    """The same backwards: every chunk's sum comes down the tree by which it would have gone out."""
    return tuple(
        Phase(
            rounds=1,
            hops=tuple(
                Hop(hop.target, hop.source, hop.share, chunk=hop.chunk, count=hop.count, stride=hop.stride)
                for hop in phase.hops
            ),
            chunks=phase.chunks,
            reduces=True,
        )
        for phase in reversed(all_gather(group))
    )


def _hops(group: Group, distance: int) -> Iterator[Hop]:
    """What each place sends; the chunk of place p is number p, so a way around the end makes two hops."""
    ranks, places, stride = group.num_ranks, group.places, 2 * distance
    below = range(0, ranks - distance, stride)
    for place, source in enumerate(places):
        target = places[(place + distance) % ranks]
        straight = min(len(below), place // stride + 1)  # those of the places below that do not go around the end
        for count, lowest in ((straight, place - (straight - 1) * stride),
                              (len(below) - straight, place + ranks - below[-1])):  # fmt: skip
            if count:
                yield Hop(source, target, count / ranks, chunk=lowest, count=count, stride=stride)
