"""Activities on links over time: latency first, then rounds at the fair rate of every moment; compiled.

``reference.network`` defines it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import cython
import numpy as np

from simcluster.base.arrays import Floats
from simcluster.traffic.traffic import Traffic

if not cython.compiled:
    from simcluster.base.pointers import Buffers
    from simcluster.engine.event_queue import EventQueue
    from simcluster.engine.max_min import MaxMin

    rint = np.rint

_INFINITE = cython.declare(cython.double, math.inf)


class LinkActivities:
    """Activities by number: ``due`` is when an activity is over or, before that, comes to its links.

    Whoever takes an activity keeps there its ``kind``, ``meeting``, ``stage`` and ``hop``.  Numbers are used again.
    Events of activities have odd keys in the queue.
    """

    def __init__(self, queue: EventQueue, traffics: Sequence[Traffic], capacity: Floats, ticks: float) -> None:
        usages = [traffic.usage for traffic in traffics]
        first = np.cumsum([0, *map(len, usages)], dtype=np.int32)
        flat = np.array(list(chain.from_iterable(usages)), dtype=np.float64).reshape(-1, 2)
        self.buffers = Buffers()
        self.queue = queue
        self.shares = MaxMin(capacity, first, flat[:, 0].astype(np.int32), flat[:, 1])
        self.ticks = ticks
        self._nominal = self.buffers.given_doubles("nominal", capacity)
        self._bytes = self.buffers.given_doubles("bytes", [traffic.round_bytes for traffic in traffics])
        self._rounds = self.buffers.given_doubles("rounds", [traffic.rounds for traffic in traffics])
        self._latency = self.buffers.given_doubles("latency", [traffic.latency_seconds for traffic in traffics])
        self._bound = self.buffers.given_doubles("bound", [traffic.bound for traffic in traffics])
        self.under_way = 0
        self.room = 0
        self._free = -1
        self._make_room(64)

    def changed(self) -> cython.bint:
        """Return whether links have to be shared out anew at the end of this instant."""
        return self.shares.touched_count > 0 or self.shares.due_count > 0

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
        self.under_way += 1
        self._traffic[activity] = traffic
        self._remaining[activity] = self._rounds[traffic]
        self._round_seconds[activity] = _INFINITE
        self._drag[activity] = drag
        self._joined[activity] = 0
        self.due[activity] = now + self._latency[traffic]
        self.queue.put(self.due[activity], 2 * activity + 1)

    def advance(self, activity: cython.int, now: cython.double) -> cython.bint:
        """Advance an activity that is due: return whether it is over; else put it on its links."""
        self.due[activity] = _INFINITE
        if self._joined[activity]:
            self._joined[activity] = 0
            self.shares.leave(activity)
            self.under_way -= 1
            return True
        traffic: cython.int = self._traffic[activity]
        self._joined[activity] = 1
        self._updated[activity] = now
        self.shares.join(activity, traffic, self._bound[traffic])
        return False

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
        self._drag[activity] = drag
        if self._joined[activity]:
            self._reckon(activity, now)

    def set_factor(self, link: cython.int, factor: cython.double) -> cython.void:
        """Multiply a link's nominal capacity by this factor from now on."""
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
        seconds = rint(size / rate * self._drag[activity] * self.ticks) / self.ticks if size != 0.0 else 0.0
        self._round_seconds[activity] = seconds
        left = left * seconds if left == self._rounds[traffic] else rint(left * seconds * self.ticks) / self.ticks
        self.due[activity] = now + left
        self.queue.put(now + left, 2 * activity + 1)

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
        self._joined = self.buffers.flags("joined", room)
        self._next_free = self.buffers.ints("next_free", room)
        for activity in range(self.room, room):
            self._next_free[activity] = self._free
            self._free = activity
        self.room = room
