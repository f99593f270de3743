"""A float for each of very many links: links of one sort have one in common.

A regular cluster has a dozen sorts of links, so that its 8 million capacities are a dozen floats and a byte per link
that says of which sort it is; an array of all is made when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Floats, Ints, Numbers


class LinkValues:
    """The floats: ``of_sort`` by sort, or by link where there are no ``sorts``, which say that of every link."""

    def __init__(self, of_sort: Floats, sorts: Numbers | None = None) -> None:
        self._of_sort, self._sorts = of_sort, sorts

    def __len__(self) -> int:
        return len(self._of_sort if self._sorts is None else self._sorts)

    def of(self, links: Numbers | slice) -> Floats:
        """Those of some links."""
        found: Floats = self._of_sort[links if self._sorts is None else self._sorts[links]]
        return found

    @cached_property
    def all(self) -> Floats:
        """Those of all links, not to be written to: variants of a cluster share them."""
        found = self._of_sort.view() if self._sorts is None else self._of_sort[self._sorts]
        found.flags.writeable = False
        return found

    def times(self, factors: Iterable[tuple[int, float]]) -> LinkValues:
        """The same with some links at a factor of theirs, one after the other where a link has several."""
        own: dict[int, float] = {}
        for link, factor in factors:
            own[link] = factor * (own[link] if link in own else float(self.of(np.array([link]))[0]))
        links, count = list(own), len(self._of_sort)
        if self._sorts is None:
            of_link = self._of_sort.copy()
            of_link[links] = list(own.values())
            return LinkValues(of_link)
        sorts = self._sorts.astype(np.min_scalar_type(count + len(own)))
        sorts[links] = np.arange(count, count + len(own))
        return LinkValues(np.append(self._of_sort, list(own.values())), sorts)

    def unlike(self, other: LinkValues) -> Ints:
        """The links, ascending, that have another one there."""
        if self is other:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(self.of(slice(None)) != other.of(slice(None)))
