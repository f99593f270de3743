"""Types of numpy arrays, runs of equal values, and colours of many things as 64-bit numbers.

Colours are equal for equal neighbourhoods, in any order: a neighbourhood is a multiset, and its colour the sum of its
members' numbers, each well spread.  Two of 10^6 different ones get the same number with a probability of
10^12 / 2 / 2^64 = 3e-8.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Int32s = npt.NDArray[np.int32]
"""Whole numbers below 2**31, of which there are many."""
Numbers = npt.NDArray[np.integer[Any]]
"""Whole numbers of any width."""
Hashes = npt.NDArray[np.uint64]


def opens(values: npt.NDArray[Any]) -> Bools:
    """Which values differ from the one before; the first does."""
    found = np.ones(len(values), dtype=np.bool_)
    found[1:] = values[1:] != values[:-1]
    return found


def begins(values: npt.NDArray[Any]) -> Ints:
    """The places at which runs of equal values begin."""
    return np.flatnonzero(opens(values))


def within(counts: Numbers) -> Ints:
    """Return 0, 1, ... for every run of this length."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def in_turn(tables: Sequence[Sequence[Numbers]], owners: int, first: int = 0) -> tuple[list[list[Int32s]], Ints]:
    """Numbers, from ``first`` on, of the entries of tables of owners, given by columns, which come row by row and table
    after table; and how many each owner has."""
    counts = [[np.bincount(column, minlength=owners) for column in table] for table in tables]
    none = np.zeros(owners, dtype=np.int64)
    total: Ints = sum((own for of_table in counts for own in of_table), none)
    following, numbers = first + np.cumsum(total) - total, []
    for table, of_table in zip(tables, counts, strict=True):
        whole: Ints = sum(of_table, none)
        if sum((own > 0 for own in of_table), none).max(initial=0) > 1:
            number = _as_they_come(np.stack(table, axis=1).ravel(), whole, following)
            numbers.append([*number.reshape(-1, len(table)).T])
        else:  # no owner is in several columns
            pairs = zip(table, of_table, strict=True)
            numbers.append([_as_they_come(column, own, following) for column, own in pairs])
        following = following + whole
    return numbers, total


def _as_they_come(those: Numbers, counts: Ints, following: Ints) -> Int32s:
    """Return the entries of these owners, ``counts`` of each, in turn from its ``following``."""
    by_owner = np.arange(len(those), dtype=np.int32)
    by_owner += np.repeat((following - (np.cumsum(counts) - counts)).astype(np.int32), counts)
    if (those[1:] >= those[:-1]).all():
        return by_owner
    width = np.count_nonzero(counts)
    if not len(those) % width and (those.reshape(-1, width) == np.flatnonzero(counts)).all():  # all, again and again
        return by_owner.reshape(width, -1).T.ravel()
    number = np.empty_like(by_owner)
    number[ordered(those)] = by_owner
    return number


_SPARSE = 4  # numbers so much larger than there are of them are sorted


def mixed(values: npt.NDArray[np.generic], salt: int = 0) -> Hashes:
    """Well-spread 64-bit numbers from any (the finaliser of splitmix64: Steele et al., OOPSLA 2014)."""
    found = values.astype(np.uint64) + np.uint64((0x9E3779B97F4A7C15 * (2 * salt + 1)) & 0xFFFFFFFFFFFFFFFF)
    found ^= found >> np.uint64(30)
    found *= np.uint64(0xBF58476D1CE4E5B9)
    found ^= found >> np.uint64(27)
    found *= np.uint64(0x94D049BB133111EB)
    found ^= found >> np.uint64(31)
    return found


def bits(values: npt.NDArray[np.float64]) -> Hashes:
    """Numbers of floats, equal for equal ones."""
    return (values + 0.0).view(np.uint64)


def sums(values: Hashes, starts: Ints) -> Hashes:
    """Sums of ``values[starts[i] : starts[i + 1]]``, modulo 2^64."""
    total = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(values)])
    found: Hashes = total[starts[1:]] - total[starts[:-1]]
    return found


def compact(values: Ints) -> tuple[Ints, Ints]:
    """The different ones of many small numbers, ascending, and the place of each one among them."""
    if _SPARSE * len(values) < int(values.max(initial=-1)):
        order = ordered(values)
        new = opens(values[order])
        place = np.empty(len(values), dtype=np.int64)
        place[order] = np.cumsum(new) - 1
        return values[order][new], place
    there = np.zeros(int(values.max(initial=-1)) + 1, dtype=bool)
    there[values] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[values]


def ordered(values: Numbers) -> Ints:
    """The places of small numbers in ascending order, equal ones as they come: 16 bits at a time, by counting."""
    order = np.argsort(values.astype(np.uint16), kind="stable")
    rest = values >> 16
    while rest.any():
        order = order[np.argsort(rest.astype(np.uint16)[order], kind="stable")]
        rest = rest >> 16
    return order


def rows_alike(table: npt.NDArray[np.generic]) -> Hashes:
    """A number for every row, equal for equal rows."""
    places = np.arange(table.shape[1], dtype=np.uint64)
    mixed_rows: Hashes = mixed(mixed(table) ^ mixed(places, 61)[None, :], 67)
    found: Hashes = mixed_rows.sum(axis=1, dtype=np.uint64)
    return found


def different(values: Hashes) -> Hashes:
    """The different ones, ascending.

    By sorting: 20 ms for 10^6 of them, where numpy's ``unique`` without an index, by hashing, takes 300.
    """
    ordered = np.sort(values)
    found: Hashes = ordered[opens(ordered)]
    return found


def count(colours: Hashes) -> int:
    """How many different ones there are."""
    return len(different(colours))


def numbered(colours: npt.NDArray[np.generic]) -> tuple[Ints, Ints]:
    """Colours as 0, 1, ... in order of first appearance; and the place of each one's first."""
    _, first, inverse = np.unique(colours, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(first), dtype=np.int64)
    rank[order] = np.arange(len(first))
    return rank[inverse], first[order]


def places(those: Ints, size: int) -> Ints:
    """Of so many things the place of each among those; -1 for others."""
    found = np.full(size, -1, dtype=np.int64)
    found[those] = np.arange(len(those))
    return found


def firsts(codes: Ints, count: int) -> Ints:
    """Where each code, of so many, comes first; -1 for those that do not come."""
    found = np.full(count, -1, dtype=np.int64)
    found[codes[::-1]] = np.arange(len(codes))[::-1]
    return found
