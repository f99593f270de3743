"""The loop over instants: lanes of ops, what they wait for, and where they meet; compiled.

``reference.plain`` defines it.  Events of one instant are processed in any order.  Then rates on links are computed
anew and computations continue at their new speed, which may cause more events at the same instant.
"""

from __future__ import annotations

from typing import Any

import cython

from simcluster.engine.tables import Tables

if not cython.compiled:
    from simcluster.base.pointers import Buffers, prefetch
    from simcluster.engine.event_queue import INFINITE, EventQueue
    from simcluster.engine.lanes import LaneStates
    from simcluster.engine.links import LinkActivities
    from simcluster.engine.meetings import MeetingStates
    from simcluster.engine.ranks import RankActivities
    from simcluster.engine.rounds import RoundsUnderWay
    from simcluster.engine.template_ops import TemplateOps as TemplateOps

PARTS = ("event_queue", "memberships", "max_min", "links", "template_ops", "lanes", "meetings", "ranks", "rounds")
"""The modules that are compiled as one with this one, in this order: calls between them cost little."""

OVER, PAUSED, NEEDS_CHANGES, BEYOND_GRID, STUCK = range(5)
"""What ``Engine.run`` returns: all lanes are over; as many events are processed as the caller asked for; the caller has
to load more changes of links and speeds; the clock leaves its grid; nothing can happen any more."""


