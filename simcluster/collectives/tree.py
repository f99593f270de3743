"""Double binary tree all-reduce, as NCCL lays it: trees over the nodes, chains inside them.

Two trees on every rail carry half of its data each; a node that is an inner node of one is a leaf of the other (for an
even number of nodes), so that both directions of all ports are in use. Everything is one pipeline: up the trees and
down again. On a uniform network it takes at least 2 (N-1)/N S/B + 2 ceil(log2 N) alpha (MODELLING.md D.1); here the
bandwidth term is 2 S/B from 4 ranks on, because a rank with two children and a parent in one tree and a parent in the
other sends and receives twice the size. Shape: P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full
bandwidth broadcast, reduction and scan", 2009; NCCL v2.30.7 src/graph/trees.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from simcluster.base.arrays import concat_ranges, run_starts
from simcluster.collectives.description import ColumnHops, HopList, Phase
from simcluster.collectives.group import Group, NodeWalks, Ring

_LARGE = 256  # hops of a phase from which on they are made when they are looked at


def all_reduce(group: Group) -> Sequence[Phase]:
    """Return the all-reduce: the sum moves up to the roots of all trees, and down again over the same edges."""
    if group.num_ranks == 1:
        return ()
    walks = group.walks
    if walks and group.num_ranks * len(walks.orders) > _LARGE:
        return (
            Phase(rounds=1, hops=ChainedTrees(walks, up=True), chunks=1, reduces=True, pipelined=True),
            Phase(rounds=1, hops=ChainedTrees(walks, up=False), chunks=1, reduces=False, pipelined=True),
        )
    up = _list_hops([_node_chains(group, ring) for ring in group.rings])
    return (
        Phase(rounds=1, hops=up, chunks=1, reduces=True, pipelined=True),
        Phase(rounds=1, hops=up.backwards(), chunks=1, reduces=False, pipelined=True),
    )


class ChainedTrees(ColumnHops):
    """Hops of all trees in one direction, on nodes of equal layout: chains inside nodes, trees between them.

    There is a chain in each node for every rail and tree, and hops between the chains' heads, in each tree from every
    node (by number) to its ``parents``, or back.
    """

    def __init__(self, walks: NodeWalks, *, up: bool) -> None:
        self.walks, self.up = walks, up

    def __len__(self) -> int:
        return 2 * len(self.walks.orders) * (self.walks.many * self.walks.size - 1)

    @property
    def inside(self) -> int:
        """Number of hops between ranks of one node."""
        return 2 * len(self.walks.orders) * self.walks.many * (self.walks.size - 1)

    @property
    def share(self) -> float:
        """Share of the size that every hop carries."""
        return 0.5 / len(self.walks.orders)

    @cached_property
    def parents(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Parent node of every node in both trees, -1 for a root."""
        return _double_tree(self.walks.many)

    @cached_property
    def listed(self) -> HopList:
        """All hops in columns."""
        machines = self.walks.machines
        up = _list_hops([machines[:, order] for order in self.walks.orders])
        return up if self.up else up.backwards()


def _node_chains(group: Group, ring: Ring) -> NDArray[np.int64]:
    """Return the positions of every node (row) in the ring's order, from where the ring enters; -1 after the last."""
    order = np.array(ring.order, dtype=np.int64)
    counts = np.diff(run_starts(np.asarray(group.hosts)[order]), append=len(order))
    table = np.full((len(counts), counts.max()), -1, dtype=np.int64)
    table[np.repeat(np.arange(len(counts)), counts), concat_ranges(counts)] = order
    return table


def _list_hops(rails: Sequence[NDArray[np.int64]]) -> HopList:
    machines = len(rails[0])
    parts = []
    for number, parents in enumerate(double_tree(machines)):
        order = np.array(deepest_first(parents), dtype=np.int64)
        above = np.array(parents, dtype=np.int64)[order]
        for rail, chains in enumerate(rails):
            down = chains[order][:, ::-1]  # from the end of each chain to its head, and on to the head above
            source, target = down, np.concatenate([down[:, 1:], chains[above, :1]], axis=1)
            there = source >= 0
            there[above < 0, -1] = False
            channel = 2 * rail + number
            parts.append((channel, HopList.of(source[there], target[there], 0.5 / len(rails), channel=channel)))
    return HopList.joined([part for _, part in sorted(parts, key=lambda pair: pair[0])])


def double_tree(size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the parents of 0 .. size-1 in both trees, -1 for a root.

    The first is binary in order with a root above it, 0; the second is it mirrored (even size) or shifted by one (odd).

    >>> double_tree(8)
    ((-1, 2, 4, 2, 0, 6, 4, 6), (1, 3, 1, 7, 5, 3, 5, -1))
    """
    first, second = _double_tree(size)
    return tuple(first.tolist()), tuple(second.tolist())


@lru_cache(maxsize=4)
def _double_tree(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    node = np.arange(size)
    lowest = (
        node & -node
    )  # in order: 1, 3, 5, ... are leaves, 2, 6, 10, ... their parents, 4, 12, ... theirs, and so on
    above = (node - lowest) | (lowest << 1)
    first = np.where(above < size, above, node - lowest)
    first[0] = -1
    if size % 2:
        second = np.where(first < 0, -1, (first + 1) % size)[(node - 1) % size]
    else:
        second = np.where(first < 0, -1, size - 1 - first)[::-1]
    for each in (first, second):
        each.flags.writeable = False
    return first, second


def seconds(ranks: int, latency: float, transfer: float) -> float:
    """Return the time on a uniform network, in which the busiest port carries half the size per neighbour.

    >>> seconds(8, 0.0, 1.0)
    2.0
    """
    neighbours = [0] * ranks
    for parents in double_tree(ranks):
        for node, parent in enumerate(parents):
            if parent >= 0:
                neighbours[node] += 1
                neighbours[parent] += 1
    return 2 * (ranks - 1).bit_length() * latency + max(neighbours) / 2 * transfer


def deepest_first(parents: Sequence[int]) -> list[int]:
    """Return the nodes of a tree in an order in which every node comes before its parent."""
    parent = np.array([*parents, -1], dtype=np.int64)  # -1 is above a root, and above itself
    depth, above = np.zeros(len(parents), dtype=np.int64), parent[:-1]
    while (above >= 0).any():
        depth += above >= 0
        above = parent[above]
    order: list[int] = np.argsort(-depth, kind="stable").tolist()
    return order
