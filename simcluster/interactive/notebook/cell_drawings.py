"""Small drawings for notebook cells (timelines and histograms), as HTML and SVG without scripts.

Everything is in one element of class ``simcluster``, whose style affects nothing outside; text and background colours
are the notebook's, light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.units import format_seconds_short
from simcluster.interactive.report import colours
from simcluster.interactive.report.html import HtmlContent, Markup, element, read_asset
from simcluster.interactive.report.html import join_html as pieces
from simcluster.show import palette
from simcluster.show.gantt_boxes import GanttBoxes, PaintKey, join_small_boxes, make_boxes
from simcluster.show.gantt_rows import choose_rows

if TYPE_CHECKING:
    import pandas as pd

_WIDTH = 1000.0  # units across a drawing, whatever its width on the screen
_MOST_ROWS = 8
_MOST_BOXES = 5_000
_COMPUTE, _SLIM = 15.0, 4.0  # pixels of a lane
_EDGE = 7.0  # units: boxes wider than this get a dark first unit, so that equal neighbours stay apart
_TICKS = 6
_RECOMPUTE: PaintKey = ("compute", "recompute", 0)


def cell_html(*content: HtmlContent) -> str:
    """Join pieces of HTML to one styled element for a notebook cell."""
    return str(element("div", element("style", Markup(_style_html())), *content, class_="simcluster"))


@cache
def _style_html() -> str:
    light, dark = colours.css_variables()
    named = "\n".join(f".simcluster {line}" for line in colours.css_classes().splitlines() if line.startswith(".k-"))
    text = read_asset("cell.css")
    for mark, variables in (("/*LIGHT*/", light), ("/*DARK*/", dark)):
        text = text.replace(mark, "".join(f"{each};" for each in variables.split(";") if each.startswith("--k-")))
    return f"{text}{named}"


# --- a timeline -------------------------------------------------------------------------------------------------------


def timeline_html(
    frame: pd.DataFrame, num_ranks: int, *, noun: str = "rank", seconds: bool = True, one_lane: bool = False
) -> Markup:
    """Draw a small timeline as HTML: one row per chosen rank, compute above, communication below.

    The number of rows is limited; a line below states what is not shown. ``noun`` names a row; without ``seconds`` time
    has no unit; with ``one_lane`` everything is drawn in the lane of compute.
    """
    end = float(frame["end"].max()) or 1.0
    most = _MOST_ROWS
    while True:
        choice = choose_rows(frame, ranks=None, rows="stage", max_rows=most, num_ranks=num_ranks)
        streams = _used_streams(frame, choice.ranks)
        boxes = _timeline_boxes(frame, choice.ranks, end, streams, one_lane=one_lane)
        if len(boxes) > _MOST_BOXES and len(streams) > 1 and not one_lane:  # computation alone says most
            boxes = _timeline_boxes(frame, choice.ranks, end, ("compute",))
        if len(boxes) <= _MOST_BOXES or most == 1:
            break
        most //= 2
    colour_of = _fill_attributes((*boxes.paints, _RECOMPUTE))
    labels = [label.partition(" · ")[0] if noun == "stage" else label for label in choice.labels]
    rows = (_row_html(boxes, number, label, colour_of, end) for number, label in enumerate(labels))
    shown = sorted({boxes.paints[at] for at in np.unique(boxes.paint).tolist()})
    shown += [_RECOMPUTE] if (boxes.recompute > 0).any() else []
    caption = choice.caption.replace("ranks shown", f"{noun}s shown")
    return element(
        "div",
        element("div", rows, element("span"), _axis_html(end, seconds=seconds), class_="rows"),
        _legend_html(shown, colour_of),
        element("div", caption, class_="quiet") if caption else "",
        class_="block",
    )


def _timeline_boxes(
    frame: pd.DataFrame, ranks: tuple[int, ...], end: float, streams: tuple[str, ...], *, one_lane: bool = False
) -> GanttBoxes:
    boxes = make_boxes(frame, ranks, (0.0, end), streams)
    if one_lane:
        order = np.lexsort((boxes.start, boxes.row))
        named = ("row", "paint", "microbatch", "start", "end", "share", "recompute", "source")
        columns = {name: getattr(boxes, name)[order] for name in named}
        boxes = replace(boxes, lane=np.zeros_like(boxes.lane), **columns)
    return join_small_boxes(boxes, end / _WIDTH)


def _used_streams(frame: pd.DataFrame, ranks: Sequence[int]) -> tuple[str, ...]:
    used = set(frame["stream"][frame["rank"].isin(ranks)].unique())
    return ("compute", *(stream for stream in (*palette.STREAMS, "h2d", "d2h", "storage", "host") if stream in used))


def _row_html(boxes: GanttBoxes, number: int, label: str, colour_of: dict[PaintKey, Markup], end: float) -> Markup:
    height = _COMPUTE + _SLIM * (int(boxes.lane.max(initial=0)))
    own = np.flatnonzero(boxes.row == number)
    top = np.where(boxes.lane[own] == 0, 0.0, _COMPUTE + _SLIM * (boxes.lane[own] - 1))
    high = np.where(boxes.lane[own] == 0, _COMPUTE, _SLIM - 0.5)
    left, width = boxes.start[own] * (_WIDTH / end), (boxes.end - boxes.start)[own] * (_WIDTH / end)
    paths = []
    for at in np.unique(boxes.paint[own]).tolist():
        of = boxes.paint[own] == at
        path = _svg_rectangles(left[of], top[of], np.maximum(width[of], 0.3), high[of])
        paint = boxes.paints[at]
        told = element("title", _paint_label(paint))
        paths.append(Markup(f'<path d="{path}" {colour_of[paint]}>{told}</path>'))
    part = boxes.recompute[own]  # of a backward that it was joined with: a strip along it
    if (part > 0).any():
        of = part > 0
        path = _svg_rectangles(left[of], (high * (1 - part))[of], width[of], (high * part)[of])
        paths.append(Markup(f'<path d="{path}" {colour_of[_RECOMPUTE]}>{element("title", "recompute")}</path>'))
    edged = (boxes.lane[own] == 0) & (width > _EDGE)
    if edged.any():
        path = _svg_rectangles(left[edged], top[edged], np.full(int(edged.sum()), 0.8), high[edged])
        paths.append(Markup(f'<path d="{path}" class="edge"/>'))
    drawn = element(
        "svg", paths, viewBox=f"0 0 {_WIDTH:g} {height:g}", preserveAspectRatio="none", role="img", aria_label=label,
        style=f"height:{height:g}px",
    )  # fmt: skip
    return pieces(element("span", label, class_="quiet"), drawn)


def _svg_rectangles(left: Floats, top: Floats, width: Floats, high: Floats) -> str:
    columns = (np.round(column, 1).tolist() for column in (left, top, width, high))
    return "".join(f"M{x:g} {y:g}h{w:g}v{h:g}h-{w:g}z" for x, y, w, h in zip(*columns, strict=True))


def _fill_attributes(paints: Sequence[PaintKey]) -> dict[PaintKey, Markup]:
    found = {}
    for paint in paints:
        stream, kind, chunk = paint
        if kind == "waiting":
            found[paint] = Markup('class="k-bubble"')
            continue
        code = colours.hex_code(palette.op_colour(stream, kind, chunk))
        name = next((name for name, own in colours.BREAKDOWN_COLOURS.items() if own == code), None)
        found[paint] = Markup(f'class="k-{name}"' if name else f'style="fill:{code};background:{code}"')
    return found


def _paint_label(paint: PaintKey) -> str:
    stream, kind, _ = paint
    if kind == "waiting":
        return "waiting"
    return kind.replace("_", " ") if stream == "compute" else f"{stream} {kind.replace('_', '-')}"


def _legend_html(paints: Sequence[PaintKey], colour_of: dict[PaintKey, Markup]) -> Markup:
    named = {_paint_label(paint): colour_of[paint] for paint in sorted(paints, key=lambda each: -each[2])}
    order = sorted(
        named, key=lambda name: (" " in name and name.split()[0] in palette.STREAMS, name == "waiting", name)
    )
    items = (element("li", Markup(f"<i {named[name]}></i>"), element("span", name, class_="quiet")) for name in order)
    return element("ul", items, class_="legend")


def _axis_html(end: float, *, seconds: bool) -> Markup:
    rough = end / _TICKS
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(float(factor * power) for factor in (1, 2, 5, 10) if factor * power >= rough)
    ticks = np.arange(0.0, end * (1 - 0.03), step).tolist()
    texts = (f"{tick:g}" if not seconds else format_seconds_short(tick) if tick else "0 s" for tick in ticks)
    told = (
        element("span", text, style=f"left:{100 * tick / end:.2f}%") for text, tick in zip(texts, ticks, strict=True)
    )
    return element("div", told, class_="axis quiet")


# --- many values ------------------------------------------------------------------------------------------------------


def histogram_html(values: Floats, marks: Iterable[tuple[str, float, bool]]) -> Markup:
    """Draw a histogram as SVG, with a named line at each marked value."""
    marked = list(marks)
    ends = [*values.tolist(), *(value for _, value, _ in marked)]
    low, high = min(ends), max(ends)
    if high <= low:
        low, high = low - 0.5 * abs(low), high + 0.5 * abs(high)
    counts, edges = np.histogram(values, bins=int(np.clip(1.5 * np.sqrt(len(values)), 5, 60)), range=(low, high))
    scale, top = _WIDTH / (high - low), 90.0 / max(1, int(counts.max()))
    bins = [
        element("rect", x=(left - low) * scale, y=95 - top * count, width=(right - left) * scale, height=top * count,
             class_="plain")
        for count, left, right in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        if count
    ]  # fmt: skip
    lines = [
        element("line", element("title", name), x1=(value - low) * scale, x2=(value - low) * scale, y1=0, y2=95,
                class_="mark dashed" if dashed else "mark")
        for name, value, dashed in marked
    ]  # fmt: skip
    drawn = element("svg", bins, lines, viewBox=f"0 0 {_WIDTH:g} 95", preserveAspectRatio="none", role="img",
                    aria_label="histogram", style="height:95px")  # fmt: skip
    ticks = element(
        "div",
        (element("span", f"{value:.5g} s", style=f"left:{min(96.0, 100 * (value - low) * scale / _WIDTH):.2f}%")
         for value in (low, (low + high) / 2, high)),
        class_="axis quiet",
    )  # fmt: skip
    return element("div", element("div", element("span"), drawn, element("span"), ticks, class_="rows"), class_="block")
