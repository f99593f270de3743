"""SimPy processes of one simulated run: training, the failures of each cause, and recovery.

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
from simcluster.longrun.ending import check_run_ends
from simcluster.longrun.events.outages import (
    corrupt_weights,
    latest_clean_snapshot,
    pause_job,
    plan_outage,
    schedule_maintenance,
    slow_down,
    stop_job,
    worst_slowdown,
)
from simcluster.longrun.events.record import TRAINING, RunRow
from simcluster.longrun.events.state import JobState, SimProcess, TrainingStretch
from simcluster.longrun.lives import PartLifetimes, should_retire_node
from simcluster.longrun.pattern import MEMORY
from simcluster.longrun.run import MAINTENANCE, REGROWTH, DefectiveBatch, FailureMode, LongRun, Outcomes


def start_causes(job: JobState) -> None:
    """Start a SimPy process for every failure cause, and one for the extra failures of its defective batch."""
    for number, cause in enumerate(job.run.causes):
        batch = None if cause.bad is None else DefectiveNodes(job, cause, cause.bad)
        job.env.process(_run_cause(job, number, cause, batch, extra=False))
        if batch is not None:
            job.env.process(_run_cause(job, number, cause, batch, extra=True))


def _run_cause(
    job: JobState, number: int, cause: FailureMode, batch: DefectiveNodes | None, *, extra: bool
) -> SimProcess:
    """Produce the failures of a cause or, with ``extra``, the additional failures of its defective nodes."""
    parts = None if cause.lives is None else PartLifetimeSampler(cause.lives, cause.name, job)
    name = f"{cause.name}{'.bad' if extra else ''}"
    occurrence = 0
    while True:
        if cause.struck is not None:
            left = _exposed_time_left(job, cause, cause.struck.gap(occurrence))
        else:
            hazard = -math.log(float(job.uniform_numbers(name, "hazard", occurrence, 1)[0, 0]))
            if extra and batch is not None:
                left = batch.exposure_until(hazard)
            elif parts is not None:
                left = _exposed_time_left(job, cause, parts.next_gap(hazard))
            else:
                left = _exposed_time_left(job, cause, hazard / cause.rate if cause.rate else math.inf)
        yield from job.exposure.wait_for(left, stops=cause.stops)
        if parts is not None:
            parts.replace_failed(occurrence)
        occurrence += 1
        _record_failure(job, number, cause, batch, extra)
        yield job.env.timeout(0)


def _exposed_time_left(job: JobState, cause: FailureMode, seconds: float) -> Callable[[], float]:
    until = job.exposure.exposed_seconds(stops=cause.stops) + seconds
    return lambda: until - job.exposure.exposed_seconds(stops=cause.stops)


def _record_failure(job: JobState, number: int, cause: FailureMode, batch: DefectiveNodes | None, extra: bool) -> None:
    occurrence = int(job.strikes[number])
    job.strikes[number] += 1
    job.record.log_failure(cause.name, job.nominal_time())
    if batch is not None and batch.record_hit(job.uniform_numbers(cause.name, "bad", occurrence, 3)[0], extra):
        job.retired.add(number)
    match cause.effect:
        case "slow":
            job.env.process(slow_down(job, number, cause, occurrence))
            return
        case "alarm":
            plan_outage(job, number)
        case "silent":
            corrupt_weights(job, number, cause, occurrence)
        case "stop" | "pause":
            job.struck.append((number, occurrence))
        case _:
            assert_never(cause.effect)
    job.interrupt_training()


class DefectiveNodes:
    """Remaining defective nodes of a cause, and the extra hazard that they have accumulated."""

    def __init__(self, job: JobState, cause: FailureMode, batch: DefectiveBatch) -> None:
        self.job, self.cause, self.batch = job, cause, batch
        self.machines, self.each = job.run.machines, cause.rate / job.run.machines
        self.times: list[list[float]] = [[] for _ in range(batch.machines)]  # when each has failed
        self._used, self._since = 0.0, 0.0

    @property
    def rate(self) -> float:
        """Extra failure rate of the remaining defective nodes (1/s of exposed time)."""
        return len(self.times) * self.each * (self.batch.times - 1)

    def accumulated_hazard(self) -> float:
        """Return the extra hazard that the defective nodes have accumulated so far."""
        return self._used + self.rate * (self.job.exposure.exposed_seconds(stops=self.cause.stops) - self._since)

    def exposure_until(self, hazard: float) -> Callable[[], float]:
        """Return a function that gives the exposed seconds until ``hazard`` more accumulates; inf without nodes."""
        until = self.accumulated_hazard() + hazard
        return lambda: (until - self.accumulated_hazard()) / self.rate if self.rate else math.inf

    def record_hit(self, uniform: Floats, extra: bool) -> bool:
        """Decide whether a failure hits a defective node; return whether that node is retired."""
        bad, batch, now = len(self.times), self.batch, self.job.env.now
        if not bad or not (extra or uniform[0] < bad / self.machines):
            return False
        which = min(int(uniform[1] * bad), bad - 1)
        self.times[which].append(now)
        retired = batch.retire > 0 and should_retire_node(self.times[which], batch.rule, batch.retire, batch.window)
        if retired or bool(uniform[2] < batch.cured):
            exposed = self.job.exposure.exposed_seconds(stops=self.cause.stops)
            self._used, self._since = self.accumulated_hazard(), exposed
            self.times[which] = self.times[-1]
            self.times.pop()
        return retired


class PartLifetimeSampler:
    """Lifetimes of a cause's parts: the initial ones in the order of their failures, and their replacements."""

    def __init__(self, lives: PartLifetimes, name: str, job: JobState) -> None:
        self.lives, self.name, self.job = lives, name, job
        self.at, self.failed = 0.0, 0
        self.first: float | None = None
        self.young: list[float] = []

    def next_gap(self, unit: float) -> float:
        """Return the exposed seconds to the next part failure; ``unit`` is exponential with mean 1."""
        if self.first is None:
            self.first = float(self.lives.next_failure(np.array([self.at]), self.failed, np.array([unit]))[0])
        found = min([self.first, *self.young])
        gap, self.at = found - self.at, found
        return gap

    def replace_failed(self, occurrence: int) -> None:
        """Replace the part that has just failed by a new one."""
        if self.first == self.at:
            self.failed, self.first = self.failed + 1, None
        else:
            self.young.remove(self.at)
        uniform = self.job.uniform_numbers(self.name, "life", occurrence, 1)
        self.young.append(self.at + float(self.lives.law.quantile(uniform)[0]))


