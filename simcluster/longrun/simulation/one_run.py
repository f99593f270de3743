"""Event loop of the compiled simulation of one long run, as described in ``longrun/long_run.py``."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import get_args

import cython
import numpy as np

from simcluster.longrun.checkpoint_pattern import STORAGE
from simcluster.longrun.long_run import FATES, Effect, LongRun, cause_names
from simcluster.longrun.simulation.draws import all_causes, register_draws

if not cython.compiled:
    from simcluster.base.pointers import Buffers
    from simcluster.longrun.simulation.accounts import Accounts
    from simcluster.longrun.simulation.draws import Draws
    from simcluster.longrun.simulation.hazards import Hazards
    from simcluster.longrun.simulation.state import RepairQueue, SlowDevices, SlowPeriod, Snapshots

    Cause = SimpleNamespace

LOST, SLOW, DETECTION, DIAGNOSIS, WAITING, RESTART, PAUSE, MAINTENANCE = range(len(FATES))
EFFECTS: tuple[str, ...] = get_args(Effect)
DETECT, LASTS, NOTICED, PACE, WRONG, REPLACE, REPAIR = range(7)
"""Draws of a cause in the order of ``register_draws``; after its repairs come the phases of a restart, each by tier."""
_INF = math.inf


class OneRun:
    """State of a simulated run: wall clock (``now``), planned outages, silent errors, and due event times.

    ``turn`` is the end of the week or of the run, ``due`` that of a period of maintenance, ``back_at`` when enough
    nodes are back to make the job faster (wall); ``planned_at`` and ``verified_at`` are on the nominal clock.
    """

    def __init__(self, run: LongRun, draws: Draws, accounts: Accounts) -> None:
        self.draws, self.accounts, self.names, self.parts = draws, accounts, len(cause_names(run)), len(run.restart)
        causes, spares = all_causes(run), run.spares
        machines = max(cause.machines for cause in causes)
        for cause in causes:
            register_draws(run, cause, machines, draws)
        self.stride, self.first_part = len(draws.sources) // self.names, REPAIR + machines
        self.hazards, self.snapshots, self.buffers = Hazards(run, draws), Snapshots(run), Buffers()
        self.struck = [cause.failure_log for cause in causes]
        columns = {
            "effect": [EFFECTS.index(cause.effect) for cause in causes],
            "stored": [cause.survives == STORAGE for cause in causes],
            "leave": [0 if spares.unlimited or cause.repair is None else cause.machines for cause in causes],
        }
        columns |= dict.fromkeys(("repairs", "retired"), [0] * self.names)
        records = self.buffers.make_records("causes", {name: np.array(each) for name, each in columns.items()})
        self.causes = cython.cast(cython.pointer(Cause), records) if cython.compiled else records
        self.exposed = self.buffers.view_ints("exposed", [part.exposed for part in run.restart])
        self.part_seconds = self.buffers.doubles("part_seconds", self.parts)
        ready = np.repeat(spares.ready, [spares.hot, spares.warm, spares.cold])
        self.ready = self.buffers.view_doubles("ready", ready)
        self.paces = self.buffers.view_doubles("paces", [1.0, *run.shrunk_paces])
        self.shares, self.faster = run.exposure_shares.tolist(), run.faster_missing_counts
        self.queue, self.spares, self.short = RepairQueue(spares.crews or 0), spares.count, len(run.shrunk_paces)
        self.keep, self.verifies = run.pattern.keep, run.pattern.verify > 0
        self.leaves_slow, self.replaces_slow = run.straggler == "leave", run.straggler == "replace"
        self.diagnoses = run.misdiagnosis_share > 0
        self.end_at, self.until, self.week, self.timeout = run.end_nominal_time, run.until, run.week, run.timeout
        self.every = run.maintenance.every if run.maintenance else math.inf
        self.maintenance = run.maintenance.lasts if run.maintenance else 0.0

    def begin_run(self, row: cython.int) -> cython.void:
        """Begin a new run; ``row`` is the run's row in the time accounts."""
        cause: cython.int
        self.accounts.row = row
        self.accounts.weeks.append([])
        self.hazards.begin_run()
        self.snapshots.at = self.snapshots.in_memory_at = self.snapshots.stored_at = 0.0
        self.slow, self.queue.count = SlowDevices(), 0
        for cause in range(self.names):
            self.causes[cause].repairs = self.causes[cause].retired = 0
        self.alive, self.maintains, self.missing = True, False, 0
        self.planned_cause = self.planned_replaces = self.silent_cause = -1
        self.now, self.next_week, self.due = 0.0, self.week, self.every
        self.turn = min(self.week, self.until)
        self.back_at = self.planned_at = self.since = self.found_at = self.verified_at = _INF

    def simulate(self, row: cython.int) -> cython.void:
        """Simulate one run from start to end; ``row`` is the run's row in the time accounts."""
        self.begin_run(row)
        while self.alive:
            self.slow.update(self.paces[self.missing], self.names - 1)
            nominal: cython.double = min(self.planned_at, self.end_at, self.verified_at)
            instant: cython.double = min(self.turn, self.due, self.back_at, self.found_at, self.slow.next)
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
        if self.now >= self.found_at:
            self.stop_job(self.silent_cause, self.clean_snapshot_end(), False)

    def handle_nominal_event(self) -> cython.void:
        """Handle the event at the current training progress: run end, failed verification, or planned outage."""
        if self.snapshots.at >= self.end_at:
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

    def spend_time(self, seconds: cython.double, fate: cython.int, cause: cython.int) -> cython.double:
        """Let seconds pass without training, but not beyond the run's end; return the seconds that passed."""
        spent: cython.double = min(seconds, max(0.0, self.until - self.now))
        self.now += spent
        self.accounts.add_seconds(fate, cause, spent)
        return spent

    def stop_job(self, cause: cython.int, target: cython.double, planned: cython.bint) -> cython.void:
        """Stop the job, set training back to the snapshot at nominal time ``target``, and restart."""
        part: cython.int
        detected: cython.double = 0.0
        loading: cython.double = 0.0
        first: cython.int = cause * self.stride
        occurrence: cython.int = self.accounts.count_event(self.accounts.outages, cause)
        tier: cython.int = self.go_back(cause, target, planned)
        if not planned:
            detected = self.draws.draw(first + DETECT, occurrence)
            self.spend_time(detected, DETECTION, cause)
        for part in range(self.parts):
            self.part_seconds[part] = self.draws.draw(first + self.first_part + 2 * part + tier, occurrence)
            loading += self.part_seconds[part]
        if self.diagnoses and not planned:
            again: cython.double = self.draws.draw(first + WRONG, occurrence)
            self.spend_time(again * (detected + loading), DIAGNOSIS, cause)
        self.replace_machines(self.planned_replaces if planned else cause, cause)
        if planned:
            if self.maintains:
                self.spend_time(self.maintenance, MAINTENANCE, cause)
            self.maintains, self.planned_at, self.planned_replaces = False, _INF, -1
        elif self.planned_at < _INF:
            self.planned_at = self.snapshots.next_snapshot_end()
        if not self.leaves_slow:
            self.slow.remove_noticed(self.now)
        self.run_restart(cause)

    def go_back(self, cause: cython.int, target: cython.double, planned: cython.bint) -> cython.int:
        """Set training back to the snapshot at ``target``; return the tier loaded from: 0 (memory) or 1 (storage)."""
        tier: cython.int = 1
        stored: cython.double = target
        self.accounts.add_seconds(LOST, cause, self.snapshots.at - target)
        if self.snapshots.in_memory:
            tier = 0 if planned else self.causes[cause].stored
            if tier == 0 and not planned:
                stored = min(target, self.snapshots.latest_safe_end(True))
        self.snapshots.at = self.snapshots.in_memory_at = target
        self.snapshots.stored_at = stored
        if self.since >= target:
            self.since = self.found_at = self.verified_at = _INF
        return tier

    def replace_machines(self, leaves: cython.int, cause: cython.int) -> cython.void:
        """Send the failed nodes (of cause ``leaves``) to repair and take spares; wait if there are too few spares."""
        machine: cython.int
        count: cython.int = self.causes[leaves].leave if leaves >= 0 else 0
        lacks: cython.bint = self.missing > 0
        if count:
            occurrence: cython.int = self.causes[leaves].repairs
            out: cython.int = self.queue.count_out(self.now) + count
            self.causes[leaves].repairs += 1
            for machine in range(count):
                draw: cython.int = REPLACE if machine == 0 and self.causes[leaves].retired else REPAIR + machine
                self.queue.send_to_repair(self.now, self.draws.draw(leaves * self.stride + draw, occurrence))
            self.causes[leaves].retired = 0
            lacks = lacks or out > self.spares
            if self.spares and not (self.short and out - count >= self.spares):
                self.spend_time(self.ready[min(out, self.spares) - 1], WAITING, cause)
        if lacks:
            self.wait_for_machines(cause)

    def wait_for_machines(self, cause: cython.int) -> cython.void:
        """Wait until the job has enough nodes to run, with all replicas or, if allowed, with fewer."""
        self.spend_time(self.queue.time_with_at_most(self.now, self.spares + self.short) - self.now, WAITING, cause)
        if self.short:
            self.missing = min(max(0, self.queue.count_out(self.now) - self.spares), self.short)
            self.hazards.share = self.shares[self.missing]
            self.back_at = _INF
            if self.missing and self.faster[self.missing] >= 0:
                self.back_at = self.queue.time_with_at_most(self.now, self.spares + self.faster[self.missing])

    def run_restart(self, cause: cython.int) -> cython.void:
        """Run the phases of a restart; a failure in a phase exposed to failures ends the restart early."""
        part: cython.int
        left: cython.double = max(0.0, self.hazards.stop_at - self.hazards.loaded) / self.hazards.share
        used: cython.double = 0.0
        continues: cython.bint = True
        for part in range(self.parts):
            wanted: cython.double = self.part_seconds[part] if continues else 0.0
            spent: cython.double = self.spend_time(
                min(wanted, left - used) if self.exposed[part] else wanted, RESTART, cause
            )
            self.accounts.parts[self.accounts.row * self.parts + part] += spent
            if self.exposed[part]:
                used += spent
                continues = continues and spent >= wanted
        self.hazards.loaded += used * self.hazards.share
