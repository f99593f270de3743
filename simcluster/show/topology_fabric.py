"""Picture of a cluster's network fabric: columns of nodes with their switches, and links between columns.

A column is what remains connected without the highest switches or the links across: a unit or pod of a tree, a group of
a dragonfly. Only the network that collectives use is drawn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.patches import Arc

from simcluster.base.units import format_bytes_per_second
from simcluster.show.palette import QUIET_TEXT, TEXT
from simcluster.show.topology_parts import (
    NODES,
    LegendContents,
    LinkBundle,
    Point,
    bundle_links,
    draw_box,
    draw_box_row,
    draw_frame,
    draw_link,
    medium_style,
    write_note,
)
from simcluster.topology.cluster import Cluster
from simcluster.topology.links import Graph, switch_levels

_MOST_COLUMNS = 4
_MOST_ICONS = 8
_MOST_SWITCH_ICONS = 32
_THICKEST = 16.0  # points
_STEP = 1.25
"""Height from one tier to the next."""


@dataclass(frozen=True, slots=True)
class NodeColumn:
    """A column in the picture of the fabric: GPU nodes below, their switches above, tier by tier."""

    machines: Sequence[Sequence[str]]
    tiers: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class FabricColumns:
    """All columns in the picture of a fabric, and the switches or direct links that join the columns.

    ``top`` are the switches above all columns, in parts that never meet (rails, planes); there are none if columns are
    joined by links across (``joined_directly``) or not at all.
    """

    graph: Graph
    columns: Sequence[NodeColumn]
    top: Sequence[Sequence[str]]
    joined_directly: bool

    @property
    def drawn_columns(self) -> list[int | None]:
        """Indices of the columns to draw; None where columns are omitted."""
        count = len(self.columns)
        return list(range(count)) if count <= _MOST_COLUMNS else [0, 1, None, count - 1]

    @property
    def column_word(self) -> str:
        """Word for a column in this topology: unit, pod, group, ..."""
        return "group" if self.joined_directly else "pod" if len(self.columns[0].tiers) > 1 else "unit"


def find_columns(cluster: Cluster, graph: Graph) -> FabricColumns:
    """Divide a cluster's fabric, given as the graph of the network for collectives, into columns."""
    level = switch_levels(graph)
    highest = max(level.values(), default=0)
    across = any(level.get(a) == level[b] for a in level for b in graph.adj[a] if b in level)
    top = [node for node in level if level[node] == highest] if highest > 1 and not across else []
    place = {gpu: i for i, gpu in enumerate(cluster.gpus)}
    order = {node: i for i, node in enumerate(graph)}

    def first_gpu(nodes: Iterable[str]) -> int:
        return min((place[node] for node in nodes if node in place), default=len(place))

    low: nx.Graph[str] = nx.Graph()
    low.add_nodes_from(graph)
    low.add_edges_from((a, b) for a, b in graph.edges if level.get(a, 0) != level.get(b, -1))
    low.remove_nodes_from(top)
    columns = []
    for names in sorted(nx.connected_components(low), key=first_gpu):
        inside = low.subgraph(node for node in names if node not in level)
        machines = [sorted(part, key=order.__getitem__) for part in nx.connected_components(inside)]
        tiers: dict[int, list[str]] = {}
        for node in sorted((name for name in names if name in level), key=order.__getitem__):
            tiers.setdefault(level[node], []).append(node)
        columns.append(NodeColumn(sorted(machines, key=first_gpu), [tier for _, tier in sorted(tiers.items())]))
    switches = nx.Graph((a, b) for a in level for b in [a, *graph.adj[a]] if b in level)
    part_of = {node: i for i, part in enumerate(nx.connected_components(switches)) for node in part}
    parts: dict[int, list[str]] = {}
    for node in top:
        parts.setdefault(part_of[node], []).append(node)
    return FabricColumns(graph, columns, list(parts.values()), across)


def draw_fabric(ax: Axes, fabric: FabricColumns, explained: LegendContents) -> None:
    """Draw the columns of a fabric, their switches, and the links between columns."""
    graph, columns = fabric.graph, fabric.columns
    top = [node for part in fabric.top for node in part]
    rows = ([[node for machine in column.machines for node in machine], *column.tiers, top] for column in columns)
    # links from the machines up to the first tier, from there to the next, ..., and to the top
    bands = [[bundle_links(graph, lower, upper) for lower, upper in itertools.pairwise(each)] for each in rows]
    over = []
    if fabric.joined_directly:
        first, *others = ([node for tier in column.tiers for node in tier] for column in columns)
        over = bundle_links(graph, first, itertools.chain(*others))
    widest = max([bundle.total_bandwidth for column in bands for band in column for bundle in band], default=1.0)
    drawn = fabric.drawn_columns
    for x, number in enumerate(drawn):
        if number is None:
            more = len(columns) - len(drawn) + 1
            text = f"…\n{more:,} more\n{fabric.column_word}s"
            ax.text(x, 0.6, text, ha="center", va="center", fontsize=11, color=QUIET_TEXT)
            continue
        column = columns[number]
        _draw_machines(ax, graph, column, x, f"{fabric.column_word} {number}:\n" if len(columns) > 1 else "", explained)
        foot, head = 1.1, 1.75
        for i, band in enumerate(bands[number]):
            _draw_link_bundle(ax, (x, foot), (x, head), band, widest, explained)
            foot = 2.25 + _STEP * i
            head = foot + _STEP - 0.5
        for i, tier in enumerate(column.tiers):
            _draw_tier(ax, graph, tier, (x, 2.0 + _STEP * i), 0.9, explained)
    highest = 2.0 + _STEP * max((len(column.tiers) for column in columns), default=0)
    middle = (len(drawn) - 1) / 2
    if len(fabric.top) == 1:
        _draw_tier(ax, graph, top, (middle, highest), len(drawn) - 0.1, explained)
    elif top:
        _draw_top_switches(ax, fabric, (middle, highest), len(drawn) - 0.1, explained)
    elif over:
        _draw_direct_links(ax, fabric, over, highest - _STEP + 0.25, explained)
    ax.set_xlim(-0.55, len(drawn) - 0.45)
    ax.set_ylim(-0.35, highest + (0.35 if top or over else 0.35 - _STEP))
    ax.set_title("fabric" if any(column.tiers for column in columns) else "machines", fontsize=10, color=TEXT)


