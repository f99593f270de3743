"""Data structures of collective algorithms: phases, rounds and hops (sender, receiver, share of the size).

Simulated as a *flow*, the hops of a phase are one transfer with its usage of every link. Simulated in *steps*, every
hop of every round is a separate transfer. Ranks are positions in the group, 0 .. N-1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar, overload

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.errors import InputError

Item = TypeVar("Item")

_SEND = attrgetter("source", "target", "share", "relay", "channel")  # equal for equal hops of a round

SWITCH = -1
"""Position that represents a switch: the lowest switch above all ranks that exchange the same data with it in a phase.

It adds up what comes in (in a phase that reduces) and sends copies out (multicast); the switches below it on the way do
so too, so that a link carries the same data once, however many ranks it leads to.
"""


@dataclass(frozen=True, slots=True)
class Hop:
    """Send from one group position to another in every round; sender or receiver may be a switch (SWITCH).

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


@dataclass(frozen=True, slots=True)
class Phase:
    """Phase of a collective: the same hops repeated for ``rounds`` rounds, or one pipelined pass over them.

    A rank sends round k + 1 of a channel when it has finished sending and receiving round k of it. ``reduces`` states
    whether the receiver adds what arrives to its data or keeps it. From round to round the chunks of a hop move back
    by ``count``, in a circle of ``chunks``.

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
    """Sequence that creates each item on access, so that the N^2 hops of an all-to-all need no memory."""

    def generate_items(self, indices: range) -> Iterator[Item]:
        """Generate the items whose indices are in ``indices``."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Item]:
        return self.generate_items(range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        at = range(len(self))[index]
        return next(self.generate_items(range(at, at + 1))) if isinstance(at, int) else [*self.generate_items(at)]


class FunctionSequence(LazySequence[Item]):
    """Sequence of ``length`` items; ``make(index)`` creates an item on each access."""

    def __init__(self, length: int, make: Callable[[int], Item]) -> None:
        self._length, self._make = length, make

    def __len__(self) -> int:
        return self._length

    def generate_items(self, indices: range) -> Iterator[Item]:
        return map(self._make, indices)


@dataclass(frozen=True, eq=False, slots=True)
class HopList(LazySequence[Hop]):
    """Hops stored as arrays, one per field: a ring of 16,384 ranks on eight rails has 131,072 hops."""

    source: Ints
    target: Ints
    share: Floats
    relay: Ints
    channel: Ints
    chunk: Ints
    lane: Ints

    @classmethod
    def from_columns(
        cls, source: Ints, target: Ints, share: Floats | float, *, relay: Ints | int = -1, channel: Ints | int = 0,
        chunk: Ints | int = 0, lane: Ints | int = 0,
    ) -> HopList:  # fmt: skip
        """Return hops from one array per field; a scalar applies to all hops."""
        return cls(*np.broadcast_arrays(source, target, share, relay, channel, chunk, lane))

    @classmethod
    def concatenate(cls, parts: Sequence[HopList]) -> HopList:
        """Concatenate several hop lists into one."""
        names = ("source", "target", "share", "relay", "channel", "chunk", "lane")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def reversed_copy(self) -> HopList:
        """Return the hops in reverse order with senders and receivers swapped, without relays and chunks."""
        return HopList.from_columns(self.target[::-1], self.source[::-1], self.share[::-1], channel=self.channel[::-1])

    def __len__(self) -> int:
        return len(self.source)

    def generate_items(self, indices: range) -> Iterator[Hop]:
        columns = (self.source, self.target, self.share, self.relay, self.channel, self.chunk, self.lane)
        rows = zip(*(column[np.array(indices, dtype=np.int64)].tolist() for column in columns), strict=True)
        for source, target, share, relay, channel, chunk, lane in rows:
            yield Hop(source, target, share, relay, channel, chunk, lane=lane)


class LazyHopList(LazySequence[Hop]):
    """Hops created on access, or all at once as arrays (``hop_list``); each hop carries one chunk per round."""

    @property
    def hop_list(self) -> HopList:
        """All hops as one HopList."""
        raise NotImplementedError

    def generate_items(self, indices: range) -> Iterator[Hop]:
        return self.hop_list.generate_items(indices)


class BlockwiseHops(LazySequence[Hop]):
    """Sequence of ``length`` hops created block by block: ``columns(indices)`` returns a HopList."""

    def __init__(self, length: int, columns: Callable[[Ints], HopList]) -> None:
        self._length, self.columns = length, columns

    def __len__(self) -> int:
        return self._length

    def hop_blocks(self, block_size: int, indices: range | None = None) -> Iterator[HopList]:
        """Generate hop lists of at most ``block_size`` hops that cover the indices ``indices`` (default: all hops)."""
        indices = range(len(self)) if indices is None else indices
        for first in range(0, len(indices), block_size):
            yield self.columns(np.array(indices[first : first + block_size]))

    def generate_items(self, indices: range) -> Iterator[Hop]:
        return itertools.chain.from_iterable(self.hop_blocks(4096, indices))


def group_repeated_rounds(phases: Sequence[Phase]) -> Iterator[tuple[Sequence[Hop], int]]:
    """Yield (hops, count): the hops of a round, and the number of consecutive rounds with the same hops.

    Raises InputError for pipelined phases, which have no rounds.
    """
    if any(phase.pipelined for phase in phases):
        raise InputError(
            "detail: steps simulates only algorithms with rounds, and this algorithm is a pipeline (as are tree, "
            "chain, nvls and sharp); use detail: flow, or an algorithm with rounds, such as ring or binomial"
        )
    hops: Sequence[Hop] = ()
    rounds = 0
    for phase in phases:
        if phase.hops and list(map(_SEND, hops)) != list(map(_SEND, phase.hops)):
            if rounds:
                yield hops, rounds
            hops, rounds = tuple(phase.hops), 0
        rounds += phase.rounds if phase.hops else 0
    if rounds:
        yield hops, rounds
