"""What a loss costs: days and dollars over loss for some sizes of model; days against dollars for more GPUs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from simcluster.base.arrays import Floats
from simcluster.base.counts import format_count, format_dollars
from simcluster.documents.argument_types import checked
from simcluster.longrun.pictures.isoflop_plot import say_range
from simcluster.longrun.scaling.scale import Scaling
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT

_COLOURS = (COMPUTE_KINDS["forward"], STREAMS["tp"], COMPUTE_KINDS["weight_grad"], COMPUTE_KINDS["backward"],
            STREAMS["dp"], STREAMS["ep"], COMPUTE_KINDS["other"])  # fmt: skip


@checked
def costs(found: Scaling, title: str = "") -> Figure:
    """Left: days (and dollars, with a price) over loss, a line a size of model; dashed the cheapest for each loss.

    Right, where variants of several sizes were played: days against dollars (or GPU-hours), a point a variant.
    """
    played = found.batches[found.batches["refused"] == ""] if found.played else found.batches.iloc[:0]
    played = played.sort_values("gpus", kind="stable")
    both = played["gpus"].nunique() > 1
    figure = Figure(figsize=(12.5 if both else 8.2, 5.0), layout="constrained")
    if both:
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _batches(right, found, played)
    else:
        left = figure.subplots()
    _sizes(left, found)
    say_range(figure, found)
    words = f"what a loss costs, by {found.law.name}; {found.asked.rate.words}"
    figure.suptitle(title or words, fontsize=10.5, color=TEXT, x=0.01, ha="left")
    return figure


def _sizes(axes: Axes, found: Scaling) -> None:
    goal, own = found.asked.loss, found.asked.parameters
    table, cheapest = found.costs, _cheapest(found)
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
    many = f"{found.asked.rate.gpus:,} GPUs" if found.asked.rate.gpus else "one GPU"
    _frame(axes, "loss (nats a token), falling", f"days on {many}")
    axes.legend(fontsize=8.5, frameon=False, title="parameters", title_fontsize=8.5, loc="upper left")
    if found.asked.price is not None:
        each = found.asked.price * 24 * (found.asked.rate.gpus or 1)
        money = axes.secondary_yaxis(
            "right", functions=(lambda value: _floats(value) * each, lambda value: _floats(value) / each)
        )
        money.yaxis.set_major_formatter(lambda value, _: format_dollars(value))
        money.set_ylabel(f"dollars at {format_dollars(found.asked.price)} a GPU-hour", fontsize=9, color=TEXT)
        money.tick_params(labelsize=8.5)


def _floats(value: object) -> Floats:
    return np.asarray(value, dtype=np.float64)


def _cheapest(found: Scaling) -> pd.DataFrame:
    """The best model for each of many budgets: loss, days."""
    from simcluster.longrun.scaling.tables import middle

    best = [found.law.optimum(middle(found) * float(factor)) for factor in np.geomspace(0.03, 30, 41)]
    days = [found.asked.rate.days(size.compute) for size in best]
    return pd.DataFrame({"loss": [size.loss or 0.0 for size in best], "days": days})


def _batches(axes: Axes, found: Scaling, played: pd.DataFrame) -> None:
    """More GPUs with larger batches: fewer days, more dollars."""
    priced = found.asked.price is not None
    cost = played["dollars"] if priced else played["days"] * 24 * played["gpus"]
    axes.plot(
        played["days"], cost, "-o", color=COMPUTE_KINDS["forward"], linewidth=1.6, markersize=6, label="simulated"
    )
    same = "the dollars of the fewest GPUs" if priced else "the GPU-hours of the fewest"
    axes.axhline(float(cost.iloc[0]), color=QUIET_TEXT, linewidth=1.0, linestyle="--", label=same)
    points = zip(played["days"], cost, played["gpus"], played["of_critical"], strict=True)
    for days, value, gpus, part in points:
        words, below = f"{gpus:,} GPUs\n{part:.2g} x critical batch", days == played["days"].max()
        axes.annotate(words, (days, value), xytext=(7, -7 if below else 7), textcoords="offset points", fontsize=8.5,
                      va="top" if below else "bottom", color=TEXT)  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.set_xlim(float(played["days"].min()) / 1.4, float(played["days"].max()) * 4)
    axes.set_ylim(0, 1.25 * float(cost.max()))
    axes.yaxis.set_major_formatter(lambda value, _: format_dollars(value) if priced else f"{value:,.0f}")
    axes.set_title(f"to a loss of {found.asked.loss:g}: days against {'dollars' if priced else 'GPU-hours'}",
                   fontsize=9.5, color=TEXT, loc="left")  # fmt: skip
    _frame(axes, "days of steps", "")
    axes.legend(fontsize=8.5, frameon=False, loc="lower left")


def _frame(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9.5, color=TEXT)
    axes.set_ylabel(y, fontsize=9.5, color=TEXT)
    axes.tick_params(labelsize=8.5)
    axes.grid(color="#ECEEF0", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
