"""All-to-all algorithms, for messages of equal or given sizes.

The size is a rank's send buffer, the part for itself included (the largest one, where they differ). Closed forms on a
uniform network: direct alpha + (N-1)/N S/B, pairwise (N-1)(alpha + S/(N B)); of uneven sizes s_ij at least max_i
max(sum_j s_ij, sum_j s_ji) / B, which direct reaches (MODELLING.md D.1, D.2). Places count the ranks node by node
(``Group.places``); the message from place i to place j is chunk i N + j.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.errors import InputError
from simcluster.collectives.description import Hop, HopList, HopTable, Lazy, Phase
from simcluster.collectives.entry import Parts
from simcluster.collectives.group import Group


def direct(group: Group, parts: Parts | None = None) -> Sequence[Phase]:
    """Return the direct all-to-all: all messages at once, as NCCL's grouped sends and receives, except empty ones."""
    ranks = group.num_ranks
    places = np.array(group.places, dtype=np.int64)
    numbers, sizes = None, np.full(1, 1 / max(ranks, 1))
    if parts is not None:
        share = _message_share(group, parts)
        turns = range(1, ranks)
        sizes = np.array([share(i, (i + turn) % ranks) for turn in turns for i in range(ranks)], dtype=np.float64)
        numbers = np.flatnonzero(sizes)

    def columns(asked: Ints) -> HopList:
        every = asked if numbers is None else numbers[asked]
        turn, i = every // ranks + 1, every % ranks
        j = (i + turn) % ranks
        carried = sizes if numbers is None else sizes[every]
        return HopList.of(places[i], places[j], carried, chunk=i * ranks + j, lane=turn)

    return (_make_round(HopTable(ranks * (ranks - 1) if numbers is None else len(numbers), columns)),)


def direct_seconds(ranks: int, latency: float, transfer: float) -> float:
    """Return the time of ``direct`` on a uniform network."""
    return latency + (ranks - 1) / ranks * transfer


def pairwise(group: Group, parts: Parts | None = None) -> Sequence[Phase]:
    """Return the pairwise all-to-all of N - 1 rounds: in round k every rank sends to the rank k + 1 places further."""
    ranks, places, share = group.num_ranks, group.places, _message_share(group, parts)

    def make(number: int) -> Phase:
        pairs = [(i, (i + number + 1) % ranks) for i in range(ranks)]
        hops = (Hop(places[i], places[j], share(i, j), chunk=i * ranks + j, lane=number + 1) for i, j in pairs)
        return _make_round(tuple(hop for hop in hops if hop.share))

    return Lazy(ranks - 1, make)


def hierarchical(group: Group, parts: Parts | None = None) -> Sequence[Phase]:
    """Return the two-level all-to-all: over NVLink to the GPU on the receiver's rail, then along the rail.

    m nodes of g ranks, as many in each. First g-1 rounds inside the nodes, each with what is for one rail: m messages;
    then m-1 rounds over the nodes, each with what is for one node: g messages. (g-1)(alpha1 + S/(g B1)) + (m-1)(alpha2
    + S/(m B2)).
    """
    machines = group.machines
    each, many, ranks, places = len(machines[0]), len(machines), group.num_ranks, group.places
    share = _message_share(group, parts)

    def to_rail(number: int) -> Phase:
        hops = []
        for i in range(ranks):
            local = (i + number + 1) % each
            carried = many / ranks if parts is None else sum(share(i, j) for j in range(local, ranks, each))
            target = places[i - i % each + local]
            hops.append(Hop(places[i], target, carried, chunk=i * ranks + local, count=many, stride=each))
        return _make_round(tuple(hop for hop in hops if hop.share))

    def along_rail(number: int) -> Phase:
        hops = []
        for i in range(ranks):
            j, first = (i + (number + 1) * each) % ranks, i - i % each
            carried = each / ranks if parts is None else sum(share(s, j) for s in range(first, first + each))
            chunk, lane = first * ranks + j, number + 1
            hops.append(Hop(places[i], places[j], carried, chunk=chunk, count=each, stride=ranks, lane=lane))
        return _make_round(tuple(hop for hop in hops if hop.share))

    return Lazy(each - 1 + many - 1, lambda k: to_rail(k) if k < each - 1 else along_rail(k - each + 1))


def _make_round(hops: Sequence[Hop]) -> Phase:
    return Phase(rounds=1, hops=hops, chunks=1, reduces=False)


def _message_share(group: Group, parts: Parts | None) -> Callable[[int, int], float]:
    """Return a function that gives the message from place i to place j as a fraction of the size."""
    ranks, places = group.num_ranks, group.places
    if parts is None:
        return lambda i, j: 1 / ranks
    if len(parts) != ranks or any(len(row) != ranks for row in parts):
        raise InputError(f"all_to_all over {ranks} ranks needs the sizes of {ranks} x {ranks} messages, row by sender")
    wrong = [size for row in parts for size in row if not (size >= 0 and math.isfinite(size))]
    if wrong:
        raise InputError(f"all_to_all: {wrong[0]!r} is not the size of a message; it is 0 or more")
    largest = max(math.fsum(row) for row in parts)
    if largest == 0:
        raise InputError("all_to_all: all messages are empty; at least one has a size above 0")
    return lambda i, j: parts[places[i]][places[j]] / largest


def busiest_port(parts: Parts) -> float:
    """Return the bytes that the busiest rank sends or receives; messages to itself do not count.

    Over the bandwidth of a port the least time that uneven sizes take (MODELLING.md D.1).

    >>> busiest_port([[0.0, 5.0], [2.0, 0.0]])
    5.0
    """
    sends = [math.fsum(row) - row[i] for i, row in enumerate(parts)]
    receives = [math.fsum(row[j] for row in parts) - parts[j][j] for j in range(len(parts))]
    return max(*sends, *receives)
