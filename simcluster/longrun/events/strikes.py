"""Causes as processes: each uses up hazard while the job is exposed to it, strikes, and begins anew."""

from __future__ import annotations

import math

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.longrun.events.planned import plan
from simcluster.longrun.events.silent import corrupt
from simcluster.longrun.events.spells import spell
from simcluster.longrun.events.state import Doing, JobState
from simcluster.longrun.lemons import RETIRE, remembered
from simcluster.longrun.lives import Lives
from simcluster.longrun.run import Bad, FailureMode


def start_causes(job: JobState) -> None:
    """A process for every cause, and one for what a bad batch has beyond the others."""
    for number, cause in enumerate(job.run.causes):
        batch = None if cause.bad is None else BadMachines(cause.bad, cause.rate / job.run.machines, job.run.machines)
        job.env.process(_cause(job, number, cause, batch, extra=False))
        if batch is not None:
            job.env.process(_cause(job, number, cause, batch, extra=True))


def _cause(job: JobState, number: int, cause: FailureMode, batch: BadMachines | None, *, extra: bool) -> Doing:
    """Strikes of a cause, or (``extra``) those beyond that its bad batch has."""
    parts = None if cause.lives is None else AgedParts(cause.lives, cause.name, job)
    name = f"{cause.name}{'.bad' if extra else ''}"
    occurrence = 0
    while True:
        if cause.struck is not None:
            left = cause.struck.gap(occurrence)
        else:
            left = -math.log(float(job.uniform(name, "hazard", occurrence, 1)[0, 0]))
            left = left if parts is None else parts.next(left)
        while left > 0:
            rate = cause.rate if parts is None and cause.struck is None else 1.0
            if extra and batch is not None:
                rate = batch.rate
            if not rate or not (job.exposed == "all" or (job.exposed == "stop" and cause.stops)):
                yield job.changed
                continue
            rate *= float(job.shares[job.missing])
            begun = job.env.now
            strikes = job.env.timeout(left / rate)
            yield strikes | job.changed
            left = 0.0 if strikes.processed else left - rate * (job.env.now - begun)
        if parts is not None:
            parts.ended(occurrence)
        occurrence += 1
        _strike(job, number, cause, batch, extra)
        yield job.env.timeout(0)


def _strike(job: JobState, number: int, cause: FailureMode, batch: BadMachines | None, extra: bool) -> None:
    """What a strike does, by the effect of its cause."""
    occurrence = int(job.strikes[number])
    job.strikes[number] += 1
    job.record.struck(cause.name, job.now_at())
    if batch is not None:
        gone, retired = batch.hit(job.uniform(cause.name, "bad", occurrence, 3)[0], job.env.now, extra)
        if retired:
            job.retired.add(number)
        if gone:
            job.tell()
    if cause.effect == "slow":
        job.env.process(spell(job, number, cause, occurrence))
        return
    if cause.effect == "alarm":
        plan(job, number)
    elif cause.effect == "silent":
        corrupt(job, number, cause, occurrence)
    else:
        job.struck.append((number, occurrence))
    job.wake()


class BadMachines:
    """The bad machines of a cause that are left, of ``machines`` in the job that fail at rate ``each`` (1/s)."""

    def __init__(self, batch: Bad, each: float, machines: int) -> None:
        self.batch, self.each, self.machines = batch, each, machines
        self.times: list[list[float]] = [[] for _ in range(batch.machines)]  # when each has failed

    @property
    def rate(self) -> float:
        """How often they fail beyond what others do, 1/s."""
        return len(self.times) * self.each * (self.batch.times - 1)

    def hit(self, uniform: Floats, now: float, extra: bool) -> tuple[bool, bool]:
        """A strike may hit one of them, which is retired, or cured by its repair: (is there one fewer?, retired?)."""
        bad, batch = len(self.times), self.batch
        if not bad or not (extra or uniform[0] < bad / self.machines):
            return False, False
        which = min(int(uniform[1] * bad), bad - 1)
        self.times[which].append(now)
        last = self.times[which][: -1 - remembered(batch.rule, batch.retire) : -1]
        ages = now - np.array(last)
        retired = batch.retire > 0 and bool(RETIRE[batch.rule](ages, batch.retire, batch.window))
        gone = retired or bool(uniform[2] < batch.cured)
        if gone:
            self.times[which] = self.times[-1]
            self.times.pop()
        return gone, retired


class AgedParts:
    """The lives of a cause's parts: those there from the begin in the order of their ends, and the new ones."""

    def __init__(self, lives: Lives, name: str, job: JobState) -> None:
        self.lives, self.name, self.job = lives, name, job
        self.at, self.failed = 0.0, 0
        self.first: float | None = None
        self.young: list[float] = []

    def next(self, unit: float) -> float:
        """Exposed seconds to the next end; ``unit`` is exponential with mean 1."""
        if self.first is None:
            self.first = float(self.lives.first(np.array([self.at]), np.array([self.failed]), np.array([unit]))[0])
        found = min([self.first, *self.young])
        gap, self.at = found - self.at, found
        return gap

    def ended(self, occurrence: int) -> None:
        """It has ended; a new part is in its place."""
        if self.first == self.at:
            self.failed, self.first = self.failed + 1, None
        else:
            self.young.remove(self.at)
        uniform = self.job.uniform(self.name, "life", occurrence, 1)
        self.young.append(self.at + float(self.lives.law.quantile(uniform)[0]))
