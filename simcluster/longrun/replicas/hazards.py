"""What will strike next, and when, in many runs at once.

A cause strikes when the hazard that its occurrence was given (exponential, mean 1) has been used up, at its rate, while
the job is exposed.  Rates change only where a bad machine is cured, so that each column strikes at a known second of
exposure, and only what has struck is looked at anew.  Policies that expose the job to the same seconds see the same
failures.  Causes with lives have theirs from the ages of their parts (``lives``).
"""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.longrun.lemons import RETIRE, FailureTimes, remembered
from simcluster.longrun.replicas.state import RunsState
from simcluster.longrun.run import Bad, FailureMode
from simcluster.longrun.streams import CounterStreams, StreamFamily

LOADED, TRAINED = 0, 1
"""Exposure to what stops a job, which goes on while it loads, and to what needs training to strike."""
_NEVER = 1e-300
"""1/s, so rare that it is never."""


class Hazards:
    """A column for every cause, then one for what the bad batch of a cause has beyond the others'.

    ``clock[kind]`` is each run's exposure so far (s), ``when[run, column]`` that at which a column strikes,
    ``next[kind]`` the earliest of a kind, which is ``column[kind]``.
    """

    def __init__(self, state: RunsState) -> None:
        self.causes, self.machines = state.run.causes, state.run.machines
        self.count = count = state.count
        bad = {number: cause.bad for number, cause in enumerate(self.causes) if cause.bad is not None}
        self.cause = np.array([*range(len(self.causes)), *bad], dtype=np.int64)
        self.width = len(self.cause)
        kinds = [LOADED if self.causes[number].stops else TRAINED for number in self.cause]
        self.kind = np.array(kinds, dtype=np.int64)
        self._of = [np.flatnonzero(self.kind == kind) for kind in (LOADED, TRAINED)]
        names = [
            f"{self.causes[number].name}{'.bad' if column >= len(self.causes) else ''}.hazard"
            for column, number in enumerate(self.cause)
        ]
        self.streams = StreamFamily(state.streams, names, 1)
        self._batches = {number: BadBatches(batch, self, number, count) for number, batch in bad.items()}
        self.with_bad = list(bad)
        columns = list(enumerate(self.causes))
        self._lives = {at: PartLives(cause, state.streams) for at, cause in columns if cause.lives is not None}
        self._struck = {at: cause.struck for at, cause in columns if cause.struck is not None}
        rates = [self.causes[number].rate for number in self.cause]
        self.rate = np.array([rate if rate > _NEVER else 0.0 for rate in rates])
        self.seen = np.zeros((count, self.width), dtype=np.int64)
        self.clock = np.zeros((2, count))
        self.share = np.ones(count) if state.run.running else None
        """Of the rates, those of what runs: the clock's pace."""
        self.when = np.full((count, self.width), np.inf)
        self.next = np.full((2, count), np.inf)
        self.column = np.zeros((2, count), dtype=np.int64)
        self.everyone = state.everyone
        self._rows = self.everyone * self.width
        for column in range(self.width):
            self._give(self.everyone, self._rows + column, np.full(count, column))
        for kind in (LOADED, TRAINED):
            self._look(self.everyone, kind)

    def _give(self, who: Ints, place: Ints, column: Ints) -> None:
        """The hazard of the next occurrence of these columns, one in each of these runs; ``place`` is that in rows."""
        seen = self.seen.reshape(-1)[place]
        units = -np.log(self.streams.at(column, who, seen)[:, 0])
        rate = self.rate[column]
        for batch in self._batches.values():
            mine = (column == batch.column).nonzero()[0]
            if len(mine):
                rate[mine] = batch.rate(who[mine])
        with np.errstate(divide="ignore"):
            seconds = units / rate
        for each, lives in self._lives.items():
            mine = (column == each).nonzero()[0]
            if len(mine):
                seconds[mine] = lives.next(who[mine], units[mine])
        for each, struck in self._struck.items():
            mine = (column == each).nonzero()[0]
            if len(mine):
                seconds[mine] = [struck.gap(int(occurrence)) for occurrence in seen[mine]]
        clock = self.clock[self.kind[column], who] if len(self._of[TRAINED]) else self._loaded(who)
        self.when.reshape(-1)[place] = clock + seconds

    def _loaded(self, who: Ints) -> Floats:
        """The clock of what goes on while a job loads."""
        clock: Floats = self.clock[LOADED]
        return clock if len(who) == self.count else clock[who]

    def _look(self, who: Ints, kind: int) -> None:
        """Which column of a kind is next there."""
        columns = self._of[kind]
        if not len(columns) or not len(who):
            return
        rows = self.when if len(who) == self.count else self.when.take(who, axis=0)
        if len(columns) < self.width:
            rows = rows[:, columns]
        column = rows.argmin(axis=1)
        self.next[kind][who] = rows[self.everyone[: len(who)], column]
        self.column[kind][who] = columns[column] if len(columns) < self.width else column

    def until(self) -> Floats:
        """Seconds of training until something strikes."""
        left = self.next[LOADED] - self.clock[LOADED]
        if len(self._of[TRAINED]):
            left = np.minimum(left, self.next[TRAINED] - self.clock[TRAINED])
        return np.asarray(np.maximum(0.0, left if self.share is None else left / self.share))

    def train(self, seconds: Floats) -> None:
        """All have trained for so long."""
        self.clock += seconds if self.share is None else seconds * self.share

    def strikes(self, who: Ints) -> Ints:
        """The columns that strike there, now; what comes next is drawn."""
        column: Ints = self.column[LOADED].copy() if len(who) == self.count else self.column[LOADED][who]
        if len(self._of[TRAINED]):
            load, train = (self.next[kind][who] - self.clock[kind][who] for kind in (LOADED, TRAINED))
            column = np.where(load <= train, column, self.column[TRAINED][who])
        for each, lives in self._lives.items():
            ended = who[column == each]
            if len(ended):
                lives.ended(ended, self.seen[ended, each])
        place = column + (self._rows if len(who) == self.count else who * self.width)
        self.seen.reshape(-1)[place] += 1
        self._give(who, place, column)
        return column

    def look(self, who: Ints, column: Ints) -> None:
        """Which is next where these columns have struck."""
        if len(self._of[TRAINED]):
            kinds = self.kind[column]
            self._look(who[kinds == LOADED], LOADED)
            self._look(who[kinds == TRAINED], TRAINED)
        else:
            self._look(who, LOADED)

    def left_to_load(self, who: Ints) -> Floats:
        """Seconds of loading until something strikes."""
        left = np.asarray(np.maximum(0.0, self.next[LOADED][who] - self.clock[LOADED][who]))
        return left if self.share is None else left / self.share[who]

    def load(self, who: Ints, seconds: Floats) -> None:
        """They have been exposed while they loaded."""
        self.clock[LOADED][who] += seconds if self.share is None else seconds * self.share[who]

    def may_hit(self, who: Ints, number: Ints, cause: int) -> Ints:
        """The places of those whose strike is of a cause, with bad machines left that it could hit."""
        batch = self._batches[cause]
        if not batch.anywhere:
            return who[:0]
        return np.asarray(((number == cause) & (batch.left[who] > 0)).nonzero()[0])

    def on_bad(self, who: Ints, cause: int, column: Ints, uniform: Floats, now: Floats) -> Ints:
        """Strikes of a cause may have hit machines of its bad batch, which may be gone then; ``uniform`` is (runs, 3).

        Returns the runs in which one is retired.
        """
        batch = self._batches[cause]
        bad = batch.left[who]
        hit: Ints = ((column == batch.column) | (uniform[:, 0] < bad / self.machines)).nonzero()[0]
        if not len(hit):
            return hit
        who = who[hit]
        retired = batch.hit(who, uniform[hit], now[hit])
        mine, clock = self.when[:, batch.column], self.clock[int(self.kind[batch.column])][who]
        with np.errstate(divide="ignore", invalid="ignore"):
            slower = bad[hit] / batch.left[who]
            later = np.where(np.isinf(slower), np.inf, clock + (mine[who] - clock) * slower)
        mine[who] = np.where(slower == 1.0, mine[who], later)
        return retired


