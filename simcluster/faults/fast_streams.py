"""Fast random streams (SFC64, normals in single precision) for drawing millions of numbers."""

from __future__ import annotations

import hashlib

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.loops import box_muller_normals, draw_uniforms


class _FastGenerator(np.random.Generator):
    """Random generator that computes normal numbers in single precision, an array at a time.

    By Box and Muller (Ann. Math. Stat. 29, 1958): a million take 2 ms instead of 13 ms. The first n normals do not
    depend on how many are drawn.
    """

    _room = np.empty((3, 0), np.float32)

    def standard_normal(self, size: int) -> Floats:  # type: ignore[override]
        """Return ``size`` standard normal numbers."""
        return self.normal(0.0, 1.0, size)

    def normal(self, loc: float, scale: float, size: int) -> Floats:  # type: ignore[override]
        """Return ``size`` normal numbers with mean ``loc`` and standard deviation ``scale``."""
        count = (size + 1) // 2
        if count > self._room.shape[1]:
            self._room = np.empty((3, count), np.float32)
        radius, cosine, sine = self._room[:, :count]
        draw_uniforms(self.bit_generator, radius, cosine)
        np.log(radius, out=radius)
        radius *= np.float32(-2.0)
        np.sqrt(radius, out=radius)
        np.sin(cosine, out=sine)
        np.cos(cosine, out=cosine)
        return box_muller_normals(radius, cosine, sine, loc, scale)[:size]


class FastStreams:
    """Fast random streams, a replacement of ``random_factors.RandomStreams`` that gives other numbers.

    All calls return the same generator, so a call ends the previous stream.
    """

    def __init__(self) -> None:
        self._bits = np.random.SFC64(0)
        self._state = self._bits.state
        self._generator = _FastGenerator(self._bits)
        self._unused = np.empty((2, 12), np.float32)

    def __call__(self, seed: int, *identity: object) -> np.random.Generator:
        """Return the generator at the start of the random stream of this seed and identity."""
        digest = hashlib.blake2b(repr((seed, *identity)).encode(), digest_size=24).digest()
        self._state["state"]["state"][:3] = np.frombuffer(digest, dtype="<u8")
        self._state["state"]["state"][3] = 1
        self._state["has_uint32"] = 0
        self._bits.state = self._state
        draw_uniforms(self._bits, *self._unused)  # discard 12 numbers to mix the state, as SFC64's author does
        return self._generator
