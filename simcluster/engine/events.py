"""Event loop of the compiled engine: advances lanes (in-order op queues of ranks) from instant to instant.

``reference.step_simulation`` defines it.  Events of one instant are processed in any order.  Then rates on links are
computed anew and computations continue at their new speed, which may cause more events at the same instant.
"""

from __future__ import annotations

from typing import Any

import cython

from simcluster.engine.tables import EngineTables

if not cython.compiled:
    from simcluster.base.pointers import Buffers, prefetch
    from simcluster.engine.event_queue import INFINITE, EventQueue
    from simcluster.engine.lanes import LaneStates
    from simcluster.engine.links import LinkTransfers
    from simcluster.engine.ranks import RankComputations
    from simcluster.engine.rendezvous import RendezvousStates
    from simcluster.engine.rounds import HopByHopCollectives
    from simcluster.engine.template_ops import TemplateOps as TemplateOps

PARTS = ("event_queue", "memberships", "max_min", "links", "template_ops", "lanes", "rendezvous", "ranks", "rounds")
"""The modules that are compiled as one with this one, in this order: calls between them cost little."""

OVER, PAUSED, NEEDS_CHANGES, BEYOND_GRID, STUCK = range(5)
"""Return values of ``Engine.run``: all lanes are finished; the requested events are done; the caller must load more
changes of links and speeds; the clock would leave its grid; deadlock."""


