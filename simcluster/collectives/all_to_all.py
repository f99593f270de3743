"""All-to-all algorithms (direct, pairwise, hierarchical) for equal or unequal message sizes.

The size is a rank's send buffer, the part for itself included (the largest one, where they differ). Closed forms on a
uniform network: direct alpha + (N-1)/N S/B, pairwise (N-1)(alpha + S/(N B)); of uneven sizes s_ij at least max_i
max(sum_j s_ij, sum_j s_ji) / B, which direct reaches (MODELLING.md D.1, D.2). Places count the ranks node by node
(``Group.positions_in_node_order``); the message from place i to place j is chunk i N + j.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.errors import InputError
from simcluster.collectives.description import BlockwiseHops, FunctionSequence, Hop, HopList, Phase
from simcluster.collectives.entry import MessageSizes
from simcluster.collectives.group import Group


def direct_phases(group: Group, parts: MessageSizes | None = None) -> Sequence[Phase]:
    """Return the direct all-to-all: one round with every non-empty message, like NCCL's grouped send/recv."""
    ranks = group.num_ranks
    places = np.array(group.positions_in_node_order, dtype=np.int64)
    numbers, sizes = None, np.full(1, 1 / max(ranks, 1))
    if parts is not None:
        share = _message_share_function(group, parts)
        turns = range(1, ranks)
        sizes = np.array([share(i, (i + turn) % ranks) for turn in turns for i in range(ranks)], dtype=np.float64)
        numbers = np.flatnonzero(sizes)

    def make_hops(asked: Ints) -> HopList:
        every = asked if numbers is None else numbers[asked]
        turn, i = every // ranks + 1, every % ranks
        j = (i + turn) % ranks
        carried = sizes if numbers is None else sizes[every]
        return HopList.from_columns(places[i], places[j], carried, chunk=i * ranks + j, lane=turn)

    return (_make_round(BlockwiseHops(ranks * (ranks - 1) if numbers is None else len(numbers), make_hops)),)


def direct_seconds(ranks: int, latency: float, transfer: float) -> float:
    """Return the time (s) of the direct all-to-all on a uniform network: latency + (N-1)/N of ``transfer``."""
    return latency + (ranks - 1) / ranks * transfer


def pairwise_phases(group: Group, parts: MessageSizes | None = None) -> Sequence[Phase]:
    """Return the pairwise all-to-all: N - 1 rounds; in round k each rank sends to the rank k + 1 positions ahead."""
    ranks, places, share = group.num_ranks, group.positions_in_node_order, _message_share_function(group, parts)

    def make_pairwise_round(number: int) -> Phase:
        pairs = [(i, (i + number + 1) % ranks) for i in range(ranks)]
        hops = (Hop(places[i], places[j], share(i, j), chunk=i * ranks + j, lane=number + 1) for i, j in pairs)
        return _make_round(tuple(hop for hop in hops if hop.share))

    return FunctionSequence(ranks - 1, make_pairwise_round)


def hierarchical_phases(group: Group, parts: MessageSizes | None = None) -> Sequence[Phase]:
    """Return the two-level all-to-all: first over NVLink to the node's GPU on the target's rail, then along it.

    m nodes of g ranks, as many in each. First g-1 rounds inside the nodes, each with what is for one rail: m messages;
    then m-1 rounds over the nodes, each with what is for one node: g messages. (g-1)(alpha1 + S/(g B1)) + (m-1)(alpha2
    + S/(m B2)).
    """
    machines = group.positions_by_node
    each, many, ranks, places = len(machines[0]), len(machines), group.num_ranks, group.positions_in_node_order
    share = _message_share_function(group, parts)

    def round_to_rail(number: int) -> Phase:
        hops = []
        for i in range(ranks):
            local = (i + number + 1) % each
            carried = many / ranks if parts is None else sum(share(i, j) for j in range(local, ranks, each))
            target = places[i - i % each + local]
            hops.append(Hop(places[i], target, carried, chunk=i * ranks + local, count=many, stride=each))
        return _make_round(tuple(hop for hop in hops if hop.share))

    def round_along_rail(number: int) -> Phase:
        hops = []
        for i in range(ranks):
            j, first = (i + (number + 1) * each) % ranks, i - i % each
            carried = each / ranks if parts is None else sum(share(s, j) for s in range(first, first + each))
            chunk, lane = first * ranks + j, number + 1
            hops.append(Hop(places[i], places[j], carried, chunk=chunk, count=each, stride=ranks, lane=lane))
        return _make_round(tuple(hop for hop in hops if hop.share))

    inside = each - 1  # rounds
    return FunctionSequence(
        inside + many - 1, lambda k: round_to_rail(k) if k < inside else round_along_rail(k - inside)
    )


def _make_round(hops: Sequence[Hop]) -> Phase:
    return Phase(rounds=1, hops=hops, chunks=1, reduces=False)


def _message_share_function(group: Group, parts: MessageSizes | None) -> Callable[[int, int], float]:
    """Return a function (sender, receiver) -> size of their message as a fraction of the largest send buffer."""
    ranks, places = group.num_ranks, group.positions_in_node_order
    if parts is None:
        return lambda i, j: 1 / ranks
    if len(parts) != ranks or any(len(row) != ranks for row in parts):
        raise InputError(f"all_to_all over {ranks} ranks needs {ranks} x {ranks} message sizes, one row per sender")
    wrong = [size for row in parts for size in row if not (size >= 0 and math.isfinite(size))]
    if wrong:
        raise InputError(f"all_to_all: message size {wrong[0]!r} is invalid; give a finite number of at least 0")
    largest = max(math.fsum(row) for row in parts)
    if largest == 0:
        raise InputError("all_to_all: all messages are empty; give at least one of them a size above 0")
    return lambda i, j: parts[places[i]][places[j]] / largest


def busiest_port_bytes(parts: MessageSizes) -> float:
    """Return the most bytes that any one rank sends or receives in an all-to-all, without messages to itself.

    Over the bandwidth of a port the least time that uneven sizes take (MODELLING.md D.1).

    >>> busiest_port_bytes([[0.0, 5.0], [2.0, 0.0]])
    5.0
    """
    sends = [math.fsum(row) - row[i] for i, row in enumerate(parts)]
    receives = [math.fsum(row[j] for row in parts) - parts[j][j] for j in range(len(parts))]
    return max(*sends, *receives)
