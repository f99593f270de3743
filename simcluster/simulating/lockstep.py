"""Ranks that meet again and again in one segment, as those of a tensor-parallel group do: played as one chain.

From their first meeting on nothing but what slows each of them down has a say in when the next ones begin, so the rest
of the segment is a chain with the rows of all (``rhythm``); the ops' own times are filled in afterwards, for all that
have the same chain at once.  Imports the program, blocks, rhythm and numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcluster.lowering.program import InStep, Pace, Program, RowTimes
from simcluster.lowering.rhythm import Chain, Playing

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Form:
    """What is the same in all stretches with these rows: the chain, and how its rows are the members' ops.

    ``first`` and ``last`` are the rows [member, op] of an op of the stretch, ``met`` the ops that meet, and ``awaited``
    the rows that each of those waits for [member, op that meets, width], filled up with the first.  ``presses``: does
    something in it slow down computation beside it?
    """

    chain: Chain
    first: Ints
    last: Ints
    met: Ints
    awaited: Ints
    presses: bool


class Forms:
    """The forms of a program's stretches, each made once; ``seconds`` are those of its meetings."""

    def __init__(self, program: Program, capacity: Sequence[float]) -> None:
        self._program, self._capacity = program, capacity
        self._known: dict[tuple[int, ...], Form] = {}

    def of(self, stretch: InStep) -> Form:
        """The form of a stretch."""
        rows = self._program.rows
        name = tuple([rows[first] for first in stretch.firsts])  # row sets are those of a rank and a segment
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._make(stretch)
        return known

    def _make(self, stretch: InStep) -> Form:
        program, making = self._program, _InMaking(len(stretch.firsts))
        for offset in range(stretch.length):
            ops = [first + offset for first in stretch.firsts]
            earlier: list[list[int]] = [[] for _ in ops]  # what the first op waits for is over
            if offset:
                pairs = zip(ops, stretch.firsts, strict=True)
                earlier = [[other - first for other in program.after[op] if other >= first] for op, first in pairs]
            lane = program.lane_name[program.lane[ops[0]]]
            number = program.meeting[ops[0]]
            if number >= 0:
                meeting = program.meetings[number]
                seconds = sum(traffic.alone_seconds(self._capacity) for traffic in meeting.traffics)
                making.meet(offset, lane, Pace(seconds, None, meeting.pressure), earlier)
                continue
            for member, op in enumerate(ops):
                rows = program.row_sets[program.rows[op]]
                own = [row.pace or Pace(row.end - row.start) for row in rows]
                making.go_on(member, lane, own, earlier[member])
        return making.form()


class _InMaking:
    """The rows of a form one after the other."""

    def __init__(self, members: int) -> None:
        self._paces: list[Pace] = []
        self._before: list[tuple[int, ...]] = []
        self._whose: list[int] = []
        self._lanes: list[dict[str, int]] = [{} for _ in range(members)]
        self._first: list[list[int]] = [[] for _ in range(members)]
        self._last: list[list[int]] = [[] for _ in range(members)]
        self._met: list[int] = []
        self._awaited: list[list[list[int]]] = [[] for _ in range(members)]

    def go_on(self, member: int, lane: str, paces: Sequence[Pace], after: Sequence[int]) -> None:
        """What one member does by itself."""
        before = self._awaits(member, lane, after)
        first = len(self._paces)
        for place, pace in enumerate(paces):
            self._row(pace, (first + place - 1,) if place else tuple(before), member)
        self._op(member, lane, first)

    def meet(self, offset: int, lane: str, pace: Pace, after: Sequence[Sequence[int]]) -> None:
        """What all do together."""
        row = len(self._paces)
        before = [self._awaits(member, lane, own) for member, own in enumerate(after)]
        self._met.append(offset)
        for member, own in enumerate(before):
            self._awaited[member].append(own)
            self._op(member, lane, row)
        self._row(pace, tuple(dict.fromkeys(each for own in before for each in own)), 0)

    def form(self) -> Form:
        """All of it."""
        width = max(1, *(max(map(len, own)) for own in self._awaited))
        awaited = [[each + (each or [0])[:1] * (width - len(each)) for each in own] for own in self._awaited]
        tables = (self._first, self._last, self._met, awaited)
        first, last, met, waits = (np.array(each, dtype=np.int64) for each in tables)
        chain = Chain(self._paces, self._before, self._whose, [own[-1] for own in self._last])
        return Form(chain, first, last, met, waits, any(pace.pressure > 0 for pace in self._paces))

    def _awaits(self, member: int, lane: str, after: Sequence[int]) -> list[int]:
        rows = [self._last[member][op] for op in after]
        before = self._lanes[member].get(lane)
        return list(dict.fromkeys(rows if before is None else [before, *rows]))

    def _row(self, pace: Pace, before: tuple[int, ...], member: int) -> None:
        self._paces.append(pace)
        self._before.append(before)
        self._whose.append(member)

    def _op(self, member: int, lane: str, first: int) -> None:
        """An op from this row to the last one so far."""
        last = max(first, len(self._paces) - 1)
        self._first[member].append(first)
        self._last[member].append(last)
        self._lanes[member][lane] = last


