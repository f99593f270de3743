"""The loop over what happens in one run; ``longrun/run.py`` has the meaning, ``events`` the same in SimPy."""

from __future__ import annotations

import math

import cython
import numpy as np

from simcluster.longrun.outcome import names_of
from simcluster.longrun.run import FATES, LongRun
from simcluster.longrun.simulation.run_tables import tables_of

if not cython.compiled:
    from simcluster.base.pointers import doubles, ints
    from simcluster.longrun.simulation.accounts import Accounts
    from simcluster.longrun.simulation.draws import Draws
    from simcluster.longrun.simulation.hazards import Hazards
    from simcluster.longrun.simulation.repair_queue import RepairQueue
    from simcluster.longrun.simulation.slow_devices import SlowDevices
    from simcluster.longrun.simulation.snapshots import Snapshots

LOST, SLOW, DETECTION, DIAGNOSIS, WAITING, RESTART, PAUSE, MAINTENANCE = range(len(FATES))
_INF = math.inf


class OneRun:
    """The state of a run: ``now`` on the wall clock, what is planned, what is wrong, and when things fall due.

    ``turn`` is the end of the week or of the run, ``due`` that of a period of maintenance, ``back_at`` when machines
    are back that make the job faster (wall); ``planned_at`` and ``verified_at`` are on the nominal clock.
    """

    def __init__(self, run: LongRun, draws: Draws, accounts: Accounts) -> None:
        self.draws, self.accounts = draws, accounts
        self.hazards, self.snapshots, self.slow = Hazards(run, draws), Snapshots(run), SlowDevices()
        self.queue = RepairQueue(run.spares.crews or 0)
        self.struck = [cause.struck for cause in run.causes]
        self.tables = table = tables_of(run, draws)
        self.effect, self.stored, self.detect = ints(table.effect), ints(table.stored), ints(table.detect)
        self.lasts, self.noticed, self.pace = ints(table.lasts), ints(table.noticed), ints(table.pace)
        self.wrong, self.leave, self.replace = ints(table.wrong), ints(table.leave), ints(table.replace)
        self.repair, self.restart, self.exposed = ints(table.repair), ints(table.restart), ints(table.exposed)
        self.faster, self.ready = ints(table.faster), doubles(table.ready)
        self.paces, self.shares = doubles(table.paces), doubles(table.shares)
        self.names, self.parts = len(names_of(run)), len(run.restart)
        self.state = [np.zeros(self.parts), *(np.zeros(self.names, dtype=np.int32) for _ in range(2))]
        self.part_seconds = doubles(self.state[0])
        self.repairs, self.retired = ints(self.state[1]), ints(self.state[2])
        self.machines, self.spares, self.short = len(table.repair) // self.names, run.spares.count, len(run.short)
        self.limited, self.made_ready = not run.spares.unlimited, bool(table.ready.any())
        self.keep, self.verifies = run.pattern.keep, run.pattern.verify > 0
        self.leaves_slow, self.replaces_slow = run.straggler == "leave", run.straggler == "replace"
        self.diagnoses = run.wrong > 0
        self.end_at, self.until, self.week, self.timeout = run.end_at, run.until, run.week, run.timeout
        self.every = run.maintenance.every if run.maintenance else math.inf
        self.maintenance = run.maintenance.lasts if run.maintenance else 0.0

    def clear(self, row: cython.int) -> cython.void:
        """Begin a run, whose account is that row."""
        cause: cython.int
        self.accounts.begin(row)
        self.hazards.clear()
        self.snapshots.clear()
        self.slow.clear()
        self.queue.clear()
        for cause in range(self.names):
            self.repairs[cause] = self.retired[cause] = 0
        self.alive, self.maintains, self.missing = True, False, 0
        self.planned_cause = self.planned_replaces = self.silent_cause = -1
        self.now, self.next_week, self.due = 0.0, self.week, self.every
        self.turn = min(self.week, self.until)
        self.back_at = self.planned_at = self.since = self.found_at = self.verified_at = _INF

    def simulate(self, row: cython.int) -> cython.void:
        """Simulate the chosen run of the draws to its end."""
        self.clear(row)
        while self.alive:
            nominal: cython.double = min(self.planned_at, self.end_at, self.verified_at)
            instant: cython.double = min(self.turn, self.due, self.back_at, self.found_at, self.slow.next)
            reached: cython.double = max(0.0, nominal - self.snapshots.at) * self.slow.worst
            waited: cython.double = max(0.0, instant - self.now)
            passed: cython.double = min(self.hazards.until_strike(), min(reached, waited))
            at: cython.double = self.snapshots.at + passed / self.slow.worst
            if waited <= passed:
                self.advance(passed, at)
                self.now = max(self.now, instant)
                self.on_clock()
            elif reached <= passed:
                self.advance(passed, nominal)
                self.on_work()
            else:
                self.advance(passed, at)
                self.on_strike()
        self.accounts.wall[row], self.accounts.at[row] = self.now, self.snapshots.at

    def advance(self, passed: cython.double, at: cython.double) -> cython.void:
        """Train for a time, up to a point on the nominal clock."""
        slowed: cython.double = passed - (at - self.snapshots.at)
        if slowed > 0 and self.slow.by >= 0:
            self.accounts.add(SLOW, self.slow.by, slowed)
        self.now += passed
        self.snapshots.at = at
        self.hazards.train(passed)

    def on_clock(self) -> cython.void:
        """Deal with what happens at a time of the wall clock, one kind after the other."""
        cause: cython.int
        while self.now >= self.next_week:
            self.accounts.week.append(self.snapshots.at)
            self.next_week += self.week
            self.turn = min(self.next_week, self.until)
        if self.now >= self.until:
            self.alive = False
            return
        self.slow.remove_ended(self.now)
        self.slow.update(self.paces[self.missing], self.names - 1)
        if self.now >= self.due:
            self.due += self.every * math.ceil((self.now - self.due) / self.every + 1e-9)
            self.maintains = True
            self.plan(self.names - 2)
        if self.now >= self.back_at:
            self.back_at = _INF
            self.plan(self.names - 1)
        if not self.leaves_slow:
            cause = self.slow.notice(self.now)
            if cause >= 0:
                self.slow.update(self.paces[self.missing], self.names - 1)
                if self.replaces_slow:
                    self.stop(cause, self.survivor(cause), False)
                else:
                    self.plan(cause)
        if self.now >= self.found_at:
            self.stop(self.silent_cause, self.clean(), False)

    def on_work(self) -> cython.void:
        """Deal with what happens at a time of the nominal clock: the end, a failed verification, a planned outage."""
        if self.snapshots.at >= self.end_at:
            self.alive = False
        elif self.snapshots.at >= self.verified_at:
            self.stop(self.silent_cause, self.snapshots.target(False), False)
        else:
            self.stop(self.planned_cause, self.snapshots.at, True)

    def on_strike(self) -> cython.void:
        """Deal with a strike, by the effect of its cause (numbers: ``run_tables.EFFECTS``)."""
        column: cython.int = self.hazards.strike()
        cause: cython.int = self.hazards.cause[column]
        occurrence: cython.int = self.accounts.strike(cause)
        if self.hazards.hit_bad(column, occurrence, self.now):
            self.retired[cause] = 1
        self.hazards.find_next()
        if self.effect[cause] == 0:
            self.stop(cause, self.survivor(cause), False)
        elif self.effect[cause] == 1:
            self.begin_slow(cause, occurrence)
        elif self.effect[cause] == 2:
            self.pause(cause, occurrence)
        elif self.effect[cause] == 3:
            self.corrupt(cause, occurrence)
        else:
            self.plan(cause)

    def seconds_of(self, cause: cython.int, occurrence: cython.int) -> cython.double:
        """Return how long a strike lasts, as a log says or by the law."""
        if self.struck[cause] is not None:
            known: cython.double = self.struck[cause].lasted(occurrence)
            if known == known:  # not nan
                return known
        return self.draws.value(self.lasts[cause], occurrence)

    def begin_slow(self, cause: cython.int, occurrence: cython.int) -> cython.void:
        """Slow a device down."""
        pace: cython.double = self.draws.value(self.pace[cause], occurrence)
        end: cython.double = self.now + self.seconds_of(cause, occurrence)
        noticed: cython.double = _INF
        if not self.leaves_slow:
            noticed = self.now + self.draws.value(self.noticed[cause], occurrence)
        self.slow.add(cause, pace, end, noticed)
        self.slow.update(self.paces[self.missing], self.names - 1)

    def corrupt(self, cause: cython.int, occurrence: cython.int) -> cython.void:
        """Make the weights wrong from here on, if they were not."""
        if self.since < _INF:
            return
        self.since, self.silent_cause = self.snapshots.at, cause
        if self.verifies:
            self.verified_at = self.snapshots.next_verified()
            self.since = max(self.since, self.snapshots.end(self.snapshots.taken(self.verified_at)))
        else:
            self.found_at = self.now + self.seconds_of(cause, occurrence)

    def clean(self) -> cython.double:
        """Return the latest stored snapshot from before the weights were wrong, if it is kept, or the run's begin."""
        cycles: cython.longlong = self.snapshots.cycles
        before: cython.longlong = self.snapshots.taken(self.since) // cycles * cycles
        oldest: cython.longlong = self.snapshots.taken(self.snapshots.target(True)) - (self.keep - 1) * cycles
        return self.snapshots.end(before) if before >= oldest else 0.0

    def pause(self, cause: cython.int, occurrence: cython.int) -> cython.void:
        """Let the job stand for a while; where that is longer than the timeout, stop it."""
        seconds: cython.double = self.seconds_of(cause, occurrence)
        self.spend(min(seconds, self.timeout), PAUSE, cause)
        if seconds > self.timeout and self.now < self.until:
            self.stop(cause, self.survivor(cause), False)

    def plan(self, cause: cython.int) -> cython.void:
        """Plan an outage after the next snapshot; what is planned already is done in the same."""
        if self.planned_at == _INF:
            self.planned_cause = cause
            self.planned_at = self.snapshots.next_end()
        if cause < self.names - 2:
            self.planned_replaces = cause

    def survivor(self, cause: cython.int) -> cython.double:
        """Return the end of the latest snapshot that survives a cause."""
        return self.snapshots.target(self.snapshots.in_memory and self.stored[cause] == 1)

    def spend(self, seconds: cython.double, fate: cython.int, cause: cython.int) -> cython.double:
        """Let time pass without training, not beyond the end of the run; return what has passed."""
        spent: cython.double = min(seconds, max(0.0, self.until - self.now))
        self.now += spent
        self.accounts.add(fate, cause, spent)
        return spent

    def stop(self, cause: cython.int, target: cython.double, planned: cython.bint) -> cython.void:
        """Stop the job, set it back to a snapshot, and start it again."""
        part: cython.int
        again: cython.double
        detected: cython.double = 0.0
        loading: cython.double = 0.0
        occurrence: cython.int = self.accounts.stop(cause)
        tier: cython.int = self.go_back(cause, target, planned)
        if not planned:
            detected = self.draws.value(self.detect[cause], occurrence)
            self.spend(detected, DETECTION, cause)
        for part in range(self.parts):
            self.part_seconds[part] = self.draws.value(self.restart[(cause * self.parts + part) * 2 + tier], occurrence)
            loading += self.part_seconds[part]
        if self.diagnoses and not planned:
            again = self.draws.value(self.wrong[cause], occurrence)
            self.spend(again * (detected + loading), DIAGNOSIS, cause)
        if self.limited:
            self.replace_machines(self.planned_replaces if planned else cause, cause)
        if planned:
            if self.maintains:
                self.spend(self.maintenance, MAINTENANCE, cause)
            self.maintains, self.planned_at, self.planned_replaces = False, _INF, -1
        elif self.planned_at < _INF:
            self.planned_at = self.snapshots.next_end()
        if not self.leaves_slow:
            self.slow.remove_noticed(self.now)
        self.load(cause)
        self.slow.update(self.paces[self.missing], self.names - 1)

    def go_back(self, cause: cython.int, target: cython.double, planned: cython.bint) -> cython.int:
        """Set training back to a snapshot; return the tier that is loaded: 0 memory, 1 storage."""
        tier: cython.int = 1
        stored: cython.double = target
        self.accounts.add(LOST, cause, self.snapshots.at - target)
        if self.snapshots.in_memory:
            tier = 0 if planned else self.stored[cause]
            if tier == 0 and not planned:
                stored = min(target, self.snapshots.target(True))
        self.snapshots.at = self.snapshots.in_memory_at = target
        self.snapshots.stored_at = stored
        if self.since >= target:
            self.since = self.found_at = self.verified_at = _INF
        return tier

    def replace_machines(self, leaves: cython.int, cause: cython.int) -> cython.void:
        """Send machines of the cause ``leaves`` (-1: none) to repair; take spares, or wait for machines."""
        machine: cython.int
        count: cython.int = self.leave[leaves] if leaves >= 0 else 0
        lacks: cython.bint = self.missing > 0
        if count:
            occurrence: cython.int = self.repairs[leaves]
            out: cython.int = self.queue.out(self.now) + count
            self.repairs[leaves] += 1
            for machine in range(count):
                draw: cython.int = self.repair[leaves * self.machines + machine]
                if machine == 0 and self.retired[leaves] and self.replace[leaves] >= 0:
                    draw = self.replace[leaves]
                self.queue.send(self.now, self.draws.value(draw, occurrence))
            self.retired[leaves] = 0
            lacks = lacks or out > self.spares
            if self.made_ready and not (self.short and out - count >= self.spares):
                self.spend(self.ready[min(out, self.spares) - 1], WAITING, cause)
        if lacks:
            self.wait_for_machines(cause)

    def wait_for_machines(self, cause: cython.int) -> cython.void:
        """Wait until there are machines enough, or few enough missing."""
        self.spend(self.queue.ready_at(self.now, self.spares + self.short) - self.now, WAITING, cause)
        if self.short:
            self.missing = min(max(0, self.queue.out(self.now) - self.spares), self.short)
            self.hazards.share = self.shares[self.missing]
            self.back_at = _INF
            if self.missing and self.faster[self.missing] >= 0:
                self.back_at = self.queue.ready_at(self.now, self.spares + self.faster[self.missing])

    def load(self, cause: cython.int) -> cython.void:
        """Go through the parts of a restart; where a cause strikes in an exposed one, it ends there."""
        part: cython.int
        left: cython.double = max(0.0, self.hazards.until_stop()) / self.hazards.share
        used: cython.double = 0.0
        continues: cython.bint = True
        for part in range(self.parts):
            wanted: cython.double = self.part_seconds[part] if continues else 0.0
            spent: cython.double = self.spend(
                min(wanted, left - used) if self.exposed[part] else wanted, RESTART, cause
            )
            self.accounts.add_part(part, spent)
            if self.exposed[part]:
                used += spent
                continues = continues and spent >= wanted
        self.hazards.load(used)