def _draw_machines(ax: Axes, graph: Graph, column: NodeColumn, x: float, name: str, explained: LegendContents) -> None:
    sizes = [sum(graph.nodes[node]["kind"] == "gpu" for node in machine) for machine in column.machines]
    alone = all(len(machine) == 1 for machine in column.machines)
    word = "rack" if any("tray" in graph.nodes[node] for node in column.machines[0]) else "machine"
    icon, count = "gpu" if alone else "machine", len(sizes)
    explained.kinds[icon] = None
    if alone:
        text = f"{count:,} GPU{'s' * (count > 1)}"
    elif len(set(sizes)) == 1:
        gpus = f"{sizes[0]} GPU{'s' * (sizes[0] > 1)}"
        text = f"{count:,} {word}s × {gpus}\n= {sum(sizes):,} GPUs" if count > 1 else f"1 {word}\n{gpus}"
    else:
        text = f"{count:,} {word}s\n{sum(sizes):,} GPUs"
    draw_frame(ax, (x, 0.4), (0.9, 1.4), icon, f"{name}{text}", 0.38)
    icons = min(count, _MOST_ICONS)
    draw_box_row(ax, icons, (x, 0.1), (0.8, 0.2), NODES[icon].colour)
    if count > icons:
        left = f"{icons} of {count:,} {'GPU' if alone else word}s drawn"
        ax.text(x, -0.15, left, ha="center", va="center", fontsize=7.5, color=QUIET_TEXT, zorder=5)


def _draw_tier(ax: Axes, graph: Graph, nodes: Sequence[str], at: Point, width: float, legend: LegendContents) -> None:
    legend.kinds["switch"] = None
    shown = len(nodes) <= _MOST_SWITCH_ICONS
    draw_frame(ax, at, (width, 0.5), "switch", _describe_switches(graph, nodes), 0.1 if shown else 0.0)
    if shown:
        draw_box_row(ax, len(nodes), (at[0], at[1] - 0.12), (width * 0.9, 0.13), NODES["switch"].colour)


def _describe_switches(graph: Graph, nodes: Sequence[str]) -> str:
    tiers = dict.fromkeys(str(graph.nodes[node]["tier"]) for node in nodes)
    return f"{len(nodes):,} {' / '.join(tiers)} switch{'es' * (len(nodes) > 1)}"


def _draw_top_switches(ax: Axes, fabric: FabricColumns, at: Point, width: float, legend: LegendContents) -> None:
    legend.kinds["switch"] = None
    parts = fabric.top
    what = f"{len(parts)} separate parts"
    if len({len(part) for part in parts}) == 1:
        what = f"{len(parts)} separate rails, {_describe_switches(fabric.graph, parts[0])} each, which no switch joins"
    draw_frame(ax, at, (width, 0.5), "switch", what, 0.11)
    shown = min(len(parts), 2 * _MOST_ICONS)
    step = width * 0.94 / shown
    for i in range(shown):
        centre = at[0] + (i - (shown - 1) / 2) * step
        text = f"{len(parts[i])}" if step > 0.1 else ""
        draw_box(ax, (centre, at[1] - 0.11), (step * 0.86, 0.19), NODES["switch"].colour, text, 7.5)


def _draw_direct_links(
    ax: Axes, fabric: FabricColumns, over: Sequence[LinkBundle], y: float, legend: LegendContents
) -> None:
    places = [x for x, number in enumerate(fabric.drawn_columns) if number is not None]
    legend.media.update(dict.fromkeys(bundle.medium for bundle in over))
    colour, furthest = medium_style(over[0].medium).colour, places[-1] - places[0]
    for a, b in itertools.combinations(places, 2):
        size = (b - a, 1.5 * (b - a) / furthest * 0.9)
        ax.add_patch(Arc(((a + b) / 2, y), *size, theta1=0, theta2=180, color=colour, linewidth=3, zorder=1))
    total = format_bytes_per_second(sum(bundle.total_bandwidth for bundle in over))
    texts = [f"{len(fabric.columns)} groups, each pair of them joined directly"]
    texts += [f"out of each group: {over[0].describe()} = {total}"]
    write_note(ax, ((places[0] + places[-1]) / 2, y + 0.85), texts, 9.5, "center")


def _draw_link_bundle(
    ax: Axes, start: Point, end: Point, group: Sequence[LinkBundle], widest: float, legend: LegendContents
) -> None:
    """Draw a bundle of links as one labelled line, which is wider for a higher total bandwidth."""
    if not group:
        return
    total = sum(bundle.total_bandwidth for bundle in group)
    width = 0.6 + (_THICKEST - 0.6) * math.sqrt(total / widest)
    legend.media.update(dict.fromkeys(bundle.medium for bundle in group))
    draw_link(ax, start, end, group[0].medium, width)
    texts = [bundle.describe() for bundle in group[:3]] + ["…"] * (len(group) > 3)
    together = [f"= {format_bytes_per_second(total)}"] if len(group) > 1 or group[0].number > 1 else []
    write_note(ax, (start[0], (start[1] + end[1]) / 2), texts + together, aside=width / 2 + 4)
