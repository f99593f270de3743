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
_NUMBERS = [(name, SpanRow._fields.index(name), _ROW[name]) for name in ("layer", "bytes", "start", "end")]


@dataclass(frozen=True, eq=False)
class PlacedSpans:
    """The spans of the simulated ranks by reference, in no order: each is a ``row`` of an ``op``.

    ``rows`` has of every different row, in columns, stream, kind and name (codes into ``words``), layer, bytes, and the
    axis of its group, of which ``group`` [axis, place] has the code: places are those among the simulated ``ranks``,
    ascending.  ``ready``, ``start``, ``end`` are those of ``Spans``.
    """

    told: ToldOps
    words: tuple[str, ...]
    rows: Mapping[str, npt.NDArray[Any]]
    ranks: Ints
    group: Ints
    op: Ints
    row: Ints
    ready: Floats
    start: Floats
    end: Floats

    def in_order(self, lane: Ints) -> Ints:
        """The order of spans by lane, start, end and op."""
        order = np.argsort(self.start, kind="stable")
        alike = np.diff(self.start[order]) == 0
        tied = np.flatnonzero(np.append(alike, False) | np.append(False, alike))  # a fifth: the rest is in order
        some = order[tied]
        order[tied] = some[np.lexsort((self.op[some], self.end[some], self.start[some]))]
        return order[np.argsort(narrow(lane)[order], kind="stable")]

    def place_of(self, rank: Ints) -> Ints:
        """The places of simulated ranks."""
        all_are = len(self.ranks) > 0 and self.ranks[-1] == len(self.ranks) - 1
        return rank if all_are else np.searchsorted(self.ranks, rank)

    def by_stream(self, lane: Ints) -> Ints:
        """The same order where a lane is of one stream: in most of these spans are in it as they are here, op by op."""
        order = np.argsort(narrow(lane), kind="stable")
        own = lane[order]
        same, later = own[1:] == own[:-1], np.diff(self.start[order])
        wrong, tied = same & (later < 0), np.flatnonzero(same & (later == 0))
        here, behind = order[tied], order[tied + 1]
        longer = self.end[behind] - self.end[here]
        wrong[tied] = (longer < 0) | (longer == 0) & (self.op[behind] < self.op[here])
        places = np.flatnonzero(np.isin(own, own[1:][wrong]))
        some = order[places]
        order[places] = some[np.lexsort((self.op[some], self.end[some], self.start[some], lane[some]))]
        return order

    def spans(self) -> Spans:
        """All of each, by rank, start, end and op."""
        order = self.in_order(self.told.lane_rank[self.told.lane][self.op])
        op, row = self.op[order], self.row[order]
        own = {**of_ops(self.told, op), **{name: self.rows[name][row] for name in (*_OF_ROW, "layer", "bytes")}}
        own["group"] = self.group[self.rows["axis"][row], self.place_of(own["rank"])]
        own |= {"ready": self.ready[order], "start": self.start[order], "end": self.end[order]}
        return Spans(self.words, op, *(own[name] for name in COLUMNS))


def expand(
    told: ToldOps, times: OpTimes, group_name: Callable[[str, int], str], slowed: Mapping[int, RowTimes]
) -> PlacedSpans:
    """All spans of a played program: chains row by row, meetings once, and what receivers see of a send.

    ``slowed`` has start and end of an op's rows, in seconds from its start, where they are not what the rows say.
    """
    different, numbers = told.different_rows
    op, first, row = _placed(numbers, list(map(len, different)))
    columns, codes, axes = _columns_of(list(chain.from_iterable(different)))
    start, end = row_times(times, slowed, op, first, {name: columns[name][row] for name in ("start", "end")})
    ranks = np.unique(told.lane_rank)
    group = _group_codes(axes, ranks, told.lane_rank.tolist(), group_name, codes)
    meets = np.flatnonzero(told.met[op])
    start[meets], end[meets] = times.start[op[meets]], times.end[op[meets]]
    ready = start.copy()
    ready[meets] = times.ready[op[meets]]
    if len(told.receives[0]):  # the receiver's side of every send: from the same instant to the same instant
        sends, receivers = told.receives
        received, columns = _received(told, columns, codes, axes)
        begin, over = times.start[sends], times.end[sends]
        more = (receivers, received, begin, begin, over)
        op, row, ready, start, end = (
            np.concatenate(pair) for pair in zip((op, row, ready, start, end), more, strict=True)
        )
    return PlacedSpans(told, tuple(codes), columns, ranks, group, op, row, ready, start, end)


