"""How much of a run was productive: by week, with a band over the runs, and over all of the runs that were played."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.units import DAY
from simcluster.documents.argument_types import checked
from simcluster.longrun.pictures.run_looks import PlayedRun, PlayedStages, percent, weekly_goodput
from simcluster.results.distribution import half_width
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, rgb

_RUNS, _MEAN = rgb(COMPUTE_KINDS["forward"]), rgb(STREAMS["tp"])


class WeeklyRuns(PlayedRun, Protocol):
    """Played runs with their tables, as `simcluster.train` gives.

    ``weeks`` has week, goodput, p10 and p90; ``expected`` closed_form (its name) and value.
    """

    @property
    def weeks(self) -> pd.DataFrame: ...
    @property
    def expected(self) -> pd.DataFrame: ...


class WeeklyStages(PlayedStages, Protocol):
    """Stages of played runs with their tables; ``wall`` are the seconds of each run, changes of stages among them."""

    @property
    def stages(self) -> Sequence[WeeklyRuns]: ...
    @property
    def wall(self) -> Floats: ...


@checked
def goodput(training: WeeklyRuns | WeeklyStages, title: str = "") -> Figure:
    """At the left goodput by week: mean, 10 to 90 % of the runs, and the run that was played first.

    At the right how many runs had which goodput (or took how many days, where the run ends with a step), with the
    mean, its 95 % interval, and the closed form of failures, restarts and checkpoints alone.  Stages stand one after
    another, each with weeks of its own.  InputError without a run.
    """
    stages = [training] if not isinstance(training, PlayedStages) else list(training.stages)
    if not len(stages[0].outcomes.wall):
        raise InputError("nothing to draw: no run was played; play one or more (run.played)")
    wall = sum((stage.outcomes.wall for stage in stages), np.zeros(1))
    wall = training.wall if isinstance(training, PlayedStages) else wall
    figure = Figure(figsize=(12.0, 4.3), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.45, 1))
    _draw_weeks(left, stages)
    _draw_runs(right, stages, wall)
    figure.suptitle(title or _title(training.scenario.name, stages, wall), fontsize=11.5, color=TEXT, x=0.01, ha="left")
    return figure


def _draw_weeks(axes: Axes, stages: Sequence[WeeklyRuns]) -> None:
    begun, count = 0, len(stages[0].outcomes.wall)
    for number, stage in enumerate(stages):
        table = stage.weeks
        week = begun + table["week"].to_numpy(np.float64)
        low, mean, high = (100 * table[name].to_numpy(np.float64) for name in ("p10", "goodput", "p90"))
        first = 100 * weekly_goodput(stage.outcomes)[0]
        marker = "o" if len(week) <= 60 else ""
        told = number == 0  # in the legend
        if count > 1:
            words = "10 to 90 % of the runs" if told else ""
            axes.fill_between(week, low, high, color=_RUNS, alpha=0.22, linewidth=0, label=words)
        words = f"mean of {count:,} runs" if told else ""
        axes.plot(week, mean, color=_RUNS, linewidth=1.8, marker=marker, markersize=4, label=words)
        numbers = begun + np.arange(1, len(first) + 1)
        look = {"color": QUIET_TEXT, "linewidth": 0.9, "linestyle": "--", "marker": marker, "markersize": 2.5}
        axes.plot(numbers, first, label="the first run" if told else "", **look)  # type: ignore[arg-type]
        if len(stages) > 1:
            look = {"rotation": 90, "va": "bottom", "ha": "right", "fontsize": 8, "color": QUIET_TEXT}
            axes.axvline(begun + 0.5, color=QUIET_TEXT, linewidth=0.8, linestyle=":")
            axes.text(begun + 1.0, 0.03, f"stage {number + 1}", transform=axes.get_xaxis_transform(), **look)  # type: ignore[arg-type]
        begun += len(week)
    weeks = "week" if len(stages) == 1 else "week (each stage begins one)"
    axes.set_xlabel(weeks, fontsize=9, color=TEXT)
    axes.set_ylabel("goodput of the week (%; the axis does not begin at 0)", fontsize=9, color=TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(axes)


def _draw_runs(axes: Axes, stages: Sequence[WeeklyRuns], wall: Floats) -> None:
    ends = all(_ends_with_a_step(stage) for stage in stages)
    values = wall / DAY if ends else 100 * _goodputs(stages, wall)
    unit, name = ("d", "wall time of a run (days)") if ends else ("%", "goodput of a run (%)")
    _draw_histogram(axes, values, unit)
    closed = [_closed_form(stage) for stage in stages]
    known = [each for each in closed if each is not None]
    if len(known) == len(stages) and (ends or len(stages) == 1):
        change = float(wall.mean()) - sum(float(stage.outcomes.wall.mean()) for stage in stages)
        expected = sum(known) + (change / DAY if len(stages) > 1 else 0.0)
        words = f"closed form {expected:.4g} {unit}:\nfailures, restarts, checkpoints"
        axes.axvline(expected, color=TEXT, linewidth=1.3, linestyle="--", label=words)
    axes.set_xlabel(name, fontsize=9, color=TEXT)
    axes.set_ylabel(f"runs, of {len(values):,}", fontsize=9, color=TEXT)
    _finish(axes)


def _draw_histogram(axes: Axes, values: Floats, unit: str) -> None:
    """The values of the runs, with their mean, its interval, and the 10th and 90th percentile."""
    mean = float(values.mean())
    if len(values) == 1:
        axes.axvline(mean, color=_MEAN, linewidth=1.8, label=f"the only run {mean:.4g} {unit}")
        return
    bins = int(np.clip(np.sqrt(len(values)) * 1.5, 5, 60))
    axes.hist(values, bins=bins, color=_RUNS, alpha=0.6)
    half = half_width(values)
    axes.axvspan(mean - half, mean + half, color=_MEAN, alpha=0.25, linewidth=0)
    axes.axvline(mean, color=_MEAN, linewidth=1.8, label=f"mean {mean:.4g} {unit} ± {half:.2g} (95 %)")
    for share in (0.1, 0.9):
        at = float(np.quantile(values, share))
        axes.axvline(at, color=QUIET_TEXT, linewidth=1.0, linestyle=":", label=f"p{100 * share:.0f} {at:.4g} {unit}")


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


def _goodputs(stages: Sequence[WeeklyRuns], wall: Floats) -> Floats:
    """The productive share of each run's wall."""
    useful = sum((stage.outcomes.spent()["productive"] for stage in stages), np.zeros(1))
    return np.asarray(useful / wall)


def _title(name: str, stages: Sequence[WeeklyRuns], wall: Floats) -> str:
    values = _goodputs(stages, wall)
    spread = f", between {percent(float(np.quantile(values, 0.1)))} and {percent(float(np.quantile(values, 0.9)))}"
    days = float(wall.mean()) / DAY
    words = f"{name}: {percent(float(values.mean()))} of {days:.3g} days productive"
    return words + (f"{spread} in 8 of 10 runs" if len(values) > 1 else "")
