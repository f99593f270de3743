"""Plots of loss laws: isoFLOP curves, and the days and dollars that reaching a loss takes."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from simcluster.base.counts import format_count, format_dollars
from simcluster.documents.argument_types import check_arguments
from simcluster.longrun.budget.loss_laws import ModelSize
from simcluster.longrun.pictures.lost_time_plot import annotate_point, draw_title
from simcluster.longrun.scaling.scaling_result import ScalingResult
from simcluster.show.bars import label_axes
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, Colour, parse_rgb, tint_colour

_CURVE, _PATH, _OWN = map(parse_rgb, (COMPUTE_KINDS["forward"], STREAMS["tp"], COMPUTE_KINDS["optimizer"]))
_COLOURS = (COMPUTE_KINDS["forward"], STREAMS["tp"], COMPUTE_KINDS["weight_grad"], COMPUTE_KINDS["backward"],
            STREAMS["dp"], STREAMS["ep"], COMPUTE_KINDS["other"])  # fmt: skip
_TINTS = (0.72, 0.5, 0.0, 0.5, 0.72)
_PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1.0}
_WORDS = 10.0  # labels of models that are nearer (a factor of parameters) would overlap
_WIDE = 12.0  # how far from the best model a curve is drawn: a factor of parameters


@check_arguments
def isoflop(found: ScalingResult, title: str = "") -> Figure:
    """Draw loss over model size, one curve per compute budget (isoFLOP curves).

    Dots are the best models, the star is yours; grey is beyond the range of the law's fitted runs.
    """
    figure = Figure(figsize=(9.2, 5.2), layout="constrained")
    axes = figure.subplots()
    budgets = list(found.isoflop.groupby("compute", sort=True))
    best = [found.law.compute_optimal_size(float(str(compute))) for compute, _ in budgets]
    for (_, part), size, tint in zip(budgets, best, _TINTS, strict=True):
        near = part[np.abs(np.log(part["parameters"] / size.parameters)) <= np.log(_WIDE)]
        axes.plot(near["parameters"], near["loss"], color=tint_colour(_CURVE, tint), linewidth=2.4 if not tint else 1.5)
        last = near.iloc[-1]
        words = f"{size.compute:.3g} FLOP".replace("e+", "e")
        colour = QUIET_TEXT if tint else TEXT
        annotate_point(axes, words, (last["parameters"], last["loss"]), (5, 0), va="center", color=colour)
    sizes, losses = [size.parameters for size in best], [size.loss or 0.0 for size in best]
    axes.plot(sizes, losses, "--o", color=_PATH, linewidth=1.3, markersize=5, label="best model for each budget")
    _mark_models(axes, found)
    _shade_extrapolation(axes, found, (min(sizes) / _WIDE, max(sizes) * _WIDE))
    axes.legend(fontsize=9, frameon=False, loc="upper center", ncols=3)
    _draw_fitted_range(figure, found)
    draw_title(figure, title or f"{found.law.formula()}   ({found.law.name})", 11)
    return figure


def _draw_fitted_range(figure: Figure, found: ScalingResult) -> None:
    said = f"{found.law.name} was fitted on {found.law.describe_range()}; beyond is extrapolated"
    figure.supxlabel(said, fontsize=8, color=QUIET_TEXT, x=0.01, ha="left")


def _mark_models(axes: Axes, found: ScalingResult) -> None:

    def label_model(size: ModelSize, shift: float, colour: Colour, **look: str) -> None:
        words = f"{format_count(size.parameters)}, {format_count(size.tokens)} tokens\nloss {size.loss:.3f}"
        at = size.parameters, size.loss or 0.0
        annotate_point(axes, words, at, (0, shift), ha="center", color=colour, bbox=_PAPER, **look)

    if found.best is not None and found.best.loss is not None:
        label_model(found.best, 9, _PATH)
    own = found.own if found.own is not None else found.to_loss
    if own is None or own.loss is None or not np.isfinite(own.tokens):
        return
    axes.plot([own.parameters], [own.loss], "*", color=_OWN, markersize=14, label="your model", zorder=5)
    below = found.best is not None and abs(math.log(own.parameters / found.best.parameters)) < math.log(_WORDS)
    label_model(own, -11 if below else 11, _OWN, va="top" if below else "bottom")


def _shade_extrapolation(axes: Axes, found: ScalingResult, ends: tuple[float, float]) -> None:
    axes.set_xscale("log")
    low, high = ends
    axes.set_xlim(low / 1.2, high * 3.5)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom - 0.1 * (top - bottom), top + 0.12 * (top - bottom))
    fitted = found.law.parameters
    if fitted is not None and fitted[1] < high * 3.5:
        begin = max(fitted[1], low / 1.2)
        axes.axvspan(begin, high * 3.5, color="#ECEEF0", zorder=0, linewidth=0)
        words = f" beyond the runs of the fit: above {format_count(fitted[1])}"
        axes.annotate(words, (begin, 0.015), xycoords=("data", "axes fraction"), fontsize=8.5, color=QUIET_TEXT)
    axes.xaxis.set_major_formatter(lambda value, _: format_count(value))
    label_axes(axes, "parameters", "loss (nats per token)", size=9.5, tick_size=10, grid="#DDE0E3")


@check_arguments
def costs(found: ScalingResult, title: str = "") -> Figure:
    """Draw training days (or dollars) over loss for each model size, and days against dollars of scenario variants.

    Left: a line per model size; dashed the cheapest for each loss. Right, where variants of several sizes were
    simulated: a point per variant, days against dollars (or GPU-hours).
    """
    played = found.batches[found.batches["refused"] == ""] if found.variants else found.batches.iloc[:0]
    played = played.sort_values("gpus", kind="stable")
    both = played["gpus"].nunique() > 1
    figure = Figure(figsize=(12.5 if both else 8.2, 5.0), layout="constrained")
    if both:
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _draw_variants(right, found, played)
    else:
        left = figure.subplots()
    _draw_costs_by_size(left, found)
    _draw_fitted_range(figure, found)
    draw_title(figure, title or f"cost of reaching a loss, by {found.law.name}; {found.request.rate.description}", 10.5)
    return figure


def _draw_costs_by_size(axes: Axes, found: ScalingResult) -> None:
    goal, own = found.request.loss, found.request.parameters
    table, cheapest = found.costs, _cheapest_by_loss(found)
    lowest, highest = float(cheapest["loss"].min()), float(cheapest["loss"].max())
    for (name, part), colour in zip(table.groupby("parameters", sort=True), _COLOURS, strict=False):
        size = float(str(name))
        mine = own is not None and abs(size / own - 1) < 1e-9
        label = f"{format_count(size)}{' (yours)' if mine else ''}"
        axes.plot(part["loss"], part["days"], color=colour, linewidth=2.8 if mine else 1.3, label=label)
    axes.plot(cheapest["loss"], cheapest["days"], "--", color=TEXT, linewidth=1.2, label="the best size for each loss")
    if goal is not None:
        axes.axvline(goal, color=QUIET_TEXT, linewidth=0.9, linestyle=":")
        axes.annotate(f" loss {goal:g}", (goal, 0.01), xycoords=("data", "axes fraction"), fontsize=8.5,
                      color=QUIET_TEXT)  # fmt: skip
    axes.set_xlim(highest, lowest)
    days = cheapest["days"]
    axes.set_ylim(float(days.min()) / 1.5, float(days.max()) * 6)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    many = f"{found.request.rate.gpus:,} GPUs" if found.request.rate.gpus else "one GPU"
    label_axes(axes, "loss (nats per token), falling", f"days on {many}", size=9.5, tick_size=8.5, grid="#ECEEF0")
    axes.legend(fontsize=8.5, frameon=False, title="parameters", title_fontsize=8.5, loc="upper left")
    if found.request.price is not None:
        each = found.request.price * 24 * (found.request.rate.gpus or 1)
        money = axes.secondary_yaxis(
            "right", functions=(lambda value: np.asarray(value) * each, lambda value: np.asarray(value) / each)
        )
        money.yaxis.set_major_formatter(lambda value, _: format_dollars(value))
        money.set_ylabel(f"dollars at {format_dollars(found.request.price)} per GPU-hour", fontsize=9, color=TEXT)
        money.tick_params(labelsize=8.5)


def _cheapest_by_loss(found: ScalingResult) -> pd.DataFrame:
    best = [found.law.compute_optimal_size(found.central_compute * float(each)) for each in np.geomspace(0.03, 30, 41)]
    days = [found.request.rate.days(size.compute) for size in best]
    return pd.DataFrame({"loss": [size.loss or 0.0 for size in best], "days": days})


def _draw_variants(axes: Axes, found: ScalingResult, variants: pd.DataFrame) -> None:
    priced = found.request.price is not None
    cost = variants["dollars"] if priced else variants["days"] * 24 * variants["gpus"]
    axes.plot(
        variants["days"], cost, "-o", color=COMPUTE_KINDS["forward"], linewidth=1.6, markersize=6, label="simulated"
    )
    same = "dollars with the fewest GPUs" if priced else "GPU-hours with the fewest GPUs"
    axes.axhline(float(cost.iloc[0]), color=QUIET_TEXT, linewidth=1.0, linestyle="--", label=same)
    points = zip(variants["days"], cost, variants["gpus"], variants["of_critical"], strict=True)
    for days, value, gpus, part in points:
        words = f"{gpus:,} GPUs\n{part:.2g} x critical batch"
        below = days == variants["days"].max()
        annotate_point(axes, words, (days, value), (7, -7 if below else 7), va="top" if below else "bottom")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.set_xlim(float(variants["days"].min()) / 1.4, float(variants["days"].max()) * 4)
    axes.set_ylim(0, 1.25 * float(cost.max()))
    axes.yaxis.set_major_formatter(lambda value, _: format_dollars(value) if priced else f"{value:,.0f}")
    title = f"to a loss of {found.request.loss:g}: days against {'dollars' if priced else 'GPU-hours'}"
    label_axes(axes, "days of training steps", "", title, size=9.5, tick_size=8.5, grid="#ECEEF0")
    axes.legend(fontsize=8.5, frameon=False, loc="lower left")
