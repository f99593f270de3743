"""When all ranks hold most, in arrays over them.  An accelerator of ``memory_timeline``, to the bit.

All ranks of a stage allocate and free the same in another order; of those that end up with the same bytes at their peak
the first one tells when and by which op.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.engine.rank_times import RankTimes
from simcluster.planning.ops import Item, Op
from simcluster.results.memory_timeline import POOLS, MemoryPeak
from simcluster.results.rank_instants import PlayedStage, stages_of

_TOGETHER = 1 << 20


class _Change(NamedTuple):
    """Bytes of a pool that come or go at instants [rank], by an op or for one that arrives (``received``); ``delta`` is
    that of all ranks, or each one's."""

    op: int
    time: Floats
    pool: int
    delta: float | Floats
    what: tuple[Item, Op]
    received: bool = False


@dataclass(frozen=True)
class PeaksOverRanks:
    """The peaks of all ranks of what was played."""

    found: RankTimes

    @cached_property
    def _stages(self) -> list[_StageMemory]:
        return [_StageMemory(stage, number) for number, stage in enumerate(stages_of(self.found))]

    @cached_property
    def _where(self) -> dict[int, tuple[int, int]]:
        """Stage and place of every rank."""
        return {
            rank: (number, place)
            for number, stage in enumerate(self._stages)
            for place, rank in enumerate(stage.ranks.tolist())
        }

    def peak(self, rank: int) -> MemoryPeak:
        """Of a rank."""
        stage, place = self._where[rank]
        return self._stages[stage].peak(place)

    def different(self) -> list[MemoryPeak]:
        """Of the ranks that hold other bytes at their peak than all before them, in order of ranks."""
        ranks = [int(stage.ranks[place]) for stage in self._stages for place in stage.different()]
        return [self.peak(rank) for rank in sorted(ranks)]


class _StageMemory:
    """The changes of memory on the ranks of a stage."""

    def __init__(self, stage: PlayedStage, number: int) -> None:
        self.ranks, self._number = stage.ranks, number
        changes = [*_of_ops(stage), *_received(stage)]
        changes.sort(key=lambda change: (np.max(change.delta) > 0, change.op))  # of one instant: frees first
        self._changes = changes
        deltas = [np.atleast_1d(change.delta) for change in self._changes]
        wide = len(self.ranks) if any(len(each) > 1 for each in deltas) else 1
        self._deltas = np.array([np.broadcast_to(each, wide) for each in deltas]).T  # [rank, or 1 for all; change]
        self._pool = np.array([change.pool for change in self._changes], dtype=np.int64)

    def different(self) -> list[int]:
        """The first place with each different set of bytes at its peak."""
        if not self._changes:
            return [0]
        size = max(1, _TOGETHER // len(self._changes))
        pools = []
        for first in range(0, len(self.ranks), size):
            time, turn, delta = self._in_time(slice(first, first + size))
            end = self._fullest(time, delta)
            there = np.arange(turn.shape[1])[None] <= end[:, None]
            delta = np.where(there, delta, 0.0)
            own = self._pool[turn]
            pools.append(np.stack([np.cumsum(np.where(own == pool, delta, 0.0), axis=1)[:, -1]
                                   for pool in range(len(POOLS))], axis=1))  # fmt: skip
        _, place = np.unique(np.concatenate(pools), axis=0, return_index=True)
        return sorted(place.tolist())

    def peak(self, place: int) -> MemoryPeak:
        """Of the rank at a place."""
        rank = int(self.ranks[place])
        if not self._changes:
            return MemoryPeak(rank, self._number, 0.0, dict.fromkeys(POOLS, 0.0))
        time, turn, deltas = self._in_time(slice(place, place + 1))
        end = int(self._fullest(time, deltas)[0])
        before, delta = turn[0, : end + 1], deltas[0, : end + 1]
        pools = np.bincount(self._pool[before], weights=delta, minlength=len(POOLS))
        at = int(np.flatnonzero(delta > 0)[-1])
        change = self._changes[int(before[at])]
        (item, op), received = change.what, change.received
        return MemoryPeak(
            rank=rank,
            stage=self._number,
            time=float(time[0, at]),
            pools=dict(zip(POOLS, pools.tolist(), strict=True)),
            kind="recv" if received else op.kind,
            name=op.name,
            layer=-1 if received else op.layer,
            step=item.step,
            chunk=item.chunk,
            microbatch=item.microbatch,
        )

    def _in_time(self, some: slice) -> tuple[Floats, Ints, Floats]:
        """Times in order, which change each is, and its bytes [rank, change]."""
        table = np.stack([change.time[some] for change in self._changes], axis=1)
        turn = np.argsort(table, axis=1, kind="stable")
        same = len(self._deltas) == 1
        delta = self._deltas[0][turn] if same else np.take_along_axis(self._deltas[some], turn, axis=1)
        return np.take_along_axis(table, turn, axis=1), turn, delta

    @staticmethod
    def _fullest(time: Floats, delta: Floats) -> Ints:
        """The last change of the first instant at which most is held [rank]."""
        held = np.cumsum(delta, axis=1)
        held[:, :-1][time[:, 1:] == time[:, :-1]] = -np.inf
        return np.asarray(held.argmax(axis=1))


def _of_ops(stage: PlayedStage) -> Iterator[_Change]:
    """What ops allocate and free."""
    for number, (what, (ready, start, end)) in enumerate(zip(stage.ops, stage.times, strict=True)):
        op = what[1]
        begun = start if op.work.group(0) is None else ready
        own = stage.own.memory.get(number) if stage.own else None
        for pool, first, last in own or op.memory if not op.work.joins else ():
            if np.any(first):
                yield _Change(number, begun, POOLS.index(pool), first, what)
            if np.any(last):
                yield _Change(number, end, POOLS.index(pool), last, what)


def _received(stage: PlayedStage) -> Iterator[_Change]:
    """What arrives: from the begin of its transfer to the end of the op that waits for it."""
    pool = POOLS.index("other")
    for _, sent, _, (_, start, _), number in stage.received:
        size = sent.work.size * sent.work.load
        if size:
            what = stage.ops[number][0], sent
            yield _Change(number, start, pool, size, what, received=True)
            yield _Change(number, stage.times[number][2], pool, -size, what, received=True)
