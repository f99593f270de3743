"""Compiled loops over large arrays, each instead of several numpy passes; the uncompiled module uses numpy."""

from __future__ import annotations

from typing import Any

import cython
import numpy as np

from simcluster.base.arrays import Floats

if not cython.compiled:
    from simcluster.base.pointers import address, doubles

_TURN = 2.0 * np.pi


def draw_uniforms(bits: Any, first: Any, second: Any) -> None:
    """Fill two float32 arrays with uniform draws of an SFC64 generator; ``second`` is scaled by 2 pi."""
    count: cython.longlong = len(first)
    if not cython.compiled:
        uniform = (bits.random_raw(count).view(np.uint32).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
        first[:], second[:] = uniform[::2], np.float32(_TURN) * uniform[1::2]
        return
    state = cython.cast(cython.pulonglong, cython.cast(cython.size_t, bits.ctypes.state_address))
    a: cython.ulonglong = state[0]
    b: cython.ulonglong = state[1]
    c: cython.ulonglong = state[2]
    half: cython.float = 0.5
    unit: cython.float = 2.0**-32
    turn: cython.float = _TURN
    ones: cython.p_float = cython.cast(cython.p_float, address(first))
    others: cython.p_float = cython.cast(cython.p_float, address(second))
    for place in range(count):
        raw = a + b + state[3]
        state[3] += 1
        a = b ^ (b >> 11)
        b = c + (c << 3)
        c = ((c << 24) | (c >> 40)) + raw
        ones[place] = (cython.cast(cython.float, cython.cast(cython.uint, raw)) + half) * unit
        others[place] = (cython.cast(cython.float, cython.cast(cython.uint, raw >> 32)) + half) * unit * turn
    state[0], state[1], state[2] = a, b, c


def box_muller_normals(radius: Any, cosine: Any, sine: Any, mean: cython.double, scale: cython.double) -> Floats:
    """Return normal numbers ``mean + scale * z`` (Box-Muller): z is ``radius`` times ``cosine`` or ``sine``."""
    count: cython.longlong = len(radius)
    found = np.empty(2 * count)
    if not cython.compiled:
        found[::2], found[1::2] = radius * cosine, radius * sine
        return np.asarray(mean + scale * found)
    radii: cython.p_float = cython.cast(cython.p_float, address(radius))
    cosines: cython.p_float = cython.cast(cython.p_float, address(cosine))
    sines: cython.p_float = cython.cast(cython.p_float, address(sine))
    normals: cython.p_double = doubles(found)
    for place in range(count):
        normals[2 * place] = mean + scale * cython.cast(cython.double, radii[place] * cosines[place])
        normals[2 * place + 1] = mean + scale * cython.cast(cython.double, radii[place] * sines[place])
    return found


def add_scaled_factors(begin: Floats, seconds: cython.double, factor: Floats) -> Floats:
    """Return ``begin + seconds * factor`` for all simulated cases at once (rows of ``factor``).

    ``begin`` may have fewer columns: each then applies to a group of adjacent columns.
    """
    places: cython.longlong = factor.size
    near: cython.longlong = places // begin.size
    if not cython.compiled:
        return np.asarray(np.repeat(begin, near, axis=1) + seconds * factor)
    found = np.empty_like(factor)
    begins: cython.p_double = doubles(begin)
    factors: cython.p_double = doubles(factor)
    ends: cython.p_double = doubles(found)
    place: cython.longlong = 0
    if near == 1:
        for place in range(places):
            ends[place] = begins[place] + seconds * factors[place]
        return found
    for group in range(places // near):
        time = begins[group]
        for place in range(group * near, (group + 1) * near):
            ends[place] = time + seconds * factors[place]
    return found


def latest_end_per_group(ends: Floats, groups: cython.longlong) -> Floats:
    """Return, in each row (a simulated case), the latest end time of every group of adjacent columns."""
    cases: cython.longlong = ends.shape[0]
    if not cython.compiled:
        return np.asarray(ends.reshape(cases, groups, -1).max(axis=2))
    members: cython.longlong = ends.shape[1] // groups
    found = np.empty((cases, groups))
    starts: cython.p_double = doubles(found)
    times: cython.p_double = doubles(ends)
    place: cython.longlong = 0
    for group in range(cases * groups):
        time = times[place]
        for member in range(place + 1, place + members):
            if times[member] > time:
                time = times[member]
        place += members
        starts[group] = time
    return found
