"""NCCL's parallel aggregated trees (PAT): all-gather and reduce-scatter in ceil(log2 N) rounds for any N ranks.

Every chunk travels a separate binomial tree, and a round sends what it has for one distance together: the farthest
first, with one chunk, the nearest last, with half of all, so that little crosses the far links. Closed form on a
uniform network: ceil(log2 N) alpha + (N-1)/N S/B. Source: S. Jeaugey, "PAT: a new algorithm for all-gather and
reduce-scatter operations at scale", 2025 (arXiv:2506.20252); NCCL runs it with one GPU per node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simcluster.collectives.description import Hop, HopList, LazyHopList, Phase
from simcluster.collectives.group import Group


def all_gather(group: Group) -> Sequence[Phase]:
    """Return the all-gather: one round per distance d (a power of two), in which each rank sends to rank + d."""
    return _make_phases(group, back=False)


def reduce_scatter(group: Group) -> Sequence[Phase]:
    """Return the reduce-scatter: the all-gather's rounds reversed, with each chunk summed along its tree."""
    return _make_phases(group, back=True)


def pat_seconds(ranks: int, latency: float, transfer: float) -> float:
    """Return the time (s) of a PAT all-gather or reduce-scatter on a uniform network.

    >>> pat_seconds(5, 1.0, 5.0)
    7.0
    """
    return (ranks - 1).bit_length() * latency + (ranks - 1) / ranks * transfer


def _make_phases(group: Group, *, back: bool) -> Sequence[Phase]:
    ranks = group.num_ranks
    bits, places = range((ranks - 1).bit_length()), np.array(group.positions_in_node_order, dtype=np.int64)
    return tuple(
        Phase(rounds=1, hops=_PatRound(places, 1 << bit, back=back), chunks=ranks, reduces=back)
        for bit in (bits if back else reversed(bits))
    )


class _PatRound(LazyHopList):
    """Hops of one PAT round: each rank sends to the rank ``distance`` above it, or receives from that rank.

    The chunk of place p is number p, so a way around the end makes two hops.
    """

    def __init__(self, positions: NDArray[np.int64], distance: int, *, back: bool) -> None:
        ranks, self._stride = len(positions), 2 * distance
        self._places, self._distance, self._back = positions, distance, back
        self._below = len(range(0, ranks - distance, self._stride))
        # those of the places below that do not go around the end, and those that do
        straight = np.minimum(self._below, np.arange(ranks) // self._stride + 1)
        counts = np.stack([straight, self._below - straight], axis=1).ravel()
        self._hop = np.flatnonzero(counts)
        self._counts = counts[self._hop]

    def __len__(self) -> int:
        return len(self._hop)

    @cached_property
    def hop_list(self) -> HopList:
        place = self._hop // 2
        ranks = len(self._places)
        source, target = self._places[place], self._places[(place + self._distance) % ranks]
        if self._back:
            source, target = target, source
        return HopList.from_columns(source, target, self._counts / ranks, chunk=self._lowest_chunk(place))

    def _lowest_chunk(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        around = place + len(self._places) - (self._below - 1) * self._stride
        return np.where(self._hop % 2, around, place - (self._counts - 1) * self._stride)

    def generate_items(self, indices: range) -> Iterator[Hop]:
        listed, some = self.hop_list, np.array(indices, dtype=np.int64)
        columns = (listed.source, listed.target, listed.share, listed.chunk, self._counts)
        for source, target, share, chunk, count in zip(*(each[some].tolist() for each in columns), strict=True):
            yield Hop(source, target, share, chunk=chunk, count=count, stride=self._stride)
