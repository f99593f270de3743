"""The chain of ops that decides how long the run takes, from its first instant to its last, without a gap.

Walked back from the op that ends last: what an op waited for longest is the op before it on its lane, or one that it
needs, or, in a group, what the member waited for that arrived last.  To make anything else faster changes nothing; to
make this faster changes the step by no more than its share.

With other seconds (``path_seconds_under``) it says what the step would take, to first order, if ops took another time:
planned, not played, so ops keep their places, and it says nothing of another path becoming the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Floats, Ints
from simcluster.base.shown import Shown
from simcluster.engine.lower import Lowered
from simcluster.engine.record import Record
from simcluster.programs.program import Program
from simcluster.results.calls import calls_of
from simcluster.results.contention import free_seconds
from simcluster.results.timeline import Spans, spread

Link = tuple[int, float, float]
"""An op on the path with the first and last instant that it is what everything waits for."""


@dataclass(frozen=True)
class CriticalPath(Shown):
    """Spans in the order of time, each from where the one before it ends: ``start`` and ``end`` in seconds.

    ``number`` is the place of each in ``spans``.  Where it waits for a late member of its group the path goes on
    through that member, so a collective counts from its last arrival on.
    """

    spans: Spans
    number: Ints
    start: Floats
    end: Floats
    steps: int

    @property
    def seconds(self) -> float:
        """Per step: the step time."""
        return float((self.end - self.start).sum()) / self.steps

    def by_kind(self) -> dict[str, float]:
        """Seconds per step of each kind of op ("forward", "tp all_gather", "pp send"), longest first."""
        spans, words = self.spans, self.spans.words
        found: dict[str, float] = {}
        for (stream, kind), seconds in self._summed(spans.stream, spans.kind):
            name = kind_of(words[stream], words[kind])
            found[name] = found.get(name, 0.0) + seconds
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def by_rank(self) -> dict[int, float]:
        """Seconds per step on each simulated rank; a collective counts for the member that the path goes on from."""
        return {rank: seconds for (rank,), seconds in self._summed(self.spans.rank)}

    def rows(self) -> list[dict[str, str | int | float]]:
        """Every span of the path in words: rank, stage, kind, name, layer, microbatch, start and end."""
        spans, words = self.spans, self.spans.words
        return [
            {
                "rank": int(spans.rank[at]),
                "stage": int(spans.stage[at]),
                "kind": kind_of(words[spans.stream[at]], words[spans.kind[at]]),
                "name": words[spans.name[at]],
                "layer": int(spans.layer[at]),
                "microbatch": int(spans.microbatch[at]),
                "start": start,
                "end": end,
            }
            for at, start, end in zip(self.number.tolist(), self.start.tolist(), self.end.tolist(), strict=True)
        ]

    def _summed(self, *columns: Ints) -> list[tuple[list[int], float]]:
        """Seconds per step of every combination of codes in these columns, in the order of the codes."""
        codes = np.stack([column[self.number] for column in columns], axis=1)
        distinct, which = np.unique(codes, axis=0, return_inverse=True)
        seconds = np.bincount(which.reshape(-1), self.end - self.start, len(distinct)) / self.steps
        return list(zip(distinct.tolist(), seconds.tolist(), strict=True))


def kind_of(stream: str, kind: str) -> str:
    """What a kind of op is called: "forward", "tp all_gather"."""
    return kind if stream == "compute" else f"{stream} {kind}"


def critical_path(program: Program, record: Record, spans: Spans, ranks: range, *, steps: int) -> CriticalPath:
    """The path that decides when the last of ``ranks`` is done, whose spans these are."""
    links = _walk(program, record, ranks)
    number, start, end = _expanded(links, spans)
    return CriticalPath(spans, number, start, end, steps)


def _walk(program: Program, record: Record, ranks: range) -> list[Link]:
    """Ops of the path in the order of time."""
    ready, end, last = record.ready, record.end, record.last
    before = [-1] * len(ready)
    finals = []
    for ops, rank in zip(program.lanes, program.lane_rank, strict=True):
        for earlier, op in pairwise(ops):
            before[op] = earlier
        if ops and rank in ranks:
            finals.append(ops[-1])
    op = max(finals, key=lambda final: (float(end[final]), -final))
    shown = _senders(program)
    links: list[Link] = []
    while True:
        cause = int(last[op])
        if not ready[op] < ready[cause] <= end[op]:
            cause = op
        links.append((shown.get(op, op), float(ready[cause]), float(end[op])))
        causes = [other for other in (before[cause], *program.after[cause]) if other >= 0]
        if not causes:
            return links[::-1]
        op = max(causes, key=lambda other: float(end[other]))  # of equals the one before it on the lane


def _senders(program: Program) -> dict[int, int]:
    """For every op that leaves no span, a receive, the other one of its meeting: the send that it is one with."""
    silent = [op for op, rows in enumerate(program.rows) if not program.row_sets[rows]]
    meetings = dict.fromkeys(program.meeting[op] for op in silent)
    of_meeting = {
        meeting: op
        for op, meeting in enumerate(program.meeting)
        if meeting in meetings and program.row_sets[program.rows[op]]
    }
    return {op: of_meeting[program.meeting[op]] for op in silent}


def _expanded(links: Sequence[Link], spans: Spans) -> tuple[Ints, Floats, Floats]:
    """The links' spans: a chain has many, of which those count that the next one waits for."""
    own = np.flatnonzero(spans.kind != spans.code("recv"))  # what a receiver sees has the op that waits for it
    own = own[np.argsort(spans.op[own], kind="stable")]
    op, starts, ends = spans.op[own], spans.start[own], spans.end[own]
    follows = np.concatenate([[0], np.cumsum((op[1:] == op[:-1]) & (starts[1:] == ends[:-1]))])
    first = np.searchsorted(op, [link for link, _, _ in links])
    behind = np.searchsorted(op, [link for link, _, _ in links], side="right")
    compute = spans.stream[own] == spans.code("compute")
    numbers: list[Ints] = []
    begins: list[Floats] = []
    finishes: list[Floats] = []
    for (_, begin, finish), low, high in zip(links, first.tolist(), behind.tolist(), strict=True):
        if follows[high - 1] - follows[low] == high - 1 - low:
            chosen = np.arange(low, high)
        else:
            chosen = np.array(_back(low, high, finish, starts, ends, compute), dtype=np.int64)
        numbers.append(own[chosen])
        edges = np.concatenate([[begin], ends[chosen]])
        edges[-1] = finish
        begins.append(edges[:-1])
        finishes.append(edges[1:])
    return np.concatenate(numbers), np.concatenate(begins), np.concatenate(finishes)


