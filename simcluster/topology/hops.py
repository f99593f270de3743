"""Adjacency of switches in arrays: ways of very many flows over a fabric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.multiset_hash import mixed, numbered
from simcluster.topology.alike import Ends

_ROOM = 1 << 22  # entries of a table that replaces a search


@dataclass(frozen=True, eq=False)
class Hops:
    """Links between switches (by number): ``code`` of their ends, ascending, and their ``link``.

    Those that begin at a switch are from ``first`` on.  ``onto`` and ``whence`` number the sets of switches that come
    after and before each: ``neighbours`` of that number.
    """

    size: int
    code: Ints
    link: Ints
    first: Ints
    onto: Ints
    whence: Ints
    neighbours: list[Ints]
    _known: dict[int, Ints]

    @classmethod
    def of(cls, ends: Ends, link_index: Mapping[tuple[str, str], int]) -> Hops:
        """The links between switches of one network."""
        number, size = ends.number, len(ends.switches)
        rows = [
            (number[a] * size + number[b], link) for (a, b), link in link_index.items() if a in number and b in number
        ]
        code, link = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        return cls.of_links(size, code, link)

    @classmethod
    def of_links(cls, size: int, code: Ints, link: Ints, *, both_ways: bool = False) -> Hops:
        """Links by their ends (start x ``size`` + end), in any order; ``both_ways`` if each is known to go back."""
        order = np.argsort(code, kind="stable")  # they come in runs
        code, link = code[order], link[order]
        known: dict[bytes, int] = {}
        neighbours: list[Ints] = []
        sides = []
        for side in (code,) if both_ways else (code, np.sort(code % size * size + code // size, kind="stable")):
            first = np.searchsorted(side, np.arange(size + 1) * size)
            degrees = np.diff(first)
            sets = np.empty(size, dtype=np.int64)
            for degree in np.flatnonzero(np.bincount(degrees)).tolist():  # those with equally many at once
                switches = np.flatnonzero(degrees == degree)
                near = side[first[switches][:, None] + np.arange(degree)] % size
                kind, one = numbered(mixed(near ^ np.arange(degree)).sum(axis=1, dtype=np.uint64))
                if (near[one][kind] != near).any():  # different ones with equal sums
                    kind = one = np.arange(len(near))
                numbers = []
                for row in near[one]:
                    numbers.append(known.setdefault(row.tobytes(), len(known)))
                    neighbours += [row] * (len(known) - len(neighbours))
                sets[switches] = np.array(numbers)[kind]
            sides.append(sets)
        first = np.searchsorted(code, np.arange(size + 1) * size)
        return cls(size, code, link, first, sides[0], sides[-1], neighbours, {})

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
            sets = dict.fromkeys(self.whence[frontier].tolist())
            before = np.zeros(self.size, dtype=bool)
            for each in sets:
                before[self.neighbours[each]] = True
            frontier = np.flatnonzero(before & (found == self.size))
        return found

    def between(self, a: Ints, b: Ints) -> Ints:
        """The links from switches to switches, -1 for none."""
        if not len(self.code):
            return np.full(len(a), -1, dtype=np.int64)
        if len(self.neighbours) * self.size <= _ROOM:
            turn = self._turn[self.onto[a], b]
            return np.where(turn >= 0, self.nth(a, turn), -1)
        code = a * self.size + b
        place = np.minimum(np.searchsorted(self.code, code), len(self.code) - 1)
        return np.where(self.code[place] == code, self.link[place], -1)

    def nth(self, a: Ints, turn: Ints) -> Ints:
        """The link from each switch to neighbour number ``turn`` of those behind it."""
        found: Ints = self.link[np.minimum(self.first[a] + turn, len(self.link) - 1)]
        return found

    def all_from(self, switches: Ints, count: int) -> Ints:
        """The links from switches, rows of as many as each has neighbours behind it."""
        found: Ints = self.link[self.first[switches][:, None] + np.arange(count)]
        return found

    @cached_property
    def _turn(self) -> Ints:
        """By set of neighbours and switch: which of them it is, -1 for none."""
        found = np.full((len(self.neighbours), self.size), -1, dtype=np.int64)
        for row, near in zip(found, self.neighbours, strict=True):
            row[near] = np.arange(len(near))
        return found
