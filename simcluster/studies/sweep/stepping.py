"""A step as one longest path, in one pass over its ops: 0.2 us an op, where any program takes 1 us.

Exact unless transfers hold each other back on a link, which ``crossings`` tells from when they went.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.planning.ops import MAIN
from simcluster.programs.program import Program
from simcluster.schedules import Schedule
from simcluster.studies.sweep.crossings import Bounds
from simcluster.studies.sweep.order import ActionRows, ActionWork, Costed, Last, Sent, ranges


class Stepped(NamedTuple):
    """A step: its seconds, when the first and the last of the transfers of each kind began, what every work took, and
    when every op of the walk was over."""

    total: float
    begins: dict[Hashable, Bounds]
    own: tuple[float, ...]
    ends: Floats


ToDo = tuple[int, float, int, int, int, bool]
"""An action: the number of its work, since when its input is there if that is known, else the op that it waits for (0:
none); of the send behind it the number and the op (0: there is none), and whether that is followed through time."""


class _Main(NamedTuple):
    """A walk with durations, without what comes behind the last actions: when stages are free then, sends began and
    ops were over."""

    own: tuple[float, ...]
    free: list[float]
    begins: dict[Hashable, Bounds]
    ends: Floats


class _Straight(NamedTuple):
    """The actions of a walk in its order, counted from 1: their ``ops`` (0 for none), and in ``columns`` what each is,
    the one before it, and the one whose send it waits for.  By work: the send that brings its input, and the one behind
    it, or -1.
    """

    ops: Ints
    columns: tuple[list[int], list[int], list[int]]
    brings: list[int]
    sends: list[int]


class Walk:
    """The ops of a schedule one after the other, each behind those that it waits for; made once for all costs.

    Actions are on the main lane of their stage, sends on it or on lanes of their own (``overlap``).  Sends are
    asynchronous: the receiver is always ready.  ``casts``: the first F of each chunk casts its weights.
    Of every op: what it is (its number in ``works``), the one before it on its lane, and the other one that it waits
    for, counted from 1; 0 is the beginning of time.  InputError for actions that wait for each other.
    """

    def __init__(self, schedule: Schedule, *, overlap: bool, casts: bool = False) -> None:
        self.works: list[ActionWork | Sent] = []
        self.place: dict[ActionWork | Sent, int] = {}  # their numbers
        self.overlap = overlap
        rows = ActionRows(schedule, self._number, casts=casts)
        self.lane_of, self.lanes = _lanes(self.works)
        order, self._starts, self._sends = rows.order(), rows.starts, rows.send >= 0
        self._op = np.empty_like(order)  # of actions, row by row; that of a send is the next number
        self._op[order] = np.arange(1, len(order) + 1) + np.cumsum(self._sends[order]) - self._sends[order]
        self._over = self._op if overlap else self._op + self._sends
        sent = self._op[self._sends] + 1
        self.work, self.before, self.awaited = np.zeros((3, 1 + len(order) + len(sent)), dtype=np.int64)
        self.work[self._op], self.work[sent] = rows.work, rows.send[self._sends]
        self.sent = _grouped(sent, self.work[sent])
        """Ops of sends by the number of what they carry, one behind the other; and the first and last of them."""
        self.bounds = {number: (int(ops[0]), int(ops[-1])) for number, ops in self.sent.items()}
        self.last = self._over[self._starts[1:] - 1].tolist()
        self.closes = {op: stage for stage, op in enumerate(self.last)}
        self.before[self._op] = _previous(self._over, self._starts[:-1])
        self.before[sent] = sent - 1
        if overlap:
            for lane in _grouped(sent, np.array(self.lane_of)[self.work[sent]]).values():
                self.before[lane] = _previous(lane, [0])
        made = np.zeros(rows.outputs, dtype=np.int64)
        made[rows.makes[self._sends]] = sent
        self.awaited[self._op], self.awaited[sent] = made[rows.needs], sent - 1
        self._main = _Main((), [], {}, np.zeros(0))  # the last one: variants that differ in their ends come together

    def _number(self, work: ActionWork | Sent) -> int:
        if work not in self.place:
            self.place[work] = len(self.works)
            self.works.append(work)
        return self.place[work]

    def step(self, costs: Sequence[Costed], seconds: Mapping[int, float], last: Sequence[Sequence[Last]]) -> Stepped:
        """The step: ``costs`` are those of its works, ``seconds`` those of meetings by their identity."""
        own = tuple([each.seconds if each.meeting is None else seconds[id(each.meeting)] for each in costs])
        if self._main.own != own:
            self._main = self._go_through(own)
        free, begins, ends = list(self._main.free), dict(self._main.begins), self._main.ends
        _finish(free, last, seconds, begins)
        return Stepped(max(*free, float(ends.max())), begins, own, ends)

    def _go_through(self, own: tuple[float, ...]) -> _Main:
        """The times of all ops, if works take so long."""
        ends = self._action_by_action(own) if self._queues_nowhere(own) else self._op_by_op(own)
        begins: dict[Hashable, Bounds] = {
            self.works[number]: (float(ends[first]) - own[number], float(ends[last]) - own[number])
            for number, (first, last) in self.bounds.items()
        }
        return _Main(own, ends[self.last].tolist(), begins, ends)

    def _op_by_op(self, own: tuple[float, ...]) -> Floats:
        """When they are over, whatever they take."""
        end = [0.0]
        put = end.append
        columns = [column[1:].tolist() for column in (self.work, self.before, self.awaited)]
        for number, before, awaited in zip(*columns, strict=True):
            begin, other = end[before], end[awaited]
            put((other if other > begin else begin) + own[number])
        return np.array(end)

    def _queues_nowhere(self, own: tuple[float, ...]) -> bool:
        """Does every send begin as its action ends?  It does where none lasts longer than the next action behind it
        that sends on its lane."""
        longest = [0.0] * self.lanes
        for send in self.sent:
            lane = self.lane_of[send]
            longest[lane] = max(longest[lane], own[send])
        sending = zip(own, self._straight.sends, strict=True)
        return self.overlap and all(seconds >= longest[self.lane_of[send]] for seconds, send in sending if send >= 0)

    def _action_by_action(self, own: tuple[float, ...]) -> Floats:
        """The same if sends queue nowhere, so that half as many ops wait for anything: 0.16 us an action with its send,
        where two ops take 0.24."""
        straight = self._straight
        late = [own[send] if send >= 0 else 0.0 for send in straight.brings]
        end = [0.0]
        put = end.append
        for number, before, awaited in zip(*straight.columns, strict=True):
            begin, other = end[before], end[awaited] + late[number]
            put((other if other > begin else begin) + own[number])
        ends = np.empty(len(self.work))
        ends[straight.ops] = end
        sent = self._op[self._sends] + 1
        ends[sent] = ends[sent - 1] + np.array(own)[self.work[sent]]
        return ends

    @cached_property
    def _straight(self) -> _Straight:
        """The actions, if sends queue nowhere."""
        ops = np.sort(self._op)
        number, awaited = np.zeros(len(self.work), dtype=np.int64), self.awaited[ops]
        number[ops] = np.arange(1, len(ops) + 1)
        whose = np.where(awaited, number[awaited - 1], 0)
        brings, sends = np.full((2, len(self.works)), -1)
        brings[self.work[ops]] = np.where(awaited, self.work[awaited], -1)
        sent = self._op[self._sends] + 1
        sends[self.work[sent - 1]] = self.work[sent]
        columns = self.work[ops].tolist(), number[self.before[ops]].tolist(), whose.tolist()
        return _Straight(np.append(0, ops), columns, brings.tolist(), sends.tolist())

    @cached_property
    def behind(self) -> Ints:
        """Of every op the next one on its lane, 0 for none."""
        return _inverse(self.before)

    @cached_property
    def taker(self) -> Ints:
        """Of every op what waits for it elsewhere, of which there is one, or 0."""
        return _inverse(self.awaited)

    def program(self, costs: Sequence[Costed], last: Sequence[Sequence[Last]], ranks: Sequence[int]) -> Program:
        """The step for the engine: the same ops in the same order, each work as it ``costs``, and what comes behind
        every stage's last action; ``ranks`` stand for the stages."""
        works, awaited = self.work[1:].tolist(), self.awaited[1:].tolist()
        numbers = count()
        program = Program(
            seconds=[costs[work].seconds for work in works],
            meeting=[-1 if costs[work].meeting is None else next(numbers) for work in works],
            position=[-1] * len(works),
            after=[(op - 1,) if op else () for op in awaited],
            rows=works,
            step=[0] * len(works),
            chunk=[-1] * len(works),
            microbatch=[-1] * len(works),
            meetings=[meeting for work in works if (meeting := costs[work].meeting) is not None],
            row_sets=[each.rows for each in costs],
        )
        lanes: dict[tuple[int, str], int] = {}
        lane_of = []
        for work in self.works:
            name = work.stage, f"send {work.kind}" if self.overlap and isinstance(work, Sent) else MAIN
            if name not in lanes:
                lanes[name] = program.add_lane(ranks[work.stage], *name)
            lane_of.append(lanes[name])
        for op, number in enumerate(works):
            program.lane.append(lane_of[number])
            program.lanes[lane_of[number]].append(op)
        known: dict[object, int] = {}
        for stage, ops in enumerate(last):
            for each in ops:
                _append(program, lanes[stage, MAIN], each, known)
        return program

    def begins(self, name: Hashable, stepped: Stepped) -> Floats:
        """When the transfers of a kind began."""
        if isinstance(name, Sent):
            number = self.place[name]
            return stepped.ends[self.sent[number]] - stepped.own[number]
        return np.array(stepped.begins[name][:1])

    def left(self, ends: Floats, since: float, follow: Sequence[float]) -> list[tuple[float, Iterator[ToDo]]]:
        """Of every stage: since when it is free, and what it has to do from the first action on that is not over at an
        instant, or whose send is not; ``follow`` says by work from which end on a send is followed."""
        starts, stops = self._starts[:-1], self._starts[1:]
        late = np.flatnonzero(ends[self._op + self._sends] > since)
        first = np.minimum(np.append(late, stops[-1])[late.searchsorted(starts)], stops)
        free = np.where(first > starts, ends[self._over[first - 1]], 0.0)
        these = ranges(first, stops - first)
        rest, behind = self._op[these], self._sends[these]
        needed, sent = self.awaited[rest], self.work[rest + behind]
        known = ends[needed] <= since
        columns = (
            self.work[rest].tolist(),
            np.where(known, ends[needed], 0.0).tolist(),
            np.where(known, 0, needed).tolist(),
            sent.tolist(),
            np.where(behind, rest + 1, 0).tolist(),
            (behind & (ends[rest + behind] > np.array(follow)[sent])).tolist(),
        )
        bounds = pairwise([0, *np.cumsum(stops - first).tolist()])
        return [
            (at, zip(*[column[low:high] for column in columns], strict=True))
            for at, (low, high) in zip(free.tolist(), bounds, strict=True)
        ]


