"""Layout of a Gantt figure: timelines on one time axis that may have a break, with legend and caption.

Sizes are in points from the top, so that a picture with more rows is higher and its texts are not smaller.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, ScalarFormatter
from matplotlib.transforms import Affine2D, ScaledTranslation

from simcluster.base.errors import InputError
from simcluster.show import palette
from simcluster.show.bars import DPI, choose_time_unit, text_width
from simcluster.show.gantt_panel import GanttPanel, choose_lane_heights, draw_panel
from simcluster.show.gantt_rows import RowChoice, TimeWindow
from simcluster.show.gantt_texts import BoxText, make_box_texts, make_footer, write_box_texts

_TITLE, _LINE, _HEADER, _AXIS = 24.0, 15.0, 17.0, 36.0  # points of height; _LINE: of each further one of the title
_TITLE_FONT = 11.0
_STEP_TIME = 74.0  # points of width, right of compared panels
_SIDE = 12.0  # points
_BREAK = 34.0  # points of width that a break in the time axis takes
_LOWEST = 0.22  # of their usual height: lower lanes are not distinguishable
_TICKS = 14  # over the whole width, at most


class DrawnTimeline(NamedTuple):
    """A timeline to draw in a Gantt figure: its rows, the time at which its axis starts, and its header.

    `origin` is the time (s) at which its axis is zero, `omitted_microbatches` the number of those in the picture's
    break, and `header` the name above it with two texts at its right.
    """

    timeline: pd.DataFrame
    choice: RowChoice
    origin: float
    omitted_microbatches: int = 0
    header: tuple[str, str, str] | None = None


def gantt_figure(
    drawn: list[DrawnTimeline], shown: list[TimeWindow], title: str, *, labels: bool, size: tuple[float, float | None]
) -> Figure:
    """Draw timelines on one time axis as a figure; a break in the axis may omit a time window.

    `shown` has the parts (s after each origin), `size` is in inches. InputError if the rows do not fit into it.
    """
    across = size[0] * 72
    left = max(text_width(label, 8.0) for each in drawn for label in each.choice.labels) + _SIDE + 6.0
    right = across - (_STEP_TIME if drawn[0].header else _SIDE + 6.0)
    header = _HEADER if drawn[0].header else 0.0
    room, seconds = right - left - _BREAK * (len(shown) - 1), sum(end - start for start, end in shown)
    widths = [room * (end - start) / seconds for start, end in shown]
    letters = max(20, int((across - left - _SIDE) / (0.56 * _TITLE_FONT)))
    heading = "\n".join(textwrap.fill(line, letters) for line in title.splitlines())
    top = _TITLE + _LINE * heading.count("\n") if heading else 6.0
    name, unit = choose_time_unit(shown[-1][1] - shown[0][0])
    panels = [[*_make_panels(each, shown, widths, unit, sum(len(one.choice.ranks) for one in drawn))] for each in drawn]
    flat = [panel for parts in panels for panel in parts]

    left_out = ""
    if len(shown) > 1:
        counts = sorted({each.omitted_microbatches for each in drawn})
        many = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        left_out = f"The break omits {many} microbatches like those next to it."
    if size[1] is not None:
        foot = make_footer(flat, width=right - _SIDE, numbered=True, left_out=left_out).height
        _scale_lanes_to_fit(panels, size[1], top + foot + _AXIS + header * len(panels))
    texts = [make_box_texts(parts) if labels else [list[BoxText]() for _ in parts] for parts in panels]
    numbered = any(text.numbered for parts in texts for part in parts for text in part)
    footer = make_footer(flat, width=right - _SIDE, numbered=numbered, left_out=left_out)
    height = size[1] * 72 if size[1] else (
        top + sum(parts[0].height + header for parts in panels) + _AXIS + footer.height
    )  # fmt: skip

    figure = Figure(dpi=DPI, figsize=(size[0], height / 72))
    FigureCanvasAgg(figure)
    if heading:
        corner = figure.transFigure + ScaledTranslation(left / 72, -8.0 / 72, figure.dpi_scale_trans)
        figure.text(0, 1, heading, transform=corner, fontsize=_TITLE_FONT, va="top", color=palette.TEXT)
    footer.draw(figure, left=_SIDE)
    at = height - top
    for each, parts, words in zip(drawn, panels, texts, strict=True):
        at -= header + parts[0].height
        x, made = left, list[Axes]()
        for width, panel, said in zip(widths, parts, words, strict=True):
            axes = figure.add_axes((x / across, at / height, width / across, panel.height / height))
            draw_panel(axes, panel, label_rows=not made)
            write_box_texts(axes, panel, said)
            _draw_time_ticks(axes, labelled=each is drawn[-1], ticks=max(2, round(_TICKS * width / sum(widths))))
            if made:
                _draw_break(figure, (x - _BREAK, x), at, panel, each.omitted_microbatches)
            made.append(axes)
            x += width + _BREAK
        if each is drawn[-1]:
            made[widths.index(max(widths))].set_xlabel(f"time ({name})", fontsize=9, labelpad=2)
        if each.header:
            _draw_header(made, parts[-1], *each.header)
    return figure


def _make_panels(
    drawn: DrawnTimeline, shown: Sequence[TimeWindow], widths: Sequence[float], unit: float, num_rows: int
) -> Iterator[GanttPanel]:
    lanes = choose_lane_heights(drawn.timeline, drawn.choice.ranks, num_rows)
    for (start, end), width in zip(shown, widths, strict=True):
        window, columns = (start + drawn.origin, end + drawn.origin), max(20, round(width / 72 * DPI))
        yield GanttPanel(drawn.timeline, drawn.choice, lanes, window, unit, drawn.origin, columns)


def _scale_lanes_to_fit(panels: Sequence[Sequence[GanttPanel]], height: float, others: float) -> None:
    lanes = sum(parts[0].height for parts in panels)
    scale = (height * 72 - others) / lanes
    if scale < _LOWEST:
        raise InputError(
            f"the picture's rows do not fit into {height:g} inches; make the height at least "
            f"{(others + _LOWEST * lanes) / 72:.1f}, or draw fewer ranks"
        )
    for parts in panels:
        for panel in parts:
            each = panel.lanes
            panel.lanes = replace(each, compute=scale * each.compute, slim=scale * each.slim, gap=scale * each.gap)


def _draw_time_ticks(axes: Axes, *, labelled: bool, ticks: int) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 2.5, 5, 10]))
    formatter = ScalarFormatter(useOffset=False)
    formatter.set_scientific(False)
    axes.xaxis.set_major_formatter(formatter)
    axes.tick_params(axis="x", labelsize=8, length=3.5 if labelled else 0, labelbottom=labelled)
    axes.grid(visible=True, axis="x", color="#C8CCD0", linewidth=0.4, zorder=-1)


def _draw_break(figure: Figure, across: TimeWindow, at: float, panel: GanttPanel, num_omitted: int) -> None:
    points = Affine2D().scale(1 / 72) + figure.dpi_scale_trans
    lanes = panel.lanes
    for row in range(len(panel.choice.ranks)):
        centre = at + panel.height - (row * lanes.row_pitch + lanes.gap / 2 + lanes.compute / 2)
        for x in (across[0] + 3.0, across[1] - 3.0):
            low, high = centre - 0.6 * lanes.compute, centre + 0.6 * lanes.compute
            stroke = Line2D([x - 2.0, x + 2.0], [low, high], transform=points, color=palette.QUIET_TEXT, linewidth=0.9)
            figure.add_artist(stroke)
    figure.text(
        (across[0] + across[1]) / 2, at + panel.height / 2, f"{num_omitted:,} ×", transform=points, fontsize=8.0,
        ha="center", va="center", color=palette.TEXT, weight="bold",
    )  # fmt: skip


def _draw_header(parts: Sequence[Axes], panel: GanttPanel, name: str, length: str, change: str) -> None:
    parts[0].annotate(
        name, (0, 1), xytext=(0, 3), xycoords="axes fraction", textcoords="offset points", fontsize=9, weight="bold"
    )
    for words, offset, weight in ((length, 6 if change else 0, "bold"), (change, -6, "normal")):
        parts[-1].annotate(
            words, (1, 0.5), xytext=(8, offset), xycoords="axes fraction", textcoords="offset points",
            va="center", fontsize=9, weight=weight,
        )  # fmt: skip
    end = (float(panel.timeline["end"].max()) - panel.origin) / panel.unit
    parts[-1].axvline(end, color=palette.TEXT, linewidth=1.0)
