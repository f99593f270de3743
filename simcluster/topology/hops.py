"""Adjacency of switches in arrays: ways of very many flows over a fabric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Int32s, Ints
from simcluster.base.multiset_hash import mixed, numbered, places
from simcluster.topology.numbering import LinkNumbers


@dataclass(frozen=True, eq=False)
class Hops:
    """Links between switches (by number), both ways: ``link`` leads to switch ``near``, ascending for each switch.

    Those that begin at a switch are from ``first`` on.  ``onto`` numbers the sets of switches that are next to each:
    ``neighbours`` of that number.  ``number`` has that of every node from the ``lowest`` on, -1 for other networks'.
    """

    size: int
    near: Int32s
    link: Int32s
    first: Ints
    onto: Ints
    neighbours: list[Ints]
    lowest: int
    number: Int32s
    _known: dict[tuple[int, int], Ints] = field(default_factory=dict)

    @classmethod
    def of(cls, numbers: LinkNumbers, switches: Sequence[int], lowest: int) -> Hops:
        """The links between these switches, which are numbered as they come here; the first of all is ``lowest``."""
        nodes = np.array(switches, dtype=np.int64) - lowest
        number = places(nodes, len(numbers.starts) - 1).astype(np.int32)
        many = np.diff(numbers.starts)
        begins, counts = np.repeat(number, many), many[nodes]
        before = numbers.starts[nodes] - (np.cumsum(counts) - counts)
        link = np.arange(counts.sum(), dtype=np.int32) + np.repeat(before.astype(np.int32), counts)
        turned = numbers.turned[link - numbers.first]
        among = np.flatnonzero(turned >= numbers.first)
        near = begins[turned[among] - numbers.first]
        if near.min(initial=0) < 0:  # a switch of another network
            among, near = among[near >= 0], near[near >= 0]
        link = link[among]
        start = begins[link - numbers.first]
        first = np.concatenate([[0], np.cumsum(np.bincount(start, minlength=len(nodes)))])
        if ((near[1:] < near[:-1]) & (start[1:] == start[:-1])).any():
            order = np.lexsort((near, start))
            near, link = near[order], link[order]
        return cls(len(nodes), near, link, first, *_sets(near, first), lowest, number)

    def switches(self, nodes: Int32s) -> Ints:
        """The numbers of switches that are given by node."""
        return self.number[nodes - self.lowest].astype(np.int64)

    def parts(self) -> Ints:
        """The parts of the fabric, by switch: each is named by the first of its switches."""
        found = np.full(self.size, -1, dtype=np.int64)
        while (rest := np.flatnonzero(found < 0)).size:
            found[self._distances(rest[:1]) < self.size] = rest[0]
        return found

    def onward(self, here: int, goal: int) -> Ints:
        """The switches after those next to set ``here`` on shortest ways to those next to set ``goal``, in order."""
        if (here, goal) not in self._known:
            near = self.neighbours[here]
            distances = self._distances(self.neighbours[goal])[near]
            self._known[here, goal] = near[distances == distances.min()]
        return self._known[here, goal]

    def _distances(self, goals: Ints) -> Ints:
        """Hops from every switch to the nearest of some; as many as there are switches where there is no way."""
        found = np.full(self.size, self.size, dtype=np.int64)
        frontier, hops = goals, 0
        while len(frontier):
            found[frontier] = hops
            hops += 1
            before = np.zeros(self.size, dtype=bool)
            for each in dict.fromkeys(self.onto[frontier].tolist()):
                before[self.neighbours[each]] = True
            frontier = np.flatnonzero(before & (found == self.size))
        return found

    def between(self, a: Ints, b: Ints) -> Ints:
        """The links from switches to switches, -1 for none."""
        if not len(self.near):
            return np.full(len(a), -1, dtype=np.int64)
        codes, begin = self._codes
        sets = self.onto[a]
        code = sets * self.size + b
        place = np.searchsorted(codes, code)
        return np.where(np.append(codes, -1)[place] == code, self.nth(a, place - begin[sets]), -1)

    def nth(self, a: Ints, turn: Ints) -> Ints:
        """The link from each switch to neighbour number ``turn`` of those behind it."""
        found: Ints = self.link[np.minimum(self.first[a] + turn, len(self.link) - 1)].astype(np.int64)
        return found

    def all_from(self, switches: Ints, count: int) -> Int32s:
        """The links from switches, rows of as many as each has neighbours behind it."""
        found: Int32s = self.link[self.first[switches][:, None] + np.arange(count)]
        return found

    @cached_property
    def _codes(self) -> tuple[Ints, Ints]:
        """Of every switch of every set of neighbours a number, ascending; and where the numbers of each set begin."""
        begin = np.cumsum([0, *map(len, self.neighbours)])
        return np.concatenate([number * self.size + near for number, near in enumerate(self.neighbours)]), begin


def _sets(near: Int32s, first: Ints) -> tuple[Ints, list[Ints]]:
    """Numbers of the sets of switches ``near[first[i] : first[i + 1]]``, and these."""
    known: dict[bytes, int] = {}
    neighbours: list[Ints] = []
    degrees = np.diff(first)
    sets = np.empty(len(degrees), dtype=np.int64)
    for degree in np.flatnonzero(np.bincount(degrees)).tolist():  # those with equally many at once
        switches = np.flatnonzero(degrees == degree)
        table = near[first[switches][:, None] + np.arange(degree)]
        kind, one = np.zeros(len(table), dtype=np.int64), np.zeros(1, dtype=np.int64)
        if (table != table[0]).any():
            kind, one = numbered(mixed(table ^ np.arange(degree)).sum(axis=1, dtype=np.uint64))
            if (table[one][kind] != table).any():  # different ones with equal sums
                kind = one = np.arange(len(table))
        numbers = []
        for row in table[one].astype(np.int64):
            numbers.append(known.setdefault(row.tobytes(), len(known)))
            neighbours += [row] * (len(known) - len(neighbours))
        sets[switches] = np.array(numbers)[kind]
    return sets, neighbours
