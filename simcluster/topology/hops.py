"""Adjacency of switches in arrays: ways of very many flows over a fabric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Int32s, Ints
from simcluster.base.multiset_hash import mixed, numbered, places
from simcluster.topology.numbering import LinkNumbers

_ROOM = 1 << 22  # entries of a table that replaces a search


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
    _known: dict[int, Ints] = field(default_factory=dict)

    @classmethod
    def of(cls, numbers: LinkNumbers, switches: Sequence[int], lowest: int) -> Hops:
        """The links between these switches, which are numbered as they come here; the first of all is ``lowest``."""
        size = len(switches)
        number = places(np.array(switches, dtype=np.int64) - lowest, len(numbers.starts) - 1).astype(np.int32)
        begins = np.repeat(number, np.diff(numbers.starts))
        among = np.flatnonzero((numbers.turned >= numbers.first) & (begins >= 0)).astype(np.int32)
        start, near = begins[among], begins[numbers.turned[among] - numbers.first]
        if near.min(initial=0) < 0:  # a switch of another network
            among, start, near = (column[near >= 0] for column in (among, start, near))
        among += numbers.first
        degrees = np.bincount(start, minlength=size)
        first = np.concatenate([[0], np.cumsum(degrees)])
        if (start[1:] < start[:-1]).any():  # switches come in another order than nodes, each with all of its links
            pieces = _pieces(np.argsort(switches), degrees)
            start, near, among = (np.concatenate([column[each] for each in pieces]) for column in (start, near, among))
        if ((near[1:] < near[:-1]) & (start[1:] == start[:-1])).any():
            order = np.lexsort((near, start))
            near, among = near[order], among[order]
        return cls(size, near, among, first, *_sets(near, first), lowest, number)

    def switches(self, nodes: Int32s) -> Ints:
        """The numbers of switches that are given by node."""
        return self.number[nodes - self.lowest].astype(np.int64)

    def parts(self) -> Ints:
        """The parts of the fabric, by switch: each is named by the lowest of its switches."""
        label = np.arange(self.size)
        while True:
            before = label.copy()
            lowest = np.full(len(self.neighbours), self.size, dtype=np.int64)
            np.minimum.at(lowest, self.onto, label)
            for number, near in enumerate(self.neighbours):
                if len(near):
                    lowest[number] = min(lowest[number], label[near].min())
                    label[near] = np.minimum(label[near], lowest[number])
            joined = np.array([len(near) > 0 for near in self.neighbours], dtype=bool)[self.onto]
            label[joined] = np.minimum(label, lowest[self.onto])[joined]
            if (label == before).all():
                return label

    def onward(self, here: int, goal: int) -> Ints:
        """The switches after one on shortest ways to another, in order."""
        if goal not in self._known:
            self._known[goal] = self._hops_to(goal)
        hops, near = self._known[goal], self.neighbours[self.onto[here]]
        found: Ints = near[hops[near] == hops[here] - 1]
        return found

    def _hops_to(self, goal: int) -> Ints:
        """Hops from every switch to this one; as many as there are switches where there is no way."""
        found = np.full(self.size, self.size, dtype=np.int64)
        frontier, hops = np.array([goal]), 0
        while len(frontier):
            found[frontier] = hops
            hops += 1
            sets = dict.fromkeys(self.onto[frontier].tolist())
            before = np.zeros(self.size, dtype=bool)
            for each in sets:
                before[self.neighbours[each]] = True
            frontier = np.flatnonzero(before & (found == self.size))
        return found

    def between(self, a: Ints, b: Ints) -> Ints:
        """The links from switches to switches, -1 for none."""
        if not len(self.near):
            return np.full(len(a), -1, dtype=np.int64)
        if len(self.neighbours) * self.size <= _ROOM:
            turn = self._turn[self.onto[a], b]
            return np.where(turn >= 0, self.nth(a, turn), -1)
        code = a * self.size + b
        place = np.minimum(np.searchsorted(self._code, code), len(self._code) - 1)
        return np.where(self._code[place] == code, self.link[place], -1).astype(np.int64)

    def nth(self, a: Ints, turn: Ints) -> Ints:
        """The link from each switch to neighbour number ``turn`` of those behind it."""
        found: Ints = self.link[np.minimum(self.first[a] + turn, len(self.link) - 1)].astype(np.int64)
        return found

    def all_from(self, switches: Ints, count: int) -> Int32s:
        """The links from switches, rows of as many as each has neighbours behind it."""
        found: Int32s = self.link[self.first[switches][:, None] + np.arange(count)]
        return found

    @cached_property
    def _code(self) -> Ints:
        """Of every link a number for its two ends, ascending."""
        return np.repeat(np.arange(self.size) * self.size, np.diff(self.first)) + self.near

    @cached_property
    def _turn(self) -> Ints:
        """By set of neighbours and switch: which of them it is, -1 for none."""
        found = np.full((len(self.neighbours), self.size), -1, dtype=np.int64)
        for row, near in zip(found, self.neighbours, strict=True):
            row[near] = np.arange(len(near))
        return found


def _pieces(by_node: Ints, degrees: Ints) -> list[slice]:
    """Links of all switches, as they come, from those of the same by node; switches next to each other in both stay
    together."""
    place = np.empty_like(by_node)
    place[by_node] = np.arange(len(by_node))
    end = np.cumsum(degrees[by_node])
    cuts = np.flatnonzero(np.diff(place) != 1) + 1
    lowest, highest = place[np.append(0, cuts)], place[np.append(cuts, len(place)) - 1]
    begins = end[lowest] - degrees[by_node[lowest]]
    return [slice(*each) for each in zip(begins.tolist(), end[highest].tolist(), strict=True)]


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
