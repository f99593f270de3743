"""Memory over time: what the ops of a played program allocate and free on every simulated rank, pool by pool.

An op's memory comes as it is issued (a collective's when its rank arrives, not when the last one does) and goes as it
ends.  A stage boundary's tensor lies in a buffer of the receiver from the start of its transfer until the first
op that uses it has ended: pool "other".  Model state, which stays, is not in here.

Changes at one instant count together: what is freed at that instant makes room for what is allocated (modelling after
the caching allocators of training frameworks, which reuse a freed block at once).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Floats, Ints
from simcluster.base.shown import Shown
from simcluster.programs.program import OpTimes, RowTimes, SpanRow
from simcluster.programs.slowed import columns_of, within
from simcluster.programs.told_ops import ToldOps
from simcluster.results.timeline import of_ops, spread

if TYPE_CHECKING:
    import pandas as pd


POOLS = ("activations", "parameters", "gradients", "other")
COLUMNS = ("time", "step", "rank", "stage", "chunk", "microbatch", "kind", "name", "layer", "pool", "bytes", "held")

_INTEGERS = ("step", "rank", "stage", "chunk", "microbatch", "layer")


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The moment when a rank holds most of what comes and goes, and the op that brought it there.

    ``time`` in seconds, ``pools`` in bytes.  ``kind`` is "" where nothing is ever allocated, "recv" for a tensor that
    arrives; layer, chunk and microbatch are -1 where the op has none.
    """

    rank: int
    stage: int
    time: float
    pools: Mapping[str, float]
    kind: str = ""
    name: str = ""
    layer: int = -1
    step: int = 0
    chunk: int = -1
    microbatch: int = -1

    @property
    def total(self) -> float:
        """Bytes in all pools."""
        return sum(self.pools.values())

    def to_dict(self) -> dict[str, Any]:
        """As in the result JSON: rank, stage, seconds, and the op."""
        op = {name: getattr(self, name) for name in ("kind", "name", "layer", "step", "chunk", "microbatch")}
        return {"rank": self.rank, "stage": self.stage, "time_s": self.time, "op": op}

    def describe(self) -> str:
        """The op in words: 'forward mlp, layer 3, microbatch 7'; "" where nothing is ever allocated."""
        if not self.kind:
            return ""
        layer = f", layer {self.layer}" if self.layer >= 0 else ""
        return f"{self.kind} {self.name}{layer}" + (f", microbatch {self.microbatch}" if self.microbatch >= 0 else "")


@dataclass(frozen=True)
class MemoryTimeline(Shown):
    """Changes of memory of the simulated ranks, column by column, sorted by rank, then time, frees first.

    ``delta`` in bytes, negative where memory is freed; ``row`` is the place in ``rows`` of (kind, name, layer) of the
    op; ``pool`` a place in POOLS.
    """

    rows: tuple[tuple[str, str, int], ...]
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
        columns = {name: getattr(self, name)[own] for name in _ORDERED}
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
        delta = self.delta[own]
        _, last = _instants(self.time[own])
        if not len(last):
            return MemoryPeak(rank, stage, 0.0, dict.fromkeys(POOLS, 0.0))
        held = np.cumsum(delta)
        end = int(last[held[last].argmax()])
        pools = np.bincount(self.pool[own][: end + 1], weights=delta[: end + 1], minlength=len(POOLS))
        at = own.start + int(np.flatnonzero(delta[: end + 1] > 0)[-1])
        kind, name, layer = self.rows[self.row[at]]
        return MemoryPeak(
            rank=rank,
            stage=int(self.stage[at]),
            time=float(self.time[at]),
            pools=dict(zip(POOLS, pools.tolist(), strict=True)),
            kind=kind,
            name=name,
            layer=layer,
            step=int(self.step[at]),
            chunk=int(self.chunk[at]),
            microbatch=int(self.microbatch[at]),
        )

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


_ORDERED = ("time", "rank", "stage", "step", "chunk", "microbatch", "row", "pool", "delta")


