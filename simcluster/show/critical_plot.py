"""What the step waits for: the critical path by kind of op, and the step if each kind cost nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simcluster.base.units import format_seconds
from simcluster.documents.argument_types import checked
from simcluster.results.result import Result
from simcluster.show.bars import bar_rows
from simcluster.show.palette import QUIET_TEXT, STREAMS, TEXT, Colour, colour_of, rgb
from simcluster.studies.whatif.free import COMMUNICATION, Free, what_if_free

_ROW_HEIGHT = 0.36


@checked
def critical(result: Result, free: Sequence[Free] | None = None, *, title: str | None = None) -> Figure:
    """Left: seconds per step of the critical path by kind of op.  Right: the step time if a kind were free, played; a
    tick marks what the path alone says.

    ``free`` is what `simcluster.what_if_free` found; left out, it is played now.
    """
    free = what_if_free(result) if free is None else free
    by_kind, step_time = result.critical_path.by_kind(), result.step_time
    rows = max(len(by_kind), len(free) + 1)
    figure = Figure(figsize=(12.0, 1.5 + _ROW_HEIGHT * rows), layout="constrained")
    path, what_if = figure.subplots(1, 2)
    _path(path, by_kind, step_time)
    _what_if(what_if, free, step_time)
    told = title or f"{result.scenario.title}: what its {format_seconds(step_time)} a step wait for"
    figure.suptitle(told, fontsize=11, color=TEXT)
    return figure


def _path(axes: Axes, by_kind: Mapping[str, float], step_time: float) -> None:
    names = list(by_kind)
    axes.barh(range(len(names)), list(by_kind.values()), height=0.7, color=[_colour(name) for name in names])
    for row, seconds in enumerate(by_kind.values()):
        text = f"{format_seconds(seconds)}  {seconds / step_time:.1%}"
        axes.text(seconds + 0.012 * step_time, row, text, va="center", fontsize=8, color=TEXT)
    axes.set_xlim(0, 1.2 * max(by_kind.values(), default=1.0) + 0.1 * step_time)
    bar_rows(axes, names, "on the critical path (seconds a step)")


def _what_if(axes: Axes, free: Sequence[Free], step_time: float) -> None:
    names = ["as it is", *(f"{each.kind} free" for each in free)]
    colours = [rgb(QUIET_TEXT), *(_colour(each.kind) for each in free)]
    seconds = [step_time, *(each.step_time for each in free)]
    axes.barh(range(len(names)), seconds, height=0.7, color=colours)
    axes.axvline(step_time, color=QUIET_TEXT, linewidth=0.8, linestyle="--")
    marks = axes.plot(
        [each.estimate for each in free], range(1, len(names)), "|", color=TEXT, markersize=13, markeredgewidth=1.6
    )
    for row, value in enumerate(seconds):
        text = format_seconds(value) + (f"  {value / step_time - 1:+.1%}" if row else "")
        axes.text(max(value, step_time) + 0.015 * step_time, row, text, va="center", fontsize=8, color=TEXT)
    axes.set_xlim(0, 1.3 * step_time)
    bar_rows(axes, names, "step time if it cost nothing (seconds), played")
    axes.legend(marks, ["step less its share of the path"], loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=8,
                frameon=False)  # fmt: skip


def _colour(kind: str) -> Colour:
    """As in the timeline: of compute by its kind, of communication by its axis."""
    if kind == COMMUNICATION:
        return rgb(STREAMS["dp"])
    axis, _, rest = kind.partition(" ")
    return colour_of(axis, rest) if axis in STREAMS else colour_of("compute", kind)
