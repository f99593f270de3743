"""Outages of a compiled simulated run: stops, restarts, nodes in repair, and replicas that leave and rejoin.

``longrun/events/outages.py`` has the same for SimPy.
"""

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
    from simcluster.longrun.simulation.state import Absent, RepairQueue, SlowDevices, Snapshots

    Cause = SimpleNamespace

LOST, SLOW, DETECTION, DIAGNOSIS, WAITING, RESTART, PAUSE, MAINTENANCE = range(len(FATES))
EFFECTS: tuple[str, ...] = get_args(Effect)
DETECT, LASTS, NOTICED, PACE, WRONG, REPLACE, REPAIR = range(7)
"""Draws of a cause in the order of ``register_draws``; after its repairs come the phases of a restart, each by tier."""
_INF = math.inf


def _time_back(replicas: Absent) -> float:
    return replicas.back


class Outages:
    """State of a simulated run, and its outages: wall clock (``now``), planned outages, silent errors, due event times.

    ``turn`` is the end of the week or of the run, ``due`` that of a period of maintenance, ``back_at`` when enough
    nodes are back to make the job faster (wall), ``rejoin_at`` when the first of the replicas that left
    is; ``planned_at`` and ``verified_at`` are on the nominal clock.
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
            "rejoins": [cause.leaves for cause in causes],
            "leave": [0 if spares.unlimited or cause.repair is None else cause.machines for cause in causes],
        }
        columns |= dict.fromkeys(("repairs", "retired"), [0] * self.names)
        records = self.buffers.make_records("causes", {name: np.array(each) for name, each in columns.items()})
        self.causes = cython.cast(cython.pointer(Cause), records) if cython.compiled else records
        self.exposed = self.buffers.view_ints("exposed", [part.exposed for part in run.restart])
        self.copies = self.buffers.view_ints("copies", [part.copies for part in run.restart])
        self.part_seconds = self.buffers.doubles("part_seconds", self.parts)
        ready = np.repeat(spares.ready, [spares.hot, spares.warm, spares.cold])
        self.ready = self.buffers.view_doubles("ready", ready)
        self.paces = self.buffers.view_doubles("paces", [1.0, *run.shrunk_paces])
        self.shares, self.faster = run.exposure_shares.tolist(), run.faster_missing_counts
        self.queue, self.spares = RepairQueue(spares.crews or 0), spares.count
        self.short, self.most, self.machines = run.most_missing_after_restart, len(run.shrunk_paces), run.machines
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
        self.alive, self.maintains, self.has_state, self.missing = True, False, True, 0
        self.absent: list[Absent] = []
        self.planned_cause = self.planned_replaces = self.silent_cause = -1
        self.now, self.next_week, self.due = 0.0, self.week, self.every
        self.turn = min(self.week, self.until)
        self.back_at = self.rejoin_at = self.planned_at = self.since = self.found_at = self.verified_at = _INF

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
        leaves: cython.int = self.causes[cause].rejoins
        continues: cython.bint = leaves > 0 and leaves <= self.most and self.missing + leaves < self.machines
        if continues and self.has_state and not planned:
            self.leave_job(cause, occurrence)
            return
        if self.rejoin_at < _INF:
            self.absent, self.rejoin_at = [], _INF
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

    def set_back(self, cause: cython.int, back: cython.double) -> cython.void:
        """Set training back to the nominal time ``back``; what a cause undoes is lost."""
        self.accounts.add_seconds(LOST, cause, self.snapshots.at - back)
        self.snapshots.at = back
        if self.since >= back:
            self.since = self.found_at = self.verified_at = _INF

    def go_back(self, cause: cython.int, target: cython.double, planned: cython.bint) -> cython.int:
        """Set training back to the snapshot at ``target``; return the tier loaded from: 0 (memory) or 1 (storage)."""
        tier: cython.int = 1
        stored: cython.double = target
        if self.snapshots.in_memory:
            tier = 0 if planned else self.causes[cause].stored
            if tier == 0 and not planned:
                stored = min(target, self.snapshots.latest_safe_end(True))  # before training is set back
        self.set_back(cause, target)
        self.snapshots.in_memory_at, self.snapshots.stored_at = target, stored
        return tier

    def leave_job(self, cause: cython.int, occurrence: cython.int) -> cython.void:
        """Let the failed replicas leave; the others redo the current step, and wait if too many would be missing."""
        part: cython.int
        first: cython.int = cause * self.stride
        away: cython.double = 0.0
        copied: cython.double = 0.0
        ready: cython.double = 0.0
        copy: list[float] = []
        self.set_back(cause, self.snapshots.step_begin())
        detected: cython.double = self.draws.draw(first + DETECT, occurrence)
        self.spend_time(detected, DETECTION, cause)
        for part in range(self.parts):
            seconds: cython.double = self.draws.draw(first + self.first_part + 2 * part, occurrence)
            copy.append(seconds if self.copies[part] else 0.0)
            if self.copies[part]:
                copied += seconds
            else:
                away += seconds
        if self.diagnoses:
            again: cython.double = self.draws.draw(first + WRONG, occurrence)
            self.spend_time(again * (detected + copied), DIAGNOSIS, cause)
            away += again * away
        if self.causes[cause].leave:
            ready = self.send_to_repair(cause)
            ready = max(ready, self.queue.time_with_at_most(self.now, self.spares) - self.now)
        back: Absent = Absent(self.now + ready + away, self.causes[cause].rejoins, cause, copy)
        if not self.leaves_slow:
            self.slow.remove_noticed(self.now)
        while self.missing + back.machines > self.most:
            self.spend_time(max(0.0, self.rejoin_at - self.now), WAITING, cause)
            self.rejoin_first()
        self.missing += back.machines
        self.hazards.share = self.shares[self.missing]
        self.absent.append(back)
        self.rejoin_at = min(self.rejoin_at, back.back)

    def rejoin_first(self) -> cython.void:
        """Let the replicas that are back first rejoin: all wait for their copy of a peer's state."""
        part: cython.int
        back: Absent = min(self.absent, key=_time_back)
        self.absent.remove(back)
        for part in range(self.parts):
            spent: cython.double = self.spend_time(back.copy[part], RESTART, back.cause)
            self.accounts.parts[self.accounts.row * self.parts + part] += spent
        self.missing -= back.machines
        self.hazards.share = self.shares[self.missing]
        self.rejoin_at = min(map(_time_back, self.absent)) if self.absent else _INF

    def replace_machines(self, leaves: cython.int, cause: cython.int) -> cython.void:
        """Send the failed nodes (of cause ``leaves``) to repair and take spares; wait if there are too few spares."""
        lacks: cython.bint = self.missing > 0
        if leaves >= 0 and self.causes[leaves].leave:
            lacks = lacks or self.queue.count_out(self.now) + self.causes[leaves].leave > self.spares
            self.spend_time(self.send_to_repair(leaves), WAITING, cause)
        if lacks:
            self.wait_for_machines(cause)

    def send_to_repair(self, cause: cython.int) -> cython.double:
        """Send the failed nodes of a cause to repair; return the seconds until spares for them are ready."""
        machine: cython.int
        count: cython.int = self.causes[cause].leave
        occurrence: cython.int = self.causes[cause].repairs
        out: cython.int = self.queue.count_out(self.now) + count
        self.causes[cause].repairs += 1
        for machine in range(count):
            draw: cython.int = REPLACE if machine == 0 and self.causes[cause].retired else REPAIR + machine
            self.queue.send_to_repair(self.now, self.draws.draw(cause * self.stride + draw, occurrence))
        self.causes[cause].retired = 0
        if self.spares and not (self.short and out - count >= self.spares):
            return self.ready[min(out, self.spares) - 1]
        return 0.0

    def wait_for_machines(self, cause: cython.int) -> cython.void:
        """Wait until the job has enough nodes to run, with all replicas or, if allowed, with fewer."""
        self.spend_time(self.queue.time_with_at_most(self.now, self.spares + self.short) - self.now, WAITING, cause)
        if self.short or self.missing:
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
        self.has_state = continues
