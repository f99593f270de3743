"""Building blocks of topology pictures: bundles of links, boxes and lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from simcluster.base.units import format_bytes_per_second
from simcluster.show.palette import TEXT, Colour, mix_with_white, rgb, text_on
from simcluster.topology.links import Graph

Point: TypeAlias = tuple[float, float]


class NamedColour(NamedTuple):
    """Name and colour of a kind of node or of a link medium."""

    name: str
    colour: Colour


NODES: Mapping[str, NamedColour] = {
    "gpu": NamedColour("GPU", rgb("#0072B2")),
    "nvswitch": NamedColour("NVSwitch", rgb("#009E73")),
    "pcie": NamedColour("PCIe switch", rgb("#CC79A7")),
    "host": NamedColour("host bridge", rgb("#8C8C8C")),
    "nic": NamedColour("NIC", rgb("#E69F00")),
    "switch": NamedColour("network switch", rgb("#56B4E9")),
    "machine": NamedColour("machine", rgb("#B9C3CC")),
}
"""Hues of Okabe and Ito, "Color Universal Design" (2008)."""
_MEDIA = {
    "nvlink": NamedColour("NVLink", rgb("#009E73")),
    "pcie": NamedColour("PCIe", rgb("#AA4499")),
    "infiniband": NamedColour("InfiniBand", rgb("#D55E00")),
    "ethernet": NamedColour("Ethernet", rgb("#D55E00")),
}


class Bundle(NamedTuple):
    """Links of equal rate between two groups of nodes; ``bandwidth`` is B/s per link and direction."""

    medium: str
    bandwidth: float
    number: int

    @property
    def total(self) -> float:
        """Total bandwidth of the bundle in B/s."""
        return self.number * self.bandwidth

    def text(self) -> str:
        """Return the number and rate of the links: "256 × 48 GB/s"."""
        return f"{self.number:,} × {format_bytes_per_second(self.bandwidth)}"


def bundles(graph: Graph, lower: Iterable[str], upper: Iterable[str]) -> list[Bundle]:
    """Return the links from ``lower`` to ``upper`` nodes, counted by medium and rate."""
    ends = frozenset(upper)
    links = (data for node in lower for other, data in graph.adj[node].items() if other in ends)
    counts = Counter((data["medium"], data["bandwidth"]) for data in links)
    return [Bundle(*kind, number) for kind, number in counts.items()]


def medium_look(medium: str) -> NamedColour:
    """Return the name and colour with which links of a medium are drawn."""
    return _MEDIA.get(medium, NamedColour(medium, rgb("#4D4D4D")))


@dataclass
class Legend:
    """The kinds of node and link media that a topology picture's legend must explain."""

    kinds: dict[str, None] = field(default_factory=dict)
    media: dict[str, None] = field(default_factory=dict)


def draw_box(ax: Axes, centre: Point, size: Point, colour: Colour, text: str = "", fontsize: float = 8) -> None:
    """Draw a filled box with a text on it."""
    (x, y), (width, height) = centre, size
    pad = min(width, height) * 0.12
    corner, inner = (x - width / 2 + pad, y - height / 2 + pad), (width - 2 * pad, height - 2 * pad)
    ax.add_patch(
        FancyBboxPatch(
            corner, *inner, boxstyle=f"round,pad={pad}", facecolor=colour, edgecolor=TEXT, linewidth=0.6, zorder=3
        )
    )
    if text:
        ax.text(x, y, text, ha="center", va="center", fontsize=fontsize, color=text_on(colour), zorder=4)


def draw_frame(ax: Axes, centre: Point, size: Point, kind: str, text: str, above: float) -> None:
    """Draw a pale box around a group of equal nodes, with a text above it."""
    draw_box(ax, centre, size, mix_with_white(NODES[kind].colour, 0.85))
    ax.text(centre[0], centre[1] + above, text, ha="center", va="center", fontsize=9.5, color=TEXT, zorder=5)


def draw_box_row(ax: Axes, count: int, centre: Point, size: Point, colour: Colour) -> None:
    """Draw ``count`` small boxes next to each other, within a rectangle of ``size``."""
    (x, y), (width, height) = centre, size
    step = min(width / count, height * 1.35)
    for i in range(count):
        draw_box(ax, (x + (i - (count - 1) / 2) * step, y), (step * 0.74, height), colour)


def draw_link(ax: Axes, start: Point, end: Point, medium: str, width: float) -> None:
    """Draw a link as a line below the boxes."""
    colour = medium_look(medium).colour
    ax.plot(*zip(start, end, strict=True), color=colour, linewidth=width, solid_capstyle="butt", zorder=1)


def write_note(
    ax: Axes, at: Point, texts: Iterable[str], fontsize: float = 8.5, ha: str = "left", *, aside: float = 0.0
) -> None:
    """Write lines of text next to a band of links; ``aside`` moves them to the right, in points."""
    ax.annotate(
        "\n".join(texts), at, xytext=(aside, 0), textcoords="offset points", ha=ha, va="center", fontsize=fontsize,
        color=TEXT, zorder=5, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.9},
    )  # fmt: skip