class BadBatches:
    """The bad machines of a cause that are ``left`` in many runs (``anywhere``: in all), how often each has failed."""

    def __init__(self, batch: Bad, hazards: Hazards, number: int, count: int) -> None:
        self.batch, self.machines = batch, hazards.machines
        self.column = len(hazards.causes) + int(np.flatnonzero(hazards.cause[len(hazards.causes) :] == number)[0])
        self.each = hazards.causes[number].rate / hazards.machines * (batch.times - 1)
        self.left, self.anywhere = np.full(count, batch.machines), batch.machines * count
        self.failed = FailureTimes(remembered(batch.rule, batch.retire), batch.machines, count)

    def rate(self, who: Ints) -> Floats:
        """How often they fail beyond what others do, 1/s."""
        return np.asarray(self.left[who] * self.each)

    def hit(self, who: Ints, uniform: Floats, now: Floats) -> Ints:
        """One is hit in each of these runs, which then may be gone; returns the runs in which one is retired."""
        bad = self.left[who]
        which = np.minimum((uniform[:, 1] * bad).astype(np.int64), bad - 1)
        gone: Bools = uniform[:, 2] < self.batch.cured
        chosen = who[:0]
        if self.batch.retire:
            ages = self.failed.add(which, who, now)
            retired = RETIRE[self.batch.rule](ages, self.batch.retire, self.batch.window)
            chosen, gone = who[retired], gone | retired
        who, bad, which = who[gone], bad[gone], which[gone]
        self.failed.move(which, bad - 1, who)
        self.left[who] = bad - 1
        self.anywhere -= len(who)
        return chosen


