"""The fabric of a cluster as a picture: columns of machines with their switches, and what joins the columns.

A column is what remains connected when the highest switches are taken away (a unit of a two-level tree, a pod of a
three-level one), or the links across (a group of a dragonfly); so 1,024 GPUs are read as quickly as 8.  Only the
network that collectives use.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.patches import Arc

from simcluster.base.units import format_bytes_per_second
from simcluster.show.palette import QUIET_TEXT, TEXT, rgb
from simcluster.show.topology_parts import (
    NODES,
    Bundle,
    Point,
    WidthScale,
    box,
    bundles,
    frame,
    line,
    medium_of,
    note,
    row,
)
from simcluster.topology.cluster import Cluster
from simcluster.topology.links import Graph, switch_levels

_MOST_COLUMNS = 4
_MOST_ICONS = 8
_MOST_SWITCH_ICONS = 32
_STEP = 1.25
"""From one tier to the next."""


@dataclass(frozen=True, slots=True)
class MachineColumn:
    """Machines (each the names of its nodes), and the switches over them, tier by tier."""

    machines: tuple[tuple[str, ...], ...]
    tiers: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class FabricColumns:
    """A cluster's columns in the order of their first GPU, and what joins them.

    ``top`` are the switches over all columns, in parts that never meet (rails, planes); none where columns are joined
    by links across (``across``) or not at all.
    """

    graph: Graph
    columns: tuple[MachineColumn, ...]
    top: tuple[tuple[str, ...], ...]
    across: bool

    @property
    def drawn(self) -> list[int | None]:
        """Numbers of the columns that are drawn; None stands for those that are not."""
        count = len(self.columns)
        return list(range(count)) if count <= _MOST_COLUMNS else [0, 1, None, count - 1]

    @property
    def word(self) -> str:
        """What a column is called."""
        return "group" if self.across else "pod" if len(self.columns[0].tiers) > 1 else "unit"


def fabric_of(cluster: Cluster, graph: Graph) -> FabricColumns:
    """Return the fabric of the part ``graph`` of a cluster."""
    level = switch_levels(graph)
    highest = max(level.values(), default=0)
    across = any(level.get(a) == level[b] for a in level for b in graph.adj[a] if b in level)
    top = {node for node in level if level[node] == highest} if highest > 1 and not across else set()
    place = {gpu: i for i, gpu in enumerate(cluster.gpus)}
    order = {node: i for i, node in enumerate(graph)}
    low: nx.Graph[str] = nx.Graph()
    low.add_nodes_from(node for node in graph if node not in top)
    low.add_edges_from(
        (a, b)
        for a, b in graph.edges
        if a not in top and b not in top and not (a in level and level.get(b) == level[a])
    )
    columns = []
    for names in nx.connected_components(low):
        inside = low.subgraph(node for node in names if node not in level)
        machines = [tuple(sorted(part, key=order.__getitem__)) for part in nx.connected_components(inside)]
        machines.sort(key=lambda part: min(place.get(node, len(place)) for node in part))
        tiers = [
            sorted((n for n in names if level.get(n) == height), key=order.__getitem__)
            for height in range(1, highest + 1)
        ]
        columns.append(MachineColumn(tuple(machines), tuple(tuple(tier) for tier in tiers if tier)))
    columns.sort(
        key=lambda column: min((place.get(n, len(place)) for m in column.machines for n in m), default=len(place))
    )
    return FabricColumns(graph, tuple(columns), _parts(graph, [node for node in level if node in top], level), across)


def _parts(graph: Graph, top: Sequence[str], level: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """Return switches of the top tier, by the part of the fabric that they belong to."""
    switches: nx.Graph[str] = nx.Graph()
    switches.add_nodes_from(level)
    switches.add_edges_from((a, b) for a in level for b in graph.adj[a] if b in level)
    part_of = {node: i for i, part in enumerate(nx.connected_components(switches)) for node in part}
    parts: dict[int, list[str]] = {}
    for node in top:
        parts.setdefault(part_of[node], []).append(node)
    return tuple(tuple(part) for part in parts.values())


def draw_fabric(ax: Axes, fabric: FabricColumns, scale: WidthScale) -> None:
    """All of it on one axes; sets the scale of the bands."""
    graph, columns = fabric.graph, fabric.columns
    top = [node for part in fabric.top for node in part]
    rows = ([[node for machine in column.machines for node in machine], *column.tiers, top] for column in columns)
    # links from the machines up to the first tier, from there to the next, ..., and to the top
    bands = [[bundles(graph, lower, upper) for lower, upper in itertools.pairwise(each)] for each in rows]
    over = []
    if fabric.across:
        first, *others = ([node for tier in column.tiers for node in tier] for column in columns)
        over = bundles(graph, first, itertools.chain(*others))
    scale.widest = max([b.total for column in bands for band in column for b in band], default=1.0)
    drawn = fabric.drawn
    for x, number in enumerate(drawn):
        if number is None:
            more = len(columns) - len(drawn) + 1
            text = f"…\n{more:,} more\n{fabric.word}s"
            ax.text(x, 0.6, text, ha="center", va="center", fontsize=11, color=QUIET_TEXT)
        else:
            name = f"{fabric.word} {number}" if len(columns) > 1 else ""
            _draw_column(ax, graph, columns[number], (x, name), bands[number], scale)
    highest = 2.0 + _STEP * max((len(column.tiers) for column in columns), default=0)
    if top:
        _draw_top(ax, fabric, ((len(drawn) - 1) / 2, highest), len(drawn) - 0.1, scale)
    elif over:
        _draw_across(ax, fabric, over, highest - _STEP + 0.25, scale)
    ax.set_xlim(-0.55, len(drawn) - 0.45)
    ax.set_ylim(-0.35, highest + (0.35 if top or over else 0.35 - _STEP))
    switches = any(column.tiers for column in columns)
    ax.set_title("fabric" if switches else "machines", fontsize=10, color=TEXT)


def _draw_column(
    ax: Axes,
    graph: Graph,
    column: MachineColumn,
    where: tuple[int, str],
    bands: Sequence[Sequence[Bundle]],
    scale: WidthScale,
) -> None:
    x, name = where
    _draw_machines(ax, graph, column, x, name, scale)
    heights = [2.0 + _STEP * i for i in range(len(column.tiers))]
    for tier, y in zip(column.tiers, heights, strict=True):
        _draw_tier(ax, graph, tier, (x, y), 0.9, scale)
    feet = [1.1, *(y + 0.25 for y in heights)]
    for band, foot in zip(bands, feet, strict=True):
        head = 1.75 if foot == 1.1 else foot + _STEP - 0.5
        _band(ax, (x, foot), (x, head), band, scale)


def _draw_machines(ax: Axes, graph: Graph, column: MachineColumn, x: float, name: str, scale: WidthScale) -> None:
    sizes = [sum(graph.nodes[node]["kind"] == "gpu" for node in machine) for machine in column.machines]
    alone = all(len(machine) == 1 for machine in column.machines)
    word = "rack" if any("tray" in graph.nodes[node] for node in column.machines[0]) else "machine"
    icon = "gpu" if alone else "machine"
    scale.kinds[icon] = None
    frame(ax, (x, 0.4), (0.9, 1.4), NODES[icon].colour)
    count = len(sizes)
    if alone:
        text = f"{count:,} GPU{'s' if count > 1 else ''}"
    elif len(set(sizes)) == 1:
        gpus = f"{sizes[0]} GPU{'s' if sizes[0] > 1 else ''}"
        text = f"{count:,} {word}s × {gpus}\n= {sum(sizes):,} GPUs" if count > 1 else f"1 {word}\n{gpus}"
    else:
        text = f"{count:,} {word}s\n{sum(sizes):,} GPUs"
    ax.text(x, 0.78, f"{name}:\n{text}" if name else text, ha="center", va="center", fontsize=9.5, color=TEXT, zorder=5)
    icons = min(count, _MOST_ICONS)
    row(ax, icons, (x, 0.1), (0.8, 0.2), NODES[icon].colour)
    if count > icons:
        left = f"{icons} of {count:,} {'GPU' if alone else word}s drawn"
        ax.text(x, -0.15, left, ha="center", va="center", fontsize=7.5, color=QUIET_TEXT, zorder=5)


def _draw_tier(ax: Axes, graph: Graph, nodes: Sequence[str], at: Point, width: float, scale: WidthScale) -> None:
    shown = len(nodes) <= _MOST_SWITCH_ICONS
    _draw_switches(ax, at, width, _switches(graph, nodes), 0.1 if shown else 0.0, scale)
    if shown:
        row(ax, len(nodes), (at[0], at[1] - 0.12), (width * 0.9, 0.13), NODES["switch"].colour)


def _draw_switches(ax: Axes, at: Point, width: float, text: str, above: float, scale: WidthScale) -> None:
    scale.kinds["switch"] = None
    frame(ax, at, (width, 0.5), NODES["switch"].colour)
    ax.text(at[0], at[1] + above, text, ha="center", va="center", fontsize=9.5, color=TEXT, zorder=5)


def _switches(graph: Graph, nodes: Sequence[str]) -> str:
    tiers = dict.fromkeys(str(graph.nodes[node]["tier"]) for node in nodes)
    return f"{len(nodes):,} {' / '.join(tiers)} switch{'es' if len(nodes) > 1 else ''}"


def _draw_top(ax: Axes, fabric: FabricColumns, at: Point, width: float, scale: WidthScale) -> None:
    parts = fabric.top
    if len(parts) == 1:
        _draw_tier(ax, fabric.graph, parts[0], at, width, scale)
        return
    each = _switches(fabric.graph, parts[0])
    same = len({len(part) for part in parts}) == 1
    what = (
        f"{len(parts)} rails apart, {each} each: no switch joins two" if same else f"{len(parts)} parts that never meet"
    )
    _draw_switches(ax, at, width, what, 0.11, scale)
    shown = min(len(parts), 2 * _MOST_ICONS)
    step = width * 0.94 / shown
    for i in range(shown):
        centre = at[0] + (i - (shown - 1) / 2) * step
        text = f"{len(parts[i])}" if step > 0.1 else ""
        box(ax, (centre, at[1] - 0.11), (step * 0.86, 0.19), NODES["switch"].colour, text, 7.5)


def _draw_across(ax: Axes, fabric: FabricColumns, over: Sequence[Bundle], y: float, scale: WidthScale) -> None:
    places = [x for x, number in enumerate(fabric.drawn) if number is not None]
    colour = medium_of(over[0].medium).colour
    scale.media.update(dict.fromkeys(bundle.medium for bundle in over))
    furthest = places[-1] - places[0]
    for a, b in itertools.combinations(places, 2):
        size = (b - a, 1.5 * (b - a) / furthest * 0.9)
        ax.add_patch(Arc(((a + b) / 2, y), *size, theta1=0, theta2=180, color=colour, linewidth=3, zorder=1))
    groups = len(fabric.columns)
    total = sum(bundle.total for bundle in over)
    texts = [f"{groups} groups, every two of them joined directly"]
    texts += [f"out of each: {bundle.text()} = {format_bytes_per_second(total)}" for bundle in over[:1]]
    note(ax, ((places[0] + places[-1]) / 2, y + 0.85), "\n".join(texts), rgb(TEXT), 9.5, "center")


def _band(ax: Axes, start: Point, end: Point, group: Sequence[Bundle], scale: WidthScale) -> None:
    """A bundle of links as one line, with what is in it beside it."""
    if not group:
        return
    total = sum(bundle.total for bundle in group)
    scale.media.update(dict.fromkeys(bundle.medium for bundle in group))
    line(ax, start, end, medium_of(group[0].medium).colour, scale.width(total))
    texts = [bundle.text() for bundle in group[:3]] + (["…"] if len(group) > 3 else [])
    together = [f"= {format_bytes_per_second(total)}"] if len(group) > 1 or group[0].number > 1 else []
    middle = (start[0], (start[1] + end[1]) / 2)
    note(ax, middle, "\n".join(texts + together), rgb(TEXT), aside=scale.width(total) / 2 + 4)
