"""Memory over time: allocations and frees by the ops of every simulated rank, by memory pool.

An op's memory is allocated when the op is issued on its rank and freed when it ends. The tensor at a stage boundary is
in a buffer of the receiver from the start of its transfer until the first op that uses it has ended: pool "other".
Model state is not included. Of changes at one instant frees come first, as in caching allocators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.display import Displayable
from simcluster.reference.step_record import RankOpTable, RankRecord
from simcluster.results.held_memory import HeldMemory

if TYPE_CHECKING:
    import pandas as pd

POOLS = ("activations", "parameters", "gradients", "other")
OpDescription = tuple[str, str, int]
"""Kind, name and layer of an op."""


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """Highest memory use of a rank apart from its model state, and the op that allocated last before it.

    ``time`` in seconds, ``pools`` in bytes. ``kind`` is "" where nothing is ever allocated, "recv" for a tensor that
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
        """Bytes of all memory pools together at the peak."""
        return sum(self.pools.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the peak's section of the result JSON: rank, stage, seconds, and the op."""
        op = {name: getattr(self, name) for name in ("kind", "name", "layer", "step", "chunk", "microbatch")}
        return {"rank": self.rank, "stage": self.stage, "time_s": self.time, "op": op}

    def describe(self) -> str:
        """Describe the op at the peak: "forward mlp, layer 3, microbatch 7"; "" if nothing is allocated."""
        if not self.kind:
            return ""
        layer = f", layer {self.layer}" if self.layer >= 0 else ""
        return f"{self.kind} {self.name}{layer}" + (f", microbatch {self.microbatch}" if self.microbatch >= 0 else "")


@dataclass(frozen=True, eq=False)
class MemoryChanges:
    """Allocations and frees by a rank's ops, stored as columns, without the times at which they happen.

    ``source`` is the index of a change's time in the rank's times; other columns are as in ``MemoryTimeline``.
    """

    rows: Sequence[OpDescription]
    step: Ints
    chunk: Ints
    microbatch: Ints
    row: Ints
    pool: Ints
    delta: Floats
    source: Ints

    @cached_property
    def _held_memory(self) -> HeldMemory:
        return HeldMemory(self.source, self.pool, self.delta, len(POOLS))

    def peak(self, times: Floats, rank: int, stage: int) -> MemoryPeak:
        """Return a rank's first memory peak, given the start and end times (s) of its ops."""
        at, *held = self._held_memory.peak(times)
        if at < 0:
            return MemoryPeak(rank, stage, 0.0, dict.fromkeys(POOLS, 0.0))
        pools = dict(zip(POOLS, held, strict=True))
        numbers = (int(column[at]) for column in (self.step, self.chunk, self.microbatch))
        return MemoryPeak(rank, stage, float(times[self.source[at]]), pools, *self.rows[self.row[at]], *numbers)


def list_memory_changes(ops: RankOpTable) -> MemoryChanges:
    """Return all allocations and frees by the ops of a rank.

    ``source`` indexes the ready, start and end times of ops and messages, concatenated.
    """
    rows: dict[OpDescription, int] = {}
    many = len(ops) + len(ops.receiver)
    found: list[tuple[int, int, int, int, float]] = []  # frees or allocates, op, row, pool, bytes
    source: list[int] = []
    for op, label in enumerate(ops.label.tolist()):
        for pool, *deltas in ops.labels[label].memory if label >= 0 else ():
            row = rows.setdefault((ops.labels[label].kind, ops.labels[label].name, ops.labels[label].layer), len(rows))
            for column, delta in zip((0, 2), deltas, strict=True):
                if delta:
                    found.append((delta > 0, op, row, POOLS.index(pool), delta))
                    source.append(column * many + op)
    for message, (receiver, sent) in enumerate(zip(ops.receiver.tolist(), ops.sent.tolist(), strict=True)):
        size = ops.labels[sent].bytes
        if size and ops.label[receiver] >= 0:  # a receive shows nothing: its buffer is the sender's
            row = rows.setdefault(("recv", ops.labels[sent].name, -1), len(rows))
            found += [(delta > 0, receiver, row, POOLS.index("other"), delta) for delta in (size, -size)]
            source += [many + len(ops) + message, 2 * many + receiver]
    columns: Any = np.array(found, dtype=np.float64).reshape(-1, 5).T
    order = np.lexsort(columns[1::-1])
    op, row, pool = columns[1:4, order].astype(np.int64)
    step, chunk, microbatch = (column[op].astype(np.int64) for column in (ops.step, ops.chunk, ops.microbatch))
    return MemoryChanges(
        list(rows), step, chunk, microbatch, row, pool, columns[4, order], np.array(source, dtype=np.int64)[order]
    )


COLUMNS = ("time", "step", "rank", "stage", "chunk", "microbatch", "kind", "name", "layer", "pool", "bytes", "held")


@dataclass(frozen=True)
class MemoryTimeline(Displayable):
    """Allocations and frees by all simulated ranks, stored as columns in the order of rank and time.

    ``delta`` in bytes, negative where memory is freed; ``row`` is the place in ``rows`` of (kind, name, layer) of the
    op; ``pool`` a place in POOLS.
    """

    rows: tuple[OpDescription, ...]
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

    def curve(self, rank: int) -> tuple[Floats, dict[str, Floats]]:
        """Return times (s), and the bytes that a rank holds in each memory pool from each time until the next."""
        own = self._slice_of_rank(rank)
        time = self.time[own]
        last = np.flatnonzero(np.append(time[1:] != time[:-1], [True] * bool(len(time))))  # of changes at one instant
        return time[last], {
            name: np.cumsum(np.where(self.pool[own] == number, self.delta[own], 0.0))[last]
            for number, name in enumerate(POOLS)
        }

    @cached_property
    def pool_bytes(self) -> Floats:
        """Bytes in the affected memory pool right after each allocation or free."""
        found = np.zeros(len(self))
        for rank in np.unique(self.rank).tolist():
            own = self._slice_of_rank(rank)
            for number in range(len(POOLS)):
                where = own.start + np.flatnonzero(self.pool[own] == number)
                found[where] = np.cumsum(self.delta[where])
        return found

    def frame(self) -> pd.DataFrame:
        """Return a DataFrame with a row per allocation or free: bytes (negative: freed), and bytes held afterwards."""
        import pandas as pd

        rows = np.array([*self.rows, ("", "", -1)], dtype=object)[self.row]
        names = ("time", "step", "rank", "stage", "chunk", "microbatch")
        columns: dict[str, object] = {name: getattr(self, name) for name in names}
        columns |= {"kind": rows[:, 0], "name": rows[:, 1], "layer": rows[:, 2].astype(np.int64)}
        columns |= {"pool": np.array(POOLS, dtype=object)[self.pool], "bytes": self.delta, "held": self.pool_bytes}
        return pd.DataFrame({name: columns[name] for name in COLUMNS})

    def _slice_of_rank(self, rank: int) -> slice:
        low, high = np.searchsorted(self.rank, [rank, rank + 1])
        return slice(int(low), int(high))


def memory_timeline(ranks: Iterable[RankRecord]) -> MemoryTimeline:
    """Return the allocations and frees of these ranks, with times."""
    rows: dict[OpDescription, int] = {}
    changes_of = cache(list_memory_changes)
    parts = []
    for each in ranks:
        changes = changes_of(each.ops)
        time = np.concatenate(each.times[:3])[changes.source]
        order = np.argsort(time, kind="stable")
        row = np.array([rows.setdefault(row, len(rows)) for row in changes.rows], dtype=np.int64)
        rank, stage = (np.full(len(time), number) for number in (each.rank, each.stage))
        own = (changes.step, changes.chunk, changes.microbatch, row[changes.row], changes.pool, changes.delta)
        parts.append([column[order] for column in (time, rank, stage, *own)])
    return MemoryTimeline(tuple(rows), *map(np.concatenate, zip(*parts, strict=True)))


def memory_peaks(ranks: Iterable[RankRecord]) -> list[MemoryPeak]:
    """Return the first memory peak of each of these ranks."""
    changes_of = cache(list_memory_changes)
    return [changes_of(each.ops).peak(np.concatenate(each.times[:3]), each.rank, each.stage) for each in ranks]
