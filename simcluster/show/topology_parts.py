"""Parts of topology pictures: bundles of links, boxes and lines."""

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


class Look(NamedTuple):
    """The name and the colour of a kind of node or of a medium."""

    name: str
    colour: Colour


NODES: Mapping[str, Look] = {
    "gpu": Look("GPU", rgb("#0072B2")),
    "nvswitch": Look("NVSwitch", rgb("#009E73")),
    "pcie": Look("PCIe switch", rgb("#CC79A7")),
    "host": Look("host bridge", rgb("#8C8C8C")),
    "nic": Look("NIC", rgb("#E69F00")),
    "switch": Look("network switch", rgb("#56B4E9")),
    "machine": Look("machine", rgb("#B9C3CC")),
}
"""Hues of Okabe and Ito, "Color Universal Design" (2008)."""
_MEDIA = {
    "nvlink": Look("NVLink", rgb("#009E73")),
    "pcie": Look("PCIe", rgb("#AA4499")),
    "infiniband": Look("InfiniBand", rgb("#D55E00")),
    "ethernet": Look("Ethernet", rgb("#D55E00")),
}


class Bundle(NamedTuple):
    """Links of one rate between two groups of nodes; ``bandwidth`` is of each link in B/s, one direction."""

    medium: str
    bandwidth: float
    number: int

    @property
    def total(self) -> float:
        """Total bandwidth in B/s."""
        return self.number * self.bandwidth

    def text(self) -> str:
        """Count and rate of the links: "256 × 48 GB/s"."""
        return f"{self.number:,} × {format_bytes_per_second(self.bandwidth)}"


def bundles(graph: Graph, lower: Iterable[str], upper: Iterable[str]) -> list[Bundle]:
    """Return the links from ``lower`` to ``upper``, counted by medium and rate."""
    ends = frozenset(upper)
    links = (data for node in lower for other, data in graph.adj[node].items() if other in ends)
    counts = Counter((data["medium"], data["bandwidth"]) for data in links)
    return [Bundle(*kind, number) for kind, number in counts.items()]


def medium_of(medium: str) -> Look:
    """Return the look of links of a medium."""
    return _MEDIA.get(medium, Look(medium, rgb("#4D4D4D")))


@dataclass
class Explained:
    """The kinds of node and the media that a picture's legend explains."""

    kinds: dict[str, None] = field(default_factory=dict)
    media: dict[str, None] = field(default_factory=dict)


def draw_box(ax: Axes, centre: Point, size: Point, colour: Colour, text: str = "", fontsize: float = 8) -> None:
    """Draw a filled box with its name on it."""
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
    """Draw a pale box around a group of nodes of one kind, with a text ``above`` its middle."""
    draw_box(ax, centre, size, mix_with_white(NODES[kind].colour, 0.85))
    ax.text(centre[0], centre[1] + above, text, ha="center", va="center", fontsize=9.5, color=TEXT, zorder=5)


def draw_box_row(ax: Axes, count: int, centre: Point, size: Point, colour: Colour) -> None:
    """Draw ``count`` small boxes next to each other, within ``size``."""
    (x, y), (width, height) = centre, size
    step = min(width / count, height * 1.35)
    for i in range(count):
        draw_box(ax, (x + (i - (count - 1) / 2) * step, y), (step * 0.74, height), colour)


def draw_link(ax: Axes, start: Point, end: Point, medium: str, width: float) -> None:
    """Draw a link, under the boxes."""
    colour = medium_of(medium).colour
    ax.plot(*zip(start, end, strict=True), color=colour, linewidth=width, solid_capstyle="butt", zorder=1)


def write_note(
    ax: Axes, at: Point, texts: Iterable[str], fontsize: float = 8.5, ha: str = "left", *, aside: float = 0.0
) -> None:
    """Write lines next to a band, legible over links; ``aside`` points to the right of the place."""
    ax.annotate(
        "\n".join(texts), at, xytext=(aside, 0), textcoords="offset points", ha=ha, va="center", fontsize=fontsize,
        color=TEXT, zorder=5, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.9},
    )  # fmt: skip
