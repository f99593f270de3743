"""Gantt pictures of timelines: who computes what when, what the links carry meanwhile, who waits.

A row is a rank (or the rank that stands for a stage): its compute stream as a high lane, under it a slim lane for every
communication stream, so that what is hidden under compute and what is exposed are both seen.  White is idle.

Figures are matplotlib Figure objects without pyplot: nothing global is kept and no display is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter
from matplotlib.transforms import ScaledTranslation

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.show import palette
from simcluster.show.gantt_legend import draw_footer
from simcluster.show.gantt_panel import LaneHeights, Panel, draw_panel, streams_of
from simcluster.show.gantt_rows import RowChoice, Rows, choose_rows
from simcluster.show.ruler import DPI, text_width

FORMATS = ("png", "svg", "pdf")
Window = tuple[float, float]

_COLUMNS = ("rank", "stream", "kind", "name", "layer", "stage", "chunk", "microbatch", "bytes", "ready", "start", "end")
_MOST_ROWS = 1000
_WIDTHS = (5.0, 60.0)  # inches: below, labels and legend take it all
_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_TITLE, _LINE, _HEADER, _AXIS = 24.0, 15.0, 17.0, 36.0  # points of height; _LINE: of each further one of the title
_STEP_TIME = 74.0  # points of width, right of compared panels
_SIDE = 12.0  # points


class HasTimeline(Protocol):
    """A result of a simulation, or anything else that carries a timeline."""

    @property
    def timeline(self) -> pd.DataFrame: ...


def gantt(
    timeline: pd.DataFrame | HasTimeline,
    *,
    ranks: Sequence[int] | None = None,
    window: Window | None = None,
    title: str | None = None,
    labels: bool = True,
    width: float = 14.0,
    max_rows: int = 24,
    rows: Rows = "rank",
    num_ranks: int | None = None,
) -> Figure:
    """A timeline, or a result's timeline, as a picture: a row per rank (or per stage), time to the right.

    `ranks` selects rows and `window` = (from, to) in seconds a part of the time.  With more than `max_rows` ranks
    representatives are drawn and a caption says which; `num_ranks` is the size of the job where the timeline holds one
    rank for many equal ones.  `labels` writes microbatch numbers where they fit.  `width` is in inches.
    Spans closer than the picture resolves are joined per action; more than 200,000 boxes become a raster; both are said
    in the caption.  Raises InputError for an empty timeline, missing columns, and a selection that it does not have.
    """
    weights = getattr(timeline, "weights", None)
    if num_ranks is None and weights is not None:
        num_ranks = sum(weights.values())
    timeline = _timeline_of(timeline)
    _check(timeline, width=width, max_rows=max_rows, rows=rows)
    whole = _extent(timeline)
    shown = _checked_window(window, whole)
    choice = choose_rows(timeline, ranks=ranks, rows=rows, max_rows=max_rows, num_ranks=num_ranks)
    total = max(num_ranks or 0, timeline["rank"].nunique())
    heading = title if title is not None else _title(timeline, whole, shown, total)
    return _figure([(timeline, choice, 0.0)], shown, heading, headers=None, labels=labels, width=width)


def compare_gantts(
    named_timelines: Sequence[tuple[str, pd.DataFrame | HasTimeline]],
    *,
    ranks: Sequence[int] | None = None,
    window: Window | None = None,
    title: str | None = None,
    labels: bool = True,
    width: float = 14.0,
    max_rows: int = 8,
    rows: Rows = "stage",
    said: Sequence[tuple[str, str]] | None = None,
) -> Figure:
    """Timelines under each other on one time axis, each from its own beginning, with its length at the right.

    The second figure there is the difference from the first timeline; `said` are two other texts for each.  `window` is
    in seconds from the beginning; `max_rows` counts for each timeline.  Otherwise as `gantt`.
    """
    if not named_timelines:
        raise InputError("nothing to compare: give at least one (name, timeline)")
    timelines = [_timeline_of(timeline) for _, timeline in named_timelines]
    for (name, _), timeline in zip(named_timelines, timelines, strict=True):
        try:
            _check(timeline, width=width, max_rows=max_rows, rows=rows)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    extents = [_extent(timeline) for timeline in timelines]
    lengths = [end - start for start, end in extents]
    shown = _checked_window(window, (0.0, max(lengths)))
    panels = [
        (timeline, choose_rows(timeline, ranks=ranks, rows=rows, max_rows=max_rows, num_ranks=None), begin)
        for timeline, (begin, _) in zip(timelines, extents, strict=True)
    ]
    changes = ["", *(f"{(length / lengths[0] - 1) * 100:+.1f} %".replace("-", "−") for length in lengths[1:])]
    texts = said or list(zip(map(format_seconds, lengths), changes, strict=True))
    headers = [(name, *both) for (name, _), both in zip(named_timelines, texts, strict=True)]
    return _figure(panels, shown, title or "", headers=headers, labels=labels, width=width)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the ending of `path`; the same figure gives the same bytes.

    Raises InputError for another ending and for a folder that does not exist.
    """
    path = Path(path)
    ending = path.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        endings = ", ".join(f".{each}" for each in FORMATS)
        raise InputError(f"cannot draw {str(path)!r}: a figure's file ends in one of {endings}")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {str(path)!r}: the folder {str(path.parent)!r} does not exist; make it first")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    with rc_context({"svg.hashsalt": "simcluster"}):
        figure.savefig(path, format=ending, metadata=undated[ending])


