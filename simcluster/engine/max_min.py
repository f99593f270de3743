"""Max-min fair rates of activities on links, solved again where something changed; compiled.

The solution is written as *levels*, as in ``reference.fair``.  An activity *wants* of a link the lowest level elsewhere
on its way, and the level of a link is a function of what its users want.  From the lowest level up, by induction, one
set of levels fits together and only one, to the bit: of two sets that differ, take the lowest rate at which they do; up
to there both fill its link equally.  So it does not matter where the search begins, in which order it visits links, or
how many activities represent equal flows.  (Links that send each other only what changed: Mozo et al., B-Neck, IEEE NCA
2011.)
"""

from __future__ import annotations

import cython

from simcluster.base.arrays import Floats
from simcluster.engine.tables import TrafficColumns

if not cython.compiled:
    from simcluster.base.pointers import Buffers
    from simcluster.engine.event_queue import INFINITE, EventQueue
    from simcluster.engine.memberships import Memberships

_PARTIALS = 64  # a sum of float64 numbers has at most 40


class MaxMin:
    """Activities on links: ``rate`` is B/s per flow.

    ``owner`` is the activity (plus one) that has reserved a link; it is not among the link's users.
    ``touched`` lists the activities that joined, or whose rate changed, since the list was last emptied;
    ``before`` is the rate of each before that.
    """

    def __init__(self, capacity: Floats, traffics: TrafficColumns) -> None:
        links = len(capacity)
        self.buffers = Buffers()
        self.users = Memberships(links)
        self.queue = EventQueue(64)
        self.capacity = self.buffers.given_doubles("capacity", capacity.copy())
        self.level = self.buffers.doubles("level", links)
        self.usage_first = self.buffers.given_ints("usage_first", traffics.first)
        self.usage_link = self.buffers.given_ints("usage_link", traffics.link)
        self.usage_flows = self.buffers.given_doubles("usage_flows", traffics.flows)
        self._bound = self.buffers.given_doubles("bound", traffics.bound)
        self.owner = self.buffers.ints("owner", links)
        self.is_waiting = self.buffers.flags("is_waiting", links)
        self._partial = self.buffers.doubles("partial", _PARTIALS)
        self.touched_count = 0

    def make_room(self, room: cython.int) -> cython.void:
        """Make room for that many activities."""
        self.rate = self.buffers.doubles("rate", room)
        self.before = self.buffers.doubles("before", room)
        self.usage = self.buffers.ints("usage", room)
        self.is_touched = self.buffers.flags("is_touched", room)
        self.touched = self.buffers.ints("touched", room)
        self._want = self.buffers.doubles("want", room)
        self._flows = self.buffers.doubles("flows", room)

    def join(self, activity: cython.int, traffic: cython.int) -> cython.void:
        """Put an activity on the links of its traffic."""
        rate: cython.double = self._bound[traffic]
        self.usage[activity] = traffic
        self.rate[activity] = -1.0
        self._touch(activity)
        for place in range(self.usage_first[traffic], self.usage_first[traffic + 1]):
            link = self.usage_link[place]
            flows = self.usage_flows[place]
            if self.users.count[link]:
                self.visit(link)
            else:
                self.level[link] = self.capacity[link] / flows
            self.users.add(link, activity, flows)
            if self.level[link] < rate:
                rate = self.level[link]
        self.rate[activity] = rate

    def reserve(self, activity: cython.int, traffic: cython.int) -> cython.double:
        """Reserve the links of an activity and return its rate; return -1 if one of them is in use.

        Links of rate 0 are not reserved.
        """
        rate: cython.double = self._bound[traffic]
        for place in range(self.usage_first[traffic], self.usage_first[traffic + 1]):
            link = self.usage_link[place]
            if self.users.count[link] or self.owner[link]:
                return -1.0
            alone = self.capacity[link] / self.usage_flows[place]
            if alone < rate:
                rate = alone
        if rate > 0.0:
            for place in range(self.usage_first[traffic], self.usage_first[traffic + 1]):
                self.owner[self.usage_link[place]] = activity + 1
        return rate

    def cancel(self, traffic: cython.int) -> cython.void:
        """Cancel the reservation of the links of a traffic."""
        for place in range(self.usage_first[traffic], self.usage_first[traffic + 1]):
            self.owner[self.usage_link[place]] = 0

    def leave(self, activity: cython.int) -> cython.void:
        """Take an activity off its links."""
        traffic: cython.int = self.usage[activity]
        self.users.remove_all(activity)
        for place in range(self.usage_first[traffic], self.usage_first[traffic + 1]):
            self.visit(self.usage_link[place])

    def solve(self) -> cython.void:
        """Bring all levels and rates in line, from the lowest level up."""
        while self.queue.count:
            link = self.queue.pop()
            self.is_waiting[link] = 0
            if not self.users.count[link]:
                continue
            old = self.level[link]
            new = self._level_of(link)
            if new == old:
                continue
            self.level[link] = new
            entry = self.users.head[link]
            while entry >= 0:
                activity = self.users.entry[entry].member
                if self.rate[activity] >= old or self.rate[activity] > new:  # else others hold it back, as before
                    self._update(activity, link)
                entry = self.users.entry[entry].following

    def _touch(self, activity: cython.int) -> cython.void:
        if not self.is_touched[activity]:
            self.is_touched[activity] = 1
            self.before[activity] = self.rate[activity]
            self.touched[self.touched_count] = activity
            self.touched_count += 1

    def visit(self, link: cython.int) -> cython.void:
        """Look at a link in this solution, or in the next one, since its capacity or its users have changed."""
        if self.users.count[link] and not self.is_waiting[link]:
            self.is_waiting[link] = 1
            self.queue.put(self.level[link], link)

    def _update(self, activity: cython.int, link: cython.int) -> cython.void:
        """Take the activity's rate from the levels; if it is another, all of its other links have to be looked at."""
        traffic: cython.int = self.usage[activity]
        rate: cython.double = self._bound[traffic]
        for place in range(self.usage_first[traffic], self.usage_first[traffic + 1]):
            other = self.usage_link[place]
            if self.level[other] < rate:
                rate = self.level[other]
        if rate == self.rate[activity]:
            return
        self._touch(activity)
        self.rate[activity] = rate
        for place in range(self.usage_first[traffic], self.usage_first[traffic + 1]):
            other = self.usage_link[place]
            if other != link and self.users.count[other] > 1:
                self.visit(other)

    def _level_of(self, link: cython.int) -> cython.double:
        """Return the level that fits what the link's users want."""
        entry: cython.int = self.users.head[link]
        if self.users.count[link] == 1:
            return self.capacity[link] / self.users.entry[entry].weight
        count: cython.int = 0
        old: cython.double = self.level[link]
        while entry >= 0:
            activity = self.users.entry[entry].member
            want = self.rate[activity]
            if want >= old:  # this link holds it back: what would others allow?
                traffic: cython.int = self.usage[activity]
                want = self._bound[traffic]
                for place in range(self.usage_first[traffic], self.usage_first[traffic + 1]):
                    other = self.usage_link[place]
                    if other != link and self.level[other] < want:
                        want = self.level[other]
            self._want[count] = want
            self._flows[count] = self.users.entry[entry].weight
            count += 1
            entry = self.users.entry[entry].following
        return self._share(self.capacity[link], count)

    def _share(self, capacity: cython.double, count: cython.int) -> cython.double:
        """Return the level at which users share a link when some want less; infinite when all do.

        ``_want`` is what each wants (B/s) for each of its ``_flows``.
        """
        left: cython.double = capacity
        share: cython.double = capacity / self._sum(count, 0.0, INFINITE)
        want: cython.double = INFINITE
        for i in range(count):
            if self._want[i] < want:
                want = self._want[i]
        while want < share:
            left -= self._sum(count, want, want) * want
            following = INFINITE
            rest: cython.bint = False
            for i in range(count):
                if self._want[i] > want:
                    rest = True
                    if self._want[i] < following:
                        following = self._want[i]
            if not rest:
                return INFINITE
            want = following
            following = left / self._sum(count, want, INFINITE)
            if following > share:
                share = following
        return share

    def _sum(self, count: cython.int, low: cython.double, high: cython.double) -> cython.double:
        """Return the sum, rounded once, of the flows of activities that want a rate from ``low`` to ``high``.

        Like ``math.fsum``, it adds partial sums that do not overlap (Shewchuk 1997).
        """
        partials: cython.int = 0
        for i in range(count):
            if not low <= self._want[i] <= high:
                continue
            x = self._flows[i]
            kept: cython.int = 0
            for j in range(partials):
                y = self._partial[j]
                if abs(x) < abs(y):
                    x, y = y, x
                sum_ = x + y
                error = y - (sum_ - x)
                if error != 0.0:
                    self._partial[kept] = error
                    kept += 1
                x = sum_
            self._partial[kept] = x
            partials = kept + 1
        partials -= 1
        sum_ = self._partial[partials]
        error = 0.0
        while partials > 0 and error == 0.0:
            partials -= 1
            x = sum_
            y = self._partial[partials]
            sum_ = x + y
            error = y - (sum_ - x)
        if partials > 0 and error * self._partial[partials - 1] > 0.0:  # half way between two: the rest decides
            y = error * 2.0
            x = sum_ + y
            if y == x - sum_:
                sum_ = x
        return sum_
