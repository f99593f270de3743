"""How much of a run was productive: by week, with a band over the runs, and over all of the runs that were played."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.results.distribution import half_width
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, rgb
from simcluster.show.run_looks import DAY, PlayedRun, percent, weekly_goodput

_RUNS, _MEAN = rgb(COMPUTE_KINDS["forward"]), rgb(STREAMS["tp"])


class WeeklyRuns(PlayedRun, Protocol):
    """Played runs with their tables, as `simcluster.train` gives.

    ``weeks`` has week, goodput, p10 and p90; ``expected`` closed_form (its name) and value.
    """

    @property
    def weeks(self) -> pd.DataFrame: ...
    @property
    def expected(self) -> pd.DataFrame: ...


def goodput(training: WeeklyRuns, title: str = "") -> Figure:
    """At the left goodput by week: mean, 10 to 90 % of the runs, and the run that was played first.

    At the right how many runs had which goodput (or took how many days, where the run ends with a step), with the
    mean, its 95 % interval, and the closed form of failures, restarts and checkpoints alone.  InputError without a run.
    """
    if not len(training.outcomes.wall):
        raise InputError("nothing to draw: no run was played")
    figure = Figure(figsize=(12.0, 4.3), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.45, 1))
    _draw_weeks(left, training)
    _draw_runs(right, training)
    figure.suptitle(title or _title(training), fontsize=11.5, color=TEXT, x=0.01, ha="left")
    return figure


def _draw_weeks(axes: Axes, training: WeeklyRuns) -> None:
    table, count = training.weeks, len(training.outcomes.wall)
    week = table["week"].to_numpy(np.float64)
    low, mean, high = (100 * table[name].to_numpy(np.float64) for name in ("p10", "goodput", "p90"))
    first = 100 * weekly_goodput(training.outcomes)[0]
    marker = "o" if len(week) <= 60 else ""
    if count > 1:
        axes.fill_between(week, low, high, color=_RUNS, alpha=0.22, linewidth=0, label="10 to 90 % of the runs")
    axes.plot(week, mean, color=_RUNS, linewidth=1.8, marker=marker, markersize=4, label=f"mean of {count:,} runs")
    numbers = np.arange(1, len(first) + 1)
    look = {"color": QUIET_TEXT, "linewidth": 0.9, "linestyle": "--", "marker": marker, "markersize": 2.5}
    axes.plot(numbers, first, label="the first run", **look)  # type: ignore[arg-type]
    axes.set_xlabel("week", fontsize=9, color=TEXT)
    axes.set_ylabel("goodput of the week (%; the axis does not begin at 0)", fontsize=9, color=TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(axes)


def _draw_runs(axes: Axes, training: WeeklyRuns) -> None:
    ends = _ends_with_a_step(training)
    values = training.outcomes.wall / DAY if ends else 100 * _goodputs(training)
    unit, name = ("d", "wall time of a run (days)") if ends else ("%", "goodput of a run (%)")
    expected = _closed_form(training)
    mean = float(values.mean())
    if len(values) > 1:
        bins = int(np.clip(np.sqrt(len(values)) * 1.5, 5, 60))
        axes.hist(values, bins=bins, color=_RUNS, alpha=0.6)
        half = half_width(values)
        axes.axvspan(mean - half, mean + half, color=_MEAN, alpha=0.25, linewidth=0)
        axes.axvline(mean, color=_MEAN, linewidth=1.8, label=f"mean {mean:.4g} {unit} ± {half:.2g} (95 %)")
        for share in (0.1, 0.9):
            at = float(np.quantile(values, share))
            axes.axvline(
                at, color=QUIET_TEXT, linewidth=1.0, linestyle=":", label=f"p{100 * share:.0f} {at:.4g} {unit}"
            )
    else:
        axes.axvline(mean, color=_MEAN, linewidth=1.8, label=f"the only run {mean:.4g} {unit}")
    if expected is not None:
        axes.axvline(
            expected,
            color=TEXT,
            linewidth=1.3,
            linestyle="--",
            label=f"closed form {expected:.4g} {unit}:\nfailures, restarts, checkpoints",
        )
    axes.set_xlabel(name, fontsize=9, color=TEXT)
    axes.set_ylabel(f"runs, of {len(values):,}", fontsize=9, color=TEXT)
    _finish(axes)


def _ends_with_a_step(training: PlayedRun) -> bool:
    return math.isfinite(training.run.goal) and not math.isfinite(training.run.until)


def _closed_form(training: WeeklyRuns) -> float | None:
    """Of the goodput in percent, or of the days; None where there is none."""
    known = dict(zip(training.expected["closed_form"], training.expected["value"], strict=True))
    share = known.get("goodput, exact", known.get("goodput, two levels"))
    if share is None or share <= 0:
        return None
    run = training.run
    if not _ends_with_a_step(training):
        return 100 * float(share)
    return float(known.get("days", run.goal * run.pattern.step / share / DAY))


def _finish(axes: Axes) -> None:
    axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderaxespad=0.2)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _goodputs(training: PlayedRun) -> Floats:
    return training.outcomes.spent()["productive"] / training.outcomes.wall


def _title(training: WeeklyRuns) -> str:
    values = _goodputs(training)
    spread = f", between {percent(float(np.quantile(values, 0.1)))} and {percent(float(np.quantile(values, 0.9)))}"
    days = float(training.outcomes.wall.mean()) / DAY
    words = f"{training.scenario.name}: {percent(float(values.mean()))} of {days:.3g} days productive"
    return words + (f"{spread} in 8 of 10 runs" if len(values) > 1 else "")
