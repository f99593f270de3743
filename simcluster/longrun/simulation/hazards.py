"""What strikes a run next, and when.

A cause strikes when the hazard that its occurrence was given (exponential, mean 1) has been used up, at its rate, while
the job is exposed.  Rates change only where a bad machine is cured, so each column strikes at a known second of
exposure.  Causes with lives have theirs from the ages of their parts; those of a log strike when it says.
"""

from __future__ import annotations

import math

import cython
import numpy as np

from simcluster.base.arrays import Floats
from simcluster.longrun.lemons import is_retired
from simcluster.longrun.run import LongRun

if not cython.compiled:
    from simcluster.base.pointers import doubles, ints
    from simcluster.longrun.simulation.aging_parts import AgingParts
    from simcluster.longrun.simulation.draws import Draws

_INF = math.inf
_LEAST = 1e-300
"""1/s: a cause with a lower rate never strikes."""


def _exponential(uniform: Floats) -> Floats:
    """Return exponential numbers of mean 1."""
    return np.asarray(-np.log(uniform[:, 0]))


def _uniform(uniform: Floats) -> Floats:
    """Return the numbers themselves."""
    return uniform[:, 0]


class Hazards:
    """A column for every cause, then one for what the bad batch of a cause has beyond the others'.

    ``loaded`` and ``trained`` are the exposed seconds so far: to what stops a job, which strikes while it loads too,
    and to what strikes only while it trains.  Column ``c`` strikes at ``when[c]``; exposed seconds pass at the pace
    ``share``, that of the machines that run.
    """

    def __init__(self, run: LongRun, draws: Draws) -> None:
        bad = [number for number, cause in enumerate(run.causes) if cause.bad is not None]
        of = [*range(len(run.causes)), *bad]
        self.draws, self.machines = draws, run.machines
        self.count, self.causes = len(of), len(run.causes)
        names = [f"{run.causes[number].name}{'.bad' * (column >= self.causes)}" for column, number in enumerate(of)]
        rate = [run.causes[number].rate for number in of]
        self.rates = np.array([each if each > _LEAST else 0.0 for each in rate]), np.empty(self.count)
        self.rate, self.when = doubles(self.rates[0]), doubles(self.rates[1])
        units = [draws.add(f"{name}.hazard", (0,), _exponential) for name in names]
        stops = [run.causes[number].stops for number in of]
        batch = [bad.index(number) if number in bad else -1 for number in of]
        self.integers = [np.array(each, dtype=np.int32) for each in (of, stops, units, batch, [0] * self.count)]
        self.cause, self.stops, self.unit = ints(self.integers[0]), ints(self.integers[1]), ints(self.integers[2])
        self.batch, self.seen = ints(self.integers[3]), ints(self.integers[4])
        self.batches = [DefectiveMachines(run, number, self.causes + place, draws) for place, number in enumerate(bad)]
        self.struck = [run.causes[number].struck for number in of[: self.causes]]
        self.aged = [
            None
            if cause.lives is None
            else AgingParts(cause.lives, draws.add_law(f"{cause.name}.life", cause.lives.law))
            for cause in run.causes
        ]

    def clear(self) -> cython.void:
        """Begin a run: draw when each column strikes first."""
        column: cython.int
        for batch in self.batches:
            batch.clear()
        self.loaded = self.trained = 0.0
        self.share = 1.0
        for column in range(self.count):
            if column < self.causes and self.aged[column] is not None:
                parts: AgingParts = self.aged[column]
                parts.clear()
            self.seen[column] = 0
            self.give(column)
        self.find_next()

    def give(self, column: cython.int) -> cython.void:
        """Draw when a column strikes next."""
        unit: cython.double = self.draws.value(self.unit[column], self.seen[column])
        rate: cython.double = self.rate[column]
        seconds: cython.double = _INF
        if column >= self.causes:
            batch: DefectiveMachines = self.batches[self.batch[column]]
            rate = batch.left * batch.each
        if rate > 0:
            seconds = unit / rate
        if column < self.causes:
            if self.struck[column] is not None:
                seconds = self.struck[column].gap(self.seen[column])
            elif self.aged[column] is not None:
                parts: AgingParts = self.aged[column]
                seconds = parts.next_gap(unit)
        self.when[column] = (self.loaded if self.stops[column] else self.trained) + seconds

    def find_next(self) -> cython.void:
        """Find the columns of both kinds that strike next, -1 where there is none of a kind."""
        column: cython.int
        self.next_loaded = self.next_trained = -1
        for column in range(self.count):
            if self.stops[column]:
                if self.next_loaded < 0 or self.when[column] < self.when[self.next_loaded]:
                    self.next_loaded = column
            elif self.next_trained < 0 or self.when[column] < self.when[self.next_trained]:
                self.next_trained = column

    def until_stop(self) -> cython.double:
        """Return the exposed seconds until what stops a job strikes; rounding may make them negative."""
        return self.when[self.next_loaded] - self.loaded if self.next_loaded >= 0 else _INF

    def until_strike(self) -> cython.double:
        """Return the seconds of training until something strikes."""
        left: cython.double = self.until_stop()
        if self.next_trained >= 0:
            left = min(left, self.when[self.next_trained] - self.trained)
        return max(0.0, left / self.share)

    def train(self, seconds: cython.double) -> cython.void:
        """Let the job train for these seconds."""
        self.loaded += seconds * self.share
        self.trained += seconds * self.share

    def load(self, seconds: cython.double) -> cython.void:
        """Let the job load for these seconds, exposed to what stops it."""
        self.loaded += seconds * self.share

    def strike(self) -> cython.int:
        """Return the column that strikes now, and draw when it strikes again; ``find_next`` must follow."""
        column: cython.int = self.next_loaded
        if column < 0 or (self.next_trained >= 0 and self.until_stop() > self.when[self.next_trained] - self.trained):
            column = self.next_trained
        if column < self.causes and self.aged[column] is not None:
            parts: AgingParts = self.aged[column]
            parts.replace(self.draws.value(parts.life, self.seen[column]))
        self.seen[column] += 1
        self.give(column)
        return column

    def hit_bad(self, column: cython.int, occurrence: cython.int, now: cython.double) -> cython.bint:
        """Decide whether a strike hits a bad machine, which may be cured or retired; return whether it is retired."""
        if self.batch[column] < 0:
            return False
        batch: DefectiveMachines = self.batches[self.batch[column]]
        before: cython.int = batch.left
        clock: cython.double
        if not before:
            return False
        if column < self.causes and self.draws.value(batch.on, occurrence) >= before / cython.cast(
            cython.double, self.machines
        ):
            return False
        retired: cython.bint = batch.hit(
            self.draws.value(batch.which, occurrence), self.draws.value(batch.cures, occurrence), now
        )
        if batch.left < before:
            clock = self.loaded if self.stops[column] else self.trained
            if batch.left:
                slower: cython.double = before / cython.cast(cython.double, batch.left)
                self.when[batch.column] = clock + (self.when[batch.column] - clock) * slower
            else:
                self.when[batch.column] = _INF
        return retired


