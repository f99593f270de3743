"""The frame of pictures whose rows are horizontal bars."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from simcluster.show.palette import TEXT


def bar_rows(
    axes: Axes, names: Sequence[str], label: str = "", *, places: Sequence[float] = (), size: float = 8.5
) -> None:
    """Rows from above with their names, at ``places`` or one apart; a scale below that ``label`` names."""
    at = places or np.arange(len(names), dtype=float)
    axes.set_yticks(at, names, fontsize=size, color=TEXT)
    axes.set_ylim(at[-1] + 0.6, -0.6)
    axes.set_xlabel(label, fontsize=9, color=TEXT)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
