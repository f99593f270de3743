"""Figures of link traffic: the busiest links over time, and the load of each level of the network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import networkx as nx
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.units import format_bytes_per_second
from simcluster.documents.argument_types import check_arguments
from simcluster.results.link_loads import hottest_links_over_time, link_table
from simcluster.results.result import Result
from simcluster.show.bars import choose_time_unit, label_axes
from simcluster.show.palette import COMPUTE_KINDS, HEAT, LANE_SURROUND, QUIET_TEXT, STREAMS, TEXT, tint_colour
from simcluster.show.topology_parts import NODES, Point, draw_box
from simcluster.topology.links import collective_network, node_label

_HEAT_FILL = LinearSegmentedColormap.from_list(
    "utilisation", ["#FFFFFF", COMPUTE_KINDS["forward"], STREAMS["dp"], "#140E36"]
)
_ROW_HEIGHT = 0.26
_TOPS = (0.01, 0.05, 0.2, 0.5, 1.0)  # where the scale may end
_ALIKE = 1e-3  # of the capacity: both directions of a link with less between them are one row


@check_arguments
def links(result: Result, *, n: int = 20, bins: int = 400, title: str | None = None) -> Figure:
    """Draw the ``n`` busiest links of a result: utilisation over time (left), mean and peak (right).

    A row represents all links with equal numbers between equal kinds of node ("x64"), named by the first. InputError if
    no link carries anything.
    """
    table, edges, matrix = hottest_links_over_time(result, n, bins)
    if table.empty:
        raise InputError("nothing to draw: no link carries traffic, since no GPU communicates; use two GPUs or more")
    return plot_link_rows(table, edges, matrix, title=title or f"{result.scenario.title}: hottest links")


def plot_link_rows(rows: pd.DataFrame, edges: Floats, matrix: Floats, *, title: str) -> Figure:
    """Draw link utilisation over time; a link's two directions share a row if their loads are equal.

    ``matrix[row, bin]`` is rate / capacity between ``edges`` (s).
    """
    rows, matrix = _merge_directions(rows, matrix)
    figure = Figure(figsize=(13.0, 1.9 + _ROW_HEIGHT * len(rows)), layout="constrained")
    over_time, mean = figure.subplots(1, 2, sharey=True, width_ratios=[4.2, 1.0])
    _draw_utilisation(figure, over_time, edges, matrix)
    _draw_bars(mean, rows)
    columns = ("link_from", "link_to", "links", "capacity", "both")
    names = [_link_row_label(*row) for row in zip(*(rows[name].tolist() for name in columns), strict=True)]
    over_time.set_yticks(np.arange(len(rows)), names, fontsize=8, color=TEXT)
    over_time.set_ylim(len(rows) - 0.5, -0.5)
    figure.suptitle(title, fontsize=11, color=TEXT)
    return figure


def _merge_directions(rows: pd.DataFrame, matrix: Floats) -> tuple[pd.DataFrame, Floats]:
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


def _link_row_label(a: str, b: str, links: int, capacity: float, both: bool) -> str:
    alike = f"  ×{links:,}" if links > 1 else ""
    return f"{a} {'↔' if both else '→'} {b}{alike}   {format_bytes_per_second(capacity)}"


def _draw_utilisation(figure: Figure, axes: Axes, edges: Floats, matrix: Floats) -> None:
    rows = np.arange(len(matrix) + 1) - 0.5
    unit, second = choose_time_unit(float(edges[-1]))
    scale = 1 / second
    # above 1 only by counting spans at their mean rates: the link was full
    most = float(np.minimum(matrix, 1.0).max())
    top = next(each for each in _TOPS if each >= most - 1e-9)
    norm = PowerNorm(0.5, 0.0, top)  # a few percent stay visible next to a full link
    heat = axes.pcolormesh(edges * scale, rows, np.minimum(matrix, 1.0), cmap=_HEAT_FILL, norm=norm)
    heat.set_rasterized(True)
    axes.hlines(rows[1:-1], 0.0, edges[-1] * scale, color=LANE_SURROUND, linewidth=0.6)
    axes.set_xlabel(f"time ({unit})", fontsize=9, color=TEXT)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    bar = figure.colorbar(heat, ax=axes, location="top", shrink=0.35, aspect=36, pad=0.02)
    ticks = [0.0, 0.1 * top, 0.4 * top, top]
    bar.set_ticks(ticks, labels=["idle", *(f"{100 * tick:.3g} %" for tick in ticks[1:])], fontsize=8)
    bar.set_label("share of the link's capacity", fontsize=8, color=TEXT)
    bar.outline.set_edgecolor(QUIET_TEXT)


def _draw_bars(axes: Axes, rows: pd.DataFrame) -> None:
    places = np.arange(len(rows))
    axes.barh(places, 100 * rows["utilisation"], height=0.62, color=COMPUTE_KINDS["forward"], label="mean")
    axes.plot(100 * rows["peak_utilisation"], places, "|", color=TEXT, markersize=9, markeredgewidth=1.6, label="peak")
    axes.set_xlim(0, 105)
    label_axes(axes, "of capacity (%)")
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=8, frameon=False)


_LEVEL_FILL = LinearSegmentedColormap.from_list("load", HEAT[1:])
_BOX_TINT = 0.72  # so pale are kinds of node that no colour of a load is one of them
_NORM = PowerNorm(0.5, 0.0, 1.0)
_APART = 2.9
_TIER = 1.4
_ASIDE = 0.1
_BOX = (1.4, 0.46)


class LinkLevel(NamedTuple):
    """Number, capacity and utilisation of all links that lead from one kind of node to another.

    ``mean`` and ``fullest_mean`` are the utilisation over the step of all links and of the fullest, ``peak`` the
    highest at any instant; ``used`` of them carry anything.
    """

    ends: tuple[str, str]
    links: int
    used: int
    capacity: float
    mean: float
    fullest_mean: float
    peak: float


def list_link_levels(result: Result) -> list[LinkLevel]:
    """Return the load of the links between each two kinds of node, such as GPUs and NICs, including unused links."""
    graph = collective_network(result.scenario.cluster.built.graph)
    load = link_table(result).set_index(["link_from", "link_to"])[["utilisation", "peak_utilisation"]]
    links = pd.DataFrame(
        [
            (node_label(graph, one), node_label(graph, other), float(data["bandwidth"]))
            for one, other, data in graph.edges(data=True)
        ],
        columns=["from", "to", "capacity"], index=pd.MultiIndex.from_tuples(graph.edges, names=load.index.names),
    ).join(load).fillna({"utilisation": 0.0, "peak_utilisation": 0.0})  # fmt: skip
    links["used"] = links["utilisation"] > 0
    levels = links.groupby(["from", "to"], sort=False).agg(
        links=("used", "size"), used=("used", "sum"), capacity=("capacity", "mean"), mean=("utilisation", "mean"),
        most=("utilisation", "max"), peak=("peak_utilisation", "max"),
    )  # fmt: skip
    return [LinkLevel(*level) for level in levels.itertuples(name=None)]


@check_arguments
def link_levels(result: Result, *, title: str | None = None) -> Figure:
    """Draw each kind of node as a box; arrows between boxes are links, coloured by the busiest link's load.

    GPUs are at the bottom. InputError for a single GPU.
    """
    levels = list_link_levels(result)
    if not levels:
        raise InputError("nothing to draw: a single GPU has no links; use two GPUs or more")
    graph = collective_network(result.scenario.cluster.built.graph)
    kinds = {node_label(graph, node): str(data["kind"]) for node, data in graph.nodes(data=True)}
    counts = Counter(node_label(graph, node) for node in graph)
    places = _box_positions(levels, kinds)
    first, last = min(x for x, _ in places.values()) - _BOX[0], max(x for x, _ in places.values()) + 1.6 * _BOX[0]
    high = max(y for _, y in places.values()) + _TIER
    figure = Figure(figsize=(1.5 + 1.3 * (last - first), 1.0 + 0.95 * high), layout="constrained")
    axes = figure.subplots()
    largest = max(level.links * level.capacity for level in levels)
    both = {level.ends: level for level in levels}
    for level in levels:
        back = both.get((level.ends[1], level.ends[0]))
        if back is None or places[level.ends[0]][1] < places[level.ends[1]][1] or back is level:
            _draw_link_pair(axes, level, back, places, largest)
    for name, place in places.items():
        draw_box(axes, place, _BOX, tint_colour(NODES[kinds[name]].colour, _BOX_TINT), f"{counts[name]:,} × {name}")
    axes.set_xlim(first, last)
    axes.set_ylim(-0.5 * _TIER, high - 0.5 * _TIER)
    axes.set_axis_off()
    bar = figure.colorbar(ScalarMappable(_NORM, _LEVEL_FILL), ax=axes, shrink=0.6, aspect=28, pad=0.01)
    bar.set_ticks([0.0, 0.05, 0.2, 0.5, 1.0], labels=["idle", "5 %", "20 %", "50 %", "full"], fontsize=8)
    bar.set_label("utilisation of the fullest link over the step", fontsize=8.5, color=TEXT)
    bar.outline.set_edgecolor(QUIET_TEXT)
    heading = title or f"{result.scenario.title}: link utilisation over a step"
    figure.suptitle(heading, fontsize=11, color=TEXT)
    return figure


def _box_positions(levels: Sequence[LinkLevel], kinds: Mapping[str, str]) -> dict[str, Point]:
    """Return the position of each kind of node in the picture, whose vertical axis is the distance from a GPU."""
    near: nx.DiGraph[str] = nx.DiGraph()
    near.add_nodes_from(kinds)
    near.add_edges_from(level.ends for level in levels)
    carried = dict.fromkeys(kinds, 0.0)
    for level in levels:
        for end in level.ends:
            carried[end] += level.links * level.capacity * level.mean
    gpus = [name for name, kind in kinds.items() if kind == "gpu"]
    height = {name: tier for tier, layer in enumerate(nx.bfs_layers(near, gpus)) for name in layer}
    onwards = {name for name in height if any(height.get(other, -1) > height[name] for other in near[name])}
    places: dict[str, Point] = {}
    for tier in range(max(height.values()) + 1):
        mine = sorted((name for name in height if height[name] == tier), key=lambda name: -carried[name])
        up = [name for name in mine if name in onwards] or mine[:1]
        aside = [name for name in mine if name not in up]
        places |= {name: (_APART * place, _TIER * tier) for place, name in enumerate(up)}
        places |= {name: (-_APART * (place + 1), _TIER * tier) for place, name in enumerate(aside)}
    return places


def _draw_link_pair(
    axes: Axes, there: LinkLevel, back: LinkLevel | None, places: Mapping[str, Point], largest: float
) -> None:
    start, end = places[there.ends[0]], places[there.ends[1]]
    links = f"{there.links:,} × {format_bytes_per_second(there.capacity)}"
    if start == end:
        text = f"between them: {_level_text(there)}\n{links}"
        axes.text(start[0] + 0.6 * _BOX[0], start[1], text, fontsize=8, color=TEXT, va="center")
        return
    _draw_arrow(axes, there, start, end, largest)
    if back:
        _draw_arrow(axes, back, end, start, largest)
    lines = [f"↑ {_level_text(there)}", *([f"↓ {_level_text(back)}"] if back else []), links]
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    left = end[0] < start[0]
    axes.annotate("\n".join(lines), middle, xytext=(-8, -14) if left else (16, 0), textcoords="offset points",
                  fontsize=8, color=TEXT, va="top" if left else "center", ha="right" if left else "left")  # fmt: skip


def _level_text(level: LinkLevel) -> str:
    if not level.used:
        return "idle"
    fullest = f", fullest {level.fullest_mean:.1%}" if level.fullest_mean > 1.01 * level.mean else ""
    return f"{level.mean:.1%}{fullest}, peak {level.peak:.0%}"


def _draw_arrow(axes: Axes, level: LinkLevel, start: Point, end: Point, largest: float) -> None:
    colour = _LEVEL_FILL(_NORM(level.fullest_mean)) if level.used else LANE_SURROUND
    length = math.hypot(end[0] - start[0], end[1] - start[1])
    left = (-(end[1] - start[1]) / length, (end[0] - start[0]) / length)
    start, end = ((x + _ASIDE * left[0], y + _ASIDE * left[1]) for x, y in _shorten_arrow(start, end))
    width = 1.5 + 6.0 * math.sqrt(level.links * level.capacity / largest)
    style = {"arrowstyle": "-|>,head_width=0.35,head_length=0.5", "color": colour, "linewidth": width, "shrinkA": 0,
             "shrinkB": 0, "mutation_scale": 10}  # fmt: skip
    axes.annotate("", xy=end, xytext=start, arrowprops=style, zorder=1)


def _shorten_arrow(start: Point, end: Point) -> tuple[Point, Point]:
    (x0, y0), (x1, y1) = start, end
    across, upwards = abs(x1 - x0), abs(y1 - y0)
    inside = min(_BOX[0] / 2 / across if across else 9.0, (_BOX[1] / 2 + 0.03) / upwards if upwards else 9.0)
    inside = min(inside, 0.4)
    return (x0 + inside * (x1 - x0), y0 + inside * (y1 - y0)), (x1 - inside * (x1 - x0), y1 - inside * (y1 - y0))
