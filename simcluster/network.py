"""Bytes over shared links as SimPy events: activities that progress at max-min fair rates.

An activity is a transfer, or a whole ring whose hops advance together.  It first pays its latency, occupying nothing,
then moves ``rounds`` x ``round_bytes`` per flow.  Rates change only when an activity joins, ends, or a capacity
changes; only the connected component that changed is solved again, once per instant, after all else of that instant.
(SimGrid's rule for latency; modelling.md C.2.)  Imports the clock, fairness and Traffic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import simpy
from simpy.events import EventPriority

from simcluster.clock import on_grid
from simcluster.fairness import fair_rates
from simcluster.traffic import Traffic

_LAST = EventPriority(2)  # after SimPy's URGENT (0) and NORMAL (1): the end of an instant


class _Activity:
    __slots__ = ("end", "number", "over", "rate", "remaining", "round_seconds", "then", "traffic", "updated")

    def __init__(self, number: int, traffic: Traffic, then: Callable[[], object]) -> None:
        self.number = number
        self.traffic = traffic
        self.then = then
        self.remaining = float(traffic.rounds)  # in rounds, so that an undisturbed activity ends on an exact multiple
        self.rate = 0.0
        self.round_seconds = math.inf
        self.updated = 0.0
        self.end = math.inf
        self.over = False


class Network:
    """The cluster's links at work.  ``capacity`` is B/s per link number."""

    def __init__(self, env: simpy.Environment, capacity: Sequence[float]) -> None:
        self._env = env
        self._capacity = list(capacity)
        self._users: list[dict[int, _Activity]] = [{} for _ in self._capacity]
        self._joins: dict[float, list[_Activity]] = {}  # by instant: one SimPy event each, however many activities
        self._ends: dict[float, list[_Activity]] = {}
        self._dirty: dict[int, _Activity] = {}
        self._solve_due = False
        self._started = 0
        self.solves = 0

    def start(self, traffic: Traffic, then: Callable[[], object]) -> None:
        """Begin an activity now; ``then`` is called at the instant its last byte has arrived."""
        self._started += 1
        activity = _Activity(self._started, traffic, then)
        latency = traffic.latency_seconds
        if latency > 0:
            self._at(self._env.now + latency, activity, self._joins, self._join_all)
        else:
            self._join(activity)

    def set_capacity(self, link: int, capacity: float) -> None:
        """Change a link's capacity (B/s, zero allowed) from this instant on."""
        self._capacity[link] = capacity
        self._mark(self._users[link].values())

    def _at(
        self,
        instant: float,
        activity: _Activity,
        agenda: dict[float, list[_Activity]],
        action: Callable[[simpy.Event], None],
    ) -> None:
        """Put an activity on an agenda; the first one of an instant brings the SimPy event."""
        waiting = agenda.get(instant)
        if waiting is not None:
            waiting.append(activity)
            return
        agenda[instant] = [activity]
        timer = self._env.timeout(instant - self._env.now, instant)
        assert timer.callbacks is not None
        timer.callbacks.append(action)

    def _join_all(self, timer: simpy.Event) -> None:
        instant: float = timer._value
        for activity in self._joins.pop(instant):
            self._join(activity)

    def _join(self, activity: _Activity) -> None:
        activity.updated = self._env.now
        all_users, number = self._users, activity.number
        alone = True
        for link, _ in activity.traffic.usage:
            users = all_users[link]
            if users:
                alone = False
            users[number] = activity
        if alone:
            self._set_rate(activity, activity.traffic.alone_rate(self._capacity))
        else:
            self._mark((activity,))

    def _mark(self, activities: Iterable[_Activity]) -> None:
        """Remember what changed; solve once, at the end of this instant."""
        for activity in activities:
            self._dirty[activity.number] = activity
        if self._dirty and not self._solve_due:
            self._solve_due = True
            end_of_instant = self._env.event()
            end_of_instant._ok, end_of_instant._value = True, None
            assert end_of_instant.callbacks is not None
            end_of_instant.callbacks.append(self._solve)
            self._env.schedule(end_of_instant, priority=_LAST)

    def _solve(self, _: simpy.Event) -> None:
        self._solve_due = False
        pending, self._dirty = self._dirty, {}
        solved: dict[int, _Activity] = {}
        for number, activity in pending.items():
            if number in solved or activity.over:
                continue
            component = self._component(activity)
            solved |= component
            usages = {key: member.traffic.usage for key, member in component.items()}
            bounds = {key: member.traffic.bound for key, member in component.items() if member.traffic.bound < math.inf}
            rates = fair_rates(usages, self._capacity, bounds)
            self.solves += 1
            for key, member in component.items():
                if rates[key] != member.rate:
                    self._set_rate(member, rates[key])

    def _component(self, activity: _Activity) -> dict[int, _Activity]:
        """All activities that share links, directly or through others, with this one."""
        component = {activity.number: activity}
        frontier = [activity]
        seen: set[int] = set()
        while frontier:
            for link, _ in frontier.pop().traffic.usage:
                if link in seen:
                    continue
                seen.add(link)
                for number, other in self._users[link].items():
                    if number not in component:
                        component[number] = other
                        frontier.append(other)
        return component

    def _set_rate(self, activity: _Activity, rate: float) -> None:
        now = self._env.now
        if now > activity.updated and activity.round_seconds > 0:
            activity.remaining = max(0.0, activity.remaining - (now - activity.updated) / activity.round_seconds)
        activity.updated = now
        activity.rate = rate
        size = activity.traffic.round_bytes
        if rate <= 0 and size > 0:  # a dead link: nothing moves until its capacity comes back
            activity.round_seconds = activity.end = math.inf
            return
        activity.round_seconds = on_grid(size / rate) if size else 0.0
        activity.end = now + on_grid(activity.remaining * activity.round_seconds)
        self._at(activity.end, activity, self._ends, self._finish_all)

    def _finish_all(self, timer: simpy.Event) -> None:
        """End every activity that is due at this instant; entries whose end has moved are stale."""
        instant: float = timer._value
        for activity in self._ends.pop(instant):
            if activity.end != instant or activity.over:
                continue
            activity.over = True
            for link, _ in activity.traffic.usage:
                users = self._users[link]
                del users[activity.number]
                if users:
                    self._mark(users.values())
            activity.then()
