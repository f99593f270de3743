"""Broadcast from position 0 and reduce to position 0, along the group's rings (chain) or a binomial tree.

A chain passes the data on from rank to rank. In c pieces, each round one piece further, it would take (N-2+c)(alpha +
S/(c B)) on a uniform network (MODELLING.md D.1). NCCL keeps several pieces in flight, so that their latencies overlap;
the limit of that, for small pieces, is the pipeline of ``broadcast`` and ``reduce``: (N-1) alpha + S/B. A binomial tree
takes ceil(log2 N)(alpha + S/B).
"""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.collectives.description import Hop, Phase
from simcluster.collectives.group import Group


def broadcast(group: Group) -> Sequence[Phase]:
    """Return a pipelined broadcast from position 0 along every ring; each ring carries an equal part of the data."""
    return _make_pipeline(_chain_hops(group, leaves_root=True), reduces=False)


def reduce(group: Group) -> Sequence[Phase]:
    """Return a pipelined reduce to position 0 along every ring; each rank adds its data to the partial sum."""
    return _make_pipeline(_chain_hops(group, leaves_root=False), reduces=True)


def binomial_broadcast(group: Group) -> Sequence[Phase]:
    """Return a binomial-tree broadcast: ceil(log2 N) rounds, each over half the distance of the previous one."""
    distances = [1 << k for k in range((group.num_ranks - 1).bit_length())]
    return tuple(_binomial_round(group, distance, reduces=False) for distance in reversed(distances))


def binomial_reduce(group: Group) -> Sequence[Phase]:
    """Return a binomial-tree reduce: the rounds of the binomial broadcast in reverse, shortest distance first."""
    distances = [1 << k for k in range((group.num_ranks - 1).bit_length())]
    return tuple(_binomial_round(group, distance, reduces=True) for distance in distances)


def chain_seconds(ranks: int, latency: float, transfer: float) -> float:
    """Return the time (s) of a pipelined chain of ranks on a uniform network: (N-1) latencies + ``transfer``."""
    return (ranks - 1) * latency + transfer


def binomial_seconds(ranks: int, latency: float, transfer: float) -> float:
    """Return the time (s) of a binomial tree on a uniform network: ceil(log2 N) x (latency + ``transfer``)."""
    return (ranks - 1).bit_length() * (latency + transfer)


def _chain_hops(group: Group, *, leaves_root: bool) -> list[list[Hop]]:
    """Return each ring's hops in order from position 0, without the hop that closes the ring at position 0."""
    chains = []
    for channel, ring in enumerate(group.rings):
        turn = ring.order.index(0)
        order = [*ring.order[turn:], *ring.order[:turn], 0]
        relays = [*ring.relays[turn:], *ring.relays[:turn]]
        hops = [
            Hop(order[place], order[place + 1], 1 / len(group.rings), relays[place], channel)
            for place in range(group.num_ranks)
        ]
        chains.append(hops[:-1] if leaves_root else hops[1:])
    return chains


def _make_pipeline(chains: Sequence[Sequence[Hop]], *, reduces: bool) -> Sequence[Phase]:
    hops = tuple(hop for chain in chains for hop in chain)
    return (Phase(rounds=1, hops=hops, chunks=1, reduces=reduces, pipelined=True),)


def _binomial_round(group: Group, distance: int, *, reduces: bool) -> Phase:
    """Build one round of the binomial tree: one hop between each pair of ranks that are ``distance`` apart."""
    places = group.positions_in_node_order
    pairs = ((places[low], places[low + distance]) for low in range(0, group.num_ranks - distance, 2 * distance))
    hops = tuple(Hop(high, low, 1.0) if reduces else Hop(low, high, 1.0) for low, high in pairs)
    return Phase(rounds=1, hops=hops, chunks=1, reduces=reduces)
