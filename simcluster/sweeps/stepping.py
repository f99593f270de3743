"""A step as one longest path, in one pass over its ops: 0.2 us an op, where any program takes 1 us.

Exact unless transfers hold each other back on a link: ``Crossings`` tells from when they went.  It asks less than
``simulating.encounters`` does: transfers of different kinds that are under way together count, whether they leave room
or not, on every link that all of them together may fill.  Imports the skeleton and traffic.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simcluster.errors import InputError
from simcluster.lowering.program import Meeting
from simcluster.schedules import Action, Schedule
from simcluster.sweeps.skeleton import Costed, Last, Name, Part, Sent, Work, part_of

Floats = npt.NDArray[np.float64]

_ROOM = 1e-9  # as of simulating.encounters: more than any rounding on the way


class Stepped(NamedTuple):
    """A step: its seconds, and when the transfers of each kind began."""

    total: float
    begins: dict[Hashable, Floats]


class Walk:
    """The ops of a schedule one after the other, each behind those that it waits for; made once for all costs.

    As in a Skeleton: actions on the main lane of their stage, sends on it or on lanes of their own (``overlap``).
    Of every op: what it is (its number in ``works``), the one before it on its lane, and the other one that it waits
    for, counted from 1; 0 is the beginning of time.  InputError for actions that wait for each other.
    """

    def __init__(self, schedule: Schedule, *, overlap: bool) -> None:
        self.works: list[Work | Sent] = []
        self._work: list[int] = []
        self._before: list[int] = []
        self._awaited: list[int] = []
        self._last = [0] * schedule.num_stages
        self._overlap = overlap
        self._sent: dict[Sent, int] = {}  # the last send of each kind so far
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
        numbers = np.array(self._work)
        self._sends = {
            number: np.flatnonzero(numbers == number) + 1
            for number, work in enumerate(self.works)
            if isinstance(work, Sent)
        }

    def _parts_of(self, schedule: Schedule, stage: int) -> dict[tuple[str, int], tuple[Part, int, int]]:
        """By kind and chunk: the part, and the numbers of its work and of what it sends."""
        found: dict[tuple[str, int], tuple[Part, int, int]] = {}
        for action in schedule.rows[stage]:
            if (action.kind, action.chunk) not in found:
                part = part_of(schedule, stage, action)
                found[action.kind, action.chunk] = part, self._number(part.work), self._number(part.sent)
        return found

    def _number(self, work: Work | Sent | None) -> int:
        if work is None:
            return -1
        if work not in self.works:
            self.works.append(work)
        return self.works.index(work)

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
        parts, overlap, main = self._parts[stage], self._overlap, self._last[stage]
        work, before, awaited = self._work, self._before, self._awaited
        for place in range(first, len(row)):
            kind, microbatch, chunk = row[place].kind, row[place].microbatch, row[place].chunk
            part, number, sends = parts[kind, chunk]
            needed = 0
            if part.work.arrives:
                name = part.made, microbatch, part.needs
                needed = arrived.get(name, 0)
                if not needed:
                    self._last[stage] = main
                    return place, name
            work.append(number)
            before.append(main)
            awaited.append(needed)
            main = len(work)
            if part.sent is not None:
                work.append(sends)
                before.append(self._sent.get(part.sent, 0) if overlap else main)
                awaited.append(main)
                name = part.made, microbatch, part.place
                arrived[name] = self._sent[part.sent] = len(work)
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
        costed = [costs[work] for work in self.works]
        own = [each.seconds if each.meeting is None else seconds[id(each.meeting)] for each in costed]
        end = [0.0]
        put = end.append
        for number, before, awaited in zip(self._work, self._before, self._awaited, strict=True):
            begin, other = end[before], end[awaited]
            put((other if other > begin else begin) + own[number])
        whole = np.array(end)
        begins: dict[Hashable, Floats] = {
            self.works[number]: whole[ops] - own[number] for number, ops in self._sends.items()
        }
        free = [end[op] for op in self._last]
        _finish(free, last, seconds, begins)
        return Stepped(max(max(free), float(whole.max())), begins)


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
        self._pairs = list(pairs)
        self._instant = any(begin == end for uses in shared for _, begin, end in uses)

    def any(self, begins: Mapping[Hashable, Floats]) -> bool:
        """Are transfers of two kinds under way together on such a link?  Where one takes no time nobody looks."""
        return self._instant or any(_cross(begins[a] + b, begins[a] + c, begins[x] + y, begins[x] + z)
                   for (a, b, c), (x, y, z) in self._pairs)  # fmt: skip


def _cross(begin: Floats, end: Floats, other_begin: Floats, other_end: Floats) -> bool:
    """Does an interval of the one overlap with one of the other?  Each kind's own follow each other in time."""
    following = np.searchsorted(other_end, begin, side="right")
    there = following < len(other_begin)
    return bool((other_begin[following[there]] < end[there]).any())
