"""Figures in a notebook: those drawn here belong to no window, and IPython shows only those of pyplot by itself."""

from __future__ import annotations

import sys
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIGURE = "matplotlib.figure", "Figure"


def let_cells_show_figures() -> None:
    """In a notebook, a figure at the end of a cell is shown; formats that a user has chosen (%matplotlib) stay.

    Nothing happens elsewhere, and nothing is imported.
    """
    running = sys.modules.get("IPython")
    shell = running.get_ipython() if running and hasattr(running, "get_ipython") else None
    formatter = getattr(shell, "display_formatter", None)
    if formatter is None:
        return
    pictures = formatter.formatters["image/png"]
    if ".".join(_FIGURE) not in pictures:
        pictures.for_type_by_name(*_FIGURE, png_of)


def png_of(figure: Figure) -> bytes | None:
    """Return the picture; None where the figure has a window, which shows it."""
    if getattr(figure.canvas, "manager", None) is not None:
        return None
    buffer = BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()
