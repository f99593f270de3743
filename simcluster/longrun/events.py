"""The plain meaning of a run: SimPy processes for the job, for every cause and for every repair, and a log of all.

``replicas`` plays many runs at once and equals this one run by run.  A run's life: train along the checkpoint pattern
until something stops the job; go back to the latest snapshot that survives; detect, diagnose, replace, restart; train
on.  ``Log`` rows are (begin, end, what, cause, which, at): wall seconds, what the job did, why, on which named part, and
where on the nominal clock it was at the end.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from simcluster.base.arrays import Ints
from simcluster.longrun.run import FATES, Bad, FailureMode, LongRun
from simcluster.longrun.crews import RepairShop
from simcluster.longrun.lives import Lives
from simcluster.longrun.outcome import MAINTENANCE, REGROWTH, Outcomes, names_of
from simcluster.longrun.pattern import MEMORY, STORAGE
from simcluster.longrun.streams import CounterStreams
from simcluster.longrun.times import TimeSpec
from simcluster.longrun.walk import PatternWalk

Row = tuple[float, float, str, str, str, float]
Doing = Generator[simpy.Event, Any, None]
_ORDER = (MAINTENANCE, REGROWTH, "noticed", "found")


def play_events(run: LongRun, seed: int, number: int = 0) -> tuple[Outcomes, list[Row]]:
    """The run of that number of a seed, and its log."""
    job = _Job(run, CounterStreams(seed, number, 1))
    job.play()
    return job.outcomes(), job.log


class _Spell:
    """A slow device: at which pace the job runs with it, and whether it has been noticed."""

    def __init__(self, number: int, pace: float, which: str) -> None:
        self.number, self.pace, self.which = number, pace, which
        self.noticed = False


class _Job:
    """The job: ``at`` on the nominal clock, ``safe[level]`` the latest snapshot there."""

    def __init__(self, run: LongRun, streams: CounterStreams) -> None:
        self.run, self.streams = run, streams
        self.names = names_of(run)
        self.env = simpy.Environment()
        self.machines = RepairShop(self.env, run.spares)
        self.at, self.safe = 0.0, [0, 0]
        self.walk = PatternWalk(run.pattern, run.goal)
        self.exposed = ""  # to nothing, to "stop" while it loads, to "all" while it trains
        self.changed = self.env.event()
        self.spells: list[_Spell] = []
        self.missing = 0
        self.plan_at, self.plan_cause, self.plan_replaces, self.maintains = math.inf, -1, -1, False
        self.wrong_since, self.wrong_cause, self.verified_at, self.silent = math.inf, -1, math.inf, 0
        self.due: list[tuple[str, int]] = []
        self.fates = np.zeros((1, len(FATES), len(self.names)))
        self.parts = np.zeros((1, len(run.restart)))
        self.strikes = np.zeros(len(self.names), dtype=np.int64)
        self.outages = np.zeros(len(self.names), dtype=np.int64)
        self.weekly: list[float] = []
        self.log: list[Row] = []
        self.struck: list[tuple[int, int]] = []
        self.begun, self.doing = 0.0, ("", -1, "")
        self.job = self.env.process(self._job())
        for number, cause in enumerate(run.causes):
            bad = None if cause.bad is None else _Batch(cause.bad, run.machines)
            self.env.process(self._cause(number, cause, bad, extra=False))
            if bad is not None:
                self.env.process(self._cause(number, cause, bad, extra=True))
        self.env.process(self._weeks())
        if run.maintenance is not None:
            self.env.process(self._calendar(run.maintenance.every))

    def play(self) -> None:
        """To the end of the run."""
        if math.isfinite(self.run.until):
            self.env.run(until=self.env.any_of([self.job, self.env.timeout(self.run.until)]))
        else:
            self.env.run(until=self.job)
        self._paused(self._now_at())
        self._stop_doing()

    # --- chance ---------------------------------------------------------------------------------------------------

    def _uniform(self, name: str, what: str, occurrence: int, draws: int) -> Any:
        return self.streams.uniform(f"{name}.{what}", np.array([occurrence]), draws)

    def _draw(self, law: TimeSpec, name: str, what: str, occurrence: int) -> float:
        return float(law.quantile(self._uniform(name, what, occurrence, law.draws))[0])

    def _cause(self, number: int, cause: FailureMode, bad: _Batch | None, *, extra: bool) -> Doing:
        """A cause: uses up hazard while the job is exposed, strikes, and begins anew."""
        parts = None if cause.lives is None else _Aged(cause.lives, cause.name, self)
        name = f"{cause.name}{'.bad' if extra else ''}"
        occurrence = 0
        while True:
            left = -math.log(float(self._uniform(name, "hazard", occurrence, 1)[0, 0]))
            left = left if parts is None else parts.next(left)
            while left > 0:
                rate = 1.0 if parts is not None else cause.rate if not extra else bad.rate(cause)  # type: ignore[union-attr]
                if not rate or not (self.exposed == "all" or (self.exposed == "stop" and cause.stops)):
                    yield self.changed
                    continue
                begun = self.env.now
                strikes = self.env.timeout(left / rate)
                yield strikes | self.changed
                left = 0.0 if strikes.processed else left - rate * (self.env.now - begun)
            if parts is not None:
                parts.ended(occurrence)
            occurrence += 1
            self._strike(number, cause, bad, extra)
            yield self.env.timeout(0)

    def _strike(self, number: int, cause: FailureMode, bad: _Batch | None, extra: bool) -> None:
        occurrence = int(self.strikes[number])
        self.strikes[number] += 1
        if bad is not None and bad.hit(self._uniform(cause.name, "bad", occurrence, 3)[0], extra):
            self._tell()
        if cause.effect == "slow":
            self.env.process(self._spell(number, cause, occurrence))
            return
        if cause.effect == "alarm":
            self._plan(number)
        elif cause.effect == "silent":
            self._corrupt(number, cause, occurrence)
        else:
            self.struck.append((number, occurrence))
        self._wake()

    def _tell(self) -> None:
        """Who waits for a change of what the job is exposed to, or of a rate, goes on."""
        changed, self.changed = self.changed, self.env.event()
        changed.succeed()

    def _expose(self, to: str) -> None:
        if to != self.exposed:
            self.exposed = to
            self._tell()

    def _wake(self) -> None:
        """Training is looked at anew; what falls due while the job stands is dealt with when it goes on."""
        trains = self.exposed == "all" or (self.exposed and self.struck)
        if trains and self.job.is_alive and self.job is not self.env.active_process:
            self.job.interrupt()

    # --- things of the wall clock ---------------------------------------------------------------------------------

    def _spell(self, number: int, cause: FailureMode, occurrence: int) -> Doing:
        """A device is slow for a while, and may be noticed before that is over."""
        uniform = self._uniform(cause.name, "spell", occurrence, 2)[0]
        level = int(np.searchsorted(np.cumsum(cause.shares)[:-1], uniform[0], side="right"))
        device = min(int(uniform[1] * cause.devices), cause.devices - 1)
        column = int(cause.column(np.array([device]))[0]) if cause.column else 0
        assert cause.paces is not None
        spell = _Spell(number, float(cause.paces[level, column]), cause.label(device))
        self.spells.append(spell)
        self._wake()
        lasts = self._draw(cause.lasts, cause.name, "lasts", occurrence)
        if self.run.straggler != "leave":
            noticed = self._draw(self.run.noticed, cause.name, "noticed", occurrence)
            if noticed < lasts:
                yield self.env.timeout(noticed)
                if spell in self.spells:
                    spell.noticed = True
                    self.due.append(("noticed", number))
                    self._wake()
                lasts -= noticed
        yield self.env.timeout(lasts)
        if spell in self.spells:
            self.spells.remove(spell)
            self._wake()

    def _weeks(self) -> Doing:
        while True:
            yield self.env.timeout(self.run.week)
            self.weekly.append(self._kept(self._now_at()))

    def _calendar(self, every: float) -> Doing:
        while True:
            yield self.env.timeout(every)
            if (MAINTENANCE, -1) not in self.due:
                self.due.append((MAINTENANCE, -1))
            self._wake()

    def _corrupt(self, number: int, cause: FailureMode, occurrence: int) -> None:
        """Weights are wrong from here on, if they were not; a verification or somebody will find out."""
        if math.isfinite(self.wrong_since):
            return
        at = self._now_at()
        self.wrong_since, self.wrong_cause = at, number
        self.silent += 1
        if self.run.pattern.verify:
            verified = self.run.pattern.next_verified(np.array([at]))
            self.verified_at = float(verified[0])
            self.wrong_since = max(at, float(self.run.pattern.begun(verified)[0]))
        else:
            self.env.process(self._find(number, self.silent, self._draw(cause.lasts, cause.name, "lasts", occurrence)))

    def _find(self, number: int, silent: int, lasts: float) -> Doing:
        yield self.env.timeout(lasts)
        if math.isfinite(self.wrong_since) and silent == self.silent:
            self.due.append(("found", number))
            self._wake()

    def _watch(self) -> Doing:
        """A machine is back that the job has too few: it is taken in after the next snapshot."""
        back = self.machines.next_back()
        yield self.env.timeout(back - self.env.now)
        if self.missing and self.watch == back:
            self.due.append((REGROWTH, -1))
            self._wake()

    # --- the job --------------------------------------------------------------------------------------------------

    def _job(self) -> Doing:
        while self.at < self.run.end_at:
            stop = self._stopped()
            if stop is not None:
                number, target, planned = stop
                yield from self._outage(number, target, planned)
            else:
                yield from self._train()
        self._stop_doing()

    def _train(self) -> Doing:
        """Along the pattern until something happens."""
        pace, number, which = self._pace()
        self._resume = self.at, self.env.now, pace, number, which
        self._expose("all")
        target = max(self.at, min(self.plan_at, self.verified_at, self.run.end_at))
        try:
            yield self.env.timeout((target - self.at) * pace)
            self._paused(target)
        except simpy.Interrupt:
            self._paused(self._now_at())

    def _paused(self, at: float) -> None:
        """Training has come to there: what it did on the way, and what made it take longer."""
        if self._resume is None:
            return
        before, begun, pace, number, which = self._resume
        self._resume = None
        if number >= 0:
            self.fates[0, FATES.index("slow"), number] += self.env.now - begun - (at - before)
        cause = self.names[number] if number >= 0 else ""
        for what, start, end in self.walk.to(at):
            now = begun + (end - before) * pace if end < at else self.env.now
            self.log.append((begun + (start - before) * pace, now, what, cause, which, end))
        self.safe = [max(known, new) for known, new in zip(self.safe, self.walk.safe, strict=True)]
        self.at = at

    _resume: tuple[float, float, float, int, str] | None = None
    watch = math.inf

    def _now_at(self) -> float:
        """Where the job is on the nominal clock, in the middle of a phase too."""
        if self._resume is None:
            return self.at
        at, begun, pace, _, _ = self._resume
        return at + (self.env.now - begun) / pace

    def _pace(self) -> tuple[float, int, str]:
        """The pace of the worst that slows the job, whose it is, and which device."""
        pace, number, which = 1.0, -1, ""
        for spell in self.spells:
            if spell.pace > pace:
                pace, number, which = spell.pace, spell.number, spell.which
        short = (1.0, *self.run.short)[self.missing]
        return (short, len(self.names) - 1, "") if short > pace else (pace, number, which)

    def _stopped(self) -> tuple[int, int, bool] | None:
        """The outage that begins now: its cause, where training goes back to, and whether it was planned."""
        self.due.sort(key=lambda due: _ORDER.index(due[0]))
        while self.due:
            what, number = self.due.pop(0)
            if what == MAINTENANCE:
                self.maintains = True
                self._plan(self.names.index(MAINTENANCE))
            elif what == REGROWTH:
                self._plan(self.names.index(REGROWTH))
            elif what == "noticed" and not any(spell.noticed and spell.number == number for spell in self.spells):
                continue  # it is over
            elif what == "noticed" and self.run.straggler == "checkpoint":
                self._plan(number)
            elif what == "noticed":
                return number, self.safe[self.run.causes[number].survives], False
            else:
                return number, self._clean(), False
        if self.struck:
            return self._fallen(*self.struck.pop(0))
        if self.at >= self.verified_at:
            return self.wrong_cause, self.safe[MEMORY], False
        if self.at >= self.plan_at:
            return self.plan_cause, self.walk.snapshot, True
        return None

    def _fallen(self, number: int, occurrence: int) -> tuple[int, int, bool] | None:
        cause = self.run.causes[number]
        if cause.effect == "pause":
            self.pausing = self._draw(cause.lasts, cause.name, "lasts", occurrence)
            return -1 - number, 0, False
        return number, self.safe[cause.survives], False

    pausing = 0.0

    def _clean(self) -> int:
        """The latest snapshot on storage from before the weights were wrong, if it is still kept."""
        cycles = self.run.pattern.cycles
        before = int(self.run.pattern.taken(np.array([self.wrong_since]))[0]) // cycles * cycles
        return before if before >= self.safe[STORAGE] - (self.run.pattern.keep - 1) * cycles else 0

    def _plan(self, number: int) -> None:
        """An outage after the next snapshot; what is planned already is done in the same."""
        if math.isinf(self.plan_at):
            self.plan_cause = number
            self.plan_at = float(self.run.pattern.next_end(np.array([self._now_at()]))[0])
        if number < len(self.run.causes):
            self.plan_replaces = number

    # --- outages --------------------------------------------------------------------------------------------------

    def _spend(self, seconds: float, fate: str, number: int, which: str = "") -> Doing:
        """Time passes without training."""
        if seconds > 0:
            self._do(fate, number, which)
            yield self.env.timeout(seconds)
            self._stop_doing()

    def _outage(self, number: int, target: int, planned: bool) -> Doing:
        """The job stops; it goes on from the target, a snapshot."""
        self._expose("")
        paused = 0.0
        if number < 0:
            number = -1 - number
            if self.pausing <= self.run.timeout:
                yield from self._spend(self.pausing, "pause", number)
                return
            target = self.safe[self.run.causes[number].survives]
            paused = self.run.timeout
        name, occurrence = self.names[number], int(self.outages[number])
        self.outages[number] += 1
        level = self._go_back(number, target, planned)
        cause = self.run.causes[number] if number < len(self.run.causes) else None
        which = self._which(cause, occurrence)
        yield from self._spend(paused, "pause", number, which)
        detected = 0.0
        if cause is not None and not planned:
            detected = self._draw(cause.detect, name, "detect", occurrence)
            yield from self._spend(detected, "detection", number, which)
        restart = self.run.restart
        seconds = [self._draw(part.law(level), name, f"restart.{part.name}", occurrence) for part in restart]
        if self.run.wrong and not planned:
            uniform = float(self._uniform(name, "wrong", occurrence, 1)[0, 0])
            again = math.floor(math.log(uniform) / math.log(self.run.wrong))
            yield from self._spend(again * (detected + sum(seconds)), "diagnosis", number, which)
        yield from self._replace(number, occurrence, planned, which)
        yield from self._restart(number, seconds)

    def _which(self, cause: FailureMode | None, occurrence: int) -> str:
        """The named part that has failed."""
        if cause is None:
            return ""
        uniform = float(self._uniform(cause.name, "where", occurrence, 1)[0, 0])
        return cause.label(min(int(uniform * cause.devices), cause.devices - 1))

    def _go_back(self, number: int, target: int, planned: bool) -> int:
        back = self.walk.back(target)
        self.fates[0, FATES.index("lost"), number] += self.at - back
        self._lose(self.at - back, number)
        self.at = back
        cause = self.run.causes[number] if number < len(self.run.causes) else None
        level = MEMORY if planned or cause is None or cause.survives == MEMORY else STORAGE
        if self.run.pattern.memory is None:
            level = STORAGE
        self.safe[MEMORY] = target
        self.safe[STORAGE] = target if planned or level == STORAGE else min(target, self.safe[STORAGE])
        if self.wrong_since >= back:
            self.wrong_since = self.verified_at = math.inf
            self.due = [due for due in self.due if due[0] != "found"]
        return level

    def _lose(self, seconds: float, number: int) -> None:
        self._stop_doing()
        if seconds > 0:
            self.log.append((self.env.now, self.env.now, "lost", self.names[number], "", self.at))

    def _replace(self, number: int, occurrence: int, planned: bool, which: str) -> Doing:
        """RepairShop leave, spares take their places, planned work is done."""
        leaves = self.plan_replaces if planned else number
        cause = self.run.causes[leaves] if 0 <= leaves < len(self.run.causes) else None
        if cause is not None and cause.repair is not None and not self.run.spares.unlimited:
            ready = self.machines.ready(cause.machines)
            for machine in range(cause.machines):
                self.machines.send(self._draw(cause.repair, cause.name, f"repair.{machine}", occurrence))
            yield from self._spend(ready, "waiting", number, which)
        if not self.run.spares.unlimited:
            while self.machines.out > self.run.spares.count + len(self.run.short):
                yield from self._spend(self.machines.next_back() - self.env.now, "waiting", number, which)
                yield self.env.timeout(0)
            self.missing = max(0, self.machines.out - self.run.spares.count)
            self.due = [due for due in self.due if due[0] != REGROWTH]
            self.watch = self.machines.next_back() if self.missing else math.inf
            if self.missing:
                self.env.process(self._watch())
        if planned and self.maintains:
            assert self.run.maintenance is not None
            yield from self._spend(self.run.maintenance.lasts, "maintenance", number)
        if planned:
            self.maintains, self.plan_at, self.plan_replaces = False, math.inf, -1
        elif math.isfinite(self.plan_at):
            self.plan_at = float(self.run.pattern.next_end(np.array([self.at]))[0])
        self.spells = [spell for spell in self.spells if not spell.noticed]
        self.due = [due for due in self.due if due[0] != "noticed"]

    def _restart(self, number: int, seconds: list[float]) -> Doing:
        """The parts of a restart; where a cause strikes in an exposed one, it ends there."""
        for place, part in enumerate(self.run.restart):
            self._expose("stop" if part.exposed else "")
            try:
                yield from self._spend(seconds[place], "restart", number, part.name)
            except simpy.Interrupt:
                pass
            self._stop_doing()
            self._expose("")
            if self.struck:
                return

    # --- the log --------------------------------------------------------------------------------------------------

    def _do(self, what: str, number: int, which: str = "") -> None:
        """The job does something else now."""
        self._stop_doing()
        self.begun, self.doing = self.env.now, (what, number, which)

    def _stop_doing(self) -> None:
        what, number, which = self.doing
        self.doing = ("", -1, "")
        if not what or self.env.now <= self.begun:
            return
        if what in FATES:
            self.fates[0, FATES.index(what), number] += self.env.now - self.begun
        if what == "restart":
            self.parts[0, [part.name for part in self.run.restart].index(which)] += self.env.now - self.begun
        cause = self.names[number] if number >= 0 else ""
        self.log.append((self.begun, self.env.now, what, cause, which, self._now_at()))

    def _kept(self, at: float) -> float:
        steps = self.run.pattern.spent("steps", np.array([min(at, self.run.goal_at)]))
        return min(float(steps[0]), self.run.goal)

    def outcomes(self) -> Outcomes:
        """The run, once it has ended, as a table of one."""
        at = np.array([self._now_at()])
        return Outcomes(
            self.run,
            np.array([self.env.now]),
            at,
            np.array([self._kept(float(at[0]))]),
            self.fates,
            self.parts,
            self.strikes[None, : len(self.run.causes)],
            self.outages[None],
            np.array([self.weekly]).reshape(1, -1),
        )


class _Batch:
    """The bad machines of a cause that are left."""

    def __init__(self, batch: Bad, machines: int) -> None:
        self.batch, self.machines = batch, machines
        self.times = [0] * batch.machines

    def rate(self, cause: FailureMode) -> float:
        """How often they fail beyond what others do, 1/s."""
        return len(self.times) * cause.rate / self.machines * (self.batch.times - 1)

    def hit(self, uniform: Any, extra: bool) -> bool:
        """A strike may hit one of them, which a repair may cure."""
        bad = len(self.times)
        if not bad or not (extra or uniform[0] < bad / self.machines):
            return False
        which = min(int(uniform[1] * bad), bad - 1)
        self.times[which] += 1
        if uniform[2] < self.batch.cured or (self.batch.retire and self.times[which] >= self.batch.retire):
            self.times[which] = self.times[-1]
            self.times.pop()
            return True
        return False


class _Aged:
    """The lives of a cause's parts: those there from the begin in the order of their ends, and the new ones."""

    def __init__(self, lives: Lives, name: str, job: _Job) -> None:
        self.lives, self.name, self.job = lives, name, job
        self.at, self.failed = 0.0, 0
        self.first: float | None = None
        self.young: list[float] = []

    def next(self, unit: float) -> float:
        """Exposed seconds to the next end."""
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
        uniform = self.job._uniform(self.name, "life", occurrence, 1)
        self.young.append(self.at + float(self.lives.law.quantile(uniform)[0]))