class DefectiveMachines:
    """The bad machines of a cause that are ``left``, each of which strikes ``each`` 1/s more often than others."""

    def __init__(self, run: LongRun, number: int, column: int, draws: Draws) -> None:
        cause = run.causes[number]
        assert cause.bad is not None
        self.batch, self.column, self.each = cause.bad, column, cause.rate / run.machines * (cause.bad.times - 1)
        self.on, self.which, self.cures = [draws.add(f"{cause.name}.bad", (each,), _uniform) for each in range(3)]
        self.clear()

    def clear(self) -> None:
        """Begin a run."""
        self.left = self.batch.machines
        self.times: list[list[float]] = [[] for _ in range(self.left)] if self.batch.retire else []

    def hit(self, which: cython.double, cures: cython.double, now: cython.double) -> cython.bint:
        """Hit one of them, which is retired, or cured by its repair; return whether it is retired."""
        retired: cython.bint = False
        number: cython.int = min(cython.cast(cython.int, which * self.left), self.left - 1)
        if self.batch.retire:
            self.times[number].append(now)
            retired = is_retired(self.times[number], self.batch.rule, self.batch.retire, self.batch.window)
        if retired or cures < self.batch.cured:
            self.left -= 1
            if self.times:
                self.times[number] = self.times[self.left]
                self.times.pop()
        return retired
