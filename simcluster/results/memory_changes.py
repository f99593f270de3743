"""Memory that the ops of a rank allocate and free, and its peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.reference.record import RankOps
from simcluster.results.held_memory import HeldMemory

POOLS = ("activations", "parameters", "gradients", "other")
Row = tuple[str, str, int]
"""Kind, name and layer of an op."""


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The peak of a rank's memory besides model state, and the op that allocated last before it.

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
        """Return the entry of the result JSON: rank, stage, seconds, and the op."""
        op = {name: getattr(self, name) for name in ("kind", "name", "layer", "step", "chunk", "microbatch")}
        return {"rank": self.rank, "stage": self.stage, "time_s": self.time, "op": op}

    def describe(self) -> str:
        """Return the op in words: 'forward mlp, layer 3, microbatch 7'; "" where nothing is ever allocated."""
        if not self.kind:
            return ""
        layer = f", layer {self.layer}" if self.layer >= 0 else ""
        return f"{self.kind} {self.name}{layer}" + (f", microbatch {self.microbatch}" if self.microbatch >= 0 else "")


@dataclass(frozen=True, eq=False)
class MemoryChanges:
    """Changes of memory on a rank, column by column: frees first, then by op.

    ``source`` is the index of a change's time in the rank's times; other columns are as in ``MemoryTimeline``.
    """

    rows: Sequence[Row]
    step: Ints
    chunk: Ints
    microbatch: Ints
    row: Ints
    pool: Ints
    delta: Floats
    source: Ints

    @cached_property
    def _held(self) -> HeldMemory:
        return HeldMemory(self.source, self.pool, self.delta, len(POOLS))

    def peak(self, times: Floats, rank: int, stage: int) -> MemoryPeak:
        """Return the first memory peak of a rank of ``stage`` with these changes, given its times (s)."""
        at, *held = self._held.peak(times)
        if at < 0:
            return MemoryPeak(rank, stage, 0.0, dict.fromkeys(POOLS, 0.0))
        kind, name, layer = self.rows[self.row[at]]
        return MemoryPeak(
            rank=rank,
            stage=stage,
            time=float(times[self.source[at]]),
            pools=dict(zip(POOLS, held, strict=True)),
            kind=kind,
            name=name,
            layer=layer,
            step=int(self.step[at]),
            chunk=int(self.chunk[at]),
            microbatch=int(self.microbatch[at]),
        )


def memory_changes(ops: RankOps) -> MemoryChanges:
    """Return what ranks with these ops allocate and free; ``source`` indexes the ready, start and end times of ops and
    messages, concatenated."""
    rows: dict[Row, int] = {}
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
