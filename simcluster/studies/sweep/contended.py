"""A step in which transfers hold each other back on links, an accelerator: to the bit what the engine plays.

Computation is not an event: when an action ends is known as soon as it can begin.  What happens before transfers first
meet is that of the walk (``stepping``), and from then on only those that do meet are followed through time, from when
they join their links to when they leave them.  That others do not is looked at afterwards.  (175B on 1,024 A100, 32
stages of 3 chunks, 384 microbatches: 147,000 ops in 0.01 s where transfers meet at the end, in 0.12 s where they do
from the begin on; the engine takes 1.7 s.)  Where little is late for it, ``late`` looks at less.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from itertools import product

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.studies.sweep.crossings import Crossings, Intervals, MetPair, Use, overlap, shifted
from simcluster.studies.sweep.links import Contenders, Links
from simcluster.studies.sweep.order import Last, Sent
from simcluster.studies.sweep.stepping import Stepped, ToDo, Walk

MOST_SECONDS = 512.0
"""Up to here times are exact (``clock``); a step that is not over by then is another's to play."""

Pairs = dict[tuple[Hashable, Hashable], float]
"""Who holds whom back, and since when."""


def contended(
    walk: Walk, stepped: Stepped, last: Sequence[Sequence[Last]],
    crossings: Crossings, contenders: Contenders, met: Iterable[MetPair],
) -> float:  # fmt: skip
    """Seconds of a step, given as it would be if nothing met, and what then has ``met``.

    Few transfers do, so only these are followed; if then others meet, it is played again with them.
    """
    pairs: Pairs = {}
    for one, other, found in met:
        pairs[one, other] = min(found.since, pairs.get((one, other), math.inf))
    since = min(pairs.values())
    for attempt in range(3):
        if attempt == 2:
            pairs = dict.fromkeys(crossings.rivals, since)
        contest = Contest(walk, stepped.own, crossings, contenders, pairs)
        total = contest.play(last, stepped.ends, since, whole=attempt > 0)
        others = contest.others_met(crossings)
        if not others:
            break
        pairs |= dict.fromkeys(others, since)
    return total


