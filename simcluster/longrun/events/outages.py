"""Outages of a simulated run: slow devices, silent errors, planned stops, and the phases of a restart."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import simpy

from simcluster.longrun.events.state import JobState, PlannedOutage, SimProcess, SlowDevice
from simcluster.longrun.pattern import MEMORY, STORAGE
from simcluster.longrun.run import MAINTENANCE, REGROWTH, FailureMode


def plan_outage(job: JobState, number: int) -> None:
    """Plan an outage after the next snapshot, or add a cause to the outage that is already planned."""
    if math.isinf(job.planned.at):
        job.planned.number = number
        move_planned_outage(job)
    if number < len(job.run.causes):
        job.planned.replaces = number


def move_planned_outage(job: JobState) -> None:
    """Move the planned outage to the next snapshot after the current time."""
    job.planned.at = float(job.run.pattern.next_snapshot_end(np.array([job.nominal_time()]))[0])


def schedule_maintenance(job: JobState, every: float) -> SimProcess:
    """Run a SimPy process that makes maintenance due ``every`` seconds."""
    while True:
        yield job.env.timeout(every)
        if (MAINTENANCE, -1) not in job.due:
            job.due.append((MAINTENANCE, -1))
        job.interrupt_training()


def await_repairs(job: JobState) -> SimProcess:
    """Wait until enough nodes are repaired to speed up the job; they join it after the next snapshot."""
    back = job.watched
    yield job.env.timeout(back - job.env.now)
    if job.missing and job.watched == back:
        job.fall_due(REGROWTH)


def corrupt_weights(job: JobState, number: int, cause: FailureMode, occurrence: int) -> None:
    """Mark the weights as wrong from now on, and schedule when a verification or a person finds out."""
    wrong, pattern = job.wrong, job.run.pattern
    if math.isfinite(wrong.since):
        return
    wrong.since, wrong.number = job.nominal_time(), number
    wrong.count += 1
    if pattern.verify:
        verified = pattern.next_verification_end(np.array([wrong.since]))
        wrong.verified_at = float(verified[0])
        wrong.since = max(wrong.since, float(pattern.latest_snapshot_end(verified)[0]))
    else:
        job.env.process(_find_error(job, number, wrong.count, job.failure_duration(cause, occurrence)))


def _find_error(job: JobState, number: int, count: int, lasts: float) -> SimProcess:
    yield job.env.timeout(lasts)
    if math.isfinite(job.wrong.since) and count == job.wrong.count:
        job.fall_due("found", number)


def latest_clean_snapshot(job: JobState) -> int:
    """Return the number of the latest stored snapshot with correct weights; 0 if none is kept."""
    pattern = job.run.pattern
    before = int(pattern.count_taken(np.array([job.wrong.since]))[0]) // pattern.cycles * pattern.cycles
    return before if before >= job.latest_safe_snapshot(STORAGE) - (pattern.keep - 1) * pattern.cycles else 0


def slow_down(job: JobState, number: int, cause: FailureMode, occurrence: int) -> SimProcess:
    """Slow one device down for a random time, until it is noticed or the time is over."""
    assert cause.paces is not None
    uniform = job.uniform_numbers(cause.name, "spell", occurrence, 2)[0]
    level = int(np.searchsorted(np.cumsum(cause.shares)[:-1], uniform[0], side="right"))
    device = min(int(uniform[1] * cause.devices), cause.devices - 1)
    column = 0 if cause.column is None else int(cause.column[device])
    slow = SlowDevice(number, float(cause.paces[level, column]), cause.label(device))
    job.slow.append(slow)
    job.interrupt_training()
    lasts = job.failure_duration(cause, occurrence)
    if job.run.straggler != "leave":
        noticed = job.draw_seconds(job.run.noticed, cause.name, "noticed", occurrence)
        if noticed < lasts:
            yield job.env.timeout(noticed)
            if slow in job.slow:
                slow.noticed = True
                job.fall_due("noticed", number)
            lasts -= noticed
    yield job.env.timeout(lasts)
    if slow in job.slow:
        job.slow.remove(slow)
        job.interrupt_training()


def worst_slowdown(job: JobState) -> tuple[float, int, str]:
    """Return the job's worst current slowdown as (step time factor, number of its cause, device)."""
    pace, number, which = 1.0, -1, ""
    for slow in job.slow:
        if slow.pace > pace:
            pace, number, which = slow.pace, slow.number, slow.which
    short = (1.0, *job.run.short)[job.missing]
    return (short, len(job.names) - 1, "") if short > pace else (pace, number, which)


def spend_time(job: JobState, seconds: float, fate: str, number: int, which: str = "") -> SimProcess:
    """Let ``seconds`` pass without training, logged under a time category and a cause."""
    if seconds > 0:
        job.record.begin_standstill(fate, number, which)
        yield job.env.timeout(seconds)
        job.record.end_standstill(job.nominal_time())


