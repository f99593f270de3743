"""Compact storage of a value per link: equal kinds of links, or equal nodes, share stored values.

A cluster of 131,072 GPUs has a million links. Links of equal kind share one float: capacities are a dozen floats and a
byte per link (``LinkValues``). Nodes and leaf switches of a few kinds have equal rows (``LinkRows``). So most
computations need not visit all links: for Llama 3 405B on that cluster, finding the images of links takes 2 ms instead
of 19 ms, the loads of the tree over all GPUs 9 instead of 18 ms, and the classes of links 4 instead of 10 ms (CPU
time), with 17 MB less memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Floats, Int32s, Ints, Numbers, first_indices, unique_inverse


class LinkValues:
    """A float for each link of a cluster; with ``sorts``, links of the same sort share one stored float."""

    def __init__(self, of_sort: Floats, sorts: Numbers | None = None) -> None:
        self._of_sort, self._sorts = of_sort, sorts

    def __len__(self) -> int:
        return len(self._of_sort if self._sorts is None else self._sorts)

    def values_at(self, links: Numbers | slice) -> Floats:
        """Return the values of ``links`` (an array of link numbers, or a slice)."""
        found: Floats = self._of_sort[links if self._sorts is None else self._sorts[links]]
        return found

    @cached_property
    def all_values(self) -> Floats:
        """Values of all links in a read-only array, which variants of a cluster share."""
        found = self._of_sort.view() if self._sorts is None else self._of_sort[self._sorts]
        found.flags.writeable = False
        return found

    def multiply(self, factors: Iterable[tuple[int, float]]) -> LinkValues:
        """Return a copy with the values of links multiplied by (link, factor) pairs; links may repeat."""
        own: dict[int, float] = {}
        for link, factor in factors:
            own[link] = factor * (own[link] if link in own else float(self.values_at(np.array([link]))[0]))
        links, count = list(own), len(self._of_sort)
        if self._sorts is None:
            of_link = self._of_sort.copy()
            of_link[links] = list(own.values())
            return LinkValues(of_link)
        sorts = self._sorts.astype(np.min_scalar_type(count + len(own)))
        sorts[links] = np.arange(count, count + len(own))
        return LinkValues(np.append(self._of_sort, list(own.values())), sorts)

    def changed_links(self, other: LinkValues) -> Ints:
        """Return the links, ascending, whose values differ from those of ``other``."""
        if self is other:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(self.values_at(slice(None)) != other.values_at(slice(None)))


_SPARSE = 8  # ratio of links to numbers above which numbers are looked up one by one


@dataclass(frozen=True, eq=False)
class LinkRows:
    """Tables of link numbers with a row per node or leaf switch, and a list of all other links (``rest``).

    ``position_of_link`` is the position of every link in the concatenated tables; the rest come last.
    """

    tables: tuple[Int32s, ...]
    rest: Int32s
    position_of_link: Int32s

    @classmethod
    def from_tables(cls, tables: Sequence[Int32s], size: int) -> LinkRows:
        """Create the LinkRows of a cluster with ``size`` links; a link is in at most one table."""
        place, first = np.full(size, -1, dtype=np.int32), 0
        for table in tables:
            place[table] = np.arange(first, first + table.size, dtype=np.int32).reshape(table.shape)
            first += table.size
        rest = np.flatnonzero(place < 0).astype(np.int32)
        place[rest] = np.arange(first, size, dtype=np.int32)
        return cls(tuple(tables), rest, place)

    @cached_property
    def ascending_tables(self) -> tuple[bool, ...]:
        """For each table, whether the link numbers in every column ascend from row to row."""
        return tuple([bool((table[1:] > table[:-1]).all()) for table in self.tables])

    @cached_property
    def table_ends(self) -> tuple[int, ...]:
        """End position of each table when all tables are concatenated."""
        return tuple(np.cumsum([table.size for table in self.tables], dtype=np.int64).tolist())


@dataclass(frozen=True, eq=False)
class LinkColumn:
    """A number for each link; nodes or leaf switches whose links have equal numbers share one stored row.

    Row ``row_kinds[t][r]`` of ``values[t]`` has the numbers of the links in row r of table t; ``rest`` those of the
    other links.
    """

    rows: LinkRows
    row_kinds: tuple[Ints, ...]
    values: tuple[npt.NDArray[Any], ...]
    rest: npt.NDArray[Any]

    @classmethod
    def from_array(cls, values: npt.NDArray[Any]) -> LinkColumn:
        """Create a column from an array with one number per link, without compression."""
        links = np.arange(len(values), dtype=np.int32)
        return cls(LinkRows((), links, links), (), (), values)

    def values_at(self, links: Ints) -> npt.NDArray[Any]:
        """Return the numbers of ``links`` (an array of link numbers)."""
        place = self.rows.position_of_link[links]
        found, first = np.empty(len(place), dtype=self.rest.dtype), 0
        for end, kind, values in zip(self.rows.table_ends, self.row_kinds, self.values, strict=True):
            there = np.flatnonzero((place >= first) & (place < end))
            row, column = np.divmod(place[there] - first, values.shape[1])
            found[there] = values[kind[row], column]
            first = end
        there = np.flatnonzero(place >= first)
        found[there] = self.rest[place[there] - first]
        return found

    @cached_property
    def all_values(self) -> npt.NDArray[Any]:
        """Numbers of all links in one array."""
        parts = [values[kind].ravel() for kind, values in zip(self.row_kinds, self.values, strict=True)]
        return np.concatenate([*parts, self.rest]).take(self.rows.position_of_link)

    def map_values(self, change: Callable[[Int32s], Int32s]) -> LinkColumn:
        """Return a LinkColumn with the function ``change`` applied to every number."""
        return LinkColumn(self.rows, self.row_kinds, tuple(map(change, self.values)), change(self.rest))

    def combine_with(self, other: LinkColumn) -> LinkColumn:
        """Return a LinkColumn that numbers the distinct pairs (number here, number in ``other``) of links."""
        count = np.int32(other.largest_value + 1)
        if other.rows is not self.rows:
            return LinkColumn.from_array(self.all_values * count + other.all_values)
        kinds, values = [], []
        for own, there, a, b in zip(self.row_kinds, other.row_kinds, self.values, other.values, strict=True):
            pairs, which = unique_inverse(own * len(b) + there)
            kinds.append(which)
            values.append(a[pairs // len(b)] * count + b[pairs % len(b)])
        return LinkColumn(self.rows, tuple(kinds), tuple(values), self.rest * count + other.rest)

    @property
    def dense_order(self) -> LinkColumn:
        """LinkColumn with each number replaced by its index among the sorted distinct numbers and 0."""
        there = np.unique(np.concatenate([np.zeros(1), *(each.ravel() for each in (*self.values, self.rest))]))
        return self.map_values(lambda values: np.searchsorted(there, values).astype(np.int32))

    @property
    def largest_value(self) -> int:
        """Largest number of any link, or 0 if all are negative."""
        return max([int(each.max(initial=0)) for each in (*self.values, self.rest)])

    @property
    def distinct_links(self) -> Ints:
        """Distinct links in a LinkColumn that maps links to links, ascending, without -1 (no link)."""
        there = np.zeros(len(self.rows.position_of_link) + 1, dtype=bool)  # the last is for -1
        for each in (*self.values, self.rest):
            there[each] = True
        return np.flatnonzero(there[:-1])

    def replace_by_positions(self, links: Ints) -> LinkColumn:
        """Return a LinkColumn of each number's position in ``links`` (ascending); ``len(links)`` if absent."""
        if len(self.rest) + sum(each.size for each in self.values) <= len(self.rows.position_of_link) // _SPARSE:
            ends = np.append(links, -1)

            def find_positions(values: Int32s) -> Int32s:
                found = np.searchsorted(links, values).astype(np.int32)
                found[ends[found] != values] = len(links)
                return found

            return self.map_values(find_positions)
        place = np.full(len(self.rows.position_of_link) + 1, len(links), dtype=np.int32)  # the last is for -1
        place[links] = np.arange(len(links), dtype=np.int32)
        return self.map_values(lambda values: place.take(values, mode="wrap"))

    def first_link_of_each(self, count: int) -> Ints:
        """Return the first link with number k, for k = 0 to ``count`` - 1; -1 if no link has number k."""
        found = np.full(count, len(self.rows.position_of_link), dtype=np.int32)
        parts = zip(self.rows.tables, self.rows.ascending_tables, self.row_kinds, self.values, strict=True)
        for table, ascending, kind, values in parts:
            if ascending:  # the first row of each kind
                first = first_indices(kind, len(values))
                kinds = np.flatnonzero(first >= 0)
                rows = first[kinds]
            else:
                kinds, rows = kind, np.arange(len(kind))
            np.minimum.at(found, values[kinds].ravel(), table[rows].ravel())
        np.minimum.at(found, self.rest, self.rows.rest)
        return np.where(found < len(self.rows.position_of_link), found, -1).astype(np.int64)


class TreeFlows(NamedTuple):
    """Flows of tree collectives over identical nodes; each row of ``gpus_by_node`` lists the GPUs of one node.

    ``pairs`` of columns exchange flows in every row, and on each of the ``rails``, (column, first number of a flow),
    flow ``number[i]`` goes from row ``source[i]`` to row ``target[i]``.
    """

    gpus_by_node: Ints
    pairs: Mapping[tuple[int, int], int]
    source: Ints
    target: Ints
    rails: Sequence[tuple[int, int]]
    number: Ints
