"""Critical path of a run: the chain of ops without gaps that determines the run's duration.

Walked back from the op that ends last: the cause of an op's start is whichever ends last of the previous op on its
lane, the ops that it depends on and, in a group, those of the member that arrived last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.display import Displayable
from simcluster.reference.step_record import OpTable, OpTimes
from simcluster.results.timeline import Spans

PathOp = tuple[int, float, float]
"""An op on the critical path, with the start and end (s) of its part of the path."""


@dataclass(frozen=True)
class CriticalPath(Displayable):
    """Critical path of a run: its spans in time order, and when (s) the path enters and leaves each span.

    ``number`` is the place of each in ``spans``. Where it waits for a late member of its group the path continues
    through that member, so a collective counts from its last arrival on.
    """

    spans: Spans
    number: Ints
    start: Floats
    end: Floats
    steps: int

    @property
    def seconds(self) -> float:
        """Length of the critical path in seconds per step, equal to the step time."""
        return float((self.end - self.start).sum()) / self.steps

    def by_kind(self) -> dict[str, float]:
        """Return seconds per step by kind of op ("forward", "tp all_gather", "pp send"), longest first."""
        spans, words = self.spans, self.spans.words
        found: dict[str, float] = {}
        for (stream, kind), seconds in self._seconds_by_columns(spans.stream, spans.kind):
            name = op_kind_name(words[stream], words[kind])
            found[name] = found.get(name, 0.0) + seconds
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def by_rank(self) -> dict[int, float]:
        """Return seconds per step on each rank; a collective counts for the rank through which the path continues."""
        return {rank: seconds for (rank,), seconds in self._seconds_by_columns(self.spans.rank)}

    def rows(self) -> list[dict[str, str | int | float]]:
        """Return a row for each span of the path: rank, stage, kind, name, layer, microbatch, start and end."""
        spans, words = self.spans, self.spans.words
        return [
            {
                "rank": int(spans.rank[at]),
                "stage": int(spans.stage[at]),
                "kind": op_kind_name(words[spans.stream[at]], words[spans.kind[at]]),
                "name": words[spans.name[at]],
                "layer": int(spans.layer[at]),
                "microbatch": int(spans.microbatch[at]),
                "start": start,
                "end": end,
            }
            for at, start, end in zip(self.number.tolist(), self.start.tolist(), self.end.tolist(), strict=True)
        ]

    def _seconds_by_columns(self, *columns: Ints) -> list[tuple[list[int], float]]:
        codes = np.stack([column[self.number] for column in columns], axis=1)
        distinct, which = np.unique(codes, axis=0, return_inverse=True)
        seconds = np.bincount(which.reshape(-1), self.end - self.start, len(distinct)) / self.steps
        return list(zip(distinct.tolist(), seconds.tolist(), strict=True))


def op_kind_name(stream: str, kind: str) -> str:
    """Return the name of a kind of op in outputs: "forward", or for communication with its axis, "tp all_gather"."""
    return kind if stream == "compute" else f"{stream} {kind}"


def critical_path(ops: OpTable, times: OpTimes, spans: Spans, ranks: range, *, steps: int) -> CriticalPath:
    """Find the critical path of a job: the chain of ops that ends with the last op of its ranks."""
    op, start, end = zip(*_trace_critical_ops(ops, times, ranks), strict=True)
    own = np.flatnonzero(spans.kind != spans.word_code("recv"))  # a receiver's span has the op that waits for it
    of_op = np.full(len(ops), -1)
    of_op[spans.op[own]] = own
    return CriticalPath(spans, of_op[_replace_receives(ops, np.array(op))], np.array(start), np.array(end), steps)


def _trace_critical_ops(ops: OpTable, times: OpTimes, ranks: range) -> list[PathOp]:
    ready, end, last, before, waits = times.ready, times.end, times.last_arrival, ops.previous_ops, ops.dependencies
    final = np.ones(len(ops), dtype=bool)
    final[before[before >= 0]] = False
    rank = ops.lane_rank[ops.lane]
    finals = np.flatnonzero(final & (rank >= ranks.start) & (rank < ranks.stop))
    op = int(finals[end[finals].argmax()])
    links: list[PathOp] = []
    while True:
        cause = int(last[op])
        if not ready[op] < ready[cause] <= end[op]:
            cause = op
        links.append((op, float(ready[cause]), float(end[op])))
        causes = [int(before[cause])] * bool(before[cause] >= 0)
        causes += waits.op[waits.offsets[cause] : waits.offsets[cause + 1]].tolist()
        if not causes:
            return links[::-1]
        op = max(causes, key=lambda other: float(end[other]))  # of equals the one before it on the lane


def _replace_receives(ops: OpTable, path: Ints) -> Ints:
    receives = ops.label[path] < 0
    if not receives.any():
        return path
    sends = np.flatnonzero((ops.label >= 0) & (ops.meeting >= 0))
    of_meeting = np.full(int(ops.meeting.max()) + 1, -1)
    of_meeting[ops.meeting[sends]] = sends
    return np.where(receives, of_meeting[ops.meeting[path]], path)
