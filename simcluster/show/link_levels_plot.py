"""Link loads on the topology: the kinds of node as boxes, tier over tier, and how full the links between them are.

Thousands of links are a few levels: those that join equal kinds of node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

from simcluster.base.errors import InputError
from simcluster.base.units import format_bytes_per_second
from simcluster.results.loads import link_table
from simcluster.results.result import Result
from simcluster.show.palette import COMPUTE_KINDS, LANE_SURROUND, QUIET_TEXT, STREAMS, TEXT
from simcluster.show.topology_parts import NODES, Point, box
from simcluster.topology.levels import label
from simcluster.topology.links import compute_part

_FILL = LinearSegmentedColormap.from_list(
    "load", [LANE_SURROUND, "#56B4E9", COMPUTE_KINDS["backward"], STREAMS["tp"]]
)  # quiet where nothing happens, warm where it is tight
_NORM = PowerNorm(0.5, 0.0, 1.0)
_APART = 2.9
_TIER = 1.4
_ASIDE = 0.1
_BOX = (1.4, 0.46)


@dataclass(frozen=True, slots=True)
class LinkLevel:
    """Links from nodes of one kind to nodes of another: ``count`` of ``capacity`` B/s each (the mean).

    ``mean`` and ``most`` are utilisation over the step, of all of them and of the fullest, ``peak`` is the highest of
    any instant; ``used`` carry anything.
    """

    ends: tuple[str, str]
    count: int
    used: int
    capacity: float
    mean: float
    most: float
    peak: float


def levels_of(result: Result) -> list[LinkLevel]:
    """The levels of a result's cluster, in the order of its links; also those on which nothing moves."""
    graph = compute_part(result.scenario.cluster.built.graph)
    table = link_table(result)
    ends = zip(table["link_from"], table["link_to"], strict=True)
    load = dict(zip(ends, zip(table["utilisation"], table["peak_utilisation"], strict=True), strict=True))
    names = {node: label(graph, node) for node in graph}
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for a, b, data in graph.edges(data=True):
        found.setdefault((names[a], names[b]), []).append((float(data["bandwidth"]), *load.get((a, b), (0.0, 0.0))))
    return [
        LinkLevel(
            kinds,
            len(links),
            sum(part > 0 for _, part, _ in links),
            sum(rate for rate, _, _ in links) / len(links),
            sum(part for _, part, _ in links) / len(links),
            max(part for _, part, _ in links),
            max(peak for _, _, peak in links),
        )
        for kinds, links in found.items()
    ]


def link_levels(result: Result, *, title: str | None = None) -> Figure:
    """Each kind of node a box, GPUs at the bottom; each level two arrows, one each way, coloured by its fullest link.

    The figure belongs to no window.  InputError for a single GPU.
    """
    levels = levels_of(result)
    if not levels:
        raise InputError("there are no links: a single GPU sends nothing")
    graph = compute_part(result.scenario.cluster.built.graph)
    kinds = {label(graph, node): str(data["kind"]) for node, data in graph.nodes(data=True)}
    counts = dict.fromkeys(kinds, 0)
    for node in graph:
        counts[label(graph, node)] += 1
    places = _places(levels, kinds)
    first, last = min(x for x, _ in places.values()) - _BOX[0], max(x for x, _ in places.values()) + 1.6 * _BOX[0]
    high = max(y for _, y in places.values()) + _TIER
    figure = Figure(figsize=(1.5 + 1.3 * (last - first), 1.0 + 0.95 * high), layout="constrained")
    axes = figure.subplots()
    largest = max(level.count * level.capacity for level in levels)
    both = {level.ends: level for level in levels}
    for level in levels:
        back = both.get((level.ends[1], level.ends[0]))
        if back is None or places[level.ends[0]][1] < places[level.ends[1]][1] or back is level:
            _pair(axes, level, back, places, largest)
    for name, place in places.items():
        box(axes, place, _BOX, NODES[kinds[name]].colour, f"{counts[name]:,} × {name}")
    axes.set_xlim(first, last)
    axes.set_ylim(-0.5 * _TIER, high - 0.5 * _TIER)
    axes.set_axis_off()
    bar = figure.colorbar(ScalarMappable(_NORM, _FILL), ax=axes, shrink=0.6, aspect=28, pad=0.01)
    bar.set_ticks([0.0, 0.05, 0.2, 0.5, 1.0], labels=["idle", "5 %", "20 %", "50 %", "full"], fontsize=8)
    bar.set_label("the level's fullest link, over the step", fontsize=8.5, color=TEXT)
    bar.outline.set_edgecolor(QUIET_TEXT)
    told = title or f"{result.scenario.name}: how full the links are over a step"
    figure.suptitle(told, fontsize=11, color=TEXT)
    return figure