def memory_timeline(told: ToldOps, times: OpTimes, slowed: Mapping[int, RowTimes]) -> MemoryTimeline:
    """All changes of a played program."""
    rows: dict[tuple[str, str, int], int] = {}
    op, first, change = spread(told, lambda own: _changes(own, rows), _CHANGE)
    offset = change["offset"]
    other = columns_of(slowed)
    counts = np.diff(first)[other.ops]
    own = np.repeat(first[other.ops], counts) + within(counts)
    edge = change["edge"][own]
    row = np.repeat(other.first[:-1], counts) + edge // 2
    offset[own] = np.where(edge % 2, other.end[row], other.start[row])
    met = told.met[op]
    began = np.where(met, times.ready[op], times.start[op]) + offset  # a meeting's has no offset
    same = {name: change[name] for name in ("row", "pool", "delta")}
    parts = [
        {"op": op, "time": np.where(change["at_end"], times.end[op], began), **same},
        _received(told, times, slowed, rows),
    ]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    where = joined.pop("op")
    joined |= of_ops(told, where)
    order = np.lexsort((where, joined["delta"] > 0, joined["time"], joined["rank"]))
    return MemoryTimeline(tuple(rows), **{name: joined[name][order] for name in _ORDERED})


def _instants(time: Floats) -> tuple[Floats, Ints]:
    """The different times of a sorted column, and the place of the last change at each."""
    last = np.flatnonzero(np.append(time[1:] != time[:-1], [True] * bool(len(time))))
    return time[last], last


_CHANGE = {"offset": "f8", "at_end": "?", "edge": "i8", "pool": "i8", "delta": "f8", "row": "i8"}
"""A change: its offset in seconds from the op's start; does it come with the end of the whole set; the place of that
instant among starts and ends of the set's rows, one row after the other."""


def _changes(
    row_set: Sequence[SpanRow], numbers: dict[tuple[str, str, int], int]
) -> Iterator[tuple[float, bool, int, int, float, int]]:
    """The changes of a row set; kind, name and layer of its rows are numbered."""
    over = max((row.end for row in row_set), default=0.0)  # a receive has no row
    for place, row in enumerate(row_set):
        for pool, start, end in row.memory:
            number = numbers.setdefault((row.kind, row.name, row.layer), len(numbers))
            if start:
                yield row.start, False, 2 * place, POOLS.index(pool), start, number
            if end:
                yield row.end, row.end == over, 2 * place + 1, POOLS.index(pool), end, number


def _received(
    told: ToldOps, times: OpTimes, slowed: Mapping[int, RowTimes], names: dict[tuple[str, str, int], int]
) -> dict[str, npt.NDArray[Any]]:
    """What lies in receivers' buffers: from the start of a transfer to the end of the first op that uses it."""
    sends, receivers = told.receives
    different, numbers = told.different_rows
    sent = [own[0] if own else None for own in different]
    size = np.array([row.bytes if row else 0.0 for row in sent])
    many = np.array([len(own) for own in different], dtype=np.int64)
    kept = (size[numbers[sends]] != 0) & (many[numbers[receivers]] > 0)  # of who only receives nothing is told
    sends, receivers = sends[kept], receivers[kept]
    own, using = numbers[sends], numbers[receivers]
    name = np.zeros(len(different), dtype=np.int64)
    for number in np.unique(own).tolist():
        name[number] = names.setdefault(("recv", different[number][0].name, -1), len(names))
    first_end = np.array([row.end if row else 0.0 for row in sent])[using]
    other = columns_of(slowed)
    where = other.begins(len(told))[receivers]
    there = np.flatnonzero(where >= 0)
    first_end[there] = other.end[where[there]]
    used = np.where(many[using] > 1, times.start[receivers] + first_end, times.end[receivers])
    return {
        "op": np.concatenate([receivers, receivers]),
        "time": np.concatenate([times.start[sends], used]),
        "row": np.concatenate([name[own], name[own]]),
        "pool": np.full(2 * len(sends), POOLS.index("other")),
        "delta": np.concatenate([size[own], -size[own]]),
    }
