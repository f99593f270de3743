"""Silent errors: weights that are wrong, who finds out, and where the job goes back to."""

from __future__ import annotations

import math

import numpy as np

from simcluster.longrun.events.state import Doing, JobState
from simcluster.longrun.pattern import STORAGE
from simcluster.longrun.run import FailureMode


def corrupt(job: JobState, number: int, cause: FailureMode, occurrence: int) -> None:
    """Weights are wrong from here on, if they were not; a verification or somebody will find out."""
    wrong, pattern = job.wrong, job.run.pattern
    if math.isfinite(wrong.since):
        return
    wrong.since, wrong.number = job.now_at(), number
    wrong.count += 1
    if pattern.verify:
        verified = pattern.next_verified(np.array([wrong.since]))
        wrong.verified_at = float(verified[0])
        wrong.since = max(wrong.since, float(pattern.begun(verified)[0]))
    else:
        job.env.process(_find(job, number, wrong.count, job.lasts(cause, occurrence)))


def _find(job: JobState, number: int, count: int, lasts: float) -> Doing:
    """Somebody finds out, unless the job has gone back behind it in the meantime."""
    yield job.env.timeout(lasts)
    if math.isfinite(job.wrong.since) and count == job.wrong.count:
        job.fall_due("found", number)


def clean_snapshot(job: JobState) -> int:
    """The latest snapshot on storage from before the weights were wrong, if it is still kept; else the run's begin."""
    pattern = job.run.pattern
    before = int(pattern.taken(np.array([job.wrong.since]))[0]) // pattern.cycles * pattern.cycles
    return before if before >= job.safe[STORAGE] - (pattern.keep - 1) * pattern.cycles else 0