def _timeline_of(timeline: pd.DataFrame | HasTimeline) -> pd.DataFrame:
    return timeline if isinstance(timeline, pd.DataFrame) else timeline.timeline


def _figure(
    shown: Sequence[tuple[pd.DataFrame, RowChoice, float]], window: Window, title: str,
    *, headers: Sequence[tuple[str, str, str]] | None, labels: bool, width: float,
) -> Figure:  # fmt: skip
    """Timelines with their rows and origins: panels, one time axis, one legend, the caption, in points from the top."""
    left = max(text_width(label, 8.0) for _, choice, _ in shown for label in choice.labels) + _SIDE + 6.0
    right = width * 72 - (_STEP_TIME if headers else _SIDE + 6.0)
    columns = max(100, round((right - left) / 72 * DPI))
    name, unit = _unit(window)
    num_rows = sum(len(choice.ranks) for _, choice, _ in shown)
    panels = []
    for timeline, choice, origin in shown:
        lanes = LaneHeights.fitting(streams_of(timeline, choice.ranks), num_rows)
        panels.append(Panel(timeline, choice, lanes, (window[0] + origin, window[1] + origin), unit, origin, columns))
    top = _TITLE + _LINE * title.count("\n") if title else 6.0
    header = _HEADER if headers else 0.0
    body = sum(panel.height + header for panel in panels)
    figure = Figure(dpi=DPI)
    FigureCanvasAgg(figure)
    if title:
        corner = figure.transFigure + ScaledTranslation(left / 72, -8.0 / 72, figure.dpi_scale_trans)
        figure.text(0, 1, title, transform=corner, fontsize=11, va="top", color=palette.TEXT)
    foot = draw_footer(figure, panels, left=_SIDE, width=right - _SIDE, labels=labels)
    height = top + body + _AXIS + foot
    figure.set_size_inches(width, height / 72)
    at = height - top
    for number, panel in enumerate(panels):
        at -= header + panel.height
        axes = figure.add_axes((left / (width * 72), at / height, (right - left) / (width * 72), panel.height / height))
        draw_panel(axes, panel, labels=labels)
        _draw_time(axes, name, named=number == len(panels) - 1)
        if headers:
            _draw_header(axes, panel, *headers[number])
    return figure