class Engine:
    """Discrete-event simulation of one set of ``EngineTables``; calls of ``run`` continue from the last state."""

    def __init__(self, tables: EngineTables, ticks: float, until: float, *, keeps_times: bool) -> None:
        kinds, instances = tables.kinds, tables.instances
        self.buffers = Buffers()
        self._until = until
        self.change = self._changes = 0
        self._more_changes = False
        self.queue = EventQueue(2 * int(instances.lane_first.max()) + 64, ticks)
        self.lanes = LaneStates(tables, self.queue, keeps_times=keeps_times)
        self.links = LinkTransfers(self.queue, tables.traffics, tables.capacity)
        self.meetings = RendezvousStates(tables, self.lanes)
        self.ranks = RankComputations(self.lanes, self.links, self.meetings, instances, kinds)
        if tables.collectives:
            self.rounds = HopByHopCollectives(self.links, self.meetings, kinds, tables.collectives)
        self._position = self.buffers.view_ints("position", instances.position)
        self._position_count = instances.position.shape[1]
        self._traffic_first = self.buffers.view_ints("traffic_first", kinds.traffic_first)
        self._traffic = self.buffers.view_ints("traffic", kinds.traffic)
        self._in_rounds = self.buffers.view_ints("in_rounds", kinds.rounds)
        self._joins_ahead = not (tables.collectives or tables.speeds or tables.capacities or self.ranks.drags)

    def load_link_and_speed_changes(self, times: Any, of: Any, factors: Any, more: cython.bint) -> None:
        """Load time-ordered changes of link capacity and rank speed; ``of`` has link numbers, or -1 - rank."""
        self._change_time = self.buffers.view_doubles("change_time", times)
        self._change_of = self.buffers.view_ints("change_of", of)
        self._change_factor = self.buffers.view_doubles("change_factor", factors)
        self.change = 0
        self._changes = len(times)
        self._more_changes = more

    def count_events(self) -> cython.longlong:
        """Return the number of events processed so far."""
        return self.links.events + self.lanes.events

    def count_finished_ops(self) -> cython.longlong:
        """Return the number of finished ops."""
        return self.meetings.over + self.lanes.events

    def run(self, events: cython.longlong) -> cython.int:
        """Process about ``events`` more events; return the reason for stopping (OVER, PAUSED, ...)."""
        stop: cython.longlong = self.count_events() + events
        while True:
            self._process_instant()
            if self.lanes.lanes_over == self.lanes.count:
                return 0
            if self.count_events() >= stop:
                return 1
            time = self._next_instant()
            if self._more_changes and self._change_time[self._changes - 1] <= time < INFINITE:
                return 2
            if time >= self._until or time == INFINITE:
                return 3 if time < INFINITE else self._stop_in_deadlock()
            self.queue.now = time

    def _stop_in_deadlock(self) -> cython.int:
        """Mark every unfinished lane as waiting at its next op, for the deadlock message; return STUCK."""
        for lane in range(self.lanes.count):
            self.lanes.at[lane] = max(self.lanes.at[lane], self.lanes.state[lane].last + 1)
        return 4

    def _next_instant(self) -> cython.double:
        time: cython.double = self.next_event_time()
        changes: cython.bint = self.links.under_way or self.ranks.computing_lanes  # else changes have no effect
        if changes and self.change < self._changes and self._change_time[self.change] < time:
            return self._change_time[self.change]
        return time

    def next_event_time(self) -> cython.double:
        """Return the time of the next event if links and speeds stay unchanged; infinity for none."""
        queue: EventQueue = self.queue
        while queue.count:
            key = queue.peek_key()
            time = self.links.state[key >> 1].due if key & 1 else self.lanes.state[key >> 1].due
            if time == queue.chains[0].time:
                return time
            queue.pop()  # it was put off, or came earlier
        return INFINITE

    def _apply_changes(self) -> cython.void:
        while self.change < self._changes and self._change_time[self.change] <= self.queue.now:
            of = self._change_of[self.change]
            if of >= 0:
                self.links.set_capacity_factor(of, self._change_factor[self.change])
            else:
                self.ranks.set_speed(-1 - of, self._change_factor[self.change])
            self.change += 1

    def _process_instant(self) -> cython.void:
        self._apply_changes()
        while True:
            if self.lanes.ready_count:
                self.lanes.ready_count -= 1
                lane = self.lanes.ready_lanes[self.lanes.ready_count]
                if self.lanes.try_begin_op(lane):
                    self._begin_op(lane)
            elif self.queue.count and self.queue.chains[0].time <= self.queue.now:
                self._process_event()
            elif self.links.needs_update():
                self.links.update_rates()
            elif self.ranks.changed:
                self.ranks.update_changed_ranks()
            else:
                return

    def _process_event(self) -> cython.void:
        time: cython.double = self.queue.chains[0].time
        key: cython.int = self.queue.pop()
        if cython.compiled and self.queue.count:  # fetch the next lane, or what is in its place
            prefetch(cython.address(self.lanes.state[self.queue.peek_key() >> 1]))
        if key & 1:
            if self.links.state[key >> 1].due == time:
                self._advance_transfer(key >> 1)
        elif self.lanes.state[key >> 1].due == time:
            meeting: cython.int = self.lanes.state[key >> 1].meeting - 1
            if meeting >= 0:
                if self.meetings.is_last_arrival_due(meeting):
                    self._begin_transfer_if_all_arrived(meeting)
            else:
                self.ranks.end_computation(key >> 1)
                self.lanes.end_op(key >> 1)

    def _begin_op(self, lane: cython.int) -> cython.void:
        """Begin a lane's current op: a computation, a fixed delay, or its part of a communication."""
        place: cython.int = self.lanes.template_op_index(lane, self.lanes.at[lane])
        if self.lanes.ops[place].slot < 0:
            self.ranks.begin_computation(lane, self._joins_ahead)
            return
        self.lanes.state[lane].due = self.queue.now
        self.meetings.assign_rendezvous(lane, place)
        meeting: cython.int = self.lanes.state[lane].meeting - 1
        kind: cython.int = self.meetings.count_arrival(lane)
        if kind >= 0 and self._in_rounds[kind] >= 0:
            self._join_hop_by_hop_collective(lane, place, kind)
            return
        self.meetings.add_lane(lane)
        if self.meetings.have_all_joined(meeting):
            self._begin_transfer_if_all_arrived(meeting)

    def _join_hop_by_hop_collective(self, lane: cython.int, place: cython.int, kind: cython.int) -> cython.void:
        slot: cython.int = self.lanes.state[lane].instance * self._position_count + self.lanes.ops[place].slot
        meeting: cython.int = self.lanes.state[lane].meeting - 1
        self.meetings.record_arrival(lane, self.meetings.record[meeting].arrived == 1)
        if not self.meetings.record[meeting].head:
            self.meetings.record[meeting].head = -1 - self.rounds.allocate_state(self._in_rounds[kind])
        self.rounds.begin_member(-1 - self.meetings.record[meeting].head, self._position[slot], lane)

    def _begin_transfer_if_all_arrived(self, meeting: cython.int) -> cython.void:
        if not self.meetings.check_all_arrived(meeting):
            return
        kind: cython.int = self.meetings.record[meeting].kind - 1
        first: cython.int = self._traffic_first[kind]
        if first == self._traffic_first[kind + 1]:
            self._end_rendezvous(meeting)
            return
        activity: cython.int = self.links.allocate()
        self.links.state[activity].kind = kind
        self.links.state[activity].meeting = meeting
        self.links.state[activity].hop = -1
        self.links.state[activity].stage = first
        self.ranks.begin_communication(activity, kind)
        self.links.begin_transfer(activity, self._traffic[first], 1.0)

    def _advance_transfer(self, activity: cython.int) -> cython.void:
        """Advance a transfer; when it ends, begin the communication's next transfer or end the communication."""
        if not self.links.advance_transfer(activity):
            return
        kind: cython.int = self.links.state[activity].kind
        meeting: cython.int = self.links.state[activity].meeting
        stage: cython.int = self.links.state[activity].stage + 1
        if self.links.state[activity].hop >= 0:
            self.rounds.end_hop_round(activity)
        elif stage < self._traffic_first[kind + 1]:
            self.links.state[activity].stage = stage
            self.links.begin_transfer(activity, self._traffic[stage], self.links.state[activity].drag)
        else:
            self.ranks.end_communication(activity, kind)
            self.links.free(activity)
            self._end_rendezvous(meeting)

    def _end_rendezvous(self, meeting: cython.int) -> cython.void:
        lane: cython.int = self.meetings.record[meeting].head - 1
        while lane >= 0:
            after: cython.int = self.lanes.following[lane] - 1
            if self.lanes.at[lane] <= self.lanes.state[lane].last:
                self.ranks.end_computation(lane)
                self.lanes.at[lane] += 1
            self.meetings.end_lane_communication(lane)
            lane = after
