"""Fluid network model of the reference simulator: transfers share links max-min fairly at every instant.

An activity is a transfer, or a ring whose hops advance together. It first pays its latency, occupying nothing, then
moves ``rounds`` times ``round_bytes`` on every flow at its max-min fair rate. (SimGrid's rule for latency: MODELLING.md
C.2.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence

import simpy
from simpy.events import EventPriority

from simcluster.base.clock import Profile, exact_time_limit, first_nonzero_time, round_to_tick
from simcluster.base.progress import check_event_count
from simcluster.reference.fair_rates import BandwidthDemand, fair_rates
from simcluster.traffic.traffic import Traffic

_SECONDS_PER_EVENT = 1e-5  # processor seconds per event, about
_LAST = EventPriority(2)  # after SimPy's URGENT (0) and NORMAL (1)


def run_events(env: simpy.Environment) -> int:
    """Process all SimPy events until none is left or the clock would lose exactness; return their number."""
    until = exact_time_limit()
    events = 0
    while env.peek() < until:
        env.step()
        events += 1
        if events % 10_000 == 0:
            check_event_count("events", events, _SECONDS_PER_EVENT, env.now)
    return int(next(env._eid))


class EndOfInstantAction:
    """Action that, on request, runs once at the end of a simulated instant, after all other events."""

    def __init__(self, env: simpy.Environment, action: Callable[[], None]) -> None:
        self._env, self._action, self._asked = env, action, False

    def run_at_end_of_instant(self) -> None:
        """Request that the action runs at the end of the current instant."""
        if self._asked:
            return
        self._asked = True
        event = simpy.Event(self._env)
        event._ok, event._value = True, None
        event.callbacks.append(self._run)
        self._env.schedule(event, _LAST)

    def _run(self, _: simpy.Event) -> None:
        self._asked = False
        self._action()


Process = Generator[simpy.Event, None, None]


class FluidTransfer:
    """Transfer in flight: number of rounds that remain, current rate, and expected end.

    A round takes ``drag`` times as long as the links allow, because of computation on its GPUs.
    """

    def __init__(self, env: simpy.Environment, traffic: Traffic, drag: float = 1.0) -> None:
        self.traffic, self.drag = traffic, drag
        self.rate = -1.0  # B/s per flow; not on its links yet
        self.remaining = float(traffic.rounds)
        self.round_seconds = self.end = math.inf
        self.updated = 0.0
        self.changed = env.event()

    def update_progress(self, now: float) -> None:
        """Update the remaining rounds to time ``now``, and the expected end at the current rate and slowdown."""
        if now > self.updated and self.round_seconds > 0:
            self.remaining = max(0.0, self.remaining - (now - self.updated) / self.round_seconds)
        self.updated = now
        size = self.traffic.round_bytes
        if self.rate <= 0 and size > 0:  # a dead link: nothing moves until its capacity comes back
            self.round_seconds = self.end = math.inf
            return
        self.round_seconds = round_to_tick(size / self.rate * self.drag) if size else 0.0
        left = self.remaining * self.round_seconds
        self.end = now + (left if self.remaining == self.traffic.rounds else round_to_tick(left))


class FluidNetwork:
    """Links that transfers share max-min fairly; each link's capacity (B/s) may change over time."""

    def __init__(self, env: simpy.Environment, capacity: Sequence[float], profiles: Mapping[int, Profile]) -> None:
        self._env, self._capacity, self._profiles = env, capacity, profiles
        self._moving: list[FluidTransfer] = []
        self._started = 0  # activities that have begun and are not over, latency included
        self._following = False
        self._share = EndOfInstantAction(env, self._update_rates)

    def run_transfer(self, transfer: FluidTransfer) -> Process:
        """Run a transfer: wait for the latency, then move the bytes at the max-min fair rate."""
        env = self._env
        self._started += 1
        if self._profiles and not self._following:
            self._following = True
            env.process(self._track_capacity_changes())
        yield env.timeout(transfer.traffic.latency_seconds)
        self._moving.append(transfer)
        transfer.updated = env.now
        self._share.run_at_end_of_instant()
        yield transfer.changed
        while transfer.end > env.now:
            wake = [env.timeout(transfer.end - env.now)] if transfer.end < math.inf else []
            yield env.any_of([*wake, transfer.changed])
        self._moving.remove(transfer)
        self._started -= 1
        self._share.run_at_end_of_instant()

    def set_slowdown(self, transfer: FluidTransfer, drag: float) -> None:
        """Slow down a transfer's rounds by a factor from now on; the bandwidth saved stays idle."""
        transfer.drag = drag
        if transfer in self._moving and transfer.rate >= 0:
            transfer.update_progress(self._env.now)
            self._announce_change(transfer)

    def _update_rates(self) -> None:
        now = self._env.now
        used = {link for activity in self._moving for link, _ in activity.traffic.usage}
        capacity = {link: self._capacity[link] for link in used}
        for link in used & self._profiles.keys():
            capacity[link] *= self._profiles[link].factor_at(now)
        demands = [BandwidthDemand(activity.traffic.usage, activity.traffic.bound) for activity in self._moving]
        for activity, rate in zip(self._moving, fair_rates(demands, capacity), strict=True):
            if rate != activity.rate:
                activity.rate = rate
                activity.update_progress(now)
                self._announce_change(activity)

    def _announce_change(self, activity: FluidTransfer) -> None:
        event, activity.changed = activity.changed, self._env.event()
        event.succeed()

    def _track_capacity_changes(self) -> Process:
        while self._started:
            change = min(profile.next_change(self._env.now) for profile in self._profiles.values())
            if change == math.inf:
                return  # and stays marked as following: there is nothing left to follow
            yield self._env.timeout(change - self._env.now)
            if self._env.peek() == math.inf and not self._can_make_progress():
                return
            self._share.run_at_end_of_instant()
        self._following = False

    def _can_make_progress(self) -> bool:
        usages = [activity.traffic.usage for activity in self._moving]
        of_links = [[self._profiles[link] for link, _ in usage if link in self._profiles] for usage in usages]
        return any(first_nonzero_time(profiles, self._env.now) < math.inf for profiles in of_links)
