"""Helpers for figures: axis labels, time units, text widths, and horizontal bars."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties

from simcluster.show.palette import TEXT


def label_axes(
    axes: Axes, x: str = "", y: str = "", title: str = "", *, tick_size: float = 8, grid: str = "", size: float = 9
) -> None:
    """Label and title the axes of a plot, remove its top and right edges, and draw a grid if a grid colour is given."""
    axes.set_xlabel(x, fontsize=size, color=TEXT)
    axes.set_ylabel(y, fontsize=size, color=TEXT)
    if title:
        axes.set_title(title, fontsize=9.5, color=TEXT, loc="left")
    axes.tick_params(labelsize=tick_size)
    if grid:
        axes.grid(color=grid, linewidth=0.7)
        axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def choose_time_unit(seconds: float) -> tuple[str, float]:
    """Return the best time unit (s, ms, us or ns) for an axis of this length, and the unit's length in seconds."""
    return next((unit for unit in _UNITS if seconds >= unit[1]), _UNITS[-1])


def set_up_bar_rows(
    axes: Axes, names: Sequence[str], label: str = "", *, positions: Sequence[float] = (), size: float = 8.5
) -> None:
    """Set up axes for a horizontal bar chart: the rows' names at the left, the scale of values below."""
    label_axes(axes, label)
    at = positions or np.arange(len(names), dtype=float)
    axes.set_yticks(at, names, fontsize=size, color=TEXT)
    axes.set_ylim(at[-1] + 0.6, -0.6)
    axes.tick_params(axis="y", length=0)


DPI = 150
_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))


@lru_cache(10_000)
def text_width(text: str, size: float) -> float:
    """Return how wide (points) a text is at a font size in points."""
    width, _, _ = _agg_renderer().get_text_width_height_descent(text, FontProperties(size=size), ismath=False)
    return float(width) * 72 / DPI


@cache
def _agg_renderer() -> Any:
    renderer: Any = RendererAgg  # matplotlib leaves it untyped
    return renderer(8, 8, DPI)
