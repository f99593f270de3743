"""Priority queue of events, each an integer key with a time; earliest first. Compiled, see ``base.pointers``."""

from __future__ import annotations

from types import SimpleNamespace

import cython
import numpy as np

if not cython.compiled:
    from simcluster.base.pointers import Buffers

    rint = np.rint
    Chain = Event = SimpleNamespace

INFINITE = cython.declare(cython.double, np.inf)
CHAIN = [("time", np.float64), ("first", np.int32)]
"""Fields of a Chain, events at the same time (see the .pxd file)."""
EVENT = [("key", np.int32), ("following", np.int32)]
"""Fields of an Event: ``following`` is the index, plus one, of the next event in its chain, or of the next free one."""


class EventQueue:
    """4-ary heap whose entries are chains of events at the same time; ``chains[0]`` is the earliest.

    The children of chain i are chains 4 i + 1 to 4 i + 4.  Consecutive events at the same time share a chain: ranks of
    a group often compute equally long.  Events at the same time have no defined order.

    ``now`` is the time to which its user has come, on a grid of ``ticks`` per second.
    """

    def __init__(self, room: int, ticks: float = 1.0) -> None:
        self.buffers = Buffers()
        self.now = 0.0
        self.ticks = ticks
        self.count = self._room = self._events = self._free = 0
        self._latest = -1  # the first event of the newest chain
        self._latest_time = 0.0
        self._grow_heap(room)
        self._grow_events(room)

    def add_event(self, time: cython.double, key: cython.int) -> cython.void:
        """Add an event with this key at this time."""
        if not self._free:
            self._grow_events(2 * self._events)
        event: cython.int = self._free - 1
        self._free = self.events[event].following
        self.events[event].key = key
        if self._latest >= 0 and self._latest_time == time:
            self.events[event].following = self.events[self._latest].following
            self.events[self._latest].following = event + 1
        else:
            self.events[event].following = 0
            self._latest = event
            self._latest_time = time
            self._put_chain(time, event)

    def round_to_grid(self, seconds: cython.double) -> cython.double:
        """Return a duration rounded to the clock's grid."""
        return rint(seconds * self.ticks) / self.ticks

    def peek_key(self) -> cython.int:
        """Return the key of the next event without removing the event from the queue."""
        first: cython.int = self.chains[0].first
        after: cython.int = self.events[first].following
        return self.events[after - 1].key if after else self.events[first].key

    def pop(self) -> cython.int:
        """Remove the next event (any event at the earliest time) and return the key of that event."""
        event: cython.int = self.chains[0].first
        after: cython.int = self.events[event].following
        if after:  # the first of a chain is removed last
            self.events[event].following = self.events[after - 1].following
            event = after - 1
        else:
            self._remove_earliest_chain()
            if event == self._latest:
                self._latest = -1
        self.events[event].following = self._free
        self._free = event + 1
        return self.events[event].key

    def _put_chain(self, time: cython.double, first: cython.int) -> cython.void:
        i: cython.int = self.count
        if i == self._room:
            self._grow_heap(2 * i)
        while i > 0:
            parent: cython.int = (i - 1) >> 2
            if self.chains[parent].time <= time:
                break
            self.chains[i].time = self.chains[parent].time
            self.chains[i].first = self.chains[parent].first
            i = parent
        self.chains[i].time = time
        self.chains[i].first = first
        self.count += 1

    def _remove_earliest_chain(self) -> cython.void:
        count: cython.int = self.count - 1
        time: cython.double = self.chains[count].time
        first: cython.int = self.chains[count].first
        i: cython.int = 0
        child: cython.int = 1
        self.count = count
        self.chains[count].time = INFINITE
        while child < count:  # without branches, which the processor could not predict
            other: cython.int = child + 2 + (self.chains[child + 3].time < self.chains[child + 2].time)
            child += self.chains[child + 1].time < self.chains[child].time
            child += (other - child) * (self.chains[other].time < self.chains[child].time)
            if self.chains[child].time >= time:
                break
            self.chains[i].time = self.chains[child].time
            self.chains[i].first = self.chains[child].first
            i = child
            child = 4 * i + 1
        self.chains[i].time = time
        self.chains[i].first = first

    def _grow_heap(self, room: cython.int) -> cython.void:
        records = self.buffers.records("chains", CHAIN, room + 7)
        # the children of a chain are in one cache line
        self.chains = cython.cast(cython.pointer(Chain), records) + 3 if cython.compiled else records
        for i in range(self._room, room + 4):  # after the last chain there are four more
            self.chains[i].time = INFINITE
        self._room = room

    def _grow_events(self, room: cython.int) -> cython.void:
        records = self.buffers.records("events", EVENT, room)
        self.events = cython.cast(cython.pointer(Event), records) if cython.compiled else records
        for event in range(self._events, room):
            self.events[event].following = self._free
            self._free = event + 1
        self._events = room
