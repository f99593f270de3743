"""State of a compiled simulated run: training progress, snapshots, slow devices, and nodes in repair.

``longrun/checkpoint_pattern.py`` has the nominal clock for arrays.
"""

from __future__ import annotations

import math

import cython

from simcluster.longrun.checkpoint_pattern import STEP_TOLERANCE
from simcluster.longrun.long_run import TIME_TOLERANCE, LongRun

if not cython.compiled:
    from simcluster.base.pointers import Buffers

_INF = math.inf
_SOON, _PART = TIME_TOLERANCE, STEP_TOLERANCE


class Snapshots:
    """Nominal (failure-free) clock of a run, with the times of its latest snapshots in memory and on storage."""

    def __init__(self, run: LongRun) -> None:
        pattern = run.pattern
        self.cycles, self.in_memory = pattern.snapshots_per_stored, pattern.memory is not None
        self.period = pattern.pattern_seconds
        self.last = float(run.goal // pattern.steps) if math.isfinite(run.goal) else math.inf
        self.buffers = Buffers()
        self.ends = self.buffers.view_doubles("ends", pattern.interval_bounds)
        self.safe_within = self.buffers.view_doubles("safe_within", pattern.safe_times_within_pattern)
        self.at = self.in_memory_at = self.stored_at = 0.0
        self.stalls = self.buffers.view_doubles("stalls", [cycle[3][1] for cycle in pattern.phases_by_snapshot])
        work = [value for cycle in pattern.phases_by_snapshot for phase in cycle[:2] for value in phase[1:]]
        self.work = self.buffers.view_doubles("work", work)  # write, steps beside it, work, steps of it by snapshot

    def split_patterns(self, at: cython.double) -> cython.longlong:
        """Return how many whole checkpoint patterns precede a nominal time; set ``rest`` to the seconds since."""
        whole: cython.longlong = cython.cast(cython.longlong, at / self.period)
        self.rest = at - whole * self.period
        if self.rest < 0:  # rounding
            whole -= 1
            self.rest += self.period
        return whole

    def snapshot_end(self, snapshot: cython.longlong) -> cython.double:
        """Return the nominal (failure-free) time (s) when snapshot n is taken; snapshot 0: the run's start."""
        return snapshot // self.cycles * self.period + self.ends[snapshot % self.cycles]

    def count_taken(self, at: cython.double) -> cython.longlong:
        """Return how many snapshots, safe or not, are taken by a nominal (failure-free) time."""
        whole: cython.longlong = self.split_patterns(at)
        within: cython.int = 0
        while within < self.cycles - 1 and self.ends[within + 1] <= self.rest:
            within += 1
        return whole * self.cycles + within

    def next_snapshot_end(self) -> cython.double:
        """Return the nominal (failure-free) time (s) when the next snapshot will have been taken."""
        return self.snapshot_end(self.count_taken(self.at) + 1)

    def next_verification_end(self) -> cython.double:
        """Return the nominal (failure-free) time (s) when the next snapshot verification ends."""
        snapshot: cython.longlong = self.count_taken(self.at) + 1
        found: cython.double = self.snapshot_end(snapshot) - self.stalls[(snapshot - 1) % self.cycles]
        if found >= self.at:
            return found
        return self.snapshot_end(snapshot + 1) - self.stalls[snapshot % self.cycles]

    def latest_safe_end(self, stored: cython.bint) -> cython.double:
        """Return the nominal time of the latest snapshot completely written (on storage only, if ``stored``)."""
        whole: cython.longlong = self.split_patterns(self.at)
        within: cython.int = 0
        while within < self.cycles and self.safe_within[within] <= self.rest:
            within += 1
        snapshot: cython.longlong = max(0, whole * self.cycles + within - 1)
        if stored and self.in_memory:
            snapshot = snapshot // self.cycles * self.cycles
        if snapshot > self.last:
            snapshot = cython.cast(cython.longlong, self.last)
        return max(self.snapshot_end(snapshot), self.stored_at if stored else self.in_memory_at)

    def step_begin(self) -> cython.double:
        """Return the nominal time when the step in progress began; after the work of a cycle: when that ended."""
        snapshot: cython.longlong = self.count_taken(self.at)
        place: cython.longlong = 4 * (snapshot % self.cycles)
        begin: cython.double = self.snapshot_end(snapshot)
        write: cython.double = self.work[place]
        beside: cython.double = self.work[place + 1]
        work: cython.double = self.work[place + 2]
        steps: cython.double = self.work[place + 3]
        since: cython.double = self.at - begin
        done: cython.double = 0.0
        if since < write:
            done = since / write * beside
        else:
            done = beside + min(1.0, (since - write) / (work if work else 1.0)) * steps
        done = math.floor(done + _PART)
        return begin + (done / beside * write if done < beside else write + (done - beside) / (steps or 1.0) * work)


class Absent:
    """Replicas that left: when they are back (wall s), their nodes, the cause, and seconds to copy by phase."""

    def __init__(self, back: float, machines: int, cause: int, copy: list[float]) -> None:
        self.back, self.machines, self.cause, self.copy = back, machines, cause, copy


class SlowPeriod:
    """Slowdown by one device: cause, job's step time factor (``pace``), end time, and notice time (inf: never)."""

    def __init__(self, cause: int, pace: float, end: float, noticed: float) -> None:
        self.cause, self.pace, self.end, self.noticed = cause, pace, end, noticed


class SlowDevices:
    """Slow devices of a compiled simulated run, in the order in which they became slow.

    ``worst`` is the pace of the job, ``by`` the cause of that, ``next`` when one ends or is noticed (s).
    """

    def __init__(self) -> None:
        self.devices: list[SlowPeriod] = []

    def remove_ended(self, now: cython.double) -> cython.void:
        """Remove devices whose slow period is over."""
        self.devices = [each for each in self.devices if each.end > now]

    def remove_noticed(self, now: cython.double) -> cython.void:
        """Remove devices whose slowness has been noticed."""
        self.devices = [each for each in self.devices if now < each.noticed < _INF]

    def notice(self, now: cython.double) -> cython.int:
        """Mark the slow device noticed first (by ``now``) as handled; return the cause's number, or -1 if none."""
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
        """Update the job's step time factor and the time of the next change; ``short``: factor due to missing nodes."""
        each: SlowPeriod
        self.worst, self.by, self.next = 1.0, -1, _INF
        for each in self.devices:
            if each.pace > self.worst:
                self.worst, self.by = each.pace, each.cause
            self.next = min(self.next, each.end, each.noticed)
        if short > self.worst:
            self.worst, self.by = short, short_cause


class RepairQueue:
    """Queue of nodes in repair with return times ``back``, ascending, and repair crews (0: unlimited)."""

    def __init__(self, crews: int) -> None:
        self.crews, self.count, self.room = crews, 0, 64
        self.buffers = Buffers()
        self.back = self.buffers.doubles("back", self.room)

    def count_out(self, now: cython.double) -> cython.int:
        """Return the number of nodes in repair."""
        place: cython.int = self.count
        while place > 0 and self.back[place - 1] > now + _SOON:
            place -= 1
        return self.count - place

    def send_to_repair(self, now: cython.double, seconds: cython.double) -> cython.void:
        """Send a node to repair, which occupies a crew for ``seconds``."""
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

    def time_with_at_most(self, now: cython.double, out: cython.int) -> cython.double:
        """Return the time (wall s) at which at most ``out`` nodes are in repair."""
        return max(now, self.back[self.count - 1 - out]) if self.count > out else now
