"""What closed forms expect of runs, beside what came of them: what each holds for, and why it differs where it does.

A closed form knows failures, restarts and checkpoints.  What else takes time (maintenance, the wait for machines, slow
devices, ...) makes the wall longer by its share; where that does not explain the gap up to noise, the row says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.units import DAY
from simcluster.longrun import closed_forms
from simcluster.longrun.closed_forms import gained, grown
from simcluster.longrun.ending import restart_seconds, stop_rate
from simcluster.longrun.outcome import MAINTENANCE, REGROWTH, Outcomes, names_of
from simcluster.longrun.run import FATES, LongRun
from simcluster.longrun.studies.in_theory import Repairs
from simcluster.results.distribution import half_width

if TYPE_CHECKING:
    import pandas as pd

_NOISE = 1.5
"""Half widths of a 95 % interval beyond which a gap is not noise: 3 standard errors."""
_NAMED = 5e-4
_FEW = 10
"""Intervals below which a run is no long one, which closed forms are for."""
_ROWS = 4096
"""Runs whose seconds by fate and cause are divided together: few enough for the memory that it takes."""


@dataclass(frozen=True)
class ClosedForm:
    """A closed form's value beside the mean of the runs (``half_width`` of its 95 % interval; None: nothing was drawn).

    ``holds`` is for what it holds, ``why`` what the gap is made of; ``explained`` whether that is all up to noise.
    """

    closed_form: str
    unit: str
    value: float
    simulated: float
    half_width: float | None
    holds: str
    why: str = ""
    explained: bool = True


def closed_forms_of(run: LongRun, outcomes: Outcomes) -> pd.DataFrame:
    """A row a closed form, as ``ClosedForm`` names them; none where nothing fails."""
    import pandas as pd

    rows = list(_Compared(run, outcomes).rows()) if stop_rate(run) else []
    columns = ["closed_form", "unit", "value", "simulated", "half_width", "holds", "why", "explained"]
    return pd.DataFrame([asdict(row) for row in rows], columns=columns)


@dataclass(frozen=True)
class _Compared:
    """A run, and what came of it, as closed forms name it."""

    run: LongRun
    outcomes: Outcomes

    @cached_property
    def shares(self) -> dict[str, Floats]:
        """The share of each run's wall time, by fate."""
        return {fate: each / self.outcomes.wall for fate, each in self.outcomes.spent().items()}

    @cached_property
    def rate(self) -> float:
        """Failures per second."""
        return stop_rate(self.run)

    @cached_property
    def restart(self) -> tuple[float, float]:
        """Seconds of a restart in which nothing strikes, and in which failures do."""
        return restart_seconds(self.run)

    @cached_property
    def work(self) -> float:
        """Seconds of work between two checkpoints."""
        return self.run.pattern.steps * self.run.pattern.each

    @cached_property
    def stall(self) -> float:
        """Seconds for which a checkpoint stops training."""
        return self.run.pattern.verify + self.run.pattern.storage.stall

    def rows(self) -> Iterator[ClosedForm]:
        """All that apply."""
        yield from self._intervals()
        yield self._strikes()
        yield from self._goodputs()
        yield from self._whole()
        yield from self._machines()

    # --- intervals ------------------------------------------------------------------------------------------------

    def _intervals(self) -> Iterator[ClosedForm]:
        pattern, mu = self.run.pattern, 1 / self.rate

        def row(name: str, value: float, holds: str) -> ClosedForm:
            return ClosedForm(name, "s", value, self.work, None, holds, "the run's own, in whole steps")

        if pattern.memory is not None:
            return
        if pattern.storage.write:
            saving = pattern.storage
            best = closed_forms.behind_interval(self.stall, saving.write, saving.slowed, mu)
            yield row("best interval, written behind training", best, "first order, C << mu; no shorter than a write")
            return
        if not self.stall:
            return
        yield row("best interval, Young", closed_forms.young(self.stall, mu), "first order, C << mu")
        yield row("best interval, Daly", closed_forms.daly(self.stall, mu), "C < 2 mu, exponential")
        yield row("best interval, exact", closed_forms.best_interval(self.stall, mu), "exponential, equal segments")
        silent = sum(cause.rate for cause in self.run.causes if cause.effect == "silent")
        if silent and pattern.verify:
            best = closed_forms.verified_interval(pattern.verify, pattern.storage.stall, silent, self.rate)
            yield row("best interval, verified", best, "first order; silent errors found before each checkpoint")

    # --- failures -------------------------------------------------------------------------------------------------

    def _strikes(self) -> ClosedForm:
        stops = [number for number, cause in enumerate(self.run.causes) if cause.stops]
        counts = self.outcomes.strikes[:, stops].sum(axis=1).astype(np.float64)
        wall = self.outcomes.wall
        safe = sum(self.shares[fate] for fate in ("detection", "diagnosis", "waiting", "pause", "maintenance"))
        hidden = [number for number, part in enumerate(self.run.restart) if not part.exposed]
        share = float((safe + self.outcomes.parts[:, hidden].sum(axis=1) / wall).mean())
        value = self.rate * float(wall.mean())
        rest = float(counts.mean()) - value * (1 - share)
        half = max(
            half_width(counts), 1.96 * math.sqrt(value * (1 - share) / len(counts))
        )  # none in all is no certainty
        explained = abs(rest) <= _NOISE * half
        why = f"for {share:.1%} of the wall nothing can strike (detection, waiting, ...)" if share > _NAMED else ""
        if not explained:
            reasons = {
                "parts are young or old: their hazard changes with age": any(each.lives for each in self.run.causes),
                "machines of a bad batch fail more often": any(each.bad for each in self.run.causes),
                "what stands idle while replicas are missing does not fail": bool(self.run.running),
            }
            found = "; ".join(words for words, holds in reasons.items() if holds)
            why = "; ".join(filter(None, [why, f"{rest:+.3g} more: {found or 'not explained'}"]))
            explained = bool(found)
        holds = "rates that do not change, the job exposed all the time"
        return ClosedForm("failures, rate x wall", "", value, float(counts.mean()), half, holds, why, explained)

    # --- goodput --------------------------------------------------------------------------------------------------

    def _goodputs(self) -> Iterator[ClosedForm]:
        pattern, rate = self.run.pattern, self.rate
        saving, (down, exposed) = pattern.storage, self.restart
        if pattern.memory is not None:
            memory = sum(cause.rate for cause in self.run.causes if cause.stops and not cause.survives)
            stalls = sum({what: s for what, s, _ in cycle}["stall"] + pattern.verify for cycle in pattern.phases)
            whole = self.work * pattern.cycles
            lost = memory * self.work / 2 + (rate - memory) * whole / 2
            value = 1 - stalls / whole - lost - rate * (down + exposed)
            holds = "first order: stalls, half of what lies between two snapshots of a level, and restarts << mu"
            yield self._share("goodput, two levels", value, None, holds)
            return
        if saving.write:
            known = self.work, self.stall, saving.write, saving.slowed, 1 / rate
            again = rate * exposed  # an outage, those that fail again in it included
            outage = (down and down * grown(again)) + gained(again) / rate
            exact = closed_forms.behind_efficiency(*known, outage)
            first = 1 - closed_forms.behind_waste(*known, down + exposed)
            holds = "exponential failures, checkpoints written behind training"
        else:
            exact = closed_forms.efficiency(self.work, self.stall, exposed, down, rate)
            first = closed_forms.first_order_efficiency(self.work, self.stall, down + exposed, 1 / rate)
            holds = "exponential failures, equal segments, in restarts too"
        yield self._share("goodput, exact", exact, exact, holds)
        yield self._share("goodput, first order", first, exact, "checkpoint, interval and restart << mu")
        ettr = closed_forms.ettr(rate, down + exposed, self.work) / (1 + self.stall / self.work)
        holds = "first order in rate x (restart + interval / 2); what is slow counts as training"
        yield self._share("ETTR, Meta (arXiv:2410.21680)", ettr, exact, holds, slow_counts=True)

    def _share(
        self, name: str, value: float, exact: float | None, holds: str, slow_counts: bool = False
    ) -> ClosedForm:  # fmt: skip
        """Beside the productive share; ``exact`` is the best known without what ``_extras`` has."""
        useful = self.run.pattern.step / self.run.pattern.each  # the rest of the work is validation
        value, exact = value * useful, None if exact is None else exact * useful
        good = self.shares["productive"]
        if slow_counts:
            good = good + self.shares["slow"] + self.shares["write"]
        mean, half = float(good.mean()), half_width(good)
        extras = self._extras(slow_counts)
        known = value if exact is None else exact
        said = [f"{words} {-100 * known * share:+.2f}" for words, share in extras if share >= _NAMED]
        if abs(known - value) >= _NAMED:
            said.append(f"beyond first order {100 * (known - value):+.2f}")
        rest = mean - known * (1 - sum(share for _, share in extras))
        explained = abs(rest) <= max(_NOISE * half, 0.1 * _NAMED)
        if not explained:
            few = self.outcomes.wall.mean() < _FEW * (self.work + self.stall)
            guess = "NOT EXPLAINED"
            if few:
                guess = "a run of few checkpoints, whose begin and end count"
            elif exact is None:
                guess = "beyond first order"
            elif any(cause.lives or cause.bad for cause in self.run.causes):
                guess = "failures that are not exponential (ages, bad batches)"
            elif self.run.pattern.storage.write:
                guess = "work of snapshots whose write was cut off, and the run's begin and end"
            said.append(f"{guess} {100 * rest:+.2f}")
            explained = exact is None or bool(few)
        why = f"{100 * (mean - value):+.2f} points: {', '.join(said)}" if said else "the same up to noise"
        return ClosedForm(name, "fraction", value, mean, half, holds, why, explained)

    def _extras(self, slow_counts: bool = False) -> list[tuple[str, float]]:
        """What takes time and is in no closed form, as shares of the wall, each second once."""
        rows = range(0, len(self.outcomes.wall), _ROWS)
        found = [self._extras_of(slice(begin, begin + _ROWS), slow_counts) for begin in rows]
        shares = {words: float(np.concatenate([each[words] for each in found]).mean()) for words in found[0]}
        return sorted(shares.items(), key=lambda each: -each[1])

    def _extras_of(self, rows: slice, slow_counts: bool) -> dict[str, Floats]:
        names = names_of(self.run)
        fates = self.outcomes.fates[rows] / self.outcomes.wall[rows, None, None]
        if slow_counts:
            fates[:, FATES.index("slow")] = 0.0
        left = np.ones(len(names), dtype=bool)
        found: dict[str, Floats] = {}

        def take(words: str, chosen: list[int]) -> None:
            found[words] = fates[:, :, chosen].sum(axis=(1, 2))
            left[chosen] = False

        take("maintenance and its restarts", [names.index(MAINTENANCE)])
        take("machines missing", [names.index(REGROWTH)])
        effects = {"slow": "slow devices", "silent": "silent errors", "alarm": "false alarms", "pause": "pauses"}
        for effect, words in effects.items():
            take(words, [number for number, cause in enumerate(self.run.causes) if cause.effect == effect])
        for fate, words in (("waiting", "waiting for machines"), ("diagnosis", "wrong diagnoses")):
            found[words] = fates[:, FATES.index(fate)][:, left].sum(axis=1)
        return found

    # --- the whole run --------------------------------------------------------------------------------------------

    def _whole(self) -> Iterator[ClosedForm]:
        pattern, days = self.run.pattern, self.outcomes.wall / DAY
        if math.isfinite(self.run.until) or pattern.memory is not None or pattern.storage.write:
            return
        down, exposed = self.restart
        moments = closed_forms.segment_moments(self.work, self.stall, exposed, down, self.rate)
        count = self.run.goal / pattern.steps
        value, mean = count * moments.mean / DAY, float(days.mean())
        share = sum(share for _, share in self._extras())
        explained = abs(mean * (1 - share) - value) <= _NOISE * half_width(days)
        why = f"{share:.1%} of the wall is none of it: see goodput" if share >= _NAMED else ""
        holds = "exponential failures, equal segments; restarts of a fixed length"
        yield ClosedForm("days", "d", value, mean, half_width(days), holds, why or "the same up to noise", explained)
        if len(days) < 2:
            return
        deviation = float(days.std(ddof=1))
        half = 1.96 * deviation / math.sqrt(2 * len(days))
        value = math.sqrt(count * moments.variance) / DAY
        explained = abs(deviation - value) <= _NOISE * half
        why = "the same up to noise" if explained else "restarts and waits that are drawn, or what else takes time"
        yield ClosedForm(
            "standard deviation of days", "d", value, deviation, half, holds, why, explained or share >= _NAMED
        )

    # --- spares ---------------------------------------------------------------------------------------------------

    def _machines(self) -> Iterator[ClosedForm]:
        spares, leaving = self.run.spares, Repairs.of(self.run)
        if spares.unlimited or not leaving.rate or self.run.short or not leaving.single:
            return
        rate, repair = leaving.rate, leaving.repair
        value = closed_forms.stalled(spares.count, rate, repair, spares.crews)
        waiting = self.shares["waiting"]
        mean, half = float(waiting.mean()), half_width(waiting)
        said = []
        kinds = zip((spares.hot, spares.warm, spares.cold), spares.ready, strict=True)
        if ready := max((seconds for count, seconds in kinds if count), default=0.0):
            said.append(f"a spare takes up to {ready:.4g} s to be ready, which is waiting as well")
        if self.outcomes.wall.mean() < 20 * repair:
            said.append("the run begins with all spares there")
        explained = abs(mean - value) <= _NOISE * half
        why = "the same up to noise" if explained else "; ".join(said) or "failures only while exposed: fewer are out"
        holds = f"{rate * repair:.4g} machines in repair on average, {spares.count} spares, in the long run"
        yield ClosedForm(
            "waiting for machines, Erlang", "fraction", value, mean, half, holds, why, explained or bool(said)
        )
