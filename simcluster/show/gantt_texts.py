"""What is written in the boxes of a Gantt picture: microbatch numbers in all passes or in none, and names in a zoom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from simcluster.base.arrays import Floats
from simcluster.base.units import format_bytes
from simcluster.show import palette
from simcluster.show.bars import DPI, text_width
from simcluster.show.gantt_boxes import JOIN_GAP, Boxes, direction
from simcluster.show.gantt_panel import Panel

_NUMBER_SIZES = (8.0, 6.5, 5.5, 4.8)  # points; all numbers of a picture have the first size in which they fit
_NAME_SIZES = (6.0, 5.0)
_PADDING = 0.5  # points between a text and the side of its box
_LEAST_NAMED = 14.0  # points: no name is narrower


class BoxText(NamedTuple):
    """A text in the box at a place of a panel's boxes; is it a bare number, or does it begin with one?"""

    box: int
    words: str
    size: float
    numbered: bool


def texts_of(panels: Sequence[Panel]) -> list[list[BoxText]]:
    """The texts of panels of one timeline.

    A number stands in every pass that is wholly in the picture, in one of its boxes, or in none; names of single spans
    and of communication stand wherever they fit.
    """
    if any(panel.raster for panel in panels):
        return [[] for _ in panels]
    rooms = [_Room(panel) for panel in panels]
    named = [dict(room.names()) for room in rooms]
    for size in _NUMBER_SIZES:
        numbers = [room.numbers(size) for room in rooms]
        if all(room.passes <= room.passes_of({*names, *found}) for room, names, found in zip(
            rooms, named, numbers, strict=True
        )):  # fmt: skip
            return [[*({**found, **names}).values()] for names, found in zip(named, numbers, strict=True)]
    return [[*names.values()] for names in named]


def write(axes: Axes, panel: Panel, texts: Sequence[BoxText]) -> None:
    """Texts in the middle of their boxes, dark or light as the fill asks."""
    boxes = panel.boxes
    top, bottom = panel.lanes.edges(boxes.row, boxes.lane)
    middle = panel.shown((boxes.start + boxes.end) / 2)
    for text in texts:
        fill = palette.colour_of(*boxes.paints[boxes.paint[text.box]])
        axes.text(
            float(middle[text.box]), float(top[text.box] + bottom[text.box]) / 2, text.words, fontsize=text.size,
            color=palette.text_on(fill), ha="center", va="center_baseline", parse_math=False, clip_on=True,
        )  # fmt: skip


class _Room:
    """The boxes of a panel that have room for any text, and the passes that are seen whole."""

    def __init__(self, panel: Panel) -> None:
        boxes = panel.boxes
        self.panel = panel
        self.width: Floats = (boxes.end - boxes.start) / panel.seconds_per_pixel * 72 / DPI - 2 * _PADDING
        top, bottom = panel.lanes.edges(boxes.row, boxes.lane)
        self.height: Floats = bottom - top
        waiting = np.array([kind == "waiting" for _, kind, _ in boxes.paints], dtype=np.bool_)[boxes.paint]
        self.free = ~_overlapped(boxes) & ~waiting
        numbered = np.flatnonzero((boxes.lane == 0) & ~waiting & (boxes.microbatch >= 0)).tolist()
        directions = [direction(paint) for paint in boxes.paints]
        self.keys = {
            at: (int(boxes.row[at]), directions[boxes.paint[at]], int(boxes.microbatch[at])) for at in numbered
        }
        edge = JOIN_GAP * panel.seconds_per_pixel  # passes have gaps, and the window may end in one
        first, last = panel.window[0] + edge, panel.window[1] - edge
        cut = [at for at in numbered if boxes.start[at] <= first or boxes.end[at] >= last]
        self.passes = set(self.keys.values()) - {self.keys[at] for at in cut}

    def passes_of(self, places: set[int]) -> set[tuple[int, str, int]]:
        """The passes that these boxes belong to."""
        return {self.keys[at] for at in places if at in self.keys}

    def names(self) -> Iterator[tuple[int, BoxText]]:
        """Boxes of single spans with the most telling name that fits."""
        for at in np.flatnonzero((self.width >= _LEAST_NAMED) & self.free).tolist():
            fits = (
                BoxText(at, words, size, numbered)
                for words, numbered in _names(self.panel, at)
                for size in _NAME_SIZES
                if size * 1.05 <= self.height[at] and text_width(words, size) <= self.width[at]
            )
            first = next(fits, None)
            if first:
                yield at, first

    def numbers(self, size: float) -> dict[int, BoxText]:
        """Boxes of compute that their microbatch's number fits in."""
        found = {}
        for at in self.keys:
            words = str(self.panel.boxes.microbatch[at])
            if self.free[at] and size * 1.05 <= self.height[at] and text_width(words, size) <= self.width[at]:
                found[at] = BoxText(at, words, size, numbered=True)
        return found


def _names(panel: Panel, at: int) -> Iterator[tuple[str, bool]]:
    """What a box of one span could be called, the most telling first, and whether a microbatch's number is in it."""
    boxes = panel.boxes
    stream, kind, _ = boxes.paints[boxes.paint[at]]
    microbatch, source = int(boxes.microbatch[at]), int(boxes.source[at])
    if source < 0:
        return
    if stream != "compute":
        size = float(panel.timeline["bytes"].to_numpy()[source])
        name = kind.replace("_", "-")
        yield from ([(f"{name} {format_bytes(size)}", False)] if size > 0 else [])
        yield name, False
    elif int(panel.timeline["layer"].to_numpy()[source]) >= 0 or microbatch < 0:
        name = str(panel.timeline["name"].to_numpy()[source]) or kind
        yield from ([(f"{microbatch} · {name}", True)] if microbatch >= 0 else [])
        yield name, False


def _overlapped(boxes: Boxes) -> npt.NDArray[np.bool_]:
    """Boxes that lie over a neighbour in their lane (a send and a receive at once): a text there would be crossed."""
    same = (boxes.row[1:] == boxes.row[:-1]) & (boxes.lane[1:] == boxes.lane[:-1])
    over = same & (boxes.start[1:] < boxes.end[:-1] - 1e-9 * (boxes.end[:-1] - boxes.start[:-1]))
    result = np.zeros(len(boxes), np.bool_)
    result[1:] |= over
    result[:-1] |= over
    return result