def _draw_time(axes: Axes, unit: str, *, named: bool) -> None:
    """Ticks in a unit; written under the last panel only."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=14, steps=[1, 2, 2.5, 5, 10]))
    formatter = ScalarFormatter(useOffset=False)
    formatter.set_scientific(False)
    axes.xaxis.set_major_formatter(formatter)
    axes.tick_params(axis="x", labelsize=8, length=3.5 if named else 0, labelbottom=named)
    axes.grid(visible=True, axis="x", color="#C8CCD0", linewidth=0.4, zorder=-1)
    if named:
        axes.set_xlabel(f"time ({unit})", fontsize=9, labelpad=2)


def _draw_header(axes: Axes, panel: Panel, name: str, length: str, change: str) -> None:
    """The name above a compared panel, its length at the right, a line where it ends."""
    axes.annotate(
        name, (0, 1), xytext=(0, 3), xycoords="axes fraction", textcoords="offset points", fontsize=9, weight="bold"
    )
    for words, offset, weight in ((length, 6 if change else 0, "bold"), (change, -6, "normal")):
        axes.annotate(
            words, (1, 0.5), xytext=(8, offset), xycoords="axes fraction", textcoords="offset points",
            va="center", fontsize=9, weight=weight,
        )  # fmt: skip
    end = (_extent(panel.timeline)[1] - panel.origin) / panel.unit
    axes.axvline(end, color=palette.TEXT, linewidth=1.0)


def _check(timeline: pd.DataFrame, *, width: float, max_rows: int, rows: str) -> None:
    """Refuses what cannot be drawn."""
    missing = [name for name in _COLUMNS if name not in timeline.columns]
    if missing:
        raise InputError(f"the timeline lacks the columns {missing}; a timeline has {', '.join(_COLUMNS)}")
    if len(timeline) == 0:
        raise InputError("the timeline is empty: there is nothing to draw; run at least one step")
    times = timeline[["ready", "start", "end"]].to_numpy(np.float64)
    if not np.isfinite(times).all():
        raise InputError(
            "the timeline has times that are not finite in ready, start or end; each is a number of seconds"
        )
    if times[:, 2].max() <= times[:, :2].min():
        raise InputError("the timeline has no length: every span starts and ends at the same time")
    if rows not in ("rank", "stage"):
        raise InputError(f'rows={rows!r} is not known; rows is "rank" or "stage"')
    if not 1 <= max_rows <= _MOST_ROWS:
        raise InputError(f"max_rows={max_rows} cannot be drawn; it is between 1 and {_MOST_ROWS}")
    if not _WIDTHS[0] <= width <= _WIDTHS[1]:
        raise InputError(f"width={width} cannot be drawn; it is between {_WIDTHS[0]:g} and {_WIDTHS[1]:g} inches")


def _checked_window(window: Window | None, whole: Window) -> Window:
    """The window asked for, or all of the time."""
    if window is None:
        return whole
    start, end = float(window[0]), float(window[1])
    if not start < end:
        raise InputError(f"window=({start:g}, {end:g}) s is empty; it is (from, to) with from < to")
    if end <= whole[0] or start >= whole[1]:
        spans = f"{whole[0]:g} to {whole[1]:g} s"
        raise InputError(f"window=({start:g}, {end:g}) s lies outside of the timeline, which runs from {spans}")
    return start, end


def _extent(timeline: pd.DataFrame) -> Window:
    """From the first op that could start to the last that ended, in seconds."""
    begin = min(float(timeline["ready"].min()), float(timeline["start"].min()))
    return begin, float(timeline["end"].max())


def _unit(window: Window) -> tuple[str, float]:
    """The largest unit of which the window holds at least one."""
    length = window[1] - window[0]
    return next((unit for unit in _UNITS if length >= unit[1]), _UNITS[-1])


def _title(timeline: pd.DataFrame, whole: Window, shown: Window, num_ranks: int) -> str:
    steps = int(timeline["step"].nunique()) if "step" in timeline.columns else 1
    what = "One training step" if steps == 1 else f"{steps} training steps"
    ranks = f"{num_ranks:,} rank{'s' if num_ranks != 1 else ''}"
    part = "" if shown == whole else f" · from {format_seconds(shown[0])} to {format_seconds(shown[1])}"
    return f"{what} · {ranks} · {format_seconds(whole[1] - whole[0])}{part}"
