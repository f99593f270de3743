"""Plots of ``simcluster advise`` answers, and of the differences between policies of a long run."""

from __future__ import annotations

import math
from itertools import cycle
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter

from simcluster.documents.argument_types import check_arguments
from simcluster.longrun.pictures.lost_time_plot import draw_title
from simcluster.longrun.studies.policy_bench import Advice, AdviceMark
from simcluster.longrun.studies.policy_comparison import MEASURES, PolicyComparison
from simcluster.show.bars import set_up_bar_rows
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, WAITING_HATCH

_LOOKS = ((COMPUTE_KINDS["forward"], "o"), (STREAMS["tp"], "s"), (COMPUTE_KINDS["weight_grad"], "^"))
_WIDE = 92
"""Characters per line of the sentence above the plot."""
_RIGHT = 0.8
_LEAST = 1e-4
"""Lower limit of a logarithmic axis of percentages."""


@check_arguments
def advice(found: Advice) -> Figure:
    """Draw the simulated outcome over the setting that the advice is about, titled with the advice."""
    figure = Figure(figsize=(9.0, 5.4), layout="constrained")
    axes = figure.subplots()
    _draw_advice_lines(axes, found)
    for mark in found.picture.marks:
        _draw_advice_mark(axes, found, mark)
    _set_axes(axes, found)
    axes.legend(frameon=False, fontsize=9, loc="best")
    axes.set_title(
        fill(found.sentence.replace(" %", "\N{NO-BREAK SPACE}%"), _WIDE), fontsize=10, color=TEXT, loc="left"
    )
    words = f"{found.name}; mean of {found.played:,} runs and its 95 % interval"
    figure.supxlabel(words, fontsize=8.5, color=QUIET_TEXT)
    return figure


def _draw_advice_lines(axes: Axes, found: Advice) -> None:
    picture, looks = found.picture, cycle(_LOOKS)
    colour, marker = _LOOKS[0]
    x = found.table[picture.x].to_numpy(dtype=float) / picture.x_unit
    for line in picture.lines:
        y = found.table[line.column].to_numpy(dtype=float) / picture.y_unit
        column = line.half_width_column
        half = found.table[column].to_numpy(dtype=float) / picture.y_unit if column else np.zeros(len(y))
        known = np.isfinite(y)
        if "y" in picture.log_axes:  # which has no place for values near zero
            known &= np.isnan(half) | (y > half / 2)
        if not known.any():
            continue
        low = np.maximum(y - half, y / 5) if "y" in picture.log_axes else y - half
        if line.is_dashed:
            axes.plot(x[known], y[known], "--", color=colour, linewidth=1.2, alpha=0.8, label=line.label)
            continue
        colour, marker = next(looks)
        axes.plot(x[known], y[known], marker=marker, color=colour, linewidth=1.6, markersize=4.5, label=line.label)
        if column:
            axes.fill_between(x[known], low[known], (y + half)[known], color=colour, alpha=0.18, linewidth=0)


def _draw_advice_mark(axes: Axes, found: Advice, mark: AdviceMark) -> None:
    at = mark.x / found.picture.x_unit, mark.y / found.picture.y_unit
    if "y" in found.picture.log_axes:
        at = at[0], max(at[1], _LEAST)  # nothing is drawn on the axis
    face = COMPUTE_KINDS["backward"] if mark.chosen else "white"
    axes.scatter(*at, s=90, facecolor=face, edgecolor=TEXT, linewidth=1.2, zorder=5, clip_on=False)
    last = float(found.table[found.picture.x].max()) / found.picture.x_unit
    left = at[0] > _RIGHT * last  # so that the label stays within the axes
    axes.annotate(
        mark.label, at, xytext=(-9 if left else 9, 9 if mark.chosen else -17), textcoords="offset points",
        ha="right" if left else "left", fontsize=9.5, color=TEXT,
        fontweight="bold" if mark.chosen else "normal", zorder=6,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.0},
    )  # fmt: skip


def _set_axes(axes: Axes, found: Advice) -> None:
    picture = found.picture
    if "x" in picture.log_axes:
        axes.set_xscale("log")
        _thin_ticks(axes, found.table[picture.x].to_numpy(dtype=float) / picture.x_unit)
    if "y" in picture.log_axes:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, place: np.format_float_positional(value, trim="-"))
        if "x" not in picture.log_axes:
            axes.set_ylim(bottom=_LEAST)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(picture.x_label, fontsize=10, color=QUIET_TEXT)
    axes.set_ylabel(picture.y_label, fontsize=10, color=QUIET_TEXT)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _thin_ticks(axes: Axes, x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    x = np.unique(x)
    apart = math.log(x[-1] / x[0]) / 9 if len(x) > 1 else 0.0
    kept = x[:1]
    for value in x[1:]:
        if math.log(value / kept[-1]) > apart:
            kept = np.append(kept, value)
    axes.set_xticks(kept, [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in kept])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)


