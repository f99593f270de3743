"""Policies compared: how far each is from the first, with the interval of that, the best marked."""

from __future__ import annotations

from textwrap import fill

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simcluster.documents.argument_types import checked
from simcluster.longrun.studies.comparing import MEASURES, PolicyComparison
from simcluster.show.bars import bar_rows
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, WAITING_HATCH

MOST = 40
"""Policies that are drawn: the first, and the best of the others."""
_ROW = 0.34  # inches
_WIDE = 100
_AXIS = {
    "goodput": "goodput, against the first (points)",
    "days": "days, against the first",
    "dollars": "dollars, against the first",
}
_BETTER = COMPUTE_KINDS["forward"], "o", "better"
_WORSE = STREAMS["tp"], "s", "worse"
_OPEN = WAITING_HATCH, "D", "zero is in the interval"


@checked
def policies(found: PolicyComparison) -> Figure:
    """A row a policy: its difference from the first, which stands above, as a point with the 95 % interval, on common
    random numbers, and the mean of its measure in words.  Of many the best are drawn."""
    shown = _shown(found)
    figure = Figure(figsize=(9.5, 1.7 + _ROW * len(shown)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color=QUIET_TEXT, linewidth=1)
    axes.text(1.01, 1.01, f"{found.measure}, mean", transform=axes.transAxes, fontsize=8, color=QUIET_TEXT)
    seen = _points(axes, found, shown)
    bar_rows(axes, [str(name) for name in shown.index], _AXIS[found.measure])
    axes.grid(axis="x", alpha=0.25)
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="-", linewidth=1.4, markersize=5.5, label=words)
        for colour, marker, words in (_BETTER, _OPEN, _WORSE)
        if words in seen
    ]
    if handles:
        figure.legend(handles=handles, ncols=len(handles), loc="outside lower left", frameon=False, fontsize=8.5)
    axes.set_title(fill(found.sentence, _WIDE), fontsize=10, color=TEXT, loc="left")
    words = f"{found.played:,} runs of each on the same failures, 95 % intervals"
    words += f"; the best {len(shown)} of {len(found.table)}" if len(shown) < len(found.table) else ""
    figure.text(0.99, 0.012, words, ha="right", fontsize=8, color=QUIET_TEXT)
    return figure


def _shown(found: PolicyComparison) -> pd.DataFrame:
    """The first, and the best of the others in their order."""
    table = found.table
    if len(table) <= MOST:
        return table
    best = table["mean"].iloc[1:].sort_values(ascending=found.measure != "goodput", kind="stable").index[: MOST - 1]
    return table[table.index.isin([table.index[0], *best])]


def _points(axes: Axes, found: PolicyComparison, shown: pd.DataFrame) -> set[str]:
    """The differences and their intervals; returns the looks that there are, by what they say."""
    scale, higher, seen = MEASURES[found.measure][0], found.measure == "goodput", set()
    gaps, halves = (scale * shown[name].to_numpy() for name in ("difference", "difference_half_width"))
    for row, (name, gap, half) in enumerate(zip(shown.index, gaps, halves, strict=True)):
        words, weight = _mean(found.measure, float(shown["mean"].iloc[row])), "bold" if name == found.best else "normal"
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


def _mean(measure: str, value: float) -> str:
    if measure == "goodput":
        return f"{value:.2%}".replace("%", "\N{NO-BREAK SPACE}%")
    return f"{value:,.2f} d" if measure == "days" else f"{value:,.0f} $"
