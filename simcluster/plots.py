"""The pictures that users draw from results.  matplotlib is imported when the first one is drawn, not before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from simcluster.topology import Cluster


class HasTimeline(Protocol):
    """A result of a simulation, or anything else that carries a timeline."""

    @property
    def timeline(self) -> pd.DataFrame: ...


def gantt(
    timeline: pd.DataFrame | HasTimeline,
    *,
    ranks: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    title: str | None = None,
    labels: bool = True,
    width: float = 14.0,
    max_rows: int = 24,
    rows: Literal["rank", "stage"] = "rank",
    num_ranks: int | None = None,
) -> Figure:
    """A timeline, or a result's timeline, as a Gantt chart: a row per rank (or per stage), time to the right.

    `window` is in seconds, `width` in inches.  `labels` writes microbatch numbers where they fit.  More than
    `max_rows` ranks are shown by representatives, and the caption says which; `num_ranks` is the size of the job where
    the timeline holds one rank for many equal ones.  Raises InputError for an empty timeline and for a selection that
    it does not have.
    """
    from simcluster.show import gantt as drawing

    weights = getattr(timeline, "weights", None)
    if num_ranks is None and weights is not None:
        num_ranks = sum(weights.values())
    return drawing.gantt(
        _timeline_of(timeline), ranks=ranks, window=window, title=title, labels=labels, width=width,
        max_rows=max_rows, rows=rows, num_ranks=num_ranks,
    )  # fmt: skip


def compare_gantts(
    named_timelines: Sequence[tuple[str, pd.DataFrame | HasTimeline]],
    *,
    ranks: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    title: str | None = None,
    labels: bool = True,
    width: float = 14.0,
    max_rows: int = 8,
    rows: Literal["rank", "stage"] = "stage",
) -> Figure:
    """Gantt charts under each other on one time axis, each with its length and the difference from the first.

    Every timeline starts at its own beginning; `window` counts from there.  The rest is as in `gantt`.
    """
    from simcluster.show import gantt as drawing

    named = [(name, _timeline_of(timeline)) for name, timeline in named_timelines]
    return drawing.compare_gantts(
        named, ranks=ranks, window=window, title=title, labels=labels, width=width, max_rows=max_rows, rows=rows
    )


def topology(cluster: Cluster) -> Figure:
    """A cluster by its hierarchy, readable at thousands of GPUs: the fabric, and one machine of each kind.

    Rates are payload per direction; line widths grow with the root of the bandwidth.
    """
    from simcluster.show.topology_plot import plot_topology

    return plot_topology(cluster)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as .png, .svg or .pdf, by the ending of `path`; InputError for another one or a missing folder."""
    from simcluster.show import gantt as drawing

    drawing.save_figure(figure, path)


def _timeline_of(timeline: pd.DataFrame | HasTimeline) -> pd.DataFrame:
    import pandas as pd

    return timeline if isinstance(timeline, pd.DataFrame) else timeline.timeline
