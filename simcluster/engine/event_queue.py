"""A heap of numbered events, the earliest first; compiled, see ``base.pointers``."""

from __future__ import annotations

from types import SimpleNamespace

import cython
import numpy as np

if not cython.compiled:
    from simcluster.base.pointers import Buffers

    Event = SimpleNamespace

EVENT = [("time", np.float64), ("key", np.int32)]
"""The numbers of an Event (see the .pxd file)."""


class EventQueue:
    """Events by time: ``events[0]`` is the earliest of ``count``.  Events of one time come in no particular order.

    Below event i are events 4 i + 1 to 4 i + 4: these lie next to each other.
    """

    def __init__(self, room: int) -> None:
        self.buffers = Buffers()
        self.count = self._room = 0
        self._make_room(room)

    def put(self, time: cython.double, key: cython.int) -> cython.void:
        """Add an event."""
        i: cython.int = self.count
        parent: cython.int
        if i == self._room:
            self._make_room(2 * i)
        while i > 0:
            parent = (i - 1) >> 2
            if self.events[parent].time <= time:
                break
            self.events[i].time = self.events[parent].time
            self.events[i].key = self.events[parent].key
            i = parent
        self.events[i].time = time
        self.events[i].key = key
        self.count += 1

    def pop(self) -> cython.int:
        """Remove the earliest event and return its key."""
        key: cython.int = self.events[0].key
        count: cython.int = self.count - 1
        time: cython.double = self.events[count].time
        last: cython.int = self.events[count].key
        i: cython.int = 0
        child: cython.int = 1
        other: cython.int
        self.count = count
        while child < count:
            for other in range(child + 1, min(child + 4, count)):
                if self.events[other].time < self.events[child].time:
                    child = other
            if self.events[child].time >= time:
                break
            self.events[i].time = self.events[child].time
            self.events[i].key = self.events[child].key
            i = child
            child = 4 * i + 1
        self.events[i].time = time
        self.events[i].key = last
        return key

    def _make_room(self, room: cython.int) -> cython.void:
        self._room = room
        records = self.buffers.records("events", EVENT, room)
        self.events = cython.cast(cython.pointer(Event), records) if cython.compiled else records
