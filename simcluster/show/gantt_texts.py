"""Texts of a Gantt chart: labels in its boxes, the legend, and the caption."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.transforms import Affine2D

from simcluster.base.units import format_bytes
from simcluster.show import palette
from simcluster.show.bars import DPI, text_width
from simcluster.show.gantt_boxes import JOIN_GAP, pass_name
from simcluster.show.gantt_panel import GanttPanel

_NUMBER_SIZES = (8.0, 6.5, 5.5, 4.8)  # points; all numbers of a picture have the first size in which they fit
_NAME_SIZES = (6.0, 5.0)
_PADDING = 0.5  # points between a text and the side of its box
_LEAST_NAMED = 14.0  # points: no name is narrower


class BoxText(NamedTuple):
    """A text in one box of a Gantt panel, with its size, and whether it begins with a microbatch number."""

    box: int
    text: str
    size: float
    numbered: bool


def make_box_texts(panels: Sequence[GanttPanel]) -> list[list[BoxText]]:
    """Choose the texts to write into the boxes of a timeline; return a list of texts per panel.

    Microbatch numbers are written either in every pass that is wholly in the picture, or in none; names of single spans
    and of communication are written wherever they fit.
    """
    rooms = [_TextSpace(panel) for panel in panels]
    named = [room.op_name_texts() for room in rooms]
    for size in _NUMBER_SIZES:
        texts = [{**room.microbatch_texts(size), **names} for room, names in zip(rooms, named, strict=True)]
        if all(room.passes <= {*map(room.keys.get, found)} for room, found in zip(rooms, texts, strict=True)):
            return [[*found.values()] for found in texts]
    return [[*names.values()] for names in named]


def write_box_texts(axes: Axes, panel: GanttPanel, texts: Sequence[BoxText]) -> None:
    """Write texts into the middle of their boxes, dark or light to contrast with the fill."""
    boxes = panel.drawn_boxes
    top, bottom = panel.lanes.lane_edges(boxes.row, boxes.lane)
    middle = panel.to_axis_units((boxes.start + boxes.end) / 2)
    for text in texts:
        fill = palette.op_colour(*boxes.paints[boxes.paint[text.box]])
        axes.text(
            float(middle[text.box]), float(top[text.box] + bottom[text.box]) / 2, text.text, fontsize=text.size,
            color=palette.text_colour_on(fill), ha="center", va="center_baseline", parse_math=False, clip_on=True,
        )  # fmt: skip


class _TextSpace:
    """Space (points) for text in each box of a Gantt panel, and the passes that are completely visible."""

    def __init__(self, panel: GanttPanel) -> None:
        self.panel, boxes = panel, panel.drawn_boxes
        width = (boxes.end - boxes.start) / panel.seconds_per_pixel * 72 / DPI - 2 * _PADDING
        # A text would be crossed where a box lies over its neighbour (a send and a receive at once).
        same = (boxes.row[1:] == boxes.row[:-1]) & (boxes.lane[1:] == boxes.lane[:-1])
        over = same & (boxes.start[1:] < boxes.end[:-1] - 1e-9 * (boxes.end[:-1] - boxes.start[:-1]))
        crossed = np.concatenate([[False], over]) | np.append(over, False) if len(boxes) else boxes.waiting_mask
        self.width = np.where(crossed | boxes.waiting_mask, 0.0, width)
        top, bottom = panel.lanes.lane_edges(boxes.row, boxes.lane)
        self.height = bottom - top
        numbered = np.flatnonzero((boxes.lane == 0) & ~boxes.waiting_mask & (boxes.microbatch >= 0)).tolist()
        passes = [pass_name(paint) for paint in boxes.paints]
        self.keys = {at: (int(boxes.row[at]), passes[boxes.paint[at]], int(boxes.microbatch[at])) for at in numbered}
        edge = JOIN_GAP * panel.seconds_per_pixel  # passes have gaps, and the window may end in one
        first, last = panel.window[0] + edge, panel.window[1] - edge
        cut = {key for at, key in self.keys.items() if boxes.start[at] <= first or boxes.end[at] >= last}
        self.passes = set(self.keys.values()) - cut

    def _fit_text(self, box_index: int, texts: Iterable[tuple[str, bool]], sizes: Sequence[float]) -> BoxText | None:
        for words, numbered in texts:
            for size in sizes:
                if size * 1.05 <= self.height[box_index] and text_width(words, size) <= self.width[box_index]:
                    return BoxText(box_index, words, size, numbered)
        return None

    def op_name_texts(self) -> dict[int, BoxText]:
        """Return a text for each box of a single op: the most detailed op name that fits into the box."""
        wide = np.flatnonzero(self.width >= _LEAST_NAMED).tolist()
        found = (self._fit_text(at, _candidate_texts(self.panel, at), _NAME_SIZES) for at in wide)
        return {text.box: text for text in found if text}

    def microbatch_texts(self, size: float) -> dict[int, BoxText]:
        """Return a text for each compute box that is wide enough: the microbatch number."""
        found = (self._fit_text(at, [(str(number), True)], [size]) for at, (*_, number) in self.keys.items())
        return {text.box: text for text in found if text}


def _candidate_texts(panel: GanttPanel, box_index: int) -> Iterator[tuple[str, bool]]:
    boxes = panel.drawn_boxes
    stream, kind, _ = boxes.paints[boxes.paint[box_index]]
    microbatch, source = int(boxes.microbatch[box_index]), int(boxes.source[box_index])
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


# --- legend and caption -----------------------------------------------------------------------------------------------

_FONT, _LINE = 8.0, 13.0  # points
_CAPTION_FONT, _CAPTION_LINE = 7.0, 10.0
_HANDLE = 20.0  # points
_RASTER_ABOVE = 200_000  # boxes: from here on the caption says that SVG and PDF hold a picture of them
_SPACE = 16.0  # points between two entries, with the gap between handle and text
_NAMES = {
    ("compute", "forward"): "forward (F)",
    ("compute", "backward"): "backward (B)",
    ("compute", "input_grad"): "input gradient (I)",
    ("compute", "weight_grad"): "weight gradient (W)",
    ("d2h", "checkpoint"): "checkpoint: copy to the host",
    ("storage", "checkpoint"): "checkpoint: write from the host",
    ("host", "checkpoint"): "checkpoint: training stopped",
    ("d2h", "copy"): "offload: copy to the host",
    ("h2d", "copy"): "offload: copy back",
    ("host", "data"): "waiting for data",
    ("host", "validation"): "validation",
}


@dataclass(frozen=True)
class GanttFooter:
    """Legend and caption of a Gantt chart, ready to be drawn."""

    entries: Sequence[tuple[str, tuple[Patch, ...]]]
    columns: int
    caption: Sequence[str]

    @property
    def caption_height(self) -> float:
        """Height of the caption alone, in points."""
        return _CAPTION_LINE * len(self.caption) + 4.0

    @property
    def height(self) -> float:
        """Height of legend and caption in points."""
        return _LINE * -(-len(self.entries) // self.columns) + 6.0 + self.caption_height

    def draw(self, figure: Figure, *, left: float) -> None:
        """Draw legend and caption at the bottom of the figure, `left` points from its left edge."""
        points = Affine2D().scale(1 / 72) + figure.dpi_scale_trans
        handles: list[Any] = [patches for _, patches in self.entries]  # tuples of patches, which HandlerTuple draws
        figure.legend(
            handles, [name for name, _ in self.entries],
            handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)}, ncols=self.columns, loc="upper left",
            bbox_to_anchor=(left, self.height), bbox_transform=points, borderaxespad=0.0, borderpad=0.0, frameon=False,
            fontsize=_FONT, handlelength=_HANDLE / _FONT, columnspacing=1.2, labelspacing=0.45, handletextpad=0.6,
        )  # fmt: skip
        if self.caption:
            figure.text(
                left, self.caption_height, "\n".join(self.caption), transform=points,
                fontsize=_CAPTION_FONT, color=palette.QUIET_TEXT, va="top", linespacing=1.25,
            )  # fmt: skip


def make_footer(panels: Sequence[GanttPanel], *, width: float, numbered: bool, left_out: str) -> GanttFooter:
    """Make the legend and caption of a Gantt chart with as few lines as the width (points) allows.

    `numbered` if boxes have microbatch numbers; `left_out` is the sentence about a break.
    """
    entries = _legend_entries(panels)
    widths = np.array([text_width(name, _FONT) + _HANDLE + _SPACE for name, _ in entries])
    fits = (  # a legend is filled one column after the other
        count
        for count in range(len(entries), 1, -1)
        if sum(float(column.max()) for column in np.array_split(widths, count)) <= width
    )
    num_lines = -(-len(entries) // next(fits, 1))
    sentences = [left_out, *(panel.choice.caption for panel in panels)]
    sentences += [
        f"In an SVG or PDF the {len(panel.drawn_boxes):,} boxes are stored as a bitmap."
        for panel in panels
        if len(panel.drawn_boxes) > _RASTER_ABOVE
    ]
    if any(len(panel.drawn_boxes) < len(panel.span_boxes) for panel in panels):
        sentences.append(
            f"Small spans of one pass less than {JOIN_GAP:g} pixels apart are drawn as one box; the height of a "
            "communication bar is the share of its time that is busy."
        )
    if any(bool((panel.drawn_boxes.recompute > 0).any()) for panel in panels):
        sentences.append("The strip along a backward pass is the share of its time that recomputes.")
    if numbered:
        sentences.append("Numbers are microbatches.")
    text = " ".join(dict.fromkeys(filter(None, sentences)))
    return GanttFooter(entries, -(-len(entries) // num_lines), textwrap.wrap(text, int(width / (_CAPTION_FONT * 0.56))))


def _legend_entries(panels: Sequence[GanttPanel]) -> list[tuple[str, tuple[Patch, ...]]]:
    paints = sorted({panel.span_boxes.paints[at] for panel in panels for at in np.unique(panel.span_boxes.paint)})
    streams = ["compute", *palette.STREAMS, *sorted({stream for stream, _, _ in paints})]
    kinds = [*palette.COMPUTE_KINDS, *(kind for _, kind, _ in paints)]
    found: dict[tuple[str, str], list[int]] = {}
    for stream, kind, chunk in paints:
        found.setdefault((stream, kind), []).append(chunk)
    order = sorted(found, key=lambda key: (streams.index(key[0]), kinds.index(key[1]) if key[0] == "compute" else 0))
    entries = [
        (_legend_label(stream, kind, chunks := found[stream, kind]),
         tuple(Patch(facecolor=palette.op_colour(stream, kind, chunk), linewidth=0) for chunk in chunks[:4]))
        for stream, kind in order
        if kind != "waiting"
    ]  # fmt: skip
    if any(kind == "waiting" for _, kind, _ in paints):
        hatched = Patch(facecolor=palette.WAITING, hatch="//////", edgecolor=palette.WAITING_HATCH, linewidth=0)
        entries.append(("waiting for a peer or the network", (hatched,)))
    return [*entries, ("idle", (Patch(facecolor=palette.IDLE, edgecolor=palette.QUIET_TEXT, linewidth=0.5),))]


def _legend_label(stream: str, kind: str, chunks: list[int]) -> str:
    usual = kind.replace("_", " ") if stream == "compute" else f"{stream} {kind.replace('_', '-')}"
    name = _NAMES.get((stream, kind), usual)
    if chunks == [0]:
        return name
    listed = ", ".join(map(str, chunks)) if len(chunks) <= 4 else f"{chunks[0]} to {chunks[-1]}"
    return f"{name}, chunk{'s' if len(chunks) > 1 else ''} {listed}"
