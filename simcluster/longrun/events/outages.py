"""An outage: training is set back; detection, diagnosis, machines, and the parts of a restart, one after the other."""

from __future__ import annotations

import contextlib
import math

import simpy

from simcluster.longrun.events.planned import replan, watch
from simcluster.longrun.events.state import Doing, JobState, PlannedOutage
from simcluster.longrun.outcome import REGROWTH
from simcluster.longrun.pattern import MEMORY, STORAGE
from simcluster.longrun.run import FailureMode


def spend(job: JobState, seconds: float, fate: str, number: int, which: str = "") -> Doing:
    """Time passes without training."""
    if seconds > 0:
        job.record.begin(fate, number, which)
        yield job.env.timeout(seconds)
        job.record.end(job.now_at())


def pause(job: JobState, number: int, occurrence: int) -> Doing:
    """The job stands for a while; where that is longer than the timeout, it is a stop."""
    cause = job.run.causes[number]
    seconds = job.lasts(cause, occurrence)
    if seconds <= job.run.timeout:
        job.expose("")
        yield from spend(job, seconds, "pause", number, _named(job, cause, "where paused", occurrence))
    else:
        target = job.safe[cause.survives]
        yield from outage(job, number, target, paused=job.run.timeout)


def outage(job: JobState, number: int, target: int, *, planned: bool = False, paused: float = 0.0) -> Doing:
    """The job stops, after a pause of so many seconds; it goes on from the target, a snapshot."""
    job.expose("")
    run, name, occurrence = job.run, job.names[number], int(job.outages[number])
    cause = run.causes[number] if number < len(run.causes) else None
    job.outages[number] += 1
    level = _go_back(job, number, target, planned)
    which = _which(job, cause, occurrence)
    yield from spend(job, paused, "pause", number, which)
    detected = 0.0
    if cause is not None and not planned:
        detected = job.draw(cause.detect, name, "detect", occurrence)
        yield from spend(job, detected, "detection", number, which)
    parts = [job.draw(part.law(level), name, f"restart.{part.name}", occurrence) for part in run.restart]
    if run.wrong and not planned:
        uniform = float(job.uniform(name, "wrong", occurrence, 1)[0, 0])
        again = math.floor(math.log(uniform) / math.log(run.wrong))
        yield from spend(job, again * (detected + sum(parts)), "diagnosis", number, which)
    yield from _replace(job, job.planned.replaces if planned else number, number, which)
    if planned:
        yield from _maintain(job, number)
    elif math.isfinite(job.planned.at):
        replan(job)
    job.slow = [slow for slow in job.slow if not slow.noticed]
    job.forget("noticed")
    yield from _restart(job, number, parts)


def _which(job: JobState, cause: FailureMode | None, occurrence: int) -> str:
    """The named part that has failed."""
    return "" if cause is None else _named(job, cause, "where", occurrence)


def _named(job: JobState, cause: FailureMode, what: str, occurrence: int) -> str:
    uniform = float(job.uniform(cause.name, what, occurrence, 1)[0, 0])
    return cause.label(min(int(uniform * cause.devices), cause.devices - 1))


def _go_back(job: JobState, number: int, target: int, planned: bool) -> int:
    """Training is set back to a snapshot; returns where the snapshots are that are loaded."""
    back = job.walk.back(target)
    job.record.lost(number, job.at - back, job.at)
    job.at = back
    cause = job.run.causes[number] if number < len(job.run.causes) else None
    level = MEMORY if planned or cause is None or cause.survives == MEMORY else STORAGE
    if job.run.pattern.memory is None:
        level = STORAGE
    job.safe[MEMORY] = target
    job.safe[STORAGE] = target if planned or level == STORAGE else min(target, job.safe[STORAGE])
    if job.wrong.since >= back:
        job.wrong.gone()
        job.forget("found")
    return level


def _replace(job: JobState, leaves: int, number: int, which: str) -> Doing:
    """Machines leave for repair (those of the cause ``leaves``), and spares take their places, or the job waits."""
    spares = job.run.spares
    if spares.unlimited:
        return
    cause = job.run.causes[leaves] if 0 <= leaves < len(job.run.causes) else None
    if cause is not None and cause.repair is not None:
        occurrence = int(job.repairs[leaves])
        job.repairs[leaves] += 1
        ready = job.machines.ready(cause.machines)
        first = cause.repair
        if leaves in job.retired and cause.bad is not None and cause.bad.replaced is not None:
            first = cause.bad.replaced
        job.retired.discard(leaves)
        for machine in range(cause.machines):
            law = cause.repair if machine else first
            job.machines.send(job.draw(law, cause.name, f"repair.{machine}", occurrence))
        yield from spend(job, ready, "waiting", number, which)
    while job.machines.out > spares.count + len(job.run.short):
        yield from spend(job, job.machines.next_back() - job.env.now, "waiting", number, which)
        yield job.env.timeout(0)
    job.missing = max(0, job.machines.out - spares.count)
    job.forget(REGROWTH)
    job.watched = math.inf
    if job.missing and (few := job.run.faster[job.missing]) >= 0:
        job.watched = job.machines.until(spares.count + few)
        job.env.process(watch(job))


def _maintain(job: JobState, number: int) -> Doing:
    """What was planned is done."""
    if job.planned.maintains:
        assert job.run.maintenance is not None
        yield from spend(job, job.run.maintenance.lasts, "maintenance", number)
    job.planned = PlannedOutage()


def _restart(job: JobState, number: int, seconds: list[float]) -> Doing:
    """The parts of a restart; where a cause strikes in an exposed one, it ends there."""
    for place, part in enumerate(job.run.restart):
        job.expose("stop" if part.exposed else "")
        with contextlib.suppress(simpy.Interrupt):
            yield from spend(job, seconds[place], "restart", number, part.name)
        job.record.end(job.now_at())
        job.expose("")
        if job.struck:
            return