def _columns_of(rows: Sequence[SpanRow]) -> tuple[dict[str, npt.NDArray[Any]], dict[str, int], dict[str, int]]:
    """What spans have of their rows, row by row (``_ROW``); the codes of texts, and the places of axes there."""
    texts = [row[:3] for row in rows]
    different = {each: number for number, each in enumerate(dict.fromkeys(texts))}  # a few of many
    codes = {word: code for code, word in enumerate(dict.fromkeys(chain.from_iterable(different)))}
    axes = {axis: place for place, axis in enumerate(dict.fromkeys(["", *(row.axis for row in rows)]))}
    of_text = np.array([[codes[word] for word in each] for each in different], dtype=np.int64).reshape(-1, 3)
    columns = dict(zip(_OF_ROW, of_text[[different[each] for each in texts]].T, strict=True))
    columns["axis"] = np.array([axes[row.axis] for row in rows], dtype=np.int64)
    columns |= {name: np.array([row[place] for row in rows], dtype=kind) for name, place, kind in _NUMBERS}
    return columns, codes, axes


def narrow(numbers: Ints) -> npt.NDArray[np.signedinteger[Any]]:
    """The same in 16 bits if they fit, which are sorted in a tenth of the time."""
    fit = len(numbers) > 0 and numbers.min() >= 0 and numbers.max() < 2**15
    return numbers.astype(np.int16, copy=False) if fit else numbers


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

    In columns: the op of each; op by op where its first one is, and the end of all; and the fields.
    """
    op, first, which, columns = spread_rows(told, of_set, fields)
    return op, first, {name: values[which] for name, values in columns.items()}


def spread_rows(
    told: ToldOps, of_set: Callable[[tuple[SpanRow, ...]], Iterable[tuple[object, ...]]], fields: Mapping[str, str]
) -> tuple[Ints, Ints, Ints, dict[str, npt.NDArray[Any]]]:
    """The same with every row set's fields once, and the place there of each.

    Sets that are one object are asked for once: of 104,100 of four slow GPUs among 16,384 (Llama 3 405B) 13,182 are
    left.
    """
    different, numbers = told.different_rows
    found = [list(of_set(own)) for own in different]
    op, first, which = _placed(numbers, list(map(len, found)))
    whole = np.array(list(chain.from_iterable(found)), dtype=list(fields.items()))
    return op, first, which, {name: whole[name].copy() for name in fields}


def _placed(numbers: Ints, count: Sequence[int]) -> tuple[Ints, Ints, Ints]:
    """By the number of every op's set, and what each set counts: the op of each; op by op where its first one is, and
    the end of all; and the place of each among those of all sets."""
    counts = np.array(count, dtype=np.int64)
    many = counts[numbers]
    which = np.repeat((np.cumsum(counts) - counts)[numbers], many) + within(many)
    return np.repeat(np.arange(len(numbers)), many), np.concatenate([[0], np.cumsum(many)]), which


def _group_codes(
    axes: Collection[str],
    ranks: Ints,
    told: Sequence[int],
    group_name: Callable[[str, int], str],
    codes: dict[str, int],
) -> Ints:
    """The code of the name of every simulated rank's group, by axis and place among ``ranks``; of no axis that of no
    name.  They are named in the order in which they were told."""
    found = np.zeros((len(axes), len(ranks)), dtype=np.int64)
    for rank in dict.fromkeys(told):
        names = (group_name(axis, rank) if axis else "" for axis in axes)
        found[:, np.searchsorted(ranks, rank)] = [codes.setdefault(name, len(codes)) for name in names]
    return found


def _received(
    told: ToldOps, row: Mapping[str, npt.NDArray[Any]], codes: dict[str, int], axes: Mapping[str, int]
) -> tuple[Ints, dict[str, npt.NDArray[Any]]]:
    """What the receiver sees of every send: the place of its row among the ``row`` columns, and these with such rows
    behind them."""
    different, numbers = told.different_rows
    sets, which = np.unique(numbers[told.receives[0]], return_inverse=True)
    sent = [different[number][0] for number in sets.tolist()]
    stream, kind, _ = (codes.setdefault(word, len(codes)) for word in ("pp", "recv", ""))
    seen = [(stream, kind, codes[own.name], -1, axes[""], own.bytes, 0.0, 0.0) for own in sent]
    more = np.array(seen, dtype=list(_ROW.items()))
    return which + len(row["bytes"]), {name: np.concatenate([row[name], more[name]]) for name in row}


def step_ends(spans: Spans, steps: int) -> Floats:
    """When the last op of every step ends on any rank, in seconds, [step]."""
    found = np.full(steps, -np.inf)
    np.maximum.at(found, spans.step, spans.end)
    return found


def mean_step(ends: Floats, count: int) -> float:
    """Mean seconds of ``count`` steps behind the first, from end to end; ``ends`` as ``step_ends``."""
    return float(ends[count] - ends[0]) / count
