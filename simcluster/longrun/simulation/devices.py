"""Devices of a run that are slow, and machines in repair."""

from __future__ import annotations

import math

import cython

from simcluster.longrun.run import SOON

if not cython.compiled:
    from simcluster.base.pointers import Buffers

_INF = math.inf
_SOON = SOON


class SlowPeriod:
    """Slowing of the job to ``pace`` until ``end``, by a device that is ``noticed`` then (inf: before, or never)."""

    def __init__(self, cause: int, pace: float, end: float, noticed: float) -> None:
        self.cause, self.pace, self.end, self.noticed = cause, pace, end, noticed


class SlowDevices:
    """Slow devices in the order in which they began.

    ``worst`` is the pace of the job, ``by`` the cause of that, ``next`` when one ends or is noticed (s).
    """

    def __init__(self) -> None:
        self.devices: list[SlowPeriod] = []

    def remove_ended(self, now: cython.double) -> cython.void:
        """Remove devices whose time is up."""
        self.devices = [each for each in self.devices if each.end > now]

    def remove_noticed(self, now: cython.double) -> cython.void:
        """Remove devices that have been noticed."""
        self.devices = [each for each in self.devices if now < each.noticed < _INF]

    def notice(self, now: cython.double) -> cython.int:
        """Return the cause of the device that is noticed now, the earliest of them, -1 for none."""
        each: SlowPeriod
        first: SlowPeriod | None = None
        for each in self.devices:
            if each.noticed <= now and (first is None or each.noticed < first.noticed):
                first = each
        if first is None:
            return -1
        first.noticed = _INF
        return first.cause

    def update(self, short: cython.double, short_cause: cython.int) -> cython.void:
        """Find the pace of the job and what comes next; ``short`` is the pace with the machines that are missing."""
        each: SlowPeriod
        self.worst, self.by, self.next = 1.0, -1, _INF
        for each in self.devices:
            if each.pace > self.worst:
                self.worst, self.by = each.pace, each.cause
            self.next = min(self.next, each.end, each.noticed)
        if short > self.worst:
            self.worst, self.by = short, short_cause


class RepairQueue:
    """When ``count`` machines come ``back``, ascending; each of the crews (0: any number) repairs one, in turn."""

    def __init__(self, crews: int) -> None:
        self.crews, self.count, self.room = crews, 0, 64
        self.buffers = Buffers()
        self.back = self.buffers.doubles("back", self.room)

    def out(self, now: cython.double) -> cython.int:
        """Return the number of machines in repair."""
        place: cython.int = self.count
        while place > 0 and self.back[place - 1] > now + _SOON:
            place -= 1
        return self.count - place

    def send(self, now: cython.double, seconds: cython.double) -> cython.void:
        """Send a machine to repair, which takes a crew these seconds."""
        if self.count == self.room:
            self.room *= 2
            self.back = self.buffers.doubles("back", self.room)
        if self.crews and self.crews <= self.count:
            now = max(now, self.back[self.count - self.crews])
        place: cython.int = self.count
        while place > 0 and self.back[place - 1] > now + seconds:
            self.back[place] = self.back[place - 1]
            place -= 1
        self.back[place] = now + seconds
        self.count += 1

    def ready_at(self, now: cython.double, out: cython.int) -> cython.double:
        """Return when no more than ``out`` machines are in repair."""
        return max(now, self.back[self.count - 1 - out]) if self.count > out else now
