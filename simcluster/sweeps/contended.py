"""A step in which transfers hold each other back on links, to the bit what the engine plays: an accelerator of it.

Computation is not an event: when an action ends is known as soon as it can begin.  What happens before transfers first
meet is that of the walk (``stepping``); from then on all that may meet are followed through time, from when they join
their links to when they leave them.  (175B on 1,024 A100, 32 stages of 3 chunks, 384 microbatches: 147,000 ops in
0.01 s where transfers meet at the end, in 0.12 s where they do from the begin on; the engine takes 1.7 s.  Without it
1,000 layouts of the table of benchmarks take 38 s in place of 7, played from the begin on 20.)  Imports the skeleton,
stepping, crossings and links.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Hashable, Iterable, Sequence

from simcluster.sweeps.crossings import Crossings
from simcluster.sweeps.links import Contenders, Links
from simcluster.sweeps.skeleton import Last
from simcluster.sweeps.stepping import Stepped, ToDo, Walk

MOST_SECONDS = 512.0
"""Up to here times are exact (``clock``); a step that is not over by then is another's to play."""


def contended(
    walk: Walk, stepped: Stepped, last: Sequence[Sequence[Last]],
    crossings: Crossings, contenders: Contenders, since: float,
) -> float:  # fmt: skip
    """Seconds of a step, given as it would be if nothing met, and ``since`` when transfers meet.

    ``last`` are every stage's ops behind its actions.
    """
    return _Contest(walk, stepped, crossings, contenders, since).play(last)


class _Contest:
    """One step, played: a process a stage, that stops only for what is not known yet."""

    def __init__(
        self, walk: Walk, stepped: Stepped, crossings: Crossings, contenders: Contenders, since: float
    ) -> None:
        self._walk, self._own, self._walked, self._since = walk, stepped.own, stepped.ends, since
        self._contenders, self._number = contenders, contenders.first
        self._alone = crossings.seconds  # of meetings by their identity
        self._blocking = not walk.overlap
        self._number_of = [self._number.get(work, -1) for work in walk.works]
        self._links = Links(contenders)
        self._ready: list[int] = []  # stages that can go on
        self._waiting: dict[int, int] = {}  # stages by the send that they need; by its negative, if it holds them up
        self._end: dict[int, float] = {}  # of sends that were not over, once known
        self._lane_of = walk.lane_of
        self._lane_free = [-1.0] * walk.lanes  # infinite while it is not known, negative before the first send
        self._lane_queue: list[deque[tuple[float, int, int, bool]]] = [deque() for _ in range(walk.lanes)]
        self._sending: dict[int, tuple[int, int]] = {}  # a send under way by its number: its op and lane
        self._named: dict[int, Hashable] = {}  # the name of a meeting under way, by its number
        self._there: dict[Hashable, list[tuple[float, int]]] = {}  # who has come to a meeting of stages, and when
        self._over: dict[Hashable, float] = {}  # the ends of these meetings

    def play(self, last: Sequence[Sequence[Last]]) -> float:
        """Seconds of the step: what is over in the walk when transfers first meet is not played again."""
        left = self._walk.left(self._walked, self._since, [number >= 0 for number in self._number_of])
        self._free = [0.0] * len(left)  # when stages are done
        stages = [self._stage(stage, *left[stage], behind) for stage, behind in enumerate(last)]
        self._ready += range(len(stages))
        self._go_on(stages)
        return max(float(self._walked.max()), max(self._end.values(), default=0.0), *self._free)

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
            self._sending[number] = op, lane
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
            self._over[name] = now
            self._ready += [stage for _, stage in self._there[name]]
            return
        op, lane = self._sending.pop(first)
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
        if number >= 0:
            self._named[number] = each.name
            self._links.begin(number, begin)
        else:  # nobody holds it back
            self._over[each.name] = begin + self._alone[id(meeting)]
            self._ready += [other for _, other in there[:-1]]
