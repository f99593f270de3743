"""Outages of a simulated run: slow devices, silent errors, planned stops, and restart phases."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import simpy

from simcluster.longrun.checkpoint_pattern import MEMORY, STORAGE
from simcluster.longrun.events.job_state import AbsentReplicas, JobState, PlannedOutage, SimProcess, SlowDevice
from simcluster.longrun.long_run import MAINTENANCE, REGROWTH, FailureMode


def plan_outage(job: JobState, cause_id: int) -> None:
    """Plan an outage at the next snapshot that replaces the nodes of a cause, unless an outage is already planned."""
    if math.isinf(job.planned.at):
        job.planned.number = cause_id
        move_planned_outage(job)
    if cause_id < len(job.run.causes):
        job.planned.node_loss_cause = cause_id


def move_planned_outage(job: JobState) -> None:
    """Move the planned outage to the next snapshot after the current time."""
    job.planned.at = float(job.run.pattern.next_snapshot_end(np.array([job.nominal_time()]))[0])


def schedule_maintenance(job: JobState, every: float) -> SimProcess:
    """Run a SimPy process that requests maintenance every ``every`` seconds."""
    while True:
        yield job.env.timeout(every)
        if (MAINTENANCE, -1) not in job.due:
            job.due.append((MAINTENANCE, -1))
        job.interrupt_training()


def await_repairs(job: JobState) -> SimProcess:
    """Wait until enough nodes are repaired to make the job faster, then plan their return at the next snapshot."""
    back = job.watched
    yield job.env.timeout(back - job.env.now)
    if job.missing and job.watched == back:
        job.add_due_event(REGROWTH)


def corrupt_weights(job: JobState, cause_id: int, cause: FailureMode, occurrence: int) -> None:
    """Mark the weights as wrong from now on; schedule when a verification or a person finds the silent error."""
    wrong, pattern = job.wrong, job.run.pattern
    if math.isfinite(wrong.since):
        return
    wrong.since, wrong.number = job.nominal_time(), cause_id
    wrong.count += 1
    if pattern.verify:
        verified = pattern.next_verification_end(np.array([wrong.since]))
        wrong.verified_at = float(verified[0])
        wrong.since = max(wrong.since, float(pattern.snapshot_end(pattern.count_snapshots_taken(verified))[0]))
    else:
        job.env.process(_report_silent_error(job, cause_id, wrong.count, job.failure_duration(cause, occurrence)))


def _report_silent_error(job: JobState, number: int, count: int, lasts: float) -> SimProcess:
    yield job.env.timeout(lasts)
    if math.isfinite(job.wrong.since) and count == job.wrong.count:
        job.add_due_event("found", number)


def latest_clean_snapshot(job: JobState) -> int:
    """Return the index of the latest stored snapshot with correct weights; 0 if every such snapshot is gone."""
    pattern, every = job.run.pattern, job.run.pattern.snapshots_per_stored
    before = int(pattern.count_snapshots_taken(np.array([job.wrong.since]))[0]) // every * every
    return before if before >= job.latest_safe_snapshot(STORAGE) - (pattern.keep - 1) * every else 0


def slow_device_down(job: JobState, cause_id: int, cause: FailureMode, occurrence: int) -> SimProcess:
    """Slow one device down for a random time; if the slowdown is noticed in that time, replace the device."""
    assert cause.paces is not None
    uniform = job.uniform_numbers(cause.name, "spell", occurrence, 2)[0]
    level = int(np.searchsorted(np.cumsum(cause.shares)[:-1], uniform[0], side="right"))
    device = min(int(uniform[1] * cause.devices), cause.devices - 1)
    column = 0 if cause.device_class is None else int(cause.device_class[device])
    slow = SlowDevice(cause_id, float(cause.paces[level, column]), cause.label(device))
    job.slow.append(slow)
    job.interrupt_training()
    lasts = job.failure_duration(cause, occurrence)
    if job.run.straggler != "leave":
        noticed = job.draw_seconds(job.run.notice_time, cause.name, "noticed", occurrence)
        if noticed < lasts:
            yield job.env.timeout(noticed)
            if slow in job.slow:
                slow.noticed = True
                job.add_due_event("noticed", cause_id)
            lasts -= noticed
    yield job.env.timeout(lasts)
    if slow in job.slow:
        job.slow.remove(slow)
        job.interrupt_training()


def worst_slowdown(job: JobState) -> tuple[float, int, str]:
    """Return the job's worst current slowdown as (step time factor, cause index, device name)."""
    pace, number, which = 1.0, -1, ""
    for slow in job.slow:
        if slow.pace > pace:
            pace, number, which = slow.pace, slow.cause_number, slow.device
    short = (1.0, *job.run.shrunk_paces)[job.missing]
    return (short, len(job.names) - 1, "") if short > pace else (pace, number, which)


