"""Slow devices: spells as processes, and the pace of the job that comes of them."""

from __future__ import annotations

import numpy as np

from simcluster.longrun.events.state import Doing, JobState, SlowDevice
from simcluster.longrun.run import FailureMode


def spell(job: JobState, number: int, cause: FailureMode, occurrence: int) -> Doing:
    """A device is slow for a while, and may be noticed before that is over."""
    slow = _device(job, number, cause, occurrence)
    job.slow.append(slow)
    job.wake()
    lasts = job.lasts(cause, occurrence)
    if job.run.straggler != "leave":
        noticed = job.draw(job.run.noticed, cause.name, "noticed", occurrence)
        if noticed < lasts:
            yield job.env.timeout(noticed)
            if _among(slow, job.slow):
                slow.noticed = True
                job.fall_due("noticed", number)
            lasts -= noticed
    yield job.env.timeout(lasts)
    if _among(slow, job.slow):
        job.slow = [other for other in job.slow if other is not slow]
        job.wake()


def _device(job: JobState, number: int, cause: FailureMode, occurrence: int) -> SlowDevice:
    """Which device it is, and how slow."""
    assert cause.paces is not None
    uniform = job.uniform(cause.name, "spell", occurrence, 2)[0]
    level = int(np.searchsorted(np.cumsum(cause.shares)[:-1], uniform[0], side="right"))
    device = min(int(uniform[1] * cause.devices), cause.devices - 1)
    column = int(cause.column(np.array([device]))[0]) if cause.column else 0
    return SlowDevice(number, float(cause.paces[level, column]), cause.label(device))


def _among(slow: SlowDevice, others: list[SlowDevice]) -> bool:
    """Is it this very spell, not one that looks like it?"""
    return any(other is slow for other in others)


def pace_of(job: JobState) -> tuple[float, int, str]:
    """The pace of the worst that slows the job, whose it is, and which device."""
    pace, number, which = 1.0, -1, ""
    for slow in job.slow:
        if slow.pace > pace:
            pace, number, which = slow.pace, slow.number, slow.which
    short = (1.0, *job.run.short)[job.missing]
    return (short, len(job.names) - 1, "") if short > pace else (pace, number, which)