MOST = 40
"""Most policies that are drawn: the first, and the best of the others."""
_ROW = 0.34  # inches
_AXIS = {
    "goodput": "difference of goodput from the first policy (percentage points)",
    "days": "difference from the first policy (days)",
    "dollars": "difference from the first policy (dollars)",
}
_BETTER = COMPUTE_KINDS["forward"], "o", "better"
_WORSE = STREAMS["tp"], "s", "worse"
_OPEN = WAITING_HATCH, "D", "not distinguishable: the interval includes zero"


@check_arguments
def policies(found: PolicyComparison) -> Figure:
    """Draw each policy's difference from the first policy, with the difference's 95 % confidence interval.

    All meet the same random failures. The mean of the measure is at the right; of many policies the best are drawn.
    """
    shown = _rows_of_best_policies(found)
    figure = Figure(figsize=(9.5, 1.7 + _ROW * len(shown)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color=QUIET_TEXT, linewidth=1)
    axes.text(1.01, 1.01, f"{found.measure}, mean", transform=axes.transAxes, fontsize=8, color=QUIET_TEXT)
    seen = _draw_differences(axes, found, shown)
    set_up_bar_rows(axes, [str(name) for name in shown.index], _AXIS[found.measure])
    axes.grid(axis="x", alpha=0.25)
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="-", linewidth=1.4, markersize=5.5, label=words)
        for colour, marker, words in (_BETTER, _OPEN, _WORSE)
        if words in seen
    ]
    if handles:
        figure.legend(handles=handles, ncols=len(handles), loc="outside lower left", frameon=False, fontsize=8.5)
    draw_title(figure, _conclusion_heading(found), 10)
    words = f"{found.played:,} runs of each policy with the same random failures, 95 % intervals"
    words += f"; the best {len(shown)} of {len(found.table)}" if len(shown) < len(found.table) else ""
    figure.text(0.99, 0.012, words, ha="right", fontsize=8, color=QUIET_TEXT)
    return figure


def _conclusion_heading(found: PolicyComparison) -> str:
    best, means, others = found.best, found.table["mean"], found.table.iloc[1:]
    equal = [str(name) for name, mean in means.items() if math.isclose(mean, means[best], rel_tol=1e-9)]
    if len(equal) > 1:
        return f"{len(equal)} of {len(means)} policies are equally good: {', '.join(equal)}."
    unclear = int((others["difference"].abs() <= others["difference_half_width"]).sum())
    if best != means.index[0] or not unclear:
        return found.sentence
    return f"No policy is distinguishably better than {best}, but {unclear} of the {len(others)} others may be."


def _rows_of_best_policies(found: PolicyComparison) -> pd.DataFrame:
    table = found.table
    if len(table) <= MOST:
        return table
    best = table["mean"].iloc[1:].sort_values(ascending=found.measure != "goodput", kind="stable").index[: MOST - 1]
    return table[table.index.isin([table.index[0], *best])]


def _draw_differences(axes: Axes, found: PolicyComparison, shown: pd.DataFrame) -> set[str]:
    scale = MEASURES[found.measure][0]
    higher = found.measure == "goodput"
    seen = set()
    gaps, halves = (scale * shown[name].to_numpy() for name in ("difference", "difference_half_width"))
    for row, (name, gap, half) in enumerate(zip(shown.index, gaps, halves, strict=True)):
        words = _format_measure(found.measure, float(shown["mean"].iloc[row]))
        weight = "bold" if name == found.best else "normal"
        right = axes.get_yaxis_transform()
        axes.text(1.01, row, words, transform=right, va="center", fontsize=8.5, color=TEXT, fontweight=weight)
        if row == 0:
            axes.scatter(0, 0, marker="|", s=120, color=QUIET_TEXT, zorder=3)
            continue
        colour, marker, look = _OPEN if abs(gap) <= half else _BETTER if (gap > 0) == higher else _WORSE
        axes.errorbar(gap, row, xerr=half, fmt=marker, color=colour, markersize=5.5, capsize=3, linewidth=1.4)
        seen.add(look)
    reach = max(float((abs(gaps) + halves).max()), 1e-9)
    axes.set_xlim(-1.12 * reach, 1.12 * reach)
    return seen


def _format_measure(measure: str, value: float) -> str:
    if measure == "goodput":
        return f"{value:.2%}".replace("%", "\N{NO-BREAK SPACE}%")
    return f"{value:,.2f} d" if measure == "days" else f"{value:,.0f} $"
