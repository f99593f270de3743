"""Advice on restarts and stragglers: how long an interruption may take, when to replace a slow node."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.tables import rows_to_frame
from simcluster.longrun.long_run import ZERO_TIME, FailureMode, LongRun, RunOutcomes
from simcluster.longrun.studies.policy_bench import (
    Advice,
    AdviceLine,
    AdviceMark,
    AdvicePlot,
    PolicyBench,
    category_share,
    goodput_table,
    mean_half_width,
    paired_difference,
)
from simcluster.longrun.studies.run_closed_forms import (
    break_even_hours,
    closed_form_exclusion_note,
    expected_efficiency,
    mean_interruption,
)
from simcluster.longrun.text_formats import format_duration, format_percent, format_point_difference
from simcluster.scenario.run_failures import FailureSpec
from simcluster.scenario.run_times import DurationSpec, FixedTime

if TYPE_CHECKING:
    import pandas as pd

_TIMES = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
_FAR = 20.0  # times the current restart: beyond, a target does not depend on restarts
_HOURS = (0.5, 1.0, 2.0, 4.0, 8.0, 24.0, 72.0, 168.0, 720.0)
_BUSY = 0.01  # share of time in slow periods where their cost is simulated: few overlap
_SLOW, _CHECKPOINT = "slow node", "after the next checkpoint"


class _ScaledTime(DurationSpec):
    law: Any
    factor: float

    @property
    def num_draws(self) -> int:
        return int(self.law.num_draws)

    def quantile(self, uniform: Floats) -> Floats:
        return np.asarray(self.factor * self.law.quantile(uniform))

    @property
    def mean(self) -> float:
        return float(self.factor * self.law.mean)


def advise_on_restart(bench: PolicyBench, *, target: float = 0.9) -> Advice:
    """Advise on the restart time: goodput by restart time, the time that a target allows, and the costliest phase."""
    if not 0 < target < 1:
        raise InputError(f"target: must be a goodput between 0 and 1, as in 0.9; got {target:g}")
    run = bench.build_variant()
    stop = mean_interruption(run)
    if not run.restart or not stop.rate:
        raise InputError("run: advice on restarts needs failures that stop the job, and run.restart phases; set both")
    runs = {times: _scale_restart(run, times) for times in _restart_factors(run, target)}
    goodput = bench.simulate_goodputs(runs)
    table = goodput_table(
        goodput,
        1.0,
        lambda times: {"times": times, "interruption_s": mean_interruption(runs[times]).total},
        lambda times: expected_efficiency(runs[times]),
    )
    budget, parts = _allowed_interruption(table, target), _gain_without_phase_table(bench, run, goodput[1.0])
    now, best, goal = float(goodput[1.0].mean()), parts.iloc[0], format_percent(target, 1)
    words = f"{goal} allows {format_duration(budget)} each"
    if math.isnan(budget):
        words = f"no restart is fast enough for {goal}"
    elif math.isinf(budget):
        words = f"{goal} allows more than {format_duration(float(table['interruption_s'].iloc[-1]))} each"
    sentence = (
        f"An interruption takes {format_duration(stop.total)} now, for a goodput of {format_percent(now)}; {words}, "
        f"and the most costly part is {best['part']} ({format_duration(best['mean_s'])}): "
        f"{format_point_difference(best['gain'], best['gain_half_width'])} without it."
    )
    marks = [AdviceMark(stop.total, now, f"now: {format_duration(stop.total)}", chosen=False)]
    if math.isfinite(budget):
        marks.append(AdviceMark(budget, target, f"{goal}: {format_duration(budget)}"))
    picture = AdvicePlot("interruption_s", "detection and restart, min", marks=tuple(marks), x_unit=60.0)
    return bench.make_advice("restart", sentence, table, picture, closed_form_exclusion_note(run), parts)


def _scale_restart(run: LongRun, times: float, only: str | None = None) -> LongRun:
    parts = []
    for part in run.restart:
        if only in (None, part.name):
            memory, storage = (_ScaledTime(law=law, factor=times) for law in (part.memory, part.storage))
            part = replace(part, memory=memory, storage=storage)
        parts.append(part)
    return replace(run, restart=tuple(parts))


def _restart_factors(run: LongRun, target: float) -> list[float]:
    low, high = 0.0, _FAR
    at_low, at_high = (expected_efficiency(_scale_restart(run, times)) for times in (low, high))
    if at_low < target or not at_high < target:
        return list(_TIMES)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_efficiency(_scale_restart(run, middle)) > target else (low, middle)
    return sorted({*_TIMES, 0.8 * low, low, 1.2 * low})


def _allowed_interruption(table: pd.DataFrame, target: float) -> float:
    """Return the longest interruption (s) that still reaches a target goodput: nan if none, inf if beyond the table."""
    goodput = table["goodput"].to_numpy()
    if goodput[0] < target:
        return math.nan
    if goodput.min() > target:
        return math.inf
    below = int((goodput < target).argmax()) if (goodput < target).any() else len(goodput) - 1
    at = table["interruption_s"].to_numpy()
    return float(np.interp(-target, -goodput[below - 1 : below + 1], at[below - 1 : below + 1]))


def _gain_without_phase_table(bench: PolicyBench, run: LongRun, now: Floats) -> pd.DataFrame:
    quick = replace(run, causes=tuple(replace(cause, detect=ZERO_TIME) for cause in run.causes))
    variants = {"detection": (mean_interruption(run).detection, quick)}
    for part in run.restart:
        law = part.storage if run.pattern.memory is None else part.memory
        variants[part.name] = law.mean, _scale_restart(run, 0.0, part.name)
    without = bench.simulate_goodputs({name: variant for name, (_, variant) in variants.items()})
    rows = []
    for name, (mean, _) in variants.items():
        gap = paired_difference(now, without[name])
        row = {"part": name, "mean_s": mean, "gain": gap.mean, "gain_half_width": gap.half_width}
        rows.append(row | {"gain_per_min": gap.mean / (mean / 60) if mean else 0.0})
    return rows_to_frame(rows).sort_values("gain", ascending=False, kind="stable", ignore_index=True)


def advise_on_straggler(bench: PolicyBench, *, slower: float = 0.01) -> Advice:
    """Advise on a slow node: whether to leave it, replace it at once, or replace it after a checkpoint.

    The cost is in GPU-hours (and dollars, with a price) over how long it is slow, simulated and to first order. Hours
    are hours of work: what the job would get done without it. The loss per step is from the step simulator, by pipeline
    stage; a node is as likely at each.
    """
    if not 0 < slower <= 10:
        raise InputError(f"slower: must be a share above 0 and at most 10 (1000 %), as in 0.01; got {slower:g}")
    run, slow, paces = _run_with_slow_node(bench, slower)
    pace, worst, gpus = float(paces.mean()), float(paces.max()), bench.scenario.gpus
    table = _slow_node_table(bench, run, slow, pace)
    even = {way: break_even_hours(_replacement_cost(run, way, pace), pace - 1) for way in ("at_once", "checkpoint")}
    sentence = f"A node slower by {format_percent(slower, 1)} costs nothing: no step waits for it."
    if pace - 1 >= 1e-9:
        lost, price = float(table["left"].iloc[-1]), bench.section.price
        dollars = "" if price is None else f" ({lost * price:,.0f} $)"
        most = f" (at worst {format_percent(worst - 1)})" if worst > pace * (1 + 1e-6) else ""
        sentence = (
            f"A node slower by {format_percent(slower, 1)} makes the step longer by {format_percent(pace - 1)}{most}, "
            f"which in 30 d costs {lost:,.1f} GPU-hours{dollars}; replacing it pays if it stays slow for more than "
            f"{even['at_once']:,.3g} h (at once) or {even['checkpoint']:,.3g} h (after the next checkpoint)."
        )
    lines, back = [], mean_interruption(run).restart
    for way, word in (("left", "left in place"), ("at_once", "replaced at once"), ("checkpoint", _CHECKPOINT)):
        lines.append(AdviceLine(f"{way}_simulated", word, half_width_column=f"{way}_half_width"))
        lines.append(AdviceLine(way, f"{word}, first order", is_dashed=True))
    marks = tuple(
        AdviceMark(hours, float(table[way].iloc[-1]), f"{hours:,.3g} h")
        for way, hours in even.items()
        if _HOURS[0] <= hours <= _HOURS[-1]
    )
    labels = "hours of work at the slow pace", f"GPU-hours lost, of {gpus:,} GPUs"
    picture = AdvicePlot("hours", *labels, tuple(lines), marks, y_unit=1.0, log_axes="xy")
    notes = (
        f"a restart alone ({format_duration(back)}) is paid back after {break_even_hours(back, pace - 1):,.4g} h",
        "the first order excludes failures during the extra time of slow work",
    )
    return bench.make_advice("straggler", sentence, table, picture, notes)


def _run_with_slow_node(bench: PolicyBench, slower: float) -> tuple[LongRun, FailureMode, Floats]:
    """Return the run without slow devices, a failure cause for one slow node, and relative step time by node."""
    failures = bench.section.failures
    node = FailureSpec(name=_SLOW, of="host", effect="slow", mtbf="1 d", by=(1 + slower,), lasts="1 h")
    only = (*failures.only, _SLOW) if failures.only else ()
    run = bench.build_variant(failures=failures.model_copy(update={"also": (*failures.also, node), "only": only}))
    slow = next(cause for cause in run.causes if cause.name == _SLOW)
    assert slow.paces is not None
    assert slow.device_class is not None
    kept = tuple(cause for cause in run.causes if cause.effect not in ("slow", "alarm"))
    return replace(run, causes=kept), slow, slow.paces[0][slow.device_class]


def _replacement_cost(run: LongRun, way: str, pace: float) -> float:
    """Return the cost (s) of replacing a slow node: the restart, plus lost work or slow work before the restart."""
    half = run.pattern.pattern_seconds / run.pattern.snapshots_per_stored / 2
    return mean_interruption(run).restart + (
        half + run.pattern.storage.write if way == "at_once" else half * (pace - 1)
    )


def _slow_node_table(bench: PolicyBench, run: LongRun, slow: FailureMode, pace: float) -> pd.DataFrame:
    gpus, price = bench.scenario.gpus, bench.section.price
    quiet = bench.simulate(run)
    long, goodput = float(quiet.wall.mean()), float(category_share(quiet).mean())
    lasts = {("left", hours): hours * 3600 * pace / goodput for hours in _HOURS if hours * 3600 < long / 20}
    lasts |= {(way, 0.0): long / 200 for way in ("at_once", "checkpoint")}
    slowed = bench.simulate_all(
        {which: _run_with_slow_periods(run, slow, which[0], seconds) for which, seconds in lasts.items()}
    )
    costs = {which: _cost_per_slow_period(outcomes, quiet, len(run.causes)) for which, outcomes in slowed.items()}
    replaced = {way: costs[way, 0.0] for way in ("at_once", "checkpoint")}
    rows = []
    for hours in _HOURS:
        left = costs.get(("left", hours), (math.nan, math.nan))
        row: dict[str, Any] = {"hours": hours, "left": (pace - 1) * hours * gpus}
        row |= {way: _replacement_cost(run, way, pace) / 3600 * gpus for way in replaced}
        for way, (cost, half) in {"left": left, **replaced}.items():
            row |= {f"{way}_simulated": cost / 3600 * gpus, f"{way}_half_width": half / 3600 * gpus}
        if price is not None:
            row |= {f"{way}_dollars": row[way] * price for way in ("left", *replaced)}
        rows.append(row)
    return rows_to_frame(rows)


def _run_with_slow_periods(run: LongRun, slow: FailureMode, way: str, lasts: float) -> LongRun:
    cause = replace(slow, rate=_BUSY / lasts, lasts=FixedTime(seconds=f"{lasts!r} s"), detect=ZERO_TIME)
    policy: Any = {"left": "leave", "at_once": "replace", "checkpoint": "checkpoint"}[way]
    return replace(run, causes=(*run.causes, cause), straggler=policy, notice_time=ZERO_TIME)


def _cost_per_slow_period(slowed: RunOutcomes, quiet: RunOutcomes, cause: int) -> tuple[float, float]:
    slow, good = (each.seconds_by_category()["productive"] for each in (slowed, quiet))
    lost = np.asarray(slowed.wall - slow - (quiet.wall - good))
    spells = slowed.strikes[:, cause]
    if not spells.sum():
        return math.nan, math.nan
    each = float(lost.sum() / spells.sum())
    return each, mean_half_width(lost - each * spells) / float(spells.mean())