class PartLives:
    """The lives of a cause's parts in many runs: those there from the begin, and the new ones in their places."""

    def __init__(self, cause: FailureMode, streams: CounterStreams) -> None:
        assert cause.lives is not None
        self.lives, self.name, self.streams = cause.lives, cause.name, streams
        self.failed = np.zeros(streams.count)
        self.at = np.zeros(streams.count)  # exposed seconds at the last end
        self.first = np.full(streams.count, np.nan)  # when the next of the first parts ends
        self.young = np.full((8, streams.count), np.inf)
        self.was_first = np.zeros(streams.count, dtype=bool)

    def next(self, who: Ints, units: Floats) -> Floats:
        """Exposed seconds from the last end to the next; ``units`` are exponential with mean 1."""
        fresh = np.isnan(self.first[who])
        chosen = who[fresh]
        self.first[chosen] = self.lives.first(self.at[chosen], self.failed[chosen], units[fresh])
        young = self.young[:, who].min(axis=0)
        first = self.first[who]
        found = np.minimum(first, young)
        self.was_first[who] = first <= young
        gap = found - self.at[who]
        self.at[who] = found
        return np.asarray(gap)

    def ended(self, who: Ints, occurrence: Ints) -> None:
        """One has ended, now, in each of these runs; a new one is in its place."""
        first = self.was_first[who]
        self.failed[who[first]] += 1
        self.first[who[first]] = np.nan
        other = who[~first]
        self.young[self.young[:, other].argmin(axis=0), other] = np.inf
        if not np.isinf(self.young[:, who]).any(axis=0).all():
            self.young = np.concatenate([self.young, np.full_like(self.young, np.inf)])
        place = self.young[:, who].argmax(axis=0)
        uniform = self.streams.uniform(f"{self.name}.life", occurrence, 1, who)
        self.young[place, who] = self.at[who] + self.lives.law.quantile(uniform)
