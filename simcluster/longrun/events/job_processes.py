"""SimPy processes of one simulated run: training, recovery, and the failures of each cause.

The job trains along the checkpoint pattern, handles each interruption, and resumes. Each cause accumulates hazard while
the job is exposed to it, fails, and begins anew. ``simulation`` is the same compiled, for one run or thousands, without
a log.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import assert_never

import numpy as np
import simpy

from simcluster.base.arrays import Floats
from simcluster.longrun.checkpoint_pattern import MEMORY
from simcluster.longrun.events.job_state import JobState, SimProcess, TrainingStretch
from simcluster.longrun.events.outages import (
    corrupt_weights,
    latest_clean_snapshot,
    pause_job,
    plan_outage,
    rejoin,
    schedule_maintenance,
    slow_device_down,
    stop_job,
    worst_slowdown,
)
from simcluster.longrun.events.run_record import TRAINING, RunLogRow
from simcluster.longrun.long_run import (
    MAINTENANCE,
    REGROWTH,
    TIME_TOLERANCE,
    DefectiveBatch,
    FailureMode,
    LongRun,
    RunOutcomes,
)
from simcluster.longrun.part_lifetimes import PartLifetimes, should_retire_node
from simcluster.longrun.run_feasibility import check_run_ends


def start_failure_processes(job: JobState) -> None:
    """Start a SimPy process for each cause's failures, and one for the extra failures on defective nodes."""
    for number, cause in enumerate(job.run.causes):
        batch = None if cause.defective_batch is None else DefectiveNodes(job, cause, cause.defective_batch)
        job.env.process(_produce_failures(job, number, cause, batch, extra=False))
        if batch is not None:
            job.env.process(_produce_failures(job, number, cause, batch, extra=True))


def _produce_failures(
    job: JobState, cause_id: int, cause: FailureMode, batch: DefectiveNodes | None, *, extra: bool
) -> SimProcess:
    """Run the SimPy process of a cause's failures, or (``extra``) of extra failures on defective nodes."""
    parts = None if cause.part_lifetimes is None else PartLifetimeSampler(cause.part_lifetimes, cause.name, job)
    name = f"{cause.name}{'.bad' if extra else ''}"
    occurrence = 0
    while True:
        if cause.failure_log is not None:
            left = _exposed_seconds_countdown(job, cause, cause.failure_log.exposed_seconds_before(occurrence))
        else:
            hazard = -math.log(float(job.uniform_numbers(name, "hazard", occurrence, 1)[0, 0]))
            if extra and batch is not None:
                left = batch.countdown_to_hazard(hazard)
            elif parts is not None:
                left = _exposed_seconds_countdown(job, cause, parts.seconds_to_next_failure(hazard))
            else:
                left = _exposed_seconds_countdown(job, cause, hazard / cause.rate if cause.rate else math.inf)
        yield from job.exposure.wait_exposed_seconds(left, stops=cause.stops_job)
        if parts is not None:
            parts.replace_failed_part(occurrence)
        occurrence += 1
        _handle_failure_of_cause(job, cause_id, batch, extra)
        yield job.env.timeout(0)


def _exposed_seconds_countdown(job: JobState, cause: FailureMode, seconds: float) -> Callable[[], float]:
    until = job.exposure.exposed_seconds(stops=cause.stops_job) + seconds
    return lambda: until - job.exposure.exposed_seconds(stops=cause.stops_job)


def _handle_failure_of_cause(job: JobState, cause_id: int, batch: DefectiveNodes | None, extra: bool) -> None:
    cause, occurrence = job.run.causes[cause_id], int(job.strikes[cause_id])
    job.strikes[cause_id] += 1
    job.record.log_failure(cause.name, job.nominal_time())
    if batch is not None and batch.draw_defective_hit(job.uniform_numbers(cause.name, "bad", occurrence, 3)[0], extra):
        job.retired.add(cause_id)
    match cause.effect:
        case "slow":
            job.env.process(slow_device_down(job, cause_id, cause, occurrence))
            return
        case "alarm":
            plan_outage(job, cause_id)
        case "silent":
            corrupt_weights(job, cause_id, cause, occurrence)
        case "stop" | "pause":
            job.struck.append((cause_id, occurrence))
        case _:
            assert_never(cause.effect)
    job.interrupt_training()


