"""Outages that wait for a snapshot: maintenance, machines that are back, machines that are to be replaced."""

from __future__ import annotations

import math

import numpy as np

from simcluster.longrun.events.state import Doing, JobState
from simcluster.longrun.outcome import MAINTENANCE, REGROWTH


def plan(job: JobState, number: int) -> None:
    """An outage after the next snapshot; what is planned already is done in the same."""
    if math.isinf(job.planned.at):
        job.planned.number = number
        replan(job)
    if number < len(job.run.causes):
        job.planned.replaces = number


def replan(job: JobState) -> None:
    """After the snapshot that is next from here."""
    job.planned.at = float(job.run.pattern.next_end(np.array([job.now_at()]))[0])


def calendar(job: JobState, every: float) -> Doing:
    """Maintenance falls due again and again."""
    while True:
        yield job.env.timeout(every)
        if (MAINTENANCE, -1) not in job.due:
            job.due.append((MAINTENANCE, -1))
        job.wake()


def watch(job: JobState) -> Doing:
    """Machines are back that the job has too few, enough to be faster: they are taken in after the next snapshot."""
    back = job.watched
    yield job.env.timeout(back - job.env.now)
    if job.missing and job.watched == back:
        job.fall_due(REGROWTH)
