"""Memory over time: what ops allocate and free on every simulated rank, pool by pool.

An op's memory comes as it is issued (a collective's when its rank arrives, not when the last one does) and goes as it
ends.  A stage boundary's tensor lies in a buffer of the receiver from the start of its transfer until the first
op that uses it has ended: pool "other".  Model state, which stays, is not in here.

Changes at one instant count together: what is freed at that instant makes room for what is allocated (modelling after
the caching allocators of training frameworks, which reuse a freed block at once).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.shown import Shown
from simcluster.reference.record import RankRecord
from simcluster.results.memory_changes import POOLS, MemoryChanges, MemoryPeak, Row, memory_changes

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = ("time", "step", "rank", "stage", "chunk", "microbatch", "kind", "name", "layer", "pool", "bytes", "held")

_INTEGERS = ("step", "rank", "stage", "chunk", "microbatch", "layer")


@dataclass(frozen=True)
class MemoryTimeline(Shown):
    """Changes of memory of the simulated ranks, column by column, sorted by rank, then time, frees first.

    ``delta`` in bytes, negative where memory is freed; ``row`` is the place in ``rows`` of (kind, name, layer) of the
    op; ``pool`` a place in POOLS.
    """

    rows: tuple[Row, ...]
    time: Floats
    rank: Ints
    stage: Ints
    step: Ints
    chunk: Ints
    microbatch: Ints
    row: Ints
    pool: Ints
    delta: Floats

    def __len__(self) -> int:
        return len(self.delta)

    def only(self, ranks: range) -> MemoryTimeline:
        """The changes on one job's ranks, numbered from 0, as are its stages."""
        own = self._part(ranks.start, ranks.stop)
        columns = {name: getattr(self, name)[own] for name in _COLUMNS}
        columns["rank"] = columns["rank"] - ranks.start
        if own.stop > own.start:
            columns["stage"] = columns["stage"] - columns["stage"].min()
        return MemoryTimeline(self.rows, **columns)

    def curve(self, rank: int) -> tuple[Floats, dict[str, Floats]]:
        """Bytes in each pool on a simulated rank: from time[i] (s) until time[i + 1] they are pools[name][i]."""
        own = self._part(rank, rank + 1)
        time, last = _instants(self.time[own])
        return time, {
            name: np.cumsum(np.where(self.pool[own] == number, self.delta[own], 0.0))[last]
            for number, name in enumerate(POOLS)
        }

    def peak(self, rank: int, stage: int) -> MemoryPeak:
        """The first moment when a simulated rank (of this stage) holds most."""
        own = self._part(rank, rank + 1)
        columns = {name: getattr(self, name)[own] for name in ("row", *_OF_CHANGES)}
        changes = MemoryChanges(self.rows, source=np.arange(own.stop - own.start), **columns)
        return changes.peak(self.time[own], rank, stage)

    def pool_peak(self, rank: int, pool: str) -> float:
        """The most bytes that one pool alone ever holds on a simulated rank."""
        return float(self.curve(rank)[1][pool].max(initial=0.0))

    @cached_property
    def held(self) -> Floats:
        """Bytes in the change's own pool on its rank, behind the change."""
        found = np.zeros(len(self))
        for rank in np.unique(self.rank).tolist():
            own = self._part(rank, rank + 1)
            for number in range(len(POOLS)):
                where = own.start + np.flatnonzero(self.pool[own] == number)
                found[where] = np.cumsum(self.delta[where])
        return found

    def frame(self) -> pd.DataFrame:
        """A row per change: ``bytes`` (negative where freed), and what its pool ``held`` behind it."""
        import pandas as pd

        rows = np.array([*self.rows, ("", "", -1)], dtype=object)[self.row]
        columns: dict[str, object] = {name: getattr(self, name) for name in _INTEGERS if name != "layer"}
        columns |= {"time": self.time, "kind": rows[:, 0], "name": rows[:, 1], "layer": rows[:, 2].astype(np.int64)}
        columns |= {"pool": np.array(POOLS, dtype=object)[self.pool], "bytes": self.delta, "held": self.held}
        return pd.DataFrame({name: columns[name] for name in COLUMNS})

    def _part(self, first: int, stop: int) -> slice:
        """Where the changes on ranks from ``first`` to before ``stop`` are."""
        low, high = np.searchsorted(self.rank, [first, stop])
        return slice(int(low), int(high))


_OF_CHANGES = ("step", "chunk", "microbatch", "pool", "delta")
_COLUMNS = ("time", "rank", "stage", "step", "chunk", "microbatch", "row", "pool", "delta")


def memory_timeline(ranks: Iterable[RankRecord]) -> MemoryTimeline:
    """Return all changes of memory."""
    rows: dict[Row, int] = {}
    changes_of, parts = cache(memory_changes), []
    for each in ranks:
        changes = changes_of(each.ops)
        time = np.concatenate(each.times[:3])[changes.source]
        order = np.argsort(time, kind="stable")
        row = np.array([rows.setdefault(row, len(rows)) for row in changes.rows], dtype=np.int64)
        columns = {name: getattr(changes, name) for name in _OF_CHANGES}
        columns |= {"time": time, "rank": np.full(len(time), each.rank), "stage": np.full(len(time), each.stage)}
        columns["row"] = row[changes.row]
        parts.append([columns[name][order] for name in _COLUMNS])
    return MemoryTimeline(tuple(rows), *map(np.concatenate, zip(*parts, strict=True)))


def memory_peaks(ranks: Iterable[RankRecord]) -> list[MemoryPeak]:
    """Return the first memory peak of each of these ranks."""
    changes_of = cache(memory_changes)
    return [changes_of(each.ops).peak(np.concatenate(each.times[:3]), each.rank, each.stage) for each in ranks]


def _instants(time: Floats) -> tuple[Floats, Ints]:
    """Return the different times of a sorted column, and the place of the last change at each."""
    last = np.flatnonzero(np.append(time[1:] != time[:-1], [True] * bool(len(time))))
    return time[last], last