class DefectiveNodes:
    """Defective nodes of one failure cause that remain, and the extra failure hazard they have accumulated."""

    def __init__(self, job: JobState, cause: FailureMode, batch: DefectiveBatch) -> None:
        self.job, self.cause, self.batch = job, cause, batch
        self.machines, self.each = job.run.machines, cause.rate / job.run.machines
        self.times: list[list[float]] = [[] for _ in range(batch.machines)]  # when each has failed
        self._used, self._since = 0.0, 0.0

    @property
    def extra_failure_rate(self) -> float:
        """Extra failure rate of the remaining defective nodes (failures per second exposed to failures)."""
        return len(self.times) * self.each * (self.batch.rate_factor - 1)

    def accumulated_hazard(self) -> float:
        """Return the extra failure hazard that the defective nodes have accumulated so far."""
        exposed = self.job.exposure.exposed_seconds(stops=self.cause.stops_job)
        return self._used + self.extra_failure_rate * (exposed - self._since)

    def countdown_to_hazard(self, hazard: float) -> Callable[[], float]:
        """Return a function that gives the exposed seconds left until the hazard has grown by ``hazard``."""
        until = self.accumulated_hazard() + hazard
        return lambda: (until - self.accumulated_hazard()) / rate if (rate := self.extra_failure_rate) else math.inf

    def draw_defective_hit(self, uniform: Floats, extra: bool) -> bool:
        """Draw whether a failure hits a defective node and cures the node; return whether the node is retired."""
        bad, batch, now = len(self.times), self.batch, self.job.env.now
        if not bad or not (extra or uniform[0] < bad / self.machines):
            return False
        which = min(int(uniform[1] * bad), bad - 1)
        self.times[which].append(now)
        retired = batch.retire > 0 and should_retire_node(self.times[which], batch.rule, batch.retire, batch.window)
        if retired or bool(uniform[2] < batch.cured):
            exposed = self.job.exposure.exposed_seconds(stops=self.cause.stops_job)
            self._used, self._since = self.accumulated_hazard(), exposed
            self.times[which] = self.times[-1]
            self.times.pop()
        return retired


class PartLifetimeSampler:
    """Sampler of part failure times for one cause, for the initial parts and for their replacements."""

    def __init__(self, lives: PartLifetimes, name: str, job: JobState) -> None:
        self.lives, self.name, self.job = lives, name, job
        self.at, self.failed = 0.0, 0
        self.first: float | None = None
        self.young: list[float] = []

    def seconds_to_next_failure(self, unit: float) -> float:
        """Return the exposed seconds to the next part failure, from an exponential draw of mean 1 (``unit``)."""
        if self.first is None:
            self.first = float(self.lives.next_failure_time(np.array([self.at]), self.failed, np.array([unit]))[0])
        found = min([self.first, *self.young])
        gap, self.at = found - self.at, found
        return gap

    def replace_failed_part(self, occurrence: int) -> None:
        """Replace the part that has just failed by a new one."""
        if self.first == self.at:
            self.failed, self.first = self.failed + 1, None
        else:
            self.young.remove(self.at)
        uniform = self.job.uniform_numbers(self.name, "life", occurrence, 1)
        self.young.append(self.at + float(self.lives.law.quantile(uniform)[0]))


_ORDER = (MAINTENANCE, REGROWTH, "noticed", "found", "back")
"""Order in which events that are due at one instant are handled."""


