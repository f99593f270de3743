"""Accelerator: ranks whose timelines are equal to the bit, found after the run: one of them is measured for all.

Ranks that are played apart, since they might have been held up differently, have in the end often gone through the same
at the same instants: of 512 ranks of GPT-3 on 1,024 GPUs 47 differ.  Equal here are all times of all ops and of their
rows, what the rows say, what is received and when, and what every call takes on free links.  Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Bools, Ints
from simcluster.base.runs import begins
from simcluster.engine.lower import Lowered
from simcluster.engine.record import Record
from simcluster.engine.templates import taken
from simcluster.programs.program import InStep, OpTimes, Program, SpanRow
from simcluster.programs.slowed import RowColumns, SlowedRows, columns_of, within
from simcluster.programs.told_ops import first_ops
from simcluster.results.contention import FreeCalls

_MANY = 64
"""Ranks from which on looking for equal ones is less work than measuring them."""


def first_alike(lowered: Lowered, record: Record, ranks: Collection[int], free: FreeCalls) -> dict[int, int]:
    """For each of these simulated ranks the first one with an equal timeline; itself if there are few of them.

    ``free`` is what calls take on free links.
    """
    played = lowered.played
    few = len(ranks) < _MANY or lowered.steps or played.speeds or set(played.lane_rank) != set(ranks)
    ranges = None if few else _op_ranges(played)
    if ranges is None:
        return {rank: rank for rank in ranks}
    found: dict[bytes, int] = {}
    names = _Names(lowered, record, ranges, free)
    return {rank: found.setdefault(names.of(rank), rank) for rank in ranks}


def part_of(lowered: Lowered, record: Record, ranks: Collection[int]) -> tuple[Lowered, Record]:
    """What was played by these ranks, the sends that they receive, and, telling nothing, who receives theirs, as a
    program of its own with its times."""
    played = lowered.played
    own = np.isin(_ints(played.lane_rank), list(ranks))[_ints(played.lane)]
    receives = [pair for pair in played.receives if own[pair[0]] or own[pair[1]]]
    whole = own.copy()
    whole[[send for send, _ in receives]] = True
    kept = whole.copy()
    kept[[receiver for _, receiver in receives]] = True
    first = first_ops(played)
    ops, place = _kept(kept)
    told = np.repeat(whole, np.diff(first))
    told[first[:-1][kept]] = True
    told_ops, told_place = _kept(told)
    columns: dict[str, Any] = {name: taken(getattr(played, name), ops.tolist()) for name in _OF_OPS}
    part = replace(
        played,
        **columns,
        after=[()] * len(ops),
        lanes=[[]] * len(played.lanes),
        row_sets=[*played.row_sets, ()],
        receives=[(int(place[send]), int(place[receiver])) for send, receiver in receives],
        in_step=_stretches(played.in_step, np.where(whole, place, -1)),
    )
    for op in np.flatnonzero(~whole[ops]).tolist():
        part.rows[op], part.meeting[op] = len(played.row_sets), -1
    for number, stretch in enumerate(part.in_step):
        for op in stretch.ops:
            part.meeting[op] = -2 - number
    times = OpTimes(record.ready[told_ops], record.start[told_ops], record.end[told_ops], np.arange(len(told_ops)))
    slowed = _only(columns_of(record.slowed), np.where(np.repeat(whole, np.diff(first)), told_place, -1))
    return replace(lowered, played=part), Record(record.lanes, lambda: times, record.events, SlowedRows(lambda: slowed))


_OF_OPS = ("seconds", "meeting", "position", "lane", "rows", "step", "chunk", "microbatch")


def _ints(column: Sequence[int]) -> Ints:
    return np.array(column, dtype=np.int64)


def _kept(own: Bools) -> tuple[Ints, Ints]:
    """Which ops are kept, and the place among them of each, -1 for the others."""
    ops = np.flatnonzero(own)
    place = np.full(len(own), -1, dtype=np.int64)
    place[ops] = np.arange(len(ops))
    return ops, place


def _stretches(in_step: Sequence[InStep], place: Ints) -> list[InStep]:
    """Stretches with those members whose ops have a place."""
    found = []
    for ops, parts in in_step:
        members = [(int(place[op]), part) for op, part in zip(ops, parts, strict=True) if place[op] >= 0]
        if members:
            found.append(InStep(*zip(*members, strict=True)))
    return found


def _only(rows: RowColumns, place: Ints) -> RowColumns:
    """Of rows those of the ops that have a place, by which they are called then, in its order."""
    there = np.flatnonzero(place[rows.ops] >= 0)
    there = there[np.argsort(place[rows.ops[there]], kind="stable")]
    counts = rows.counts[there]
    row = np.repeat(rows.first[there], counts) + within(counts)
    first = np.concatenate([[0], np.cumsum(counts)])
    return RowColumns(place[rows.ops[there]], first, rows.start[row], rows.end[row])


def _op_ranges(program: Program) -> dict[int, tuple[int, int]] | None:
    """The ops of every rank, from the first to before the last; None where ranks' ops are mixed."""
    rank = _ints(program.lane_rank)[_ints(program.lane)]
    first = begins(rank)
    ends = [*first[1:].tolist(), len(rank)]
    found = dict(zip(rank[first].tolist(), zip(first.tolist(), ends, strict=True), strict=True))
    return found if len(found) == len(first) == len(set(program.lane_rank)) else None


