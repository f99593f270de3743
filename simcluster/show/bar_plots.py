"""Bar charts of a step: critical path, overlapped communication, sensitivities, and differences between scenarios."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds, format_time_change
from simcluster.documents.argument_types import check_arguments
from simcluster.results.critical_path import op_kind_name
from simcluster.results.overlap import CommunicationKey, OverlapSeconds
from simcluster.results.result import Result
from simcluster.results.simulated_run import Run
from simcluster.results.step_account import CAUSES
from simcluster.show.bars import label_axes, set_up_bar_rows
from simcluster.show.palette import (
    COMPUTE_KINDS,
    QUIET_TEXT,
    STREAMS,
    TEXT,
    WAITING,
    WAITING_HATCH,
    Colour,
    op_colour,
    parse_rgb,
    tint_colour,
)
from simcluster.show.table_cells import list_main_causes
from simcluster.studies.whatif.difference import describe_cause
from simcluster.studies.whatif.free_ops import COMMUNICATION, FreeOpsResult, what_if_free
from simcluster.studies.whatif.sensitivities import RESOURCES, TIME_RESOURCES, Sensitivity

_CRITICAL_ROW = 0.36


@check_arguments
def critical_path(result: Result, free: Sequence[FreeOpsResult] | None = None, *, title: str | None = None) -> Figure:
    """Draw the time of each kind of op on the critical path, and the step time if that kind of op took no time.

    Left: seconds per step. Right: simulated step times; a tick marks the estimate from the critical path alone.
    ``free`` is the answer of `simcluster.what_if_free` (default: simulate it now).
    """
    free = what_if_free(result) if free is None else free
    by_kind, step_time = result.critical_path.by_kind(), result.step_time
    rows = max(len(by_kind), len(free) + 1)
    figure = Figure(figsize=(12.0, 1.5 + _CRITICAL_ROW * rows), layout="constrained")
    path, what_if = figure.subplots(1, 2)
    _draw_critical_path(path, by_kind, step_time)
    _draw_what_if_bars(what_if, free, step_time)
    heading = title or f"{result.scenario.title}: critical path of the {format_seconds(step_time)} step"
    figure.suptitle(heading, fontsize=11, color=TEXT)
    return figure


def _draw_critical_path(axes: Axes, by_kind: Mapping[str, float], step_time: float) -> None:
    names = list(by_kind)
    axes.barh(range(len(names)), list(by_kind.values()), height=0.7, color=[_op_colour(name) for name in names])
    for row, seconds in enumerate(by_kind.values()):
        text = f"{format_seconds(seconds)}  {seconds / step_time:.1%}"
        axes.text(seconds + 0.012 * step_time, row, text, va="center", fontsize=8, color=TEXT)
    axes.set_xlim(0, 1.2 * max(by_kind.values(), default=1.0) + 0.1 * step_time)
    set_up_bar_rows(axes, names, "on the critical path (seconds per step)")


def _draw_what_if_bars(axes: Axes, free: Sequence[FreeOpsResult], step_time: float) -> None:
    names = ["as simulated", *(f"without {each.kind}" for each in free)]
    colours = [parse_rgb(QUIET_TEXT), *(_op_colour(each.kind) for each in free)]
    seconds = [step_time, *(each.step_time for each in free)]
    axes.barh(range(len(names)), seconds, height=0.7, color=colours)
    axes.axvline(step_time, color=QUIET_TEXT, linewidth=0.8, linestyle="--")
    estimates = [each.estimate for each in free]
    marks = axes.plot(estimates, range(1, len(names)), "|", color=TEXT, markersize=13, markeredgewidth=1.6)
    for row, value in enumerate(seconds):
        text = format_seconds(value) + (f"  {value / step_time - 1:+.1%}" if row else "")
        axes.text(max(value, step_time) + 0.015 * step_time, row, text, va="center", fontsize=8, color=TEXT)
    axes.set_xlim(0, 1.3 * step_time)
    set_up_bar_rows(axes, names, "simulated step time (s) if this kind of op took no time")
    label = "estimate: step time minus time on the path"
    axes.legend(marks, [label], loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=8, frameon=False)


def _op_colour(kind: str) -> Colour:
    if kind == COMMUNICATION:
        return parse_rgb(STREAMS["dp"])
    axis, _, rest = kind.partition(" ")
    return op_colour(axis, rest) if axis in STREAMS else op_colour("compute", kind)


_OVERLAP_ROW = 0.27
_MOST_ROWS = 30
_HIDDEN_TINT = 0.6


@dataclass(frozen=True, slots=True)
class _OverlapBar:
    name: str
    axis: str
    value: OverlapSeconds
    gap: float = 0.0  # of rows, above it


@check_arguments
def overlap(named: Sequence[tuple[str, Run]]) -> Figure:
    """Draw overlapped and exposed communication: a bar per collective; if there are several runs, per run and axis.

    Bars are seconds per step, averaged over ranks. InputError if nothing communicates, and without a run.
    """
    rows = _bars_by_collective(named[0][1]) if len(named) == 1 else _bars_by_axis(named)
    if not rows:
        raise InputError("nothing to draw: no rank of this step communicates; use two GPUs or more")
    figure = Figure(figsize=(10.5, 1.5 + _OVERLAP_ROW * sum(1 + row.gap for row in rows)), layout="constrained")
    axes = figure.subplots()
    _draw_overlap(axes, rows)
    title = "Communication per step (mean over ranks)"
    if len(named) == 1:
        name, run = named[0]
        title = f"{name}: {run.overlap.fraction:.1%} of communication overlaps with compute (mean over ranks)"
    figure.suptitle(title, fontsize=11, color=TEXT, x=0.01, ha="left")
    figure.legend(handles=list(_overlap_legend(rows)), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def _bars_by_collective(run: Run) -> list[_OverlapBar]:
    values = {key: value for key, value in run.overlap.mean.items() if key.kind}
    longest = sorted(values, key=lambda key: -(values[key].wire + values[key].waiting))[:_MOST_ROWS]
    rows: list[_OverlapBar] = []
    for key, value in values.items():
        if key in longest and value.wire + value.waiting > 0:
            gap = 0.5 if rows and rows[-1].axis != key.axis else 0.0
            rows.append(_OverlapBar(f"{op_kind_name(key.axis, key.kind)}  {key.name}", key.axis, value, gap))
    return rows


def _bars_by_axis(named: Sequence[tuple[str, Run]]) -> list[_OverlapBar]:
    means = [(name, run.overlap.mean) for name, run in named]
    there = dict.fromkeys(key.axis for _, mean in means for key in mean if key.axis and not key.kind)
    return [
        _OverlapBar(f"{axis}  {name}", axis, mean.get(CommunicationKey(axis), OverlapSeconds()), 0.0 if place else 0.6)
        for axis in there
        for place, (name, mean) in enumerate(means)
    ]


def _draw_overlap(axes: Axes, rows: Sequence[_OverlapBar]) -> None:
    places: list[float] = []
    for row in rows:
        places.append((places[-1] if places else -1.0) + 1.0 + row.gap)
    longest = max(row.value.wire + row.value.waiting for row in rows)
    for place, row in zip(places, rows, strict=True):
        full = parse_rgb(STREAMS.get(row.axis, COMPUTE_KINDS["other"]))
        left = 0.0
        for seconds, colour, hatch in (
            (row.value.exposed, full, ""),
            (row.value.hidden, tint_colour(full, _HIDDEN_TINT), ""),
            (row.value.waiting, parse_rgb(WAITING), "////"),
        ):
            axes.barh(place, seconds, left=left, height=0.74, color=colour, hatch=hatch, edgecolor=WAITING_HATCH, lw=0)
            left += seconds
        share = f"{row.value.hidden / row.value.wire:.0%}" if left else ""
        text = f"{format_seconds(row.value.wire)}, {share} overlapped" if left else "none"
        axes.text(left + 0.008 * longest, place, text, va="center", fontsize=7.5, color=QUIET_TEXT)
    set_up_bar_rows(axes, [row.name for row in rows], "seconds per step", positions=places, size=8)
    axes.set_xlim(0, 1.16 * longest)


def _overlap_legend(rows: Iterable[_OverlapBar]) -> Iterable[Patch]:
    full = parse_rgb(STREAMS.get(next(iter(rows)).axis, COMPUTE_KINDS["other"]))
    yield Patch(color=full, label="exposed")
    yield Patch(color=tint_colour(full, _HIDDEN_TINT), label="overlapped with compute")
    yield Patch(facecolor=WAITING, hatch="////", edgecolor=WAITING_HATCH, lw=0, label="waiting for a later rank")


_SENSITIVITY_ROW = 0.48
_MORE, _LESS = (0.16, 0.36), (-0.2, 0.2)  # of a row: middle and height of the bars
_LOOKS = {
    "flops": COMPUTE_KINDS["forward"],
    "memory_bandwidth": COMPUTE_KINDS["backward"],
    "nvlink": STREAMS["tp"],
    "network": STREAMS["dp"],
    "between_machines": STREAMS["pp"],
}


@check_arguments
def sensitivity(found: Sequence[Sensitivity], title: str = "") -> Figure:
    """Draw by how many percent the step time changes if a resource changes by 1 %, most influential resource first.

    The thick bar is the gain from more of the resource, the thin bar the loss from less. InputError for no resource.
    """
    if not found:
        raise InputError("nothing to draw: name at least one resource")
    ordered = sorted(found, key=lambda each: (each.gain, each.loss or 0.0))
    figure = Figure(figsize=(8.5, 1.6 + _SENSITIVITY_ROW * len(ordered)), layout="constrained")
    axes = figure.subplots()
    widest = max(*(max(each.gain, each.loss or 0.0) for each in ordered), 1e-3)
    for row, each in enumerate(ordered):
        colour = _LOOKS.get(each.resource, WAITING)
        axes.barh(row + _MORE[0], each.gain, height=_MORE[1], color=colour)
        text = f"{each.gain:.3f} %"
        if each.loss is not None:
            axes.barh(row + _LESS[0], each.loss, height=_LESS[1], color=colour, alpha=0.45)
            text += f"  (less: {each.loss:.3f} %)" if each.one_sided else ""
        end = max(each.gain, each.loss or 0.0, 0.0)
        axes.text(end + 0.012 * widest, row, text, va="center", fontsize=9, color=TEXT)
    known = [(row + _MORE[0], one.estimated_gain) for row, one in enumerate(ordered) if one.estimated_gain is not None]
    axes.scatter(
        [gain for _, gain in known], [row for row, _ in known], marker="d", s=26, facecolor="white", edgecolor=TEXT,
        linewidth=1.0, zorder=3, label="estimate from the critical path",
    )  # fmt: skip
    names = [RESOURCES[each.resource] + (" (less)" if each.resource in TIME_RESOURCES else "") for each in ordered]
    label = "change of the step time (%) per 1 % of the resource: gain from more (thick), loss from less (thin)"
    label_axes(axes, label, tick_size=9.5)
    axes.set_yticks(range(len(names)), names, color=TEXT)
    axes.set_xlim(min(0.0, min(each.gain for each in ordered)), widest * 1.28)
    axes.tick_params(axis="y", length=0)
    axes.legend(frameon=False, fontsize=8.5, loc="lower right")
    if title:
        figure.suptitle(f"{title}: what more of each resource would save", fontsize=10.5, color=TEXT, x=0.01, ha="left")
    return figure


_WATERFALL_ROW = 0.34


@check_arguments
def waterfall(step_times: Mapping[str, float], causes: pd.DataFrame) -> Figure:
    """Draw, per scenario, why its step time differs from the first scenario's: one waterfall bar per cause.

    ``step_times`` are in seconds by variant; ``causes`` is the table of `simcluster.differences`. The time axis does
    not begin at 0. InputError without two variants.
    """
    others = list(causes.index[1:])
    if not others:
        raise InputError("nothing to draw: differences need at least two scenarios")
    base = str(causes.index[0])
    steps = [list_main_causes(causes.loc[name, list(CAUSES)].to_dict()) for name in others]
    rows = [len(each) + 2 for each in steps]
    figure = Figure(figsize=(9.5, 0.7 + sum(_WATERFALL_ROW * count + 0.75 for count in rows)), layout="constrained")
    panels = figure.subplots(len(others), 1, squeeze=False, height_ratios=rows)[:, 0]
    for axes, name, changes in zip(panels, others, steps, strict=True):
        _draw_waterfall(axes, (base, step_times[base]), (str(name), step_times[name]), changes)
    panels[-1].set_xlabel("seconds per step (the axis does not begin at 0)", fontsize=9, color=QUIET_TEXT)
    return figure


def _draw_waterfall(
    axes: Axes, base: tuple[str, float], other: tuple[str, float], changes: list[tuple[str, float]]
) -> None:
    levels = [*itertools.accumulate((seconds for _, seconds in changes), initial=base[1])]
    low, high = min(levels), max(levels)
    room = 0.22 * (high - low) or 0.05 * high
    left, right = max(0.0, low - room), high + room
    for row, (name, seconds) in enumerate(((base[0], base[1]), *changes, (other[0], other[1]))):
        whole = row in (0, len(changes) + 1)
        start = left if whole else levels[row - 1]
        width = seconds - left if whole else seconds
        colour, hatch = (QUIET_TEXT, "") if whole else _cause_colour(name)
        axes.barh(row, width, left=start, height=0.66, color=colour, hatch=hatch, edgecolor=WAITING_HATCH, linewidth=0)
        text = format_seconds(seconds) if whole else format_time_change(seconds, "−")
        end = max(start, start + width)
        axes.text(end + 0.01 * (right - left), row, text, va="center", fontsize=8, color=TEXT)
        if row <= len(changes):
            axes.plot([levels[row]] * 2, [row - 0.33, row + 1.33], color=QUIET_TEXT, linewidth=0.6)
    causes = ["all else" if name == "rest" else describe_cause(name) for name, _ in changes]
    set_up_bar_rows(axes, [base[0], *causes, other[0]])
    axes.set_xlim(left, right + 0.1 * (right - left))
    difference = other[1] - base[1]
    change = f"{format_time_change(difference, '−')} ({difference / base[1]:+.1%}) per step"
    axes.set_title(f"{change}, by cause", fontsize=10, color=TEXT, loc="left")


def _cause_colour(cause: str) -> tuple[str, str]:
    axis = cause.partition("_")[0]
    if axis in STREAMS:
        return STREAMS[axis], ""
    return COMPUTE_KINDS.get(cause, WAITING), "" if cause in COMPUTE_KINDS else "//"