def spend_stopped_time(job: JobState, seconds: float, category: str, cause_id: int, detail: str = "") -> SimProcess:
    """Let ``seconds`` pass without training, and log them under a time category and a cause."""
    if seconds > 0:
        job.record.begin_standstill(category, cause_id, detail)
        yield job.env.timeout(seconds)
        job.record.end_standstill(job.nominal_time())


def pause_job(job: JobState, number: int, occurrence: int) -> SimProcess:
    """Pause the job for the duration of a failure; stop the job if the failure outlasts the timeout."""
    cause = job.run.causes[number]
    lasts = job.failure_duration(cause, occurrence)
    if lasts <= job.run.timeout:
        job.set_possible_failures("")
        yield from spend_stopped_time(job, lasts, "pause", number, _pick_device(job, cause, "where paused", occurrence))
    else:
        yield from stop_job(job, number, job.latest_safe_snapshot(cause.survives), paused=job.run.timeout)


def stop_job(job: JobState, cause_id: int, target: int, *, planned: bool = False, paused: float = 0.0) -> SimProcess:
    """Stop the job, set training back to snapshot ``target``, let a pause of ``paused`` s elapse, and restart.

    Where only replicas leave, and not the last, the others continue instead.
    """
    job.set_possible_failures("")
    run, name, nth = job.run, job.names[cause_id], int(job.outages[cause_id])
    cause = run.causes[cause_id] if cause_id < len(run.causes) else None
    job.outages[cause_id] += 1
    leaves = 0 if cause is None or planned or not job.has_state else cause.leaves
    if cause is not None and 0 < leaves <= len(run.shrunk_paces) and job.missing + leaves < run.machines:
        yield from _leave(job, cause_id, cause, nth)
        return
    if job.absent:
        job.absent, job.missing = [], 0
        job.drop_due_events("back")
    level = _roll_back_to_snapshot(job, cause_id, target, planned)
    which = "" if cause is None else _pick_device(job, cause, "where", nth)
    yield from spend_stopped_time(job, paused, "pause", cause_id, which)
    detected = 0.0
    if cause is not None and not planned:
        detected = job.draw_seconds(cause.detect, name, "detect", nth)
        yield from spend_stopped_time(job, detected, "detection", cause_id, which)
    parts = [
        job.draw_seconds(part.duration_distribution(level), name, f"restart.{part.name}", nth) for part in run.restart
    ]
    if run.misdiagnosis_share and not planned:
        uniform = float(job.uniform_numbers(name, "wrong", nth, 1)[0, 0])
        again = math.floor(math.log(uniform) / math.log(run.misdiagnosis_share))
        yield from spend_stopped_time(job, again * (detected + sum(parts)), "diagnosis", cause_id, which)
    yield from _replace_nodes(job, job.planned.node_loss_cause if planned else cause_id, cause_id, which)
    if planned:
        if job.planned.has_maintenance and run.maintenance is not None:
            yield from spend_stopped_time(job, run.maintenance.lasts, "maintenance", cause_id)
        job.planned = PlannedOutage()
    elif math.isfinite(job.planned.at):
        move_planned_outage(job)
    _forget_noticed(job)
    job.has_state = not run.restart
    for part, seconds in zip(run.restart, parts, strict=True):  # a failure in an exposed phase ends the restart
        job.set_possible_failures("stop" if part.exposed else "")
        with contextlib.suppress(simpy.Interrupt):
            yield from spend_stopped_time(job, seconds, "restart", cause_id, part.name)
        job.record.end_standstill(job.nominal_time())
        job.set_possible_failures("")
        if job.struck:
            return
    job.has_state = True


def _forget_noticed(job: JobState) -> None:
    job.slow = [slow for slow in job.slow if not slow.noticed]
    job.drop_due_events("noticed")


