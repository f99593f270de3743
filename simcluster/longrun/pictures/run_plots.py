"""Plots of long runs: goodput by week and by run; power within a step and around an outage."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from simcluster.base.arrays import Floats, run_start_mask
from simcluster.base.errors import InputError
from simcluster.base.units import DAY, format_seconds
from simcluster.documents.argument_types import check_arguments
from simcluster.longrun.pictures.lost_time_plot import LOOKS, draw_title, format_share, goodput_by_run_and_week
from simcluster.longrun.studies.run_costs import RunEnergy
from simcluster.longrun.studies.staged_training import StagedTraining
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.results.distribution import confidence_half_width
from simcluster.show.bars import label_axes, set_up_bar_rows
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, WAITING, Colour, parse_rgb, tint_colour

_RUNS, _MEAN = parse_rgb(COMPUTE_KINDS["forward"]), parse_rgb(STREAMS["tp"])


@check_arguments
def goodput(training: TrainingRun | StagedTraining, title: str = "") -> Figure:
    """Draw goodput by week (mean, 10 to 90 % of the runs, first run), and a histogram of goodput over the runs.

    The histogram (of days, if the run ends with a step) has the mean, its 95 % interval, and the closed form of
    failures, restarts and checkpoints alone; a run of a single week has only the histogram. Stages stand one after
    another, each with separate weeks. InputError without a run.
    """
    stages = [training] if not isinstance(training, StagedTraining) else list(training.stages)
    if not len(stages[0].outcomes.wall):
        raise InputError("nothing to draw: no run was simulated; simulate one or more (run.played)")
    several = sum(len(stage.weeks) for stage in stages) > 1
    figure = Figure(figsize=(12.0 if several else 8.0, 4.3), layout="constrained")
    panels = figure.subplots(1, 1 + several, width_ratios=(1.45, 1)[-1 - several :], squeeze=False)[0]
    if several:
        _draw_weekly_goodput(panels[0], stages)
    _draw_run_histogram(panels[-1], stages, training.wall)
    values, days = _goodput_by_run(stages, training.wall), float(training.wall.mean()) / DAY
    words = f"{training.scenario.name}: {format_share(float(values.mean()))} of {days:.3g} days productive"
    if len(values) > 1:
        low, high = (format_share(float(np.quantile(values, share))) for share in (0.1, 0.9))
        words += f", between {low} and {high} in 8 of 10 runs"
    draw_title(figure, title or words)
    return figure


def _draw_weekly_goodput(axes: Axes, stages: Sequence[TrainingRun]) -> None:
    begun, count = 0, len(stages[0].outcomes.wall)
    for number, stage in enumerate(stages):
        table = stage.weeks
        week = begun + table["week"].to_numpy(np.float64)
        low, mean, high = (100 * table[name].to_numpy(np.float64) for name in ("p10", "goodput", "p90"))
        first = 100 * goodput_by_run_and_week(stage.outcomes)[0]
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
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    weeks = "week" if len(stages) == 1 else "week (each stage begins one)"
    _label_axes(axes, weeks, "goodput of the week (%; the axis does not begin at 0)")


def _draw_run_histogram(axes: Axes, stages: Sequence[TrainingRun], wall: Floats) -> None:
    ends = all(_ends_with_a_step(stage) for stage in stages)
    values = wall / DAY if ends else 100 * _goodput_by_run(stages, wall)
    unit, name = ("d", "wall time of a run (days)") if ends else ("%", "goodput of a run (%)")
    _draw_histogram(axes, values, unit)
    known = [each for each in [_closed_form_goodput(stage) for stage in stages] if each is not None]
    if len(known) == len(stages) and (ends or len(stages) == 1):
        change = float(wall.mean()) - sum(float(stage.outcomes.wall.mean()) for stage in stages)
        expected = sum(known) + (change / DAY if len(stages) > 1 else 0.0)
        words = f"closed form {expected:.4g} {unit}:\nfailures, restarts, checkpoints"
        axes.axvline(expected, color=TEXT, linewidth=1.3, linestyle="--", label=words)
    _label_axes(axes, name, f"number of runs (of {len(values):,})")


def _draw_histogram(axes: Axes, values: Floats, unit: str) -> None:
    mean = float(values.mean())
    if len(values) == 1:
        axes.axvline(mean, color=_MEAN, linewidth=1.8, label=f"the only run {mean:.4g} {unit}")
        return
    axes.hist(values, bins=int(np.clip(np.sqrt(len(values)) * 1.5, 5, 60)), color=_RUNS, alpha=0.6)
    half = confidence_half_width(values)
    axes.axvspan(mean - half, mean + half, color=_MEAN, alpha=0.25, linewidth=0)
    axes.axvline(mean, color=_MEAN, linewidth=1.8, label=f"mean {mean:.4g} {unit} ± {half:.2g} (95 %)")
    for share in (0.1, 0.9):
        at = float(np.quantile(values, share))
        axes.axvline(at, color=QUIET_TEXT, linewidth=1.0, linestyle=":", label=f"p{100 * share:.0f} {at:.4g} {unit}")


def _ends_with_a_step(training: TrainingRun) -> bool:
    return math.isfinite(training.run.goal) and not math.isfinite(training.run.until)


def _closed_form_goodput(training: TrainingRun) -> float | None:
    known = dict(zip(training.expected["closed_form"], training.expected["value"], strict=True))
    share = known.get("goodput, exact", known.get("goodput, two levels"))
    if share is None or share <= 0:
        return None
    run = training.run
    if not _ends_with_a_step(training):
        return 100 * float(share)
    return float(known.get("days", run.goal * run.pattern.step / share / DAY))


def _label_axes(axes: Axes, x: str, y: str) -> None:
    axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderaxespad=0.2)
    label_axes(axes, x, y)


def _goodput_by_run(stages: Sequence[TrainingRun], wall: Floats) -> Floats:
    useful = sum((stage.outcomes.seconds_by_category()["productive"] for stage in stages), np.zeros(1))
    return np.asarray(useful / wall)


_FLOOR, _COMPUTE, _MOVES = parse_rgb(WAITING), parse_rgb(COMPUTE_KINDS["forward"]), parse_rgb(STREAMS["tp"])
_POINTS = 1500  # of a curve: as many as a picture has pixels
_BEFORE, _AFTER = 300.0, 300.0  # seconds shown before a failure and after the job trains again
_UNITS = ((1e6, "MW", "MWh"), (1e3, "kW", "kWh"), (1.0, "W", "Wh"))


@check_arguments
def power(training: TrainingRun | StagedTraining, title: str = "") -> Figure:
    """Draw the job's power within a healthy step and around an outage, and the run's energy by time category.

    The step is drawn by what draws the power; the outage is the first of the first run, with five minutes before and
    after. Of stages the longest one is drawn. InputError if the power of the GPUs is unknown.
    """
    if isinstance(training, StagedTraining):
        training = max(training.stages, key=lambda stage: float(stage.outcomes.wall.mean()))
    energy = training.energy
    if energy is None:
        raise InputError(
            "nothing to draw: the power of these GPUs is unknown; set run.power.idle and run.power.full, in W"
        )
    scale, unit, of_energy = next(each for each in _UNITS if energy.peak >= each[0] or each[0] == 1.0)
    figure = Figure(figsize=(12.0, 7.4), layout="constrained")
    panels = figure.subplot_mosaic([["step", "step"], ["failure", "energy"]], width_ratios=(1.7, 1))
    _draw_step_power(panels["step"], energy, scale, unit)
    _draw_power_around_outage(panels["failure"], training, energy, scale, unit)
    _draw_energy_by_category(panels["energy"], energy, of_energy, scale)
    for name, room in (("step", 1.12), ("failure", 1.28)):
        panels[name].set_ylim(0, room * energy.peak / scale)
    draw_title(
        figure,
        title
        or f"{training.scenario.name}: {energy.average / scale:.3g} {unit} on average; a step "
        f"{format_seconds(float(energy.curve.instants[-1]))} varies from {energy.low / scale:.3g} to "
        f"{energy.peak / scale:.3g} {unit}",
    )
    return figure


def _draw_step_power(axes: Axes, energy: RunEnergy, scale: float, unit: str) -> None:
    end = float(energy.curve.instants[-1])
    at = np.linspace(0.0, end, _POINTS + 1)
    idle = energy.mean_watts("restart") + energy.standing_by
    means = []  # of each instant to the next: no peak narrower than a pixel is drawn as wide as one
    for curve in (energy.curve, energy.computation_power_curve):
        joules = np.concatenate([[0.0], np.cumsum(curve.watts * np.diff(curve.instants))])
        watts = np.diff(np.interp(at, curve.instants, joules)) / np.diff(at)
        means.append((energy.pue * watts + energy.standing_by) / scale)
    whole, computing = means
    floor = np.full(len(whole), idle / scale)
    layers = (
        ("idle GPUs, the rest of the nodes, spares", np.zeros_like(floor), floor, _FLOOR),
        ("layer computation", floor, computing, _COMPUTE),
        ("communication, waiting for it, the optimizer", computing, whole, _MOVES),
    )
    for words, low, high, colour in layers:
        axes.fill_between(at[:-1], low, high, step="post", color=colour, linewidth=0, label=words)
    mean = (energy.pue * energy.curve.mean + energy.standing_by) / scale
    axes.axhline(mean, color=TEXT, linewidth=1.2, linestyle="--", label=f"mean of the step {mean:.4g} {unit}")
    axes.set_xlim(0, end)
    label_axes(axes, "time within a step (s)", f"power of the job ({unit})", tick_size=8.5)
    axes.legend(loc="upper center", ncols=4, fontsize=8.5, frameon=False)


def _draw_power_around_outage(axes: Axes, training: TrainingRun, energy: RunEnergy, scale: float, unit: str) -> None:
    """Draw power by activity around the first run's first outage, or around a checkpoint if none."""
    shown, begin, end = _outage_window(training)
    table = energy.sample_power(training.log, begin, end)
    at = (table["at_s"].to_numpy(np.float64) - begin) / 60
    watts, what = table["watts"].to_numpy(np.float64) / scale, table["what"].to_numpy(str)
    step = max(float(energy.curve.instants[-1]), (end - begin) / 400)
    bins = np.floor((table["at_s"].to_numpy() - begin) / step)
    parts = np.flatnonzero(run_start_mask(what) | run_start_mask(bins))
    mean = np.add.reduceat(watts, parts) / np.diff(np.append(parts, len(watts)))
    seen: dict[str, Colour] = {}
    edges = np.append(at[parts], at[-1])
    for fate in dict.fromkeys(what):
        own = np.append(what[parts] == fate, False)
        colour = seen[fate] = LOOKS[fate][1] if fate != "productive" else tint_colour(_COMPUTE, 0.55)
        low, high = (
            (energy.low / scale, energy.peak / scale) if fate == "productive" else (0.0, np.append(mean, mean[-1]))
        )
        axes.fill_between(edges, low, high, where=own | np.roll(own, 1), step="post", color=colour, linewidth=0)
    axes.step(edges, np.append(mean, mean[-1]), where="post", color=TEXT, linewidth=1.1)
    axes.set_xlim(0, at[-1])
    names = {fate: "training: range within a step" if fate == "productive" else LOOKS[fate][0] for fate in seen}
    handles = [Patch(facecolor=colour, label=names[fate]) for fate, colour in seen.items()]
    axes.legend(handles=handles, loc="upper center", ncols=3, fontsize=8, frameon=False)
    words = f"the first {shown} of the first run: time (min); the line is the mean of each step"
    label_axes(axes, words, f"power of the job ({unit})", tick_size=8.5)


