"""Ring collectives over all rings of a group, and point-to-point sends.

Closed forms on a uniform network (N ranks, port B, alpha per step): all-reduce 2(N-1)(alpha + S/(N B)), reduce-scatter
and all-gather half of it. Source: Patarasuk & Yuan 2009 (bandwidth-optimal all-reduce); MODELLING.md D.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simcluster.collectives.description import Hop, HopList, Phase
from simcluster.collectives.group import Group


def reduce_scatter(group: Group) -> Sequence[Phase]:
    """Return the ring reduce-scatter of N-1 rounds; the rank at ring index i ends with the sum of chunk i + 1."""
    return (_make_phase(group, first_chunk=0, reduces=True),)


def all_gather(group: Group) -> Sequence[Phase]:
    """Return the ring all-gather of N-1 rounds; the rank at ring index i starts with chunk i + 1 (modulo N)."""
    return (_make_phase(group, first_chunk=1, reduces=False),)


def send_phases(group: Group) -> Sequence[Phase]:
    """Return a point-to-point transfer of the whole size from position 0 to position 1."""
    del group
    return (Phase(rounds=1, hops=(Hop(source=0, target=1, share=1.0),), chunks=1, reduces=False),)


def send_recv_phases(group: Group) -> Sequence[Phase]:
    """Return one ring shift: every rank sends the whole size to the next position (nccl-tests, sendrecv).

    One step of a ring, as ring attention passes keys and values on: alpha + S / B.
    """
    ranks = group.num_ranks
    hops = tuple(Hop(source=i, target=(i + 1) % ranks, share=1.0, chunk=i) for i in range(ranks))
    return (Phase(rounds=1, hops=hops if ranks > 1 else (), chunks=1, reduces=False),)


def ring_hops(order: Sequence[int], first: int, *, share: float, count: int = 1, base: int = 0) -> Iterator[Hop]:
    """Generate the hops of one ring through the positions in ``order``, without relays.

    Its data are ``len(order)`` parts of ``count`` chunks from chunk ``base`` on; the rank at place i begins with part i
    + ``first``.
    """
    size = len(order)
    for place, source in enumerate(order):
        part = base + (place + first) % size * count
        yield Hop(source=source, target=order[(place + 1) % size], share=share, chunk=part, count=count)


def _make_phase(group: Group, first_chunk: int, *, reduces: bool) -> Phase:
    size, rings = group.num_ranks, group.rings
    hops: Sequence[Hop] = ()
    if size > 1:
        chunk, share = (np.arange(size) + first_chunk) % size, 1.0 / (size * len(rings))
        orders, relays = (
            np.array([getattr(ring, name) for ring in rings], dtype=np.int64) for name in ("order", "relays")
        )
        hops = HopList.concatenate(
            [
                HopList.from_columns(order, np.roll(order, -1), share, relay=relay, channel=channel, chunk=chunk)
                for channel, (order, relay) in enumerate(zip(orders, relays, strict=True))
            ]
        )
    return Phase(rounds=size - 1, hops=hops, chunks=size, reduces=reduces)