def _leave(job: JobState, cause_id: int, cause: FailureMode, nth: int) -> SimProcess:
    """Let the failed replicas leave; the others redo the current step, and wait if too many would be missing."""
    run, which = job.run, _pick_device(job, cause, "where", nth)
    _set_back(job, cause_id, run.pattern.step_begin(job.at))
    detected = job.draw_seconds(cause.detect, cause.name, "detect", nth)
    yield from spend_stopped_time(job, detected, "detection", cause_id, which)
    parts = [job.draw_seconds(part.memory, cause.name, f"restart.{part.name}", nth) for part in run.restart]
    copy = {part.name: each for part, each in zip(run.restart, parts, strict=True) if part.copies}
    away = sum(each for part, each in zip(run.restart, parts, strict=True) if not part.copies)
    if run.misdiagnosis_share:  # the wrong node is replaced first: all is repeated
        uniform = float(job.uniform_numbers(cause.name, "wrong", nth, 1)[0, 0])
        again = math.floor(math.log(uniform) / math.log(run.misdiagnosis_share))
        yield from spend_stopped_time(job, again * (detected + sum(copy.values())), "diagnosis", cause_id, which)
        away += again * away
    ready = 0.0
    if not run.spares.unlimited and cause.repair is not None:
        ready = _send_to_repair(job, cause_id)
        ready = max(ready, job.machines.time_when_few_in_repair(run.spares.count) - job.env.now)
    back = AbsentReplicas(job.env.now + ready + away, cause.leaves, cause_id, copy)
    _forget_noticed(job)
    while job.missing + cause.leaves > len(run.shrunk_paces):
        first = min(job.absent, key=lambda each: each.back)
        yield from spend_stopped_time(job, first.back - job.env.now, "waiting", cause_id, which)
        yield from rejoin(job, first)
    job.missing += cause.leaves
    job.absent.append(back)
    job.env.process(_await_replicas(job, back))


def _await_replicas(job: JobState, back: AbsentReplicas) -> SimProcess:
    yield job.env.timeout(max(0.0, back.back - job.env.now))
    if back in job.absent:
        job.add_due_event("back")


def rejoin(job: JobState, back: AbsentReplicas) -> SimProcess:
    """Let replicas that left rejoin: all wait for their copy of a peer's state."""
    job.set_possible_failures("")
    job.absent.remove(back)
    for name, seconds in back.copy.items():
        yield from spend_stopped_time(job, seconds, "restart", back.cause_number, name)
    job.missing -= back.machines


def _pick_device(job: JobState, cause: FailureMode, what: str, occurrence: int) -> str:
    uniform = float(job.uniform_numbers(cause.name, what, occurrence, 1)[0, 0])
    return cause.label(min(int(uniform * cause.devices), cause.devices - 1))


def _roll_back_to_snapshot(job: JobState, cause_id: int, target: int, planned: bool) -> int:
    """Set training back to snapshot ``target``; return the tier from which it loads (memory or storage)."""
    back, stored = float(job.run.pattern.snapshot_end(np.array([target]))[0]), job.latest_safe_snapshot(STORAGE)
    _set_back(job, cause_id, back)
    cause = job.run.causes[cause_id] if cause_id < len(job.run.causes) else None
    level = MEMORY if planned or cause is None or cause.survives == MEMORY else STORAGE
    if job.run.pattern.memory is None:
        level = STORAGE
    job.least = [target, target if planned or level == STORAGE else min(target, stored)]
    return level


def _set_back(job: JobState, cause_id: int, back: float) -> None:
    job.record.log_lost_work(cause_id, job.at - back, job.at)
    job.at = back
    if job.wrong.since >= back:
        job.wrong.since = job.wrong.verified_at = math.inf
        job.drop_due_events("found")


def _send_to_repair(job: JobState, leaves: int) -> float:
    """Send the failed nodes of a cause to repair; return the seconds until spares for them are ready."""
    cause = job.run.causes[leaves] if 0 <= leaves < len(job.run.causes) else None
    if cause is None or cause.repair is None:
        return 0.0
    occurrence = int(job.repairs[leaves])
    job.repairs[leaves] += 1
    ready = job.machines.seconds_until_spares_ready(cause.machines)
    first = cause.repair
    if leaves in job.retired and cause.defective_batch is not None and cause.defective_batch.replaced is not None:
        first = cause.defective_batch.replaced
    job.retired.discard(leaves)
    for machine in range(cause.machines):
        law = cause.repair if machine else first
        job.machines.send_to_repair(job.draw_seconds(law, cause.name, f"repair.{machine}", occurrence))
    return ready


def _replace_nodes(job: JobState, leaves: int, number: int, device: str) -> SimProcess:
    """Send the failed nodes (of cause ``leaves``) to repair and take spares; wait if there are too few spares."""
    spares = job.run.spares
    if spares.unlimited:
        return
    yield from spend_stopped_time(job, _send_to_repair(job, leaves), "waiting", number, device)
    while job.machines.nodes_in_repair > spares.count + job.run.most_missing_after_restart:
        yield from spend_stopped_time(job, job.machines.next_return_time() - job.env.now, "waiting", number, device)
        yield job.env.timeout(0)
    job.missing = max(0, job.machines.nodes_in_repair - spares.count)
    job.drop_due_events(REGROWTH)
    job.watched = math.inf
    if job.missing and (few := job.run.faster_missing_counts[job.missing]) >= 0:
        job.watched = job.machines.time_when_few_in_repair(spares.count + few)
        job.env.process(await_repairs(job))