def _outage_window(training: TrainingRun) -> tuple[str, float, float]:
    rows = training.log[training.log["end_s"] > training.log["begin_s"]]
    last, stands = float(rows["end_s"].max()), rows[rows["what"] != "training"]["begin_s"]
    if not len(stands):
        pattern = training.run.pattern
        end = float(pattern.snapshot_end(np.array(1)))
        return "checkpoint", max(0.0, end - _BEFORE), min(last, end + pattern.storage.write + _AFTER)
    first = float(stands.iloc[0])
    trains = rows[(rows["what"] == "training") & (rows["begin_s"] > first)]["begin_s"]
    again = float(trains.iloc[0]) if len(trains) else last
    return "outage", max(0.0, first - _BEFORE), min(again + _AFTER, last)


def _draw_energy_by_category(axes: Axes, energy: RunEnergy, unit: str, scale: float) -> None:
    mean = {fate: float(each.mean()) * 1e3 / scale for fate, each in energy.kwh.items()}
    whole = sum(mean.values())
    rest = {fate: each for fate, each in mean.items() if fate != "productive" and each > 5e-5 * whole}
    order = sorted(rest, key=lambda fate: -rest[fate])
    names = {fate: LOOKS[fate][0] if fate in LOOKS else "standby spares" for fate in order}
    most = max(rest.values(), default=1.0)
    for row, fate in enumerate(order):
        axes.barh(row, rest[fate], height=0.66, color=LOOKS[fate][1] if fate in LOOKS else _FLOOR, linewidth=0)
        words = f"{rest[fate]:,.4g} {unit}, {format_share(rest[fate] / whole)}"
        axes.text(rest[fate] + 0.02 * most, row, words, va="center", fontsize=8, color=TEXT)
    set_up_bar_rows(axes, [names[fate] for fate in order], size=8.5)
    axes.set_xlim(0, 1.75 * most)
    kept = mean["productive"]
    axes.set_xlabel(
        f"energy of a run ({unit}); productive training takes {kept:,.5g}, {format_share(kept / whole)}",
        fontsize=8.5, color=QUIET_TEXT, loc="right",
    )  # fmt: skip