class Contest:
    """One step, played: a process a stage, that stops only for what is not known yet.

    Only these ``pairs`` of transfers hold each other back when they meet.
    """

    def __init__(
        self, walk: Walk, own: Sequence[float], crossings: Crossings, contenders: Contenders, pairs: Pairs
    ) -> None:
        self._walk, self._own, self._contenders, self._pairs = walk, own, contenders, pairs
        self._alone = crossings.seconds  # of meetings by their identity
        self._blocking = not walk.overlap
        rivals = contenders.bits(pairs)
        self._number = {name: first for name, first in contenders.first.items() if rivals[first]}
        self._number_of = [self._number.get(work, -1) for work in walk.works]
        self._links = Links(contenders, rivals)
        self._ready: list[int] = []  # stages that can go on
        self._waiting: dict[int, int] = {}  # stages by the send that they need; by its negative, if it holds them up
        self._lane_of = walk.lane_of
        self._lane_free = [-1.0] * walk.lanes  # infinite while it is not known, negative before the first send
        self._lane_queue: list[deque[tuple[float, int, int, bool]]] = [deque() for _ in range(walk.lanes)]
        self._sending: dict[int, tuple[int, int, float]] = {}  # a send under way by its number: op, lane, and begin
        self._named: dict[int, Hashable] = {}  # the name of a meeting under way, by its number
        self._there: dict[Hashable, list[tuple[float, int]]] = {}  # who has come to a meeting of stages, and when
        self._begun: dict[Hashable, float] = {}  # these meetings, and their ends
        self._over: dict[Hashable, float] = {}
        self._held: dict[Hashable, list[tuple[int, float, float]]] = {name: [] for name in self._number}
        """What was followed: ops of sends, begins and ends."""

    def play(self, last: Sequence[Sequence[Last]], ends: Floats, since: float, *, whole: bool) -> float:
        """Seconds of the step; ``last`` are every stage's ops behind its actions.

        ``ends`` are those of the walk, on which nothing meets until ``since``: what is over then is not played again.
        Sends that hold back no other sends are followed from when they meet something, or the ``whole`` time.
        """
        self._walked, self._since = ends, since
        self._end: dict[int, float] = {}  # of sends that were not over, once known
        follow, place = [math.inf] * len(self._walk.works), self._walk.place
        for (one, other), first in self._pairs.items():
            both = isinstance(one, Sent) and isinstance(other, Sent)
            for name in (one, other):
                if name in place:
                    number = place[name]
                    follow[number] = min(follow[number], since if whole or both else first)
        left = self._walk.left(ends, since, follow)
        self._free = [0.0] * len(left)  # when stages are done
        stages = [self._stage(stage, *left[stage], behind) for stage, behind in enumerate(last)]
        self._ready += range(len(stages))
        self._go_on(stages)
        self._ends = ends.copy()
        self._ends[list(self._end)] = list(self._end.values())
        return max(float(self._ends.max()), *self._free)

    def others_met(self, crossings: Crossings) -> list[tuple[Hashable, Hashable]]:
        """Who else than was followed was under way together on a link."""
        held, free = self._followed(), self._not_followed()
        of_held = crossings.windows({name: (own[0][0], own[1][-1]) for name, own in held.items()}, whole=True)
        of_free = crossings.windows({name: (own[0], own[-1]) for name, own in free.items()})
        sides: list[tuple[Floats, Callable[[Use], Intervals]]] = [
            (of_held, lambda use: held[use[0]]),
            (of_free, lambda use: shifted(free[use[0]], use)),
        ]
        found: dict[tuple[Hashable, Hashable], None] = {}
        for (windows, when), (others, other_when) in product(sides, sides):
            for one, other in crossings.near(windows, others):
                names = one[0], other[0]
                followed = windows is others is of_held and (names in self._pairs or names[::-1] in self._pairs)
                if not followed and names not in found and overlap(when(one), other_when(other)):
                    found[names] = None
        return list(found)

    def _followed(self) -> dict[Hashable, Intervals]:
        """From when to when what was followed was on its links, with all its traffics."""
        found = {}
        for name, own in self._held.items():
            if own:
                _, begins, ends = zip(*own, strict=True)
                latency = self._contenders.traffics[self._contenders.first[name]].latency_seconds
                found[name] = np.array(begins) + latency, np.array(ends)
        return found

    def _not_followed(self) -> dict[Hashable, Floats]:
        """When all else began, without sends that were over before anything could meet."""
        walk, all_ends, since = self._walk, self._ends, self._since
        found: dict[Hashable, Floats] = {
            name: np.array([begin]) for name, begin in self._begun.items() if not self._held.get(name)
        }
        for number, (_, last) in walk.bounds.items():
            if all_ends[last] > since:
                ops, name = walk.sent[number], walk.works[number]
                ends = all_ends[ops]
                left = ends > since
                left[ops.searchsorted([op for op, _, _ in self._held.get(name, ())])] = False
                if left.any():
                    found[name] = ends[left] - self._own[number]
        return found

    def _go_on(self, stages: Sequence[Generator[None]]) -> None:
        """Until nothing more happens."""
        links, coming, ready = self._links, self._links.coming, self._ready
        while ready:
            next(stages[ready.pop()], None)
        while coming:
            now = coming[0][0]
            while coming and coming[0][0] == now:
                number = links.next()
                if number >= 0:
                    self._leave(number, now)
                    while ready:
                        next(stages[ready.pop()], None)
            if links.touched:
                links.share(now)

    def _stage(self, stage: int, now: float, todo: Iterable[ToDo], behind: Sequence[Last]) -> Generator[None]:
        """A stage that is free now, from what it knows to the next thing that it must wait for."""
        own, end, waiting = self._own, self._end, self._waiting
        lanes, free = self._lane_of, self._lane_free
        for work, ready, needed, sends, op, followed in todo:
            if needed:
                if needed not in end:
                    waiting[needed] = stage
                    yield
                ready = end[needed]
            now = (ready if ready > now else now) + own[work]
            if op:
                lane = lanes[sends]
                begin = free[lane]
                if followed or not 0 <= begin < math.inf:
                    self._send(sends, op, now, followed)
                else:  # as in _depart, which it spares
                    free[lane] = end[op] = (begin if begin > now else now) + own[sends]
                    if op in waiting:
                        self._ready.append(waiting.pop(op))
                if self._blocking:
                    if op not in end:
                        waiting[-op] = stage
                        yield
                    now = end[op]
        for each in behind:
            if each.costed.meeting is None:
                now += each.costed.seconds
                continue
            self._arrive(each, stage, now)
            if each.name not in self._over:
                yield
            now = self._over[each.name]
        self._free[stage] = now

    def _send(self, sends: int, op: int, now: float, followed: bool) -> None:
        """Something is ready to be sent."""
        lane = self._lane_of[sends]
        if self._lane_free[lane] < 0:  # what went before is over
            self._lane_free[lane] = min(self._since, float(self._walked[op]) - self._own[sends])
        if self._lane_free[lane] == math.inf:
            self._lane_queue[lane].append((now, sends, op, followed))
        else:
            self._depart(lane, max(now, self._lane_free[lane]), sends, op, followed)

    def _depart(self, lane: int, now: float, sends: int, op: int, followed: bool) -> None:
        """Its turn has come."""
        if not followed:
            self._lane_free[lane] = now + self._own[sends]
            self._sent(op, now + self._own[sends])
        else:
            number = self._number_of[sends]
            self._lane_free[lane] = math.inf
            self._sending[number] = op, lane, now
            self._links.begin(number, now)

    def _sent(self, op: int, now: float) -> None:
        self._end[op] = now
        for who in (op, -op):
            if who in self._waiting:
                self._ready.append(self._waiting.pop(who))

    def _leave(self, number: int, now: float) -> None:
        """A transfer that may be held back is over."""
        if self._contenders.more[number]:
            self._links.begin(number + 1, now)
            return
        first = self._contenders.meeting[number]
        if first in self._named:
            name = self._named.pop(first)
            self._held[name].append((0, self._begun[name], now))
            self._over[name] = now
            self._ready += [stage for _, stage in self._there[name]]
            return
        op, lane, begin = self._sending.pop(first)
        self._held[self._walk.works[self._walk.work[op]]].append((op, begin, now))
        self._lane_free[lane] = now
        self._sent(op, now)
        queue = self._lane_queue[lane]
        while queue and self._lane_free[lane] < math.inf:
            ready, sends, op, followed = queue.popleft()
            self._depart(lane, max(ready, self._lane_free[lane]), sends, op, followed)

    def _arrive(self, each: Last, stage: int, now: float) -> None:
        """A stage comes to a meeting of stages."""
        there, meeting = self._there.setdefault(each.name, []), each.costed.meeting
        there.append((now, stage))
        if meeting is None or len(there) < meeting.parties:
            return
        begin, number = max(when for when, _ in there), self._number.get(each.name, -1)
        self._begun[each.name] = begin
        if number >= 0:
            self._named[number] = each.name
            self._links.begin(number, begin)
        else:  # nobody holds it back
            self._over[each.name] = begin + self._alone[id(meeting)]
            self._ready += [other for _, other in there[:-1]]
