"""Random numbers by what they are for: counter-based streams, one for every entity, kind and occurrence.

The numbers of an occurrence (the 7th failure of "gpu", how long its repair takes) are the same in every replica's run
whatever else happens, in whatever order and process, and under every policy: runs that differ in one thing have all
other draws in common (common random numbers).  Philox, Salmon et al. 2011: the number at a counter needs no other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from simcluster.base.arrays import Floats, Ints

BLOCK = 64
"""Occurrences that are drawn together."""


@dataclass
class CounterStreams:
    """Uniform numbers in (0, 1) of the replicas ``first`` to ``first + count`` of a run with that seed.

    Replica r's numbers do not depend on which others are drawn beside it.
    """

    seed: int
    first: int
    count: int
    _known: dict[tuple[str, int, int], Floats] = field(default_factory=dict, repr=False)

    def uniform(self, what: str, occurrence: Ints, draws: int = 1, replicas: Ints | None = None) -> Floats:
        """Numbers of the given occurrence of each replica, shape (replicas, draws).

        ``replicas`` are places among those of the streams (left out: all, in order).
        """
        places = np.arange(self.count) if replicas is None else replicas
        if not draws or not len(places):
            return np.empty((len(places), draws))
        blocks = occurrence // BLOCK
        low, high = int(blocks.min()), int(blocks.max())
        if low == high:
            return self._block(what, draws, low)[places, occurrence % BLOCK]
        found = np.empty((len(places), draws))
        for block in range(low, high + 1):
            chosen = blocks == block
            found[chosen] = self._block(what, draws, block)[places[chosen], occurrence[chosen] % BLOCK]
        return found

    def _block(self, what: str, draws: int, block: int) -> Floats:
        """Numbers of ``BLOCK`` occurrences, shape (replicas, BLOCK, draws)."""
        key = what, draws, block
        if key not in self._known:
            drawn = [numbers_of(self.seed, what, block, draw, self.first, self.count) for draw in range(draws)]
            self._known[key] = np.stack(drawn, axis=-1)
        return self._known[key]


def numbers_of(seed: int, what: str, block: int, draw: int, first: int, count: int) -> Floats:
    """The numbers of a block of occurrences for ``count`` replicas from ``first`` on, shape (count, BLOCK)."""
    digest = hashlib.blake2b(repr((seed, what, block, draw)).encode(), digest_size=16).digest()
    bits = np.random.Philox(key=int.from_bytes(digest, "little"), counter=first * (BLOCK // 4))  # four a counter
    numbers = np.random.Generator(bits).random(count * BLOCK).reshape(count, BLOCK)
    return np.maximum(numbers, 2.0**-60)  # never 0, of which there is no logarithm
