"""Ranks that meet again and again in one segment, as those of a tensor-parallel group do: played as one chain.

From their first meeting on nothing but what slows each of them down has a say in when the next ones begin, so the rest
of the segment is a chain with the rows of all (``rhythm``); the ops' own times are filled in afterwards, for all that
have the same chain at once.  Imports the program, rhythm, courses and numpy.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcluster.lowering.program import InStep, Pace, Program
from simcluster.lowering.rhythm import Chain
from simcluster.lowering.slowed import RowColumns, columns_of, joined, within
from simcluster.simulating.courses import Courses, RowEnds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Form:
    """What is the same in all stretches with these rows: the chain, and how its rows are the members' ops.

    ``first`` and ``last`` are the rows [member, op] of an op of the stretch, ``met`` the ops that meet, and ``awaited``
    the rows that each of those waits for [member, op that meets, width], filled up with the first.  ``presses``: does
    something in it slow down computation beside it?
    """

    courses: Courses
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
        self._made: dict[Hashable, Form] = {}  # by what is in them: groups that do the same share one

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
        return making.form(self._made)


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

    def form(self, made: dict[Hashable, Form]) -> Form:
        """All of it, if it has not been made before."""
        width = max(1, *(max(map(len, own)) for own in self._awaited))
        awaited = [[each + (each or [0])[:1] * (width - len(each)) for each in own] for own in self._awaited]
        tables = (self._first, self._last, self._met, awaited)
        first, last, met, waits = (np.array(each, dtype=np.int64) for each in tables)
        rows = [table.tobytes() for table in (first, last, met, waits)]
        name = (tuple(self._paces), tuple(self._before), first.shape, *rows)
        known = made.get(name)
        if known is None:
            chain = Chain(self._paces, self._before, self._whose, [own[-1] for own in self._last])
            presses = any(pace.pressure > 0 for pace in self._paces)
            known = made[name] = Form(Courses(chain), first, last, met, waits, presses)
        return known

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
    """One that has been played, with its members' arrivals and the first op of the one who came last; ``times`` are
    the starts and ends of its rows in seconds from its ``begin``."""

    firsts: tuple[int, ...]
    form: Form
    begin: float
    times: RowEnds
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
        self._slowed: list[_Slowed] = []
        by_form: dict[int, list[int]] = {}
        for number, each in enumerate(stretches):
            by_form.setdefault(id(each.form), []).append(number)
        for alike in by_form.values():
            self._fill(alike, [stretches[number] for number in alike], columns)

    def _fill(self, numbers: Sequence[int], alike: Sequence[Stretch], columns: Columns) -> None:
        form = alike[0].form
        known = {id(each.times): each.times for each in alike}  # stretches share them
        place = {number: place for place, number in enumerate(known)}
        which = [place[id(each.times)] for each in alike]
        begin = np.array([each.begin for each in alike])[:, None]
        start, end = (np.stack(each)[which] + begin for each in zip(*known.values(), strict=True))  # [stretch, row]
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
        asked = np.array([each.slowed or form.presses for each in alike])
        if asked.any():
            number = np.array(numbers, dtype=np.int64)[asked]
            self._slowed.append(_Slowed(form, number, firsts[asked], start[asked], end[asked]))

    def slowed(self) -> RowColumns:
        """Ops of stretches that were slowed, stretch by stretch, member by member."""
        found = [each.rows(self._program) for each in self._slowed]
        if not found:
            return columns_of({})
        number = np.concatenate([number for number, _ in found])
        rows = joined([rows for _, rows in found])
        order = np.argsort(number, kind="stable")
        counts = rows.counts[order]
        row = np.repeat(rows.first[order], counts) + within(counts)
        return RowColumns(rows.ops[order], np.concatenate([[0], np.cumsum(counts)]), rows.start[row], rows.end[row])


@dataclass(frozen=True, slots=True)
class _Slowed:
    """Stretches of one form in which something was slowed: their numbers, their members' first ops, and when their rows
    started and ended [stretch, row]."""

    form: Form
    number: Ints
    firsts: Ints
    start: Floats
    end: Floats

    def rows(self, program: Program) -> tuple[Ints, RowColumns]:
        """What did not go on as planned: the stretch of every op, and the ops."""
        form, length = self.form, self.form.first.shape[1]
        alone = np.setdiff1d(np.arange(length), form.met)  # ops that meet nobody
        member, op = (each.ravel() for each in np.indices(form.first.shape)[:, :, alone])
        first = form.first[member, op]
        counts = form.last[member, op] + 1 - first
        row = np.repeat(first, counts) + within(counts)
        begin = self.start[:, np.repeat(first, counts)]
        start, end = self.start[:, row] - begin, self.end[:, row] - begin
        sets = [program.row_sets[program.rows[each]] for each in (self.firsts[0, member] + op).tolist()]
        planned = np.array([(own.start, own.end) for rows in sets for own in rows]).reshape(-1, 2)
        differs = (start != planned[:, 0]) | (end != planned[:, 1])
        starts = np.cumsum(counts) - counts
        changed = np.logical_or.reduceat(differs, starts, axis=1) if len(starts) else differs
        stretch, which = np.nonzero(changed)
        there = np.repeat(changed, counts, axis=1)
        ops = self.firsts[stretch, member[which]] + op[which]
        all_rows = np.concatenate([[0], np.cumsum(counts[which])])
        return self.number[stretch], RowColumns(ops, all_rows, start[there], end[there])
