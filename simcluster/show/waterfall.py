"""Why one step is longer than another: from the first one's step time, cause by cause, to the other's."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simcluster.base.errors import InputError
from simcluster.base.units import format_change, format_seconds
from simcluster.documents.argument_types import checked
from simcluster.results.account import CAUSES
from simcluster.show.bars import bar_rows
from simcluster.show.cells import PARTS, told
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, WAITING, WAITING_HATCH

_ROW_HEIGHT = 0.34
_NAMES = {**PARTS, "interference": "compute slowed by communication", "rest": "all else"}
_REASONS = {  # why an axis' exposed communication changes (results.account)
    "traffic": "what it sends, on free links",
    "hiding": "how much compute hides",
    "contention": "contention on links",
}


@checked
def waterfall(step_times: Mapping[str, float], causes: pd.DataFrame) -> Figure:
    """A panel for every variant but the first: its step time reached from the first one's, a bar for every cause.

    ``step_times`` are in seconds by variant; ``causes`` is the table of `simcluster.differences`.  The time axis does
    not begin at 0.  InputError without two variants.
    """
    others = list(causes.index[1:])
    if not others:
        raise InputError("nothing to draw: differences need at least two scenarios")
    base = str(causes.index[0])
    steps = [told(causes.loc[name, list(CAUSES)].to_dict()) for name in others]
    rows = [len(each) + 2 for each in steps]
    figure = Figure(figsize=(9.5, 0.7 + sum(_ROW_HEIGHT * count + 0.75 for count in rows)), layout="constrained")
    panels = figure.subplots(len(others), 1, squeeze=False, height_ratios=rows)[:, 0]
    for axes, name, changes in zip(panels, others, steps, strict=True):
        _draw(axes, (base, step_times[base]), (str(name), step_times[name]), changes)
    panels[-1].set_xlabel("seconds a step (the axis does not begin at 0)", fontsize=9, color=QUIET_TEXT)
    return figure


def _draw(axes: Axes, base: tuple[str, float], other: tuple[str, float], changes: list[tuple[str, float]]) -> None:
    levels = [*itertools.accumulate((seconds for _, seconds in changes), initial=base[1])]
    low, high = min(levels), max(levels)
    room = 0.22 * (high - low) or 0.05 * high
    left, right = max(0.0, low - room), high + room
    for row, (name, seconds) in enumerate(((base[0], base[1]), *changes, (other[0], other[1]))):
        whole = row in (0, len(changes) + 1)
        start = left if whole else levels[row - 1]
        width = seconds - left if whole else seconds
        colour, hatch = (QUIET_TEXT, "") if whole else _look(name)
        axes.barh(row, width, left=start, height=0.66, color=colour, hatch=hatch, edgecolor=WAITING_HATCH, linewidth=0)
        text = format_seconds(seconds) if whole else format_change(seconds, "−")
        end = max(start, start + width)
        axes.text(end + 0.01 * (right - left), row, text, va="center", fontsize=8, color=TEXT)
        if row <= len(changes):
            axes.plot([levels[row]] * 2, [row - 0.33, row + 1.33], color=QUIET_TEXT, linewidth=0.6)
    bar_rows(axes, [base[0], *(_name(name) for name, _ in changes), other[0]])
    axes.set_xlim(left, right + 0.1 * (right - left))
    difference = other[1] - base[1]
    change = f"{format_change(difference, '−')} ({difference / base[1]:+.1%}) a step"
    axes.set_title(f"{change}: where it went", fontsize=10, color=TEXT, loc="left")


def _name(cause: str) -> str:
    axis, _, reason = cause.partition("_")
    return f"{axis}: {_REASONS[reason]}" if axis in STREAMS else _NAMES.get(cause, cause)


def _look(cause: str) -> tuple[str, str]:
    """Colour and hatch of a cause."""
    axis = cause.partition("_")[0]
    if axis in STREAMS:
        return STREAMS[axis], ""
    return COMPUTE_KINDS.get(cause, WAITING), "" if cause in COMPUTE_KINDS else "//"
