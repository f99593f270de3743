"""What a job draws: over a step, around a failure, and over the whole run by what became of its seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.runs import opens
from simcluster.base.units import format_seconds
from simcluster.documents.argument_types import checked
from simcluster.longrun.pictures.run_looks import LOOKS, PlayedRun, PlayedStages, percent
from simcluster.longrun.power import PowerCurve
from simcluster.show.bars import bar_rows
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, WAITING, Colour, rgb, tinted

_FLOOR, _COMPUTE, _MOVES = rgb(WAITING), rgb(COMPUTE_KINDS["forward"]), rgb(STREAMS["tp"])
_POINTS = 1500  # of a curve: as many as a picture has pixels
_BEFORE, _AFTER = 300.0, 300.0  # seconds shown before a failure and after the job trains again
_UNITS = ((1e6, "MW", "MWh"), (1e3, "kW", "kWh"), (1.0, "W", "Wh"))


class DrawnEnergy(Protocol):
    """The energy of played runs, as ``longrun/studies/energy`` gives it: watts, kWh by fate of each run."""

    @property
    def curve(self) -> PowerCurve: ...
    @property
    def computing(self) -> PowerCurve: ...
    @property
    def kwh(self) -> dict[str, Floats]: ...
    @property
    def pue(self) -> float: ...
    @property
    def standing_by(self) -> float: ...
    @property
    def average(self) -> float: ...
    @property
    def peak(self) -> float: ...
    @property
    def low(self) -> float: ...
    def watts(self, fate: str) -> float: ...
    def over(self, log: pd.DataFrame, begin: float, end: float, every: float = ...) -> pd.DataFrame: ...


class DrawingRun(PlayedRun, Protocol):
    """Played runs that know what they draw."""

    @property
    def energy(self) -> DrawnEnergy | None: ...


class DrawingStages(PlayedStages, Protocol):
    """Stages of played runs that know what they draw."""

    @property
    def stages(self) -> Sequence[DrawingRun]: ...


@checked
def power(training: DrawingRun | DrawingStages, title: str = "") -> Figure:
    """Three panels of what the building draws for a job: its healthy step, instant by instant, by what draws it; the
    first run from five minutes before its first outage until five after; and the energy of all runs by fate.  Of stages
    the one that is trained for longest is drawn.

    InputError where nobody says what the GPUs draw.
    """
    if isinstance(training, PlayedStages):
        training = max(training.stages, key=lambda stage: float(stage.outcomes.wall.mean()))
    energy = training.energy
    if energy is None:
        raise InputError(
            "nothing to draw: nobody says what these GPUs take; give run.power.idle and run.power.full, in W"
        )
    scale, unit, of_energy = next(each for each in _UNITS if energy.peak >= each[0] or each[0] == 1.0)
    figure = Figure(figsize=(12.0, 7.4), layout="constrained")
    panels = figure.subplot_mosaic([["step", "step"], ["failure", "energy"]], width_ratios=(1.7, 1))
    _draw_step(panels["step"], energy, scale, unit)
    _draw_failure(panels["failure"], training, energy, scale, unit)
    _draw_energy(panels["energy"], energy, of_energy, scale)
    for name, room in (("step", 1.12), ("failure", 1.28)):
        panels[name].set_ylim(0, room * energy.peak / scale)
    figure.suptitle(title or _title(training, energy, scale, unit), fontsize=11.5, color=TEXT, x=0.01, ha="left")
    return figure


def _draw_step(axes: Axes, energy: DrawnEnergy, scale: float, unit: str) -> None:
    """Stacked: what an idle job draws, what computing adds, what moving bytes and waiting for peers add."""
    end = float(energy.curve.instants[-1])
    at = np.linspace(0.0, end, _POINTS + 1)
    idle = energy.watts("restart") + energy.standing_by
    whole, computing = (
        (energy.pue * _means(curve, at) + energy.standing_by) / scale for curve in (energy.curve, energy.computing)
    )
    floor = np.full(len(whole), idle / scale)
    layers = (
        ("GPUs idle, the rest of the machines, spares", np.zeros_like(floor), floor, _FLOOR),
        ("computation of layers", floor, computing, _COMPUTE),
        ("communication, waiting for it, the optimizer", computing, whole, _MOVES),
    )
    for words, low, high, colour in layers:
        axes.fill_between(at[:-1], low, high, step="post", color=colour, linewidth=0, label=words)
    mean = (energy.pue * energy.curve.mean + energy.standing_by) / scale
    axes.axhline(mean, color=TEXT, linewidth=1.2, linestyle="--", label=f"mean of the step {mean:.4g} {unit}")
    axes.set_xlim(0, end)
    _finish(axes, "time within a step (s)", f"power of the job ({unit})")
    axes.legend(loc="upper center", ncols=4, fontsize=8.5, frameon=False)


def _means(curve: PowerCurve, at: Floats) -> Floats:
    """W from each instant to the next, on average: no peak narrower than a pixel stands for a whole one."""
    joules = np.concatenate([[0.0], np.cumsum(curve.watts * np.diff(curve.instants))])
    return np.asarray(np.diff(np.interp(at, curve.instants, joules)) / np.diff(at))


def _draw_failure(axes: Axes, training: DrawingRun, energy: DrawnEnergy, scale: float, unit: str) -> None:
    """The first outage of the first run (or its first checkpoint, where nothing stops it), by what the job does; of a
    training job the band that each step goes through and its mean."""
    shown, begin, end = _window(training)
    table = energy.over(training.log, begin, end)
    at = (table["at_s"].to_numpy(np.float64) - begin) / 60
    watts, what = table["watts"].to_numpy(np.float64) / scale, table["what"].to_numpy(str)
    step = max(float(energy.curve.instants[-1]), (end - begin) / 400)
    bins = np.floor((table["at_s"].to_numpy() - begin) / step)
    parts = np.flatnonzero(opens(what) | opens(bins))
    mean = np.add.reduceat(watts, parts) / np.diff(np.append(parts, len(watts)))
    seen: dict[str, Colour] = {}
    edges = np.append(at[parts], at[-1])
    for fate in dict.fromkeys(what):
        own = np.append(what[parts] == fate, False)
        colour = seen[fate] = LOOKS[fate][1] if fate != "productive" else tinted(_COMPUTE, 0.55)
        low, high = (
            (energy.low / scale, energy.peak / scale) if fate == "productive" else (0.0, np.append(mean, mean[-1]))
        )
        axes.fill_between(edges, low, high, where=own | np.roll(own, 1), step="post", color=colour, linewidth=0)
    axes.step(edges, np.append(mean, mean[-1]), where="post", color=TEXT, linewidth=1.1)
    axes.set_xlim(0, at[-1])
    names = {fate: "training: what a step goes through" if fate == "productive" else LOOKS[fate][0] for fate in seen}
    handles = [Patch(facecolor=colour, label=names[fate]) for fate, colour in seen.items()]
    axes.legend(handles=handles, loc="upper center", ncols=3, fontsize=8, frameon=False)
    words = "time (min); the line is the mean of each step"
    _finish(axes, f"the first {shown} of the first run: {words}", f"power of the job ({unit})")


def _window(training: DrawingRun) -> tuple[str, float, float]:
    """(of what, begin, end) in wall seconds of what is shown."""
    rows = training.log[training.log["end_s"] > training.log["begin_s"]]
    last, stands = float(rows["end_s"].max()), rows[rows["what"] != "training"]["begin_s"]
    if not len(stands):
        pattern = training.run.pattern
        end = float(pattern.end(np.array(1)))
        return "checkpoint", max(0.0, end - _BEFORE), min(last, end + pattern.storage.write + _AFTER)
    first = float(stands.iloc[0])
    trains = rows[(rows["what"] == "training") & (rows["begin_s"] > first)]["begin_s"]
    again = float(trains.iloc[0]) if len(trains) else last
    return "outage", max(0.0, first - _BEFORE), min(again + _AFTER, last)


def _draw_energy(axes: Axes, energy: DrawnEnergy, unit: str, scale: float) -> None:
    """A bar a fate, but for what is productive, with its share of all."""
    mean = {fate: float(each.mean()) * 1e3 / scale for fate, each in energy.kwh.items()}
    whole = sum(mean.values())
    rest = {fate: each for fate, each in mean.items() if fate != "productive" and each > 5e-5 * whole}
    order = sorted(rest, key=lambda fate: -rest[fate])
    names = {fate: LOOKS[fate][0] if fate in LOOKS else "spares that stand by" for fate in order}
    most = max(rest.values(), default=1.0)
    for row, fate in enumerate(order):
        axes.barh(row, rest[fate], height=0.66, color=LOOKS[fate][1] if fate in LOOKS else _FLOOR, linewidth=0)
        words = f"{rest[fate]:,.4g} {unit}, {percent(rest[fate] / whole)}"
        axes.text(rest[fate] + 0.02 * most, row, words, va="center", fontsize=8, color=TEXT)
    bar_rows(axes, [names[fate] for fate in order], size=8.5)
    axes.set_xlim(0, 1.75 * most)
    kept = mean["productive"]
    axes.set_xlabel(
        f"energy of a run ({unit}); training that is kept takes {kept:,.5g}, {percent(kept / whole)}",
        fontsize=8.5, color=QUIET_TEXT, loc="right",
    )  # fmt: skip


def _finish(axes: Axes, along: str, up: str) -> None:
    axes.set_xlabel(along, fontsize=9, color=TEXT)
    axes.set_ylabel(up, fontsize=9, color=TEXT)
    axes.tick_params(labelsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)


def _title(training: DrawingRun, energy: DrawnEnergy, scale: float, unit: str) -> str:
    step = format_seconds(float(energy.curve.instants[-1]))
    return (
        f"{training.scenario.name}: {energy.average / scale:.3g} {unit} on average; a step of {step} goes from "
        f"{energy.low / scale:.3g} to {energy.peak / scale:.3g} {unit}"
    )
