"""Array types, and helpers to find runs of equal values, number items, sort small integers and hash rows.

A hash is equal for equal neighbourhoods in any order: the sum of well-mixed numbers of the members of a multiset. Two
of 10^6 different ones collide with a probability of 10^12 / 2 / 2^64 = 3e-8. Pure.
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
"""Whole numbers below 2**31, in large arrays."""
Numbers = npt.NDArray[np.integer[Any]]
"""Whole numbers of any width."""
Hashes = npt.NDArray[np.uint64]


def run_start_mask(values: npt.NDArray[Any]) -> Bools:
    """Return a mask of the positions at which a run of equal values starts."""
    found = np.ones(len(values), dtype=np.bool_)
    found[1:] = values[1:] != values[:-1]
    return found


def run_starts(values: npt.NDArray[Any]) -> Ints:
    """Return the positions at which runs of equal values start."""
    return np.flatnonzero(run_start_mask(values))


def concat_ranges(counts: Numbers) -> Ints:
    """Return the concatenation of ranges 0, 1, ..., count - 1, a range for each of ``counts``."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def number_entries_by_owner(
    tables: Sequence[Sequence[Numbers]], owners: int, first: int = 0
) -> tuple[list[list[Int32s]], Ints]:
    """Assign numbers to table entries, which hold owners, so that each owner's entries get consecutive numbers.

    Tables hold owners by column; entries are numbered from ``first`` row by row, table after table. Also returns the
    number of entries per owner.
    """
    counts = [[np.bincount(column, minlength=owners) for column in table] for table in tables]
    none = np.zeros(owners, dtype=np.int64)
    total: Ints = sum((own for of_table in counts for own in of_table), none)
    following, numbers = first + np.cumsum(total) - total, []
    for table, of_table in zip(tables, counts, strict=True):
        whole: Ints = sum(of_table, none)
        if sum((own > 0 for own in of_table), none).max(initial=0) > 1:
            number = _assign_entry_numbers(np.stack(table, axis=1).ravel(), whole, following)
            numbers.append([*number.reshape(-1, len(table)).T])
        else:  # no owner is in several columns
            pairs = zip(table, of_table, strict=True)
            numbers.append([_assign_entry_numbers(column, own, following) for column, own in pairs])
        following = following + whole
    return numbers, total


def _assign_entry_numbers(owners: Numbers, counts: Ints, first_free: Ints) -> Int32s:
    by_owner = np.arange(len(owners), dtype=np.int32)
    by_owner += np.repeat((first_free - (np.cumsum(counts) - counts)).astype(np.int32), counts)
    if (owners[1:] >= owners[:-1]).all():
        return by_owner
    width = np.count_nonzero(counts)
    if not len(owners) % width and (owners.reshape(-1, width) == np.flatnonzero(counts)).all():  # all, again and again
        return by_owner.reshape(width, -1).T.ravel()
    number = np.empty_like(by_owner)
    number[sort_order(owners)] = by_owner
    return number


_SPARSE = 4  # ratio of the largest number to the count of numbers above which numbers are sorted


def hash64(values: npt.NDArray[np.generic], salt: int = 0) -> Hashes:
    """Hash each value to a 64-bit number (splitmix64's finalizer: Steele et al., OOPSLA 2014)."""
    found = values.astype(np.uint64) + np.uint64((0x9E3779B97F4A7C15 * (2 * salt + 1)) & 0xFFFFFFFFFFFFFFFF)
    found ^= found >> np.uint64(30)
    found *= np.uint64(0xBF58476D1CE4E5B9)
    found ^= found >> np.uint64(27)
    found *= np.uint64(0x94D049BB133111EB)
    found ^= found >> np.uint64(31)
    return found


def float_bits(values: npt.NDArray[np.float64]) -> Hashes:
    """Return the bit patterns of floats as 64-bit integers, with -0.0 as 0.0."""
    return (values + 0.0).view(np.uint64)


def sum_segments(values: Hashes, starts: Ints) -> Hashes:
    """Return the sum of each segment ``values[starts[i] : starts[i + 1]]``, modulo 2^64."""
    total = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(values)])
    found: Hashes = total[starts[1:]] - total[starts[:-1]]
    return found


def unique_inverse(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values, ascending, and the index of each value among them."""
    if _SPARSE * len(values) < int(values.max(initial=-1)):
        order = sort_order(values)
        new = run_start_mask(values[order])
        place = np.empty(len(values), dtype=np.int64)
        place[order] = np.cumsum(new) - 1
        return values[order][new], place
    there = np.zeros(int(values.max(initial=-1)) + 1, dtype=bool)
    there[values] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[values]


def sort_order(values: Numbers) -> Ints:
    """Return the permutation that sorts small integers stably (radix sort, 16 bits at a time)."""
    order = np.argsort(values.astype(np.uint16), kind="stable")
    rest = values >> 16
    while rest.any():
        order = order[np.argsort(rest.astype(np.uint16)[order], kind="stable")]
        rest = rest >> 16
    return order


def hash_rows(table: npt.NDArray[np.generic]) -> Hashes:
    """Return one hash per row of a table; equal rows have equal hashes."""
    places = np.arange(table.shape[1], dtype=np.uint64)
    mixed_rows: Hashes = hash64(hash64(table) ^ hash64(places, 61)[None, :], 67)
    found: Hashes = mixed_rows.sum(axis=1, dtype=np.uint64)
    return found


def distinct_hashes(values: Hashes) -> Hashes:
    """Return the distinct hashes, ascending.

    Sorting takes 20 ms for 10^6; numpy's ``unique`` without an index takes 300 ms by hashing.
    """
    ordered = np.sort(values)
    found: Hashes = ordered[run_start_mask(ordered)]
    return found


def count_distinct_hashes(colours: Hashes) -> int:
    """Return the number of distinct hashes."""
    return len(distinct_hashes(colours))


def number_by_first_use(colours: npt.NDArray[np.generic]) -> tuple[Ints, Ints]:
    """Replace values by 0, 1, ... in order of first appearance; also return each value's first position."""
    _, first, inverse = np.unique(colours, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(first), dtype=np.int64)
    rank[order] = np.arange(len(first))
    return rank[inverse], first[order]


def positions_of_items(items: Ints, size: int) -> Ints:
    """Return the position of each number 0 to ``size`` - 1 in an array of distinct numbers; -1 if absent."""
    found = np.full(size, -1, dtype=np.int64)
    found[items] = np.arange(len(items))
    return found


def first_indices(codes: Ints, count: int) -> Ints:
    """Return the first position of each number 0 to ``count`` - 1 in the array ``codes``; -1 if absent."""
    found = np.full(count, -1, dtype=np.int64)
    found[codes[::-1]] = np.arange(len(codes))[::-1]
    return found
