"""A few runs that nothing but stops happens to: each by itself, in floats, where arrays over runs are too short to pay.

An accelerator of ``runs``, which it equals to the bit: the same sums in the same order.  Its scope is ``fits``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from simcluster.longrun.replicas.state import FATE, RunsState
from simcluster.longrun.run import FailureMode, LongRun
from simcluster.longrun.streams import KeptStream

FEW = 100
"""Runs: with more of them arrays are faster."""
_MOST = 1e6
"""Strikes of all runs together, whose draws are kept: 100 MB."""


def fits(run: LongRun, count: int) -> bool:
    """Are these few enough, and is all that happens to them a stop, after which nothing is drawn but repairs?"""
    pattern, spares = run.pattern, run.spares
    goes_on = run.short or run.wrong or run.maintenance or any(part.exposed for part in run.restart)
    drawn = any(part.storage.draws for part in run.restart)
    simple = pattern.memory is None and pattern.cycles == 1 and math.isfinite(run.goal) and math.isinf(run.until)
    ready = not any(spares.ready[kind] for kind, many in enumerate((spares.hot, spares.warm, spares.cold)) if many)
    few = count <= FEW and count * run.goal_at * sum(_rate(run, cause) for cause in run.causes) <= _MOST
    return few and simple and ready and not goes_on and not drawn and all(map(_fits, run.causes))


def _rate(run: LongRun, cause: FailureMode) -> float:
    """How often it strikes while its bad machines are all there, 1/s."""
    bad = cause.bad
    return cause.rate * (1 + (bad.times - 1) * bad.machines / run.machines if bad else 1.0)


def _fits(cause: FailureMode) -> bool:
    plain = cause.stops and cause.lives is None and cause.struck is None and not cause.detect.draws
    return plain and cause.rate > 0 and (cause.bad is None or not cause.bad.retire)


def play_few(state: RunsState) -> bool:
    """Plays all runs to their end; False, with the state half played, where one might wait for a machine."""
    case = _Case(state)
    weeks = []
    for place in range(state.count):
        run = _FloatRun(case, place)
        run.play()
        if not case.never_waits(run):
            return False
        case.account(run)
        weeks.append(run.weeks)
    _end_weeks(state, weeks)
    return True


class _Case:
    """What is the same for all runs: seconds, and the streams of what is drawn."""

    def __init__(self, state: RunsState) -> None:
        self.state, self.run, streams = state, state.run, state.streams
        causes = state.run.causes
        self.bad = [number for number, cause in enumerate(causes) if cause.bad is not None]
        self.cause = [*range(len(causes)), *self.bad]
        names = [cause.name for cause in causes] + [f"{causes[number].name}.bad" for number in self.bad]
        self.hazards = [KeptStream(streams, f"{name}.hazard", 1) for name in names]
        self.chances = {number: KeptStream(streams, f"{causes[number].name}.bad", 3) for number in self.bad}
        self.repairs = {
            (number, machine): KeptStream(streams, f"{cause.name}.repair.{machine}", cause.repair.draws)
            for number, cause in enumerate(causes)
            if cause.repair is not None and cause.repair.draws
            for machine in range(cause.machines)
        }
        self.detect = [cause.detect.mean for cause in causes]
        self.restart = [part.storage.mean for part in state.run.restart]
        spares = state.run.spares
        self.easy = spares.count if spares.crews is None else min(spares.count, spares.crews)
        """While no more machines are out nobody waits."""

    def never_waits(self, run: _FloatRun) -> bool:
        """Are there spares, and crews, for all machines that are ever out at once?"""
        if self.run.spares.unlimited:
            return True
        sent, back = [], []
        for number, cause in enumerate(self.run.causes):
            at = np.array(run.sent[number])
            for machine in range(cause.machines if cause.repair is not None else 0):
                ahead = self.repairs.get((number, machine))
                assert cause.repair is not None
                numbers = ahead.first(run.place, len(at)) if ahead else np.empty((len(at), 0))
                sent.append(at)
                back.append(at + cause.repair.quantile(numbers))
        if not sent:
            return True
        at, returns = np.sort(np.concatenate(sent)), np.sort(np.concatenate(back))
        out = np.searchsorted(at, at, side="right") - np.searchsorted(returns, at)
        return bool(len(out) == 0 or out.max() <= self.easy)

    def account(self, run: _FloatRun) -> None:
        """What a run has come to."""
        state, place = self.state, run.place
        state.now[place], state.at[place] = run.now, run.at
        state.alive[place] = False
        for number, sent in enumerate(run.sent):
            mine, count = state.place(np.array(place), number), len(sent)
            state.strikes[mine] = state.outages[mine] = count
            state.fates[FATE["lost"]][mine] = run.lost[number]
            state.fates[FATE["detection"]][mine] = _added(self.detect[number : number + 1], count)
            state.fates[FATE["restart"]][mine] = _added(self.restart, count)
        for number, seconds in enumerate(self.restart):
            state.parts[number][place] = _added([seconds], sum(map(len, run.sent)))


def _added(seconds: list[float], times: int) -> float:
    """The sum of all of them, one after the other, so many times."""
    return float(np.add.accumulate(np.tile(seconds, times))[-1]) if seconds and times else 0.0


def _end_weeks(state: RunsState, runs: list[list[float]]) -> None:
    """Steps kept at the ends of weeks, where each run was then."""
    at = np.full((max(map(len, runs)), len(runs)), np.nan)
    for place, weeks in enumerate(runs):
        at[: len(weeks), place] = weeks
    steps, known = np.full(at.shape, np.nan), ~np.isnan(at)
    steps[known] = state.kept_at(at[known])
    state.weekly = list(steps)


class _FloatRun:
    """One run: ``now`` on the wall clock and ``at`` on the nominal one at its end; ``sent[cause]`` are when (wall)
    outages of a cause had been detected, ``lost[cause]`` seconds, ``weeks`` where the run was when each ended.
    """

    def __init__(self, case: _Case, place: int) -> None:
        self.case, self.place = case, place
        self.now, self.at = 0.0, 0.0
        causes = case.run.causes
        self.sent: list[list[float]] = [[] for _ in causes]
        self.lost = [0.0] * len(causes)
        self.weeks: list[float] = []
        self._batches = {
            number: _BadLeft(case, number, place, len(causes) + column) for column, number in enumerate(case.bad)
        }
        self._gaps = [_gaps(case.hazards[column], place, cause.rate) for column, cause in enumerate(causes)]
        self._gaps += [batch.gaps() for batch in self._batches.values()]

    def play(self) -> None:
        """To its end: from strike to strike, and over the ends of weeks between them."""
        case, run, pattern = self.case, self.case.run, self.case.run.pattern
        end, week, clock, now, at, held = run.end_at, run.week, 0.0, 0.0, 0.0, 0.0
        period, begun, last = pattern.period, pattern.phases[0][0][1], int(run.goal // pattern.steps)
        of, gaps, batches, restart, detect = case.cause, self._gaps, self._batches, case.restart, case.detect
        when = [next(each) for each in gaps]
        while True:
            strikes = min(when, default=math.inf)
            passed, turn = strikes - clock, max(0.0, week - now)
            if passed >= end - at or passed >= turn:
                passed = min(passed, end - at)
                over = passed < turn
                passed = min(passed, turn)
                now, clock, at = now + passed, clock + passed, end if over else at + passed
                if over:
                    break
                now = max(now, week)
                while now >= week:
                    self.weeks.append(at)
                    week += run.week
                continue
            now, clock, at = now + passed, clock + passed, at + passed
            column = when.index(strikes)
            cause = of[column]
            when[column] = clock + next(gaps[column])
            if cause in batches:
                batches[cause].hit(column, when, clock)
            whole = math.floor(at / period)
            rest = at - whole * period
            if rest < 0:  # rounding
                whole, rest = whole - 1, rest + period
            held = max(min(max(0, whole - (rest < begun)), last) * period, held)
            self.lost[cause] += at - held
            at = held
            now += detect[cause]
            self.sent[cause].append(now)
            for seconds in restart:
                now += seconds
        self.now, self.at = now, at


def _gaps(ahead: KeptStream, place: int, rate: float) -> Iterator[float]:
    """Exposed seconds from strike to strike."""
    for block in itertools.count():
        yield from (-np.log(ahead.of(place, block)[:, 0]) / rate).tolist()


class _BadLeft:
    """The bad machines of a cause that a run has ``left``, which strike in a ``column`` of their own."""

    def __init__(self, case: _Case, number: int, place: int, column: int) -> None:
        batch = case.run.causes[number].bad
        assert batch is not None
        self.cured, self.machines, self.left, self.column = batch.cured, case.run.machines, batch.machines, column
        self.each = case.run.causes[number].rate / self.machines * (batch.times - 1)
        self._units = _gaps(case.hazards[column], place, 1.0)
        chances = case.chances[number]
        self._chances = itertools.chain.from_iterable(chances.of(place, n).tolist() for n in itertools.count())

    def gaps(self) -> Iterator[float]:
        """Exposed seconds from strike to strike, at the rate of those that are left then."""
        for unit in self._units:
            rate = self.left * self.each
            yield unit / rate if rate else math.inf

    def hit(self, column: int, when: list[float], clock: float) -> None:
        """A strike may have hit one of them, which may be cured: then they strike later."""
        left = self.left
        if not left:
            return
        which, _, cures = next(self._chances)
        if (column == self.column or which < left / self.machines) and cures < self.cured:
            self.left = left - 1
            slower = left / self.left if self.left else math.inf
            when[self.column] = clock + (when[self.column] - clock) * slower
