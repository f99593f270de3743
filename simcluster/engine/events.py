"""The loop over instants: lanes of ops, what they wait for, and where they meet; compiled.

``reference.plain`` defines it.  Events of one instant are processed in any order.  Then rates on links are computed
anew and computations continue at their new speed, which may cause more events at the same instant.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import cython
import numpy as np

from simcluster.engine.hop_tables import hop_tables
from simcluster.engine.op_times import KeptTimes
from simcluster.engine.tables import Tables

if not cython.compiled:
    from simcluster.base.event_queue import EventQueue
    from simcluster.base.pointers import Buffers
    from simcluster.engine.lanes import LaneStates
    from simcluster.engine.links import LinkActivities
    from simcluster.engine.ranks import RankActivities
    from simcluster.engine.rounds import RoundsUnderWay

    rint = np.rint
    Meeting = SimpleNamespace

    def prefetch(record: object) -> None:
        """Do nothing; compiled modules use the processor's prefetch instruction."""


OVER, PAUSED, NEEDS_CHANGES, BEYOND_GRID, STUCK = range(5)
"""What ``Engine.run`` returns: all lanes are over; as many events are processed as the caller asked for; the caller has
to load more changes of links and speeds; the clock leaves its grid; nothing can happen any more."""

MEETING = [
    ("since", np.float64),
    *((name, np.int32) for name in ("arrived", "kind", "head", "last", "number", "unused")),
]
"""Fields of a Meeting (see the .pxd file): ``since`` is the time of the last of ``arrived`` arrivals, by op ``last`` of
rank ``number``; ``kind`` is plus one; ``head`` is the lane that arrived last, or the state in rounds, plus one."""
_INFINITE = cython.declare(cython.double, math.inf)
_KEPT = ("since", "kind", "last", "number")


