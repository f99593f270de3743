"""What will strike next, and when: the hazard left to each cause, in many runs at once.

A cause strikes when the hazard that its occurrence was given (exponential, mean 1) has been used up, at its rate, while
the job is exposed.  So the rate may change on the way (a bad machine is cured), and policies that expose the job to the
same seconds see the same failures.  Causes with lives have theirs from the ages of their parts (``lives``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.longrun.run import FailureMode
from simcluster.longrun.streams import CounterStreams


class Hazards:
    """A column for every cause, then one for what the bad batch of a cause has beyond the others'.

    ``left[r, column]`` is the hazard left, ``rate[r, column]`` how fast it is used (1/s), ``cause[column]`` whose it is.
    """

    def __init__(self, causes: Sequence[FailureMode], machines: int, streams: CounterStreams) -> None:
        self.causes, self.machines, self.streams = causes, machines, streams
        count = streams.count
        bad = [number for number, cause in enumerate(causes) if cause.bad is not None]
        self.cause = np.array([*range(len(causes)), *bad], dtype=np.int64)
        self.stops = np.array([causes[number].stops for number in self.cause], dtype=bool)
        self.seen = np.zeros((count, len(self.cause)), dtype=np.int64)
        self.left = np.empty((count, len(self.cause)))
        self.rate = np.tile(
            [cause.rate if cause.lives is None else 1.0 for cause in causes] + [0.0] * len(bad), (count, 1)
        )
        self.bad = {number: np.full(count, causes[number].bad.machines) for number in bad}  # type: ignore[union-attr]
        self.times = {number: np.zeros((count, causes[number].bad.machines), dtype=np.int64) for number in bad}  # type: ignore[union-attr]
        self._lives = {number: _Parts(cause, streams) for number, cause in enumerate(causes) if cause.lives}
        everyone = np.arange(count)
        for column in range(len(self.cause)):
            self._give(everyone, column)
        for number in bad:
            self._reckon(everyone, number)

    def until(self) -> Floats:
        """Seconds of exposure until each column strikes."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.rate > 0, np.maximum(0.0, self.left) / self.rate, np.inf)

    def _name(self, column: int) -> str:
        extra = ".bad" if column >= len(self.causes) else ""
        return f"{self.causes[self.cause[column]].name}{extra}.hazard"

    def _give(self, who: Ints, column: int) -> None:
        """The hazard of the next occurrence of a column in these runs."""
        units = -np.log(self.streams.uniform(self._name(column), self.seen[who, column], 1, who)[:, 0])
        if column in self._lives:
            units = self._lives[column].next(who, units)
        self.left[who, column] = units

    def strike(self, who: Ints, column: int) -> None:
        """The column has struck there: what comes next."""
        if column in self._lives:
            self._lives[column].ended(who, self.seen[who, column])
        self.seen[who, column] += 1
        self._give(who, column)

    def on_bad(self, who: Ints, column: int, uniform: Floats) -> None:
        """A strike may have hit a machine of the bad batch, which the repair may cure; ``uniform`` is (runs, 3)."""
        number = int(self.cause[column])
        batch = self.causes[number].bad
        if batch is None:
            return
        bad = self.bad[number][who]
        hit: Bools = (bad > 0) & ((column >= len(self.causes)) | (uniform[:, 0] < bad / self.machines))
        who, bad, uniform = who[hit], bad[hit], uniform[hit]
        which = np.minimum((uniform[:, 1] * bad).astype(np.int64), bad - 1)
        times = self.times[number]
        times[who, which] += 1
        retired = (times[who, which] >= batch.retire) if batch.retire else np.zeros(len(who), dtype=bool)
        gone = (uniform[:, 2] < batch.cured) | retired
        who, bad, which = who[gone], bad[gone], which[gone]
        times[who, which] = times[who, bad - 1]
        self.bad[number][who] = bad - 1
        self._reckon(who, number)

    def _reckon(self, who: Ints, number: int) -> None:
        batch, cause = self.causes[number].bad, self.causes[number]
        column = len(self.causes) + list(self.bad).index(number)
        each = cause.rate / self.machines
        self.rate[who, column] = self.bad[number][who] * each * (batch.times - 1)  # type: ignore[union-attr]


class _Parts:
    """The lives of a cause's parts in many runs: those there from the begin, and the new ones in their places."""

    def __init__(self, cause: FailureMode, streams: CounterStreams) -> None:
        assert cause.lives is not None
        self.lives, self.name, self.streams = cause.lives, cause.name, streams
        self.failed = np.zeros(streams.count)
        self.at = np.zeros(streams.count)  # exposed seconds at the last end
        self.first = np.full(streams.count, np.nan)  # when the next of the first parts ends
        self.young = np.full((streams.count, 8), np.inf)
        self.was_first = np.zeros(streams.count, dtype=bool)

    def next(self, who: Ints, units: Floats) -> Floats:
        """Exposed seconds from the last end to the next."""
        fresh = np.isnan(self.first[who])
        chosen = who[fresh]
        self.first[chosen] = self.lives.first(self.at[chosen], self.failed[chosen], units[fresh])
        young = self.young[who].min(axis=1)
        found = np.minimum(self.first[who], young)
        self.was_first[who] = self.first[who] <= young
        gap = found - self.at[who]
        self.at[who] = found
        return gap

    def ended(self, who: Ints, occurrence: Ints) -> None:
        """One has ended, now, in each of these runs; a new one is in its place."""
        first = self.was_first[who]
        self.failed[who[first]] += 1
        self.first[who[first]] = np.nan
        other = who[~first]
        self.young[other, self.young[other].argmin(axis=1)] = np.inf
        if not np.isinf(self.young[who]).any(axis=1).all():
            self.young = np.concatenate([self.young, np.full_like(self.young, np.inf)], axis=1)
        place = self.young[who].argmax(axis=1)
        uniform = self.streams.uniform(f"{self.name}.life", occurrence, 1, who)
        self.young[who, place] = self.at[who] + self.lives.law.quantile(uniform)
