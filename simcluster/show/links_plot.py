"""A picture of the links at work: the hottest ones over time, and how full they are on average.

Links that are exactly alike are one row.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.units import format_bytes_per_second
from simcluster.documents.argument_types import checked
from simcluster.results.loads import hottest_over_time
from simcluster.results.result import Result
from simcluster.show.palette import COMPUTE_KINDS, LANE_SURROUND, QUIET_TEXT, STREAMS, TEXT

_FILL = LinearSegmentedColormap.from_list(
    "utilisation", ["#FFFFFF", COMPUTE_KINDS["forward"], STREAMS["dp"], "#140E36"]
)
_ROW_HEIGHT = 0.26
_TOPS = (0.01, 0.05, 0.2, 0.5, 1.0)  # where the scale may end
_ALIKE = 1e-3  # of the capacity: both directions of a link with less between them are one row


@checked
def links(result: Result, *, n: int = 20, bins: int = 400, title: str | None = None) -> Figure:
    """The ``n`` hottest links of a result, a row each: utilisation over time on the left, mean and peak on the right.

    A row stands for all links with equal numbers between equal kinds of node ("x64"), and is named by the first.  The
    figure belongs to no window: ``savefig`` it.  InputError where no link carries anything.
    """
    table, edges, matrix = hottest_over_time(result, n, bins)
    if table.empty:
        raise InputError("no link carries anything in this run: it has no collective or transfer between GPUs")
    return plot_rows(table, edges, matrix, title=title or f"{result.scenario.title}: hottest links")


def plot_rows(rows: pd.DataFrame, edges: Floats, matrix: Floats, *, title: str) -> Figure:
    """Links, a row each as in ``hottest``; ``matrix[row, bin]`` is rate / capacity between ``edges`` (s).

    Both directions of links that are alike are one row.
    """
    rows, matrix = _both_ways(rows, matrix)
    figure = Figure(figsize=(13.0, 1.9 + _ROW_HEIGHT * len(rows)), layout="constrained")
    over_time, mean = figure.subplots(1, 2, sharey=True, width_ratios=[4.2, 1.0])
    _draw_heat(figure, over_time, edges, matrix)
    _draw_bars(mean, rows)
    columns = ("link_from", "link_to", "links", "capacity", "both")
    names = [_name(*row) for row in zip(*(rows[name].tolist() for name in columns), strict=True)]
    over_time.set_yticks(np.arange(len(rows)), names, fontsize=8, color=TEXT)
    over_time.set_ylim(len(rows) - 0.5, -0.5)
    figure.suptitle(title, fontsize=11, color=TEXT)
    return figure


def _both_ways(rows: pd.DataFrame, matrix: Floats) -> tuple[pd.DataFrame, Floats]:
    """The rows without those that are another's way back with the same numbers at any time; "both" says which."""
    places = {ends: at for at, ends in enumerate(zip(rows["link_from"], rows["link_to"], strict=True))}
    numbers = rows[["links", "capacity", "utilisation", "peak_utilisation"]].to_numpy(np.float64)
    both, kept = np.zeros(len(rows), np.bool_), []
    for (a, b), at in places.items():
        back = places.get((b, a))
        if back is None or not (
            np.allclose(numbers[at], numbers[back], rtol=_ALIKE, atol=0)
            and np.allclose(matrix[at], matrix[back], rtol=0, atol=_ALIKE)
        ):
            kept.append(at)
        elif at < back:
            both[at] = True
            kept.append(at)
    return rows.assign(both=both).iloc[kept].reset_index(drop=True), matrix[kept]


def _name(a: str, b: str, links: int, capacity: float, both: bool) -> str:
    alike = f"  ×{links:,}" if links > 1 else ""
    return f"{a} {'↔' if both else '→'} {b}{alike}   {format_bytes_per_second(capacity)}"


def _draw_heat(figure: Figure, axes: Axes, edges: Floats, matrix: Floats) -> None:
    rows = np.arange(len(matrix) + 1) - 0.5
    scale, unit = (1.0, "s") if edges[-1] >= 1 else (1e3, "ms") if edges[-1] >= 1e-3 else (1e6, "us")
    # above 1 only by counting spans at their mean rates: the link was full
    most = float(np.minimum(matrix, 1.0).max())
    top = next(each for each in _TOPS if each >= most - 1e-9)
    norm = PowerNorm(0.5, 0.0, top)  # a few percent are seen beside a link that is full
    heat = axes.pcolormesh(edges * scale, rows, np.minimum(matrix, 1.0), cmap=_FILL, norm=norm)
    heat.set_rasterized(True)
    axes.hlines(rows[1:-1], 0.0, edges[-1] * scale, color=LANE_SURROUND, linewidth=0.6)
    axes.set_xlabel(f"time ({unit})", fontsize=9, color=TEXT)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    bar = figure.colorbar(heat, ax=axes, location="top", shrink=0.35, aspect=36, pad=0.02)
    ticks = [0.0, 0.1 * top, 0.4 * top, top]
    bar.set_ticks(ticks, labels=["idle", *(f"{100 * tick:.3g} %" for tick in ticks[1:])], fontsize=8)
    bar.set_label("of the link's capacity", fontsize=8, color=TEXT)
    bar.outline.set_edgecolor(QUIET_TEXT)


def _draw_bars(axes: Axes, rows: pd.DataFrame) -> None:
    places = np.arange(len(rows))
    axes.barh(places, 100 * rows["utilisation"], height=0.62, color=COMPUTE_KINDS["forward"], label="mean")
    axes.plot(100 * rows["peak_utilisation"], places, "|", color=TEXT, markersize=9, markeredgewidth=1.6, label="peak")
    axes.set_xlim(0, 105)
    axes.set_xlabel("of capacity (%)", fontsize=9, color=TEXT)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=8, frameon=False)
