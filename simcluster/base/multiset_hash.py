"""Colours of many things as 64-bit numbers: equal for equal neighbourhoods, in any order.  Pure.

A neighbourhood is a multiset; its number is the sum of its members' numbers, each well spread.  Two of 10^6 different
ones get the same number with a probability of 10^12 / 2 / 2^64 = 3e-8.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Hashes, Ints, Numbers, opens

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
