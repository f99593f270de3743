"""The state of many runs, a column each, and how seconds without training are spent and accounted for."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.longrun.outcome import Outcomes, names_of
from simcluster.longrun.pattern import MEMORY, STORAGE
from simcluster.longrun.replicas.each import LawOfEach, Laws
from simcluster.longrun.run import FATES, FailureMode, LongRun
from simcluster.longrun.streams import CounterStreams, StreamFamily
from simcluster.longrun.times import TimeSpec

Array = TypeVar("Array", Floats, Ints, Bools)
FATE = {name: number for number, name in enumerate(FATES)}


class RunsState:
    """``now`` wall seconds, ``at`` on the nominal clock, ``held[level]`` where each run would go back to at least.

    ``who`` is everywhere the places of some runs, ascending.  ``fates[fate]``, ``strikes``, ``outages`` and ``repairs``
    are flat, by cause and run (``place``).
    """

    def __init__(self, run: LongRun, streams: CounterStreams) -> None:
        self.run, self.streams, self.count = run, streams, streams.count
        self.names, self.laws = names_of(run), Laws(run)
        self.end_at, self.goal_at = run.end_at, run.goal_at
        self.last = int(run.goal // run.pattern.steps) if np.isfinite(run.goal) else None
        self.width, self.everyone = np.int64(self.count), np.arange(self.count)
        cells = len(self.names) * self.count
        self.now, self.at = np.zeros(self.count), np.zeros(self.count)
        self.held = np.zeros((2, self.count))
        self.alive: Bools = np.ones(self.count, dtype=bool)
        self.missing = np.zeros(self.count, dtype=np.int64)
        self.fates = np.zeros((len(FATES), cells))
        self.parts = np.zeros((len(run.restart), self.count))
        self.strikes, self.outages, self.repairs = (np.zeros(cells, dtype=np.int64) for _ in range(3))
        self.weekly: list[Floats] = []
        self._families: dict[tuple[str, int], StreamFamily] = {}

    def place(self, who: Ints, number: Ints | int) -> Ints:
        """Where a cause of these runs stands in what is flat."""
        return who + number * self.width

    def of(self, column: Array, who: Ints) -> Array:
        """The entries of these runs; the column itself, not to be written to, where they are all."""
        return column if len(who) == self.count else column[who]

    def uniform(self, name: str, what: str, occurrence: Ints, draws: int, who: Ints) -> Floats:
        """Numbers for that occurrence of each, shape (runs, draws)."""
        return self.streams.uniform(f"{name}.{what}", occurrence, draws, who)

    def of_causes(self, what: str, draws: int) -> StreamFamily:
        """The streams of every cause for that."""
        family = self._families.get((what, draws))
        if family is None:
            names = [f"{name}.{what}" for name in self.names]
            family = self._families[what, draws] = StreamFamily(self.streams, names, draws)
        return family

    def draws(self, law: LawOfEach, number: Ints, occurrence: Ints, who: Ints) -> Floats:
        """Seconds by a law that may differ from cause to cause; of no axis where they are the same for all."""
        if law.same is not None:
            return law.same
        if law.everywhere:
            (alike,) = law.drawn
            return alike.quantile(self.of_causes(law.what, alike.draws).at(number, who, occurrence))
        found = law.fixed[number]
        which = law.which[number] if law.drawn else number
        for place, each in enumerate(law.drawn):
            chosen = (which == place).nonzero()[0]
            if len(chosen):
                family = self.of_causes(law.what, each.draws)
                found[chosen] = each.quantile(family.at(number[chosen], who[chosen], occurrence[chosen]))
        return found

    def draw(self, law: TimeSpec, name: str, what: str, occurrence: Ints, who: Ints) -> Floats:
        """Seconds of that occurrence in each of these runs."""
        return law.quantile(self.uniform(name, what, occurrence, law.draws, who))

    def lasts(self, cause: FailureMode, occurrence: Ints, who: Ints) -> Floats:
        """How long those strikes last (s), as a log says or by the law."""
        drawn = self.draw(cause.lasts, cause.name, "lasts", occurrence, who)
        if cause.struck is None:
            return drawn
        known = np.array([cause.struck.lasted(int(each)) for each in occurrence])
        return np.where(np.isnan(known), drawn, known)

    def target(self, who: Ints, level: int) -> Floats:
        """The end of the latest snapshot that survives."""
        pattern = self.run.pattern
        snapshot = pattern.safe(self.of(self.at, who), level)
        if self.last is not None:
            snapshot = np.minimum(snapshot, self.last)
        return np.asarray(np.maximum(pattern.end(snapshot), self.of(self.held[level], who)))

    def survivor(self, who: Ints, number: Ints) -> Floats:
        """The end of the latest snapshot that survives a cause."""
        found = self.target(who, MEMORY)
        if self.run.pattern.memory is None:
            return found
        return np.where(self.laws.survives[number] == STORAGE, self.target(who, STORAGE), found)

    def kept(self, who: Ints) -> Floats:
        """Steps that are done."""
        return self.kept_at(self.at[who])

    def kept_at(self, at: Floats) -> Floats:
        """Steps that are done there."""
        return np.minimum(self.run.pattern.spent("steps", np.minimum(at, self.goal_at)), self.run.goal)

    def end_week(self, who: Ints, number: Ints) -> None:
        """That week has ended in these runs: steps kept."""
        while len(self.weekly) <= number.max():
            self.weekly.append(np.full(self.count, np.nan))
        for each in np.unique(number):
            chosen = who[number == each]
            self.weekly[each][chosen] = self.kept(chosen)

    def outcomes(self) -> Outcomes:
        """All runs, once they have ended."""
        names = len(self.names)
        return Outcomes(
            self.run,
            self.now,
            self.at,
            self.kept(np.arange(self.count)),
            self.fates.reshape(len(FATES), names, self.count).transpose(2, 0, 1).copy(),
            self.parts.T.copy(),
            self.strikes.reshape(names, self.count).T[:, : len(self.run.causes)].copy(),
            self.outages.reshape(names, self.count).T.copy(),
            np.array(self.weekly).T.copy() if self.weekly else np.empty((self.count, 0)),
        )


class Standing:
    """Runs that stand, each for a cause: ``now`` is their wall clock until ``go_on`` gives it, and what it was spent
    on, back."""

    def __init__(self, state: RunsState, who: Ints, number: Ints) -> None:
        self.state, self.who, self.number = state, who, number
        self.place = state.place(who, number)
        self.now = state.now[who]
        self._spent: dict[str, Floats] = {}

    def spend(self, seconds: Floats, fate: str, only: Ints | None = None) -> Floats:
        """Time passes without training, not beyond the end of the run; returns what has passed.

        ``only`` are the places of some of these runs.
        """
        until, sums = self.state.run.until, self._spent.get(fate)
        if sums is None:
            sums = self._spent[fate] = self.state.fates[FATE[fate]][self.place]
        if only is not None:
            spent = np.minimum(seconds, np.maximum(0.0, until - self.now[only]))
            self.now[only] += spent
            sums[only] += spent
            return spent
        spent = seconds if np.isinf(until) else np.minimum(seconds, np.maximum(0.0, until - self.now))
        self.now += spent
        sums += spent
        return spent

    def draws(self, law: LawOfEach, occurrence: Ints) -> Floats:
        """Seconds by a law that may differ from cause to cause."""
        return self.state.draws(law, self.number, occurrence, self.who)

    def go_on(self) -> None:
        """They train on, now."""
        self.state.now[self.who] = self.now
        for fate, sums in self._spent.items():
            self.state.fates[FATE[fate]][self.place] = sums
