"""Who waited for whom, as a square picture: a row waits, for a column."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from simcluster.base.units import format_seconds_round
from simcluster.results.result import Result
from simcluster.results.waits import WaitMatrix
from simcluster.show.palette import QUIET_TEXT, STREAMS, TEXT, WAITING, rgb
from simcluster.show.straggler_heatmap import frame_margins

_FILL = LinearSegmentedColormap.from_list("waiting", ["#FFFFFF", "#F3C9A5", STREAMS["tp"], "#5A2400"])
_NAMES = {
    "rank": "rank",
    "worker": "worker (dp rank, stage), stage by stage",
    "machine": "machine",
    "stage": "stage",
}
_GRID = 40  # rows up to which cells have lines between them


def waits(result: Result) -> Figure:
    """Who waited for whom in a result: every rank, or where there are too many every worker, machine or stage."""
    return plot_waits(result.wait_matrix, title=f"{result.scenario.name}: who waits for whom")


def plot_waits(matrix: WaitMatrix, *, title: str) -> Figure:
    """The matrix, with what each row waited in all (right) and what each column was waited for (top).

    The figure belongs to no window: ``savefig`` it.
    """
    count = len(matrix.names)
    figure = Figure(figsize=(9.4, 9.0), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[6.0, 1.0], height_ratios=[1.0, 6.0])
    main = figure.add_subplot(grid[1, 0])
    top, side = figure.add_subplot(grid[0, 0], sharex=main), figure.add_subplot(grid[1, 1], sharey=main)
    edges = np.arange(count + 1) - 0.5
    most = float(matrix.seconds.max()) or 1e-9
    line = 0.4 if count <= _GRID else 0.0
    heat = main.pcolormesh(
        edges,
        edges,
        matrix.seconds,
        cmap=_FILL,
        vmin=0.0,
        vmax=most,
        edgecolors=WAITING if line else "face",
        linewidth=line,
    )
    _label(main, matrix)
    colour = rgb(STREAMS["dp"])
    top.bar(range(count), matrix.awaited, color=colour, width=0.8 if count <= _GRID else 1.0)
    side.barh(range(count), matrix.waited, color=colour, height=0.8 if count <= _GRID else 1.0)
    top.set_title(
        "waited for, by the mean rank of every row together (s a step)", fontsize=8, color=QUIET_TEXT, loc="left"
    )
    side.set_title("waited (s)", fontsize=8, color=QUIET_TEXT, loc="left")
    frame_margins(top, side)
    bar = figure.colorbar(heat, ax=[main, side], location="bottom", aspect=50, pad=0.01, fraction=0.03)
    ticks = np.linspace(0.0, most, 5)
    labels = [format_seconds_round(tick) if tick else "0" for tick in ticks.tolist()]
    bar.set_ticks(ticks.tolist(), labels=labels, fontsize=8)
    figure.suptitle(title, fontsize=11, color=TEXT)
    return figure


def _label(main: Axes, matrix: WaitMatrix) -> None:
    count, what = len(matrix.names), _NAMES[matrix.unit]
    main.set_xlabel(f"for this {what}", fontsize=9, color=TEXT)
    main.set_ylabel(f"this {what} waits", fontsize=9, color=TEXT)
    step = math.ceil(count / 32)
    ticks = range(0, count, step)
    main.set_xticks(ticks, [matrix.names[tick] for tick in ticks], rotation=90 if count > 16 else 0)
    main.set_yticks(ticks, [matrix.names[tick] for tick in ticks])
    main.set_xlim(-0.5, count - 0.5)
    main.set_ylim(count - 0.5, -0.5)
    main.tick_params(labelsize=7, length=0)
