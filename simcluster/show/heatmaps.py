"""Heatmaps: a value over two settings of a sweep, slowdown by worker, and waiting times between ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.tables import Records
from simcluster.base.texts import did_you_mean
from simcluster.base.units import format_seconds_short
from simcluster.documents.argument_types import check_arguments
from simcluster.results.result import Result
from simcluster.results.step_metrics import METRICS
from simcluster.results.waits import WaitMatrix
from simcluster.show.bars import label_axes
from simcluster.show.palette import HEAT, QUIET_TEXT, STREAMS, TEXT, WAITING, WAITING_HATCH, parse_rgb, text_colour_on
from simcluster.show.table_cells import format_metric
from simcluster.studies.whatif.straggling import StragglerCosts

_SLOWDOWN = LinearSegmentedColormap.from_list("slowdown", ["#FFFFFF", "#F3C9A5", STREAMS["tp"], "#8F3800"])
_WAITING = LinearSegmentedColormap.from_list("waiting", HEAT)
_NUMBERS = 24  # columns up to which every cell has its number
_LEAST = 0.05  # the scale reaches at least this excess, so that noise stays pale
_SPREAD = 0.02  # and spans at least this
_ROUND = np.array([0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0])  # ticks of the colour bar, times a power of ten
_GRID = 40  # rows up to which cells of waiting have lines between them
_NAMES = {"rank": "rank", "worker": "worker (dp rank, stage), stage by stage", "machine": "machine", "stage": "stage"}


@check_arguments
def stragglers(result: Result, found: StragglerCosts) -> Figure:
    """Draw by how much each worker (dp rank, stage) slows down the step.

    `found` is the answer of `simcluster.stragglers(result)`.
    """
    estimated = found.estimated
    longer = f"a step takes {found.slowdown - 1:.1%} longer than without faults"
    return straggler_heatmap(
        estimated.by_worker, by_replica=estimated.by_replica.tolist(), by_stage=estimated.by_stage.tolist(),
        title=f"{result.scenario.title}\n{longer}; by worker, estimated from its trace", worst=estimated.worst,
    )  # fmt: skip


def straggler_heatmap(
    slowdown: Floats,
    *,
    by_replica: Sequence[float],
    by_stage: Sequence[float],
    title: str,
    worst: Sequence[tuple[int, int]] = (),
    column: str = "dp rank",
    row: str = "stage",
    rows: Sequence[str] = (),
) -> Figure:
    """Draw a heatmap of the slowdown by worker, with pipeline stages as rows and dp ranks as columns.

    ``column`` and ``row`` name the axes, ``rows`` each row, if they are not dp ranks and stages. The margins show the
    slowdown of a whole dp rank and of a whole stage; ``worst`` workers get a frame.
    """
    replicas, stages = slowdown.shape
    width = min(max(6.5, 2.9 + 0.42 * replicas), 18.0)
    height = 2.6 + min(max(0.5 * stages, 0.9), 8.0)
    figure = Figure(figsize=(width, height), layout="constrained")
    top, main, side = _make_heatmap_axes(figure, widths=[width - 2.9, 1.5], heights=[0.9, max(height - 2.6, 0.9)])
    norm = _colour_scale(slowdown - 1)
    heat = _draw_matrix(main, slowdown.T - 1, _SLOWDOWN, norm, line=0.5)
    if replicas <= _NUMBERS:
        _write_slowdowns(main, slowdown, norm)
    for dp, stage in worst:
        main.add_patch(Rectangle((dp - 0.5, stage - 0.5), 1, 1, fill=False, edgecolor=TEXT, linewidth=2.6))
    bars = [100 * (value - 1) for value in by_replica], [100 * (value - 1) for value in by_stage]
    _draw_margins(top, side, bars, (0.7, 0.6), (f"slowdown by each {column}", f"by each {row} (%)"))
    top.set_ylabel("%", fontsize=8, color=QUIET_TEXT)
    main.set_xlabel(column + ("; framed: the slowest 3 % of workers" if worst else ""), fontsize=9, color=TEXT)
    main.set_ylabel("" if rows else row, fontsize=9, color=TEXT)
    main.set_xticks(range(0, replicas, math.ceil(replicas / 32)))
    if rows:
        main.set_yticks(range(stages), labels=list(rows))
    else:
        main.set_yticks(range(0, stages, math.ceil(stages / 24)))
    main.tick_params(labelsize=8, length=0)
    bar = figure.colorbar(heat, ax=[main, side], location="right", aspect=14, pad=0.02, fraction=0.05)
    low, most = float(norm.vmin or 0.0), float(norm.vmax or 1.0)
    ticks = np.linspace(low, most, 4)
    digits = 0 if most - low > 0.06 else 1
    bar.set_ticks(ticks.tolist(), labels=[f"+{100 * tick:.{digits}f} %" for tick in ticks], fontsize=8)
    begins = f"\n(scale from +{100 * low:.{digits}f} %)" if low else ""
    bar.set_label(f"slowdown of the step{begins}", fontsize=8, color=TEXT)
    figure.suptitle(title, fontsize=11, color=TEXT)
    return figure


def _make_heatmap_axes(figure: Figure, *, widths: list[float], heights: list[float]) -> tuple[Axes, Axes, Axes]:
    grid = figure.add_gridspec(2, 2, width_ratios=widths, height_ratios=heights)
    main = figure.add_subplot(grid[1, 0])
    return figure.add_subplot(grid[0, 0], sharex=main), main, figure.add_subplot(grid[1, 1], sharey=main)


def _colour_scale(excess: Floats) -> Normalize:
    most, least = max(_LEAST, float(excess.max())), float(excess.min())
    return Normalize(min(least, most - _SPREAD) if least > most / 3 else 0.0, most, clip=True)


def _draw_matrix(axes: Axes, values: Floats, fill: Colormap, norm: Normalize, *, line: float) -> QuadMesh:
    across, down = (np.arange(count + 1) - 0.5 for count in (values.shape[1], values.shape[0]))
    axes.set_ylim(down[-1], -0.5)
    edges = WAITING if line else "face"
    return axes.pcolormesh(across, down, values, cmap=fill, norm=norm, edgecolors=edges, linewidth=line)


def _write_slowdowns(axes: Axes, slowdown: Floats, norm: Normalize) -> None:
    for (dp, stage), value in np.ndenumerate(slowdown):
        shade = _SLOWDOWN(float(norm(value - 1)))
        axes.text(dp, stage, f"{100 * (value - 1):+.1f}", ha="center", va="center", fontsize=8,
                  color=text_colour_on((shade[0], shade[1], shade[2])))  # fmt: skip


def _draw_margins(
    top: Axes, side: Axes, values: tuple[Sequence[float], Sequence[float]], sizes: tuple[float, float],
    titles: tuple[str, str],
) -> None:  # fmt: skip
    top.bar(range(len(values[0])), values[0], color=parse_rgb(STREAMS["dp"]), width=sizes[0])
    side.barh(range(len(values[1])), values[1], color=parse_rgb(STREAMS["dp"]), height=sizes[1])
    for axes, title in zip((top, side), titles, strict=True):
        axes.set_title(title, fontsize=8, color=QUIET_TEXT, loc="left")
        axes.tick_params(labelsize=7, colors=QUIET_TEXT)
        axes.spines[["top", "right"]].set_visible(False)
    top.tick_params(axis="x", labelbottom=False, length=0)
    side.tick_params(axis="y", labelleft=False, length=0)


@check_arguments
def waits(result: Result) -> Figure:
    """Draw how long ranks wait for each other in a step; large jobs show workers, nodes or stages instead of ranks."""
    matrix = result.wait_matrix
    return plot_waits(matrix, title=f"{result.scenario.title}: which {matrix.unit} waits for which")


def plot_waits(matrix: WaitMatrix, *, title: str) -> Figure:
    """Draw a waiting-time matrix; bars show each row's waiting time (right) and the waiting it causes (top)."""
    count = len(matrix.names)
    figure = Figure(figsize=(9.4, 9.0), layout="constrained")
    top, main, side = _make_heatmap_axes(figure, widths=[6.0, 1.0], heights=[1.0, 6.0])
    most = float(matrix.seconds.max()) or 1e-9
    norm = PowerNorm(0.5, 0.0, most)  # short waits stay visible next to the longest
    heat = _draw_matrix(main, matrix.seconds, _WAITING, norm, line=0.4 if count <= _GRID else 0.0)
    _label_axes(main, matrix)
    sizes = (0.8, 0.8) if count <= _GRID else (1.0, 1.0)
    texts = ("waited for by all others (s per step)", "waited (s)")
    _draw_margins(top, side, (matrix.awaited_seconds.tolist(), matrix.waited_seconds.tolist()), sizes, texts)
    bar = figure.colorbar(heat, ax=[main, side], location="bottom", aspect=50, pad=0.01, fraction=0.03)
    decade = 10.0 ** math.floor(math.log10(most))
    ticks = [0.0, *(tick for tick in _ROUND * decade if most / 25 <= tick <= most)]
    bar.set_ticks(ticks, labels=[format_seconds_short(tick) if tick else "0" for tick in ticks], fontsize=8)
    bar.set_label("seconds of waiting per step", fontsize=8, color=TEXT)
    figure.suptitle(title, fontsize=11, color=TEXT)
    return figure


