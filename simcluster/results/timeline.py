"""What happened: one row per span, in columns.  From the engine's record to the table that every metric reads.

Chains are expanded from their offsets here, and only when somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Floats, Ints
from simcluster.programs.program import Program, RowTimes
from simcluster.programs.slowed import columns_of, within

if TYPE_CHECKING:
    import pandas as pd


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
        """The table of the contract (CONTRACT.md, Timeline)."""
        import pandas as pd

        words = np.array(self.words, dtype=object)
        columns: dict[str, object] = {}
        for name in COLUMNS:
            values = getattr(self, name)
            columns[name] = words[values] if name in _TEXT else values
        return pd.DataFrame(columns)


_TEXT = ("stream", "kind", "name", "group")


def expand(
    program: Program,
    ready: Floats,
    start: Floats,
    end: Floats,
    group_name: Callable[[str, int], str],
    slowed: Mapping[int, RowTimes] = MappingProxyType({}),
) -> Spans:
    """All spans of a played program: chains row by row, meetings once, and what receivers see of a send.

    ``slowed`` has start and end of an op's rows, in seconds from its start, where they are not what the rows say.
    """
    words = _Words()
    table = _Rows(program, words)
    numbers = np.array(program.rows, dtype=np.int64)
    many = table.count[numbers]  # rows of each op
    op = np.repeat(np.arange(len(numbers)), many)
    place = np.cumsum(many) - many
    row = np.repeat(table.first[numbers] - place, many) + np.arange(len(op))
    of_row = {name: column[row] for name, column in table.columns.items()}
    lane = np.array(program.lane, dtype=np.int64)[op]
    rank = np.array(program.lane_rank, dtype=np.int64)[lane]
    begin, finish = start[op] + of_row["start"], start[op] + of_row["end"]
    other = columns_of(slowed)
    own = np.repeat(place[other.ops], other.counts) + within(other.counts)
    begin[own], finish[own] = start[op[own]] + other.start, start[op[own]] + other.end
    met = (np.array(program.meeting, dtype=np.int64) >= 0)[op]
    part: dict[str, npt.NDArray[Any]] = {
        name: np.array(getattr(program, name), dtype=np.int64)[op] for name in ("step", "chunk", "microbatch")
    }
    part |= {name: of_row[name] for name in ("stream", "kind", "name", "layer", "bytes")}
    part |= {
        "op": op,
        "rank": rank,
        "stage": np.array(program.lane_stage, dtype=np.int64)[lane],
        "group": _group_codes(table.axes, program.lane_rank, group_name, words)[of_row["axis"], rank],
        "ready": np.where(met, ready[op], begin),
        "start": np.where(met, start[op], begin),
        "end": np.where(met, end[op], finish),
    }
    parts = [part]
    if program.receives:
        parts.append(_receives(program, start, end, words))
    names = ("op", *COLUMNS)
    joined = {name: np.concatenate([part.pop(name) for part in parts]) for name in names}
    order = np.lexsort((joined["op"], joined["end"], joined["start"], joined["rank"]))
    return Spans(tuple(words.all), *(joined.pop(name)[order] for name in names))


class _Rows:
    """The rows of all row sets, one after the other, in ``columns``: where each set begins, and how many it has.

    Texts are codes of words; ``axis`` is a place in ``axes``.
    """

    _COLUMNS = (
        *((name, "f8") for name in ("start", "end", "bytes")),
        *((name, "i8") for name in ("axis", "layer", "stream", "kind", "name")),
    )

    def __init__(self, program: Program, words: _Words) -> None:
        self.count = np.array([len(rows) for rows in program.row_sets], dtype=np.int64)
        self.first = np.cumsum(self.count) - self.count
        rows = [row for rows in program.row_sets for row in rows]
        self.axes = tuple(dict.fromkeys(["", *(row.axis for row in rows)]))
        number = {axis: place for place, axis in enumerate(self.axes)}
        codes = [[words(getattr(row, name)) for row in rows] for name in ("stream", "kind", "name")]
        found = [
            (row.start, row.end, row.bytes, number[row.axis], row.layer, *texts)
            for row, *texts in zip(rows, *codes, strict=True)
        ]
        whole = np.array(found, dtype=list(self._COLUMNS))
        self.columns = {name: whole[name].copy() for name, _ in self._COLUMNS}


def _group_codes(
    axes: Sequence[str], ranks: Sequence[int], group_name: Callable[[str, int], str], words: _Words
) -> Ints:
    """The code of the name of every simulated rank's group, by axis and rank; of no axis that of no name."""
    codes = np.zeros((len(axes), max(ranks, default=-1) + 1), dtype=np.int64)
    for rank in dict.fromkeys(ranks):
        codes[:, rank] = [words(group_name(axis, rank) if axis else "") for axis in axes]
    return codes


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


def step_ends(spans: Spans, steps: int) -> Floats:
    """When the last op of every step ends on any rank, in seconds, [step]."""
    found = np.full(steps, -np.inf)
    np.maximum.at(found, spans.step, spans.end)
    return found


def mean_step(ends: Floats, count: int) -> float:
    """Mean seconds of ``count`` steps behind the first, from end to end; ``ends`` as ``step_ends``."""
    return float(ends[count] - ends[0]) / count
