"""Bytes over shared links as SimPy events: activities that progress at max-min fair rates.

An activity is a transfer, or a whole ring whose hops advance together.  It first pays its latency, occupying nothing,
then moves ``rounds`` x ``round_bytes`` per flow.  Rates change only when an activity joins, ends, or a capacity
changes; links are shared out anew once per instant, after all else of that instant, as far as the change reaches.
(SimGrid's rule for latency; MODELLING.md C.2.)  An activity whose links nobody is on gets them at once, and gives them
back to whoever comes to them before its latency is over: a transfer alone is one event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import simpy

from simcluster.base.clock import on_grid
from simcluster.base.profiles import Profile
from simcluster.engine.calendar import Agenda, Instant, at_end_of_instant
from simcluster.traffic.fairness import Sharer, Shares
from simcluster.traffic.traffic import Traffic


class Activity(Sharer):
    """What moves: on its links from ``updated`` on, if that is still to come."""

    __slots__ = ("drag", "end", "over", "remaining", "round_seconds", "then", "traffic", "updated")

    def __init__(self, traffic: Traffic, then: Callable[[], object], drag: float) -> None:
        self.usage = traffic.usage
        self.bound = traffic.bound
        self.rate = -1.0
        self.free = False
        self.traffic = traffic
        self.then = then
        self.remaining = float(traffic.rounds)  # in rounds, so that an undisturbed activity ends on an exact multiple
        self.round_seconds = math.inf
        self.updated = 0.0
        self.end = math.inf
        self.over = False
        self.drag = drag  # how many times as long a round takes because of what runs beside it on its GPUs


class Network:
    """The cluster's links at work.

    ``capacity`` is B/s per link number, ``profiles[link]`` what multiplies that as time goes on.
    """

    def __init__(
        self,
        env: simpy.Environment,
        capacity: Sequence[float],
        profiles: Mapping[int, Profile] = MappingProxyType({}),
    ) -> None:
        self._env = env
        self._shares: Shares[Activity] = Shares(capacity)
        self._joins: Agenda[Activity] = Agenda(env)
        self._ends: Agenda[Activity] = Agenda(env)
        self._solve_due = False
        self._profiles = profiles
        self._nominal = {link: float(capacity[link]) for link in profiles}
        self._factors = dict.fromkeys(profiles, 1.0)
        self._following = False  # is an event due at the next change?
        self._under_way = 0  # activities: nobody looks at links while there are none

    @property
    def solves(self) -> int:
        """Instants at which links had to be shared out anew."""
        return self._shares.solves

    def start(self, traffic: Traffic, then: Callable[[], object], drag: float = 1.0) -> Activity:
        """Begin an activity now; ``then`` is called at the instant its last byte has arrived (see ``set_drag``)."""
        activity = Activity(traffic, then, drag)
        self._under_way += 1
        if self._profiles and not self._following:
            self._follow()
        joins = self._env._now + traffic.latency_seconds
        if self._shares.join_free(activity):
            activity.updated = joins
            self._set_end(activity)
        elif traffic.latency_seconds > 0:
            self._joins.put(joins, activity, self._join_all)
        else:
            self._join(activity, joins)
        return activity

    def set_drag(self, activity: Activity, drag: float) -> None:
        """From this instant on the activity's rounds take ``drag`` times as long as its share of the links allows.

        The share stays as large as before: what it does not use is not given to others.  Latency is not dragged.
        """
        activity.drag = drag
        if activity.rate >= 0 and not activity.over:
            self._set_end(activity)

    def set_capacity(self, link: int, capacity: float) -> None:
        """Change a link's capacity (B/s, zero allowed) from this instant on."""
        if self._shares.set_capacity(link, capacity):
            self._solve_later()

    def _follow(self, _: simpy.Event | None = None) -> None:
        """Bring capacities in line with their profiles, now and again at their next change."""
        self._following = False
        if not self._under_way:
            return
        now, change = self._env.now, math.inf
        for link, profile in self._profiles.items():
            factor = profile.at(now)
            change = min(change, profile.after(now))
            if factor != self._factors[link]:
                self._factors[link] = factor
                self.set_capacity(link, self._nominal[link] * factor)
        if change < math.inf:
            self._following = True
            timer = self._env.timeout(change - now)
            assert timer.callbacks is not None
            timer.callbacks.append(self._follow)

    def _join_all(self, event: Instant) -> None:
        for activity in self._joins.take(event.instant):
            self._join(activity, event.instant)

    def _join(self, activity: Activity, now: float) -> None:
        """Its latency is over: it comes to its links, where others are or will be."""
        for early in self._shares.sole_users(activity.usage):
            if early.updated > now:  # not there yet: it may come later than this one
                self._shares.leave(early)
                early.rate, early.end = -1.0, math.inf
                self._joins.put(early.updated, early, self._join_all)
        activity.updated = now
        if self._shares.join(activity):
            self._set_end(activity)
        else:
            self._solve_later()

    def _solve_later(self) -> None:
        """Solve once, at the end of this instant."""
        if not self._solve_due:
            self._solve_due = True
            at_end_of_instant(self._env, self._solve)

    def _solve(self, _: Instant) -> None:
        self._solve_due = False
        for activity in self._shares.solve():
            self._set_end(activity)

    def _set_end(self, activity: Activity) -> None:
        """The activity's rate has changed: what it has done until now, and when it will end."""
        now, updated = self._env._now, activity.updated
        if now > updated:
            if activity.round_seconds > 0:
                activity.remaining = max(0.0, activity.remaining - (now - updated) / activity.round_seconds)
            activity.updated = updated = now
        rate, size = activity.rate, activity.traffic.round_bytes
        if rate <= 0 and size > 0:  # a dead link: nothing moves until its capacity comes back
            activity.round_seconds = activity.end = math.inf
            return
        activity.round_seconds = on_grid(size / rate * activity.drag) if size else 0.0
        left = activity.remaining * activity.round_seconds
        if activity.remaining != activity.traffic.rounds:  # else so many times what is on the grid is on it
            left = on_grid(left)
        activity.end = updated + left
        self._ends.put(activity.end, activity, self._finish_all)

    def _finish_all(self, event: Instant) -> None:
        """End every activity that is due at this instant; entries whose end has moved are stale."""
        instant = event.instant
        for activity in self._ends.take(instant):
            if activity.end != instant or activity.over:
                continue
            activity.over = True
            self._under_way -= 1
            if self._shares.leave(activity):
                self._solve_later()
            activity.then()
