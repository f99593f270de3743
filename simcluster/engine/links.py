"""Activities on links over time: latency first, then rounds at the fair rate of every moment; compiled.

``reference.network`` defines it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import cython
import numpy as np

from simcluster.base.arrays import Floats
from simcluster.engine.tables import Traffics
from simcluster.traffic.traffic import Traffic

if not cython.compiled:
    from simcluster.base.pointers import Buffers
    from simcluster.engine.event_queue import INFINITE, EventQueue
    from simcluster.engine.max_min import MaxMin

    Activity = SimpleNamespace

_JOINED = cython.declare(cython.int, 1)
_RESERVED = cython.declare(cython.int, 2)
ACTIVITY = [
    *((name, np.float64) for name in ("due", "remaining", "round_seconds", "updated", "drag")),
    *((name, np.int32) for name in ("traffic", "phase", "kind", "meeting", "stage", "hop")),
]
"""Fields of an Activity (see the .pxd file): ``stage`` is the next free activity if this one is free."""


class LinkActivities:
    """Activities by number: ``due`` is when an activity is over or, before that, comes to its links.

    The owner of an activity keeps there its ``kind``, ``meeting``, ``stage`` and ``hop``.  Numbers are used again.
    Events of activities have odd keys in the queue.

    An activity whose links are idle reserves them from the start of its latency; its only event is its end.  The
    reservation ends when another activity needs one of them.  ``events`` counts ends of latency without an event.
    """

    def __init__(self, queue: EventQueue, traffics: Sequence[Traffic], capacity: Floats) -> None:
        columns = traffics.columns if isinstance(traffics, Traffics) else Traffics(traffics).columns
        self.buffers = Buffers()
        self.queue = queue
        self.shares = MaxMin(capacity, columns)
        self._nominal = self.buffers.given_doubles("nominal", capacity)
        self._bytes = self.buffers.given_doubles("bytes", columns.round_bytes)
        self._rounds = self.buffers.given_doubles("rounds", columns.rounds)
        self._latency = self.buffers.given_doubles("latency", columns.latency)
        self.under_way = self.events = self.room = 0
        self._free = -1
        self._make_room(64)

    def changed(self) -> cython.bint:
        """Return whether links have to be shared out anew at the end of this instant."""
        return self.shares.touched_count > 0 or self.shares.queue.count > 0

    def moving_traffics(self) -> set[int]:
        """Return the traffics of activities that share their links now."""
        joined = self.buffers.column("activities", "phase") == _JOINED
        traffics: set[int] = set(self.buffers.column("activities", "traffic")[joined].tolist())
        return traffics

    def take(self) -> cython.int:
        """Return the number of an activity that is free."""
        if self._free < 0:
            self._make_room(2 * self.room)
        activity: cython.int = self._free
        self._free = self.state[activity].stage
        return activity

    def give_back(self, activity: cython.int) -> cython.void:
        """Make an activity free."""
        self.state[activity].stage = self._free
        self._free = activity

    def begin(self, activity: cython.int, traffic: cython.int, drag: cython.double) -> cython.void:
        """Begin to move a traffic: its latency begins now."""
        rate: cython.double = self.shares.reserve(activity, traffic)
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
        self.queue.put(self.state[activity].due, 2 * activity + 1)

    def advance(self, activity: cython.int) -> cython.bint:
        """Advance an activity that is due: return whether it is over; else put it on its links."""
        traffic: cython.int = self.state[activity].traffic
        self.events += 1
        self.state[activity].due = INFINITE
        if self.state[activity].phase:
            if self.state[activity].phase == _RESERVED:
                self.shares.cancel(traffic)
                self.events += 1
            else:
                self.shares.leave(activity)
            self.state[activity].phase = 0
            self.under_way -= 1
            return True
        for place in range(self.shares.usage_first[traffic], self.shares.usage_first[traffic + 1]):
            owner = self.shares.owner[self.shares.usage_link[place]]
            if owner:
                self._release(owner - 1)
        self.state[activity].phase = _JOINED
        self.state[activity].updated = self.queue.now
        self.shares.join(activity, traffic)
        return False

    def _release(self, activity: cython.int) -> cython.void:
        """Let an activity that has reserved its links share them from now on."""
        traffic: cython.int = self.state[activity].traffic
        self.shares.cancel(traffic)
        if self.queue.now <= self.state[activity].updated:  # its latency ends later
            self.state[activity].phase = 0
            self.state[activity].round_seconds = INFINITE
            self.state[activity].due = self.state[activity].updated
            self.queue.put(self.state[activity].due, 2 * activity + 1)
            return
        self.state[activity].phase = _JOINED
        self.events += 1
        self.shares.join(activity, traffic)
        self.shares.before[activity] = self.shares.rate[activity]  # it had this rate before this instant

    def settle(self) -> cython.void:
        """Share out links at the end of an instant."""
        shares: MaxMin = self.shares
        shares.solve()
        for number in range(shares.touched_count):
            activity = shares.touched[number]
            shares.is_touched[activity] = 0
            if shares.rate[activity] != shares.before[activity]:
                self._reckon(activity)
        shares.touched_count = 0

    def set_drag(self, activity: cython.int, drag: cython.double) -> cython.void:
        """Let the rounds of an activity take ``drag`` times as long from now on; its share of links stays."""
        if self.state[activity].phase == _RESERVED:
            self._release(activity)
        self.state[activity].drag = drag
        if self.state[activity].phase == _JOINED:
            self._reckon(activity)

    def set_factor(self, link: cython.int, factor: cython.double) -> cython.void:
        """Multiply a link's nominal capacity by this factor from now on."""
        if self.shares.owner[link]:
            self._release(self.shares.owner[link] - 1)
        self.shares.capacity[link] = self._nominal[link] * factor
        self.shares.visit(link)

    def _reckon(self, activity: cython.int) -> cython.void:
        """Compute what is left now, and when that is over at the present rate and drag."""
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
        left = left * seconds if left == self._rounds[traffic] else self.queue.rounded(left * seconds)
        self.state[activity].due = self.queue.now + left
        self.queue.put(self.queue.now + left, 2 * activity + 1)

    def _round_seconds(self, activity: cython.int, rate: cython.double) -> cython.double:
        size: cython.double = self._bytes[self.state[activity].traffic]
        return self.queue.rounded(size / rate * self.state[activity].drag) if size != 0.0 else 0.0

    def _make_room(self, room: cython.int) -> cython.void:
        self.shares.make_room(room)
        records = self.buffers.records("activities", ACTIVITY, room)
        self.state = cython.cast(cython.pointer(Activity), records) if cython.compiled else records
        for activity in range(self.room, room):
            self.state[activity].stage = self._free
            self._free = activity
        self.room = room
