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
    _known: dict[tuple[str, int], StreamBlocks] = field(default_factory=dict, repr=False)

    def uniform(self, what: str, occurrence: Ints, draws: int = 1, replicas: Ints | None = None) -> Floats:
        """Numbers of the given occurrence of each replica, shape (replicas, draws).

        ``replicas`` are places among those of the streams (left out: all, in order).
        """
        places = np.arange(self.count) if replicas is None else replicas
        if not draws or not len(places):
            return np.empty((len(places), draws))
        window = self._known.get((what, draws))
        if window is None:
            window = self._known[what, draws] = StreamBlocks(self, what, draws)
        return window.at(places, occurrence)


class StreamBlocks:
    """The latest blocks of a stream, in a ring: numbers (replicas x ``width`` occurrences, draws).

    A replica that is behind all that are kept makes the ring wider, so that it holds what replicas differ by.
    """

    def __init__(self, streams: CounterStreams, what: str, draws: int) -> None:
        self.seed, self.first = (
            streams.seed,
            streams.first,
        )  # not the streams: a circle would keep all of them in memory
        self.what, self.draws = what, draws
        self.begin = self.width = 0  # occurrences
        self.flat = np.empty((0, draws))
        self.ring = np.empty((streams.count, 0, draws))

    def at(self, places: Ints, occurrence: Ints) -> Floats:
        """The numbers of the given occurrences."""
        ahead = (occurrence - self.begin).view(np.uint64)  # in which one of an earlier block is huge
        if ahead.max() >= self.width:
            self._move(int(occurrence.min()) // BLOCK, int(occurrence.max()) // BLOCK + 1)
        return self.flat.take(places * self.width + occurrence % self.width, axis=0)

    def _move(self, begin: int, end: int) -> None:
        """To where these blocks are among those that are kept."""
        known = range(self.begin // BLOCK, (self.begin + self.width) // BLOCK)
        end = max(end, known.stop)
        begin = min(begin, max(known.start, end - len(known)))
        if end - begin > len(known):
            known = range(0)
            self.width = (end - begin) * BLOCK
            self.ring = np.empty((len(self.ring), self.width, self.draws))
            self.flat = self.ring.reshape(-1, self.draws)
        for block in range(begin, end):
            if block not in known:
                place = block * BLOCK % self.width
                self.ring[:, place : place + BLOCK] = self._drawn(block)
        self.begin = begin * BLOCK

    def _drawn(self, block: int) -> Floats:
        drawn = [
            numbers_of(self.seed, self.what, block, draw, self.first, len(self.ring)) for draw in range(self.draws)
        ]
        return np.stack(drawn, axis=-1)


def numbers_of(seed: int, what: str, block: int, draw: int, first: int, count: int) -> Floats:
    """The numbers of a block of occurrences for ``count`` replicas from ``first`` on, shape (count, BLOCK)."""
    digest = hashlib.blake2b(repr((seed, what, block, draw)).encode(), digest_size=16).digest()
    bits = np.random.Philox(key=int.from_bytes(digest, "little"), counter=first * (BLOCK // 4))  # four a counter
    numbers = np.random.Generator(bits).random(count * BLOCK).reshape(count, BLOCK)
    return np.maximum(numbers, 2.0**-60)  # never 0, of which there is no logarithm
