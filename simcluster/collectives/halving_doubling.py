"""Recursive halving and doubling: log2(N) rounds in which pairs of ranks exchange data.

Closed forms on a uniform network (N = 2^k ranks, port B, alpha per round): all-reduce 2 log2(N) alpha + 2 (N-1)/N S/B,
reduce-scatter and all-gather half of it (MODELLING.md D.1). The nearest partner takes the largest part, so that most
bytes stay in the node (R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004: vector halving,
distance doubling).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simcluster.collectives.description import Hop, Phase
from simcluster.collectives.group import Group


def reduce_scatter(group: Group) -> Sequence[Phase]:
    """Return the reduce-scatter: in round k, ranks 2^k apart exchange halves of their current data."""
    return tuple(_make_round(group, k, reduces=True) for k in range(_count_rounds(group)))


def all_gather(group: Group) -> Sequence[Phase]:
    """Return the all-gather: the reduce-scatter's rounds in reverse order; each doubles a rank's data."""
    return tuple(_make_round(group, k, reduces=False) for k in reversed(range(_count_rounds(group))))


def unsupported_reason(group: Group) -> str:
    """Return why a group is not supported (its number of ranks is not a power of two), or "" if it is.

    >>> unsupported_reason(Group(hosts=[0] * 6, nics=[()] * 6, nvswitches=[""] * 6))
    'halving_doubling needs a power-of-two number of ranks, but this group has 6: use 4 or 8 ranks, or algorithm ring'
    """
    ranks, rounds = group.num_ranks, _count_rounds(group)
    if ranks == 1 << rounds:
        return ""
    return (
        f"halving_doubling needs a power-of-two number of ranks, but this group has {ranks}: use {1 << rounds} or "
        f"{2 << rounds} ranks, or algorithm ring"
    )


def reduce_scatter_seconds(ranks: int, latency: float, transfer: float) -> float:
    """Return the time (s) of a reduce-scatter or all-gather on a uniform network.

    >>> reduce_scatter_seconds(8, 1.0, 8.0)
    10.0
    """
    return math.log2(ranks) * latency + (ranks - 1) / ranks * transfer


def _count_rounds(group: Group) -> int:
    return group.num_ranks.bit_length() - 1


def _make_round(group: Group, k: int, *, reduces: bool) -> Phase:
    """Build round k: a rank whose bit k is 0 keeps the lower half of its data, its partner the upper half.

    Reducing, each sends the half that it does not keep; gathering, the half that it has.
    """
    ranks, places = group.num_ranks, group.positions_in_node_order
    half, partner = ranks >> (k + 1), 1 << k
    share = half / ranks
    parts = [0]  # first chunk of what a place has before round k: its bits below k, the lowest weighing most
    for bit in range(k):
        parts += [part + (ranks >> (bit + 1)) for part in parts]
    hops = []
    for place, source in enumerate(places):
        sends_upper = (place & partner == 0) if reduces else (place & partner != 0)
        chunk = parts[place % partner] + (half if sends_upper else 0)
        hops.append(Hop(source, places[place ^ partner], share, chunk=chunk, count=half))
    return Phase(rounds=1, hops=tuple(hops), chunks=ranks, reduces=reduces)
