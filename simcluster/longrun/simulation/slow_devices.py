"""Devices of a run that are slow, and the pace of the job that follows from them."""

from __future__ import annotations

import math

import cython

if not cython.compiled:
    from simcluster.base.pointers import Buffers

_INF = math.inf


class SlowDevices:
    """Slots: until when a device is slow, when it is noticed, its pace and its cause (-1: the slot is empty).

    ``worst`` is the pace of the job, ``by`` the cause of that, ``next`` when one ends or is noticed (s).
    """

    def __init__(self) -> None:
        self.room = self.count = 0
        self.buffers = Buffers()
        self.make_room()
        self.clear()

    def clear(self) -> cython.void:
        """Empty all slots, of which two are in use."""
        self.count = 2
        self.empty(0)
        self.empty(1)
        self.update(1.0, -1)

    def empty(self, slot: cython.int) -> cython.void:
        """Empty a slot."""
        self.end[slot] = self.noticed[slot] = _INF
        self.pace[slot] = 1.0
        self.cause[slot] = -1

    def add(self, cause: cython.int, pace: cython.double, end: cython.double, noticed: cython.double) -> cython.void:
        """Put a slow device in the first empty slot."""
        slot: cython.int = 0
        while slot < self.count and self.cause[slot] >= 0:
            slot += 1
        if slot == self.count:
            if self.count == self.room:
                self.make_room()
            self.count += 1
        self.end[slot], self.noticed[slot], self.pace[slot], self.cause[slot] = end, noticed, pace, cause

    def remove_ended(self, now: cython.double) -> cython.void:
        """Remove devices whose time is up."""
        slot: cython.int
        for slot in range(self.count):
            if self.end[slot] <= now:
                self.empty(slot)

    def remove_noticed(self, now: cython.double) -> cython.void:
        """Remove devices that have been noticed."""
        slot: cython.int
        for slot in range(self.count):
            if self.cause[slot] >= 0 and (self.noticed[slot] == _INF or self.noticed[slot] <= now):
                self.empty(slot)

    def notice(self, now: cython.double) -> cython.int:
        """Return the cause of the device that is noticed now, -1 for none."""
        first: cython.int = 0
        slot: cython.int
        for slot in range(self.count):
            if self.noticed[slot] < self.noticed[first]:
                first = slot
        if self.noticed[first] > now:
            return -1
        self.noticed[first] = _INF
        return self.cause[first]

    def update(self, short: cython.double, short_cause: cython.int) -> cython.void:
        """Find the pace of the job and what comes next; ``short`` is the pace with the machines that are missing."""
        slot: cython.int
        self.worst, self.by, self.next = self.pace[0], self.cause[0], _INF
        for slot in range(self.count):
            if self.pace[slot] > self.worst:
                self.worst, self.by = self.pace[slot], self.cause[slot]
            self.next = min(self.next, self.end[slot], self.noticed[slot])
        if short > self.worst:
            self.worst, self.by = short, short_cause

    def make_room(self) -> cython.void:
        """Double the slots."""
        self.room = 2 * self.room + 2
        self.end = self.buffers.doubles("end", self.room)
        self.noticed = self.buffers.doubles("noticed", self.room)
        self.pace = self.buffers.doubles("pace", self.room)
        self.cause = self.buffers.ints("cause", self.room)
