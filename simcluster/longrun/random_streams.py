"""Counter-based random numbers of long runs: a stream per purpose, addressed by run and occurrence.

The numbers of an occurrence (the 7th failure of "gpu", how long its repair takes) are the same in a run whatever else
happens, in whatever order and process, and under every policy: runs that differ in one thing share all other draws
(common random numbers). Philox, Salmon et al. 2011: the number at a counter needs no other.
"""

from __future__ import annotations

import hashlib

import numpy as np

from simcluster.base.arrays import Floats

BLOCK = 64
"""Number of occurrences that are drawn at once, a power of two."""


class RandomStream:
    """Uniform random numbers for one purpose in one run: ``draws`` numbers per event occurrence, cached in blocks."""

    def __init__(self, seed: int, run: int, what: str, draws: int) -> None:
        self.seed, self.run, self.what, self.draws = seed, run, what, draws
        self._blocks: list[Floats] = []

    def uniforms_for(self, occurrence: int) -> Floats:
        """Return the uniform random numbers of an event's nth occurrence, as an array (1, draws)."""
        block, place = divmod(occurrence, BLOCK)
        while block >= len(self._blocks):
            numbers = np.empty((self.draws, 1, BLOCK))
            for draw, each in enumerate(numbers):
                fill_random_numbers(self.seed, self.what, len(self._blocks), draw, self.run, each)
            self._blocks.append(numbers[:, 0])
        return self._blocks[block].T[place : place + 1]


def fill_random_numbers(seed: int, what: str, block: int, draw: int, first: int, out: Floats) -> Floats:
    """Fill the array ``out`` [run, occurrence] with uniform random numbers, for runs numbered from ``first``."""
    digest = hashlib.blake2b(repr((seed, what, block, draw)).encode(), digest_size=16).digest()
    bits = np.random.Philox(key=int.from_bytes(digest, "little"), counter=first * (BLOCK // 4))  # four a counter
    np.random.Generator(bits).random(out=out)
    return np.maximum(out, 2.0**-60, out=out)  # never 0, of which there is no logarithm
