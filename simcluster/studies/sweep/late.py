"""A step in which transfers hold each other back on links and little is late for it, an accelerator of ``contended``.

Its times are those of the walk (``stepping``), on which nothing meets, but for what is late.  So only the transfers
that meet are followed through time, and of all else only what waits for something late is looked at, from when it would
have begun.  Whether what is late then meets others is looked at afterwards; if so, these are followed, too.  (So are
623 of the 635 layouts of the table of benchmarks in which transfers meet; 147,000 ops with 364 that are late take 0.008
s, as ``contended`` 0.05.)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from simcluster.studies.sweep.crossings import Crossings, Intervals, MetPair, Use, overlap, shifted
from simcluster.studies.sweep.links import Contenders, Links
from simcluster.studies.sweep.order import ActionWork, Last, Sent
from simcluster.studies.sweep.stepping import Stepped, Walk

Named = dict[Hashable, set[int]]
"""Transfers by name, and of that by number, in the order in which they begin."""

_LOOK, _SEND, _END = range(3)
"""What comes in an instant behind all on links, in this order: an op that waits for something late is looked at, a send
that is followed begins, and a stage is done with its actions."""
_ATTEMPTS = 3
_FEW = 256
_PART = 16
"""Of so many ops, or of this part of them, each looked at takes less than to play all (``contended``)."""


def little_late(
    walk: Walk, stepped: Stepped, last: Sequence[Sequence[Last]],
    crossings: Crossings, contenders: Contenders, met: Iterable[MetPair],
) -> float | None:  # fmt: skip
    """Seconds of a step, given as it would be if nothing met, and what then has ``met``; None if more than little is
    late."""
    followed: Named = {}
    for one, other, found in met:
        followed.setdefault(one, set()).update(found.ones.tolist())
        followed.setdefault(other, set()).update(found.others.tolist())
    most = max(_FEW, len(walk.work) // _PART)
    for _ in range(_ATTEMPTS):
        if sum(map(len, followed.values())) > most:
            break
        step = Late(walk, stepped, crossings, contenders, followed)
        total = step.play(last, most)
        if total is None:
            break
        more = step.others_met()
        if not more:
            return total
        for name, number in more:
            followed.setdefault(name, set()).add(number)
    return None


class LateTransfer(NamedTuple):
    """One that is late: its number among those of its name, when it begins and ends, and when it would have ended."""

    number: int
    begin: float
    end: float
    on_time: float


Times = dict[Hashable, list[LateTransfer]]
"""By name, one behind the other."""


class Late:
    """What is late in a step in which these transfers are ``followed``."""

    def __init__(
        self, walk: Walk, stepped: Stepped, crossings: Crossings, contenders: Contenders, followed: Named
    ) -> None:
        self._walk, self._stepped, self._crossings, self._contenders = walk, stepped, crossings, contenders
        self._followed = followed
        self._links = Links(contenders, contenders.rivals)
        self._work, self._before, self._awaited = walk.work.item, walk.before.item, walk.awaited.item
        self._behind, self._taker, self._on_time = walk.behind.item, walk.taker.item, stepped.ends.item
        self._numbers = [len(contenders.traffics) + kind * len(walk.work) for kind in range(3)]
        """Of events of a kind, behind those of all that is on links."""
        self._end: dict[int, float] = {}  # of ops that are late, as far as is known
        self._begin: dict[int, float] = {}  # of sends that are followed, likewise
        self._begun: set[int] = set()
        self._through: set[int] = set()  # stages that are done with their actions
        self._sending: dict[int, int] = {}  # sends under way by contender
        self._meeting: dict[int, Hashable] = {}  # and the names of meetings of stages
        self._there: dict[Hashable, list[tuple[float, int]]] = {}  # who has come to these, and when
        self._met: dict[Hashable, LateTransfer] = {}  # those of them that are late

    def play(self, last: Sequence[Sequence[Last]], most: int) -> float | None:
        """Seconds of the step, None if more than so many ops are late; ``last`` are every stage's ops behind its
        actions."""
        self._start(last)
        links, coming, on_links, ops = self._links, self._links.coming, self._numbers[0], len(self._walk.work)
        kinds = self._look, self._depart, self._done
        while coming:
            now, number = coming[0]
            if number >= on_links:
                heappop(coming)
                kind, what = divmod(number - on_links, ops)
                kinds[kind](what, now)
            elif (over := links.next()) >= 0:
                self._leave(over, now)
            if links.touched and not (coming and coming[0][0] == now):
                for number, due in links.share(now):
                    self._moved(number, due, now)
            if len(self._end) > most:
                return None
        ends = self._stepped.ends.copy()
        ends[list(self._end)] = list(self._end.values())
        return max(float(ends.max()), *self._free)

    def _start(self, last: Sequence[Sequence[Last]]) -> None:
        """What happens at times that are known so far."""
        walk, ends, own = self._walk, self._stepped.ends, self._stepped.own
        for name, numbers in self._followed.items():
            if isinstance(name, Sent):
                work = walk.place[name]
                ops = walk.sent[work][sorted(numbers)]
                self._begin.update(zip(ops.tolist(), (ends[ops] - own[work]).tolist(), strict=True))
        self._last = [iter(own) for own in last]
        self._free: list[float] = ends[walk.last].tolist()
        for op, begin in self._begin.items():
            self._at(begin, _SEND, op)
        for stage, free in enumerate(self._free):
            self._at(free, _END, stage)

    def _at(self, when: float, kind: int, what: int) -> None:
        """Something comes then."""
        heappush(self._links.coming, (when, self._numbers[kind] + what))

    def _ends(self, op: int) -> float:
        found = self._end.get(op)
        return self._on_time(op) if found is None else found

    def _look(self, op: int, now: float) -> None:
        """Something that an op waits for ends at another time than was known."""
        begin = max(self._ends(self._before(op)), self._ends(self._awaited(op)))
        if op in self._begin:
            if begin == self._begin[op]:
                return
            self._begin[op] = begin
            self._at(begin, _SEND, op)
        self._ending(op, begin + self._stepped.own[self._work(op)], now)

    def _ending(self, op: int, end: float, now: float) -> None:
        """An op ends then, as far as is known: whoever waits for it looks at that before anything comes of it."""
        known = self._ends(op)
        if end == known:
            return
        self._end[op] = end
        when = max(now, min(end, known))
        for other in (self._behind(op), self._taker(op)):
            if other:
                self._at(when, _LOOK, other)
        if op in self._walk.closes:
            self._at(end, _END, self._walk.closes[op])

    def _depart(self, op: int, now: float) -> None:
        """A send that is followed begins, unless it has been put off."""
        if self._begin[op] == now and op not in self._begun:
            self._begun.add(op)
            number = self._contenders.first[self._name(op)]
            self._sending[number] = op
            self._links.begin(number, now)

    def _name(self, op: int) -> ActionWork | Sent:
        return self._walk.works[self._work(op)]

    def _moved(self, number: int, due: float, now: float) -> None:
        """A traffic that is under way will be over then."""
        first = self._contenders.meeting[number]
        if first in self._sending:
            self._ending(self._sending[first], due + self._contenders.behind(number), now)

    def _leave(self, number: int, now: float) -> None:
        """A traffic is over."""
        self._moved(number, now, now)
        if self._contenders.more[number]:
            self._links.begin(number + 1, now)
            return
        first = self._contenders.meeting[number]
        if first in self._meeting:
            self._over(self._meeting.pop(first), now)
        else:
            del self._sending[first]

    def _done(self, stage: int, now: float) -> None:
        """A stage is done with its actions, unless that has been put off."""
        if self._ends(self._walk.last[stage]) == now and stage not in self._through:
            self._through.add(stage)
            self._finish([(stage, now)])

    def _finish(self, stages: Iterable[tuple[int, float]]) -> None:
        """Stages that are free then go on with what is behind their last actions."""
        for stage, now in stages:
            for each in self._last[stage]:
                if each.costed.meeting is None:
                    now += each.costed.seconds
                    continue
                there = self._there.setdefault(each.name, [])
                there.append((now, stage))
                if len(there) == each.costed.meeting.parties:
                    self._meet(each.name, max(when for when, _ in there))
                break
            else:
                self._free[stage] = now

    def _meet(self, name: Hashable, begin: float) -> None:
        """All stages have come."""
        if name in self._followed:
            number = self._contenders.first[name]
            self._meeting[number] = name
            self._links.begin(number, begin)
        else:
            self._over(name, begin + self._alone(name))

    def _over(self, name: Hashable, end: float) -> None:
        """A meeting of stages is over: they go on."""
        there = self._there[name]
        begin, known = max(when for when, _ in there), self._stepped.begins[name][0]
        on_time = known + self._alone(name)
        if (begin != known or end != on_time) and name in self._contenders.first:
            self._met[name] = LateTransfer(0, begin, end, on_time)
        self._finish([(stage, end) for _, stage in there])

    def _alone(self, name: Hashable) -> float:
        return self._crossings.seconds[id(self._crossings.meetings[name])]

    def others_met(self) -> list[tuple[Hashable, int]]:
        """Who else than was followed was under way on a link together with what is late."""
        times, crossings = self._times(), self._crossings
        late = {name: self._later(name, own) for name, own in times.items()}
        of_late = crossings.windows({name: (own[0][0], own[-1][1]) for name, own in late.items()}, whole=True)
        windows = crossings.windows(self._stepped.begins)
        windows[:, 1] = np.maximum(windows[:, 1], of_late[:, 1])
        pairs = [(one[0], other) for one, other in crossings.near(of_late, windows)]
        pairs += [(other[0], one) for one, other in crossings.near(windows, of_late)]
        found: dict[tuple[Hashable, int], None] = {}
        for name, use in pairs:
            begins, ends = np.array(late[name]).T
            met = overlap((begins, ends), self._intervals(use, times))
            if met:
                found |= {(name, times[name][place].number): None for place in met.ones.tolist()}
                found |= {(use[0], number): None for number in met.others.tolist()}
        return [(name, number) for name, number in found if number not in self._followed.get(name, ())]

    def _times(self) -> Times:
        """What is late of all that may meet anything."""
        first, found = self._contenders.first, {name: [each] for name, each in self._met.items()}
        for op in sorted(self._end):
            end, on_time, work = self._end[op], self._on_time(op), self._work(op)
            name = self._walk.works[work]
            if end != on_time and name in first:
                number = int(self._walk.sent[work].searchsorted(op))
                begin = self._begin.get(op, end - self._stepped.own[work])
                found.setdefault(name, []).append(LateTransfer(number, begin, end, on_time))
        return found

    def _later(self, name: Hashable, times: Sequence[LateTransfer]) -> list[tuple[float, float]]:
        """When what is late was on links, as far as it was not there before."""
        latency = self._latency(name)
        if len(self._crossings.meetings[name].traffics) > 1:
            return [(each.begin + latency, each.end) for each in times]
        return [(max(each.begin + latency, each.on_time), each.end) for each in times]

    def _intervals(self, use: Use, times: Times) -> Intervals:
        """When transfers were on a link that they use."""
        begins, ends = shifted(self._walk.begins(use[0], self._stepped), use)
        for each in times.get(use[0], ()):
            begins[each.number], ends[each.number] = each.begin + self._latency(use[0]), each.end
        return begins, ends

    def _latency(self, name: Hashable) -> float:
        return self._crossings.meetings[name].traffics[0].latency_seconds
