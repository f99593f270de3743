"""Numbers of many things by what they belong to: those of the first owner, as they come, then those of the next.

What a sort would find, by counting: tables of links come column by column in turn over their owners, or owner by owner.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcluster.base.arrays import Int32s, Ints, Numbers
from simcluster.base.multiset_hash import ordered


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
