"""Double-binary-tree all-reduce as in NCCL: two trees across the nodes, chains of ranks inside each node.

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
from simcluster.collectives.description import Hop, HopList, LazyHopList, Phase
from simcluster.collectives.group import EqualNodeRings, Group, Ring

_LARGE = 256  # hops of a phase from which on they are made when they are looked at


def all_reduce(group: Group) -> Sequence[Phase]:
    """Return the all-reduce: sums move up to the roots of all trees, and results down again on the same edges."""
    if group.num_ranks == 1:
        return ()
    walks = group.equal_node_rings
    if walks and group.num_ranks * len(walks.orders) > _LARGE:
        ways: list[Sequence[Hop]] = [DoubleTreeHops(walks, up=True), DoubleTreeHops(walks, up=False)]
    else:
        up = _list_tree_hops([_node_chains(group, ring) for ring in group.rings])
        ways = [up, up.reversed_copy()]
    return tuple(Phase(rounds=1, hops=way, chunks=1, reduces=way is ways[0], pipelined=True) for way in ways)


class DoubleTreeHops(LazyHopList):
    """Hops of a double binary tree in one direction: chains of ranks inside equal nodes, trees across nodes.

    There is a chain in each node for every rail and tree, and hops between the chains' heads, in each tree from every
    node (by number) to its ``parents``, or back.
    """

    def __init__(self, walks: EqualNodeRings, *, up: bool) -> None:
        self.walks, self.up = walks, up

    def __len__(self) -> int:
        return 2 * len(self.walks.orders) * (self.walks.many * self.walks.size - 1)

    @property
    def num_hops_inside_nodes(self) -> int:
        """Number of hops between ranks of the same node."""
        return 2 * len(self.walks.orders) * self.walks.many * (self.walks.size - 1)

    @property
    def hop_share(self) -> float:
        """Fraction of the collective's size that every hop carries."""
        return 0.5 / len(self.walks.orders)

    @cached_property
    def parents(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each node's parent in the first and in the second tree; -1 for a root."""
        return _double_tree_arrays(self.walks.many)

    @cached_property
    def hop_list(self) -> HopList:
        machines = self.walks.positions_by_node
        up = _list_tree_hops([machines[:, order] for order in self.walks.orders])
        return up if self.up else up.reversed_copy()


def _node_chains(group: Group, ring: Ring) -> NDArray[np.int64]:
    """Return each node's positions (one row per node) in ring order, from the ring's entry; padded with -1."""
    order = np.array(ring.order, dtype=np.int64)
    counts = np.diff(run_starts(np.asarray(group.hosts)[order]), append=len(order))
    table = np.full((len(counts), counts.max()), -1, dtype=np.int64)
    table[np.repeat(np.arange(len(counts)), counts), concat_ranges(counts)] = order
    return table


def _list_tree_hops(rails: Sequence[NDArray[np.int64]]) -> HopList:
    machines = len(rails[0])
    parts = []
    for number, parents in enumerate(double_tree_parents(machines)):
        order = np.array(sort_deepest_first(parents), dtype=np.int64)
        above = np.array(parents, dtype=np.int64)[order]
        for rail, chains in enumerate(rails):
            down = chains[order][:, ::-1]  # from the end of each chain to its head, and on to the head above
            source, target = down, np.concatenate([down[:, 1:], chains[above, :1]], axis=1)
            used = source >= 0
            used[above < 0, -1] = False
            channel = 2 * rail + number
            parts.append((channel, HopList.from_columns(source[used], target[used], 0.5 / len(rails), channel=channel)))
    return HopList.concatenate([part for _, part in sorted(parts, key=lambda pair: pair[0])])


def double_tree_parents(size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return each node's parent in the first and in the second tree, for nodes 0 .. size-1; -1 for a root.

    The first is binary in order with a root above it, 0; the second is it mirrored (even size) or shifted by one (odd).

    >>> double_tree_parents(8)
    ((-1, 2, 4, 2, 0, 6, 4, 6), (1, 3, 1, 7, 5, 3, 5, -1))
    """
    first, second = _double_tree_arrays(size)
    return tuple(first.tolist()), tuple(second.tolist())


@lru_cache(maxsize=4)
def _double_tree_arrays(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    node = np.arange(size)
    lowest = node & -node  # 1, 3, 5, ... are leaves, 2, 6, 10, ... their parents, 4, 12, ... theirs, and so on
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


def tree_seconds(ranks: int, latency: float, transfer: float) -> float:
    """Return the time (s) of a double-tree all-reduce on a uniform network, set by latency and the busiest port.

    >>> tree_seconds(8, 0.0, 1.0)
    2.0
    """
    neighbours = [0] * ranks
    for parents in double_tree_parents(ranks):
        for node, parent in enumerate(parents):
            if parent >= 0:
                neighbours[node] += 1
                neighbours[parent] += 1
    return 2 * (ranks - 1).bit_length() * latency + max(neighbours) / 2 * transfer


def sort_deepest_first(parents: Sequence[int]) -> list[int]:
    """Return the nodes of a tree in an order in which every node comes before its parent."""
    parent = np.array([*parents, -1], dtype=np.int64)  # -1 is above a root, and above itself
    depth, above = np.zeros(len(parents), dtype=np.int64), parent[:-1]
    while (above >= 0).any():
        depth += above >= 0
        above = parent[above]
    order: list[int] = np.argsort(-depth, kind="stable").tolist()
    return order
