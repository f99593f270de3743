"""Numbers of many things by what they belong to: those of the first owner, as they come, then those of the next.

What a sort would find, by counting: tables of links come column by column in turn over their owners, or owner by owner.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Few, Ints
from simcluster.base.multiset_hash import ordered


def in_turn(tables: Sequence[npt.NDArray[np.signedinteger]], owners: int, first: int = 0) -> tuple[list[Few], Ints]:
    """Numbers, from ``first`` on, of the entries of tables of owners, which come row by row and table after table; and
    how many each owner has."""
    counts = [[np.bincount(column, minlength=owners) for column in table.T] for table in tables]
    total = sum((own for of_table in counts for own in of_table), np.zeros(owners, dtype=np.int64))
    following, numbers = first + np.cumsum(total) - total, []
    for table, of_table in zip(tables, counts, strict=True):
        number = np.empty(table.shape, dtype=np.int32)
        if sum((own > 0 for own in of_table), np.zeros(owners, dtype=np.int64)).max(initial=0) > 1:
            whole = sum(of_table, np.zeros(owners, dtype=np.int64))
            number[:] = _as_they_come(table.ravel(), whole, following).reshape(table.shape)
        else:  # no owner is in several columns
            for column, (those, own) in enumerate(zip(table.T, of_table, strict=True)):
                number[:, column] = _as_they_come(those, own, following)
        following = sum(of_table, following)
        numbers.append(number)
    return numbers, total


def _as_they_come(those: npt.NDArray[np.signedinteger], counts: Ints, following: Ints) -> Few:
    """Numbers of entries of these owners, ``counts`` of each, one after the other from its ``following``."""
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
