"""Computations on ranks over time, slowed down by communication and by the rank itself; compiled.

``reference.plain`` defines it: ``Left`` and ``Rank``.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import cython
import numpy as np

from simcluster.engine.tables import Kinds

if not cython.compiled:
    from simcluster.base.event_queue import EventQueue
    from simcluster.base.pointers import Buffers
    from simcluster.engine.links import LinkActivities
    from simcluster.engine.memberships import Memberships

    rint = np.rint
    Computation = SimpleNamespace
    RankState = SimpleNamespace

_INFINITE = cython.declare(cython.double, math.inf)
COMPUTATION = [
    ("due", np.float64),
    *((name, np.int32) for name in ("rank", "following", "previous", "unused")),
    *((name, np.float64) for name in ("left", "since", "factor", "sensitivity")),
    *((name, np.float64) for name in ("left_before", "since_before", "factor_before", "settled")),
]
"""Fields of a Computation (see the .pxd file): ``rank`` is that of a lane that computes, plus one; ``following``
and ``previous`` are the next lanes that compute on it, plus one."""
RANK = [("speed", np.float64), *((name, np.int32) for name in ("computing", "lane", "is_changed", "unused"))]
"""Fields of a RankState: ``computing`` is how many of its lanes compute, ``lane`` the first of them, plus one."""


class RankActivities:
    """What lanes compute, and which communications (``flights``, by the numbers of their activities) slow that down.

    ``computation[lane].due`` is when what a lane computes, or another time that it waits for, is over.  Events of lanes
    have even keys.
    """

    def __init__(
        self, queue: EventQueue, links: LinkActivities, kinds: Kinds, ranks: int, lanes: int, ticks: float
    ) -> None:
        self.buffers = buffers = Buffers()
        self.queue, self.links, self.ticks = queue, links, ticks
        self.flights = Memberships(ranks)
        records = buffers.records("computations", COMPUTATION, lanes)
        self.computation = cython.cast(cython.pointer(Computation), records) if cython.compiled else records
        self.computing_lanes = 0
        self.changed = 0
        self._changed = buffers.ints("changed", ranks)
        records = buffers.records("ranks", RANK, ranks)
        self._state = cython.cast(cython.pointer(RankState), records) if cython.compiled else records
        buffers.fill("ranks", "speed", np.ones(ranks))
        self._pressure = buffers.given_doubles("pressure", kinds.pressure)
        self._drag = buffers.given_doubles("drag", kinds.drag)
        self._rank_first = buffers.given_ints("rank_first", kinds.rank_first)
        self._kind_rank = buffers.given_ints("kind_rank", kinds.rank)
        self._make_room()

    def wait(self, lane: cython.int, seconds: cython.double, now: cython.double) -> cython.void:
        """Let a lane wait for seconds that nothing changes."""
        self.computation[lane].due = now + seconds
        self.queue.put(now + seconds, 2 * lane)

    def compute(
        self,
        lane: cython.int,
        rank: cython.int,
        seconds: cython.double,
        sensitivity: cython.double,
        now: cython.double,
    ) -> cython.void:
        """Begin a computation on a lane; ``seconds`` at full speed with nothing concurrent."""
        if seconds <= 0.0:
            self.wait(lane, 0.0, now)
            return
        head: cython.int = self._state[rank].lane
        self.computation[lane].rank = rank + 1
        self.computation[lane].previous = 0
        self.computation[lane].following = head
        self._state[rank].lane = lane + 1
        if head:
            self.computation[head - 1].previous = lane + 1
        self._state[rank].computing += 1
        self.computing_lanes += 1
        self.computation[lane].sensitivity = sensitivity
        self.computation[lane].left = self.computation[lane].left_before = seconds
        self.computation[lane].since = self.computation[lane].since_before = now
        self.computation[lane].factor = self.computation[lane].factor_before = 1.0
        self.computation[lane].settled = now
        if self.flights.count[rank] or self._state[rank].speed != 1.0:
            self.computation[lane].due = _INFINITE  # set at the end of the instant
            self._change(rank)
        else:
            self.wait(lane, seconds, now)

    def advance(self, lane: cython.int) -> cython.void:
        """End what a lane, which is due, computes or waits for."""
        rank: cython.int = self.computation[lane].rank - 1
        before: cython.int
        after: cython.int
        self.computation[lane].due = _INFINITE
        if rank < 0:
            return
        before = self.computation[lane].previous
        after = self.computation[lane].following
        self.computation[lane].rank = 0
        if before:
            self.computation[before - 1].following = after
        else:
            self._state[rank].lane = after
        if after:
            self.computation[after - 1].previous = before
        self._state[rank].computing -= 1
        self.computing_lanes -= 1
        if self.flights.count[rank]:  # it may slow them down no longer
            self._change(rank)

    def take_off(self, flight: cython.int, kind: cython.int) -> cython.void:
        """Begin a communication."""
        place: cython.int
        rank: cython.int
        if self._room < self.links.room:
            self._make_room()
        self.dragged[flight] = 0
        for place in range(self._rank_first[kind], self._rank_first[kind + 1]):
            rank = self._kind_rank[place]
            self.flights.add(rank, flight, self._pressure[kind])
            if self._state[rank].computing:
                self._change(rank)

    def _make_room(self) -> cython.void:
        self._room = self.links.room
        self.flights.make_members(self._room)
        self.dragged = self.buffers.flags("dragged", self._room)

    def land(self, flight: cython.int, kind: cython.int) -> cython.void:
        """End a communication."""
        place: cython.int
        rank: cython.int
        self.flights.remove_all(flight)
        for place in range(self._rank_first[kind], self._rank_first[kind + 1]):
            rank = self._kind_rank[place]
            if self._state[rank].computing:
                self._change(rank)

    def drag_of(self, flight: cython.int, kind: cython.int) -> cython.double:
        """Return how many times as long rounds of a communication take at present."""
        return 1.0 + self._drag[kind] if self.dragged[flight] else 1.0

    def set_speed(self, rank: cython.int, factor: cython.double) -> cython.void:
        """Set the factor by which the rank's computations take longer from now on."""
        self._state[rank].speed = factor
        if self._state[rank].computing:
            self._change(rank)

    def settle(self, now: cython.double) -> cython.void:
        """Bring computations and communications on all ranks on which something changed in line."""
        number: cython.int
        rank: cython.int
        for number in range(self.changed):
            rank = self._changed[number]
            self._state[rank].is_changed = 0
            if self._state[rank].computing:
                self._settle_lanes(rank, now)
            self._settle_flights(rank, now)
        self.changed = 0

    def _change(self, rank: cython.int) -> cython.void:
        """Note that something changes on a rank."""
        if not self._state[rank].is_changed:
            self._state[rank].is_changed = 1
            self._changed[self.changed] = rank
            self.changed += 1

    def _settle_lanes(self, rank: cython.int, now: cython.double) -> cython.void:
        """Continue computations at their present speed."""
        pressure: cython.double = 0.0
        entry: cython.int = self.flights.head[rank]
        lane: cython.int = self._state[rank].lane - 1
        while entry >= 0:
            if self.flights.entry[entry].weight > pressure:
                pressure = self.flights.entry[entry].weight
            entry = self.flights.entry[entry].following
        while lane >= 0:
            self._settle_lane(
                lane, (1.0 + self.computation[lane].sensitivity * pressure) * self._state[rank].speed, now
            )
            lane = self.computation[lane].following - 1

    def _settle_lane(self, lane: cython.int, factor: cython.double, now: cython.double) -> cython.void:
        """Continue from what was left before this instant: only the last factor of an instant counts."""
        left: cython.double
        if factor == self.computation[lane].factor:
            if self.computation[lane].due == _INFINITE:
                self.computation[lane].due = self._end_of(lane)
                self.queue.put(self.computation[lane].due, 2 * lane)
            return
        if now > self.computation[lane].settled:
            self.computation[lane].settled = now
            self.computation[lane].left_before = self.computation[lane].left
            self.computation[lane].since_before = self.computation[lane].since
            self.computation[lane].factor_before = self.computation[lane].factor
        left = self.computation[lane].left_before
        if factor == self.computation[lane].factor_before:
            self.computation[lane].since = self.computation[lane].since_before
        else:
            left -= (
                rint((now - self.computation[lane].since_before) / self.computation[lane].factor_before * self.ticks)
                / self.ticks
            )
            if left < 0.0:
                left = 0.0
            self.computation[lane].since = now
        self.computation[lane].left = left
        self.computation[lane].factor = factor
        self.computation[lane].due = self._end_of(lane)
        self.queue.put(self.computation[lane].due, 2 * lane)

    def _end_of(self, lane: cython.int) -> cython.double:
        """Return when a computation is over if nothing changes."""
        if self.computation[lane].factor == 1.0:
            return self.computation[lane].since + self.computation[lane].left
        return (
            self.computation[lane].since
            + rint(self.computation[lane].left * self.computation[lane].factor * self.ticks) / self.ticks
        )

    def _settle_flights(self, rank: cython.int, now: cython.double) -> cython.void:
        """Update whether computation slows down the communications on a rank."""
        entry: cython.int = self.flights.head[rank]
        flight: cython.int
        kind: cython.int
        place: cython.int
        dragged: cython.bint
        while entry >= 0:
            flight = self.flights.entry[entry].member
            kind = self.links.kind[flight]
            if self._drag[kind] > 0.0:
                dragged = False
                for place in range(self._rank_first[kind], self._rank_first[kind + 1]):
                    if self._state[self._kind_rank[place]].computing:
                        dragged = True
                        break
                if dragged != self.dragged[flight]:
                    self.dragged[flight] = dragged
                    self.links.set_drag(flight, self.drag_of(flight, kind), now)
            entry = self.flights.entry[entry].following
