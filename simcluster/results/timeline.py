"""What happened: one row per span, in columns.  From the engine's record to the table that every metric reads.

Chains are expanded from their offsets here, and only when somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Floats, Ints
from simcluster.programs.program import OpTimes, RowTimes, SpanRow
from simcluster.programs.slowed import columns_of, within
from simcluster.programs.told_ops import ToldOps

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

        words = pd.Series(
            self.words, dtype=None if self.words else object
        ).array  # pandas' texts, made of each word once
        columns: dict[str, object] = {}
        for name in COLUMNS:
            values = getattr(self, name)
            columns[name] = words.take(values) if name in _TEXT else values
        return pd.DataFrame(columns)


_OF_ROW = ("stream", "kind", "name")
_TEXT = (*_OF_ROW, "group")
_ROW = {**dict.fromkeys((*_OF_ROW, "layer", "axis"), "i8"), **dict.fromkeys(("bytes", "start", "end"), "f8")}
"""What spans have of a ``SpanRow``: codes of its texts, and the place of its axis."""


def expand(
    told: ToldOps, times: OpTimes, group_name: Callable[[str, int], str], slowed: Mapping[int, RowTimes]
) -> Spans:
    """All spans of a played program: chains row by row, meetings once, and what receivers see of a send.

    ``slowed`` has start and end of an op's rows, in seconds from its start, where they are not what the rows say.
    """
    ready, start, end = times.ready, times.start, times.end
    rows = list(chain.from_iterable(told.different_rows[0]))
    words = dict.fromkeys(chain.from_iterable([row[:3] for row in rows]))
    codes = {word: code for code, word in enumerate(words)}
    axes = {axis: place for place, axis in enumerate(dict.fromkeys(["", *(row.axis for row in rows)]))}

    def of_rows(own: tuple[SpanRow, ...]) -> list[tuple[object, ...]]:
        return [(codes[row[0]], codes[row[1]], codes[row[2]], row[3], axes[row[4]], *row[5:8]) for row in own]

    op, first, row = spread(told, of_rows, _ROW)
    begin, finish = row_times(times, slowed, op, first, row)
    met = told.met[op]
    part = {"op": op, **of_ops(told, op)}
    part |= {name: row[name] for name in ("stream", "kind", "name", "layer", "bytes")}
    part["group"] = _group_codes(axes, told.lane_rank.tolist(), group_name, codes)[row["axis"], part["rank"]]
    part["ready"] = np.where(met, ready[op], begin)
    part["start"] = np.where(met, start[op], begin)
    part["end"] = np.where(met, end[op], finish)
    parts = [part]
    if len(told.receives[0]):
        parts.append(_receives(told, start, end, codes))
    names = ("op", *COLUMNS)
    joined = {name: np.concatenate([part.pop(name) for part in parts]) for name in names}
    order = np.lexsort((joined["op"], joined["end"], joined["start"]))
    order = order[np.argsort(_narrow(joined["rank"])[order], kind="stable")]
    return Spans(tuple(codes), *(joined.pop(name)[order] for name in names))


def _narrow(ranks: Ints) -> npt.NDArray[np.signedinteger[Any]]:
    """The same in 16 bits if they are few, which are sorted in a tenth of the time."""
    return ranks.astype(np.int16) if len(ranks) and ranks.max() < 2**15 else ranks


def row_times(
    times: OpTimes, slowed: Mapping[int, RowTimes], op: Ints, first: Ints, row: Mapping[str, npt.NDArray[Any]]
) -> tuple[Floats, Floats]:
    """When each of the rows that were ``spread`` started and ended (s), as if it met nobody."""
    begin, finish = times.start[op] + row["start"], times.start[op] + row["end"]
    other = columns_of(slowed)
    own = np.repeat(first[other.ops], other.counts) + within(other.counts)
    begin[own], finish[own] = times.start[op[own]] + other.start, times.start[op[own]] + other.end
    return begin, finish


def of_ops(told: ToldOps, op: Ints) -> dict[str, npt.NDArray[Any]]:
    """Rank, stage, step, chunk and microbatch of ops, in columns."""
    lane = told.lane[op]
    return {
        "rank": told.lane_rank[lane],
        "stage": told.lane_stage[lane],
        "step": told.step[op],
        "chunk": told.chunk[op],
        "microbatch": told.microbatch[op],
    }


def spread(
    told: ToldOps, of_set: Callable[[tuple[SpanRow, ...]], Iterable[tuple[object, ...]]], fields: Mapping[str, str]
) -> tuple[Ints, Ints, dict[str, npt.NDArray[Any]]]:
    """What ``of_set`` says of each row set (tuples of ``fields``, with their dtypes) for every op that has its rows.

    In columns: the op of each; op by op where its first one is, and the end of all; and the fields.  Sets that are one
    object are asked for once: of 104,100 of four slow GPUs among 16,384 (Llama 3 405B) 13,182 are left.
    """
    different, numbers = told.different_rows
    found = [list(of_set(own)) for own in different]
    count = np.array([len(own) for own in found], dtype=np.int64)
    many = count[numbers]
    which = np.repeat((np.cumsum(count) - count)[numbers], many) + within(many)
    whole = np.array(list(chain.from_iterable(found)), dtype=list(fields.items()))
    columns = {name: whole[name].copy()[which] for name in fields}
    return np.repeat(np.arange(len(numbers)), many), np.concatenate([[0], np.cumsum(many)]), columns


def _group_codes(
    axes: Collection[str], ranks: Sequence[int], group_name: Callable[[str, int], str], codes: dict[str, int]
) -> Ints:
    """The code of the name of every simulated rank's group, by axis and rank; of no axis that of no name."""
    found = np.zeros((len(axes), max(ranks, default=-1) + 1), dtype=np.int64)
    for rank in dict.fromkeys(ranks):
        names = (group_name(axis, rank) if axis else "" for axis in axes)
        found[:, rank] = [codes.setdefault(name, len(codes)) for name in names]
    return found


def _receives(told: ToldOps, start: Floats, end: Floats, codes: dict[str, int]) -> dict[str, npt.NDArray[Any]]:
    """The receiver's side of every send: a span of its own, from the same instant to the same instant."""
    sends, receivers = told.receives
    different, numbers = told.different_rows
    sets, which = np.unique(numbers[sends], return_inverse=True)
    sent = [different[number][0] for number in sets.tolist()]
    alike = {"layer": -1} | {
        name: codes.setdefault(word, len(codes)) for name, word in (("stream", "pp"), ("kind", "recv"), ("group", ""))
    }
    return {
        "op": receivers,
        **of_ops(told, receivers),
        **{name: np.full(len(sends), value) for name, value in alike.items()},
        "name": np.array([codes[row.name] for row in sent], dtype=np.int64)[which],
        "bytes": np.array([row.bytes for row in sent])[which],
        "ready": start[sends],
        "start": start[sends],
        "end": end[sends],
    }


def step_ends(spans: Spans, steps: int) -> Floats:
    """When the last op of every step ends on any rank, in seconds, [step]."""
    found = np.full(steps, -np.inf)
    np.maximum.at(found, spans.step, spans.end)
    return found


def mean_step(ends: Floats, count: int) -> float:
    """Mean seconds of ``count`` steps behind the first, from end to end; ``ends`` as ``step_ends``."""
    return float(ends[count] - ends[0]) / count
