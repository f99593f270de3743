"""Memory over time: what ops allocate and free on every simulated rank, pool by pool.

An op's memory comes as it is issued (a collective's when its rank arrives, not when the last one does) and goes as it
ends.  A stage boundary's tensor lies in a buffer of the receiver from the start of its transfer until the first
op that uses it has ended: pool "other".  Model state, which stays, is not in here.

Changes at one instant count together: what is freed at that instant makes room for what is allocated (modelling after
the caching allocators of training frameworks, which reuse a freed block at once).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.runs import within
from simcluster.base.shown import Shown
from simcluster.reference.record import Ops, OpTimes

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


_COLUMNS = ("time", "rank", "stage", "step", "chunk", "microbatch", "row", "pool", "delta")


def memory_timeline(ops: Ops, times: OpTimes) -> MemoryTimeline:
    """Return all changes of memory."""
    rows: dict[tuple[str, str, int], int] = {}
    parts = [_changes(ops, times, rows), _received(ops, times, rows)]
    op, time, row, pool, delta = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    rank = ops.lane_rank[ops.lane[op]]
    order = np.lexsort((op, delta > 0, time, rank))
    op = op[order]
    wide = {name: getattr(ops, name)[op].astype(np.int64) for name in ("step", "chunk", "microbatch")}
    stage = ops.lane_stage[ops.lane[op]].astype(np.int64)
    return MemoryTimeline(
        tuple(rows), time=time[order], rank=rank[order].astype(np.int64), stage=stage, row=row[order],
        pool=pool[order], delta=delta[order], **wide,
    )  # fmt: skip


def _instants(time: Floats) -> tuple[Floats, Ints]:
    """Return the different times of a sorted column, and the place of the last change at each."""
    last = np.flatnonzero(np.append(time[1:] != time[:-1], [True] * bool(len(time))))
    return time[last], last


_Columns = tuple[Ints, Floats, Ints, Ints, Floats]
"""Of every change its op, time, row, pool and bytes."""


def _changes(ops: Ops, times: OpTimes, rows: dict[tuple[str, str, int], int]) -> _Columns:
    """Return what ops allocate as they are issued, and free as they end; kind, name and layer are numbered."""
    found: list[tuple[int, int, int, float]] = []
    counts = []
    for label in ops.labels:
        before = len(found)
        for pool, start, end in label.memory:
            row = rows.setdefault((label.kind, label.name, label.layer), len(rows))
            found += [(at_end, row, POOLS.index(pool), delta) for at_end, delta in enumerate((start, end)) if delta]
        counts.append(len(found) - before)
    table = np.array(found, dtype=np.float64).reshape(-1, 4)
    count = np.array([*counts, 0], dtype=np.int64)  # the last of ops without a label
    many = count[ops.label]
    op = np.repeat(np.arange(len(ops)), many)
    at_end, row, pool, delta = table[(np.cumsum(count) - count)[ops.label[op]] + within(many)].T
    return op, np.where(at_end, times.end[op], times.ready[op]), row.astype(np.int64), pool.astype(np.int64), delta


def _received(ops: Ops, times: OpTimes, rows: dict[tuple[str, str, int], int]) -> _Columns:
    """Return what lies in receivers' buffers: from the start of a transfer to the end of the first op that uses it."""
    sends, receivers = ops.receives
    sent = ops.label[sends]
    size = np.array([label.bytes for label in ops.labels])[sent]
    kept = (size != 0) & (ops.label[receivers] >= 0)  # a receive shows nothing: its buffer is the sender's
    sends, receivers, sent, size = sends[kept], receivers[kept], sent[kept], size[kept]
    row = np.zeros(len(ops.labels), dtype=np.int64)
    for number in np.unique(sent).tolist():
        row[number] = rows.setdefault(("recv", ops.labels[number].name, -1), len(rows))
    time = np.concatenate([times.start[sends], times.end[receivers]])
    pool = np.full(2 * len(sends), POOLS.index("other"))
    return np.tile(receivers, 2), time, np.tile(row[sent], 2), pool, np.concatenate([size, -size])
