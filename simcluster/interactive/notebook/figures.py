"""Display of matplotlib figures in notebooks, without pyplot."""

from __future__ import annotations

import sys
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIGURE = "matplotlib.figure", "Figure"


def enable_figure_display() -> None:
    """Let notebook cells display matplotlib figures in the formats that the user set (%matplotlib).

    Outside notebooks nothing happens and nothing is imported.
    """
    running = sys.modules.get("IPython")
    shell = running.get_ipython() if running and hasattr(running, "get_ipython") else None
    formatter = getattr(shell, "display_formatter", None)
    if formatter is None:
        return
    pictures = formatter.formatters["image/png"]
    if ".".join(_FIGURE) not in pictures:
        pictures.for_type_by_name(*_FIGURE, figure_png)


def figure_png(figure: Figure) -> bytes | None:
    """Return a figure as PNG; None if pyplot already shows the figure in a window."""
    if getattr(figure.canvas, "manager", None) is not None:
        return None
    buffer = BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()
