"""Building blocks of topology pictures: bundles of links, boxes, lines and the legend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from simcluster.base.units import format_bytes_per_second
from simcluster.show.palette import TEXT, Colour, parse_rgb, text_colour_on, tint_colour
from simcluster.topology.links import Graph

Point: TypeAlias = tuple[float, float]


class NamedColour(NamedTuple):
    """Name and colour of a kind of node, or of a link medium such as NVLink."""

    name: str
    colour: Colour


NODES: Mapping[str, NamedColour] = {
    "gpu": NamedColour("GPU", parse_rgb("#0072B2")),
    "nvswitch": NamedColour("NVSwitch", parse_rgb("#009E73")),
    "pcie": NamedColour("PCIe switch", parse_rgb("#CC79A7")),
    "host": NamedColour("host bridge", parse_rgb("#8C8C8C")),
    "nic": NamedColour("NIC", parse_rgb("#E69F00")),
    "switch": NamedColour("network switch", parse_rgb("#56B4E9")),
    "machine": NamedColour("machine", parse_rgb("#B9C3CC")),
}
"""Hues of Okabe and Ito, "Color Universal Design" (2008)."""
_MEDIA = {
    "nvlink": NamedColour("NVLink", parse_rgb("#009E73")),
    "pcie": NamedColour("PCIe", parse_rgb("#AA4499")),
    "infiniband": NamedColour("InfiniBand", parse_rgb("#D55E00")),
    "ethernet": NamedColour("Ethernet", parse_rgb("#D55E00")),
}


class LinkBundle(NamedTuple):
    """Links of equal rate between two groups of nodes; ``bandwidth`` is B/s per link and direction."""

    medium: str
    bandwidth: float
    number: int

    @property
    def total_bandwidth(self) -> float:
        """Total bandwidth of the bundle in B/s."""
        return self.number * self.bandwidth

    def describe(self) -> str:
        """Return the number and rate of the links: "256 × 48 GB/s"."""
        return f"{self.number:,} × {format_bytes_per_second(self.bandwidth)}"


def bundle_links(graph: Graph, lower: Iterable[str], upper: Iterable[str]) -> list[LinkBundle]:
    """Count the links from the lower to the upper nodes, grouped by medium and rate."""
    ends = frozenset(upper)
    links = (data for node in lower for other, data in graph.adj[node].items() if other in ends)
    counts = Counter((data["medium"], data["bandwidth"]) for data in links)
    return [LinkBundle(*kind, number) for kind, number in counts.items()]


def medium_style(medium: str) -> NamedColour:
    """Return the name and colour of a link medium."""
    return _MEDIA.get(medium, NamedColour(medium, parse_rgb("#4D4D4D")))


@dataclass
class LegendContents:
    """Kinds of node and link media drawn so far, which the legend must list."""

    kinds: dict[str, None] = field(default_factory=dict)
    media: dict[str, None] = field(default_factory=dict)


def draw_box(ax: Axes, centre: Point, size: Point, colour: Colour, text: str = "", fontsize: float = 8) -> None:
    """Draw a filled box with a text on it."""
    (x, y), (width, height) = centre, size
    pad = min(width, height) * 0.12
    corner, inner = (x - width / 2 + pad, y - height / 2 + pad), (width - 2 * pad, height - 2 * pad)
    style = f"round,pad={pad}"
    ax.add_patch(FancyBboxPatch(corner, *inner, boxstyle=style, facecolor=colour, edgecolor=TEXT, lw=0.6, zorder=3))
    if text:
        ax.text(x, y, text, ha="center", va="center", fontsize=fontsize, color=text_colour_on(colour), zorder=4)


def draw_frame(ax: Axes, centre: Point, size: Point, kind: str, text: str, above: float) -> None:
    """Draw a pale frame around a group of equal nodes, with a text above it."""
    draw_box(ax, centre, size, tint_colour(NODES[kind].colour, 0.85))
    ax.text(centre[0], centre[1] + above, text, ha="center", va="center", fontsize=9.5, color=TEXT, zorder=5)


def draw_box_row(ax: Axes, count: int, centre: Point, size: Point, colour: Colour) -> None:
    """Draw equal small boxes side by side within a rectangle."""
    (x, y), (width, height) = centre, size
    step = min(width / count, height * 1.35)
    for i in range(count):
        draw_box(ax, (x + (i - (count - 1) / 2) * step, y), (step * 0.74, height), colour)


def draw_link(ax: Axes, start: Point, end: Point, medium: str, width: float) -> None:
    """Draw a link as a line that passes under the boxes."""
    colour = medium_style(medium).colour
    ax.plot(*zip(start, end, strict=True), color=colour, linewidth=width, solid_capstyle="butt", zorder=1)


def write_note(
    ax: Axes, at: Point, texts: Iterable[str], fontsize: float = 8.5, ha: str = "left", *, aside: float = 0.0
) -> None:
    """Write lines of text next to a bundle of links, moved to the right by ``aside`` points."""
    ax.annotate(
        "\n".join(texts), at, xytext=(aside, 0), textcoords="offset points", ha=ha, va="center", fontsize=fontsize,
        color=TEXT, zorder=5, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.9},
    )  # fmt: skip
