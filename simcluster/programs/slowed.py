"""Rows of ops that did not go on as planned, because communication went on beside them or their rank was slower.

Columns: a run of a thousand ranks has millions of such rows.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.programs.program import RowTimes


class RowColumns(NamedTuple):
    """The rows of ``ops[i]`` are those from ``first[i]`` to ``first[i + 1]``: start and end, in seconds from the op's
    start."""

    ops: Ints
    first: Ints
    start: Floats
    end: Floats

    @property
    def counts(self) -> Ints:
        """How many rows each op has."""
        return np.diff(self.first)

    def begins(self, count: int) -> Ints:
        """Of each of so many ops where its rows begin; -1 for those that have none here."""
        found = np.full(count, -1)
        found[self.ops] = self.first[:-1]
        return found


class SlowedRows(Mapping[int, RowTimes]):
    """Start and end of every row of some ops, in seconds from the op's start, by the op's number.

    They are put together (``make``) when somebody asks.
    """

    def __init__(self, make: Callable[[], RowColumns]) -> None:
        self._make = make

    @cached_property
    def columns(self) -> RowColumns:
        """All of them."""
        return self._make()

    @cached_property
    def _place(self) -> dict[int, int]:
        return {op: place for place, op in enumerate(self.columns.ops.tolist())}

    def __getitem__(self, op: int) -> RowTimes:
        place = self._place[op]
        _, first, start, end = self.columns
        rows = slice(first[place], first[place + 1])
        return tuple(zip(start[rows].tolist(), end[rows].tolist(), strict=True))

    def __contains__(self, op: object) -> bool:
        return op in self._place

    def __iter__(self) -> Iterator[int]:
        return iter(self.columns.ops.tolist())

    def __len__(self) -> int:
        return len(self.columns.ops)


def within(counts: Ints) -> Ints:
    """0, 1, ... for every run of so many."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def columns_of(slowed: Mapping[int, RowTimes]) -> RowColumns:
    """Any mapping in columns."""
    if isinstance(slowed, SlowedRows):
        return slowed.columns
    first = np.cumsum([0, *map(len, slowed.values())])
    rows = np.array([row for own in slowed.values() for row in own], dtype=np.float64).reshape(-1, 2)
    return RowColumns(np.array(list(slowed), dtype=np.int64), first, rows[:, 0], rows[:, 1])


def joined(parts: Sequence[RowColumns]) -> RowColumns:
    """One behind the other."""
    ops, counts, start, end = (
        np.concatenate(column)
        for column in zip(*((each.ops, each.counts, each.start, each.end) for each in parts), strict=True)
    )
    return RowColumns(ops, np.concatenate([[0], np.cumsum(counts)]), start, end)
