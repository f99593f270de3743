"""The job of one run: it trains along the checkpoint pattern until something stops it, deals with that, and trains on.

``simulation`` is the same compiled, for one run or thousands, without a log.
"""

from __future__ import annotations

import math

import numpy as np
import simpy

from simcluster.longrun.ending import check_end
from simcluster.longrun.events.outages import outage, pause
from simcluster.longrun.events.planned import calendar, plan
from simcluster.longrun.events.record import TRAINING, RunRow
from simcluster.longrun.events.silent import clean_snapshot
from simcluster.longrun.events.spells import pace_of
from simcluster.longrun.events.state import Doing, JobState, TrainingStretch
from simcluster.longrun.events.strikes import start_causes
from simcluster.longrun.outcome import MAINTENANCE, REGROWTH, Outcomes
from simcluster.longrun.pattern import MEMORY
from simcluster.longrun.run import LongRun

_ORDER = (MAINTENANCE, REGROWTH, "noticed", "found")
"""What falls due at one instant is dealt with in this order."""


def simulate_with_log(
    run: LongRun, seed: int, number: int = 0, *, detail: bool = False
) -> tuple[Outcomes, list[RunRow]]:
    """Return the outcome of run ``number`` of a seed and its log, with a row per stretch, or per phase (``detail``).

    Raises InputError for a run that would hardly ever end.
    """
    check_end(run)
    job = JobState(run, seed, number, detail=detail)
    weekly: list[float] = []
    job.process = job.env.process(_job(job))
    start_causes(job)
    job.env.process(_weeks(job, weekly))
    if run.maintenance is not None:
        job.env.process(calendar(job, run.maintenance.every))
    if math.isfinite(run.until):
        job.env.run(until=job.env.any_of([job.process, job.env.timeout(run.until)]))
    else:
        job.env.run(until=job.process)
    _trained(job, job.now_at())
    job.record.end(job.now_at())
    return _outcomes(job, weekly), sorted(job.record.log + job.record.strikes, key=lambda row: row.begin)


def _weeks(job: JobState, weekly: list[float]) -> Doing:
    """Steps kept at the end of every week."""
    while True:
        yield job.env.timeout(job.run.week)
        weekly.append(job.kept(job.now_at()))


def _job(job: JobState) -> Doing:
    """To the end of the run."""
    while job.at < job.run.end_at:
        yield from (_next(job) or _train(job))
    job.record.end(job.now_at())


def _train(job: JobState) -> Doing:
    """Along the pattern until something happens."""
    job.stretch = TrainingStretch(job.at, job.env.now, *pace_of(job))
    job.expose("all")
    target = max(job.at, min(job.planned.at, job.wrong.verified_at, job.run.end_at))
    try:
        yield job.env.timeout((target - job.at) * job.stretch.pace)
        _trained(job, target)
    except simpy.Interrupt:
        _trained(job, job.now_at())


def _trained(job: JobState, at: float) -> None:
    """Training has come to there: what it did on the way, and what made it take longer."""
    stretch, now = job.stretch, job.env.now
    if stretch is None:
        return
    job.stretch = None
    if stretch.number >= 0:
        job.record.add("slow", stretch.number, now - stretch.begun - (at - stretch.at))
    cause = job.names[stretch.number] if stretch.number >= 0 else ""
    before = job.walk.snapshot
    phases = job.walk.to(at)
    if job.walk.detail:
        for what, start, end in phases:
            ended = stretch.begun + (end - stretch.at) * stretch.pace if end < at else now
            begun = stretch.begun + (start - stretch.at) * stretch.pace
            job.record.log.append(RunRow(begun, ended, what, cause, stretch.which, end))
    elif now > stretch.begun:
        steps = job.kept(at) - job.kept(stretch.at)
        row = RunRow(stretch.begun, now, TRAINING, cause, stretch.which, at, steps, job.walk.snapshot - before)
        job.record.trained(row)
    job.safe = [max(known, new) for known, new in zip(job.safe, job.walk.safe, strict=True)]
    job.at = at


def _next(job: JobState) -> Doing | None:
    """The outage or pause that begins now, if one does."""
    job.due.sort(key=lambda due: _ORDER.index(due[0]))
    while job.due:
        begins = _due(job, *job.due.pop(0))
        if begins is not None:
            return begins
    if job.struck:
        number, occurrence = job.struck.pop(0)
        cause = job.run.causes[number]
        if cause.effect == "pause":
            return pause(job, number, occurrence)
        return outage(job, number, job.safe[cause.survives])
    if job.at >= job.wrong.verified_at:
        return outage(job, job.wrong.number, job.safe[MEMORY])
    if job.at >= job.planned.at:
        return outage(job, job.planned.number, job.walk.snapshot, planned=True)
    return None


def _due(job: JobState, what: str, number: int) -> Doing | None:
    """What has fallen due: something to plan, or an outage that begins now."""
    if what in (MAINTENANCE, REGROWTH):
        job.planned.maintains |= what == MAINTENANCE
        plan(job, job.names.index(what))
        return None
    if what == "found":
        return outage(job, number, clean_snapshot(job))
    if not any(slow.noticed and slow.number == number for slow in job.slow):
        return None  # it is over
    if job.run.straggler == "checkpoint":
        plan(job, number)
        return None
    return outage(job, number, job.safe[job.run.causes[number].survives])


def _outcomes(job: JobState, weekly: list[float]) -> Outcomes:
    """The run, once it has ended, as a table of one."""
    at = job.now_at()
    return Outcomes(
        job.run,
        np.array([job.env.now]),
        np.array([at]),
        np.array([job.kept(at)]),
        job.record.fates,
        job.record.parts,
        job.strikes[None, : len(job.run.causes)],
        job.outages[None],
        np.array([weekly]).reshape(1, -1),
    )
