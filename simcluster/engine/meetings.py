"""Meetings: communications whose ops, one of each member, have to arrive before they begin; compiled."""

from __future__ import annotations

from types import SimpleNamespace

import cython
import numpy as np

from simcluster.engine.op_times import KeptTimes
from simcluster.engine.tables import Tables

if not cython.compiled:
    from simcluster.base.pointers import Buffers, prefetch
    from simcluster.engine.lanes import LaneStates

    Meeting = SimpleNamespace

MEETING = [
    ("since", np.float64),
    *((name, np.int32) for name in ("arrived", "kind", "head", "latest", "last", "number")),
]
"""Fields of a Meeting (see the .pxd file): ``since`` is the time of the last of ``arrived`` arrivals, by op ``last`` of
rank ``number``; ``kind`` is plus one; ``head`` is the lane that joined last, plus one, or -1 minus the state in rounds;
``latest`` is the lane that arrives last, plus one, as far as is known, 0 once all have arrived."""


class MeetingStates:
    """Meetings of all groups, and the lanes that have joined them.

    A lane joins when the time of its arrival, ``due``, is known, which may be later than now.  Of lanes that will have
    arrived by the time that another one does, only that other one has an event.  ``over`` counts ops that are over.
    """

    def __init__(self, tables: Tables, lanes: LaneStates) -> None:
        self.buffers = buffers = Buffers()
        instances, groups, kinds = tables.instances, tables.groups, tables.kinds
        self.lanes, self._in_rounds = lanes, kinds.rounds
        firsts = [groups.place_first[instances.group], groups.kind_first[instances.group]]  # not used without a group
        self._slots = buffers.given_ints("slots", np.stack(firsts, axis=-1))
        self.over = 0
        self._group_count = instances.group.shape[1]
        self._kinds = buffers.given_ints("kinds", groups.kinds)
        self._parties = buffers.given_ints("parties", kinds.parties)
        records = buffers.records("meetings", MEETING, int(groups.place_first.max()))
        self.record = cython.cast(cython.pointer(Meeting), records) if cython.compiled else records

    def find(self, lane: cython.int, place: cython.int) -> cython.void:
        """Find the meeting of a lane's op, whose place among those of the templates is given."""
        slot: cython.int = self.lanes.state[lane].instance * self._group_count + self.lanes.ops[place].slot
        meeting: cython.int = self._slots[2 * slot] + self.lanes.ops[place].place
        self.lanes.state[lane].meeting = meeting + 1
        self.lanes.state[lane].joined = 0
        if cython.compiled:
            prefetch(cython.address(self.record[meeting]))

    def count(self, lane: cython.int) -> cython.int:
        """Count a lane's arrival, now or at its time ``due``; return the kind of its meeting, -1 if not yet known."""
        meeting: cython.int = self.lanes.state[lane].meeting - 1
        place: cython.int = self.lanes.place(lane, self.lanes.state[lane].last + 1)
        slot: cython.int = self.lanes.state[lane].instance * self._group_count + self.lanes.ops[place].slot
        if not self.record[meeting].kind and self.lanes.ops[place].work >= 0:
            self.record[meeting].kind = self._kinds[self._slots[2 * slot + 1] + self.lanes.ops[place].work] + 1
        self.record[meeting].arrived += 1
        return self.record[meeting].kind - 1

    def join(self, lane: cython.int) -> cython.void:
        """Add a lane to the list of its meeting."""
        meeting: cython.int = self.lanes.state[lane].meeting - 1
        self.lanes.state[lane].joined = 1
        self.lanes.following[lane] = self.record[meeting].head
        self.record[meeting].head = lane + 1

    def expect(self, lane: cython.int) -> cython.void:
        """Expect a lane at its meeting at ``due``, the time that is known now."""
        meeting: cython.int = self.lanes.state[lane].meeting - 1
        latest: cython.int = self.record[meeting].latest - 1
        joins: cython.bint = not self.lanes.state[lane].joined
        if joins:
            self.count(lane)
            self.join(lane)
        if latest < 0 or latest == lane or self.lanes.state[lane].due > self.lanes.state[latest].due:
            self.record[meeting].latest = lane + 1
            latest = lane
        elif not joins:
            return
        if self.is_full(meeting):
            self.lanes.put(latest)

    def is_full(self, meeting: cython.int) -> cython.bint:
        """Return whether all lanes of a meeting have joined."""
        kind: cython.int = self.record[meeting].kind - 1
        return kind >= 0 and self.record[meeting].arrived == self._parties[kind]

    def is_due(self, meeting: cython.int) -> cython.bint:
        """Return whether the lane of a meeting that is expected to be the latest arrives now."""
        latest: cython.int = self.record[meeting].latest - 1
        return latest >= 0 and self.lanes.state[latest].due <= self.lanes.queue.now and self.is_full(meeting)

    def are_there(self, meeting: cython.int) -> cython.bint:
        """Return whether all lanes of a full meeting have arrived; if not, wait for the latest of them."""
        lane: cython.int = self.record[meeting].head - 1
        latest: cython.int = lane
        self.note(lane, True)
        while self.lanes.following[lane]:
            lane = self.lanes.following[lane] - 1
            if self.note(lane, False):
                latest = lane
        if self.lanes.state[latest].due <= self.lanes.queue.now:
            self.record[meeting].latest = 0
            return True
        self.record[meeting].latest = latest + 1
        self.lanes.put(latest)
        return False

    def note(self, lane: cython.int, first: cython.bint) -> cython.bint:
        """Record a lane's arrival if it is later than others; of several at an instant, keep the lowest number."""
        meeting: cython.int = self.lanes.state[lane].meeting - 1
        due: cython.double = self.lanes.state[lane].due
        number: cython.int = self.lanes.state[lane].number
        op: cython.int = self.lanes.op(lane, self.lanes.state[lane].last + 1)
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

    def leave(self, lane: cython.int) -> cython.void:
        """End the communication of a lane."""
        self.lanes.state[lane].meeting = 0
        self.over += 1
        self.lanes.end_op(lane)

    def kept_times(self) -> KeptTimes:
        """Return the times that the engine kept."""
        names = ("since", "kind", "last", "number")
        since, kind, last, number = [self.buffers.column("meetings", name) for name in names]
        in_rounds = np.append(self._in_rounds, -1)[kind - 1] >= 0
        return KeptTimes(self.lanes.buffers.read("end"), np.where(in_rounds, -1.0, since), last, number)

    def arrived(self, meeting: cython.int) -> tuple[int, int]:
        """Return how many have arrived at a meeting, and its kind, -1 if that is not known."""
        return self.record[meeting].arrived, self.record[meeting].kind - 1
