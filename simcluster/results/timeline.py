"""Timeline of a run, stored as columns with an entry per span, from which all metrics are computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Bools, Floats, Int32s, Ints, run_starts
from simcluster.reference.step_record import OpTable, OpTimes

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = (
    "step", "rank", "stream", "kind", "name", "layer", "stage", "chunk", "microbatch", "group", "bytes", "ready",
    "start", "end",
)  # fmt: skip


@dataclass(frozen=True)
class Spans:
    """Spans of the simulated ranks, stored as columns in the order of rank and start time.

    ``stream``, ``kind``, ``name`` and ``group`` are codes into ``words``. ``op`` is the op of the span, or the op that
    waits for the message of a receiver's span. ``ready``, ``start``, ``end`` in seconds: start - ready is waiting for
    peers or the network, end - start work.
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

    def word_code(self, word: str) -> int:
        """Return the number by which the columns refer to a text such as "send"; -1 if no span has this text."""
        return self.words.index(word) if word in self.words else -1

    def select(self, kept: slice | Bools) -> Spans:
        """Return the spans of a slice, or those at which a boolean mask is true."""
        return Spans(self.words, *(getattr(self, name)[kept] for name in ("op", *COLUMNS)))

    def of_rank(self, rank: int) -> Spans:
        """Return the spans of one simulated rank."""
        return self.select(slice(*np.searchsorted(self.rank, [rank, rank + 1]).tolist()))

    def select_job(self, ranks: range) -> Spans:
        """Return the spans of one job, with ranks and pipeline stages renumbered from 0."""
        low, high = np.searchsorted(self.rank, [ranks.start, ranks.stop])
        if high - low == len(self) and not ranks.start:
            return self
        own = self.select(slice(low, high))
        return replace(own, rank=own.rank - ranks.start, stage=own.stage - own.stage.min())

    def to_frame(self) -> pd.DataFrame:
        """Return the spans as a DataFrame with the columns that CONTRACT.md describes (section Timeline)."""
        import pandas as pd

        dtype = None if self.words else object
        words = pd.Series(self.words, dtype=dtype).array  # pandas' texts, made of each word once
        columns = {name: getattr(self, name) for name in COLUMNS}
        columns |= {name: words.take(columns[name]) for name in _TEXT}
        return pd.DataFrame(columns)


_TEXT = ("stream", "kind", "name", "group")


class _LabelColumns:
    """Labels of a run's ops and received messages, stored as columns of numbers that refer to a list of texts."""

    def __init__(self, ops: OpTable) -> None:
        labels = ops.labels
        self.words: dict[str, int] = {}
        self.axes = list(dict.fromkeys(["", *(label.axis for label in labels)]))
        place = {axis: number for number, axis in enumerate(self.axes)}
        rows = [(*map(self._word_code, label[:3]), label.layer, place[label.axis]) for label in labels]
        sent = np.unique(ops.label[ops.receives[0]]).tolist()
        rows += [(*map(self._word_code, ("pp", "recv", labels[one].name)), -1, 0) for one in sent]
        sizes = [labels[one].bytes for one in [*range(len(labels)), *sent]]
        numbers = np.array(rows, dtype=np.int64).reshape(-1, 5)
        self.stream, self.kind, self.name, self.layer, self.axis = numbers.T.copy()
        self.bytes = np.array(sizes, dtype=np.float64)
        self.received = np.full(len(labels), -1)  # by the label of a send that of its receiver's span
        self.received[sent] = np.arange(len(labels), len(rows))

    def group_codes(self, ranks: list[int], group_name: Callable[[str, int], str]) -> Ints:
        """Return the number of the group's name for each rank and parallel axis, as an array [rank, axis]."""
        names = [[group_name(axis, rank) if axis else "" for axis in self.axes] for rank in ranks]
        codes = [self._word_code(name) for own in names for name in own]
        return np.array(codes, dtype=np.int64).reshape(-1, len(self.axes))

    def _word_code(self, word: str) -> int:
        return self.words.setdefault(word, len(self.words))


def make_spans(ops: OpTable, times: OpTimes, group_name: Callable[[str, int], str]) -> Spans:
    """Return a span for each labelled op, and a span on the receiver for each message."""
    labels = _LabelColumns(ops)
    own, (sends, receivers) = np.flatnonzero(ops.label >= 0), ops.receives
    op, source = np.concatenate([own, receivers]), np.concatenate([own, sends])
    label = np.concatenate([ops.label[own], labels.received[ops.label[sends]]])
    ready = np.concatenate([times.ready[own], times.start[sends]])
    start, end = times.start[source], times.end[source]
    order = _span_order(ops.lane_rank[ops.lane[op]], start, end, op)
    op, label = op[order], label[order]
    lane = ops.lane[op]
    ranks, place = np.unique(ops.lane_rank, return_inverse=True)
    codes = labels.group_codes(ranks.tolist(), group_name)
    return Spans(
        tuple(labels.words),
        op=op,
        step=ops.step[op].astype(np.int64),
        rank=ops.lane_rank[lane].astype(np.int64),
        stream=labels.stream[label],
        kind=labels.kind[label],
        name=labels.name[label],
        layer=labels.layer[label],
        stage=ops.lane_stage[lane].astype(np.int64),
        chunk=ops.chunk[op].astype(np.int64),
        microbatch=ops.microbatch[op].astype(np.int64),
        group=codes[place[lane], labels.axis[label]],
        bytes=labels.bytes[label],
        ready=ready[order],
        start=start[order],
        end=end[order],
    )


def _span_order(rank: Int32s, start: Floats, end: Floats, op: Ints) -> Ints:
    """Return the order that sorts spans by rank, start, end and op; ranks are sorted separately to stay in cache."""
    order = np.argsort(narrow_integers(rank), kind="stable")
    begin = start[order]
    for low, high in pairwise([*run_starts(rank[order]).tolist(), len(order)]):
        order[low:high] = order[low:high][np.argsort(begin[low:high], kind="stable")]
    equal = (np.diff(start[order]) == 0) & (np.diff(rank[order]) == 0)
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    some = order[tied]
    order[tied] = some[np.lexsort((op[some], end[some], start[some], rank[some]))]
    return order


def narrow_integers(numbers: npt.NDArray[np.signedinteger[Any]]) -> npt.NDArray[np.signedinteger[Any]]:
    """Convert integers to 16 bits if they fit, because 16-bit integers sort ten times faster."""
    fit = len(numbers) > 0 and numbers.min() >= 0 and numbers.max() < 2**15
    return numbers.astype(np.int16, copy=False) if fit else numbers


def step_end_times(spans: Spans, steps: int) -> Floats:
    """Return when (s) each step ends, which is the end of its last op on any rank."""
    found = np.full(steps, -np.inf)
    np.maximum.at(found, spans.step, spans.end)
    return found


def mean_step_time(ends: Floats, count: int) -> float:
    """Return the mean duration (s) of ``count`` steps after the first step, given when each step ends."""
    return float(ends[count] - ends[0]) / count
