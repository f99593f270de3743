"""Max-min fair rates of transfers on links, solved incrementally after each change; compiled.

The solution is written as *levels*, as in ``reference.fair_rates``.  A transfer *wants* of a link the lowest level
elsewhere on its way; the level of a link is a function of what its users want.  From the lowest level up, by induction,
one set of levels fits together and only one, to the bit: of two sets that differ, take the lowest rate at which they
do; up to there both fill its link equally.  So it does not matter where the search begins, in which order it visits
links, or how many transfers represent equal flows.  (Links that send each other only what changed: Mozo et al., B-Neck,
IEEE NCA 2011.)
"""

from __future__ import annotations

import cython

from simcluster.base.arrays import Floats
from simcluster.engine.tables import TrafficColumns

if not cython.compiled:
    from simcluster.base.pointers import Buffers
    from simcluster.engine.event_queue import INFINITE, EventQueue
    from simcluster.engine.memberships import MembershipLists

_PARTIALS = 64  # a sum of float64 numbers has at most 40


class MaxMinRates:
    """Solver of the max-min fair ``rate`` (B/s per flow) of every transfer.

    ``owner`` is the transfer (plus one) that has reserved a link; it is not among the link's users.
    ``touched`` lists the transfers that joined, or whose rate changed, since the list was last emptied;
    ``before`` is the rate of each before that.
    """

    def __init__(self, capacity: Floats, traffics: TrafficColumns) -> None:
        links = len(capacity)
        self.buffers = Buffers()
        self.users = MembershipLists(links)
        self.queue = EventQueue(64)
        self.capacity = self.buffers.view_doubles("capacity", capacity.copy())
        self.level = self.buffers.doubles("level", links)
        self.usage_first = self.buffers.view_ints("usage_first", traffics.first)
        self.usage_link = self.buffers.view_ints("usage_link", traffics.link)
        self.usage_flows = self.buffers.view_doubles("usage_flows", traffics.flows)
        self._bound = self.buffers.view_doubles("bound", traffics.bound)
        self.owner = self.buffers.ints("owner", links)
        self.is_waiting = self.buffers.flags("is_waiting", links)
        self._partial = self.buffers.doubles("partial", _PARTIALS)
        self.touched_count = 0

    def allocate_transfers(self, room: cython.int) -> cython.void:
        """Allocate arrays for ``room`` transfers."""
        self.rate = self.buffers.doubles("rate", room)
        self.before = self.buffers.doubles("before", room)
        self.usage = self.buffers.ints("usage", room)
        self.is_touched = self.buffers.flags("is_touched", room)
        self.touched = self.buffers.ints("touched", room)
        self._want = self.buffers.doubles("want", room)
        self._flows = self.buffers.doubles("flows", room)

    def join_links(self, activity: cython.int, traffic: cython.int) -> cython.void:
        """Add a transfer to the links of its traffic."""
        rate: cython.double = self._bound[traffic]
        self.usage[activity] = traffic
        self.rate[activity] = -1.0
        self._mark_touched(activity)
        for place in range(self.usage_first[traffic], self.usage_first[traffic + 1]):
            link = self.usage_link[place]
            flows = self.usage_flows[place]
            if self.users.count[link]:
                self.schedule_link_update(link)
            else:
                self.level[link] = self.capacity[link] / flows
            self.users.add(link, activity, flows)
            if self.level[link] < rate:
                rate = self.level[link]
        self.rate[activity] = rate

    def reserve_links(self, activity: cython.int, traffic: cython.int) -> cython.double:
        """Reserve idle links for one transfer and return its rate (B/s); return -1 if a link is in use.

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

    def cancel_reservation(self, traffic: cython.int) -> cython.void:
        """Cancel the reservation of a traffic's links."""
        for place in range(self.usage_first[traffic], self.usage_first[traffic + 1]):
            self.owner[self.usage_link[place]] = 0

    def leave_links(self, activity: cython.int) -> cython.void:
        """Remove a transfer from its links."""
        traffic: cython.int = self.usage[activity]
        self.users.remove_all(activity)
        for place in range(self.usage_first[traffic], self.usage_first[traffic + 1]):
            self.schedule_link_update(self.usage_link[place])

    def solve_rates(self) -> cython.void:
        """Recompute the fair rates of links and of transfers until they agree, starting from the slowest link."""
        while self.queue.count:
            link = self.queue.pop()
            self.is_waiting[link] = 0
            if not self.users.count[link]:
                continue
            old = self.level[link]
            new = self._fair_level_of_link(link)
            if new == old:
                continue
            self.level[link] = new
            entry = self.users.head[link]
            while entry >= 0:
                activity = self.users.entry[entry].member
                if self.rate[activity] >= old or self.rate[activity] > new:  # else others hold it back, as before
                    self._update_rate(activity, link)
                entry = self.users.entry[entry].following

    def _mark_touched(self, activity: cython.int) -> cython.void:
        if not self.is_touched[activity]:
            self.is_touched[activity] = 1
            self.before[activity] = self.rate[activity]
            self.touched[self.touched_count] = activity
            self.touched_count += 1

    def schedule_link_update(self, link: cython.int) -> cython.void:
        """Schedule a link for the next ``solve_rates``, because its capacity or its users have changed."""
        if self.users.count[link] and not self.is_waiting[link]:
            self.is_waiting[link] = 1
            self.queue.add_event(self.level[link], link)

    def _update_rate(self, activity: cython.int, link: cython.int) -> cython.void:
        """Recompute a transfer's rate from its links' fair rates; if the rate changes, schedule its other links."""
        traffic: cython.int = self.usage[activity]
        rate: cython.double = self._bound[traffic]
        for place in range(self.usage_first[traffic], self.usage_first[traffic + 1]):
            other = self.usage_link[place]
            if self.level[other] < rate:
                rate = self.level[other]
        if rate == self.rate[activity]:
            return
        self._mark_touched(activity)
        self.rate[activity] = rate
        for place in range(self.usage_first[traffic], self.usage_first[traffic + 1]):
            other = self.usage_link[place]
            if other != link and self.users.count[other] > 1:
                self.schedule_link_update(other)

    def _fair_level_of_link(self, link: cython.int) -> cython.double:
        """Return a link's fair rate (B/s per flow), given the rates that its transfers reach on other links."""
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
        return self._fair_rate(self.capacity[link], count)

    def _fair_rate(self, capacity: cython.double, count: cython.int) -> cython.double:
        """Return the fair rate on a link where some transfers need less than it; infinite if all transfers do.

        ``_want`` is what each wants (B/s) for each of its ``_flows``.
        """
        left: cython.double = capacity
        share: cython.double = capacity / self._sum_flows(count, 0.0, INFINITE)
        want: cython.double = INFINITE
        for i in range(count):
            if self._want[i] < want:
                want = self._want[i]
        while want < share:
            left -= self._sum_flows(count, want, want) * want
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
            following = left / self._sum_flows(count, want, INFINITE)
            if following > share:
                share = following
        return share

    def _sum_flows(self, count: cython.int, low: cython.double, high: cython.double) -> cython.double:
        """Return the exactly rounded sum of flows of transfers that need a rate between ``low`` and ``high``.

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
