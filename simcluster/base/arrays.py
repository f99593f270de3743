"""Types of numpy arrays, and runs of equal values in a column."""

from __future__ import annotations

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
