"""Rendezvous: a communication begins when one op of every member of its group has arrived; compiled."""

from __future__ import annotations

from types import SimpleNamespace

import cython
import numpy as np

from simcluster.engine.op_times import RecordedTimes
from simcluster.engine.tables import EngineTables

if not cython.compiled:
    from simcluster.base.pointers import Buffers, prefetch
    from simcluster.engine.lanes import LaneStates

    Meeting = SimpleNamespace

MEETING = [
    ("since", np.float64),
    *((name, np.int32) for name in ("arrived", "kind", "head", "latest", "last", "number")),
]
"""Fields of a rendezvous (see the .pxd file): ``since`` is the time of the last of ``arrived`` arrivals, op ``last`` of
rank ``number``; ``kind`` is plus one; ``head`` is the lane that joined last, plus one, or -1 minus the state in rounds;
``latest`` is the lane that arrives last, plus one, as far as is known, 0 once all have arrived."""


class RendezvousStates:
    """State of every rendezvous (one communication of one group), and the lanes that take part.

    A lane joins when the time of its arrival, ``due``, is known, which may be later than now.  Of lanes that will have
    arrived by the time that another one does, only that other one has an event.  ``over`` counts ops that are over.
    """

    def __init__(self, tables: EngineTables, lanes: LaneStates) -> None:
        self.buffers = buffers = Buffers()
        instances, groups, kinds = tables.instances, tables.groups, tables.kinds
        self.lanes, self._in_rounds = lanes, kinds.rounds
        firsts = [groups.place_first[instances.group], groups.kind_first[instances.group]]  # not used without a group
        self._slots = buffers.view_ints("slots", np.stack(firsts, axis=-1))
        self.over = 0
        self._group_count = instances.group.shape[1]
        self._kinds = buffers.view_ints("kinds", groups.kinds)
        self._parties = buffers.view_ints("parties", kinds.parties)
        records = buffers.records("meetings", MEETING, int(groups.place_first.max()))
        self.record = cython.cast(cython.pointer(Meeting), records) if cython.compiled else records

    def assign_rendezvous(self, lane: cython.int, place: cython.int) -> cython.void:
        """Set the rendezvous of a lane's op; ``place`` is the op's index in the template table."""
        slot: cython.int = self.lanes.state[lane].instance * self._group_count + self.lanes.ops[place].slot
        meeting: cython.int = self._slots[2 * slot] + self.lanes.ops[place].place
        self.lanes.state[lane].meeting = meeting + 1
        self.lanes.state[lane].joined = 0
        if cython.compiled:
            prefetch(cython.address(self.record[meeting]))

    def count_arrival(self, lane: cython.int) -> cython.int:
        """Count the arrival of a lane's op; return the kind of communication, -1 if not yet known."""
        meeting: cython.int = self.lanes.state[lane].meeting - 1
        place: cython.int = self.lanes.template_op_index(lane, self.lanes.state[lane].last + 1)
        slot: cython.int = self.lanes.state[lane].instance * self._group_count + self.lanes.ops[place].slot
        if not self.record[meeting].kind and self.lanes.ops[place].work >= 0:
            self.record[meeting].kind = self._kinds[self._slots[2 * slot + 1] + self.lanes.ops[place].work] + 1
        self.record[meeting].arrived += 1
        return self.record[meeting].kind - 1

    def add_lane(self, lane: cython.int) -> cython.void:
        """Add a lane to the list of lanes of its rendezvous."""
        meeting: cython.int = self.lanes.state[lane].meeting - 1
        self.lanes.state[lane].joined = 1
        self.lanes.following[lane] = self.record[meeting].head
        self.record[meeting].head = lane + 1

    def expect_arrival(self, lane: cython.int) -> cython.void:
        """Register a lane's expected arrival at time ``due``; schedule the latest arrival once all are known."""
        meeting: cython.int = self.lanes.state[lane].meeting - 1
        latest: cython.int = self.record[meeting].latest - 1
        joins: cython.bint = not self.lanes.state[lane].joined
        if joins:
            self.count_arrival(lane)
            self.add_lane(lane)
        if latest < 0 or latest == lane or self.lanes.state[lane].due > self.lanes.state[latest].due:
            self.record[meeting].latest = lane + 1
            latest = lane
        elif not joins:
            return
        if self.have_all_joined(meeting):
            self.lanes.schedule_event(latest)

    def have_all_joined(self, meeting: cython.int) -> cython.bint:
        """Return whether all lanes have joined the rendezvous (their arrival times are known)."""
        kind: cython.int = self.record[meeting].kind - 1
        return kind >= 0 and self.record[meeting].arrived == self._parties[kind]

    def is_last_arrival_due(self, meeting: cython.int) -> cython.bint:
        """Return whether the lane that is expected last at a rendezvous arrives now."""
        latest: cython.int = self.record[meeting].latest - 1
        return latest >= 0 and self.lanes.state[latest].due <= self.lanes.queue.now and self.have_all_joined(meeting)

    def check_all_arrived(self, meeting: cython.int) -> cython.bint:
        """Return whether all lanes have arrived; if not, schedule the arrival of the latest one."""
        lane: cython.int = self.record[meeting].head - 1
        latest: cython.int = lane
        self.record_arrival(lane, True)
        while self.lanes.following[lane]:
            lane = self.lanes.following[lane] - 1
            if self.record_arrival(lane, False):
                latest = lane
        if self.lanes.state[latest].due <= self.lanes.queue.now:
            self.record[meeting].latest = 0
            return True
        self.record[meeting].latest = latest + 1
        self.lanes.schedule_event(latest)
        return False

    def record_arrival(self, lane: cython.int, first: cython.bint) -> cython.bint:
        """Record a lane's arrival if it is the latest; ties go to the lowest rank, then the lowest op."""
        meeting: cython.int = self.lanes.state[lane].meeting - 1
        due: cython.double = self.lanes.state[lane].due
        number: cython.int = self.lanes.state[lane].number
        op: cython.int = self.lanes.global_op_number(lane, self.lanes.state[lane].last + 1)
        if not first:
            if due != self.record[meeting].since:
                first = due > self.record[meeting].since
            elif number != self.record[meeting].number:
                first = number < self.record[meeting].number
            else:
                first = op < self.record[meeting].last
        if first:
            self.record[meeting].since = due
            self.record[meeting].last = op
            self.record[meeting].number = number
        return first

    def end_lane_communication(self, lane: cython.int) -> cython.void:
        """End a lane's communication: the lane leaves its rendezvous and its op ends."""
        self.lanes.state[lane].meeting = 0
        self.over += 1
        self.lanes.end_op(lane)

    def recorded_times(self) -> RecordedTimes:
        """Return the recorded times of ops and of rendezvous."""
        names = ("since", "kind", "last", "number")
        since, kind, last, number = [self.buffers.column("meetings", name) for name in names]
        in_rounds = np.append(self._in_rounds, -1)[kind - 1] >= 0
        return RecordedTimes(self.lanes.buffers.contents("end"), np.where(in_rounds, -1.0, since), last, number)

    def arrivals_and_kind(self, meeting: cython.int) -> tuple[int, int]:
        """Return the number of arrivals at a rendezvous, and its kind of communication (-1: unknown)."""
        return self.record[meeting].arrived, self.record[meeting].kind - 1
