"""Timelines in the binary format that the report's script reads: lanes of spans as typed arrays.

Columns are split into byte planes, deflated, in base64; ``assets/data.js`` reads them. Times are whole numbers: 2^32 -
1 is the end of the run, so that a step of 10 s has ticks of 2.3 ns and adjacent spans still touch. Starts are
differences from the span before.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from simcluster.base.arrays import Ints, run_start_mask, run_starts
from simcluster.interactive.report.rows import RankRow, SpanDescriptions
from simcluster.results.timeline import Spans, narrow_integers
from simcluster.show.palette import STREAMS

ColumnLocation = tuple[int, int, str] | tuple[int, int, str, int, int]
"""Location of a column in the uncompressed bytes: its offset, its number of values, and their type (such as u1).

A run-length encoded column has one number per run: then follow the number of runs, and the offset of their lengths."""

_INTEGERS = ("u1", "u2", "i2", "u4", "i4")


_FEWER = 8  # a second column pays if there are this many times fewer runs than numbers
ALIGNED = 4
"""Columns without planes are aligned to this many bytes, the size of the largest number."""


class BinaryColumns:
    """Columns of numbers in binary form for the report's script, available compressed or uncompressed.

    Without ``planes`` a column's numbers are contiguous, for a reader that does not copy them; whole numbers are
    run-length encoded if that is shorter.
    """

    def __init__(self, *, planes: bool = True) -> None:
        self._planes = planes
        self._parts: list[bytes] = []
        self._size = 0

    def add_integers(self, values: npt.NDArray[np.integer]) -> ColumnLocation:
        """Add a column of integers in the smallest integer type that fits, and return the column's location."""
        if not self._planes:
            first = run_starts(values)
            if len(first) * _FEWER < len(values):
                begin, many, name = self._add_smallest_integers(values[first])
                lengths = np.diff(first, append=len(values))
                return begin, len(values), name, many, self._add_byte_planes(lengths.astype("<u4"), "u4")[0]
        return self._add_smallest_integers(values)

    def _add_smallest_integers(self, values: npt.NDArray[np.integer]) -> tuple[int, int, str]:
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        for name in _INTEGERS:
            limits = np.iinfo(name)
            if limits.min <= low and high <= limits.max:
                return self._add_byte_planes(values.astype(f"<{name}"), name)
        raise ValueError(f"numbers from {low} to {high} do not fit into 32 bits")

    def add_floats(self, values: npt.NDArray[np.floating]) -> ColumnLocation:
        """Add a column of numbers as 32-bit floats, and return the column's location."""
        return self._add_byte_planes(values.astype("<f4"), "f4")

    @property
    def column_bytes(self) -> tuple[bytes, ...]:
        """Bytes of each column, in the order in which columns were added."""
        return tuple(self._parts)

    def uncompressed(self) -> bytes:
        """Return all columns without compression, which is faster if nothing is sent over a network."""
        return b"".join(self._parts)

    def compressed_text(self, level: int = 6) -> str:
        """Compress all columns (deflate) and return base64 text; ``level`` is 1 (fast) to 9 (small)."""
        return deflate_to_base64(self.uncompressed(), level)

    def _add_byte_planes(self, values: npt.NDArray[np.generic], name: str) -> tuple[int, int, str]:
        """Store a column's lowest bytes first, then the next bytes, and so on: this compresses well."""
        place = self._size, len(values), name
        if self._planes and len(values):
            values = np.ascontiguousarray(np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1).T)
        raw = values.tobytes()
        if not self._planes:
            raw += bytes(-len(raw) % ALIGNED)
        self._parts.append(raw)
        self._size += len(raw)
        return place


def deflate_to_base64(content: bytes, level: int) -> str:
    """Compress bytes (deflate) and return them as base64."""
    return base64.b64encode(zlib.compress(content, level)).decode("ascii")


TICKS = 2**32 - 1
STREAM_ORDER = ("compute", *STREAMS, "h2d", "d2h", "storage", "host")
"""Order of a rank's lanes from the top; other streams follow by name."""

