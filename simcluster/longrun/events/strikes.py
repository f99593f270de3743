"""Causes as processes: each uses up hazard while the job is exposed to it, strikes, and begins anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import assert_never

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.longrun.events.planned import plan
from simcluster.longrun.events.silent import corrupt
from simcluster.longrun.events.spells import spell
from simcluster.longrun.events.state import Doing, JobState
from simcluster.longrun.lemons import is_retired
from simcluster.longrun.lives import Lives
from simcluster.longrun.run import Bad, FailureMode


def start_causes(job: JobState) -> None:
    """A process for every cause, and one for what a bad batch has beyond the others."""
    for number, cause in enumerate(job.run.causes):
        batch = None if cause.bad is None else BadMachines(job, cause, cause.bad)
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
            left = _to_go(job, cause, cause.struck.gap(occurrence))
        else:
            hazard = -math.log(float(job.uniform(name, "hazard", occurrence, 1)[0, 0]))
            if extra and batch is not None:
                left = batch.to_go(hazard)
            elif parts is not None:
                left = _to_go(job, cause, parts.next(hazard))
            else:
                left = _to_go(job, cause, hazard / cause.rate if cause.rate else math.inf)
        yield from job.exposure.passes(left, stops=cause.stops)
        if parts is not None:
            parts.ended(occurrence)
        occurrence += 1
        _strike(job, number, cause, batch, extra)
        yield job.env.timeout(0)


def _to_go(job: JobState, cause: FailureMode, seconds: float) -> Callable[[], float]:
    """What is left of so many exposed seconds from now on."""
    until = job.exposure.seconds(stops=cause.stops) + seconds
    return lambda: until - job.exposure.seconds(stops=cause.stops)


def _strike(job: JobState, number: int, cause: FailureMode, batch: BadMachines | None, extra: bool) -> None:
    """What a strike does, by the effect of its cause."""
    occurrence = int(job.strikes[number])
    job.strikes[number] += 1
    job.record.struck(cause.name, job.now_at())
    if batch is not None and batch.hit(job.uniform(cause.name, "bad", occurrence, 3)[0], extra):
        job.retired.add(number)
    match cause.effect:
        case "slow":
            job.env.process(spell(job, number, cause, occurrence))
            return
        case "alarm":
            plan(job, number)
        case "silent":
            corrupt(job, number, cause, occurrence)
        case "stop" | "pause":
            job.struck.append((number, occurrence))
        case _:
            assert_never(cause.effect)
    job.wake()


class BadMachines:
    """The bad machines of a cause that are left, and the hazard that they have used up beyond what others have."""

    def __init__(self, job: JobState, cause: FailureMode, batch: Bad) -> None:
        self.job, self.cause, self.batch = job, cause, batch
        self.machines, self.each = job.run.machines, cause.rate / job.run.machines
        self.times: list[list[float]] = [[] for _ in range(batch.machines)]  # when each has failed
        self._used, self._since = 0.0, 0.0

    @property
    def rate(self) -> float:
        """How often they fail beyond what others do, 1/s of exposed time; it only falls."""
        return len(self.times) * self.each * (self.batch.times - 1)

    def used(self) -> float:
        """Hazard of theirs that has been used up so far."""
        return self._used + self.rate * (self.job.exposure.seconds(stops=self.cause.stops) - self._since)

    def to_go(self, hazard: float) -> Callable[[], float]:
        """Exposed seconds, at least, until so much more hazard has been used up; inf if none of them is left."""
        until = self.used() + hazard
        return lambda: (until - self.used()) / self.rate if self.rate else math.inf

    def hit(self, uniform: Floats, extra: bool) -> bool:
        """A strike may hit one of them, which is retired, or cured by its repair: is it retired?"""
        bad, batch, now = len(self.times), self.batch, self.job.env.now
        if not bad or not (extra or uniform[0] < bad / self.machines):
            return False
        which = min(int(uniform[1] * bad), bad - 1)
        self.times[which].append(now)
        retired = batch.retire > 0 and is_retired(self.times[which], batch.rule, batch.retire, batch.window)
        if retired or bool(uniform[2] < batch.cured):
            self._used, self._since = self.used(), self.job.exposure.seconds(stops=self.cause.stops)
            self.times[which] = self.times[-1]
            self.times.pop()
        return retired


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