def simulate_with_log(run: LongRun, seed: int, number: int = 0) -> tuple[RunOutcomes, list[RunLogRow]]:
    """Simulate run ``number`` of a seed in SimPy; return the run's outcomes and event log."""
    check_run_ends(run)
    job = JobState(run, seed, number)
    weekly: list[float] = []
    job.process = job.env.process(_train_until_end(job))
    start_failure_processes(job)
    job.env.process(_record_weekly_steps(job, weekly))
    if run.maintenance is not None:
        job.env.process(schedule_maintenance(job, run.maintenance.every))
    if math.isfinite(run.until):
        job.env.run(until=job.env.any_of([job.process, job.env.timeout(run.until)]))
    else:
        job.env.run(until=job.process)
    _log_training_until(job, job.nominal_time())
    job.record.end_standstill(job.nominal_time())
    at, log = job.nominal_time(), sorted(job.record.log + job.record.strikes, key=lambda row: row.begin)
    numbers = np.array([job.env.now]), np.array([at]), np.array([job.steps_done(at)])
    counts = job.strikes[None, : len(run.causes)], job.outages[None]
    weeks = np.array([weekly]).reshape(1, -1)
    return RunOutcomes(run, *numbers, job.record.fates, job.record.parts, *counts, weeks), log


def _record_weekly_steps(job: JobState, weekly: list[float]) -> SimProcess:
    while True:
        yield job.env.timeout(job.run.week)
        weekly.append(job.steps_done(job.nominal_time()))


def _train_until_end(job: JobState) -> SimProcess:
    while job.at < job.run.end_nominal_time:
        begins = _begin_next_outage(job)
        if begins is not None:
            yield from begins
            continue
        job.stretch = TrainingStretch(job.at, job.env.now, *worst_slowdown(job))
        job.set_possible_failures("all")
        target = max(job.at, min(job.planned.at, job.wrong.verified_at, job.run.end_nominal_time))
        try:
            yield job.env.timeout((target - job.at) * job.stretch.pace)
            _log_training_until(job, target)
        except simpy.Interrupt:
            _log_training_until(job, job.nominal_time())
    job.record.end_standstill(job.nominal_time())


def _log_training_until(job: JobState, at: float) -> None:
    done, now = job.stretch, job.env.now
    if done is None:
        return
    job.stretch = None
    if done.number >= 0:
        job.record.add_seconds("slow", done.number, now - done.begun - (at - done.at))
    cause = job.names[done.number] if done.number >= 0 else ""
    if now > done.begun:
        first, last = job.run.pattern.count_snapshots_taken(np.array([done.at, at])).tolist()
        steps = job.steps_done(at) - job.steps_done(done.at)
        job.record.log_training(RunLogRow(done.begun, now, TRAINING, cause, done.slow_device, at, steps, last - first))
    job.at = at


def _begin_next_outage(job: JobState) -> SimProcess | None:
    job.due.sort(key=lambda due: _ORDER.index(due[0]))
    while job.due:
        begins = _handle_due_event(job, *job.due.pop(0))
        if begins is not None:
            return begins
    first = min(job.absent, key=lambda each: each.back, default=None)
    if first is not None and first.back <= job.env.now + TIME_TOLERANCE:
        return rejoin(job, first)
    if job.struck:
        number, occurrence = job.struck.pop(0)
        cause = job.run.causes[number]
        if cause.effect == "pause":
            return pause_job(job, number, occurrence)
        return stop_job(job, number, job.latest_safe_snapshot(cause.survives))
    if job.at >= job.wrong.verified_at:
        return stop_job(job, job.wrong.number, job.latest_safe_snapshot(MEMORY))
    if job.at >= job.planned.at:
        taken = int(job.run.pattern.count_snapshots_taken(np.array([job.at]))[0])
        return stop_job(job, job.planned.number, taken, planned=True)
    return None


def _handle_due_event(job: JobState, kind: str, cause_id: int) -> SimProcess | None:
    if kind in (MAINTENANCE, REGROWTH):
        job.planned.has_maintenance |= kind == MAINTENANCE
        plan_outage(job, job.names.index(kind))
        return None
    if kind == "back":
        return None  # ``_begin_next_outage`` looks for it
    if kind == "found":
        return stop_job(job, cause_id, latest_clean_snapshot(job))
    if not any(slow.noticed and slow.cause_number == cause_id for slow in job.slow):
        return None  # it is over
    if job.run.straggler == "checkpoint":
        plan_outage(job, cause_id)
        return None
    return stop_job(job, cause_id, job.latest_safe_snapshot(job.run.causes[cause_id].survives))