def _back(
    low: int, high: int, finish: float, starts: Floats, ends: Floats, compute: npt.NDArray[np.bool_]
) -> list[int]:
    """Spans of a chain that has something beside it, from its last end back to its begin, each ending where the next
    starts; where two end at once the next one waits for both, and compute is taken."""
    places = np.arange(low, high)[starts[low:high] < ends[low:high]]
    places = places[np.argsort(compute[places], kind="stable")]
    before = dict(zip(ends[places].tolist(), places.tolist(), strict=True))  # of equals the last one stays
    chosen: list[int] = []
    at = finish
    while at in before:
        chosen.append(before[at])
        at = float(starts[chosen[-1]])
    return chosen[::-1]


def path_seconds_under(path: CriticalPath, run: Lowered, other: Lowered, first_rank: int = 0) -> float | None:
    """Seconds per step of the path if its spans took as much longer as ``other`` plans them, or None if that is
    another program: ranks that are no longer alike, or other ops.

    A span's part of the path grows in proportion to the span; contention, and compute slowed beside communication, in
    proportion to what they add to.
    """
    if run.program.rows != other.program.rows or run.program.lane_rank != other.program.lane_rank:
        return None
    if [len(rows) for rows in run.program.row_sets] != [len(rows) for rows in other.program.row_sets]:
        return None
    before = _planned(run, path.spans, first_rank)
    after = _planned(other, path.spans, first_rank)
    ratio = np.divide(after, before, out=np.ones(len(before)), where=before > 0)[path.number]
    return float(((path.end - path.start) * ratio).sum()) / path.steps


def _planned(lowered: Lowered, spans: Spans, first_rank: int) -> Floats:
    """Seconds of every span as planned: of rows inside an op what they say, of meetings what free links take."""
    found = free_seconds(lowered, spans, calls_of(lowered, spans, first_rank))
    rows = np.flatnonzero(spans.kind != spans.code("recv"))
    rows = rows[np.lexsort((spans.end[rows], spans.start[rows], spans.op[rows]))]
    fields = {"start": "f8", "end": "f8"}
    op, _, row = spread(lowered.told, lambda own: sorted((row.start, row.end) for row in own), fields)
    own = np.isin(op, spans.op[rows])
    assert own.sum() == len(rows), "every span but a receive is a row of its op"
    inside = ~lowered.told.met[op[own]]
    found[rows[inside]] = (row["end"] - row["start"])[own][inside]
    return found
