"""Time intervals that other intervals cover, and the streams of a rank's host."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints

BESIDE = ("d2h", "h2d", "storage", "host")
"""Streams of copies to and from the host and on to storage, which are no communication between ranks, and of the host's
own work."""


def inside(edges: Floats, start: Floats, end: Floats) -> Bools:
    """Return which intervals between consecutive edges lie inside one of the given ones (whose ends are edges)."""
    return covered(len(edges), np.searchsorted(edges, start), np.searchsorted(edges, end))


def covered(size: int, first: Ints, last: Ints) -> Bools:
    """Return which intervals between this number of edges lie between edges ``first[i]`` and ``last[i]``."""
    depth = np.cumsum(np.bincount(first, minlength=size)[:-1] - np.bincount(last, minlength=size)[:-1])
    return np.asarray(depth > 0)
