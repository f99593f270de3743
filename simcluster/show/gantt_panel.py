"""One timeline of a Gantt chart, drawn on matplotlib axes as lanes and boxes.

Time runs to the right in the caller's unit; the vertical axis counts points from the top, so that a lane's height is
known before anything is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.show import palette
from simcluster.show.gantt_boxes import GanttBoxes, join_small_boxes, make_boxes
from simcluster.show.gantt_rows import RowChoice, TimeWindow

VECTOR_UP_TO = 20_000  # boxes: above, an SVG or PDF holds a picture of them (an SVG of 1e5 boxes is 17 MB)
HATCH_UP_TO = 3_000  # boxes of waiting: a hatch is drawn box by box
_LOWEST_BAR = 0.2  # of a lane: less is not seen
_HATCHED = 8.0  # pixels: a hatch in a narrower box is only noise
_EDGE = 8.0  # pixels: boxes wider than this get a dark first pixel, so that equal neighbours stay apart
_HEIGHTS = ((4, (22.0, 9.0, 9.0)), (10, (18.0, 6.0, 7.0)), (32, (13.0, 4.0, 5.0)), (np.inf, (8.0, 2.5, 3.0)))
"""Heights (points) of a compute lane, a slim lane and the gap between rows, by the maximum number of rows."""


@dataclass(frozen=True, slots=True)
class LaneHeights:
    """Heights (points) of the lanes of a Gantt row: a high lane for compute, slim ones for communication."""

    streams: tuple[str, ...]
    compute: float
    slim: float
    gap: float

    @property
    def row_pitch(self) -> float:
        """Height of a row in points, including the gap to the next row."""
        return self.gap + self.compute + self.slim * (len(self.streams) - 1)

    def lane_edges(self, row: Ints, lane: Ints) -> tuple[Floats, Floats]:
        """Return the top and bottom of lanes, in points from the top of the picture."""
        below = np.where(lane == 0, 0.0, self.compute + self.slim * (lane - 1))
        top: Floats = row * self.row_pitch + (self.gap / 2 + below)
        return top, top + np.where(lane == 0, self.compute, max(self.slim - 0.8, 0.5 * self.slim))


def choose_lane_heights(timeline: pd.DataFrame, ranks: tuple[int, ...], num_rows: int) -> LaneHeights:
    """Choose the heights of a Gantt row's lanes, given the ranks' streams; charts with fewer rows get higher lanes."""
    used = set(timeline["stream"].to_numpy()[np.isin(timeline["rank"].to_numpy(np.int64), ranks)])
    known = [stream for stream in palette.STREAMS if stream in used]
    sizes = next(sizes for most, sizes in _HEIGHTS if num_rows <= most)
    return LaneHeights(("compute", *known, *sorted(used - {"compute", *known})), *sizes)


@dataclass
class GanttPanel:
    """A part of a timeline that is drawn on one matplotlib axes: ranks, time window, lane heights and scale."""

    timeline: pd.DataFrame
    choice: RowChoice
    lanes: LaneHeights
    window: TimeWindow  # seconds on the timeline's own clock
    unit: float  # seconds in one unit of the time axis
    origin: float  # seconds that the time axis calls zero
    columns: int  # pixels across

    @property
    def height(self) -> float:
        """Height of the panel in points."""
        return self.lanes.row_pitch * len(self.choice.ranks)

    @property
    def seconds_per_pixel(self) -> float:
        """Number of simulated seconds per pixel of the picture."""
        return (self.window[1] - self.window[0]) / self.columns

    def to_axis_units(self, seconds: Floats) -> Floats:
        """Convert times (s) to values on the time axis, which has its own zero and unit."""
        return (seconds - self.origin) / self.unit

    @cached_property
    def span_boxes(self) -> GanttBoxes:
        """Boxes of the chosen ranks in the time window, one per span."""
        return make_boxes(self.timeline, self.choice.ranks, self.window, self.lanes.streams)

    @cached_property
    def drawn_boxes(self) -> GanttBoxes:
        """Boxes to draw: one per span, except that small neighbouring boxes are joined."""
        return join_small_boxes(self.span_boxes, self.seconds_per_pixel)


def draw_panel(axes: Axes, panel: GanttPanel, *, label_rows: bool = True) -> None:
    """Draw the lanes, boxes and row names of a Gantt panel, but not the texts in its boxes."""
    _draw_rows(axes, panel, label_rows=label_rows)
    _draw_boxes(axes, panel)


def _draw_rows(axes: Axes, panel: GanttPanel, *, label_rows: bool) -> None:
    lanes, num_rows = panel.lanes, len(panel.choice.ranks)
    start, end = panel.to_axis_units(np.array(panel.window)).tolist()
    lane = np.tile(np.arange(len(lanes.streams)), num_rows)
    top, bottom = lanes.lane_edges(np.repeat(np.arange(num_rows), len(lanes.streams)), lane)
    axes.set_facecolor(palette.LANE_SURROUND)
    ground = _add_boxes(axes, np.full(len(lane), start), np.full(len(lane), end), top, bottom, palette.IDLE)
    ground.set_zorder(0)  # under the grid, which is under the boxes
    axes.set_axisbelow(True)
    axes.set_xlim(start, end)
    axes.set_ylim(panel.height, 0.0)
    middle = np.arange(num_rows) * lanes.row_pitch + lanes.gap / 2 + lanes.compute / 2
    labels = list(panel.choice.labels) if label_rows else []
    axes.set_yticks(middle.tolist()[: len(labels)], labels, fontsize=8 if lanes.row_pitch > 11 else 6)
    axes.tick_params(axis="y", length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _draw_boxes(axes: Axes, panel: GanttPanel) -> None:
    boxes, waiting = panel.drawn_boxes, panel.drawn_boxes.waiting_mask
    colours = np.array([palette.op_colour(*paint) for paint in boxes.paints]).reshape(-1, 3)[boxes.paint]
    start, end = panel.to_axis_units(boxes.start), panel.to_axis_units(boxes.end)
    top, bottom = panel.lanes.lane_edges(boxes.row, boxes.lane)
    # Dense communication is a bar whose height is the part of the time that it takes.
    fills = np.where((boxes.lane > 0) & ~waiting, np.maximum(boxes.share, _LOWEST_BAR), 1.0)
    top = bottom - (bottom - top) * fills
    pixel = panel.seconds_per_pixel / panel.unit
    hatched = waiting & (end - start > _HATCHED * pixel)
    end = _widened_ends(boxes, waiting, start, end, pixel)
    for which in (waiting & ~hatched, hatched, ~waiting):
        collection = _add_boxes(axes, start[which], end[which], top[which], bottom[which], colours[which])
        if which is hatched and int(which.sum()) <= HATCH_UP_TO:
            collection.set(hatch="//////", edgecolor=palette.WAITING_HATCH)
    strip = boxes.recompute > 0
    height = (bottom - top)[strip] * boxes.recompute[strip]
    chunks = [boxes.paints[at][2] for at in boxes.paint[strip].tolist()]
    purple = np.array([palette.op_colour("compute", "recompute", chunk) for chunk in chunks]).reshape(-1, 3)
    _add_boxes(axes, start[strip], end[strip], bottom[strip] - height, bottom[strip], purple)
    edged = (boxes.lane == 0) & ~waiting & (end - start > _EDGE * pixel)
    _add_boxes(axes, start[edged], start[edged] + pixel, top[edged], bottom[edged], colours[edged] * 0.55)


def _widened_ends(boxes: GanttBoxes, waiting: Bools, start: Floats, end: Floats, pixel_width: float) -> Floats:
    """Return where to draw each box's end, so that communication is visible and gaps below one pixel disappear."""
    end = np.where((boxes.lane > 0) & ~waiting, np.maximum(end, start + pixel_width), end)
    next_start = np.concatenate([start[1:], [np.inf]])
    same = np.concatenate([(boxes.row[1:] == boxes.row[:-1]) & (boxes.lane[1:] == boxes.lane[:-1]), [False]])
    close = same & (boxes.lane == 0) & (next_start > end) & (next_start - end < pixel_width)
    return np.where(close, next_start, end)


def _add_boxes(
    axes: Axes, start: Floats, end: Floats, top: Floats, bottom: Floats, colour: str | Floats
) -> PolyCollection:
    """Draw rectangles without outlines, because antialiased outlines would colour the gaps between boxes."""
    corners: Any = np.stack([start, top, end, top, end, bottom, start, bottom], axis=1).reshape(-1, 4, 2)
    collection = PolyCollection(corners, facecolors=colour, linewidths=0, antialiaseds=False)
    collection.set_rasterized(len(start) > VECTOR_UP_TO)
    axes.add_collection(collection, autolim=False)
    return collection
