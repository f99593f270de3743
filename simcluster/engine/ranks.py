"""Computations on ranks over time, slowed down by communication and by the rank itself; compiled.

``reference.plain`` defines it: ``RemainingWork`` and ``Rank``.
"""

from __future__ import annotations

from types import SimpleNamespace

import cython
import numpy as np

from simcluster.engine.tables import Instances, Kinds

if not cython.compiled:
    from simcluster.base.pointers import Buffers
    from simcluster.engine.lanes import LaneStates
    from simcluster.engine.links import LinkActivities
    from simcluster.engine.meetings import MeetingStates
    from simcluster.engine.memberships import Memberships

    RankState = SimpleNamespace

RANK = [("speed", np.float64), ("lane", np.int32), ("is_changed", np.int32)]
"""Fields of a RankState: ``lane`` is the first of its lanes that compute, plus one."""


class RankActivities:
    """What lanes compute, and which communications (``flights``, by the numbers of their activities) slow that down.

    Events of lanes have even keys.
    """

    def __init__(
        self, lanes: LaneStates, links: LinkActivities, meetings: MeetingStates, instances: Instances, kinds: Kinds
    ) -> None:
        ranks = int(instances.rank_first.max())
        self.buffers = buffers = Buffers()
        self.lanes, self.links, self.meetings = lanes, links, meetings
        self.flights = Memberships(ranks)
        self.computing_lanes = self.changed = 0
        self.drags = bool(kinds.drag.any())
        self._changed = buffers.ints("changed", ranks)
        records = buffers.records("ranks", RANK, ranks)
        self._state = cython.cast(cython.pointer(RankState), records) if cython.compiled else records
        buffers.fill("ranks", "speed", np.ones(ranks))
        self._pressure = buffers.given_doubles("pressure", kinds.pressure)
        self._drag = buffers.given_doubles("drag", kinds.drag)
        self._rank_first = buffers.given_ints("rank_first", kinds.rank_first)
        self._kind_rank = buffers.given_ints("kind_rank", kinds.rank)

    def begin(self, lane: cython.int, joins: cython.bint) -> cython.void:
        """Begin a computation, or a wait that nothing changes; ``joins``: meet others after it, without an event."""
        at: cython.int = self.lanes.at[lane]
        rank: cython.int = self.lanes.state[lane].rank
        seconds: cython.double = self.lanes.seconds(lane, at)
        if seconds <= 0.0 or self.lanes.ops[self.lanes.place(lane, at)].sensitivity < 0.0:
            self.lanes.state[lane].due = self.lanes.queue.now + seconds
            self.lanes.put(lane)
            return
        place = self.lanes.run_ahead(lane, joins)
        if place >= 0:
            self.meetings.find(lane, place)
        follower: cython.int = self.lanes.state[lane].follower - 1
        if follower >= 0:
            self.meetings.find(follower, self.lanes.place(follower, self.lanes.at[follower]))
        self.lanes.state[lane].next = self._state[rank].lane
        self._state[rank].lane = lane + 1
        self.computing_lanes += 1
        self.lanes.state[lane].left = seconds
        self.lanes.state[lane].since = self.lanes.state[lane].changed = self.lanes.queue.now
        self._mark_changed(rank)  # ``due`` is set at the end of the instant

    def end(self, lane: cython.int) -> cython.void:
        """End what a lane, which is due, computes or waits for; ``at`` becomes its last op."""
        rank: cython.int = self.lanes.state[lane].rank
        before: cython.int = self._state[rank].lane - 1
        if not self.lanes.end_run(lane):
            return
        if before == lane:
            self._state[rank].lane = self.lanes.state[lane].next
        else:
            while self.lanes.state[before].next != lane + 1:
                before = self.lanes.state[before].next - 1
            self.lanes.state[before].next = self.lanes.state[lane].next
        self.computing_lanes -= 1
        if self.drags and self.flights.count[rank]:  # it may slow them down no longer
            self._mark_changed(rank)

    def take_off(self, flight: cython.int, kind: cython.int) -> cython.void:
        """Begin a communication."""
        for place in range(self._rank_first[kind], self._rank_first[kind + 1]):
            rank = self._kind_rank[place]
            self.flights.add(rank, flight, self._pressure[kind])
            if self._state[rank].lane:
                self._mark_changed(rank)

    def land(self, flight: cython.int, kind: cython.int) -> cython.void:
        """End a communication."""
        self.flights.remove_all(flight)
        for place in range(self._rank_first[kind], self._rank_first[kind + 1]):
            rank = self._kind_rank[place]
            if self._state[rank].lane:
                self._mark_changed(rank)

    def set_speed(self, rank: cython.int, factor: cython.double) -> cython.void:
        """Set the factor by which the rank's computations take longer from now on."""
        self._state[rank].speed = factor
        if self._state[rank].lane:
            self._mark_changed(rank)

    def settle(self) -> cython.void:
        """Bring computations and communications on all ranks on which something changed in line."""
        for number in range(self.changed):
            rank = self._changed[number]
            self._state[rank].is_changed = 0
            if self._state[rank].lane:
                self._settle_lanes(rank)
            if self.drags:
                self._settle_flights(rank)
        self.changed = 0

    def _mark_changed(self, rank: cython.int) -> cython.void:
        if not self._state[rank].is_changed:
            self._state[rank].is_changed = 1
            self._changed[self.changed] = rank
            self.changed += 1

    def _settle_lanes(self, rank: cython.int) -> cython.void:
        pressure: cython.double = 0.0
        entry: cython.int = self.flights.head[rank]
        lane: cython.int = self._state[rank].lane - 1
        while entry >= 0:
            if self.flights.entry[entry].weight > pressure:
                pressure = self.flights.entry[entry].weight
            entry = self.flights.entry[entry].following
        while lane >= 0:
            if self.lanes.state[lane].due <= self.lanes.queue.now:
                pass  # it has arrived at its meeting
            else:
                follower: cython.int = self.lanes.state[lane].follower - 1
                due = self.lanes.state[follower].due if follower >= 0 else 0.0
                if self.lanes.settle(lane, pressure, self._state[rank].speed):
                    if self.lanes.state[lane].meeting:
                        self.meetings.expect(lane)
                    else:
                        self.lanes.put(lane)
                if follower >= 0 and self.lanes.state[follower].due != due:
                    self.meetings.expect(follower)
            lane = self.lanes.state[lane].next - 1

    def _settle_flights(self, rank: cython.int) -> cython.void:
        """Update whether computation slows down the communications on a rank."""
        entry: cython.int = self.flights.head[rank]
        while entry >= 0:
            flight = self.flights.entry[entry].member
            kind = self.links.state[flight].kind
            drag = 1.0
            for place in range(self._rank_first[kind], self._rank_first[kind + 1]):
                if self._state[self._kind_rank[place]].lane:
                    drag = 1.0 + self._drag[kind]
                    break
            if drag != self.links.state[flight].drag:
                self.links.set_drag(flight, drag)
            entry = self.flights.entry[entry].following
