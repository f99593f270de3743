"""Who straggles, at a glance: slowdown of every worker over (dp rank, stage).

The colour is how much longer a step takes by the worker's doing alone; white is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from simcluster.results.result import Result
from simcluster.show.palette import QUIET_TEXT, STREAMS, TEXT, WAITING, rgb, text_on
from simcluster.studies.whatif.straggling import Stragglers

_FILL = LinearSegmentedColormap.from_list("slowdown", ["#FFFFFF", "#F3C9A5", STREAMS["tp"], "#8F3800"])
_NUMBERS = 24  # columns up to which every cell has its number
_LEAST = 0.05  # the scale reaches at least this excess, so that noise stays pale


def stragglers(result: Result, found: Stragglers) -> Figure:
    """The slowdown of a result by each worker over (dp rank, stage), as the trace's estimator has it; `found` is what
    `simcluster.stragglers(result)` gave."""
    estimated = found.estimated
    longer = f"a step takes {found.slowdown - 1:.1%} longer than without faults"
    return straggler_heatmap(
        estimated.by_worker, by_replica=estimated.by_replica.tolist(), by_stage=estimated.by_stage.tolist(),
        title=f"{result.scenario.name}\n{longer}; by worker, from its trace", worst=estimated.worst,
    )  # fmt: skip


def straggler_heatmap(
    slowdown: npt.NDArray[np.float64],
    *,
    by_replica: Sequence[float],
    by_stage: Sequence[float],
    title: str,
    worst: Sequence[tuple[int, int]] = (),
    column: str = "dp rank",
    row: str = "stage",
    rows: Sequence[str] = (),
) -> Figure:
    """``slowdown[dp rank, stage]`` (1 is none) as a picture: stages downwards, dp ranks to the right.

    ``column`` and ``row`` say what they are instead, and ``rows`` what each row is.

    The margins show the slowdown of a whole dp rank and of a whole stage; ``worst`` workers get a frame.  The figure
    belongs to no window: ``savefig`` it.
    """
    replicas, stages = slowdown.shape
    width = min(max(6.5, 2.9 + 0.42 * replicas), 18.0)
    height = 2.6 + min(max(0.5 * stages, 0.9), 8.0)
    figure = Figure(figsize=(width, height), layout="constrained")
    inner = width - 2.9
    top, main, side = _axes(figure, inner, height)
    most = max(_LEAST, float(slowdown.max()) - 1)
    excess = np.clip(slowdown.T - 1, 0, None)
    heat = main.pcolormesh(np.arange(replicas + 1) - 0.5, np.arange(stages + 1) - 0.5, excess, cmap=_FILL,
                           vmin=0.0, vmax=most, edgecolors=WAITING, linewidth=0.5)  # fmt: skip
    if replicas <= _NUMBERS:
        _write(main, slowdown, most)
    for dp, stage in worst:
        main.add_patch(Rectangle((dp - 0.5, stage - 0.5), 1, 1, fill=False, edgecolor=TEXT, linewidth=2.6))
    _margins(top, side, by_replica, by_stage, column=column, row=row)
    main.set_xlabel(column + ("; framed: the workers that M_W is about" if worst else ""), fontsize=9, color=TEXT)
    main.set_ylabel("" if rows else row, fontsize=9, color=TEXT)
    step = math.ceil(replicas / 32)
    main.set_xticks(range(0, replicas, step))
    if rows:
        main.set_yticks(range(stages), labels=list(rows))
    else:
        main.set_yticks(range(0, stages, math.ceil(stages / 24)))
    main.set_ylim(stages - 0.5, -0.5)
    main.tick_params(labelsize=8, length=0)
    bar = figure.colorbar(heat, ax=[main, side], location="right", aspect=14, pad=0.02, fraction=0.05)
    ticks = np.linspace(0, most, 4)
    bar.set_ticks(ticks.tolist(), labels=[f"+{100 * tick:.0f} %" for tick in ticks], fontsize=8)
    figure.suptitle(title, fontsize=11, color=TEXT)
    return figure


def _axes(figure: Figure, inner: float, height: float) -> tuple[Axes, Axes, Axes]:
    grid = figure.add_gridspec(2, 2, width_ratios=[inner, 1.5], height_ratios=[0.9, max(height - 2.6, 0.9)])
    main = figure.add_subplot(grid[1, 0])
    return figure.add_subplot(grid[0, 0], sharex=main), main, figure.add_subplot(grid[1, 1], sharey=main)


def _write(axes: Axes, slowdown: npt.NDArray[np.float64], most: float) -> None:
    """Every cell's excess in %."""
    for (dp, stage), value in np.ndenumerate(slowdown):
        shade = _FILL(min(max(value - 1, 0.0) / most, 1.0))
        axes.text(dp, stage, f"{100 * (value - 1):+.1f}", ha="center", va="center", fontsize=8,
                  color=text_on((shade[0], shade[1], shade[2])))  # fmt: skip


def _margins(
    top: Axes, side: Axes, by_replica: Sequence[float], by_stage: Sequence[float], *, column: str, row: str
) -> None:
    colour = rgb(STREAMS["dp"])
    top.bar(range(len(by_replica)), [100 * (value - 1) for value in by_replica], color=colour, width=0.7)
    side.barh(range(len(by_stage)), [100 * (value - 1) for value in by_stage], color=colour, height=0.6)
    top.set_ylabel("%", fontsize=8, color=QUIET_TEXT)
    top.set_title(f"longer by a whole {column} alone", fontsize=8, color=QUIET_TEXT, loc="left")
    side.set_title(f"by a whole {row} (%)", fontsize=8, color=QUIET_TEXT, loc="left")
    frame_margins(top, side)


def frame_margins(top: Axes, side: Axes) -> None:
    """Bars above and beside a square of cells: small quiet numbers, and no names, which the cells have."""
    for axes in (top, side):
        axes.tick_params(labelsize=7, colors=QUIET_TEXT)
        axes.spines[["top", "right"]].set_visible(False)
    top.tick_params(axis="x", labelbottom=False, length=0)
    side.tick_params(axis="y", labelleft=False, length=0)
