"""Runs of equal values in a column, and of numbers from 0 on."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Bools, Ints, Numbers


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
