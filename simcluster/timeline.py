"""What happened: one row per span, in columns.  From the engine's record to the table that every metric reads.

Chains are expanded from their offsets here, and only when somebody looks.  Imports the program and the record's arrays;
pandas when a table is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simcluster.program import Program

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COLUMNS = (
    "step", "rank", "stream", "kind", "name", "layer", "stage", "chunk", "microbatch", "group", "bytes", "ready",
    "start", "end",
)  # fmt: skip


@dataclass(frozen=True)
class Spans:
    """The spans of the simulated ranks, column by column, sorted by rank, then start.

    ``stream``, ``kind``, ``name`` and ``group`` are codes into ``words``.  ``op`` is the engine's op that a span
    belongs to.  ``ready``, ``start``, ``end`` in seconds: start - ready is waiting for peers or the network,
    end - start work.
    """

    words: tuple[str, ...]
    op: Ints
    step: Ints
    rank: Ints
    stream: Ints
    kind: Ints
    name: Ints
    layer: Ints
    stage: Ints
    chunk: Ints
    microbatch: Ints
    group: Ints
    bytes: Floats
    ready: Floats
    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.start)

    def code(self, word: str) -> int:
        """The code of a word; -1 if no span has it."""
        return self.words.index(word) if word in self.words else -1

    def of_rank(self, rank: int) -> Spans:
        """The spans of one simulated rank."""
        low, high = np.searchsorted(self.rank, [rank, rank + 1])
        part = slice(int(low), int(high))
        return Spans(self.words, *(getattr(self, name)[part] for name in ("op", *COLUMNS)))

    def only(self, ranks: range) -> Spans:
        """The spans of one job's ranks, numbered from 0, as are its stages."""
        low, high = np.searchsorted(self.rank, [ranks.start, ranks.stop])
        if high - low == len(self) and not ranks.start:
            return self
        columns = {name: getattr(self, name)[low:high] for name in ("op", *COLUMNS)}
        columns["rank"] = columns["rank"] - ranks.start
        columns["stage"] = columns["stage"] - columns["stage"].min()
        return Spans(self.words, *columns.values())

    def frame(self) -> pd.DataFrame:
        """The table of the contract (contract.md, Timeline)."""
        import pandas as pd

        words = np.array(self.words, dtype=object)
        columns: dict[str, object] = {}
        for name in COLUMNS:
            values = getattr(self, name)
            columns[name] = words[values] if name in _TEXT else values
        return pd.DataFrame(columns)


_TEXT = ("stream", "kind", "name", "group")


def expand(program: Program, ready: Floats, start: Floats, end: Floats, group_name: Callable[[str, int], str]) -> Spans:
    """All spans of a played program: chains row by row, meetings once, and what receivers see of a send."""
    words = _Words()
    parts: list[dict[str, npt.NDArray[Any]]] = []
    lane_rank = np.array(program.lane_rank, dtype=np.int64)
    lane_stage = np.array(program.lane_stage, dtype=np.int64)
    lane = np.array(program.lane, dtype=np.int64)
    columns = {name: np.array(getattr(program, name), dtype=np.int64) for name in ("step", "chunk", "microbatch")}
    met = np.array(program.meeting, dtype=np.int64) >= 0
    for row_set, ops in _by_row_set(program):
        rows = program.row_sets[row_set]
        rank = int(lane_rank[lane[ops[0]]])
        many = len(rows)
        offsets = np.array([(row.start, row.end) for row in rows])
        begin = (start[ops][:, None] + offsets[None, :, 0]).ravel()
        finish = (start[ops][:, None] + offsets[None, :, 1]).ravel()
        could = begin
        if met[ops[0]]:
            could, begin, finish = ready[ops], start[ops], end[ops]
        part = {name: np.repeat(column[ops], many) for name, column in columns.items()}
        part["op"] = np.repeat(ops, many)
        part["rank"] = np.full(len(begin), rank)
        part["stage"] = np.full(len(begin), int(lane_stage[lane[ops[0]]]))
        for name in ("stream", "kind", "name"):
            part[name] = np.tile([words(getattr(row, name)) for row in rows], len(ops))
        part["group"] = np.tile([words(group_name(row.axis, rank) if row.axis else "") for row in rows], len(ops))
        part["layer"] = np.tile([row.layer for row in rows], len(ops))
        part["bytes"] = np.tile([row.bytes for row in rows], len(ops))
        part["ready"], part["start"], part["end"] = could, begin, finish
        parts.append(part)
    if program.receives:
        parts.append(_receives(program, start, end, words))
    names = ("op", *COLUMNS)
    table = {name: np.concatenate([part[name] for part in parts]) for name in names}
    order = np.lexsort((table["op"], table["end"], table["start"], table["rank"]))
    return Spans(tuple(words.all), *(table[name][order] for name in names))


def _by_row_set(program: Program) -> Iterator[tuple[int, Ints]]:
    """Ops that leave the same rows, together."""
    rows = np.array(program.rows, dtype=np.int64)
    order = np.argsort(rows, kind="stable")
    bounds = np.flatnonzero(np.diff(rows[order])) + 1
    for ops in np.split(order, bounds):
        if len(ops):
            yield int(rows[ops[0]]), ops


def _receives(program: Program, start: Floats, end: Floats, words: _Words) -> dict[str, npt.NDArray[Any]]:
    """The receiver's side of every send: a span of its own, from the same instant to the same instant."""
    sends = np.array([send for send, _ in program.receives], dtype=np.int64)
    receivers = np.array([op for _, op in program.receives], dtype=np.int64)
    lane = np.array(program.lane, dtype=np.int64)
    count = len(sends)
    sent = [program.row_sets[program.rows[send]][0] for send in sends]
    return {
        "op": receivers,
        "step": np.array(program.step, dtype=np.int64)[receivers],
        "rank": np.array(program.lane_rank, dtype=np.int64)[lane[receivers]],
        "stream": np.full(count, words("pp")),
        "kind": np.full(count, words("recv")),
        "name": np.array([words(row.name) for row in sent], dtype=np.int64),
        "layer": np.full(count, -1),
        "stage": np.array(program.lane_stage, dtype=np.int64)[lane[receivers]],
        "chunk": np.array(program.chunk, dtype=np.int64)[receivers],
        "microbatch": np.array(program.microbatch, dtype=np.int64)[receivers],
        "group": np.full(count, words("")),
        "bytes": np.array([row.bytes for row in sent]),
        "ready": start[sends],
        "start": start[sends],
        "end": end[sends],
    }


class _Words:
    """Texts of a column as small integers."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._codes: dict[str, int] = {}

    def __call__(self, word: str) -> int:
        code = self._codes.get(word)
        if code is None:
            code = self._codes[word] = len(self.all)
            self.all.append(word)
        return code
