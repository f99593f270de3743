"""A step as one longest path, in one pass over its ops: 0.2 us an op, where any program takes 1 us.

Exact unless transfers hold each other back on a link: ``Crossings`` tells from when they went.  It asks less than
``simulating.encounters`` does: transfers of different kinds that are under way together count, whether they leave room
or not, on every link that all of them together may fill.  Imports the skeleton and traffic.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simcluster.errors import InputError
from simcluster.lowering.program import Meeting
from simcluster.schedules import Action, Schedule
from simcluster.sweeps.skeleton import Costed, Last, Name, Sent, Work, part_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_ROOM = 1e-9  # as of simulating.encounters: more than any rounding on the way

Use = tuple[Hashable, float, float]
"""Who is on a link, and from when to when after it has begun."""
Intervals = tuple[Floats, Floats]
"""Begins and ends, one after the other."""


class Stepped(NamedTuple):
    """A step: its seconds, when the transfers of each kind began, and when every op of the walk was over."""

    total: float
    begins: dict[Hashable, Floats]
    ends: Floats


ToDo = tuple[int, float, int, int, int, bool]
"""An action: the number of its work, since when its input is there if that is known, else the op that it waits for (0:
none); of the send behind it the number and the op (0: there is none), and whether that is followed through time."""


_Part = tuple[int, str, int | None, int, int]
"""Of actions: the number of their work, what they make, the slice whose output they need, if that is on another stage,
the number of the send behind them (-1: none), and their own slice."""


class _Main(NamedTuple):
    """A walk with durations, without what comes behind the last actions: when stages are free then, sends began and
    ops were over."""

    own: tuple[float, ...]
    free: list[float]
    begins: dict[Hashable, Floats]
    ends: Floats


class Walk:
    """The ops of a schedule one after the other, each behind those that it waits for; made once for all costs.

    As in a Skeleton: actions on the main lane of their stage, sends on it or on lanes of their own (``overlap``).
    Of every op: what it is (its number in ``works``), the one before it on its lane, and the other one that it waits
    for, counted from 1; 0 is the beginning of time.  InputError for actions that wait for each other.
    """

    def __init__(self, schedule: Schedule, *, overlap: bool) -> None:
        self.works: list[Work | Sent] = []
        self.place: dict[Work | Sent, int] = {}  # their numbers
        self._work: list[int] = []
        self._before: list[int] = []
        self._awaited: list[int] = []
        self._last = [0] * schedule.num_stages
        self.overlap = overlap
        self._sent: dict[tuple[str, int], int] = {}  # the last send of each kind of every stage so far
        self._parts = [self._parts_of(schedule, stage) for stage in range(schedule.num_stages)]
        at = [0] * schedule.num_stages
        arrived: dict[Name, int] = {}
        waiting: dict[Name, int] = {}
        todo = list(range(schedule.num_stages))
        while todo:
            stage = todo.pop()
            at[stage], missing = self._go(stage, schedule.rows[stage], at[stage], arrived, waiting, todo)
            if missing is not None:
                waiting[missing] = stage
        left = sum(map(len, schedule.rows)) - sum(at)
        if left:
            raise InputError(f"{left} actions of {schedule.name} wait for each other")
        self.work = np.array([-1, *self._work, -1])
        self._needed = np.array([0, *self._awaited])
        self.sends = {
            number: np.flatnonzero(self.work == number)
            for number, work in enumerate(self.works)
            if isinstance(work, Sent)
        }
        self._main = _Main((), [], {}, np.zeros(0))  # the last one: variants that differ in their ends come together

    def _parts_of(self, schedule: Schedule, stage: int) -> dict[tuple[str, int], _Part]:
        """By kind and chunk."""
        found: dict[tuple[str, int], _Part] = {}
        for action in schedule.rows[stage]:
            if (action.kind, action.chunk) not in found:
                part = part_of(schedule, stage, action)
                needs = part.needs if part.work.arrives else None
                number, sends = self._number(part.work), self._number(part.sent)
                found[action.kind, action.chunk] = number, part.made, needs, sends, part.place
        return found

    def _number(self, work: Work | Sent | None) -> int:
        if work is None:
            return -1
        if work not in self.place:
            self.place[work] = len(self.works)
            self.works.append(work)
        return self.place[work]

    def _go(
        self,
        stage: int,
        row: Sequence[Action],
        first: int,
        arrived: dict[Name, int],
        waiting: dict[Name, int],
        todo: list[int],
    ) -> tuple[int, Name | None]:
        """Along a stage's row as far as it goes: to which place, and for what it waits there."""
        parts, overlap, main = self._parts[stage], self.overlap, self._last[stage]
        work, before, awaited = self._work, self._before, self._awaited
        for place in range(first, len(row)):
            kind, microbatch, chunk = row[place]
            number, made, needs, sends, own = parts[kind, chunk]
            needed = 0
            if needs is not None:
                name = made, microbatch, needs
                needed = arrived.get(name, 0)
                if not needed:
                    self._last[stage] = main
                    return place, name
            work.append(number)
            before.append(main)
            awaited.append(needed)
            main = len(work)
            if sends >= 0:
                work.append(sends)
                lane = made, stage
                before.append(self._sent.get(lane, 0) if overlap else main)
                awaited.append(main)
                name = made, microbatch, own
                arrived[name] = self._sent[lane] = len(work)
                if not overlap:
                    main = len(work)
                if name in waiting:
                    todo.append(waiting.pop(name))
        self._last[stage] = main
        return len(row), None

    def step(
        self, costs: Mapping[Work | Sent, Costed], seconds: Mapping[int, float], last: Sequence[Sequence[Last]]
    ) -> Stepped:
        """The step; ``seconds`` are those of meetings by their identity."""
        own = self.durations(costs, seconds)
        if self._main.own != own:
            self._main = self._go_through(own)
        free, begins, ends = list(self._main.free), dict(self._main.begins), self._main.ends
        _finish(free, last, seconds, begins)
        return Stepped(max(max(free), float(ends.max())), begins, ends)

    def durations(self, costs: Mapping[Work | Sent, Costed], seconds: Mapping[int, float]) -> tuple[float, ...]:
        """Of every work, alone on its links."""
        costed = [costs[work] for work in self.works]
        return tuple([each.seconds if each.meeting is None else seconds[id(each.meeting)] for each in costed])

    def _go_through(self, own: tuple[float, ...]) -> _Main:
        end = [0.0]
        put = end.append
        for number, before, awaited in zip(self._work, self._before, self._awaited, strict=True):
            begin, other = end[before], end[awaited]
            put((other if other > begin else begin) + own[number])
        ends = np.array(end)
        begins: dict[Hashable, Floats] = {
            self.works[number]: ends[ops] - own[number] for number, ops in self.sends.items()
        }
        return _Main(own, [end[op] for op in self._last], begins, ends)

    def left(self, ends: Floats, since: float, follow: Sequence[float]) -> list[tuple[float, list[ToDo]]]:
        """Of every stage: since when it is free, and what it has to do from the first action on that is not over at an
        instant, or whose send is not; ``follow`` says by work from which end on a send is followed."""
        ops, sends, starts = self._actions
        late = ends[ops + sends] > since
        free, first = [], []
        for begin, end in pairwise(starts):
            first.append(begin + int(late[begin:end].argmax()) if late[begin:end].any() else end)
            before = first[-1] - 1
            whole = 0 if self.overlap or before < begin else sends[before]
            free.append(float(ends[ops[before] + whole]) if before >= begin else 0.0)
        these = np.concatenate([np.arange(begin, end) for begin, end in zip(first, starts[1:], strict=True)])
        rest, behind = ops[these], sends[these]
        needed, sent = self._needed[rest], self.work[rest + behind]
        known = ends[needed] <= since
        todo = zip(
            self.work[rest].tolist(),
            np.where(known, ends[needed], 0.0).tolist(),
            np.where(known, 0, needed).tolist(),
            sent.tolist(),
            np.where(behind, rest + 1, 0).tolist(),
            (behind & (ends[rest + behind] > np.array(follow)[sent])).tolist(),
            strict=True,
        )
        counts = (end - begin for begin, end in zip(first, starts[1:], strict=True))
        return [(at, list(islice(todo, count))) for at, count in zip(free, counts, strict=True)]

    @cached_property
    def _actions(self) -> tuple[Ints, npt.NDArray[np.bool_], list[int]]:
        """The ops of the actions of all stages, one behind the other; does a send follow?  And where stages begin."""
        stage = np.array([-1 if isinstance(work, Sent) else work.stage for work in self.works] + [-1])[self.work]
        is_send = np.array([isinstance(work, Sent) for work in self.works] + [False])[self.work]
        order = np.argsort(stage, kind="stable")
        starts = np.searchsorted(stage[order], np.arange(len(self._last) + 1)).tolist()
        ops = order[starts[0] :]
        return ops, is_send[ops + 1], [start - starts[0] for start in starts]