def _places(levels: Sequence[LinkLevel], kinds: Mapping[str, str]) -> dict[str, Point]:
    """Where each kind of node stands: as high as it is links away from a GPU; what leads no further stands aside."""
    near: dict[str, list[str]] = {name: [] for name in kinds}
    carried = dict.fromkeys(kinds, 0.0)
    for level in levels:
        near[level.ends[0]].append(level.ends[1])
        for end in level.ends:
            carried[end] += level.count * level.capacity * level.mean
    height = {name: 0 for name, kind in kinds.items() if kind == "gpu"}
    frontier = list(height)
    while frontier:
        reached = [other for name in frontier for other in near[name] if other not in height]
        height |= {other: max(height[name] for name in frontier) + 1 for other in reached}
        frontier = list(dict.fromkeys(reached))
    onwards = {name for name in height if any(height.get(other, -1) > height[name] for other in near[name])}
    places: dict[str, Point] = {}
    for tier in range(max(height.values()) + 1):
        mine = sorted((name for name in height if height[name] == tier), key=lambda name: -carried[name])
        up = [name for name in mine if name in onwards] or mine[:1]
        aside = [name for name in mine if name not in up]
        places |= {name: (_APART * place, _TIER * tier) for place, name in enumerate(up)}
        places |= {name: (-_APART * (place + 1), _TIER * tier) for place, name in enumerate(aside)}
    return places


def _pair(axes: Axes, there: LinkLevel, back: LinkLevel | None, places: Mapping[str, Point], largest: float) -> None:
    """Both directions of a level as two arrows, with their numbers on the side that is free."""
    start, end = places[there.ends[0]], places[there.ends[1]]
    links = f"{there.count:,} × {format_bytes_per_second(there.capacity)}"
    if start == end:
        axes.text(start[0] + 0.6 * _BOX[0], start[1], f"among them {_text(there)}\n{links}", fontsize=8, color=TEXT,
                  va="center")  # fmt: skip
        return
    _arrow(axes, there, start, end, largest)
    if back:
        _arrow(axes, back, end, start, largest)
    lines = [f"↑ {_text(there)}", *([f"↓ {_text(back)}"] if back else []), links]
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    left = end[0] < start[0]
    axes.annotate("\n".join(lines), middle, xytext=(-8, -14) if left else (16, 0), textcoords="offset points",
                  fontsize=8, color=TEXT, va="top" if left else "center", ha="right" if left else "left")  # fmt: skip


def _text(level: LinkLevel) -> str:
    if not level.used:
        return "idle"
    fullest = f", fullest {level.most:.1%}" if level.most > 1.01 * level.mean else ""
    return f"{level.mean:.1%}{fullest}, peak {level.peak:.0%}"


def _arrow(axes: Axes, level: LinkLevel, start: Point, end: Point, largest: float) -> None:
    """One direction, on the left of the line between the boxes; as wide as the root of what all links carry at most."""
    colour = _FILL(_NORM(level.most)) if level.used else LANE_SURROUND
    length = math.hypot(end[0] - start[0], end[1] - start[1])
    left = (-(end[1] - start[1]) / length, (end[0] - start[0]) / length)
    start, end = ((x + _ASIDE * left[0], y + _ASIDE * left[1]) for x, y in _trimmed(start, end))
    width = 1.5 + 6.0 * math.sqrt(level.count * level.capacity / largest)
    style = {"arrowstyle": "-|>,head_width=0.35,head_length=0.5", "color": colour, "linewidth": width, "shrinkA": 0,
             "shrinkB": 0, "mutation_scale": 10}  # fmt: skip
    axes.annotate("", xy=end, xytext=start, arrowprops=style, zorder=1)


def _trimmed(start: Point, end: Point) -> tuple[Point, Point]:
    """A line between the edges of two boxes."""
    (x0, y0), (x1, y1) = start, end
    across, upwards = abs(x1 - x0), abs(y1 - y0)
    inside = min(_BOX[0] / 2 / across if across else 9.0, (_BOX[1] / 2 + 0.03) / upwards if upwards else 9.0)
    inside = min(inside, 0.4)
    return (x0 + inside * (x1 - x0), y0 + inside * (y1 - y0)), (x1 - inside * (x1 - x0), y1 - inside * (y1 - y0))
