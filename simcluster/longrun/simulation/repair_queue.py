"""Machines of a run that are in repair."""

from __future__ import annotations

import cython

from simcluster.longrun.run import SOON

if not cython.compiled:
    from simcluster.base.pointers import Buffers

_SOON = SOON


class RepairQueue:
    """When machines come back, ascending; each of the crews (0: any number) repairs one, first come, first served."""

    def __init__(self, crews: int) -> None:
        self.crews, self.room = crews, 64
        self.buffers = Buffers()
        self.back = self.buffers.doubles("back", self.room)
        self.begin = self.end = 0

    def clear(self) -> cython.void:
        """Forget all machines."""
        self.begin = self.end = 0

    def out(self, now: cython.double) -> cython.int:
        """Return the number of machines in repair."""
        place: cython.int = self.end
        while place > self.begin and self.back[place - 1] > now + _SOON:
            place -= 1
        return self.end - place

    def send(self, now: cython.double, seconds: cython.double) -> cython.void:
        """Send a machine to repair, which takes a crew these seconds."""
        if self.end == self.room:
            self.make_room(now)
        start: cython.double = now
        if self.crews and self.crews <= self.end - self.begin:
            start = max(now, self.back[self.end - self.crews])
        back: cython.double = start + seconds
        place: cython.int = self.end
        while place > self.begin and self.back[place - 1] > back:
            self.back[place] = self.back[place - 1]
            place -= 1
        self.back[place] = back
        self.end += 1

    def ready_at(self, now: cython.double, out: cython.int) -> cython.double:
        """Return when no more than ``out`` machines are in repair."""
        if self.end - self.begin <= out:
            return now
        return max(now, self.back[self.end - 1 - out])

    def make_room(self, now: cython.double) -> cython.void:
        """Drop machines that have been back for a second, or double the array where they are few."""
        place: cython.int
        while self.begin < self.end and self.back[self.begin] < now - 1.0:
            self.begin += 1
        count: cython.int = self.end - self.begin
        for place in range(count):
            self.back[place] = self.back[self.begin + place]
        if 2 * count > self.room:
            self.room *= 2
            self.back = self.buffers.doubles("back", self.room)
        self.begin, self.end = 0, count
