"""Plots of pipeline schedules: the passes of each stage over time, one panel per schedule.

A row is a stage. Colours are kinds, lighter shades later chunks, hatching the microbatches that go up the pipeline; the
two halves of a row are a fused pair. All panels of a picture share one time axis.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from simcluster.base.errors import InputError
from simcluster.documents.argument_types import check_arguments
from simcluster.schedules.actions import PASS_NAMES, Kind
from simcluster.schedules.comparison import TimedSchedule
from simcluster.show.bars import text_width
from simcluster.show.palette import IDLE, QUIET_TEXT, TEXT, Colour, op_colour, text_colour_on

_NAMES: dict[Kind, str] = {
    "F": "F, forward",
    "B": "B, whole backward",
    "I": "I, input gradient",
    "W": "W, weight gradient",
}
_MOST_BOXES = 40_000
_MOST_STAGES = 64
_HEIGHT = 0.86  # of a row
_HATCH = "/////"
_LETTER = 4.4  # points that a letter of the caption takes


class _PassBox(NamedTuple):
    """A pass (F, B, I or W) drawn as a rectangle, with the attributes that determine its colour and hatch."""

    left: float
    top: float
    length: float
    height: float
    kind: Kind
    chunk: int
    upward: bool
    microbatch: int

    @property
    def colour(self) -> Colour:
        return op_colour("compute", PASS_NAMES[self.kind], self.chunk)


@check_arguments
def schedules(
    played: Sequence[TimedSchedule], *, columns: int = 1, title: str | None = None, width: float = 14.0
) -> Figure:
    """Draw pipeline schedules, simulated by `simcluster.simulate_schedules`, on one time axis.

    Each has its makespan, bubbles and peak of live activations. ``width`` is in inches. InputError for no schedule, and
    for more than 40,000 actions or 64 stages, which are not readable.
    """
    _require_readable(played)
    counts = [each.schedule.num_stages for each in played]
    if columns == 1:
        heights, foot, side, sizes = [0.34 + 0.23 * count for count in counts], 1.35, 0.8, (7.0, 9, 11)
    else:
        heights, foot, side, sizes = [0.42 + 0.24 * max(counts)] * -(-len(played) // columns), 1.3, 0.5, (6.2, 8, 12)
    figure = Figure(figsize=(width, sum(heights) + foot), layout="constrained")
    grid = figure.subplots(len(heights), columns, sharex=True, squeeze=False, height_ratios=heights)
    panels = list(grid.flat)
    for empty in panels[len(played) :]:
        empty.set_visible(False)
    _draw_panels(figure, panels[: len(played)], played, size=sizes[0], width=(width / columns - side) * 72)
    for panel in panels[max(0, len(played) - columns) : len(played)]:
        panel.set_xlabel("time, in the unit of the given times", fontsize=sizes[1], color=TEXT)
        panel.tick_params(labelbottom=True)
    figure.suptitle(title or _default_title(played), fontsize=sizes[2], color=TEXT, x=0.01, ha="left")
    return figure


def _draw_panels(figure: Figure, panels: list[Axes], shown: Sequence[TimedSchedule], size: float, width: float) -> None:
    end = max(float(played.timing.makespan) for played in shown)
    seen: list[_PassBox] = []
    for panel, played in zip(panels, shown, strict=True):
        boxes = list(_pass_boxes(played))
        _draw_panel(panel, played, boxes)
        _write_numbers(panel, boxes, size=size, points=width / end)
        seen += boxes
    panels[0].set_xlim(0, end)
    _draw_legend(figure, shown, seen)


def _draw_panel(axes: Axes, timed: TimedSchedule, boxes: Sequence[_PassBox]) -> None:
    schedule = timed.schedule
    looks: dict[tuple[Any, ...], list[_PassBox]] = {}
    for box in boxes:
        looks.setdefault((box.top, box.height, box.colour, box.upward), []).append(box)
    for (top, height, colour, upward), alike in looks.items():
        spans = [(box.left, box.length) for box in alike]
        with rc_context({"hatch.linewidth": 0.5, "hatch.color": "#FFFFFF"}):
            axes.broken_barh(
                spans, (top, height), facecolor=colour, edgecolor="#FFFFFF", linewidth=0.5,
                hatch=_HATCH if upward else None,
            )  # fmt: skip
    axes.axvline(float(timed.ideal_time), color=TEXT, linewidth=0.9, linestyle=(0, (3, 2)), zorder=0.5)
    axes.set_ylim(schedule.num_stages - 0.5, -0.5)
    axes.set_yticks(range(schedule.num_stages), [f"r{stage}" for stage in range(schedule.num_stages)], fontsize=7)
    axes.tick_params(axis="y", length=0, pad=2, colors=QUIET_TEXT)
    axes.tick_params(axis="x", labelsize=7, length=2, colors=QUIET_TEXT)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(QUIET_TEXT)
    axes.set_facecolor(IDLE)
    axes.set_title(schedule.name, loc="left", fontsize=9, fontweight="bold", color=TEXT, pad=3)
    axes.set_title(_describe_schedule(timed), loc="right", fontsize=8, color=TEXT, pad=3)


def _pass_boxes(timed: TimedSchedule) -> Iterator[_PassBox]:
    """Yield one box per pass; a fused pair's F and B share the row's height, with F on top."""
    schedule, timing = timed.schedule, timed.timing
    for stage, row in enumerate(schedule.rows):
        fused = schedule.fused_positions(stage)
        for place, (action, start, end) in enumerate(zip(row, timing.starts[stage], timing.ends[stage], strict=True)):
            upper, lower = place in fused, place - 1 in fused
            height = _HEIGHT / 2 if upper or lower else _HEIGHT
            low = (1 - _HEIGHT) / 2 + (_HEIGHT / 2 if upper else 0.0)
            entry = schedule.microbatch_route(action.microbatch)[0][0]
            yield _PassBox(
                float(start), stage + 0.5 - low - height, float(end - start), height, action.kind,
                chunk=0 if len(schedule.routes) > 1 else action.chunk, upward=entry != schedule.routes[0][0][0],
                microbatch=action.microbatch,
            )  # fmt: skip


def _write_numbers(axes: Axes, boxes: Sequence[_PassBox], *, size: float, points: float) -> None:
    for box in boxes:
        fits = size if box.height > _HEIGHT / 2 else size * 0.8
        text = str(box.microbatch)
        if text_width(text, fits) + 1.0 <= box.length * points:
            number = axes.text(
                box.left + box.length / 2, box.top + box.height / 2, text, fontsize=fits,
                color=text_colour_on(box.colour), ha="center", va="center_baseline", clip_on=True,
            )  # fmt: skip
            if box.upward:  # keep the hatching off the digits
                number.set_path_effects([withStroke(linewidth=2.2, foreground=box.colour)])


def _describe_schedule(timed: TimedSchedule) -> str:
    timing = timed.timing
    peak = f"{float(max(timed.peak_activations)):g}"
    copies = " · weights 2x" if timed.weight_copies > 1 else ""
    return (
        f"time {float(timing.makespan):g} · bubble {float(timing.bubble_over_total) * 100:.1f} % "
        f"(of span: {float(timed.span_bubble) * 100:.1f} %) · {peak} in flight{copies}"
    )


def _default_title(shown: Sequence[TimedSchedule]) -> str:
    times = shown[0].times
    counts = {(played.schedule.num_stages, played.schedule.num_microbatches) for played in shown}
    head = ""
    if len(counts) == 1:
        stages, microbatches = min(counts)
        head = f"{stages} stages, {microbatches} microbatches; "
    pair = "" if times.pair is None else f", pair {float(times.pair):g}"
    return (
        f"{head}F = {float(times.forward):g}, B = {float(times.backward):g} (I = {float(times.input):g}, "
        f"W = {float(times.weight):g}){pair} per microbatch and stage, latency {float(times.latency):g}"
    )


def _draw_legend(figure: Figure, shown: Sequence[TimedSchedule], boxes: Sequence[_PassBox]) -> None:
    kinds = {box.kind for box in boxes}
    entries: list[Artist] = [
        Patch(facecolor=op_colour("compute", PASS_NAMES[kind]), label=name)
        for kind, name in _NAMES.items()
        if kind in kinds
    ]
    if any(box.chunk for box in boxes):
        entries.append(Patch(facecolor=op_colour("compute", "forward", 1), label="lighter: a later chunk of the stage"))
    if any(box.upward for box in boxes):
        with rc_context({"hatch.linewidth": 0.5, "hatch.color": "#FFFFFF"}):
            up = Patch(facecolor=op_colour("compute", "forward"), hatch=_HATCH, edgecolor="#FFFFFF", linewidth=0,
                       label="hatched: enters at the last stage")  # fmt: skip
        entries.append(up)
    entries.append(Patch(facecolor=IDLE, edgecolor=QUIET_TEXT, linewidth=0.5, label="idle"))
    entries.append(Line2D([], [], color=TEXT, linewidth=0.9, linestyle=(0, (3, 2)), label="M (F + B), no bubble"))
    halves = "  Two halves of a row: a fused pair, F above B." if any(played.schedule.fused for played in shown) else ""
    caption = (
        "Numbers are microbatches.  bubble: idle share of the time; of span: idle share of the stage with the longest "
        "time from first start to last end.  in flight: most activations held at once, in microbatches of a whole "
        f"stage.{halves}"
    )
    caption = textwrap.fill(caption, int(figure.get_figwidth() * 72 / _LETTER))
    figure.legend(
        handles=entries, loc="outside lower left", ncols=len(entries), fontsize=8, frameon=False, handlelength=1.6,
        columnspacing=1.4, title=caption, title_fontsize=8, alignment="left",
    )  # fmt: skip


def _require_readable(shown: Sequence[TimedSchedule]) -> None:
    if not shown:
        raise InputError("nothing to draw: give at least one schedule")
    boxes = sum(len(row) for played in shown for row in played.schedule.rows)
    stages = max(played.schedule.num_stages for played in shown)
    if boxes > _MOST_BOXES or stages > _MOST_STAGES:
        raise InputError(
            f"{boxes:,} passes on {stages} stages are too many to draw; at most {_MOST_BOXES:,} and "
            f"{_MOST_STAGES} are readable: draw fewer schedules, stages or microbatches"
        )
    if all(played.timing.makespan == 0 for played in shown):
        raise InputError("nothing to draw: all times are zero; set a forward or backward time above 0")
