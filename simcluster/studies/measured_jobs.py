"""Steps of several jobs on one cluster: how many of each are simulated, and which of them are measured.

Jobs begin together and continue until the measured steps of every job are over, at least eight of each, so that none is
measured after a neighbour has left. The first step of each, for which all begin at the same instant, and the last are
not measured. How jobs meet shifts from step to step where their steps differ in length: a job's step time is the mean
over the measured ones.

A job may arrive later, and leave: where it is not, it has no ops. It then runs up to its first step that ends at
``leaves`` or later, and all of its steps but the first are measured; jobs that stay are measured until all others have
left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.results.result import Result
from simcluster.results.timeline import step_end_times
from simcluster.scenario.scenario import Scenario

_MIN_MEASURED = 8
"""Least number of measured steps of every job; a scenario with more ``steps`` has that many."""
_MOST_STEPS = 4096  # of one job
_SLACK = 1.25  # factor on the expected length of jobs, which slow each other down


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job and its GPUs: ranks 0, 1, ... run on the cluster's GPUs with these indices.

    It ``arrives`` and ``leaves`` at times since the start of all jobs (s); infinity: it stays.
    """

    scenario: Scenario
    gpus: tuple[int, ...]
    arrives: float = 0.0
    leaves: float = math.inf

    @property
    def stays(self) -> bool:
        """Whether the job is there until the end."""
        return self.leaves == math.inf


JobSimulator = Callable[[Sequence[PlacedJob], Sequence[int]], list[Result]]
"""Function that simulates jobs together, each for a number of steps."""


def simulate_measured_steps(jobs: Sequence[PlacedJob], simulator: JobSimulator) -> list[tuple[Result, Floats, int]]:
    """Simulate all jobs together; return each job's result, step end times (s) and number of measured steps."""
    wanted = [max(_MIN_MEASURED, job.scenario.steps) for job in jobs]
    paces, slack = [simulator([replace(job, arrives=0.0)], [1])[0].step_time for job in jobs], _SLACK
    known: dict[int, int] = {}  # number of steps of jobs that leave
    while True:
        counts = [known.get(n, steps) for n, steps in enumerate(_estimate_step_counts(jobs, wanted, paces, slack))]
        many, short = max(zip(counts, jobs, strict=True), key=lambda each: each[0])
        if many > _MOST_STEPS:
            raise InputError(
                f"job {short.scenario.name!r} would need {many:,} steps until the measured steps of the longest "
                f"job are over; the limit is {_MOST_STEPS:,}: increase this job's global batch, reduce that "
                "of the longest job, or let jobs arrive and leave sooner"
            )
        results = simulator(jobs, counts)
        ends = [step_end_times(result.spans, result.steps) for result in results]
        leaving = [n for n, job in enumerate(jobs) if not job.stays and n not in known]
        first = min(leaving, key=lambda n: jobs[n].leaves, default=-1)  # what happens before it leaves is final
        if leaving and ends[first][-1] >= jobs[first].leaves:
            known[first] = _count_steps_until_leaving(jobs[first], ends[first])
            continue
        over = min((float(own[-2]) for job, own in zip(jobs, ends, strict=True) if job.stays), default=math.inf)
        measured = [int(np.searchsorted(own, over, side="right")) - 1 for own in ends]
        enough = (
            found >= steps if job.stays else found == len(own) - 1
            for job, own, found, steps in zip(jobs, ends, measured, wanted, strict=True)
        )
        if not leaving and all(enough):
            return list(zip(results, ends, measured, strict=True))
        paces = [float(own[-2] - job.arrives) / (len(own) - 1) for job, own in zip(jobs, ends, strict=True)]
        slack *= _SLACK


def _estimate_step_counts(
    jobs: Sequence[PlacedJob], wanted: Sequence[int], paces: Sequence[float], slack: float
) -> list[int]:
    """Return a number of steps for each job that is probably enough, given its step time (s)."""
    ends = [job.arrives + slack * ((1 + steps) * pace) if job.stays else job.leaves + slack * pace
            for job, steps, pace in zip(jobs, wanted, paces, strict=True)]  # fmt: skip
    until = [max(ends) if job.stays else slack * end for job, end in zip(jobs, ends, strict=True)]
    return [2 + math.ceil((end - job.arrives) / pace) for job, end, pace in zip(jobs, until, paces, strict=True)]


def _count_steps_until_leaving(job: PlacedJob, ends: Floats) -> int:
    """Return the number of steps of a job that leaves, given when its steps would end (s)."""
    steps = int(np.searchsorted(ends, job.leaves)) + 1
    if steps < 2:
        raise InputError(
            f"job {job.scenario.name!r} leaves at {job.leaves:g} s, in its first step, which ends at {ends[0]:.4g} s; "
            "its steps are measured from the second on: let it leave later"
        )
    return steps