def _label_axes(main: Axes, matrix: WaitMatrix) -> None:
    count, what = len(matrix.names), _NAMES[matrix.unit]
    main.set_xlabel(f"awaited {what}", fontsize=9, color=TEXT)
    main.set_ylabel(f"waiting {what}", fontsize=9, color=TEXT)
    ticks = range(0, count, math.ceil(count / 32))
    main.set_xticks(ticks, [matrix.names[tick] for tick in ticks], rotation=90 if count > 16 else 0)
    main.set_yticks(ticks, [matrix.names[tick] for tick in ticks])
    main.set_xlim(-0.5, count - 0.5)
    main.tick_params(labelsize=7, length=0)


_MOST_CELLS = 40  # along an axis: more have no room for numbers
_WIDE_RANGE = 8.0  # largest over smallest value: from here on colours are logarithmic
_HIGHER_IS_BETTER = re.compile("tokens_per|samples_per|tflops|mfu|hfu|overlap|real_")


@check_arguments
def heatmap(
    table: pd.DataFrame | Records[Any], x: str, y: str, value: str = "step_time_s", *,
    best: Literal["lowest", "highest"] | None = None, title: str | None = None,
) -> Figure:  # fmt: skip
    """Draw one table column as a grid of numbers over two other columns, and put a frame around the best cell.

    ``table`` has a row per variant, as from `simcluster.sweep`; where rows share ``x`` and ``y``, the best is drawn
    and the title says so.
    ``best`` defaults to the highest throughput or utilisation, and to the lowest of any other column. Variants that
    are invalid are hatched; those that do not fit in memory are grey and never the best. InputError for a missing
    column, a ``value`` without any number, and more than 40 cells along an axis.

    >>> import simcluster
    >>> vary = {"parallel.tp": [1, 2, 4], "parallel.pp": [1, 2, 4], "parallel.dp": [1, 2, 4, 8]}
    >>> table = simcluster.sweep("tiny_3d", vary)
    >>> figure = simcluster.plots.heatmap(table, x="parallel.tp", y="parallel.pp", value="step_time_s")
    """
    rows = table.table if isinstance(table, Records) else table
    known = [str(name) for name in rows.columns]
    for name in (x, y, value):
        if name not in known:
            raise InputError(f"the table has no column {name!r}{did_you_mean(name, known)}; it has {', '.join(known)}")
    numbers = pd.to_numeric(rows[value], errors="coerce")
    if not numbers.notna().any():
        raise InputError(f"column {value!r} has no numbers; give a table with at least one simulated variant")
    higher = best == "highest" if best else bool(_HIGHER_IS_BETTER.search(value))
    over = rows["fits"].eq(False) if "fits" in known else numbers.isna()
    cells = pd.DataFrame({"x": rows[x], "y": rows[y], "value": numbers, "invalid": numbers.isna(), "over": over})
    cells = cells.assign(loss=-numbers if higher else numbers).dropna(subset=["x", "y"])
    cells = cells.sort_values(["invalid", "over", "loss"], kind="stable")
    several = bool(cells.loc[~cells["invalid"]].duplicated(["x", "y"]).any())
    cells = cells.drop_duplicates(["x", "y"])
    sides = _distinct_values(rows[x]), _distinct_values(rows[y])
    if max(map(len, sides)) > _MOST_CELLS:
        raise InputError(f"an axis has {max(map(len, sides))} values; a heatmap has at most {_MOST_CELLS}: filter rows")
    figure = Figure(figsize=(2.6 + 0.75 * max(len(sides[0]), 4), 2.0 + 0.4 * len(sides[1])), layout="constrained")
    axes = figure.subplots()
    kinds = _draw_cells(axes, cells, sides, value)
    first = cells.iloc[0]
    found = ""
    if not first["invalid"] and not first["over"]:
        at = sides[0].index(first["x"]), sides[1].index(first["y"])
        axes.add_patch(Rectangle((at[0] - 0.5, at[1] - 0.5), 1, 1, fill=False, edgecolor=TEXT, linewidth=2.6, zorder=3))
        found = f": {'highest' if higher else 'lowest'} {_cell_text(value, first['value'])} at "
        found += ", ".join(f"{name.rpartition('.')[2]} {first[key]}" for name, key in ((x, "x"), (y, "y")))
        kinds = {"best": Patch(fill=False, edgecolor=TEXT, linewidth=2), **kinds}
    if len(cells) < len(sides[0]) * len(sides[1]):
        kinds["blank: not in the table"] = Patch(facecolor="white")
    rest = "\n(a cell with several rows shows the best one)" if several else ""
    label_axes(axes, x, y, (title or f"{value}{found}") + rest)
    figure.legend([*kinds.values()], [*kinds], loc="outside lower left", ncols=3, fontsize=8, frameon=False)
    return figure