def _lanes(works: Sequence[ActionWork | Sent]) -> tuple[list[int], int]:
    """The lane of every work that is a send, and how many there are: one a stage for each kind."""
    lanes: dict[tuple[str, int], int] = {}
    found = [lanes.setdefault((work.kind, work.stage), len(lanes)) if isinstance(work, Sent) else -1 for work in works]
    return found, len(lanes)


def _previous(ops: Ints, starts: Ints | Sequence[int]) -> Ints:
    """The op before each, none (0) where something starts."""
    found = np.roll(ops, 1)
    found[starts] = 0
    return found


def _inverse(others: Ints) -> Ints:
    found = np.zeros_like(others)
    found[others] = np.arange(len(others))
    return found


def _grouped(ops: Ints, names: Ints) -> dict[int, Ints]:
    """Ops by name, in their order."""
    if not len(ops):
        return {}
    order = np.argsort(names, kind="stable")
    found, starts = np.unique(names[order], return_index=True)
    return dict(zip(found.tolist(), np.split(ops[order], starts[1:]), strict=True))


def _finish(
    free: list[float], last: Sequence[Sequence[Last]], seconds: Mapping[int, float], begins: dict[Hashable, Bounds]
) -> None:
    """Every stage's last ops, from when it is ``free`` on; those of one name begin together."""
    at = [0] * len(last)
    arrived: dict[Hashable, list[int]] = {}
    going = list(range(len(last)))
    while going:
        stage = going.pop()
        while at[stage] < len(last[stage]):
            each = last[stage][at[stage]]
            meeting = each.costed.meeting
            at[stage] += 1
            if meeting is None:
                free[stage] += each.costed.seconds
                continue
            if meeting.parties == 1:
                begins[each.name] = free[stage], free[stage]
                free[stage] += seconds[id(meeting)]
                continue
            here = arrived.setdefault(each.name, [])
            here.append(stage)
            if len(here) == meeting.parties:
                begin = max(free[other] for other in here)
                begins[each.name] = begin, begin
                for other in here:
                    free[other] = begin + seconds[id(meeting)]
                going += here
            break


def _append(program: Program, lane: int, each: Last, known: dict[object, int]) -> None:
    """An op at the end of a lane; those of one name meet."""
    number = -1
    if each.costed.meeting is not None:
        number = known.setdefault(each.name, len(program.meetings))
        if number == len(program.meetings):
            program.meetings.append(each.costed.meeting)
    program.row_sets.append(each.costed.rows)
    program.add_op(lane, len(program.row_sets) - 1, seconds=each.costed.seconds, meeting=number)
