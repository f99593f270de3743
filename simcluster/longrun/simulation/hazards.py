"""Failure times of a simulated run, drawn from the accumulated hazard of each failure cause.

A cause fails when the hazard drawn for its occurrence (exponential, mean 1) has accumulated, at its rate, while the job
is exposed. Rates change only where a defective node is cured, so each column fails at a known second of exposure.
Causes with lives have theirs from the ages of their parts; those of a log fail at its times.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from heapq import heappop, heappush

import cython
import numpy as np

from simcluster.base.arrays import Floats
from simcluster.longrun.long_run import LongRun
from simcluster.longrun.part_lifetimes import PartLifetimes, should_retire_node

if not cython.compiled:
    from simcluster.base.pointers import Buffers
    from simcluster.longrun.simulation.draws import Draws

_INF = math.inf
_LEAST = 1e-300
"""Rate (1/s) below which a cause never fails."""


def _to_exponential(uniform: Floats) -> Floats:
    return np.asarray(-np.log(uniform[:, 0]))


def _first_column(uniform: Floats) -> Floats:
    return uniform[:, 0]


class Hazards:
    """Next failure time of each cause in a simulated run, and of the extra failures of defective nodes.

    A column is a cause, or (after all causes) the extra failures of a defective batch. ``loaded`` and ``trained`` are
    the exposed seconds so far: to causes that stop a job, which also fail while it loads, and to those that fail only
    while it trains. Column ``c`` fails at ``when[c]``, the next that stops a job (``stopping``) at ``stop_at`` of
    ``loaded``, the next of others (``other``) at ``other_at`` of ``trained``. Exposed seconds pass at the pace
    ``share``, that of the nodes that run.
    """

    def __init__(self, run: LongRun, draws: Draws) -> None:
        self.draws, self.machines, self.causes = draws, run.machines, len(run.causes)
        bad = [number for number, cause in enumerate(run.causes) if cause.defective_batch is not None]
        of = [*range(self.causes), *bad]
        self.count = len(of)
        names = [f"{run.causes[number].name}{'.bad' * (column >= self.causes)}" for column, number in enumerate(of)]
        buffers = self.buffers = Buffers()
        self.cause = buffers.view_ints("cause", of)
        self.stops = buffers.view_ints("stops", [run.causes[number].stops_job for number in of])
        self.unit = buffers.view_ints("unit", [draws.add(f"{name}.hazard", (0,), _to_exponential) for name in names])
        self.seen = buffers.ints("seen", self.count)
        rates = [run.causes[number].rate for number in of]
        self.rate = buffers.view_doubles("rate", [rate if rate > _LEAST else 0.0 for rate in rates])
        self.when = buffers.doubles("when", self.count)
        self.struck = [cause.failure_log for cause in run.causes] + [None for _ in bad]
        aged = [
            AgingParts(cause.part_lifetimes, cause.name, draws) if cause.part_lifetimes else None
            for cause in run.causes
        ]
        self.aged = aged + [None for _ in bad]
        columns = {number: self.causes + place for place, number in enumerate(bad)}
        self.batches = [
            DefectiveMachines(run, number, columns[number], draws) if number in columns else None
            for number in range(self.causes)
        ]

    def begin_run(self) -> cython.void:
        """Begin a new run: draw the first failure of each cause, and of each batch of defective nodes."""
        column: cython.int
        batch: DefectiveMachines | None
        parts: AgingParts | None
        for batch in self.batches:
            if batch is not None:
                batch.begin_run()
                self.rate[batch.column] = batch.left * batch.each
        for parts in self.aged:
            if parts is not None:
                parts.begin_run()
        self.loaded = self.trained = 0.0
        self.share = 1.0
        for column in range(self.count):
            self.seen[column] = 0
            self.draw_next(column)
        self.find_next()

    def draw_next(self, column: cython.int) -> cython.void:
        """Draw the next failure time of a ``column``: of a cause, or of a defective batch's extra failures."""
        unit: cython.double = self.draws.draw(self.unit[column], self.seen[column])
        seconds: cython.double = _INF
        if self.struck[column] is not None:
            seconds = self.struck[column].exposed_seconds_before(self.seen[column])
        elif self.aged[column] is not None:
            parts: AgingParts = self.aged[column]
            seconds = parts.next_gap(unit)
        elif self.rate[column] > 0:
            seconds = unit / self.rate[column]
        self.when[column] = (self.loaded if self.stops[column] else self.trained) + seconds

    def find_next(self) -> cython.void:
        """Find the next failure that stops the job, and the next failure that does not."""
        column: cython.int
        self.stop_at = self.other_at = _INF
        for column in range(self.count):
            if self.stops[column]:
                if self.when[column] < self.stop_at:
                    self.stop_at, self.stopping = self.when[column], column
            elif self.when[column] < self.other_at:
                self.other_at, self.other = self.when[column], column

    def time_to_failure(self) -> cython.double:
        """Return the seconds of training until the next failure."""
        return max(0.0, min(self.stop_at - self.loaded, self.other_at - self.trained) / self.share)

    def next_column(self) -> cython.int:
        """Return the index of the cause or defective batch that fails next while the job trains."""
        return self.stopping if self.stop_at - self.loaded <= self.other_at - self.trained else self.other

    def record_failure(self, column: cython.int, occurrence: cython.int, now: cython.double) -> cython.bint:
        """Record a failure of a cause or defective batch and draw the next; return whether a node is retired."""
        if self.aged[column] is not None:
            parts: AgingParts = self.aged[column]
            parts.replace(self.draws.draw(parts.life, self.seen[column]))
        self.seen[column] += 1
        self.draw_next(column)
        retired: cython.bint = self.hit_defective(column, occurrence, now)
        self.find_next()
        return retired

    def hit_defective(self, column: cython.int, occurrence: cython.int, now: cython.double) -> cython.bint:
        """Draw whether a failure hits a defective node; return whether the node is retired."""
        if self.batches[self.cause[column]] is None:
            return False
        batch: DefectiveMachines = self.batches[self.cause[column]]
        before: cython.double = batch.left
        if not before or (column < self.causes and self.draws.draw(batch.on, occurrence) >= before / self.machines):
            return False
        retired: cython.bint = batch.record_hit(occurrence, now)
        if batch.left < before:
            clock: cython.double = self.loaded if self.stops[column] else self.trained
            after: cython.double = (self.when[batch.column] - clock) * (before / batch.left) if batch.left else _INF
            self.when[batch.column] = clock + after
            self.rate[batch.column] = batch.left * batch.each
        return retired


