"""The loop over instants: lanes of ops, what they wait for, and where they meet; compiled.

``reference.plain`` defines it.  Events of one instant are processed in any order.  Then rates on links are computed
anew and computations continue at their new speed, which may cause more events at the same instant.
"""

from __future__ import annotations

import math
from typing import Any

import cython
import numpy as np

from simcluster.engine.hop_tables import hop_tables
from simcluster.engine.tables import Tables

if not cython.compiled:
    from simcluster.base.pointers import Buffers
    from simcluster.engine.event_queue import EventQueue
    from simcluster.engine.lanes import LaneStates
    from simcluster.engine.links import LinkActivities
    from simcluster.engine.ranks import RankActivities
    from simcluster.engine.rounds import RoundsUnderWay

    rint = np.rint

OVER, PAUSED, NEEDS_CHANGES, BEYOND_GRID, STUCK = range(5)
"""What ``Engine.run`` returns: all lanes are over; as many events are processed as the caller asked for; the caller has
to load more changes of links and speeds; the clock leaves its grid; nothing can happen any more."""

_INFINITE = cython.declare(cython.double, math.inf)
_NO_HOPS = hop_tables((), ())


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
        hops = _NO_HOPS
        if tables.collectives:
            members = np.ones(len(tables.collectives), dtype=np.int64)
            in_rounds = kinds.rounds >= 0
            np.maximum.at(members, kinds.rounds[in_rounds], kinds.parties[in_rounds])
            hops = hop_tables(tables.collectives, members.tolist())
        self.rounds = RoundsUnderWay(self.links, hops, self.lanes.count)
        self._use_tables(tables)

    def _use_tables(self, tables: Tables) -> None:
        buffers = self.buffers
        templates, instances, groups, kinds = tables.templates, tables.instances, tables.groups, tables.kinds
        self._seconds = buffers.given_doubles("seconds", templates.seconds)
        self._sensitivity = buffers.given_doubles("sensitivity", templates.sensitivity)
        self._slot = buffers.given_ints("slot", templates.slot)
        self._work = buffers.given_ints("work", templates.work)
        self._place = buffers.given_ints("place", templates.place)
        self._group = buffers.given_ints("group", instances.group)
        self._position = buffers.given_ints("position", instances.position)
        self._group_count = instances.group.shape[1]
        self._position_count = instances.position.shape[1]
        self._own_seconds = buffers.given_ints("own_seconds", instances.own_seconds)
        self._own = buffers.given_doubles("own", instances.seconds)
        self._number = buffers.given_ints("number", instances.number)
        self._slowness = buffers.given_doubles("slowness", instances.slowness)
        self._place_first = buffers.given_ints("place_first", groups.place_first)
        self._kind_first = buffers.given_ints("kind_first", groups.kind_first)
        self._kinds = buffers.given_ints("kinds", groups.kinds)
        self._parties = buffers.given_ints("parties", kinds.parties)
        self._traffic_first = buffers.given_ints("traffic_first", kinds.traffic_first)
        self._traffic = buffers.given_ints("traffic", kinds.traffic)
        self._in_rounds = buffers.given_ints("in_rounds", kinds.rounds)
        meetings = int(groups.place_first.max())
        self._arrived = buffers.ints("arrived", meetings)
        self._kind = buffers.ints("kind", meetings)  # plus one
        self._head = buffers.ints("head", meetings)  # the lane that arrived last, or the state in rounds, plus one

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
        time: cython.double = _INFINITE
        key: cython.int
        queue: EventQueue = self.queue
        while queue.count:
            key = queue.keys[0]
            time = self.links.due[key >> 1] if key & 1 else self.ranks.computation[key >> 1].due
            if time == queue.times[0]:
                break
            queue.pop()  # it was put off, or came earlier
            time = _INFINITE
        changes: cython.bint = self.links.under_way or self.ranks.computing_lanes  # else nothing is there to change
        if changes and self.change < self._changes and self._change_time[self.change] < time:
            return self._change_time[self.change]
        return time

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
                op = self.lanes.next_op(lane, self.now)
                if op >= 0:
                    self._begin(lane, op)
            elif self.queue.count and self.queue.times[0] <= self.now:
                self._take_event()
            elif self.links.changed():
                self.links.settle(self.now)
            elif self.ranks.changed:
                self.ranks.settle(self.now)
            else:
                return

    def _take_event(self) -> cython.void:
        time: cython.double = self.queue.times[0]
        key: cython.int = self.queue.pop()
        if key & 1:
            if self.links.due[key >> 1] == time:
                self.events += 1
                self._advance_activity(key >> 1)
        elif self.ranks.computation[key >> 1].due == time:
            self.events += 1
            self.ranks.advance(key >> 1)
            self.lanes.end_op(key >> 1, self.now)

    def _begin(self, lane: cython.int, op: cython.int) -> cython.void:
        """Begin an op: meet others, compute, or wait for a time that nothing changes."""
        place: cython.int = op + self.lanes.state[lane].shift
        if self._slot[place] >= 0:
            self._meet(lane, op)
            return
        own: cython.int = self._own_seconds[self.lanes.state[lane].instance]
        seconds: cython.double = self._seconds[place] if own < 0 else self._own[own + op - self.lanes.state[lane].base]
        rank: cython.int = self.lanes.state[lane].rank
        if self._sensitivity[place] < 0.0:
            self.ranks.wait(lane, rint(seconds * self._ticks) / self._ticks, self.now)
            return
        seconds = rint(seconds * self._slowness[rank] * self._ticks) / self._ticks
        self.ranks.compute(lane, rank, seconds, self._sensitivity[place], self.now)

    def _meet(self, lane: cython.int, op: cython.int) -> cython.void:
        """Arrive at a communication; the last to come begins it."""
        place: cython.int = op + self.lanes.state[lane].shift
        group: cython.int = self._group[self.lanes.state[lane].instance * self._group_count + self._slot[place]]
        meeting: cython.int = self._place_first[group] + self._place[place]
        if self._work[place] >= 0:
            self._kind[meeting] = self._kinds[self._kind_first[group] + self._work[place]] + 1
        kind: cython.int = self._kind[meeting] - 1
        self._arrived[meeting] += 1
        if kind >= 0 and self._in_rounds[kind] >= 0:
            self._arrive_in_rounds(lane, op, meeting, kind)
            return
        self.lanes.state[lane].following = self._head[meeting]
        self._head[meeting] = lane + 1
        if kind >= 0 and self._arrived[meeting] == self._parties[kind]:
            self._all_there(meeting, kind)

    def _arrive_in_rounds(self, lane: cython.int, op: cython.int, meeting: cython.int, kind: cython.int) -> cython.void:
        """Begin the part of a member of a collective in rounds."""
        place: cython.int = op + self.lanes.state[lane].shift
        position: cython.int = self._position[
            self.lanes.state[lane].instance * self._position_count + self._slot[place]
        ]
        collective: cython.int = self._in_rounds[kind]
        members: cython.int = self._parties[kind]
        if not self._head[meeting]:
            self._head[meeting] = self.rounds.allocate(collective) + 1
        state: cython.int = self._head[meeting] - 1
        self.rounds.arrive(collective, state, meeting, kind, position, lane, op, self.now)
        if self.lanes.keeps_times and self._arrived[meeting] == members:
            self._name_last_in_rounds(collective, state, members)
        self._drain_rounds()

    def _name_last_in_rounds(self, collective: cython.int, state: cython.int, members: cython.int) -> cython.void:
        """Note for all members which op arrived last."""
        last: cython.int = -1
        last_lane: cython.int = -1
        op: cython.int
        lane: cython.int
        position: cython.int
        for position in range(members):
            op = self.rounds.op_of(collective, state, position)
            lane = self.rounds.lane_of(collective, state, position)
            if self._is_last(op, lane, last, last_lane):
                last = op
                last_lane = lane
        for position in range(members):
            self.lanes.last[self.rounds.op_of(collective, state, position)] = last

    def _name_last(self, meeting: cython.int) -> cython.void:
        """Note for all members which op arrived last, and that all begin now."""
        last: cython.int = -1
        last_lane: cython.int = -1
        lane: cython.int = self._head[meeting] - 1
        while lane >= 0:
            if self._is_last(self.lanes.state[lane].op, lane, last, last_lane):
                last = self.lanes.state[lane].op
                last_lane = lane
            lane = self.lanes.state[lane].following - 1
        lane = self._head[meeting] - 1
        while lane >= 0:
            self.lanes.last[self.lanes.state[lane].op] = last
            self.lanes.start[self.lanes.state[lane].op] = self.now
            lane = self.lanes.state[lane].following - 1

    def _is_last(self, op: cython.int, lane: cython.int, last: cython.int, last_lane: cython.int) -> cython.bint:
        """Return whether an op arrives now, on a rank with a lower number than the last one known."""
        if self.lanes.ready[op] != self.now:
            return False
        if last < 0:
            return True
        number: cython.int = self._number[self.lanes.state[lane].rank]
        other: cython.int = self._number[self.lanes.state[last_lane].rank]
        return number < other or (number == other and op < last)

    def _all_there(self, meeting: cython.int, kind: cython.int) -> cython.void:
        """Begin a communication."""
        if self.lanes.keeps_times:
            self._name_last(meeting)
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
            self.rounds.end_hop(self._in_rounds[kind], self._head[meeting] - 1, activity, self.now)
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
        lane: cython.int = self._head[meeting] - 1
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

    def arrived(self, meeting: cython.int) -> tuple[int, int]:
        """Return how many have arrived at a meeting, and its kind, -1 if that is not known."""
        return self._arrived[meeting], self._kind[meeting] - 1