class Engine:
    """Simulates tables; the state stays here between two calls of ``run``."""

    def __init__(self, tables: Tables, ticks: float, until: float, *, keeps_times: bool) -> None:
        kinds, ranks = tables.kinds, int(tables.instances.rank_first.max())
        self.buffers = Buffers()
        self._ticks, self._until = ticks, until
        self.now = 0.0
        self.events = self.change = self._changes = 0
        self._more_changes = False
        self.lanes = LaneStates(tables, keeps_times=keeps_times)
        self.queue = EventQueue(2 * self.lanes.count + 64)
        self.links = LinkActivities(self.queue, tables.traffics, tables.capacity, ticks)
        self.ranks = RankActivities(self.queue, self.links, kinds, ranks, self.lanes.count, ticks)
        if tables.collectives:
            self.rounds = RoundsUnderWay(self.links, hop_tables(kinds, tables.collectives), self.lanes.count)
        self._use_tables(tables)

    def _use_tables(self, tables: Tables) -> None:
        buffers = self.buffers
        instances, groups, kinds = tables.instances, tables.groups, tables.kinds
        firsts = [groups.place_first[instances.group], groups.kind_first[instances.group]]  # not used without a group
        self._slots = buffers.given_ints("slots", np.stack(firsts, axis=-1))
        self._position = buffers.given_ints("position", instances.position)
        self._group_count = instances.group.shape[1]
        self._position_count = instances.position.shape[1]
        self._own_seconds = buffers.given_ints("own_seconds", instances.own_seconds)
        self._own = buffers.given_doubles("own", instances.seconds)
        self._number = buffers.given_ints("number", instances.number)
        self._slowness = buffers.given_doubles("slowness", instances.slowness)
        self._kinds = buffers.given_ints("kinds", groups.kinds)
        self._parties = buffers.given_ints("parties", kinds.parties)
        self._traffic_first = buffers.given_ints("traffic_first", kinds.traffic_first)
        self._traffic = buffers.given_ints("traffic", kinds.traffic)
        self._in_rounds = buffers.given_ints("in_rounds", kinds.rounds)
        records = buffers.records("meetings", MEETING, int(groups.place_first.max()))
        self._meetings = cython.cast(cython.pointer(Meeting), records) if cython.compiled else records

    def load_changes(self, times: Any, of: Any, factors: Any, more: cython.bint) -> None:
        """Use these changes of links (by number) and of the speeds of ranks (-1 minus the rank), in order of time."""
        self._change_time = self.buffers.given_doubles("change_time", times)
        self._change_of = self.buffers.given_ints("change_of", of)
        self._change_factor = self.buffers.given_doubles("change_factor", factors)
        self.change = 0
        self._changes = len(times)
        self._more_changes = more

    def run(self, events: cython.longlong) -> cython.int:
        """Process that many events, or a few more; return why it stops."""
        stop: cython.longlong = self.events + events
        time: cython.double
        while True:
            self._finish_instant()
            if self.lanes.lanes_over == self.lanes.count:
                return 0
            if self.events >= stop:
                return 1
            time = self._next_time()
            if self._more_changes and self._change_time[self._changes - 1] <= time < _INFINITE:
                return 2
            if time >= self._until or time == _INFINITE:
                return 3 if time < _INFINITE else 4
            self.now = time

    def _next_time(self) -> cython.double:
        """Return when something will happen next; infinite for never."""
        time: cython.double = self.next_event()
        changes: cython.bint = self.links.under_way or self.ranks.computing_lanes  # else changes have no effect
        if changes and self.change < self._changes and self._change_time[self.change] < time:
            return self._change_time[self.change]
        return time

    def next_event(self) -> cython.double:
        """Return when the next event is due unless links or speeds change; infinity if there is none."""
        time: cython.double
        key: cython.int
        queue: EventQueue = self.queue
        while queue.count:
            key = queue.key()
            time = self.links.due[key >> 1] if key & 1 else self.ranks.computation[key >> 1].due
            if time == queue.chains[0].time:
                return time
            queue.pop()  # it was put off, or came earlier
        return _INFINITE

    def _apply_changes(self) -> cython.void:
        of: cython.int
        while self.change < self._changes and self._change_time[self.change] <= self.now:
            of = self._change_of[self.change]
            if of >= 0:
                self.links.set_factor(of, self._change_factor[self.change], self.now)
            else:
                self.ranks.set_speed(-1 - of, self._change_factor[self.change])
            self.change += 1

    def _finish_instant(self) -> cython.void:
        """Do all that happens at this instant."""
        lane: cython.int
        op: cython.int
        self._apply_changes()
        while True:
            if self.lanes.ready_count:
                self.lanes.ready_count -= 1
                lane = self.lanes.ready_lanes[self.lanes.ready_count]
                if self.lanes.ready_count > 3:
                    self._fetch(self.lanes.ready_lanes[self.lanes.ready_count - 4])
                op = self.lanes.next_op(lane)
                if op >= 0:
                    self._begin(lane, op)
            elif self.queue.count and self.queue.chains[0].time <= self.now:
                self._take_event()
            elif self.links.changed():
                self.links.settle(self.now)
            elif self.ranks.changed:
                self.ranks.settle(self.now)
            else:
                return

    def _take_event(self) -> cython.void:
        time: cython.double = self.queue.chains[0].time
        key: cython.int = self.queue.pop()
        after: cython.int
        i: cython.int
        for i in range(min(5, self.queue.count)):  # most likely, these are next
            after = self.queue.events[self.queue.chains[i].first].key
            if not after & 1:
                self._fetch(after >> 1)
        if key & 1:
            if self.links.due[key >> 1] == time:
                self.events += 1
                self._advance_activity(key >> 1)
        elif self.ranks.computation[key >> 1].due == time:
            self.events += 1
            self.ranks.advance(key >> 1)
            self.lanes.end_op(key >> 1, self.now)

    def _fetch(self, lane: cython.int) -> cython.void:
        """Prefetch the state of a lane, so that the processor does not wait for memory."""
        if cython.compiled:
            prefetch(cython.address(self.ranks.computation[lane]))
            prefetch(cython.address(self.lanes.state[lane]))

    def _begin(self, lane: cython.int, op: cython.int) -> cython.void:
        """Begin an op: meet others, compute, or wait for a time that nothing changes."""
        place: cython.int = op + self.lanes.state[lane].shift
        if self.lanes.ops[place].slot >= 0:
            self._meet(lane, op)
            return
        own: cython.int = self._own_seconds[self.lanes.state[lane].instance]
        seconds: cython.double = self.lanes.ops[place].seconds
        rank: cython.int = self.lanes.state[lane].rank
        if own >= 0:
            seconds = self._own[own + op - self.lanes.state[lane].base]
        if self.lanes.ops[place].sensitivity < 0.0:
            self.ranks.wait(lane, rint(seconds * self._ticks) / self._ticks, self.now)
            return
        seconds = rint(seconds * self._slowness[rank] * self._ticks) / self._ticks
        self.ranks.compute(lane, rank, seconds, self.lanes.ops[place].sensitivity, self.now)

    def _meet(self, lane: cython.int, op: cython.int) -> cython.void:
        """Arrive at a communication; the last to come begins it."""
        place: cython.int = op + self.lanes.state[lane].shift
        slot: cython.int = 2 * (self.lanes.state[lane].instance * self._group_count + self.lanes.ops[place].slot)
        meeting: cython.int = self._slots[slot] + self.lanes.ops[place].place
        kind: cython.int = self._meetings[meeting].kind - 1
        if kind < 0 and self.lanes.ops[place].work >= 0:
            kind = self._kinds[self._slots[slot + 1] + self.lanes.ops[place].work]
            self._meetings[meeting].kind = kind + 1
        self._note_arrival(meeting, op, self._number[self.lanes.state[lane].rank])
        if kind >= 0 and self._in_rounds[kind] >= 0:
            self._arrive_in_rounds(lane, place, meeting, kind)
            return
        self.lanes.state[lane].following = self._meetings[meeting].head
        self._meetings[meeting].head = lane + 1
        if kind >= 0 and self._meetings[meeting].arrived == self._parties[kind]:
            self._all_there(meeting, kind)

    def _note_arrival(self, meeting: cython.int, op: cython.int, number: cython.int) -> cython.void:
        """Record that an op of rank ``number`` arrives; of several arrivals at an instant, keep the lowest number."""
        since: cython.double = self._meetings[meeting].since
        other: cython.int = self._meetings[meeting].number
        first: cython.bint = self._meetings[meeting].arrived == 0
        self._meetings[meeting].arrived += 1
        if first or since < self.now or number < other or (number == other and op < self._meetings[meeting].last):
            self._meetings[meeting].since = self.now
            self._meetings[meeting].last = op
            self._meetings[meeting].number = number

    def _arrive_in_rounds(
        self, lane: cython.int, place: cython.int, meeting: cython.int, kind: cython.int
    ) -> cython.void:
        """Begin a member's part of a collective that goes round by round."""
        position: cython.int = self._position[
            self.lanes.state[lane].instance * self._position_count + self.lanes.ops[place].slot
        ]
        if not self._meetings[meeting].head:
            self._meetings[meeting].head = self.rounds.allocate(self._in_rounds[kind]) + 1
        self.rounds.arrive(self._meetings[meeting].head - 1, position, lane, self.now)
        self._drain_rounds()

    def _all_there(self, meeting: cython.int, kind: cython.int) -> cython.void:
        """Begin a communication."""
        first: cython.int = self._traffic_first[kind]
        if first == self._traffic_first[kind + 1]:
            self._end_meeting(meeting)
            return
        activity: cython.int = self.links.take()
        self.links.kind[activity] = kind
        self.links.meeting[activity] = meeting
        self.links.hop[activity] = -1
        self.links.stage[activity] = first
        self.ranks.take_off(activity, kind)
        self.links.begin(activity, self._traffic[first], 1.0, self.now)

    def _advance_activity(self, activity: cython.int) -> cython.void:
        """Advance an activity; when it ends, begin the next one of its communication, or end the communication."""
        if not self.links.advance(activity, self.now):
            return
        kind: cython.int = self.links.kind[activity]
        meeting: cython.int = self.links.meeting[activity]
        stage: cython.int = self.links.stage[activity] + 1
        if self.links.hop[activity] >= 0:
            self.rounds.end_hop(activity, self.now)
            self._drain_rounds()
        elif stage < self._traffic_first[kind + 1]:
            self.links.stage[activity] = stage
            self.links.begin(activity, self._traffic[stage], self.ranks.drag_of(activity, kind), self.now)
        else:
            self.ranks.land(activity, kind)
            self.links.give_back(activity)
            self._end_meeting(meeting)

    def _end_meeting(self, meeting: cython.int) -> cython.void:
        """End the op of every lane that met."""
        lane: cython.int = self._meetings[meeting].head - 1
        after: cython.int
        while lane >= 0:
            after = self.lanes.state[lane].following - 1
            self.lanes.end_op(lane, self.now)
            lane = after

    def _drain_rounds(self) -> cython.void:
        """End the ops of lanes whose part of a collective in rounds is over."""
        while self.rounds.left:
            self.rounds.left -= 1
            self.lanes.end_op(self.rounds.left_lane[self.rounds.left], self.now)

    def kept_times(self) -> KeptTimes:
        """Return the times that the engine kept."""
        since, kind, last, number = [self.buffers.column("meetings", name) for name in _KEPT]
        in_rounds = np.append(self.buffers.read("in_rounds"), -1)[kind - 1] >= 0
        return KeptTimes(self.lanes.buffers.read("end"), np.where(in_rounds, -1.0, since), last, number)

    def arrived(self, meeting: cython.int) -> tuple[int, int]:
        """Return how many have arrived at a meeting, and its kind, -1 if that is not known."""
        return self._meetings[meeting].arrived, self._meetings[meeting].kind - 1