class Engine:
    """Simulates tables; the state stays here between two calls of ``run``."""

    def __init__(self, tables: Tables, ticks: float, until: float, *, keeps_times: bool) -> None:
        kinds, instances = tables.kinds, tables.instances
        self.buffers = Buffers()
        self._until = until
        self.change = self._changes = 0
        self._more_changes = False
        self.queue = EventQueue(2 * int(instances.lane_first.max()) + 64, ticks)
        self.lanes = LaneStates(tables, self.queue, keeps_times=keeps_times)
        self.links = LinkActivities(self.queue, tables.traffics, tables.capacity)
        self.meetings = MeetingStates(tables, self.lanes)
        self.ranks = RankActivities(self.lanes, self.links, self.meetings, instances, kinds)
        if tables.collectives:
            self.rounds = RoundsUnderWay(self.links, self.meetings, kinds, tables.collectives)
        self._position = self.buffers.given_ints("position", instances.position)
        self._position_count = instances.position.shape[1]
        self._traffic_first = self.buffers.given_ints("traffic_first", kinds.traffic_first)
        self._traffic = self.buffers.given_ints("traffic", kinds.traffic)
        self._in_rounds = self.buffers.given_ints("in_rounds", kinds.rounds)
        self._joins_ahead = not (tables.collectives or tables.speeds or tables.capacities or self.ranks.drags)

    def load_changes(self, times: Any, of: Any, factors: Any, more: cython.bint) -> None:
        """Use these changes of links (by number) and of the speeds of ranks (-1 minus the rank), in order of time."""
        self._change_time = self.buffers.given_doubles("change_time", times)
        self._change_of = self.buffers.given_ints("change_of", of)
        self._change_factor = self.buffers.given_doubles("change_factor", factors)
        self.change = 0
        self._changes = len(times)
        self._more_changes = more

    def events(self) -> cython.longlong:
        """Return how many events are processed."""
        return self.links.events + self.lanes.events

    def ops_over(self) -> cython.longlong:
        """Return how many ops are over."""
        return self.meetings.over + self.lanes.events

    def run(self, events: cython.longlong) -> cython.int:
        """Process that many events, or a few more; return why it stops."""
        stop: cython.longlong = self.events() + events
        while True:
            self._finish_instant()
            if self.lanes.lanes_over == self.lanes.count:
                return 0
            if self.events() >= stop:
                return 1
            time = self._next_time()
            if self._more_changes and self._change_time[self._changes - 1] <= time < INFINITE:
                return 2
            if time >= self._until or time == INFINITE:
                return 3 if time < INFINITE else self._stop()
            self.queue.now = time

    def _stop(self) -> cython.int:
        """Let all lanes arrive where they wait for others that never come; return why the engine stops."""
        for lane in range(self.lanes.count):
            self.lanes.at[lane] = max(self.lanes.at[lane], self.lanes.state[lane].last + 1)
        return 4

    def _next_time(self) -> cython.double:
        time: cython.double = self.next_event()
        changes: cython.bint = self.links.under_way or self.ranks.computing_lanes  # else changes have no effect
        if changes and self.change < self._changes and self._change_time[self.change] < time:
            return self._change_time[self.change]
        return time

    def next_event(self) -> cython.double:
        """Return when the next event is due unless links or speeds change; infinity if there is none."""
        queue: EventQueue = self.queue
        while queue.count:
            key = queue.key()
            time = self.links.state[key >> 1].due if key & 1 else self.lanes.state[key >> 1].due
            if time == queue.chains[0].time:
                return time
            queue.pop()  # it was put off, or came earlier
        return INFINITE

    def _apply_changes(self) -> cython.void:
        while self.change < self._changes and self._change_time[self.change] <= self.queue.now:
            of = self._change_of[self.change]
            if of >= 0:
                self.links.set_factor(of, self._change_factor[self.change])
            else:
                self.ranks.set_speed(-1 - of, self._change_factor[self.change])
            self.change += 1

    def _finish_instant(self) -> cython.void:
        self._apply_changes()
        while True:
            if self.lanes.ready_count:
                self.lanes.ready_count -= 1
                lane = self.lanes.ready_lanes[self.lanes.ready_count]
                if self.lanes.begins(lane):
                    self._begin(lane)
            elif self.queue.count and self.queue.chains[0].time <= self.queue.now:
                self._take_event()
            elif self.links.changed():
                self.links.settle()
            elif self.ranks.changed:
                self.ranks.settle()
            else:
                return

    def _take_event(self) -> cython.void:
        time: cython.double = self.queue.chains[0].time
        key: cython.int = self.queue.pop()
        if cython.compiled and self.queue.count:  # fetch the next lane, or what is in its place
            prefetch(cython.address(self.lanes.state[self.queue.key() >> 1]))
        if key & 1:
            if self.links.state[key >> 1].due == time:
                self._advance_activity(key >> 1)
        elif self.lanes.state[key >> 1].due == time:
            meeting: cython.int = self.lanes.state[key >> 1].meeting - 1
            if meeting >= 0:
                if self.meetings.is_due(meeting):
                    self._begin_if_all_arrived(meeting)
            else:
                self.ranks.end(key >> 1)
                self.lanes.end_op(key >> 1)

    def _begin(self, lane: cython.int) -> cython.void:
        """Begin an op: meet others, compute, or wait for a time that nothing changes."""
        place: cython.int = self.lanes.place(lane, self.lanes.at[lane])
        if self.lanes.ops[place].slot < 0:
            self.ranks.begin(lane, self._joins_ahead)
            return
        self.lanes.state[lane].due = self.queue.now
        self.meetings.find(lane, place)
        meeting: cython.int = self.lanes.state[lane].meeting - 1
        kind: cython.int = self.meetings.count(lane)
        if kind >= 0 and self._in_rounds[kind] >= 0:
            self._arrive_in_rounds(lane, place, kind)
            return
        self.meetings.join(lane)
        if self.meetings.is_full(meeting):
            self._begin_if_all_arrived(meeting)

    def _arrive_in_rounds(self, lane: cython.int, place: cython.int, kind: cython.int) -> cython.void:
        slot: cython.int = self.lanes.state[lane].instance * self._position_count + self.lanes.ops[place].slot
        meeting: cython.int = self.lanes.state[lane].meeting - 1
        self.meetings.note(lane, self.meetings.record[meeting].arrived == 1)
        if not self.meetings.record[meeting].head:
            self.meetings.record[meeting].head = -1 - self.rounds.allocate(self._in_rounds[kind])
        self.rounds.arrive(-1 - self.meetings.record[meeting].head, self._position[slot], lane)

    def _begin_if_all_arrived(self, meeting: cython.int) -> cython.void:
        if not self.meetings.are_there(meeting):
            return
        kind: cython.int = self.meetings.record[meeting].kind - 1
        first: cython.int = self._traffic_first[kind]
        if first == self._traffic_first[kind + 1]:
            self._end_meeting(meeting)
            return
        activity: cython.int = self.links.take()
        self.links.state[activity].kind = kind
        self.links.state[activity].meeting = meeting
        self.links.state[activity].hop = -1
        self.links.state[activity].stage = first
        self.ranks.take_off(activity, kind)
        self.links.begin(activity, self._traffic[first], 1.0)

    def _advance_activity(self, activity: cython.int) -> cython.void:
        """Advance an activity; when it ends, begin the next one of its communication, or end the communication."""
        if not self.links.advance(activity):
            return
        kind: cython.int = self.links.state[activity].kind
        meeting: cython.int = self.links.state[activity].meeting
        stage: cython.int = self.links.state[activity].stage + 1
        if self.links.state[activity].hop >= 0:
            self.rounds.end_hop(activity)
        elif stage < self._traffic_first[kind + 1]:
            self.links.state[activity].stage = stage
            self.links.begin(activity, self._traffic[stage], self.links.state[activity].drag)
        else:
            self.ranks.land(activity, kind)
            self.links.give_back(activity)
            self._end_meeting(meeting)

    def _end_meeting(self, meeting: cython.int) -> cython.void:
        lane: cython.int = self.meetings.record[meeting].head - 1
        while lane >= 0:
            after: cython.int = self.lanes.following[lane] - 1
            if self.lanes.at[lane] <= self.lanes.state[lane].last:
                self.ranks.end(lane)
                self.lanes.at[lane] += 1
            self.meetings.leave(lane)
            lane = after
