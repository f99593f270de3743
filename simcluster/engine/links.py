"""Transfers on links over time: first their latency, then rounds at the current max-min fair rate; compiled.

``reference.fluid_network`` defines it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import cython
import numpy as np

from simcluster.base.arrays import Floats
from simcluster.engine.tables import TrafficTuple
from simcluster.traffic.traffic import Traffic

if not cython.compiled:
    from simcluster.base.pointers import Buffers
    from simcluster.engine.event_queue import INFINITE, EventQueue
    from simcluster.engine.max_min import MaxMinRates

    Activity = SimpleNamespace

_JOINED = cython.declare(cython.int, 1)
_RESERVED = cython.declare(cython.int, 2)
ACTIVITY = [
    *((name, np.float64) for name in ("due", "remaining", "round_seconds", "updated", "drag")),
    *((name, np.int32) for name in ("traffic", "phase", "kind", "meeting", "stage", "hop")),
]
"""Fields of an Activity (see the .pxd file); in a free record, ``stage`` is the number of the next free record."""


class LinkTransfers:
    """Transfers (sets of flows that advance together) by number, and their use of links.

    The caller stores a transfer's ``kind``, ``meeting``, ``stage`` and ``hop`` in its record.  Numbers are reused.
    Events of transfers have odd keys in the queue.  The code calls a transfer an *activity*.

    A transfer whose links are idle reserves them from the start of its latency; its only event is its end.  The
    reservation ends when another transfer needs one of the links.  ``events`` counts ends of latency without an event.
    """

    def __init__(self, queue: EventQueue, traffics: Sequence[Traffic], capacity: Floats) -> None:
        columns = traffics.columns if isinstance(traffics, TrafficTuple) else TrafficTuple(traffics).columns
        self.buffers = Buffers()
        self.queue = queue
        self.shares = MaxMinRates(capacity, columns)
        self._nominal = self.buffers.view_doubles("nominal", capacity)
        self._bytes = self.buffers.view_doubles("bytes", columns.round_bytes)
        self._rounds = self.buffers.view_doubles("rounds", columns.rounds)
        self._latency = self.buffers.view_doubles("latency", columns.latency)
        self.under_way = self.events = self.room = 0
        self._free = -1
        self._grow(64)

    def needs_update(self) -> cython.bint:
        """Return whether fair rates must be recomputed at the end of this instant."""
        return self.shares.touched_count > 0 or self.shares.queue.count > 0

    def active_traffics(self) -> set[int]:
        """Return the numbers of the traffic items that now have a transfer on shared links."""
        joined = self.buffers.column("activities", "phase") == _JOINED
        traffics: set[int] = set(self.buffers.column("activities", "traffic")[joined].tolist())
        return traffics

    def allocate(self) -> cython.int:
        """Allocate a number for a new transfer and return that number."""
        if self._free < 0:
            self._grow(2 * self.room)
        activity: cython.int = self._free
        self._free = self.state[activity].stage
        return activity

    def free(self, activity: cython.int) -> cython.void:
        """Free a transfer's number for reuse."""
        self.state[activity].stage = self._free
        self._free = activity

    def begin_transfer(self, activity: cython.int, traffic: cython.int, drag: cython.double) -> cython.void:
        """Begin a transfer with its latency; its rounds take ``drag`` times as long as the fair rate allows."""
        rate: cython.double = self.shares.reserve_links(activity, traffic)
        self.under_way += 1
        self.state[activity].traffic = traffic
        self.state[activity].remaining = self._rounds[traffic]
        self.state[activity].round_seconds = INFINITE
        self.state[activity].drag = drag
        self.state[activity].phase = 0
        self.state[activity].due = self.queue.now + self._latency[traffic]
        if rate > 0.0:
            self.state[activity].phase = _RESERVED
            self.state[activity].updated = self.state[activity].due
            self.state[activity].round_seconds = self._round_seconds(activity, rate)
            self.state[activity].due += self.state[activity].remaining * self.state[activity].round_seconds
        self.queue.add_event(self.state[activity].due, 2 * activity + 1)

    def advance_transfer(self, activity: cython.int) -> cython.bint:
        """Advance a due transfer: return True if the transfer has ended; else move it from latency to its links."""
        traffic: cython.int = self.state[activity].traffic
        self.events += 1
        self.state[activity].due = INFINITE
        if self.state[activity].phase:
            if self.state[activity].phase == _RESERVED:
                self.shares.cancel_reservation(traffic)
                self.events += 1
            else:
                self.shares.leave_links(activity)
            self.state[activity].phase = 0
            self.under_way -= 1
            return True
        for place in range(self.shares.usage_first[traffic], self.shares.usage_first[traffic + 1]):
            owner = self.shares.owner[self.shares.usage_link[place]]
            if owner:
                self._end_reservation(owner - 1)
        self.state[activity].phase = _JOINED
        self.state[activity].updated = self.queue.now
        self.shares.join_links(activity, traffic)
        return False

    def _end_reservation(self, activity: cython.int) -> cython.void:
        """Cancel a transfer's exclusive reservation; from now on the transfer shares its links with others."""
        traffic: cython.int = self.state[activity].traffic
        self.shares.cancel_reservation(traffic)
        if self.queue.now <= self.state[activity].updated:  # its latency ends later
            self.state[activity].phase = 0
            self.state[activity].round_seconds = INFINITE
            self.state[activity].due = self.state[activity].updated
            self.queue.add_event(self.state[activity].due, 2 * activity + 1)
            return
        self.state[activity].phase = _JOINED
        self.events += 1
        self.shares.join_links(activity, traffic)
        self.shares.before[activity] = self.shares.rate[activity]  # it had this rate before this instant

    def update_rates(self) -> cython.void:
        """Recompute fair rates and the end times of affected transfers, at the end of an instant."""
        shares: MaxMinRates = self.shares
        shares.solve_rates()
        for number in range(shares.touched_count):
            activity = shares.touched[number]
            shares.is_touched[activity] = 0
            if shares.rate[activity] != shares.before[activity]:
                self._update_end_time(activity)
        shares.touched_count = 0

    def set_slowdown(self, activity: cython.int, drag: cython.double) -> cython.void:
        """Set the factor ``drag`` by which a transfer's rounds take longer; its fair share of links is unchanged."""
        if self.state[activity].phase == _RESERVED:
            self._end_reservation(activity)
        self.state[activity].drag = drag
        if self.state[activity].phase == _JOINED:
            self._update_end_time(activity)

    def set_capacity_factor(self, link: cython.int, factor: cython.double) -> cython.void:
        """Set a link's capacity to ``factor`` times its nominal capacity from now on."""
        if self.shares.owner[link]:
            self._end_reservation(self.shares.owner[link] - 1)
        self.shares.capacity[link] = self._nominal[link] * factor
        self.shares.schedule_link_update(link)

    def _update_end_time(self, activity: cython.int) -> cython.void:
        """Update a transfer's remaining rounds, and its end time at the current rate and slowdown."""
        traffic: cython.int = self.state[activity].traffic
        size: cython.double = self._bytes[traffic]
        rate: cython.double = self.shares.rate[activity]
        seconds: cython.double = self.state[activity].round_seconds
        left: cython.double = self.state[activity].remaining
        if self.queue.now > self.state[activity].updated and seconds > 0:
            left -= (self.queue.now - self.state[activity].updated) / seconds
            if left < 0.0:
                left = 0.0
            self.state[activity].remaining = left
        self.state[activity].updated = self.queue.now
        if rate <= 0 and size > 0:  # a dead link: nothing moves before its capacity comes back
            self.state[activity].round_seconds = INFINITE
            self.state[activity].due = INFINITE
            return
        seconds = self._round_seconds(activity, rate)
        self.state[activity].round_seconds = seconds
        left = left * seconds if left == self._rounds[traffic] else self.queue.round_to_grid(left * seconds)
        self.state[activity].due = self.queue.now + left
        self.queue.add_event(self.queue.now + left, 2 * activity + 1)

    def _round_seconds(self, activity: cython.int, rate: cython.double) -> cython.double:
        size: cython.double = self._bytes[self.state[activity].traffic]
        return self.queue.round_to_grid(size / rate * self.state[activity].drag) if size != 0.0 else 0.0

    def _grow(self, room: cython.int) -> cython.void:
        self.shares.allocate_transfers(room)
        records = self.buffers.records("activities", ACTIVITY, room)
        self.state = cython.cast(cython.pointer(Activity), records) if cython.compiled else records
        for activity in range(self.room, room):
            self.state[activity].stage = self._free
            self._free = activity
        self.room = room
