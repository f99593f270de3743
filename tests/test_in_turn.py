"""Numbers in turn are what a stable sort gives, whichever way tables come."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.arrays import Int32s, number_entries_by_owner

OWNERS = 6


@st.composite
def tables(draw: st.DrawFn) -> Int32s:
    """Owners in any order, by row, or in turn again and again; of columns by themselves or of several."""
    rows, columns = draw(st.integers(0, 8)), draw(st.integers(0, 3))
    any_owner = st.lists(st.integers(0, OWNERS - 1), min_size=rows * columns, max_size=rows * columns)
    found = np.array(draw(any_owner), dtype=np.int32).reshape(rows, columns)
    how = draw(st.sampled_from(["any", "by row", "in turn"]))
    if how == "by row":
        return np.sort(found, axis=None).reshape(found.shape)
    if how == "in turn":
        period = draw(st.integers(1, 3))
        return (np.arange(rows, dtype=np.int32)[:, None] % period + 2 * np.arange(columns, dtype=np.int32)) % OWNERS
    return found


@given(some=st.lists(tables(), max_size=3), first=st.integers(0, 9))
def test_entries_are_numbered_by_owner_as_they_come(some: list[Int32s], first: int) -> None:
    numbers, counts = number_entries_by_owner([[*table.T] for table in some], OWNERS, first)
    owners = np.concatenate([np.zeros(0, dtype=np.int32), *(table.ravel() for table in some)])
    expected = np.empty(len(owners), dtype=np.int64)
    expected[np.argsort(owners, kind="stable")] = first + np.arange(len(owners))
    found = [number for table in numbers if table for number in np.stack(table, axis=1).ravel().tolist()]
    assert found == expected.tolist()
    assert counts.tolist() == np.bincount(owners, minlength=OWNERS).tolist()