def _finish(
    free: list[float], last: Sequence[Sequence[Last]], seconds: Mapping[int, float], begins: dict[Hashable, Floats]
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
            here = arrived.setdefault(each.name, [])
            here.append(stage)
            if len(here) == meeting.parties:
                begin = max(free[other] for other in here)
                begins[each.name] = np.array([begin])
                for other in here:
                    free[other] = begin + seconds[id(meeting)]
                going += here
            break


class Crossings:
    """The links that transfers of several kinds may fill together, and who is on each."""

    def __init__(self, meetings: Mapping[Hashable, Meeting], capacity: Sequence[float]) -> None:
        self.meetings, self.capacity = meetings, capacity
        on: dict[int, list[tuple[Hashable, float, float, float]]] = {}
        self.seconds: dict[int, float] = {}
        for name, meeting in meetings.items():
            at = 0.0
            for traffic in meeting.traffics:
                alone = traffic.alone_seconds(capacity) if traffic.round_bytes else traffic.latency_seconds
                if traffic.usage:
                    rate = traffic.alone_rate(capacity)
                    for link, flows in traffic.usage:
                        use = name, at + traffic.latency_seconds, at + alone, flows * rate / capacity[link]
                        on.setdefault(link, []).append(use)
                at += alone
            self.seconds[id(meeting)] = at
        shared = {
            tuple(use[:3] for use in uses): None
            for uses in on.values()
            if len({use[0] for use in uses}) > 1 and sum(use[3] for use in uses) > 1.0 - _ROOM
        }
        pairs = {
            (one, other): None
            for uses in shared
            for number, one in enumerate(uses)
            for other in uses[:number]
            if one[0] != other[0]
        }
        self.pairs = list(pairs)
        self.rivals = list(dict.fromkeys((one[0], other[0]) for one, other in pairs))
        """Who may meet whom on such a link.  Where one takes no time (``instant``) nobody looks."""
        self.instant = any(begin == end for uses in shared for _, begin, end in uses)

    def met(self, begins: Mapping[Hashable, Floats]) -> Iterator[tuple[float, Hashable, Hashable]]:
        """Transfers of which kinds are under way together on such a link, and since when they first are."""
        known: dict[Use, Intervals] = {}
        for pair in self.pairs:
            for use in pair:
                if use not in known:
                    known[use] = begins[use[0]] + use[1], begins[use[0]] + use[2]
            one, other = pair
            since = meet(known[one], known[other])
            if since < math.inf:
                yield since, one[0], other[0]


def meet(one: Intervals, other: Intervals) -> float:
    """Since when an interval of the one first overlaps with one of the other; infinite for never."""
    (begin, end), (other_begin, other_end) = one, other
    if not len(end) or not len(other_end) or end[-1] <= other_begin[0] or other_end[-1] <= begin[0]:
        return math.inf
    following = np.searchsorted(other_end, begin, side="right")
    there = following < len(other_begin)
    theirs, mine = other_begin[following[there]], begin[there]
    both = theirs < end[there]
    return float(np.maximum(theirs, mine)[both].min()) if both.any() else math.inf
