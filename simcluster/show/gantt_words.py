"""The words of a Gantt picture: texts in its boxes, the legend, and the caption."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.transforms import Affine2D

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
    """Return the texts of panels of one timeline.

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
        """Return the passes that these boxes belong to."""
        return {self.keys[at] for at in places if at in self.keys}

    def names(self) -> Iterator[tuple[int, BoxText]]:
        """Yield boxes of single spans with the most telling name that fits."""
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
        """Return boxes of compute that their microbatch's number fits in."""
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


_FONT, _LINE = 8.0, 13.0  # points
_CAPTION_FONT, _CAPTION_LINE = 7.0, 10.0
_COMPUTE_NAMES = {
    "forward": "forward (F)",
    "backward": "backward (B)",
    "input_grad": "input gradient (I)",
    "weight_grad": "weight gradient (W)",
}
_BESIDE_NAMES = {
    ("d2h", "checkpoint"): "checkpoint: copy to the host",
    ("storage", "checkpoint"): "checkpoint: write from the host",
    ("host", "checkpoint"): "checkpoint: training stands",
    ("d2h", "copy"): "offload: copy to the host",
    ("h2d", "copy"): "offload: copy back",
    ("host", "data"): "waiting for data",
    ("host", "validation"): "validation",
}
_HANDLE = 20.0  # points
_SPACE = 16.0  # points between two entries, with the gap between handle and text

Entry = tuple[str, tuple[Patch, ...]]


@dataclass(frozen=True)
class Footer:
    """Legend and caption, ready to be drawn; `height` is in points."""

    entries: tuple[Entry, ...]
    columns: int
    caption: tuple[str, ...]

    @property
    def foot(self) -> float:
        """Points of the caption."""
        return _CAPTION_LINE * len(self.caption) + 4.0

    @property
    def height(self) -> float:
        return _LINE * -(-len(self.entries) // self.columns) + 6.0 + self.foot


def footer_of(panels: Sequence[Panel], *, width: float, numbered: bool, left_out: str) -> Footer:
    """Return an entry for every paint of the panels, in as few lines as fit into `width` points; `numbered`: there are
    microbatch numbers; `left_out` is what is said of a break."""
    entries = _entries(panels)
    widths = [text_width(name, _FONT) + _HANDLE + _SPACE for name, _ in entries]
    fits = (count for count in range(len(entries), 1, -1) if _width_in_columns(widths, count) <= width)
    num_lines = -(-len(entries) // next(fits, 1))
    said = " ".join(filter(None, [left_out, _caption(panels, numbered=numbered)]))
    caption = textwrap.wrap(said, int(width / (_CAPTION_FONT * 0.56)))
    return Footer(entries, -(-len(entries) // num_lines), tuple(caption))


def draw_footer(figure: Figure, footer: Footer, *, left: float) -> None:
    """Legend and caption at the figure's foot, `left` points from its side."""
    points = Affine2D().scale(1 / 72) + figure.dpi_scale_trans
    handles: list[Any] = [patches for _, patches in footer.entries]  # tuples of patches, which HandlerTuple draws
    figure.legend(
        handles, [name for name, _ in footer.entries],
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)}, ncols=footer.columns, loc="upper left",
        bbox_to_anchor=(left, footer.height), bbox_transform=points, borderaxespad=0.0, borderpad=0.0, frameon=False,
        fontsize=_FONT, handlelength=_HANDLE / _FONT, columnspacing=1.2, labelspacing=0.45, handletextpad=0.6,
    )  # fmt: skip
    if footer.caption:
        figure.text(
            left, footer.foot, "\n".join(footer.caption), transform=points,
            fontsize=_CAPTION_FONT, color=palette.QUIET_TEXT, va="top", linespacing=1.25,
        )  # fmt: skip


def _caption(panels: Sequence[Panel], *, numbered: bool) -> str:
    sentences = [panel.choice.caption for panel in panels]
    sentences += [
        f"Raster of {len(panel.boxes):,} boxes: a pixel column has the mean colour of its time, white is idle."
        for panel in panels
        if panel.raster
    ]
    if any(panel.joined for panel in panels):
        sentences.append(
            f"Small spans of one action less than {JOIN_GAP:g} pixels apart are one box; a bar of "
            "communication is as high as the part of its time that is filled."
        )
    if any(bool((panel.boxes.recompute > 0).any()) for panel in panels):
        sentences.append("The strip along a backward is recompute's part of its time.")
    if numbered:
        sentences.append("Numbers are microbatches.")
    return " ".join(dict.fromkeys(sentence for sentence in sentences if sentence))


def _entries(panels: Sequence[Panel]) -> tuple[Entry, ...]:
    """Compute kinds with the shades of their chunks, communication by stream and kind, waiting, idle."""
    seen = {panel.spans.paints[at] for panel in panels for at in np.unique(panel.spans.paint)}
    paints = sorted(seen)
    entries: list[Entry] = []
    for kind in dict.fromkeys([*palette.COMPUTE_KINDS, *(kind for stream, kind, _ in paints if stream == "compute")]):
        chunks = [chunk for stream, each, chunk in paints if (stream, each) == ("compute", kind)]
        if chunks and kind != "waiting":
            name = _COMPUTE_NAMES.get(kind, kind.replace("_", " ")) + _chunk_words(chunks)
            entries.append((name, tuple(_patch("compute", kind, at) for at in chunks[:4])))
    for stream in [*palette.STREAMS, *sorted({s for s, _, _ in paints} - {"compute", *palette.STREAMS})]:
        entries += [
            (_entry_name(stream, kind), (_patch(stream, kind, 0),))
            for each, kind, _ in paints
            if each == stream and kind != "waiting"
        ]
    if any(kind == "waiting" for _, kind, _ in paints):
        hatch = None if all(panel.raster for panel in panels) else "//////"
        hatched = Patch(facecolor=palette.WAITING, hatch=hatch, edgecolor=palette.WAITING_HATCH, linewidth=0)
        entries.append(("waiting for a peer or the network", (hatched,)))
    entries.append(("idle", (Patch(facecolor=palette.IDLE, edgecolor=palette.QUIET_TEXT, linewidth=0.5),)))
    return tuple(entries)


def _entry_name(stream: str, kind: str) -> str:
    """ "tp all-reduce", or own words of what is beside."""
    return _BESIDE_NAMES.get((stream, kind)) or f"{stream} {kind.replace('_', '-')}"


def _chunk_words(chunks: list[int]) -> str:
    """ ", chunks 0, 1, 2", or nothing where there is one chunk."""
    if chunks == [0]:
        return ""
    listed = ", ".join(map(str, chunks)) if len(chunks) <= 4 else f"{chunks[0]} to {chunks[-1]}"
    return f", chunk{'s' if len(chunks) > 1 else ''} {listed}"


def _patch(stream: str, kind: str, chunk: int) -> Patch:
    return Patch(facecolor=palette.colour_of(stream, kind, chunk), linewidth=0)


def _width_in_columns(widths: Sequence[float], count: int) -> float:
    """Points that a legend takes in `count` columns, filled one column after the other."""
    return sum(float(column.max()) for column in np.array_split(np.array(widths), count))
