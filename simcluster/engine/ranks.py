"""Computations on ranks over time, slowed down by communication and by the rank's own speed; compiled.

``reference.step_simulation`` defines it: ``RemainingWork`` and ``SimulatedRank``.
"""

from __future__ import annotations

from types import SimpleNamespace

import cython
import numpy as np

from simcluster.engine.tables import CommunicationKindColumns, InstanceColumns

if not cython.compiled:
    from simcluster.base.pointers import Buffers
    from simcluster.engine.lanes import LaneStates
    from simcluster.engine.links import LinkTransfers
    from simcluster.engine.memberships import MembershipLists
    from simcluster.engine.rendezvous import RendezvousStates

    RankState = SimpleNamespace

RANK = [("speed", np.float64), ("lane", np.int32), ("is_changed", np.int32)]
"""Fields of a RankState: ``lane`` is the first of its lanes that compute, plus one."""


class RankComputations:
    """Lanes (op queues) that compute on each rank, and the communications (``flights``) that slow them down.

    Events of lanes have even keys.
    """

    def __init__(
        self,
        lanes: LaneStates,
        links: LinkTransfers,
        meetings: RendezvousStates,
        instances: InstanceColumns,
        kinds: CommunicationKindColumns,
    ) -> None:
        ranks = int(instances.rank_first.max())
        self.buffers = buffers = Buffers()
        self.lanes, self.links, self.meetings = lanes, links, meetings
        self.flights = MembershipLists(ranks)
        self.computing_lanes = self.changed = 0
        self.drags = bool(kinds.drag.any())
        self._changed = buffers.ints("changed", ranks)
        records = buffers.records("ranks", RANK, ranks)
        self._state = cython.cast(cython.pointer(RankState), records) if cython.compiled else records
        buffers.fill("ranks", "speed", np.ones(ranks))
        self._pressure = buffers.view_doubles("pressure", kinds.pressure)
        self._drag = buffers.view_doubles("drag", kinds.drag)
        self._rank_first = buffers.view_ints("rank_first", kinds.rank_first)
        self._kind_rank = buffers.view_ints("kind_rank", kinds.rank)

    def begin_computation(self, lane: cython.int, joins: cython.bint) -> cython.void:
        """Begin a computation or a fixed delay; with ``joins``, the lane also joins the next communication."""
        at: cython.int = self.lanes.at[lane]
        rank: cython.int = self.lanes.state[lane].rank
        seconds: cython.double = self.lanes.op_seconds(lane, at)
        if seconds <= 0.0 or self.lanes.ops[self.lanes.template_op_index(lane, at)].sensitivity < 0.0:
            self.lanes.state[lane].due = self.lanes.queue.now + seconds
            self.lanes.schedule_event(lane)
            return
        place = self.lanes.begin_run(lane, joins)
        if place >= 0:
            self.meetings.assign_rendezvous(lane, place)
        follower: cython.int = self.lanes.state[lane].follower - 1
        if follower >= 0:
            self.meetings.assign_rendezvous(follower, self.lanes.template_op_index(follower, self.lanes.at[follower]))
        self.lanes.state[lane].next = self._state[rank].lane
        self._state[rank].lane = lane + 1
        self.computing_lanes += 1
        self.lanes.state[lane].left = seconds
        self.lanes.state[lane].since = self.lanes.state[lane].changed = self.lanes.queue.now
        self._mark_changed(rank)  # ``due`` is set at the end of the instant

    def end_computation(self, lane: cython.int) -> cython.void:
        """End the computation or delay of a lane that is due, and set the lane's ``at`` to its last op."""
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

    def begin_communication(self, flight: cython.int, kind: cython.int) -> cython.void:
        """Begin a communication (``flight``): add it to the list of each rank whose computation it slows down."""
        for place in range(self._rank_first[kind], self._rank_first[kind + 1]):
            rank = self._kind_rank[place]
            self.flights.add(rank, flight, self._pressure[kind])
            if self._state[rank].lane:
                self._mark_changed(rank)

    def end_communication(self, flight: cython.int, kind: cython.int) -> cython.void:
        """End a communication (``flight``): remove it from the list of each rank whose computation it slowed down."""
        self.flights.remove_all(flight)
        for place in range(self._rank_first[kind], self._rank_first[kind + 1]):
            rank = self._kind_rank[place]
            if self._state[rank].lane:
                self._mark_changed(rank)

    def set_speed(self, rank: cython.int, factor: cython.double) -> cython.void:
        """Set the factor by which a rank's computations take longer from now on."""
        self._state[rank].speed = factor
        if self._state[rank].lane:
            self._mark_changed(rank)

    def update_changed_ranks(self) -> cython.void:
        """Update the computations and communications of all ranks that changed at this instant."""
        for number in range(self.changed):
            rank = self._changed[number]
            self._state[rank].is_changed = 0
            if self._state[rank].lane:
                self._update_computations(rank)
            if self.drags:
                self._update_communications(rank)
        self.changed = 0

    def _mark_changed(self, rank: cython.int) -> cython.void:
        if not self._state[rank].is_changed:
            self._state[rank].is_changed = 1
            self._changed[self.changed] = rank
            self.changed += 1

    def _update_computations(self, rank: cython.int) -> cython.void:
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
                if self.lanes.update_run(lane, pressure, self._state[rank].speed):
                    if self.lanes.state[lane].meeting:
                        self.meetings.expect_arrival(lane)
                    else:
                        self.lanes.schedule_event(lane)
                if follower >= 0 and self.lanes.state[follower].due != due:
                    self.meetings.expect_arrival(follower)
            lane = self.lanes.state[lane].next - 1

    def _update_communications(self, rank: cython.int) -> cython.void:
        """Update whether computation slows down the communications of a rank."""
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
                self.links.set_slowdown(flight, drag)
            entry = self.flights.entry[entry].following
