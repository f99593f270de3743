"""A picture of a cluster by hierarchy: fabric tiers above, units of machines below, and one machine in full.

Machines under the same lowest switches are one unit, with a count; a bundle of links is one band, with its number and
rate; so 1,024 GPUs are read as quickly as 8.  Imports ``topology``, ``units``, ``topology_parts`` and the palette.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simcluster.show.palette import QUIET_TEXT, TEXT, rgb
from simcluster.show.topology_parts import (
    MEDIUM_NAMES,
    NODE_NAMES,
    Bundle,
    Point,
    Unit,
    box,
    bundles,
    colour_of_kind,
    colour_of_medium,
    frame,
    line,
    machine_kinds,
    note,
    row,
    units_of,
)
from simcluster.topology.cluster import Cluster
from simcluster.topology.describe import TopologyReport, describe, switch_levels
from simcluster.topology.links import Graph
from simcluster.units import format_bytes_per_second, format_seconds

_ROWS = ("nic", "host", "pcie", "gpu", "nvswitch")  # of a machine, from the fabric down
_MOST_UNITS = 4
_MOST_ICONS = 8
_MOST_SWITCH_ICONS = 32
_MOST_IN_ROW = 16
_MOST_KINDS = 2


@dataclass
class _Scale:
    """Line width by bandwidth, and what the legend must explain."""

    widest: float
    media: dict[str, None] = field(default_factory=dict)
    kinds: dict[str, None] = field(default_factory=dict)

    def width(self, bandwidth: float, thickest: float) -> float:
        # the root keeps 12 GB/s visible beside 10 TB/s
        return 0.6 + (thickest - 0.6) * math.sqrt(bandwidth / self.widest)


def plot_topology(cluster: Cluster) -> Figure:
    """The fabric with its units on the left, one machine of each kind (two at most) on the right.

    Rates are payload per direction; line widths grow with the root of the bandwidth.  The figure belongs to no window:
    ``savefig`` it.
    """
    level = switch_levels(cluster.graph)
    units = units_of(cluster, level)
    kinds = [kind for kind in machine_kinds(cluster.graph, units) if len(kind[0]) > 1]
    panels = min(len(kinds), _MOST_KINDS)
    drawn_units = min(len(units), _MOST_UNITS)
    fabric_width = max(3.2 + 2.2 * drawn_units, 0.0 if panels else 8.0)
    figure = Figure(figsize=(fabric_width + 5.0 * panels, 6.4), layout="constrained")
    axes = figure.subplots(1, 1 + panels, width_ratios=[fabric_width, *[5.0] * panels], squeeze=False)[0]
    scale = _Scale(widest=1.0)
    _draw_fabric(axes[0], cluster, units, level, scale)
    for ax, (machine, count) in zip(axes[1:], kinds, strict=False):
        _draw_machine(ax, cluster, machine, scale)
        alike = f"one machine of {count:,} alike" if count > 1 else f"machine of {min(machine)}"
        left_out = f"; {len(kinds) - panels} other kinds not drawn" if len(kinds) > panels and ax is axes[-1] else ""
        ax.set_title(f"{alike}{left_out}", fontsize=10, color=TEXT)
    for ax in axes:
        ax.set_axis_off()
    _caption(figure, describe(cluster))
    _legend(figure, scale)
    return figure


def _caption(figure: Figure, report: TopologyReport) -> None:
    rate = format_bytes_per_second
    machines = f" in {report.machines:,} machines" if 1 < report.machines < report.gpus else ""
    inside = f"{rate(report.inside)} inside its machine, " if report.inside else ""
    facts = [f"each GPU: {inside}{rate(report.outside)} out of it"] if report.outside else [f"each GPU: {inside[:-2]}"]
    if report.bisection:
        facts.append(f"bisection {rate(report.bisection)}")
    facts += [f"{tier} {ratio:.3g}:1" for tier, ratio in report.oversubscription]
    facts.append(f"longest path {report.longest_hops} links, {format_seconds(report.longest_latency)}")
    title = f"{report.name}: {report.gpus:,} GPU{'s' if report.gpus > 1 else ''} ({report.device}){machines}"
    figure.suptitle(f"{title}\n" + "; ".join(facts), fontsize=11, color=TEXT)


def _legend(figure: Figure, scale: _Scale) -> None:
    kinds = [kind for kind in NODE_NAMES if kind in scale.kinds]
    nodes = [Patch(facecolor=colour_of_kind(kind), edgecolor=TEXT, label=NODE_NAMES[kind]) for kind in kinds]
    links = [
        Line2D([], [], color=colour_of_medium(medium), linewidth=3, label=f"{MEDIUM_NAMES.get(medium, medium)} link")
        for medium in scale.media
    ]
    figure.legend(
        handles=[*nodes, *links],
        loc="outside lower center",
        ncols=min(8, len(nodes) + len(links)),
        fontsize=9,
        frameon=False,
        title="number × payload bandwidth, each way; a wider line carries more",
        title_fontsize=9,
    )


# --- the fabric -----------------------------------------------------------------------------------------------------


def _draw_fabric(ax: Axes, cluster: Cluster, units: Sequence[Unit], level: Mapping[str, int], scale: _Scale) -> None:
    columns = _columns(units)
    graph = cluster.graph
    tiers = [
        [node for node in level if level[node] == height] for height in range(2, max(level.values(), default=1) + 1)
    ]
    down = [bundles(graph, [n for m in unit.machines for n in m], unit.switches) for unit in units]
    up = [bundles(graph, unit.switches, tiers[0]) if tiers else [] for unit in units]
    between = [bundles(graph, lower, upper) for lower, upper in itertools.pairwise(tiers)]
    scale.widest = max([b.total for group in (*down, *up, *between) for b in group], default=1.0)
    middle = (len(columns) - 1) / 2
    for column, number in enumerate(columns):
        if number is None:
            more = len(units) - len(columns) + 1
            ax.text(column, 0.6, f"…\n{more:,} more\nunits", ha="center", va="center", fontsize=11, color=QUIET_TEXT)
            continue
        _draw_unit(ax, graph, units[number], column, f"unit {number}" if len(units) > 1 else "", scale)
        _band(ax, (column, 1.1), (column, 1.75), down[number], scale)
        _band(ax, (column, 2.25), (column, 3.0), up[number], scale)
    for i, tier in enumerate(tiers):
        _draw_tier(ax, graph, tier, (middle, 3.25 + 1.25 * i), len(columns) - 0.1, scale)
        if i:
            _band(ax, (middle, 3.5 + 1.25 * (i - 1)), (middle, 3.0 + 1.25 * i), between[i - 1], scale)
    ax.set_xlim(-0.55, len(columns) - 0.45)
    ax.set_ylim(-0.35, (3.6 + 1.25 * (len(tiers) - 1)) if tiers else 2.5)
    ax.set_title("fabric" if tiers or any(unit.switches for unit in units) else "machines", fontsize=10, color=TEXT)


def _columns(units: Sequence[Unit]) -> list[int | None]:
    """Which units are drawn; None stands for those that are not."""
    if len(units) <= _MOST_UNITS:
        return list(range(len(units)))
    return [0, 1, None, len(units) - 1]


def _draw_unit(ax: Axes, graph: Graph, unit: Unit, x: float, name: str, scale: _Scale) -> None:
    if unit.switches:
        _draw_tier(ax, graph, unit.switches, (x, 2.0), 0.9, scale)
    sizes = [sum(graph.nodes[node]["kind"] == "gpu" for node in machine) for machine in unit.machines]
    alone = all(len(machine) == 1 for machine in unit.machines)
    icon = "gpu" if alone else "machine"
    scale.kinds[icon] = None
    frame(ax, (x, 0.4), (0.9, 1.4), colour_of_kind(icon))
    count = len(sizes)
    if alone:
        text = f"{count:,} GPU{'s' if count > 1 else ''}"
    elif len(set(sizes)) == 1:
        gpus = f"{sizes[0]} GPU{'s' if sizes[0] > 1 else ''}"
        text = f"{count:,} machines × {gpus}\n= {sum(sizes):,} GPUs" if count > 1 else f"1 machine\n{gpus}"
    else:
        text = f"{count:,} machines\n{sum(sizes):,} GPUs"
    ax.text(x, 0.78, f"{name}:\n{text}" if name else text, ha="center", va="center", fontsize=9.5, color=TEXT, zorder=5)
    icons = min(count, _MOST_ICONS)
    row(ax, icons, (x, 0.1), (0.8, 0.2), colour_of_kind(icon))
    if count > icons:
        left = f"{icons} of {count:,} {'GPUs' if alone else 'machines'} drawn"
        ax.text(x, -0.15, left, ha="center", va="center", fontsize=7.5, color=QUIET_TEXT, zorder=5)


def _draw_tier(ax: Axes, graph: Graph, nodes: Sequence[str], at: Point, width: float, scale: _Scale) -> None:
    x, y = at
    colour = colour_of_kind("switch")
    scale.kinds["switch"] = None
    frame(ax, at, (width, 0.5), colour)
    tiers = dict.fromkeys(str(graph.nodes[node]["tier"]) for node in nodes)
    text = f"{len(nodes):,} {' / '.join(tiers)} switch{'es' if len(nodes) > 1 else ''}"
    shown = len(nodes) <= _MOST_SWITCH_ICONS
    ax.text(x, y + (0.1 if shown else 0.0), text, ha="center", va="center", fontsize=9.5, color=TEXT, zorder=5)
    if shown:
        row(ax, len(nodes), (x, y - 0.12), (width * 0.9, 0.13), colour)


def _band(ax: Axes, start: Point, end: Point, group: Sequence[Bundle], scale: _Scale) -> None:
    """A bundle of links as one line, with what is in it beside it."""
    if not group:
        return
    total = sum(bundle.total for bundle in group)
    colour = colour_of_medium(group[0].medium)
    scale.media.update(dict.fromkeys(bundle.medium for bundle in group))
    line(ax, start, end, colour, scale.width(total, 16.0))
    texts = [bundle.text() for bundle in group[:3]] + (["…"] if len(group) > 3 else [])
    together = [f"= {format_bytes_per_second(total)}"] if len(group) > 1 or group[0].count > 1 else []
    note(ax, (start[0] + 0.06, (start[1] + end[1]) / 2), "\n".join(texts + together), rgb(TEXT))


# --- one machine ----------------------------------------------------------------------------------------------------


def _draw_machine(ax: Axes, cluster: Cluster, machine: Sequence[str], scale: _Scale) -> None:
    graph = cluster.graph
    gpu_order = {gpu: i for i, gpu in enumerate(cluster.gpus)}
    by_kind = {kind: [n for n in machine if graph.nodes[n]["kind"] == kind] for kind in _ROWS}
    by_kind["gpu"].sort(key=lambda node: gpu_order[node])
    rows = [kind for kind in _ROWS if by_kind[kind]]
    height = {kind: float(len(rows) - i) for i, kind in enumerate(rows)}
    place: dict[str, Point] = {}
    for kind in rows:
        nodes = by_kind[kind][:_MOST_IN_ROW]
        scale.kinds[kind] = None
        for i, node in enumerate(nodes):
            place[node] = ((i + 0.5) / len(nodes), height[kind])
        hidden = len(by_kind[kind]) - len(nodes)
        text = f"{len(by_kind[kind])} × {NODE_NAMES[kind]}" + (f"\n({hidden} not drawn)" if hidden else "")
        ax.text(-0.04, height[kind], text, ha="right", va="center", fontsize=9, color=TEXT)
    widest = max(data["bandwidth"] for node in machine for data in graph.adj[node].values())
    _draw_links(ax, graph, place, height, scale, widest)
    for node, at in place.items():
        kind = graph.nodes[node]["kind"]
        size = min(0.9 / max(1, min(len(by_kind[kind]), _MOST_IN_ROW)), 0.34)
        box(ax, at, (size, 0.34), colour_of_kind(kind), node.rsplit(".", 1)[-1] if size > 0.08 else "", 7.5)
    _link_notes(ax, graph, machine, height)
    ax.set_xlim(-0.32, 1.42)
    ax.set_ylim(0.5, len(rows) + 1.0)


def _draw_links(
    ax: Axes, graph: Graph, place: Mapping[str, Point], height: Mapping[str, float], scale: _Scale, widest: float
) -> None:
    top = max(height.values()) + 0.62
    for node, at in place.items():
        for other, data in graph.adj[node].items():
            end = (at[0], top) if graph.nodes[other]["kind"] == "switch" else place.get(other)
            if end is not None:
                scale.media[data["medium"]] = None
                line(ax, at, end, colour_of_medium(data["medium"]), 0.8 + 3.2 * data["bandwidth"] / widest)


def _link_notes(ax: Axes, graph: Graph, machine: Sequence[str], height: Mapping[str, float]) -> None:
    """Beside each gap between rows, the links that cross it."""
    texts: dict[float, list[str]] = {}
    top = max(height.values()) + 0.45
    kind_of = {node: graph.nodes[node]["kind"] for node in machine}
    present = list(dict.fromkeys(kind_of.values()))
    for i, lower in enumerate(present):
        for upper in [*present[i:], "switch"]:
            ends = [n for n in graph if graph.nodes[n]["kind"] == "switch"] if upper == "switch" else machine
            ends = [n for n in ends if upper == "switch" or kind_of[n] == upper]
            for bundle in bundles(graph, [n for n in machine if kind_of[n] == lower], ends):
                y = top if upper == "switch" else (height[lower] + height[upper]) / 2
                where = "to the fabric: " if upper == "switch" else ""
                texts.setdefault(y, []).append(
                    f"{where}{bundle.text()}\n{MEDIUM_NAMES.get(bundle.medium, bundle.medium)}"
                )
    for y, parts in texts.items():
        note(ax, (1.03, y), "\n".join(parts), rgb(TEXT))
