"""The loop of many runs at once.

Every pass takes each run to the next thing that happens to it, over as many steps and checkpoints as lie before that;
an outage is one pass, however many parts it has.
"""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.longrun.ending import check_end
from simcluster.longrun.outcome import MAINTENANCE, REGROWTH, GatheredOutcomes, Outcomes
from simcluster.longrun.pattern import MEMORY
from simcluster.longrun.replicas.few import fits, play_few
from simcluster.longrun.replicas.outages import OutagesOfRuns
from simcluster.longrun.replicas.state import FATE, RunsState, Standing
from simcluster.longrun.run import LongRun
from simcluster.longrun.streams import CounterStreams

_TOGETHER = 4000
"""Runs in one pass: enough that Python does not matter, few enough for the memory that their draws take."""


def play_replicas(run: LongRun, seed: int, count: int, first: int = 0) -> Outcomes:
    """The runs ``first`` to ``first + count`` of a seed; InputError for ones that would hardly ever end."""
    check_end(run)
    if count <= _TOGETHER:
        return _together(run, seed, count, first)
    gathered, each = GatheredOutcomes(run, count), -(-count // -(-count // _TOGETHER))
    for begin in range(0, count, each):
        gathered.add(begin, _together(run, seed, min(each, count - begin), first + begin).columns())
    return gathered.outcomes()


def _together(run: LongRun, seed: int, count: int, first: int) -> Outcomes:
    if fits(run, count) and play_few(state := RunsState(run, CounterStreams(seed, first, count))):
        return state.outcomes()
    state = RunsState(run, CounterStreams(seed, first, count))
    _Runs(state).play()
    return state.outcomes()


class _Runs:
    """Runs, and what can happen to them."""

    def __init__(self, state: RunsState) -> None:
        self.state, self.run = state, state.run
        self.outages = OutagesOfRuns(state)
        self.hazards, self.planned = self.outages.hazards, self.outages.planned
        self.spells, self.silent = self.outages.spells, self.outages.silent
        self.paced = state.laws.slows or bool(state.run.short)
        self.week = np.full(state.count, state.run.week)
        self.turn = np.minimum(self.week, state.run.until)
        """The next thing of the wall clock that every run has."""
        self._end = np.full(state.count, state.end_at)

    def play(self) -> None:
        """To the end of all."""
        state = self.state
        while alive := np.count_nonzero(state.alive):  # of a few truths it is five times as fast as any()
            nominal, instant = self._nominal(), self._instant()
            reached = np.maximum(0.0, nominal - state.at)
            if self.paced:
                reached *= self.spells.worst
            clock = np.maximum(0.0, instant - state.now)
            left = np.minimum(reached, clock)
            passed = np.minimum(self.hazards.until(), left)
            if alive < state.count:
                passed = np.where(state.alive, passed, 0.0)
            at = state.at + (passed / self.spells.worst if self.paced else passed)
            if np.count_nonzero(passed < left) == state.count:  # in every run something strikes first
                self._advance(passed, at)
                struck, number = self._on_strike(state.everyone if alive == state.count else state.alive.nonzero()[0])
                self._stop(struck[:0], at[:0], struck, number)
                continue
            by_clock: Bools = state.alive & (clock <= passed)
            by_work: Bools = state.alive & ~by_clock & (reached <= passed)
            self._advance(passed, np.where(by_work, nominal, at))
            if np.count_nonzero(by_clock):
                state.now = np.where(by_clock, np.maximum(state.now, instant), state.now)
                self._on_clock(by_clock.nonzero()[0])
            planned, target = self._on_work(by_work.nonzero()[0])
            struck, number = self._on_strike((state.alive & ~by_clock & ~by_work).nonzero()[0])
            self._stop(planned, target, struck, number)

    def _nominal(self) -> Floats:
        """The next thing that happens at a time of the nominal clock."""
        nominal = np.minimum(self.planned.at, self.state.end_at) if self.state.laws.plans else self._end
        return np.asarray(np.minimum(nominal, self.silent.verified_at) if self.state.laws.silent else nominal)

    def _instant(self) -> Floats:
        """The next thing that happens at a time of the wall clock."""
        found: Floats = self.turn
        for more, is_there in (
            (self.planned.due, self.run.maintenance is not None),
            (self.planned.back_at, bool(self.run.short)),
            (self.silent.found_at, self.state.laws.silent),
            (self.spells.next, self.state.laws.slows),
        ):
            if is_there:
                found = np.minimum(found, more)
        return found

    def _advance(self, passed: Floats, at: Floats) -> None:
        """They train for so long, and come to there."""
        state = self.state
        if self.paced:
            slowed = passed - (at - state.at)
            slow = ((slowed > 0) & (self.spells.by >= 0)).nonzero()[0]
            state.fates[FATE["slow"]][state.place(slow, self.spells.by[slow])] += slowed[slow]
        state.now = state.now + passed
        state.at = at
        self.hazards.train(passed)

    def _on_clock(self, who: Ints) -> None:
        """Things of the wall clock, one kind after the other."""
        state = self.state
        while len(weeks := who[state.now[who] >= self.week[who]]):
            state.end_week(weeks, np.rint(self.week[weeks] / self.run.week).astype(np.int64) - 1)
            self.week[weeks] += self.run.week
            self.turn = np.minimum(self.week, self.run.until)
        state.alive[who[state.now[who] >= self.run.until]] = False
        who = who[state.alive[who]]
        if state.laws.slows:
            self.spells.over(who)
        if self.run.maintenance is not None:
            self.planned.fall_due(who, state.names.index(MAINTENANCE))
        if self.run.short:
            back = who[state.now[who] >= self.planned.back_at[who]]
            self.planned.back_at[back] = np.inf
            self.planned.plan(back, state.names.index(REGROWTH))
        if state.laws.slows and self.run.straggler != "leave":
            self._notice(*self.spells.notice(who))
        if state.laws.silent:
            found = who[state.now[who] >= self.silent.found_at[who]]
            self.outages.begin(found, self.silent.cause[found], self.silent.clean(found))

    def _notice(self, who: Ints, cause: Ints) -> None:
        """A slow device has been found: its machine is replaced, at once or after the next snapshot."""
        if self.run.straggler == "replace":
            self.outages.begin(who, cause, self.state.survivor(who, cause))
            return
        for number in np.unique(cause):
            self.planned.plan(who[cause == number], int(number))

    def _on_work(self, who: Ints) -> tuple[Ints, Floats]:
        """Things of the nominal clock: the end, a verification that fails; returns what is planned, and where it is."""
        at = self.state.at[who]
        if not len(who):
            return who, at
        over = at >= self.state.end_at
        self.state.alive[who[over]] = False
        who, at = who[~over], at[~over]
        if self.state.laws.silent:
            failed = at >= self.silent.verified_at[who]
            found, who, at = who[failed], who[~failed], at[~failed]
            self.outages.begin(found, self.silent.cause[found], self.state.target(found, MEMORY))
        return who, at

    def _on_strike(self, who: Ints) -> tuple[Ints, Ints]:
        """A cause strikes; returns the runs that it stops, and the causes."""
        state = self.state
        if not len(who):
            return who, who
        column = self.hazards.strikes(who)
        number = self.hazards.cause[column]
        place = state.place(who, number)
        for cause in self.hazards.with_bad:
            chosen = self.hazards.may_hit(who, number, cause)
            if len(chosen):
                those = who[chosen]
                uniform = state.uniform(self.run.causes[cause].name, "bad", state.strikes[place[chosen]], 3, those)
                retired = self.hazards.on_bad(those, cause, column[chosen], uniform, state.now[those])
                if len(retired):
                    self.outages.retired[state.place(retired, cause)] = True
        self.hazards.look(who, column)
        state.strikes[place] += 1
        if state.laws.all_stop:
            return who, number
        stops = state.laws.stops[number]
        if np.count_nonzero(stops) == len(stops):
            return who, number
        for each in np.unique(number[~stops]):
            self._disturb(who[number == each], int(each))
        return who[stops], number[stops]

    def _disturb(self, who: Ints, number: int) -> None:
        """What does not stop the job at once: the effect of a cause."""
        effect = self.run.causes[number].effect
        occurrence = self.state.strikes[self.state.place(who, number)] - 1
        if effect == "slow":
            self.spells.begin(who, number, occurrence)
        elif effect == "silent":
            self.silent.corrupt(who, number, occurrence)
        elif effect == "alarm":
            self.planned.plan(who, number)
        else:
            self._pause(who, number, occurrence)

    def _pause(self, who: Ints, number: int, occurrence: Ints) -> None:
        """The job stands for a while; where that is longer than the timeout, it is a stop."""
        cause = self.run.causes[number]
        lasts = self.state.lasts(cause, occurrence, who)
        job = Standing(self.state, who, np.full(len(who), number))
        job.spend(np.minimum(lasts, self.run.timeout), "pause")
        job.go_on()
        stops = (lasts > self.run.timeout) & (job.now < self.run.until)
        who, numbers = who[stops], job.number[stops]
        self.outages.begin(who, numbers, self.state.survivor(who, numbers))

    def _stop(self, planned: Ints, target: Floats, struck: Ints, number: Ints) -> None:
        """The outages of a pass: those that were planned, and those of what has struck."""
        back = self.state.survivor(struck, number) if len(struck) else np.empty(0)
        if not len(planned):
            self.outages.begin(struck, number, back)
            return
        who = np.concatenate([planned, struck])
        order = who.argsort()
        causes = np.concatenate([self.planned.cause[planned], number])[order]
        self.outages.begin(who[order], causes, np.concatenate([target, back])[order], order < len(planned))