class DefectiveMachines:
    """Defective nodes of a cause: the number ``left``, and the extra failure rate (1/s) of ``each`` node.

    ``on``, ``which`` and ``cures`` are the numbers of a failure's draws.
    """

    def __init__(self, run: LongRun, number: int, column: int, draws: Draws) -> None:
        cause = run.causes[number]
        assert cause.defective_batch is not None
        self.batch, self.column, self.draws = cause.defective_batch, column, draws
        self.each = cause.rate / run.machines * (cause.defective_batch.rate_factor - 1)
        self.on, self.which, self.cures = [draws.add(f"{cause.name}.bad", (each,), _first_column) for each in range(3)]

    def begin_run(self) -> cython.void:
        """Begin a new run with all defective nodes."""
        self.left = self.batch.machines
        self.times: list[list[float]] = [[] for _ in range(self.left)] if self.batch.retire else []

    def record_hit(self, occurrence: cython.int, now: cython.double) -> cython.bint:
        """Record a failure of a defective node, which may cure or retire that node; return whether retired."""
        retired: cython.bint = False
        which: cython.double = self.draws.draw(self.which, occurrence)
        number: cython.int = min(cython.cast(cython.int, which * self.left), self.left - 1)
        if self.batch.retire:
            self.times[number].append(now)
            retired = should_retire_node(self.times[number], self.batch.rule, self.batch.retire, self.batch.window)
        if retired or self.draws.draw(self.cures, occurrence) < self.batch.cured:
            self.left -= 1
            if self.times:
                self.times[number] = self.times[self.left]
                self.times.pop()
        return retired


class AgingParts:
    """Parts of a cause whose failure rate depends on age: the initial parts, and their replacements.

    Times are seconds of exposure; ``at`` is the last end, ``first`` the next end of the initial ``parts``, if it is
    ``drawn``; ``failed`` of them have ended. ``life`` is the number of the draw of a new part's life.
    ``longrun/part_lifetimes.py`` has the same for arrays.
    """

    def __init__(self, lives: PartLifetimes, cause: str, draws: Draws) -> None:
        self.life, self.parts = draws.add_law(f"{cause}.life", lives.law), lives.count
        self.closed, self.age = lives.youngest == lives.oldest, lives.youngest
        self.scale, self.shape, self.one = lives.law.scale, lives.law.shape, np.empty(1)
        self.seconds, self.hazards = ([], []) if self.closed else (column.tolist() for column in lives.hazard_table)

    def begin_run(self) -> cython.void:
        """Begin a new run with the initial parts."""
        self.at, self.first, self.failed = 0.0, 0.0, 0
        self.drawn = False
        self.ends: list[float] = []

    def next_gap(self, unit: cython.double) -> cython.double:
        """Return the exposed seconds between the last part failure and the next, from an exponential draw of mean 1."""
        before: cython.double = self.at
        if not self.drawn:
            self.drawn = True
            self.first = self.time_at_hazard(unit / (self.parts - self.failed)) if self.failed < self.parts else _INF
        self.at = min(self.first, self.ends[0]) if self.ends else self.first
        return self.at - before

    def replace(self, life: cython.double) -> cython.void:
        """Replace the part that has failed by a new one with lifetime ``life`` (s)."""
        if self.first == self.at:
            self.failed += 1
            self.drawn = False
        else:
            heappop(self.ends)
        heappush(self.ends, self.at + life)

    def time_at_hazard(self, hazard: cython.double) -> cython.double:
        """Return the exposed seconds when a part's cumulative hazard is ``hazard`` above that at the last failure."""
        if self.closed:
            before: cython.double = self.power((self.age + self.at) / self.scale, self.shape)
            return self.scale * self.power(before + hazard, 1 / self.shape) - self.age
        hazard += self.interpolate(self.at, self.seconds, self.hazards)
        return self.interpolate(hazard, self.hazards, self.seconds)

    def power(self, base: cython.double, exponent: cython.double) -> cython.double:
        """Return ``base`` to the power ``exponent`` computed by numpy, since C's result may differ in the last bit."""
        self.one[0] = base
        return float((self.one**exponent)[0])

    def interpolate(self, x: cython.double, known: list[float], values: list[float]) -> cython.double:
        """Return the linear interpolation at ``x``, equal to ``numpy.interp``."""
        place: cython.int = bisect_right(known, x) - 1
        if place < 0:
            return values[0]
        if place == len(known) - 1 or known[place] == x:
            return values[place]
        slope: cython.double = (values[place + 1] - values[place]) / (known[place + 1] - known[place])
        return slope * (x - known[place]) + values[place]