_ORDER = (MAINTENANCE, REGROWTH, "noticed", "found")
"""Order in which events that are due at one instant are handled."""


def simulate_with_log(run: LongRun, seed: int, number: int = 0) -> tuple[Outcomes, list[RunRow]]:
    """Simulate run ``number`` of a seed in SimPy; return its outcome and log rows."""
    check_run_ends(run)
    job = JobState(run, seed, number)
    weekly: list[float] = []
    job.process = job.env.process(_train_until_end(job))
    start_causes(job)
    job.env.process(_record_weeks(job, weekly))
    if run.maintenance is not None:
        job.env.process(schedule_maintenance(job, run.maintenance.every))
    if math.isfinite(run.until):
        job.env.run(until=job.env.any_of([job.process, job.env.timeout(run.until)]))
    else:
        job.env.run(until=job.process)
    _log_training(job, job.nominal_time())
    job.record.end_standstill(job.nominal_time())
    at, log = job.nominal_time(), sorted(job.record.log + job.record.strikes, key=lambda row: row.begin)
    numbers = np.array([job.env.now]), np.array([at]), np.array([job.steps_done(at)])
    counts = job.strikes[None, : len(run.causes)], job.outages[None]
    weeks = np.array([weekly]).reshape(1, -1)
    return Outcomes(run, *numbers, job.record.fates, job.record.parts, *counts, weeks), log


def _record_weeks(job: JobState, weekly: list[float]) -> SimProcess:
    while True:
        yield job.env.timeout(job.run.week)
        weekly.append(job.steps_done(job.nominal_time()))


def _train_until_end(job: JobState) -> SimProcess:
    while job.at < job.run.end_at:
        begins = _next_outage(job)
        if begins is not None:
            yield from begins
            continue
        job.stretch = TrainingStretch(job.at, job.env.now, *worst_slowdown(job))
        job.set_exposure("all")
        target = max(job.at, min(job.planned.at, job.wrong.verified_at, job.run.end_at))
        try:
            yield job.env.timeout((target - job.at) * job.stretch.pace)
            _log_training(job, target)
        except simpy.Interrupt:
            _log_training(job, job.nominal_time())
    job.record.end_standstill(job.nominal_time())


def _log_training(job: JobState, at: float) -> None:
    stretch, now = job.stretch, job.env.now
    if stretch is None:
        return
    job.stretch = None
    if stretch.number >= 0:
        job.record.add_seconds("slow", stretch.number, now - stretch.begun - (at - stretch.at))
    cause = job.names[stretch.number] if stretch.number >= 0 else ""
    if now > stretch.begun:
        before, taken = job.run.pattern.count_taken(np.array([stretch.at, at])).tolist()
        steps = job.steps_done(at) - job.steps_done(stretch.at)
        job.record.log_training(RunRow(stretch.begun, now, TRAINING, cause, stretch.which, at, steps, taken - before))
    job.at = at


def _next_outage(job: JobState) -> SimProcess | None:
    job.due.sort(key=lambda due: _ORDER.index(due[0]))
    while job.due:
        begins = _handle_due(job, *job.due.pop(0))
        if begins is not None:
            return begins
    if job.struck:
        number, occurrence = job.struck.pop(0)
        cause = job.run.causes[number]
        if cause.effect == "pause":
            return pause_job(job, number, occurrence)
        return stop_job(job, number, job.latest_safe_snapshot(cause.survives))
    if job.at >= job.wrong.verified_at:
        return stop_job(job, job.wrong.number, job.latest_safe_snapshot(MEMORY))
    if job.at >= job.planned.at:
        taken = int(job.run.pattern.count_taken(np.array([job.at]))[0])
        return stop_job(job, job.planned.number, taken, planned=True)
    return None


def _handle_due(job: JobState, what: str, number: int) -> SimProcess | None:
    if what in (MAINTENANCE, REGROWTH):
        job.planned.maintains |= what == MAINTENANCE
        plan_outage(job, job.names.index(what))
        return None
    if what == "found":
        return stop_job(job, number, latest_clean_snapshot(job))
    if not any(slow.noticed and slow.number == number for slow in job.slow):
        return None  # it is over
    if job.run.straggler == "checkpoint":
        plan_outage(job, number)
        return None
    return stop_job(job, number, job.latest_safe_snapshot(job.run.causes[number].survives))
