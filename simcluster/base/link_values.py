"""A float for each of very many links: links of one sort have one in common, and some may have their own.

A regular cluster has a dozen sorts of links, so that its 8 million capacities are a dozen numbers and a rule which link
is of which sort; an array of all is made when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Protocol

import numpy as np

from simcluster.base.arrays import Floats, Ints, Numbers

_FEW = 1 << 20  # links, of which an array is made sooner than a rule followed


class Sorts(Protocol):
    """Which link is of which sort."""

    @property
    def total(self) -> int:
        """How many links there are."""

    def sorts_of(self, links: Ints) -> Numbers:
        """The sorts of some links."""

    def by_link(self, of_sort: Floats) -> Floats:
        """For every link what links of its sort have."""


class LinkValues:
    """The floats: ``of_sort`` by sort, or by link where there are no ``sorts``; ``own`` are those of single links."""

    def __init__(self, of_sort: Floats, sorts: Sorts | None = None, own: Mapping[int, float] | None = None) -> None:
        self._of_sort, self._sorts, self._own = of_sort, sorts, dict(sorted((own or {}).items()))

    def __len__(self) -> int:
        return len(self._of_sort) if self._sorts is None else self._sorts.total

    def of(self, links: Ints) -> Floats:
        """Those of some links."""
        if len(self) <= _FEW:
            few: Floats = self.all[links]
            return few
        found: Floats = self._of_sort[links if self._sorts is None else self._sorts.sorts_of(links)]
        if self._own:
            apart = np.array(list(self._own), dtype=np.int64)
            place = np.minimum(np.searchsorted(apart, links), len(apart) - 1)
            there = apart[place] == links
            found[there] = np.array(list(self._own.values()))[place[there]]
        return found

    @cached_property
    def all(self) -> Floats:
        """Those of all links, not to be written to: variants of a cluster share them."""
        found = self._of_sort if self._sorts is None else self._sorts.by_link(self._of_sort)
        if self._own:
            found = found.copy()
            found[list(self._own)] = list(self._own.values())
        found.flags.writeable = False
        return found

    def times(self, factors: Iterable[tuple[int, float]]) -> LinkValues:
        """The same with some links at a factor of theirs, one after the other where a link has several."""
        own = dict(self._own)
        for link, factor in factors:
            own[link] = factor * (own[link] if link in own else float(self.of(np.array([link]))[0]))
        return LinkValues(self._of_sort, self._sorts, own)

    def unlike(self, other: LinkValues) -> Ints:
        """The links, ascending, that have another one there."""
        if self._of_sort is other._of_sort and self._sorts is other._sorts:
            links = np.array(sorted({*self._own, *other._own}), dtype=np.int64)
            return np.array(links[self.of(links) != other.of(links)])
        return np.flatnonzero(self.all != other.all)
