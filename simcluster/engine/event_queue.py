"""A binary heap of numbered events, the earliest first; compiled, see ``base.pointers``."""

from __future__ import annotations

import cython

if not cython.compiled:
    from simcluster.base.pointers import Buffers


class EventQueue:
    """Events by time: ``times[0]`` is the earliest of ``count``.  Events of one time come in no particular order."""

    def __init__(self, room: int) -> None:
        self.buffers = Buffers()
        self.count = 0
        self.room = room
        self.times = self.buffers.doubles("times", room)
        self.keys = self.buffers.ints("keys", room)

    def put(self, time: cython.double, key: cython.int) -> cython.void:
        """Add an event."""
        i: cython.int = self.count
        parent: cython.int
        if i == self.room:
            self._make_room()
        while i > 0:
            parent = (i - 1) >> 1
            if self.times[parent] <= time:
                break
            self.times[i] = self.times[parent]
            self.keys[i] = self.keys[parent]
            i = parent
        self.times[i] = time
        self.keys[i] = key
        self.count += 1

    def pop(self) -> cython.int:
        """Remove the earliest event and return its key."""
        key: cython.int = self.keys[0]
        count: cython.int = self.count - 1
        time: cython.double = self.times[count]
        last: cython.int = self.keys[count]
        i: cython.int = 0
        child: cython.int
        self.count = count
        while True:
            child = 2 * i + 1
            if child >= count:
                break
            if child + 1 < count and self.times[child + 1] < self.times[child]:
                child += 1
            if self.times[child] >= time:
                break
            self.times[i] = self.times[child]
            self.keys[i] = self.keys[child]
            i = child
        self.times[i] = time
        self.keys[i] = last
        return key

    def _make_room(self) -> cython.void:
        self.room *= 2
        self.times = self.buffers.doubles("times", self.room)
        self.keys = self.buffers.ints("keys", self.room)
