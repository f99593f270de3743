"""Which intervals of a rank's idle time are spent on waiting for its host: for copies, its own work, a checkpoint."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.results.timeline import Spans

BESIDE = ("d2h", "h2d", "storage", "host")
"""Streams of copies to and from the host and on to storage, which are no communication between ranks, and of the host's
own work."""


def until_barriers(spans: Spans) -> tuple[Floats, Floats]:
    """From when to when a rank's training stands for checkpoints: from the begin of its part to the barrier of all."""
    own = spans.kind == spans.code("checkpoint")
    barriers = np.flatnonzero(own & (spans.name == spans.code("barrier")))
    begun = [spans.start[own & (spans.step == step)].min() for step in spans.step[barriers].tolist()]
    return np.array(begun, dtype=np.float64), spans.start[barriers]


def held_up_by_host(spans: Spans, edges: Floats, free: Bools) -> Bools:
    """Which intervals of a rank that neither computes nor communicates are spent on waiting for its host.

    Idle time belongs to copies and host work where it ends as one of them ends, and as far back as they reach without
    a break: a copy that ends in the middle of a bubble holds nothing up.
    """
    found = np.zeros(len(free), dtype=bool)
    own = np.isin(spans.stream, [spans.code(stream) for stream in BESIDE if stream in spans.words])
    if not own.any():
        return found
    beside = free & inside(edges, spans.start[own], spans.end[own])
    for place in np.unique(np.searchsorted(edges, spans.end[own])).tolist():
        if place < len(free) and free[place]:
            continue
        while place and beside[place - 1] and not found[place - 1]:
            place -= 1
            found[place] = True
    return found


def inside(edges: Floats, start: Floats, end: Floats) -> Bools:
    """Return which intervals between consecutive edges lie inside one of the given ones (whose ends are edges)."""
    return covered(len(edges), np.searchsorted(edges, start), np.searchsorted(edges, end))


def covered(size: int, first: Ints, last: Ints) -> Bools:
    """Return which intervals between this number of edges lie between edges ``first[i]`` and ``last[i]``."""
    depth = np.cumsum(np.bincount(first, minlength=size)[:-1] - np.bincount(last, minlength=size)[:-1])
    return np.asarray(depth > 0)
