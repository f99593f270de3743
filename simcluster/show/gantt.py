"""Gantt charts of timelines: when each rank computes, communicates and waits.

A row is a rank: a high lane for compute, and a slim lane per communication stream. White is idle. Figures are made
without pyplot: nothing global is kept and no display is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.documents.argument_types import check_arguments
from simcluster.show import gantt_rows
from simcluster.show.gantt_figure import DrawnTimeline, gantt_figure
from simcluster.show.gantt_rows import RowKind, TimeWindow, choose_rows, find_omitted_window, find_steady_phase

_COLUMNS = ("rank", "stream", "kind", "name", "layer", "stage", "chunk", "microbatch", "bytes", "ready", "start", "end")
_SIZES = {"width": (5.0, 60.0), "height": (2.0, 60.0)}  # inches: below, labels and legend take it all


class HasTimeline(Protocol):
    """Any object that has a timeline, such as a simulation result."""

    @property
    def timeline(self) -> pd.DataFrame:
        """Timeline as a DataFrame with one row per span (one op on one rank, with start and end)."""


@check_arguments
def gantt(
    timeline: pd.DataFrame | HasTimeline,
    *,
    ranks: Sequence[int] | None = None,
    window: TimeWindow | None = None,
    title: str | None = None,
    labels: bool = True,
    width: float = 14.0,
    height: float | None = None,
    max_rows: int = 24,
    rows: RowKind = "rank",
    num_ranks: int | None = None,
    breaks: bool = True,
) -> Figure:
    """Draw a timeline as a Gantt chart: time to the right, and one row per rank or per pipeline stage.

    `ranks` selects rows and `window` = (from, to) in seconds a part of the time. With more than `max_rows` ranks, and
    none selected, representatives are drawn and a caption names them; `num_ranks` is the size of the job if the
    timeline holds one rank for many equal ones. `labels` writes microbatch numbers, if all of them fit, and names in a
    zoom. `width` and `height` are in inches (default height: it follows from the rows). With `breaks` and no window,
    most of a long steady phase is cut out, and the number of omitted microbatches is written in its place. Spans closer
    than the picture's resolution are joined per action, as the caption says. InputError for an empty timeline, missing
    columns, and a selection that it does not contain.
    """
    weights = getattr(timeline, "weights", None)
    if num_ranks is None and weights is not None:
        num_ranks = sum(weights.values())
    timeline = _get_timeline(timeline)
    _require_drawable(timeline, size=(width, height), max_rows=max_rows, rows=rows)
    whole = _find_time_range(timeline)
    shown = _check_window(window, whole)
    choice = choose_rows(timeline, ranks=ranks, rows=rows, max_rows=max_rows, num_ranks=num_ranks)
    total = max(num_ranks or 0, timeline["rank"].nunique())
    heading = _title_with_window(title if title is not None else _default_title(timeline, whole, total), whole, shown)
    drawn, parts = _cut_out_break([DrawnTimeline(timeline, choice, 0.0)], shown, breaks=breaks and window is None)
    return gantt_figure(drawn, parts, heading, labels=labels, size=(width, height))


@check_arguments
def compare_gantts(
    named_timelines: Sequence[tuple[str, pd.DataFrame | HasTimeline]],
    *,
    ranks: Sequence[int] | None = None,
    window: TimeWindow | None = None,
    title: str | None = None,
    labels: bool = True,
    width: float = 14.0,
    height: float | None = None,
    max_rows: int = 8,
    rows: RowKind = "stage",
    remarks: Sequence[tuple[str, str]] | None = None,
    breaks: bool = True,
) -> Figure:
    """Draw several timelines below each other on one time axis, with the duration of each at its right.

    Each starts at time 0. The second figure at the right is the difference from the first timeline; `remarks` replaces
    both texts of each. `window` is in seconds; `max_rows` counts for each timeline. All else is as in `gantt`.
    """
    if not named_timelines:
        raise InputError("nothing to compare: give at least one (name, timeline)")
    timelines = [_get_timeline(timeline) for _, timeline in named_timelines]
    for (name, _), timeline in zip(named_timelines, timelines, strict=True):
        try:
            _require_drawable(timeline, size=(width, height), max_rows=max_rows, rows=rows)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    extents = [_find_time_range(timeline) for timeline in timelines]
    lengths = [end - start for start, end in extents]
    shown = _check_window(window, (0.0, max(lengths)))
    changes = ["", *(f"{(length / lengths[0] - 1) * 100:+.1f} %".replace("-", "−") for length in lengths[1:])]
    texts = remarks or list(zip(map(format_seconds, lengths), changes, strict=True))
    panels = [
        DrawnTimeline(timeline, choose_rows(timeline, ranks=ranks, rows=rows, max_rows=max_rows, num_ranks=None), begin,
              header=(name, *both))
        for (name, _), timeline, (begin, _), both in zip(named_timelines, timelines, extents, texts, strict=True)
    ]  # fmt: skip
    heading = _title_with_window(
        f"{len(panels)} timelines on one time axis" if title is None else title, (0.0, max(lengths)), shown
    )
    drawn, parts = _cut_out_break(panels, shown, breaks=breaks and window is None)
    return gantt_figure(drawn, parts, heading, labels=labels, size=(width, height))


def _get_timeline(timeline: pd.DataFrame | HasTimeline) -> pd.DataFrame:
    return timeline if isinstance(timeline, pd.DataFrame) else timeline.timeline


def _cut_out_break(
    panels: list[DrawnTimeline], window: TimeWindow, *, breaks: bool
) -> tuple[list[DrawnTimeline], list[TimeWindow]]:
    steady = [find_steady_phase(each.timeline, each.choice.ranks, each.origin) for each in panels] if breaks else []
    cut = find_omitted_window(steady, window)
    if cut is None:
        return panels, [window]
    counts = [each.count_microbatches(cut) if each else 0 for each in steady]
    left_out = [panel._replace(omitted_microbatches=count) for panel, count in zip(panels, counts, strict=True)]
    return left_out, [(window[0], cut[0]), (cut[1], window[1])]


def _require_drawable(timeline: pd.DataFrame, *, size: tuple[float, float | None], max_rows: int, rows: str) -> None:
    missing = [name for name in _COLUMNS if name not in timeline.columns]
    if missing:
        raise InputError(f"the timeline lacks the columns {missing}; it needs {', '.join(_COLUMNS)}")
    if len(timeline) == 0:
        raise InputError("the timeline is empty: there is nothing to draw; run at least one step")
    times = timeline[["ready", "start", "end"]].to_numpy(np.float64)
    if not np.isfinite(times).all():
        raise InputError(
            "the timeline has NaN or infinite times in the columns ready, start or end; give finite seconds"
        )
    if times[:, 2].max() <= times[:, :2].min():
        raise InputError(
            "the timeline has zero length: all spans start and end at the same time; simulate a step that takes time"
        )
    if rows not in ("rank", "stage"):
        raise InputError(f'rows={rows!r} is unknown; use "rank" or "stage"')
    if not 1 <= max_rows <= gantt_rows.MOST_ROWS:
        raise InputError(f"max_rows={max_rows} must be between 1 and {gantt_rows.MOST_ROWS}")
    for (name, (least, most)), inches in zip(_SIZES.items(), size, strict=True):
        if inches is not None and not least <= inches <= most:
            raise InputError(f"{name}={inches} must be between {least:g} and {most:g} inches")


def _check_window(window: TimeWindow | None, whole: TimeWindow) -> TimeWindow:
    if window is None:
        return whole
    try:
        start, end = map(float, window)
    except (TypeError, ValueError):
        raise InputError(f"window={window!r} must be two times in seconds, (from, to), as in (0.0, 0.5)") from None
    if not start < end:
        raise InputError(f"window=({start:g}, {end:g}) s is empty; write (from, to) with from < to")
    if end <= whole[0] or start >= whole[1]:
        spans = f"{whole[0]:g} and {whole[1]:g} s"
        raise InputError(f"window=({start:g}, {end:g}) s is outside the timeline; choose times between {spans}")
    return start, end


def _find_time_range(timeline: pd.DataFrame) -> TimeWindow:
    begin = min(float(timeline["ready"].min()), float(timeline["start"].min()))
    return begin, float(timeline["end"].max())


def _default_title(timeline: pd.DataFrame, whole: TimeWindow, num_ranks: int) -> str:
    steps = int(timeline["step"].nunique()) if "step" in timeline.columns else 1
    what = "One training step" if steps == 1 else f"{steps} training steps"
    ranks = f"{num_ranks:,} rank{'s' if num_ranks != 1 else ''}"
    return f"{what} · {ranks} · {format_seconds(whole[1] - whole[0])}"


def _title_with_window(title: str, whole: TimeWindow, window: TimeWindow) -> str:
    if not title or window == whole:
        return title
    first, *others = title.split("\n")
    return "\n".join([f"{first} · from {format_seconds(window[0])} to {format_seconds(window[1])}", *others])
