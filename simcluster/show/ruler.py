"""How wide a text will be, before there is a figure to draw it in."""

from __future__ import annotations

from typing import Any

from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties


class Ruler:
    """Widths of texts in points, each measured once."""

    def __init__(self, dpi: float) -> None:
        renderer: Any = RendererAgg  # matplotlib leaves it untyped
        self._renderer: Any = renderer(8, 8, dpi)
        self.dpi = dpi
        self._known: dict[tuple[str, float], float] = {}

    def width(self, text: str, size: float) -> float:
        """Points."""
        if (text, size) not in self._known:
            properties = FontProperties(size=size)
            width, _, _ = self._renderer.get_text_width_height_descent(text, properties, ismath=False)
            self._known[text, size] = float(width) * 72 / self.dpi
        return self._known[text, size]
