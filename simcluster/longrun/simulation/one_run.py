"""Event loop of the compiled simulation of one long run, as described in ``longrun/long_run.py``."""

from __future__ import annotations

import math

import cython

from simcluster.longrun.long_run import TIME_TOLERANCE

if not cython.compiled:
    from simcluster.longrun.simulation.outages import LASTS, NOTICED, PACE, PAUSE, SLOW, Outages
    from simcluster.longrun.simulation.state import SlowPeriod

_INF, _SOON = math.inf, TIME_TOLERANCE


class OneRun(Outages):
    """Simulated run: training until the next event, and what the event is."""

    def simulate(self, row: cython.int) -> cython.void:
        """Simulate one run from start to end; ``row`` is the run's row in the time accounts."""
        self.begin_run(row)
        while self.alive:
            self.slow.update(self.paces[self.missing], self.names - 1)
            nominal: cython.double = min(self.planned_at, self.end_at, self.verified_at)
            returns: cython.double = min(self.back_at, self.rejoin_at)
            instant: cython.double = min(self.turn, self.due, returns, self.found_at, self.slow.next)
            reached: cython.double = max(0.0, nominal - self.snapshots.at) * self.slow.worst
            waited: cython.double = max(0.0, instant - self.now)
            passed: cython.double = min(self.hazards.time_to_failure(), min(reached, waited))
            at: cython.double = self.snapshots.at + passed / self.slow.worst
            if waited <= passed:
                self.advance(passed, at)
                self.now = max(self.now, instant)
                self.handle_wall_events()
            elif reached <= passed:
                self.advance(passed, nominal)
                self.handle_nominal_event()
            else:
                self.advance(passed, at)
                self.handle_failure()
        self.accounts.wall[row], self.accounts.at[row] = self.now, self.snapshots.at

    def advance(self, passed: cython.double, at: cython.double) -> cython.void:
        """Train for ``passed`` wall seconds, up to the nominal (failure-free) time ``at``."""
        slowed: cython.double = passed - (at - self.snapshots.at)
        if slowed > 0 and self.slow.by >= 0:
            self.accounts.add_seconds(SLOW, self.slow.by, slowed)
        self.now += passed
        self.snapshots.at = at
        self.hazards.loaded += passed * self.hazards.share
        self.hazards.trained += passed * self.hazards.share

    def handle_wall_events(self) -> cython.void:
        """Handle all events that are due at the current wall time."""
        cause: cython.int
        begun: cython.double = self.now
        while self.now >= self.next_week:
            self.accounts.weeks[self.accounts.row].append(self.snapshots.at)
            self.next_week += self.week
            self.turn = min(self.next_week, self.until)
        if self.now >= self.until:
            self.alive = False
            return
        self.slow.remove_ended(self.now)
        if self.now >= self.due:
            self.due += self.every * math.ceil((self.now - self.due) / self.every + 1e-9)
            self.maintains = True
            self.plan_outage(self.names - 2)
        if self.now >= self.back_at:
            self.back_at = _INF
            self.plan_outage(self.names - 1)
        if not self.leaves_slow:
            cause = self.slow.notice(self.now)
            if cause >= 0:
                if self.replaces_slow:
                    self.stop_job(cause, self.surviving_snapshot_end(cause), False)
                else:
                    self.plan_outage(cause)
        if self.found_at <= self.now == begun:  # after a stop, other events may be due before it, such as a week's end
            self.stop_job(self.silent_cause, self.clean_snapshot_end(), False)
        if self.rejoin_at <= self.now == begun:
            self.rejoin_first()

    def handle_nominal_event(self) -> cython.void:
        """Handle the event at the current training progress: run end, failed verification, or planned outage."""
        if self.rejoin_at <= self.now + _SOON:
            self.rejoin_first()
        elif self.snapshots.at >= self.end_at:
            self.alive = False
        elif self.snapshots.at >= self.verified_at:
            self.stop_job(self.silent_cause, self.snapshots.latest_safe_end(False), False)
        else:
            self.stop_job(self.planned_cause, self.snapshots.at, True)

    def handle_failure(self) -> cython.void:
        """Handle the next failure by its cause's effect: stop, slowdown, pause, wrong weights, or planned outage."""
        column: cython.int = self.hazards.next_column()
        cause: cython.int = self.hazards.cause[column]
        effect: cython.int = self.causes[cause].effect
        occurrence: cython.int = self.accounts.count_event(self.accounts.strikes, cause)
        if self.hazards.record_failure(column, occurrence, self.now):
            self.causes[cause].retired = 1
        if effect == 0:
            self.stop_job(cause, self.surviving_snapshot_end(cause), False)
        elif effect == 1:
            self.slow_device(cause, occurrence)
        elif effect == 2:
            self.pause_job(cause, occurrence)
        elif effect == 3:
            self.corrupt_weights(cause, occurrence)
        else:
            self.plan_outage(cause)

    def failure_duration(self, cause: cython.int, occurrence: cython.int) -> cython.double:
        """Return a failure's duration (s): from the failure log, or drawn from the cause's distribution."""
        if self.struck[cause] is not None:
            known: cython.double = self.struck[cause].recorded_duration(occurrence)
            if known == known:  # not nan
                return known
        return self.draws.draw(cause * self.stride + LASTS, occurrence)

    def slow_device(self, cause: cython.int, occurrence: cython.int) -> cython.void:
        """Slow a device down for a random time."""
        pace: cython.double = self.draws.draw(cause * self.stride + PACE, occurrence)
        end: cython.double = self.now + self.failure_duration(cause, occurrence)
        noticed: cython.double = _INF
        if not self.leaves_slow:
            noticed = self.now + self.draws.draw(cause * self.stride + NOTICED, occurrence)
        self.slow.devices.append(SlowPeriod(cause, pace, end, noticed))

    def corrupt_weights(self, cause: cython.int, occurrence: cython.int) -> cython.void:
        """Mark the weights as wrong from now on, unless they are already wrong."""
        if self.since < _INF:
            return
        self.since, self.silent_cause = self.snapshots.at, cause
        if self.verifies:
            self.verified_at = self.snapshots.next_verification_end()
            self.since = max(self.since, self.snapshots.snapshot_end(self.snapshots.count_taken(self.verified_at)))
        else:
            self.found_at = self.now + self.failure_duration(cause, occurrence)

    def clean_snapshot_end(self) -> cython.double:
        """Return the nominal (failure-free) time of the latest stored snapshot with correct weights, or 0."""
        cycles: cython.longlong = self.snapshots.cycles
        before: cython.longlong = self.snapshots.count_taken(self.since) // cycles * cycles
        stored: cython.longlong = self.snapshots.count_taken(self.snapshots.latest_safe_end(True))
        oldest: cython.longlong = stored - (self.keep - 1) * cycles
        return self.snapshots.snapshot_end(before) if before >= oldest else 0.0

    def pause_job(self, cause: cython.int, occurrence: cython.int) -> cython.void:
        """Pause the job for the duration of a failure; stop the job if the failure outlasts the timeout."""
        seconds: cython.double = self.failure_duration(cause, occurrence)
        self.spend_time(min(seconds, self.timeout), PAUSE, cause)
        if seconds > self.timeout and self.now < self.until:
            self.stop_job(cause, self.surviving_snapshot_end(cause), False)

    def plan_outage(self, cause: cython.int) -> cython.void:
        """Plan an outage at the next snapshot, to replace nodes of a cause, unless an outage is already planned."""
        if self.planned_at == _INF:
            self.planned_cause = cause
            self.planned_at = self.snapshots.next_snapshot_end()
        if cause < self.names - 2:
            self.planned_replaces = cause

    def surviving_snapshot_end(self, cause: cython.int) -> cython.double:
        """Return the nominal (failure-free) time of the latest snapshot that survives a failure of a cause."""
        return self.snapshots.latest_safe_end(self.snapshots.in_memory and self.causes[cause].stored == 1)