def _distinct_values(column: pd.Series) -> list[Any]:
    found = column.dropna().unique().tolist()
    return sorted(found) if pd.api.types.is_numeric_dtype(column) else found


def _draw_cells(axes: Axes, cells: pd.DataFrame, sides: tuple[list[Any], list[Any]], value: str) -> dict[str, Patch]:
    """Draw the heatmap's cells with their numbers, and return the legend's colour patches by label."""
    shown = cells.loc[~cells["invalid"] & ~cells["over"], "value"]
    low, high = (float(shown.min()), float(shown.max())) if len(shown) else (0.0, 1.0)
    norm = LogNorm(low, high) if 0 < _WIDE_RANGE * low < high else Normalize(low, max(high, 1.2 * low))
    kinds = {"darker: larger": Patch(facecolor=HEAT[2])}
    for row in cells.to_dict("records"):
        at = sides[0].index(row["x"]), sides[1].index(row["y"])
        grey, number = row["invalid"] or row["over"], row["value"]
        fill = parse_rgb(WAITING) if grey else _WAITING(float(norm(number)))[:3]
        hatch = "////" if row["invalid"] else None
        look: dict[str, Any] = {"facecolor": fill, "edgecolor": WAITING_HATCH, "hatch": hatch, "linewidth": 0.6}
        axes.add_patch(Rectangle((at[0] - 0.5, at[1] - 0.5), 1, 1, **look))
        if grey:
            kinds["invalid" if row["invalid"] else "does not fit in memory"] = Patch(**look)
        if not row["invalid"]:
            axes.text(*at, _cell_text(value, number), ha="center", va="center", fontsize=8, color=text_colour_on(fill))
    axes.set_xlim(-0.5, len(sides[0]) - 0.5)
    axes.set_ylim(len(sides[1]) - 0.5, -0.5)
    for axis, values in zip((axes.xaxis, axes.yaxis), sides, strict=True):
        axis.set_ticks(range(len(values)), [str(each) for each in values])
    axes.tick_params(labelsize=8, length=0)
    return kinds


def _cell_text(column: str, value: float) -> str:
    if column in METRICS:
        return format_metric(METRICS[column].unit, value)
    if column.startswith("breakdown_s.") or column.endswith("_s"):
        return format_metric("s", value)
    return format_metric("bytes", value) if column.endswith("_bytes") else f"{value:,.4g}"
