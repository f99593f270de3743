"""Plot of predicted against measured values of all validation studies, with the errors below."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from simcluster.base.errors import InputError
from simcluster.base.units import format_bytes, format_seconds_short
from simcluster.documents.argument_types import check_arguments
from simcluster.evidence.validation.reports import Report, ScoredPoint
from simcluster.show.palette import COMPUTE_KINDS, LANE_SURROUND, QUIET_TEXT, STREAMS, TEXT

_COLOURS = (
    COMPUTE_KINDS["forward"], STREAMS["tp"], COMPUTE_KINDS["weight_grad"], COMPUTE_KINDS["recompute"],
    STREAMS["dp"], COMPUTE_KINDS["backward"], STREAMS["cp"], COMPUTE_KINDS["optimizer"],
)  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p", "h", "d")
_BAND = 0.1
_TITLES = {
    "steps": "training steps", "memory": "memory", "schedules": "pipelines with given pass times",
    "collectives": "collectives",
}  # fmt: skip
_SMALLEST_HALF_SPAN = 0.25  # of the lower panels: +-25 % are always visible
_LARGEST_HALF_SPAN = 1.0
_LEGEND_COLUMNS = 2


class _PlotSeries(NamedTuple):
    name: str
    points: Sequence[ScoredPoint]
    hollow: bool


@check_arguments
def validation_errors(reports: Sequence[Report]) -> Figure:
    """Plot predicted against measured values and errors of validation reports, one column per kind of study.

    Each study of steps and each set of collectives has its colour and marker; degraded sets are hollow. The grey band
    is +-10 %. Raises InputError without a point.
    """
    columns = {kind: _list_series(reports, kind) for kind in _TITLES}
    columns = {kind: series for kind, series in columns.items() if series}
    if not columns:
        raise InputError("nothing to draw: no row of any study was predicted; give a study with predictions")
    rows = max(len(series) for series in columns.values())
    lines = math.ceil(rows / _LEGEND_COLUMNS)
    figure = Figure(figsize=(8.2 * len(columns), 8.0 + 0.2 * lines), layout="constrained")
    panels = figure.subplots(2, len(columns), squeeze=False, height_ratios=[2.2, 1.0], sharex="col")
    for column, (kind, series) in enumerate(columns.items()):
        times, errors = panels[0][column], panels[1][column]
        _draw_panels(times, errors, series, format_bytes if kind == "memory" else format_seconds_short)
        times.set_title(f"{_TITLES[kind]}: predicted against measured", fontsize=11, color=TEXT)
        errors.legend(
            *times.get_legend_handles_labels(), loc="upper center", bbox_to_anchor=(0.5, -0.24),
            ncols=min(_LEGEND_COLUMNS, len(series)), fontsize=8, frameon=False, labelcolor=TEXT,
        )  # fmt: skip
    return figure


def _list_series(reports: Sequence[Report], kind: str) -> list[_PlotSeries]:
    found = []
    for report in reports:
        if report.study.kind != kind:
            continue
        for part in report.parts:
            name = f"{part.name}, {part.collective}" if part.collective else part.name
            score = f" ({part.score.mean:.1%}, {part.role})" if part.score else ""
            if part.points:
                found.append(_PlotSeries(f"{name}{score}", part.points, part.role == "degraded"))
    return found


def _draw_panels(times: Axes, errors: Axes, series: Sequence[_PlotSeries], text: Callable[[float], str]) -> None:
    for index, each in enumerate(series):
        colour = _COLOURS[index % len(_COLOURS)]
        measured = [point.measured for point in each.points]
        style: dict[str, Any] = {
            "marker": _MARKERS[index % len(_MARKERS)], "linestyle": "none", "markersize": 5.5, "markeredgewidth": 1.0,
            "color": colour, "markerfacecolor": "none" if each.hollow else colour, "alpha": 0.85,
        }  # fmt: skip
        times.plot(measured, [point.predicted for point in each.points], label=each.name, **style)
        errors.plot(measured, [100 * point.error for point in each.points], **style)
    points = [point for each in series for point in each.points]
    low = 0.7 * min(min(point.measured, point.predicted) for point in points)
    high = 1.4 * max(max(point.measured, point.predicted) for point in points)
    _draw_frame(times, errors, low, high, text)
    largest = max(abs(point.error) for point in points)
    span = 100 * min(max(1.1 * largest, _SMALLEST_HALF_SPAN), _LARGEST_HALF_SPAN)
    errors.set_ylim(-span, span)


def _draw_frame(times: Axes, errors: Axes, low: float, high: float, text: Callable[[float], str]) -> None:
    ends = np.array([low, high])
    for axes, middle, below, above in (
        (times, ends, ends * (1 - _BAND), ends * (1 + _BAND)),
        (errors, 0 * ends, 0 * ends - 100 * _BAND, 0 * ends + 100 * _BAND),
    ):
        axes.fill_between(ends, below, above, color=LANE_SURROUND, zorder=0, linewidth=0)
        axes.plot(ends, middle, color=QUIET_TEXT, linewidth=0.9, zorder=1)
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        _set_ticks(axes, "x", low, high, text)
    times.set_yscale("log")
    times.set_ylim(low, high)
    _set_ticks(times, "y", low, high, text)
    times.set_ylabel("predicted", fontsize=9, color=TEXT)
    errors.set_xlabel("measured", fontsize=9, color=TEXT)
    errors.set_ylabel("predicted / measured − 1 (%)", fontsize=9, color=TEXT)
    times.text(0.02, 0.97, "grey: within 10 %", transform=times.transAxes, va="top", fontsize=8, color=QUIET_TEXT)


def _set_ticks(axes: Axes, which: str, low: float, high: float, text: Callable[[float], str]) -> None:
    """Set tick labels at powers of ten; if the axis spans less than two decades, also at 2 and 5."""
    steps = (1, 2, 5) if high / low < 100 else (1,)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_formatter(NullFormatter())