class _Names:
    """Names of ranks that are equal where all that is measured of them is; ``ranges`` are their ops."""

    def __init__(
        self, lowered: Lowered, record: Record, ranges: Mapping[int, tuple[int, int]], free: FreeCalls
    ) -> None:
        played = lowered.played
        self._played, self._ranges, self._free = played, ranges, free
        self._rows: dict[Hashable, int] = {}  # what ops tell, numbered
        self._first = first_ops(played)
        self._row = self._rows_of_ops()
        self._calls = [tuple(_calls(told)) for told in self._rows]
        self._columns = [self._row, *(_ints(getattr(played, name)) for name in ("step", "chunk", "microbatch"))]
        self._times = [record.ready, record.start, record.end]
        self._slowed = _only(columns_of(record.slowed), np.arange(int(self._first[-1])))
        self._rank = _ints(played.lane_rank)[_ints(played.lane)]
        self._begin = np.zeros(int(self._rank.max()) + 1, dtype=np.int64)  # the first op of every rank
        self._begin[list(ranges)] = [first for first, _ in ranges.values()]
        self._lanes: dict[int, list[int]] = {}
        for lane, rank in enumerate(played.lane_rank):
            self._lanes.setdefault(rank, []).append(lane)
        self._exchanged = self._sends(record)

    def of(self, rank: int) -> bytes:
        """Of a rank."""
        played, (first, last), lanes = self._played, self._ranges[rank], self._lanes[rank]
        own = [(played.lane_name[lane], played.lane_stage[lane]) for lane in lanes]
        calls = {call for number in np.unique(self._row[first:last]).tolist() for call in self._calls[number]}
        free = sorted((call, self._free.of_group(rank, *call)) for call in calls)
        found = blake2b(repr((own, free)).encode())
        for column in self._columns:
            found.update(column[first:last].tobytes())
        found.update(np.searchsorted(lanes, played.lane[first:last]).tobytes())
        for whose, columns in self._exchanged:
            low, high = np.searchsorted(whose, [rank, rank + 1])
            for each in columns:
                found.update(each[low:high].tobytes())
        start, end = self._first[[first, last]].tolist()
        for times in self._times:
            found.update(times[start:end].tobytes())
        slowed = self._slowed
        low, high = np.searchsorted(slowed.ops, [start, end])
        rows = slice(slowed.first[low], slowed.first[high])
        counts = np.diff(slowed.first[low : high + 1])
        found.update((slowed.ops[low:high] - start).tobytes() + counts.tobytes())
        found.update(slowed.start[rows].tobytes() + slowed.end[rows].tobytes())
        return found.digest()

    def _rows_of_ops(self) -> Ints:
        """A number for each op, equal for those that tell the same: their rows, or in a stretch lanes and rows."""
        played, known = self._played, dict[int, int]()
        for own in played.row_sets:
            if id(own) not in known:
                known[id(own)] = self._number((), (own,))
        found = _ints([known[id(own)] for own in played.row_sets])[_ints(played.rows)]
        for ops, parts in played.in_step:
            for op, part in zip(ops, parts, strict=True):
                if id(part) not in known:
                    known[id(part)] = self._number(part.lanes, part.rows)
                found[op] = known[id(part)]
        return np.asarray(found)

    def _number(self, lanes: tuple[str, ...], rows: Sequence[Sequence[SpanRow]]) -> int:
        told = lanes, tuple([tuple(map(_told, own)) for own in rows])
        return self._rows.setdefault(told, len(self._rows))

    def _sends(self, record: Record) -> list[tuple[Ints, list[npt.NDArray[np.generic]]]]:
        """What ranks send and receive, when, and what that takes on free links, by rank in columns."""
        if not self._played.receives:
            return []
        played, (sends, receivers) = self._played, np.array(self._played.receives, dtype=np.int64).T
        source, target = self._rank[sends], self._rank[receivers]
        stage, told = _ints(played.lane_stage)[_ints(played.lane)[receivers]], self._row[sends]
        calls, which = np.unique(np.stack([source, stage, told]), axis=1, return_inverse=True)
        rows = [played.row_sets[played.rows[send]][0] for send in _first_of(which, sends)]
        pairs = zip(*calls[:2].tolist(), rows, strict=True)
        free = np.array([self._free.of_send(rank, there, row.kind, row.bytes) for rank, there, row in pairs])[which]
        begin = self._first[sends + 1] - 1  # of the whole: the last that an op stands for
        sent = [sends - self._begin[source], free]
        received = [receivers - self._begin[target], told, record.start[begin], record.end[begin], free]
        orders = [(each, np.argsort(each, kind="stable")) for each in (source, target)]
        return [
            (whose[order], [column[order] for column in columns])
            for (whose, order), columns in zip(orders, (sent, received), strict=True)
        ]


def _first_of(which: Ints, values: Ints) -> list[int]:
    """For each number in ``which`` the first of the values there."""
    _, first = np.unique(which, return_index=True)
    return list(map(int, values[first]))


def _told(row: SpanRow) -> tuple[object, ...]:
    """What is told of a row."""
    return (*row[:8], row.memory, row.pace and (row.pace.seconds, row.pace.sensitivity))


def _calls(told: Hashable) -> Iterator[tuple[str, str, float]]:
    """Axis, kind and bytes of the calls that an op tells of."""
    assert isinstance(told, tuple)
    for own in told[1]:
        for _, kind, _, _, axis, size, *_ in own:
            if axis:
                yield axis, kind, size


__all__ = ["first_alike", "part_of"]
