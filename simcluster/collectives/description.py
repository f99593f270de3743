"""Collectives as data: rounds of hops, each with its sender, receiver and part of the size.

Simulated as a *flow*, the hops of a phase are one activity with its usage of every link. Simulated in *steps*, every
hop of every round is a separate transfer. Ranks are positions in the group, 0 .. N-1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.errors import InputError

Item = TypeVar("Item")

SWITCH = -1
"""A position in the network: the lowest switch above all ranks that exchange the same data with it in a phase.

It adds up what comes in (in a phase that reduces) and sends copies out (multicast); the switches below it on the way do
so too, so that a link carries the same data once, however many ranks it leads to.
"""


@dataclass(frozen=True, slots=True)
class Hop:
    """Send that repeats every round, from position ``source`` to ``target`` (one of them may be SWITCH).

    ``share`` is the part of the collective's size that it carries in a round. ``relay``, if not -1, is the position
    whose NIC the bytes leave through (NVLink to that GPU first: NCCL's PXN). ``channel`` numbers independent parts of
    the data (rings, trees). In round 0 the hop carries ``count`` chunks of its channel, ``stride`` apart from ``chunk``
    on. Its flow has number ``channel`` + ``lane``: GPUs near several NICs take them in turn by that.
    """

    source: int
    target: int
    share: float
    relay: int = -1
    channel: int = 0
    chunk: int = 0
    count: int = 1
    stride: int = 1
    lane: int = 0

    def chunks(self, number: int, cycle: int) -> list[int]:
        """Return the chunk numbers that a hop carries in round ``number``; all ``cycle`` chunks come in turn."""
        first, place = self.chunk - self.chunk % cycle, self.chunk % cycle
        start = first + (place - number * self.count) % cycle
        return [start + turn * self.stride for turn in range(self.count)]


@dataclass(frozen=True, slots=True)
class Phase:
    """Phase of a collective: ``rounds`` repetitions of the same hops, or a pipeline.

    A rank sends round k + 1 of a channel when it has finished sending and receiving round k of it. ``reduces`` states
    whether the receiver adds what arrives to its data or keeps it. From round to round the chunks of a hop move back,
    in a circle of ``chunks`` (see ``Hop.chunks``).

    In a *pipelined* phase (one round, hops in the order in which data depend on each other) a rank passes the first
    bytes on while the others still arrive, so all hops are in flight at once; pipelined phases that follow each other
    are one pipeline. That is the limit of very small pieces, of which many are in flight: a pipeline takes the latency
    of its longest way and then moves at the rate of its most loaded link.
    """

    rounds: int
    hops: Sequence[Hop]
    chunks: int
    reduces: bool
    pipelined: bool = False


class LazySequence(Sequence[Item]):
    """Sequence whose items are made on access, so that N^2 hops need not be held."""

    def made(self, numbers: range) -> Iterator[Item]:
        """Generate the items with these numbers."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Item]:
        return self.made(range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        numbers = range(len(self))[index]
        return next(self.made(range(numbers, numbers + 1))) if isinstance(numbers, int) else [*self.made(numbers)]


class Lazy(LazySequence[Item]):
    """Sequence of ``length`` items, each made on access by a function."""

    def __init__(self, length: int, make: Callable[[int], Item]) -> None:
        self._length, self._make = length, make

    def __len__(self) -> int:
        return self._length

    def made(self, numbers: range) -> Iterator[Item]:
        """Generate the items with these numbers."""
        return map(self._make, numbers)


@dataclass(frozen=True, eq=False, slots=True)
class HopList(LazySequence[Hop]):
    """Hops as columns with one value per hop: a ring of 16,384 ranks on eight rails has 131,072 hops."""

    source: Ints
    target: Ints
    share: Floats
    relay: Ints
    channel: Ints
    chunk: Ints
    lane: Ints

    @classmethod
    def of(
        cls, source: Ints, target: Ints, share: Floats | float, *, relay: Ints | int = -1, channel: Ints | int = 0,
        chunk: Ints | int = 0, lane: Ints | int = 0,
    ) -> HopList:  # fmt: skip
        """Return hops with these columns; a column may be one value for all hops."""
        return cls(*np.broadcast_arrays(source, target, share, relay, channel, chunk, lane))

    @classmethod
    def joined(cls, parts: Sequence[HopList]) -> HopList:
        """Return the hops of all parts, part by part."""
        names = ("source", "target", "share", "relay", "channel", "chunk", "lane")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def backwards(self) -> HopList:
        """Return the reversed hops, last first, without relays and chunks."""
        return HopList.of(self.target[::-1], self.source[::-1], self.share[::-1], channel=self.channel[::-1])

    def __len__(self) -> int:
        return len(self.source)

    def made(self, numbers: range) -> Iterator[Hop]:
        """Generate the hops with these numbers."""
        columns = (self.source, self.target, self.share, self.relay, self.channel, self.chunk, self.lane)
        rows = zip(*(column[np.array(numbers, dtype=np.int64)].tolist() for column in columns), strict=True)
        for source, target, share, relay, channel, chunk, lane in rows:
            yield Hop(source, target, share, relay, channel, chunk, lane=lane)


class ColumnHops(LazySequence[Hop]):
    """Hops that are made on access, or all at once as columns (``listed``), without count and stride."""

    @property
    def listed(self) -> HopList:
        """All hops in columns."""
        raise NotImplementedError

    def made(self, numbers: range) -> Iterator[Hop]:
        """Generate the hops with these numbers."""
        return self.listed.made(numbers)


class HopTable(LazySequence[Hop]):
    """Sequence of ``length`` hops that a function makes in blocks: ``columns(numbers)`` returns hops as columns."""

    def __init__(self, length: int, columns: Callable[[Ints], HopList]) -> None:
        self._length, self.columns = length, columns

    def __len__(self) -> int:
        return self._length

    def parts(self, room: int, numbers: range | None = None) -> Iterator[HopList]:
        """Generate blocks of at most ``room`` hops with these numbers (default: all)."""
        numbers = range(len(self)) if numbers is None else numbers
        for first in range(0, len(numbers), room):
            yield self.columns(np.array(numbers[first : first + room]))

    def made(self, numbers: range) -> Iterator[Hop]:
        """Generate the hops with these numbers."""
        return itertools.chain.from_iterable(self.parts(4096, numbers))


def repeated_rounds(phases: Sequence[Phase]) -> Iterator[tuple[Sequence[Hop], int]]:
    """Yield the hops of a round, and in how many consecutive rounds they repeat (with other chunks).

    Raises InputError for pipelined phases, which have no rounds.
    """
    if any(phase.pipelined for phase in phases):
        raise InputError(
            "detail: steps simulates algorithms that go round by round; this one is a pipeline (tree and chain, nvls "
            "and sharp are): use detail: flow, or an algorithm in rounds such as ring or binomial"
        )
    return _find_repeated(phases)


def _find_repeated(phases: Sequence[Phase]) -> Iterator[tuple[Sequence[Hop], int]]:
    hops: Sequence[Hop] = ()
    rounds = 0
    for phase in phases:
        if phase.hops and not _have_equal_hops(hops, phase.hops):
            if rounds:
                yield hops, rounds
            hops, rounds = tuple(phase.hops), 0
        rounds += phase.rounds if phase.hops else 0
    if rounds:
        yield hops, rounds


def _have_equal_hops(some: Sequence[Hop], others: Sequence[Hop]) -> bool:
    return len(some) == len(others) and all(
        (one.source, one.target, one.share, one.relay, one.channel)
        == (other.source, other.target, other.share, other.relay, other.channel)
        for one, other in zip(some, others, strict=True)
    )
