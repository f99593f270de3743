"""Which states are active in every interval of a rank's time; compiled, see ``base.pointers``."""

from __future__ import annotations

import cython
import numpy as np

from simcluster.base.arrays import Int32s, Numbers

if not cython.compiled:
    from simcluster.base.pointers import Buffers


def active_states(edges: cython.int, first: Numbers, last: Numbers, state: Numbers, states: cython.int) -> Int32s:
    """Return the states that are active in each interval between this number of edges, one bit per state.

    ``state[i]``, one of at most 30 states, is active between edges ``first[i]`` and ``last[i]``.
    """
    buffers: Buffers = Buffers()
    begins: cython.p_int = buffers.given_ints("first", first)
    ends: cython.p_int = buffers.given_ints("last", last)
    own: cython.p_int = buffers.given_ints("state", state)
    change: cython.p_int = buffers.ints("change", edges * states)
    depth: cython.p_int = buffers.ints("depth", states)
    found: cython.p_int = buffers.ints("found", max(edges - 1, 0))
    spans: cython.int = len(first)
    span: cython.int
    interval: cython.int
    number: cython.int
    active: cython.int
    for span in range(spans):
        change[begins[span] * states + own[span]] += 1
        change[ends[span] * states + own[span]] -= 1
    for interval in range(edges - 1):
        active = 0
        for number in range(states):
            depth[number] += change[interval * states + number]
            if depth[number] > 0:
                active |= 1 << number
        found[interval] = active
    return np.asarray(buffers.read("found")[: max(edges - 1, 0)], dtype=np.int32)
