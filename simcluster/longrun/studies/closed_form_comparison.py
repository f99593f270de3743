"""Comparison of a run's closed forms with simulated outcomes: validity, and reasons for each difference.

A closed form knows failures, restarts and checkpoints. Everything else that takes time (maintenance, the wait for
nodes, slow devices, ...) lengthens the wall time by its share; where that does not explain the gap up to noise, the row
says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.units import DAY
from simcluster.longrun import closed_forms
from simcluster.longrun.long_run import FATES, MAINTENANCE, REGROWTH, LongRun, RunOutcomes, cause_names
from simcluster.longrun.run_feasibility import job_stop_rate, mean_outage_seconds
from simcluster.longrun.studies.run_closed_forms import RepairDemand
from simcluster.longrun.text_formats import make_frame
from simcluster.results.distribution import confidence_half_width

if TYPE_CHECKING:
    import pandas as pd

_NOISE = 1.5
"""Half widths of a 95 % interval beyond which a gap is not noise: 3 standard errors."""
_NAMED = 5e-4
_FEW = 10
"""Number of checkpoint intervals below which closed forms are not accurate."""
_ROWS = 4096
"""Number of runs whose seconds by category and cause are divided at once, to limit memory."""
_SAME = "equal within noise"

Row = tuple[str, str, float, float, float | None, str, str, bool]


def compare_closed_forms(run: LongRun, outcomes: RunOutcomes) -> pd.DataFrame:
    """Return a table with a row per closed form that applies to the run; empty if the run has no failures.

    Its ``value`` stands next to the mean of the runs (``simulated``, with ``half_width`` of its 95 % interval; None:
    nothing was drawn). ``holds`` is its validity, ``why`` what the gap is made of; ``explained`` whether that is all up
    to noise. None holds where replicas leave and rejoin.
    """
    holds = job_stop_rate(run) and not any(cause.leaves for cause in run.causes)
    rows = _ClosedFormComparison(run, outcomes).comparison_rows() if holds else []
    return make_frame(rows, "closed_form unit value simulated half_width holds why explained")


class _ClosedFormComparison:
    """Comparison of closed forms with the simulated outcomes of one long run.

    Seconds of ``work`` between two checkpoints, the ``stall`` of one, the ``rate`` of failures, and seconds of a
    restart without (``down``) and with possible failures.
    """

    def __init__(self, run: LongRun, outcomes: RunOutcomes) -> None:
        self.run, self.outcomes, self.pattern = run, outcomes, run.pattern
        self.shares = {fate: each / outcomes.wall for fate, each in outcomes.seconds_by_category().items()}
        self.rate, (self.down, self.exposed) = job_stop_rate(run), mean_outage_seconds(run)
        self.work = self.pattern.steps * self.pattern.step_with_validation
        self.stall = self.pattern.verify + self.pattern.storage.stall

    def comparison_rows(self) -> Iterator[Row]:
        holds = "simulated is the run's interval, in whole steps"
        for name, value, of in self._best_checkpoint_intervals() if self.pattern.memory is None else ():
            yield f"best interval, {name}", "s", value, self.work, None, of, holds, True
        yield self._failure_count_row()
        yield from self._goodput_rows()
        if not (math.isfinite(self.run.until) or self.pattern.memory is not None or self.pattern.storage.write):
            yield from self._days_rows()
        yield from self._node_shortage_rows()

    def _best_checkpoint_intervals(self) -> Iterator[tuple[str, float, str]]:
        """Yield (name, seconds, validity) of each closed form for the best checkpoint interval."""
        pattern, mu, saving = self.pattern, 1 / self.rate, self.pattern.storage
        if saving.write:
            best = closed_forms.async_interval(self.stall, saving.write, saving.slowed, mu)
            yield "asynchronous writes", best, "first order, C << mu; no shorter than a write"
        elif self.stall:
            yield "Young", closed_forms.young_interval(self.stall, mu), "first order, C << mu"
            yield "Daly", closed_forms.daly_interval(self.stall, mu), "C < 2 mu, exponential"
            yield "exact", closed_forms.best_interval(self.stall, mu), "exponential, equal segments"
            silent = sum(cause.rate for cause in self.run.causes if cause.effect == "silent")
            if silent and pattern.verify:
                best = closed_forms.verified_interval(pattern.verify, saving.stall, silent, self.rate)
                yield "verified", best, "first order; silent errors found before each checkpoint"

    def _failure_count_row(self) -> Row:
        run, wall, causes = self.run, self.outcomes.wall, self.run.causes
        stops = [number for number, cause in enumerate(causes) if cause.stops_job]
        counts = self.outcomes.strikes[:, stops].sum(axis=1).astype(np.float64)
        safe = sum(self.shares[fate] for fate in ("detection", "diagnosis", "waiting", "pause", "maintenance"))
        hidden = [number for number, part in enumerate(run.restart) if not part.exposed]
        share = float((safe + self.outcomes.parts[:, hidden].sum(axis=1) / wall).mean())
        value = self.rate * float(wall.mean())
        rest = float(counts.mean()) - value * (1 - share)
        # no failure in all runs is not certainty
        half = max(confidence_half_width(counts), 1.96 * math.sqrt(value * (1 - share) / len(counts)))
        explained = abs(rest) <= _NOISE * half
        said = [f"for {share:.1%} of the wall time nothing can fail (detection, ...)"] if share > _NAMED else []
        if not explained:
            reasons = {
                "parts are young or old: their hazard changes with age": any(each.part_lifetimes for each in causes),
                "nodes of a defective batch fail more often": any(each.defective_batch for each in causes),
                "idle nodes do not fail while replicas are missing": bool(run.shrunk_shares),
            }
            found = "; ".join(words for words, holds in reasons.items() if holds)
            said.append(f"{rest:+.3g} more failures: {found or 'not explained'}")
            explained = bool(found)
        holds = "constant failure rates, job always exposed to failures"
        return "failures, rate x wall", "", value, float(counts.mean()), half, holds, "; ".join(said), explained

    # --- goodput --------------------------------------------------------------------------------------------------

    def _goodput_rows(self) -> Iterator[Row]:
        pattern, rate, work, stall = self.pattern, self.rate, self.work, self.stall
        saving, restart = pattern.storage, self.down + self.exposed
        if pattern.memory is not None:
            memory = sum(cause.rate for cause in self.run.causes if cause.stops_job and not cause.survives)
            stalls = sum({key: s for key, s, _ in row}["stall"] + pattern.verify for row in pattern.phases_by_snapshot)
            whole = work * pattern.snapshots_per_stored
            value = 1 - stalls / whole - (memory * work / 2 + (rate - memory) * whole / 2) - rate * restart
            holds = "first order: stalls, half of the time between two snapshots of a level, and restarts << mu"
            yield self._compare_productive_share("goodput, two levels", value, None, holds)
            return
        exact = closed_forms.kept_work_share(work, stall, saving.write, saving.slowed, self.exposed, self.down, rate)
        if saving.write:
            first = 1 - closed_forms.async_lost_share(work, stall, saving.write, saving.slowed, 1 / rate, restart)
            holds = "exponential failures, asynchronous checkpoints"
        else:
            first = closed_forms.first_order_efficiency(work, stall, restart, 1 / rate)
            holds = "exponential failures, equal segments, in restarts too"
        yield self._compare_productive_share("goodput, exact", exact, exact, holds)
        holds = "checkpoint, interval and restart << mu"
        yield self._compare_productive_share("goodput, first order", first, exact, holds)
        ettr = closed_forms.meta_ettr(rate, restart, work) / (1 + stall / work)
        holds = "first order in rate x (restart + interval / 2); slow training counts as training"
        yield self._compare_productive_share("ETTR, Meta (arXiv:2410.21680)", ettr, exact, holds, count_slow=True)

    def _compare_productive_share(
        self, name: str, value: float, exact: float | None, validity: str, count_slow: bool = False
    ) -> Row:
        """Return the row that compares a closed form's share of productive time with the simulated share."""
        useful = self.pattern.step / self.pattern.step_with_validation  # the rest of the work is validation
        value, exact = value * useful, None if exact is None else exact * useful
        good = self.shares["productive"]
        if count_slow:
            good = good + self.shares["slow"] + self.shares["write"]
        mean, half = float(good.mean()), confidence_half_width(good)
        extras = self._losses_outside_closed_forms(count_slow)
        known = value if exact is None else exact
        said = [f"{words} {-100 * known * share:+.2f}" for words, share in extras if share >= _NAMED]
        if abs(known - value) >= _NAMED:
            said.append(f"beyond first order {100 * (known - value):+.2f}")
        rest = mean - known * (1 - sum(share for _, share in extras))
        explained = abs(rest) <= max(_NOISE * half, 0.1 * _NAMED)
        if not explained:
            few = bool(self.outcomes.wall.mean() < _FEW * (self.work + self.stall))
            guesses = (
                (few, "few checkpoints, so that the run's start and end matter"),
                (exact is None, "beyond first order"),
                (any(cause.part_lifetimes or cause.defective_batch for cause in self.run.causes),
                 "failures that are not exponential (ages, defective batches)"),
                (self.pattern.storage.write > 0,
                 "work of snapshots whose write was interrupted, and the run's start and end"),
            )  # fmt: skip
            guess = next((words for holds, words in guesses if holds), "NOT EXPLAINED")
            said.append(f"{guess} {100 * rest:+.2f}")
            explained = exact is None or few
        why = f"{100 * (mean - value):+.2f} points: {', '.join(said)}" if said else _SAME
        return name, "fraction", value, mean, half, validity, why, explained

    def _losses_outside_closed_forms(self, count_slow: bool = False) -> list[tuple[str, float]]:
        """Return lost time that no closed form covers, by cause, as disjoint shares of the wall time."""
        rows = range(0, len(self.outcomes.wall), _ROWS)
        found = [self._losses_of_runs(slice(begin, begin + _ROWS), count_slow) for begin in rows]
        shares = {words: float(np.concatenate([each[words] for each in found]).mean()) for words in found[0]}
        return sorted(shares.items(), key=lambda each: -each[1])

    def _losses_of_runs(self, rows: slice, count_slow: bool) -> dict[str, Floats]:
        names, causes = cause_names(self.run), self.run.causes
        fates = self.outcomes.fates[rows] / self.outcomes.wall[rows, None, None]
        if count_slow:
            fates[:, FATES.index("slow")] = 0.0
        effects = {"slow": "slow devices", "silent": "silent errors", "alarm": "false alarms", "pause": "pauses"}
        chosen = {
            "maintenance and its restarts": [names.index(MAINTENANCE)],
            "missing nodes": [names.index(REGROWTH)],
            **{words: [number for number, cause in enumerate(causes) if cause.effect == effect]
               for effect, words in effects.items()},
        }  # fmt: skip
        found = {words: fates[:, :, numbers].sum(axis=(1, 2)) for words, numbers in chosen.items()}
        left = [number for number, cause in enumerate(causes) if cause.effect not in effects]
        for fate, words in (("waiting", "waiting for nodes"), ("diagnosis", "wrong diagnoses")):
            found[words] = fates[:, FATES.index(fate)][:, left].sum(axis=1)
        return found

    # --- the whole run --------------------------------------------------------------------------------------------

    def _days_rows(self) -> Iterator[Row]:
        days, count = self.outcomes.wall / DAY, self.run.goal / self.pattern.steps
        moments = closed_forms.segment_moments(self.work, self.stall, self.exposed, self.down, self.rate)
        value, mean, half = count * moments.mean / DAY, float(days.mean()), confidence_half_width(days)
        share = sum(share for _, share in self._losses_outside_closed_forms())
        explained = abs(mean * (1 - share) - value) <= _NOISE * half
        why = f"excludes {share:.1%} of the wall time: see goodput" if share >= _NAMED else _SAME
        holds = "exponential failures, equal segments; restarts of a fixed length"
        yield "days", "d", value, mean, half, holds, why, explained
        if len(days) < 2:
            return
        deviation = float(days.std(ddof=1))
        half = 1.96 * deviation / math.sqrt(2 * len(days))
        value = math.sqrt(count * moments.variance) / DAY
        explained = abs(deviation - value) <= _NOISE * half
        why = _SAME if explained else "random restarts and waits, or other lost time"
        yield "standard deviation of days", "d", value, deviation, half, holds, why, explained or share >= _NAMED

    def _node_shortage_rows(self) -> Iterator[Row]:
        spares, leaving = self.run.spares, RepairDemand.from_run(self.run)
        if spares.unlimited or not leaving.rate or self.run.shrunk_paces or not leaving.single_nodes:
            return
        rate, repair = leaving.rate, leaving.repair
        value = closed_forms.shortage_share(spares.count, rate, repair, spares.crews)
        waiting = self.shares["waiting"]
        mean, half = float(waiting.mean()), confidence_half_width(waiting)
        said = []
        kinds = zip((spares.hot, spares.warm, spares.cold), spares.ready, strict=True)
        if ready := max((seconds for count, seconds in kinds if count), default=0.0):
            said.append(f"a spare takes up to {ready:.4g} s to be ready, which counts as waiting")
        if self.outcomes.wall.mean() < 20 * repair:
            said.append("the run begins with all spares available")
        same = abs(mean - value) <= _NOISE * half
        why = _SAME if same else "; ".join(said) or "failures only while exposed: fewer nodes are out"
        holds = f"{rate * repair:.4g} nodes in repair on average, {spares.count} spares, in the long run"
        yield "waiting for nodes, Erlang", "fraction", value, mean, half, holds, why, same or bool(said)