_WHAT = ("stream", "kind", "name", "layer", "chunk", "bytes")
_OWN = ("microbatch", "stage", "step", "group")
_FEW = 2**17
"""Up to this many values, counting each is faster than sorting them."""


def pack_timeline(
    spans: Spans,
    blob: BinaryColumns,
    *,
    weights: Mapping[int, int],
    facts: SpanDescriptions | None = None,
    rows: Sequence[RankRow] = (),
) -> dict[str, Any]:
    """Store a timeline's columns in binary form, and return where the script finds each of them.

    ``lanes`` are [rank, stream (a code of words), first span]; ``what`` holds each distinct (stream, kind, name, layer,
    chunk, bytes) once, and the column of the same name its place for every span. With ``facts`` it also holds how a
    call is done and its bus factor, and there are columns of delayed ranks, of mates, and of the critical path.
    ``rows`` are the rows to show, each drawn from the lanes of its source (default: every rank of the lanes).
    """
    duration = float(spans.end.max(initial=0.0)) or 1.0
    order = _lane_order(spans)
    rank, stream = spans.rank[order], spans.stream[order]
    first = np.flatnonzero(run_start_mask(rank) | run_start_mask(stream))
    ready, start, end = (to_ticks(values[order], duration) for values in (spans.ready, spans.start, spans.end))
    words, alike = list(spans.words), {name: getattr(spans, name) for name in _WHAT}
    if facts is not None:
        alike["way"] = np.array([_word_index(words, text) for text in facts.algorithms])[facts.algorithm]
        alike["bus"] = facts.bus_factor
    what, examples = _distinct_rows(alike)
    columns: dict[str, Any] = {
        "start": blob.add_integers(np.diff(start, prepend=0) % (TICKS + 1)),
        "length": blob.add_integers(end - start),
        "wait": blob.add_integers(np.maximum(start - ready, 0)),
        "what": blob.add_integers(what[order]),
    }
    columns |= {name: blob.add_integers(getattr(spans, name)[order]) for name in _OWN}
    if facts is not None:
        columns |= _description_columns(facts, spans, order, first, blob, duration)
    lanes = np.stack([rank[first], stream[first], first], axis=1)
    shown = [row.rank for row in rows] or np.unique(rank[first]).tolist()
    return {
        "duration": duration,
        "count": len(spans),
        "rows": [_row_data(row, words) for row in rows],
        "words": words,
        "lanes": lanes.astype(int).tolist(),
        "what": examples,
        "columns": columns,
        "weights": {str(number): weights.get(number, 1) for number in shown},
    }


def _lane_order(spans: Spans) -> Ints:
    lane = spans.rank * (len(spans.words) + len(STREAM_ORDER)) + _stream_lane_index(spans)
    same, later = np.diff(spans.rank) == 0, np.diff(spans.start)
    if np.all((np.diff(spans.rank) > 0) | same & ((later > 0) | (later == 0) & (np.diff(spans.end) >= 0))):
        return np.argsort(narrow_integers(lane), kind="stable")
    return np.lexsort((spans.end, spans.start, lane))


def _distinct_rows(columns: Mapping[str, npt.NDArray[Any]]) -> tuple[Ints, dict[str, list[Any]]]:
    place, many = np.zeros(len(next(iter(columns.values()))), dtype=np.int64), 1
    for values in columns.values():
        codes, count = _consecutive_codes(values)
        if many * count > _FEW:
            place, many = _renumber_by_first_use(place, many)
        place, many = place * count + codes, many * count
    place, many = _renumber_by_first_use(place, many)
    example = np.zeros(many, dtype=np.int64)
    example[place] = np.arange(len(place))
    return place, {name: values[example].tolist() for name, values in columns.items()}


