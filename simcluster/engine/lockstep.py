"""Lockstep regions as they are played: ranks that meet again and again, as a tensor-parallel group does, as one chain.

From their first meeting on nothing but what slows each of them down has a say in when the next ones begin, so the rest
of the segment is a chain with the rows of all (``chain``), and one op a member in the program.  What leads to their
first meeting may belong to it: each begins that when it comes, and the chain is worked out when all have come.  When
the ops inside began and ended is worked out when somebody looks, for all that have the same chain at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.engine.calendar import Lane
from simcluster.engine.compute_tasks import Member, RankState, Task, comes
from simcluster.engine.interference import Pacing
from simcluster.engine.trajectories import Courses, TimedChain
from simcluster.programs.chain import Chain
from simcluster.programs.program import ChainPace, LockstepRegion, Meeting, OpTimes, Program
from simcluster.programs.slowed import RowColumns, columns_of, joined, within
from simcluster.programs.told_ops import first_ops


@dataclass(frozen=True, slots=True)
class LockstepPlan:
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


class _Beat(NamedTuple):
    """What decides a member's rows: of every op its lane, how its rows go on (none where it meets others), and the
    earlier ops of the stretch that it waits for."""

    lanes: tuple[str, ...]
    paces: tuple[tuple[ChainPace, ...], ...]
    after: tuple[tuple[int, ...], ...]


class LockstepPlans:
    """The forms of a program's stretches, each made once, however many groups go through the like of it.

    ``capacity`` is B/s per link.
    """

    def __init__(self, capacity: Sequence[float]) -> None:
        self._capacity = capacity
        self._known: dict[int, LockstepPlan] = {}  # by the identity of the members' parts
        self._made: dict[
            tuple[tuple[int, ...], tuple[ChainPace | None, ...]], LockstepPlan
        ] = {}  # by beats and what meetings take
        self._beats: dict[_Beat, int] = {}  # all that differ
        self._beat_of: dict[int, int] = {}  # by the identity of the part
        self._pace_of: dict[int, ChainPace] = {}  # by the identity of the meeting

    def of(self, parts: tuple[LockstepRegion, ...]) -> LockstepPlan:
        """The form of stretches in which the members do this."""
        known = self._known.get(id(parts))
        if known is None:
            meets = tuple([None if meeting is None else self._pace(meeting) for meeting in parts[0].meetings])
            name = tuple([self._beat(part) for part in parts]), meets
            known = self._made.get(name)
            if known is None:
                beats = [*self._beats]
                known = self._made[name] = _form([beats[number] for number in name[0]], meets)
            self._known[id(parts)] = known
        return known

    def _beat(self, part: LockstepRegion) -> int:
        known = self._beat_of.get(id(part))
        if known is None:
            paces = [
                () if meeting is not None else tuple([row.pace or ChainPace(row.end - row.start) for row in rows])
                for meeting, rows in zip(part.meetings, part.rows, strict=True)
            ]
            inside = [tuple([other for other in others if other >= 0]) for others in part.after]  # all else is over
            beat = _Beat(part.lanes, tuple(paces), tuple(inside))
            known = self._beat_of[id(part)] = self._beats.setdefault(beat, len(self._beats))
        return known

    def _pace(self, meeting: Meeting) -> ChainPace:
        known = self._pace_of.get(id(meeting))
        if known is None:
            seconds = sum(traffic.alone_seconds(self._capacity) for traffic in meeting.traffics)
            known = self._pace_of[id(meeting)] = ChainPace(seconds, None, meeting.pressure)
        return known


def _form(beats: Sequence[_Beat], meets: Sequence[ChainPace | None]) -> LockstepPlan:
    making = _InMaking(len(beats))
    for offset, (lane, meeting) in enumerate(zip(beats[0].lanes, meets, strict=True)):
        if meeting is not None:
            making.meet(offset, lane, meeting, [beat.after[offset] for beat in beats])
            continue
        for member, beat in enumerate(beats):
            making.go_on(member, lane, beat.paces[offset], beat.after[offset])
    return making.form()


class _InMaking:
    """The rows of a form one after the other."""

    def __init__(self, members: int) -> None:
        self._paces: list[ChainPace] = []
        self._before: list[tuple[int, ...]] = []
        self._whose: list[int] = []
        self._lanes: list[dict[str, int]] = [{} for _ in range(members)]
        self._first: list[list[int]] = [[] for _ in range(members)]
        self._last: list[list[int]] = [[] for _ in range(members)]
        self._met: list[int] = []
        self._awaited: list[list[list[int]]] = [[] for _ in range(members)]

    def go_on(self, member: int, lane: str, paces: Sequence[ChainPace], after: Sequence[int]) -> None:
        """What one member does by itself."""
        before = self._awaits(member, lane, after)
        first = len(self._paces)
        for place, pace in enumerate(paces):
            self._row(pace, (first + place - 1,) if place else tuple(before), member)
        self._op(member, lane, first)

    def meet(self, offset: int, lane: str, pace: ChainPace, after: Sequence[Sequence[int]]) -> None:
        """What all do together."""
        row = len(self._paces)
        before = [self._awaits(member, lane, own) for member, own in enumerate(after)]
        self._met.append(offset)
        for member, own in enumerate(before):
            self._awaited[member].append(own)
            self._op(member, lane, row)
        self._row(pace, tuple(dict.fromkeys(each for own in before for each in own)), 0)

    def form(self) -> LockstepPlan:
        """All of it."""
        width = max(1, *(max(map(len, own)) for own in self._awaited))
        awaited = [[each + (each or [0])[:1] * (width - len(each)) for each in own] for own in self._awaited]
        tables = (self._first, self._last, self._met, awaited)
        first, last, met, waits = (np.array(each, dtype=np.int64) for each in tables)
        chain = Chain(self._paces, self._before, self._whose, [own[-1] for own in self._last])
        presses = any(pace.pressure > 0 for pace in self._paces)
        return LockstepPlan(Courses(chain), first, last, met, waits, presses)

    def _awaits(self, member: int, lane: str, after: Sequence[int]) -> list[int]:
        rows = [self._last[member][op] for op in after]
        before = self._lanes[member].get(lane)
        return list(dict.fromkeys(rows if before is None else [before, *rows]))

    def _row(self, pace: ChainPace, before: tuple[int, ...], member: int) -> None:
        self._paces.append(pace)
        self._before.append(before)
        self._whose.append(member)

    def _op(self, member: int, lane: str, first: int) -> None:
        """An op from this row to the last one so far."""
        last = max(first, len(self._paces) - 1)
        self._first[member].append(first)
        self._last[member].append(last)
        self._lanes[member][lane] = last


class Lockstep:
    """The stretches of a program as ranks come to them and go through them, each as one chain at the pace of its ranks.

    Of each stretch, by its number: when it ``begin``s, what knows the ``times`` of its rows, and whether something was
    ``slowed``; ``order`` has the numbers as they began.  Columns: a large run has a million.
    """

    def __init__(self, program: Program, capacity: Sequence[float], pacing: Pacing) -> None:
        self.in_step, self._pacing = program.in_step, pacing
        self.plans = LockstepPlans(capacity)
        self._there: dict[int, dict[int, Member]] = {}  # by stretch and op
        count = len(program.in_step)
        self.order = array("q")
        self.begin = array("d", bytes(8 * count))
        self.times: list[TimedChain | None] = [None] * count
        self.slowed = bytearray(count)

    def arrive(self, number: int, op: int, lane: Lane, place: RankState | None) -> Sequence[int]:
        """Arrive at a stretch, whose lanes go on at their ends: all of its ops, if with this one they meet.

        What leads to where they first meet begins at once, if there is anything; if not, they meet when all have come.
        """
        ops, parts = self.in_step[number]
        there = self._there.setdefault(number, {})
        begun, now = parts[0].meetings[0] is None, self._pacing.now
        there[op] = comes(lane, place, now) if begun else Member(lane, place, now, 0)
        if len(there) < len(ops):
            return ()
        del self._there[number]
        self.order.append(number)
        members = [there[each] for each in ops]
        if not begun:
            members = [comes(lane, place, now) for lane, place, _, _ in members]
        self._pacing.start(number, members, self.plans.of(parts).courses, self._over)
        return () if begun else ops

    def arrived(self, number: int) -> int:
        """How many wait where they begin to go in step."""
        return len(self._there.get(number, ()))

    def _over(self, task: Task) -> None:
        """All members have come to the end of a stretch."""
        number = task.number
        self.begin[number], self.times[number], self.slowed[number] = task.begin, task.kept(), task.slowed


class Expanded:
    """When the ops of stretches were done one by one, from what was recorded of what is ``played`` and ``gone``."""

    def __init__(self, program: Program, gone: Lockstep, played: OpTimes) -> None:
        self._in_step, self._forms, self._gone = program.in_step, gone.plans, gone
        self._slowed: list[_Slowed] = []
        self.first = first_ops(program)
        first, last = self.first[:-1], self.first[1:] - 1
        ready, start, end = np.zeros((3, int(self.first[-1])))
        ready[first], start[first], end[last] = played.ready, played.start, played.end
        latest = np.arange(len(ready))
        latest[first] = first[played.last]
        self.columns = OpTimes(ready, start, end, latest)
        by_form: dict[int, list[int]] = {}
        for place, number in enumerate(gone.order):
            by_form.setdefault(id(self._form(number)), []).append(place)
        for places in by_form.values():
            self._fill(places)

    def _form(self, number: int) -> LockstepPlan:
        return self._forms.of(self._in_step[number].parts)

    def _fill(self, places: Sequence[int]) -> None:
        """The ops of stretches of one form, which began as the ones at these places."""
        columns, gone = self.columns, self._gone
        numbers = [gone.order[place] for place in places]
        form = self._form(numbers[0])
        times = [gone.times[number] for number in numbers]
        known = {id(each): each.times() for each in times if each is not None}  # stretches share them
        place = {number: place for place, number in enumerate(known)}
        which = [place[id(each)] for each in times]
        begin = np.array([gone.begin[number] for number in numbers])[:, None]
        start, end = (np.stack(each)[which] + begin for each in zip(*known.values(), strict=True))  # [stretch, row]
        firsts = self.first[np.array([self._in_step[number].ops for number in numbers])]
        count = form.first.shape[1]
        op = firsts[:, :, None] + np.arange(count)  # [stretch, member, op]
        arrived, latest = columns.ready[firsts], columns.last[firsts[:, 0]]
        columns.start[op] = columns.ready[op] = start[:, form.first]
        columns.end[op] = end[:, form.last]
        ready = end[:, form.awaited].max(axis=3)  # [stretch, member, op that meets]
        meets = form.met[0] == 0  # at the begin: nobody waits for others to begin with what leads to a meeting
        if meets:
            ready[:, :, 0] = arrived
        met = op[:, :, form.met]
        columns.ready[met] = ready
        there = ready == columns.start[met]
        last = np.where(there, met, len(columns.last)).min(axis=1)
        if meets:
            last[:, 0] = latest
        columns.last[met] = last[:, None, :]
        asked = np.array([form.presses or gone.slowed[number] > 0 for number in numbers])
        if asked.any():
            parts = self._in_step[numbers[0]].parts
            begun = np.array(places, dtype=np.int64)[asked]
            self._slowed.append(_Slowed(form, parts, begun, firsts[asked], start[asked], end[asked]))

    def slowed(self) -> RowColumns:
        """Ops of stretches that were slowed, stretch by stretch, member by member."""
        found = [each.rows() for each in self._slowed]
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
    """Stretches of one form in which something was slowed: as which they began, their members' first ops, and when
    their rows started and ended [stretch, row]; ``parts`` are those of one of them."""

    form: LockstepPlan
    parts: tuple[LockstepRegion, ...]
    begun: Ints
    firsts: Ints
    start: Floats
    end: Floats

    def rows(self) -> tuple[Ints, RowColumns]:
        """What did not go on as planned: the stretch of every op, and the ops."""
        form, length = self.form, self.form.first.shape[1]
        alone = np.setdiff1d(np.arange(length), form.met)  # ops that meet nobody
        member, op = (each.ravel() for each in np.indices(form.first.shape)[:, :, alone])
        first = form.first[member, op]
        counts = form.last[member, op] + 1 - first
        row = np.repeat(first, counts) + within(counts)
        begin = self.start[:, np.repeat(first, counts)]
        start, end = self.start[:, row] - begin, self.end[:, row] - begin
        sets = [self.parts[who].rows[place] for who, place in zip(member.tolist(), op.tolist(), strict=True)]
        planned = np.array([(own.start, own.end) for rows in sets for own in rows]).reshape(-1, 2)
        differs = (start != planned[:, 0]) | (end != planned[:, 1])
        starts = np.cumsum(counts) - counts
        changed = np.logical_or.reduceat(differs, starts, axis=1) if len(starts) else differs
        stretch, which = np.nonzero(changed)
        there = np.repeat(changed, counts, axis=1)
        ops = self.firsts[stretch, member[which]] + op[which]
        all_rows = np.concatenate([[0], np.cumsum(counts[which])])
        return self.begun[stretch], RowColumns(ops, all_rows, start[there], end[there])