@dataclass(frozen=True, slots=True)
class Stretch:
    """One that has been played, with its members' arrivals and the first op of the one who came last."""

    firsts: tuple[int, ...]
    form: Form
    playing: Playing
    ready: tuple[float, ...]
    last: int
    slowed: bool


@dataclass(frozen=True, slots=True)
class Columns:
    """Times per op, of the whole program."""

    ready: Floats
    start: Floats
    end: Floats
    last: Ints


class Expanded:
    """Fills the times of the ops of all stretches into ``columns``; knows those of the rows of what was slowed."""

    def __init__(self, program: Program, stretches: Sequence[Stretch], columns: Columns) -> None:
        self._program = program
        self._stretches = [each for each in stretches if each.slowed or each.form.presses]
        by_form: dict[int, list[Stretch]] = {}
        for each in stretches:
            by_form.setdefault(id(each.form), []).append(each)
        for alike in by_form.values():
            self._fill(alike, columns)

    def _fill(self, alike: Sequence[Stretch], columns: Columns) -> None:
        form = alike[0].form
        times = [each.playing.times() for each in alike]
        start, end = (np.stack(each) for each in zip(*times, strict=True))  # [stretch, row]
        firsts = np.array([each.firsts for each in alike], dtype=np.int64)
        count = form.first.shape[1]
        op = firsts[:, :, None] + np.arange(count)  # [stretch, member, op]
        columns.start[op] = columns.ready[op] = start[:, form.first]
        columns.end[op] = end[:, form.last]
        ready = end[:, form.awaited].max(axis=3)  # [stretch, member, op that meets]
        ready[:, :, 0] = [each.ready for each in alike]
        met = op[:, :, form.met]
        columns.ready[met] = ready
        there = ready == columns.start[met]
        many = len(columns.last)
        last = np.where(there, met, many).min(axis=1)
        last[:, 0] = [each.last for each in alike]
        columns.last[met] = last[:, None, :]

    def rows(self) -> Iterator[tuple[int, RowTimes]]:
        """Ops of stretches that were slowed, with start and end of their rows, in seconds from the op's start."""
        program = self._program
        for each in self._stretches:
            start, end = (column.tolist() for column in each.playing.times())
            for member, first in enumerate(each.firsts):
                pairs = zip(each.form.first[member].tolist(), each.form.last[member].tolist(), strict=True)
                for offset, (low, high) in enumerate(pairs):
                    if program.meeting[first + offset] >= 0:
                        continue
                    times = tuple([(start[row] - start[low], end[row] - start[low]) for row in range(low, high + 1)])
                    planned = program.row_sets[program.rows[first + offset]]
                    if times[-1][1] != planned[-1].end or any(
                        time != (row.start, row.end) for time, row in zip(times, planned, strict=True)
                    ):
                        yield first + offset, times


class Slowed(Mapping[int, RowTimes]):
    """The rows of ops that did not go on at full speed, put together when somebody asks."""

    def __init__(self, alone: Mapping[int, RowTimes], expanded: Expanded) -> None:
        self._alone, self._expanded = alone, expanded
        self._found: dict[int, RowTimes] | None = None

    @property
    def _all(self) -> dict[int, RowTimes]:
        if self._found is None:
            self._found = {**self._alone, **dict(self._expanded.rows())}
        return self._found

    def __getitem__(self, op: int) -> RowTimes:
        return self._all[op]

    def __iter__(self) -> Iterator[int]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)