def _consecutive_codes(values: npt.NDArray[Any]) -> tuple[Ints, int]:
    if values.dtype.kind == "i" and len(values):
        low, high = int(values.min()), int(values.max())
        if high - low < _FEW:
            return values - low, high - low + 1
    codes, different = pd.factorize(values, sort=True, use_na_sentinel=False)
    return codes.astype(np.int64), max(1, len(different))


def _renumber_by_first_use(numbers: Ints, count: int) -> tuple[Ints, int]:
    if count > _FEW:
        left, found = np.unique(numbers, return_inverse=True)
        return found.reshape(-1).astype(np.int64), len(left)
    there = np.bincount(numbers, minlength=count) > 0
    return (np.cumsum(there) - 1)[numbers], int(there.sum())


def _description_columns(
    facts: SpanDescriptions, spans: Spans, order: Ints, first: Ints, blob: BinaryColumns, duration: float
) -> dict[str, Any]:
    """Return the columns that describe spans: awaited ranks, message partners, and critical path.

    A piece of the path is stored as lane, spans since the previous piece there, and differences from its span's times.
    """
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    mate, (number, start, end) = facts.partner_span[order], facts.critical_path
    begin, own = to_ticks(start, duration), to_ticks(spans.start[number], duration)
    length, own_length = to_ticks(end, duration) - begin, to_ticks(spans.end[number], duration) - own
    at = place[number]
    lane = np.searchsorted(first, at, side="right") - 1
    by_lane = np.argsort(lane, kind="stable")
    step = np.empty(len(at), dtype=np.int64)
    step[by_lane] = np.diff(at[by_lane], prepend=0)
    of_lane = by_lane[run_starts(lane[by_lane])]
    step[of_lane] = at[of_lane] - first[lane[of_lane]]
    return {
        "late": blob.add_integers(facts.awaited_rank[order]),
        "mate": blob.add_integers(np.where(mate >= 0, place[mate], -1)),
        "path_lane": blob.add_integers(lane),
        "path_step": blob.add_integers(step),
        "path_start": blob.add_integers(begin - own),
        "path_length": blob.add_integers(length - own_length),
    }


def _row_data(row: RankRow, words: list[str]) -> dict[str, Any]:
    own = {str(_word_index(words, base)): _word_index(words, name) for base, name in row.groups.items() if base != name}
    facts = {"groups": own, "peers": dict(row.peers), "late": dict(row.awaited_ranks), "slow": row.slowdown_text}
    return {"rank": row.rank, "source": row.source, **{name: value for name, value in facts.items() if value}}


def _word_index(words: list[str], text: str) -> int:
    if text not in words:
        words.append(text)
    return words.index(text)


def to_ticks(seconds: npt.NDArray[np.float64], duration: float) -> Ints:
    """Return times (s) as whole numbers, of which the largest is the end of the run, after ``duration`` seconds."""
    found = np.clip(seconds, 0.0, duration)
    found *= TICKS / duration
    return np.rint(found, out=found).astype(np.int64)


def _stream_lane_index(spans: Spans) -> Ints:
    present = [spans.words[code] for code in np.flatnonzero(np.bincount(spans.stream)).tolist()]
    names = [*STREAM_ORDER, *sorted(name for name in present if name not in STREAM_ORDER)]
    place = {name: at for at, name in enumerate(names)}
    return np.array([place.get(word, -1) for word in spans.words] or [0], dtype=np.int64)[spans.stream]


def choose_shown_ranks(spans: Spans, max_spans: int) -> tuple[Spans, list[int]]:
    """Choose evenly spaced ranks whose spans are few enough to draw; return their spans and the omitted ranks."""
    ranks, counts = np.unique(spans.rank, return_counts=True)
    if len(spans) <= max_spans or len(ranks) < 2:
        return spans, []
    keep = max(1, int(max_spans / counts.mean()))
    while True:
        places = np.unique(np.linspace(0, len(ranks) - 1, keep).round().astype(int))
        if counts[places].sum() <= max_spans or keep == 1:
            break
        keep -= 1
    chosen = np.isin(spans.rank, ranks[places])
    return spans.select(chosen), np.delete(ranks, places).tolist()
