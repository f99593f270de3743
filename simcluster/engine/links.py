"""Activities on links over time: latency first, then rounds at the fair rate of every moment; compiled.

``reference.network`` defines it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import cython
import numpy as np

from simcluster.base.arrays import Floats
from simcluster.engine.tables import Traffics
from simcluster.traffic.traffic import Traffic

if not cython.compiled:
    from simcluster.base.event_queue import EventQueue
    from simcluster.base.pointers import Buffers
    from simcluster.engine.max_min import MaxMin

    rint = np.rint

_INFINITE = cython.declare(cython.double, math.inf)
_JOINED = cython.declare(cython.int, 1)
_RESERVED = cython.declare(cython.int, 2)


class LinkActivities:
    """Activities by number: ``due`` is when an activity is over or, before that, comes to its links.

    Whoever takes an activity keeps there its ``kind``, ``meeting``, ``stage`` and ``hop``.  Numbers are used again.
    Events of activities have odd keys in the queue.

    An activity whose links are idle reserves them from the start of its latency; its only event is its end.  The
    reservation ends when another activity needs one of them.  ``skipped`` counts ends of latency without an event.
    """

    def __init__(self, queue: EventQueue, traffics: Sequence[Traffic], capacity: Floats, ticks: float) -> None:
        columns = traffics.columns if isinstance(traffics, Traffics) else Traffics(traffics).columns
        self.buffers = Buffers()
        self.queue = queue
        self.shares = MaxMin(capacity, columns.first, columns.link, columns.flows)
        self.ticks = ticks
        self._nominal = self.buffers.given_doubles("nominal", capacity)
        self._bytes = self.buffers.given_doubles("bytes", columns.round_bytes)
        self._rounds = self.buffers.given_doubles("rounds", columns.rounds)
        self._latency = self.buffers.given_doubles("latency", columns.latency)
        self._bound = self.buffers.given_doubles("bound", columns.bound)
        self.under_way = self.skipped = 0
        self.room = 0
        self._free = -1
        self._make_room(64)

    def changed(self) -> cython.bint:
        """Return whether links have to be shared out anew at the end of this instant."""
        return self.shares.touched_count > 0 or self.shares.due_count > 0

    def moving_traffics(self) -> set[int]:
        """Return the traffics of activities that share their links now."""
        traffics: set[int] = set(self.buffers.read("traffic")[self.buffers.read("state") == _JOINED].tolist())
        return traffics

    def take(self) -> cython.int:
        """Return the number of an activity that is free."""
        if self._free < 0:
            self._make_room(2 * self.room)
        activity: cython.int = self._free
        self._free = self._next_free[activity]
        return activity

    def give_back(self, activity: cython.int) -> cython.void:
        """Make an activity free."""
        self._next_free[activity] = self._free
        self._free = activity

    def begin(self, activity: cython.int, traffic: cython.int, drag: cython.double, now: cython.double) -> cython.void:
        """Begin to move a traffic: its latency begins now."""
        rate: cython.double = self.shares.reserve(activity, traffic, self._bound[traffic])
        self.under_way += 1
        self._traffic[activity] = traffic
        self._remaining[activity] = self._rounds[traffic]
        self._round_seconds[activity] = _INFINITE
        self._drag[activity] = drag
        self._state[activity] = 0
        self.due[activity] = now + self._latency[traffic]
        if rate > 0.0:
            self._state[activity] = _RESERVED
            self._updated[activity] = self.due[activity]
            self._round_seconds[activity] = self._seconds_of_round(activity, rate)
            self.due[activity] += self._remaining[activity] * self._round_seconds[activity]
        self.queue.put(self.due[activity], 2 * activity + 1)

    def advance(self, activity: cython.int, now: cython.double) -> cython.bint:
        """Advance an activity that is due: return whether it is over; else put it on its links."""
        traffic: cython.int = self._traffic[activity]
        place: cython.int
        owner: cython.int
        self.due[activity] = _INFINITE
        if self._state[activity]:
            if self._state[activity] == _RESERVED:
                self.shares.cancel(traffic)
                self.skipped += 1
            else:
                self.shares.leave(activity)
            self._state[activity] = 0
            self.under_way -= 1
            return True
        for place in range(self.shares.usage_first[traffic], self.shares.usage_first[traffic + 1]):
            owner = self.shares.owner[self.shares.usage_link[place]]
            if owner:
                self._release(owner - 1, now)
        self._state[activity] = _JOINED
        self._updated[activity] = now
        self.shares.join(activity, traffic, self._bound[traffic])
        return False

    def _release(self, activity: cython.int, now: cython.double) -> cython.void:
        """Let an activity that has reserved its links share them from now on."""
        traffic: cython.int = self._traffic[activity]
        self.shares.cancel(traffic)
        if now <= self._updated[activity]:  # its latency ends later
            self._state[activity] = 0
            self._round_seconds[activity] = _INFINITE
            self.due[activity] = self._updated[activity]
            self.queue.put(self.due[activity], 2 * activity + 1)
            return
        self._state[activity] = _JOINED
        self.skipped += 1
        self.shares.join(activity, traffic, self._bound[traffic])
        self.shares.before[activity] = self.shares.rate[activity]  # it had this rate before this instant

    def settle(self, now: cython.double) -> cython.void:
        """Share out links at the end of an instant."""
        shares: MaxMin = self.shares
        number: cython.int
        activity: cython.int
        shares.solve()
        for number in range(shares.touched_count):
            activity = shares.touched[number]
            shares.is_touched[activity] = 0
            if shares.rate[activity] != shares.before[activity]:
                self._reckon(activity, now)
        shares.touched_count = 0

    def set_drag(self, activity: cython.int, drag: cython.double, now: cython.double) -> cython.void:
        """Let the rounds of an activity take ``drag`` times as long from now on; its share of links stays."""
        if self._state[activity] == _RESERVED:
            self._release(activity, now)
        self._drag[activity] = drag
        if self._state[activity] == _JOINED:
            self._reckon(activity, now)

    def set_factor(self, link: cython.int, factor: cython.double, now: cython.double) -> cython.void:
        """Multiply a link's nominal capacity by this factor from now on."""
        if self.shares.owner[link]:
            self._release(self.shares.owner[link] - 1, now)
        self.shares.set_capacity(link, self._nominal[link] * factor)

    def _reckon(self, activity: cython.int, now: cython.double) -> cython.void:
        """Compute what is left now, and when that is over at the present rate and drag."""
        traffic: cython.int = self._traffic[activity]
        size: cython.double = self._bytes[traffic]
        rate: cython.double = self.shares.rate[activity]
        seconds: cython.double = self._round_seconds[activity]
        left: cython.double = self._remaining[activity]
        if now > self._updated[activity] and seconds > 0:
            left -= (now - self._updated[activity]) / seconds
            if left < 0.0:
                left = 0.0
            self._remaining[activity] = left
        self._updated[activity] = now
        if rate <= 0 and size > 0:  # a dead link: nothing moves before its capacity comes back
            self._round_seconds[activity] = _INFINITE
            self.due[activity] = _INFINITE
            return
        seconds = self._seconds_of_round(activity, rate)
        self._round_seconds[activity] = seconds
        left = left * seconds if left == self._rounds[traffic] else rint(left * seconds * self.ticks) / self.ticks
        self.due[activity] = now + left
        self.queue.put(now + left, 2 * activity + 1)

    def _seconds_of_round(self, activity: cython.int, rate: cython.double) -> cython.double:
        """Return the duration of a round at this rate and the present drag, on the clock's grid."""
        size: cython.double = self._bytes[self._traffic[activity]]
        return rint(size / rate * self._drag[activity] * self.ticks) / self.ticks if size != 0.0 else 0.0

    def _make_room(self, room: cython.int) -> cython.void:
        activity: cython.int
        self.shares.make_room(room)
        self.due = self.buffers.doubles("due", room)
        self.kind = self.buffers.ints("kind", room)
        self.meeting = self.buffers.ints("meeting", room)
        self.stage = self.buffers.ints("stage", room)
        self.hop = self.buffers.ints("hop", room)
        self._traffic = self.buffers.ints("traffic", room)
        self._remaining = self.buffers.doubles("remaining", room)
        self._round_seconds = self.buffers.doubles("round_seconds", room)
        self._updated = self.buffers.doubles("updated", room)
        self._drag = self.buffers.doubles("drag", room)
        self._state = self.buffers.flags("state", room)
        self._next_free = self.buffers.ints("next_free", room)
        for activity in range(self.room, room):
            self._next_free[activity] = self._free
            self._free = activity
        self.room = room
