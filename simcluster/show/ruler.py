"""How wide a text will be, before there is a figure to draw it in."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties

DPI = 150


@lru_cache(10_000)
def text_width(text: str, size: float) -> float:
    """Points."""
    width, _, _ = _renderer().get_text_width_height_descent(text, FontProperties(size=size), ismath=False)
    return float(width) * 72 / DPI


@cache
def _renderer() -> Any:
    renderer: Any = RendererAgg  # matplotlib leaves it untyped
    return renderer(8, 8, DPI)