def pause_job(job: JobState, number: int, occurrence: int) -> SimProcess:
    """Pause the job for the duration of a failure; stop it if that is longer than the timeout."""
    cause = job.run.causes[number]
    seconds = job.failure_duration(cause, occurrence)
    if seconds <= job.run.timeout:
        job.set_exposure("")
        yield from spend_time(job, seconds, "pause", number, _pick_device(job, cause, "where paused", occurrence))
    else:
        target = job.latest_safe_snapshot(cause.survives)
        yield from stop_job(job, number, target, paused=job.run.timeout)


def stop_job(job: JobState, number: int, target: int, *, planned: bool = False, paused: float = 0.0) -> SimProcess:
    """Stop the job, after a pause of ``paused`` seconds, and restart it from the snapshot ``target``."""
    job.set_exposure("")
    run, name, occurrence = job.run, job.names[number], int(job.outages[number])
    cause = run.causes[number] if number < len(run.causes) else None
    job.outages[number] += 1
    level = _roll_back_to_snapshot(job, number, target, planned)
    which = "" if cause is None else _pick_device(job, cause, "where", occurrence)
    yield from spend_time(job, paused, "pause", number, which)
    detected = 0.0
    if cause is not None and not planned:
        detected = job.draw_seconds(cause.detect, name, "detect", occurrence)
        yield from spend_time(job, detected, "detection", number, which)
    parts = [
        job.draw_seconds(part.duration_law(level), name, f"restart.{part.name}", occurrence) for part in run.restart
    ]
    if run.wrong and not planned:
        uniform = float(job.uniform_numbers(name, "wrong", occurrence, 1)[0, 0])
        again = math.floor(math.log(uniform) / math.log(run.wrong))
        yield from spend_time(job, again * (detected + sum(parts)), "diagnosis", number, which)
    yield from _replace_nodes(job, job.planned.replaces if planned else number, number, which)
    if planned:
        if job.planned.maintains and run.maintenance is not None:
            yield from spend_time(job, run.maintenance.lasts, "maintenance", number)
        job.planned = PlannedOutage()
    elif math.isfinite(job.planned.at):
        move_planned_outage(job)
    job.slow = [slow for slow in job.slow if not slow.noticed]
    job.drop_due("noticed")
    for part, seconds in zip(run.restart, parts, strict=True):  # a failure in an exposed phase ends the restart
        job.set_exposure("stop" if part.exposed else "")
        with contextlib.suppress(simpy.Interrupt):
            yield from spend_time(job, seconds, "restart", number, part.name)
        job.record.end_standstill(job.nominal_time())
        job.set_exposure("")
        if job.struck:
            return


def _pick_device(job: JobState, cause: FailureMode, what: str, occurrence: int) -> str:
    uniform = float(job.uniform_numbers(cause.name, what, occurrence, 1)[0, 0])
    return cause.label(min(int(uniform * cause.devices), cause.devices - 1))


def _roll_back_to_snapshot(job: JobState, number: int, target: int, planned: bool) -> int:
    """Set training back to snapshot ``target``; return the tier (memory or storage) that is loaded."""
    back, stored = float(job.run.pattern.snapshot_end(np.array([target]))[0]), job.latest_safe_snapshot(STORAGE)
    job.record.log_lost_work(number, job.at - back, job.at)
    job.at = back
    cause = job.run.causes[number] if number < len(job.run.causes) else None
    level = MEMORY if planned or cause is None or cause.survives == MEMORY else STORAGE
    if job.run.pattern.memory is None:
        level = STORAGE
    job.least = [target, target if planned or level == STORAGE else min(target, stored)]
    if job.wrong.since >= back:
        job.wrong.reset()
        job.drop_due("found")
    return level


def _replace_nodes(job: JobState, leaves: int, number: int, which: str) -> SimProcess:
    """Send the failed nodes of cause ``leaves`` to repair, take spares, and wait if there are too few."""
    spares = job.run.spares
    if spares.unlimited:
        return
    cause = job.run.causes[leaves] if 0 <= leaves < len(job.run.causes) else None
    if cause is not None and cause.repair is not None:
        occurrence = int(job.repairs[leaves])
        job.repairs[leaves] += 1
        ready = job.machines.spare_delay(cause.machines)
        first = cause.repair
        if leaves in job.retired and cause.bad is not None and cause.bad.replaced is not None:
            first = cause.bad.replaced
        job.retired.discard(leaves)
        for machine in range(cause.machines):
            law = cause.repair if machine else first
            job.machines.send_to_repair(job.draw_seconds(law, cause.name, f"repair.{machine}", occurrence))
        yield from spend_time(job, ready, "waiting", number, which)
    while job.machines.nodes_out > spares.count + len(job.run.short):
        yield from spend_time(job, job.machines.next_return_time() - job.env.now, "waiting", number, which)
        yield job.env.timeout(0)
    job.missing = max(0, job.machines.nodes_out - spares.count)
    job.drop_due(REGROWTH)
    job.watched = math.inf
    if job.missing and (few := job.run.faster_counts[job.missing]) >= 0:
        job.watched = job.machines.time_with_at_most(spares.count + few)
        job.env.process(await_repairs(job))
