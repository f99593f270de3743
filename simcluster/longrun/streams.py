"""Random numbers by what they are for: counter-based streams, one for every entity, kind and occurrence.

The numbers of an occurrence (the 7th failure of "gpu", how long its repair takes) are the same in every replica's run
whatever else happens, in whatever order and process, and under every policy: runs that differ in one thing have all
other draws in common (common random numbers).  Philox, Salmon et al. 2011: the number at a counter needs no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simcluster.base.arrays import Floats, Ints

BLOCK = 64
"""Occurrences that are drawn together: a power of two."""
_SHIFT = BLOCK.bit_length() - 1
_NOWHERE = np.iinfo(np.int64).min


@dataclass
class CounterStreams:
    """Uniform numbers in (0, 1) of the replicas ``first`` to ``first + count`` of a run with that seed.

    Replica r's numbers do not depend on which others are drawn beside it.
    """

    seed: int
    first: int
    count: int
    _known: dict[tuple[str, int], StreamFamily] = field(default_factory=dict, repr=False)

    def uniform(self, what: str, occurrence: Ints, draws: int = 1, replicas: Ints | None = None) -> Floats:
        """Numbers of the given occurrence of each replica, shape (replicas, draws).

        ``replicas`` are places among those of the streams (left out: all, in order).
        """
        places = np.arange(self.count) if replicas is None else replicas
        if not draws or not len(places):
            return np.empty((len(places), draws))
        family = self._known.get((what, draws))
        if family is None:
            family = self._known[what, draws] = StreamFamily(self, (what,), draws)
        return family.at(0, places, occurrence)


class StreamFamily:
    """Streams of several names side by side, which are looked up at once; kept are the latest blocks of each.

    A replica that is behind all that are kept of a name makes more of them kept, so many as replicas differ by.
    """

    def __init__(self, streams: CounterStreams, names: Sequence[str], draws: int) -> None:
        self.seed, self.first, self.count = (
            streams.seed,
            streams.first,
            streams.count,
        )  # not the streams: a circle would keep all of them in memory
        self.names, self.draws, self.size = names, draws, streams.count * BLOCK
        self.kept = [range(0)] * len(names)
        """Blocks of each name that are there."""
        self.numbers = np.empty((draws, 0))
        """Blocks side by side, each (replica, occurrence)."""
        self._free: list[int] = []  # where there is room for one
        self._depth = 1
        self._begin = np.full(len(names), _NOWHERE)
        """By name and block below the depth: where its occurrence 0 would lie; _NOWHERE if it is not there."""

    def at(self, name: Ints | int, places: Ints, occurrence: Ints) -> Floats:
        """The numbers of these occurrences, each of the stream with that number, shape (replicas, draws)."""
        begin = self._begins(name, occurrence >> _SHIFT)
        if np.minimum.reduce(begin) == _NOWHERE:
            block = occurrence >> _SHIFT
            self._keep_all(np.broadcast_to(np.asarray(name), block.shape), block)
            begin = self._begins(name, block)
        begin += places << _SHIFT
        begin += occurrence
        if self.draws == 1:
            found: Floats = self.numbers[0].take(begin)[:, None]
            return found
        return np.asarray(self.numbers.take(begin, axis=1).T)

    def _begins(self, name: Ints | int, block: Ints) -> Ints:
        """Where they begin: the last block of the table is never there, and stands for all beyond."""
        row: Ints = np.minimum(block, self._depth - 1)
        row += name * self._depth
        return self._begin.take(row)

    def _deepen(self, depth: int) -> None:
        """At least so many blocks have a place in the table, the last of which stays empty."""
        table = np.full((len(self.names), max(depth, 2 * self._depth)), _NOWHERE)
        table[:, : self._depth] = self._begin.reshape(len(self.names), self._depth)
        self._depth, self._begin = table.shape[1], table.reshape(-1)

    def _keep_all(self, name: Ints, block: Ints) -> None:
        """These blocks of these names are there from now on."""
        if int(block.max()) >= self._depth - 1:
            self._deepen(int(block.max()) + 2)
        for each in np.unique(name):
            blocks = block[name == each]
            self._keep(int(each), int(blocks.min()), int(blocks.max()) + 1)

    def _keep(self, name: int, begin: int, end: int) -> None:
        """These blocks of a name are, among as many others as were asked for at once."""
        known = self.kept[name]
        end = max(end, known.stop)
        begin = min(begin, max(known.start, end - len(known)))
        row = self._begin.reshape(len(self.names), self._depth)[name]
        for block in known:
            if block < begin:
                self._free.append(int(row[block]) + block * BLOCK)
                row[block] = _NOWHERE
        for block in range(begin, end):
            if row[block] == _NOWHERE:
                row[block] = self._drawn(name, block) - block * BLOCK
        self.kept[name] = range(begin, end)

    def _drawn(self, name: int, block: int) -> int:
        """Draws a block; returns where it begins."""
        if not self._free:
            held = self.numbers
            blocks = held.shape[1] // self.size
            more = max(2 * len(self.names), blocks)
            self.numbers = np.empty((self.draws, (blocks + more) * self.size))  # takes memory where it is written
            self.numbers[:, : held.shape[1]] = held
            self._free = [place * self.size for place in reversed(range(blocks, blocks + more))]
        begin = self._free.pop()
        for draw, numbers in enumerate(self.numbers[:, begin : begin + self.size]):
            numbers_of(self.seed, self.names[name], block, draw, self.first, numbers.reshape(self.count, BLOCK))
        return begin


class KeptStream:
    """The numbers of one stream, for all replicas and a block of occurrences at once; each is drawn once, and kept."""

    def __init__(self, streams: CounterStreams, what: str, draws: int) -> None:
        self.streams, self.what, self.draws = streams, what, draws
        self._blocks: list[Floats] = []

    def of(self, place: int, block: int) -> Floats:
        """Those of a replica in a block, shape (BLOCK, draws)."""
        streams = self.streams
        while block >= len(self._blocks):
            numbers = np.empty((self.draws, streams.count, BLOCK))
            for draw, each in enumerate(numbers):
                numbers_of(streams.seed, self.what, len(self._blocks), draw, streams.first, each)
            self._blocks.append(numbers)
        return self._blocks[block][:, place].T

    def first(self, place: int, count: int) -> Floats:
        """The first so many of a replica, shape (count, draws)."""
        blocks = [self.of(place, block) for block in range(-(-count // BLOCK))]
        return np.concatenate(blocks)[:count] if blocks else np.empty((0, self.draws))


def numbers_of(seed: int, what: str, block: int, draw: int, first: int, out: Floats) -> Floats:
    """Fills ``out`` (replicas, BLOCK) with the numbers of a block of occurrences, replicas from ``first`` on."""
    digest = hashlib.blake2b(repr((seed, what, block, draw)).encode(), digest_size=16).digest()
    bits = np.random.Philox(key=int.from_bytes(digest, "little"), counter=first * (BLOCK // 4))  # four a counter
    np.random.Generator(bits).random(out=out)
    return np.maximum(out, 2.0**-60, out=out)  # never 0, of which there is no logarithm
