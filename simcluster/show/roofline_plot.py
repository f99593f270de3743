"""Roofline plot of a step: kernels below the compute and memory roofs, communication below the network roofs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import NullFormatter

from simcluster.base.units import format_bytes_per_second, format_seconds
from simcluster.documents.argument_types import check_arguments
from simcluster.results.result import Result
from simcluster.show.bars import label_axes
from simcluster.show.palette import (
    COMPUTE_KINDS,
    LANE_SURROUND,
    QUIET_TEXT,
    STREAMS,
    TEXT,
    Colour,
    op_colour,
    parse_rgb,
    tint_colour,
)
from simcluster.studies.kernels import PHASES
from simcluster.studies.roofline import KernelPoint, Roofline
from simcluster.studies.roofline import compute_roofline as limits

_LABELLED = 6
_RING = "ring over all nodes"
_LEAST = 1e-3  # of the step, for a communication to be drawn
_NAMES = {"input_grad": "input gradient", "weight_grad": "weight gradient"}
_MARKERS = {"forward": "o", "recompute": "D", "input_grad": "s", "weight_grad": "^"}


@check_arguments
def roofline(result: Result, *, title: str | None = None) -> Figure:
    """Draw two rooflines of a step: kernels under compute and memory roofs, communication under link roofs.

    Left: FLOP/s of every kernel against its FLOP per byte of device memory; an area is its time in the step. Kernels
    without matmuls are at the left edge, placed by their share of memory bandwidth. Right: FLOP/s per GPU if a
    communication took all the time, against the step's FLOP per byte of it, under the roofs of the links; communication
    below a thousandth of the step is omitted.
    """
    found = limits(result)
    figure = Figure(figsize=(13.0, 6.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.3, 1.0])
    slopes = [_draw_kernels(left, found), _draw_communication(right, found)]
    figure.suptitle(title or f"{result.scenario.title}: roofline of a step", fontsize=11, color=TEXT)
    for axes, rates in zip((left, right), slopes, strict=True):
        _label_slopes(axes, rates, found.peak_flops)
    return figure


def _draw_kernels(axes: Axes, found: Roofline) -> dict[str, float]:
    products = [each for each in found.kernels if each.flops > 0 and each.bytes > 0]
    others = [each for each in found.kernels if not each.flops and each.bytes > 0]
    intensities = [each.flops / each.bytes for each in products] + [found.peak_flops / found.memory_bandwidth]
    low, high = min(intensities) / 8, max(intensities) * 4
    whole = sum(each.step_seconds for each in found.kernels) or 1.0
    peak, bandwidth = found.peak_flops, found.memory_bandwidth
    axes.plot([low, peak / bandwidth, high], [low * bandwidth, peak, peak], color=TEXT, linewidth=1.6)
    edge = low * 1.4
    for phase in PHASES:
        mine = [each for each in products if each.phase == phase]
        memory = [each for each in others if each.phase == phase]
        x = [each.flops / each.bytes for each in mine] + [edge] * len(memory)
        y = [each.flops / each.seconds for each in mine] + [edge * each.bytes / each.seconds for each in memory]
        area = [20 + 2500 * each.step_seconds / whole for each in (*mine, *memory)]
        fill, edge_colour = _marker_style(phase)
        axes.scatter(x, y, s=area, marker=_MARKERS[phase], facecolor=fill, edgecolor=edge_colour, linewidth=1.3,
                     zorder=3)  # fmt: skip
    _set_log_axes(axes, (low, high), (0.25 * low * found.memory_bandwidth, 2.2 * found.peak_flops))
    _label_kernels(axes, products[:_LABELLED], whole)
    if others:
        text = "  non-matmul kernels: placed by\n  the memory bandwidth that they use"
        axes.text(edge, 0.28 * low * found.memory_bandwidth, text, fontsize=7.5, color=QUIET_TEXT, va="bottom")
    title = "kernels (area: time in the step)"
    label_axes(axes, "FLOP per byte of device memory", "FLOP/s of the kernel", title, grid=LANE_SURROUND)
    phases = [phase for phase in PHASES if any(each.phase == phase for each in found.kernels)]
    handles = [Line2D([], [], marker=_MARKERS[one], linestyle="", markersize=7, markerfacecolor=_marker_style(one)[0],
                      markeredgecolor=_marker_style(one)[1], label=_NAMES.get(one, one)) for one in phases]  # fmt: skip
    axes.legend(handles=handles, fontsize=8, frameon=False, loc="lower right")
    return {"device memory": found.memory_bandwidth}


def _marker_style(phase: str) -> tuple[tuple[Colour, float], Colour]:
    colour = parse_rgb(COMPUTE_KINDS[phase])
    return (colour, 0.35), tint_colour(colour, -0.3)


def _label_kernels(axes: Axes, points: Sequence[KernelPoint], step_seconds: float) -> None:
    groups: list[list[KernelPoint]] = []
    for each in sorted(points, key=lambda each: -each.flops / each.bytes):
        if groups and _labels_overlap(groups[-1][0], each):
            groups[-1].append(each)
        else:
            groups.append([each])
    below = 26
    for group in groups:
        lines = [
            f"{each.name.removesuffix(f'_{each.phase}').replace('_', ' ')}, {_NAMES.get(each.phase, each.phase)}: "
            f"{each.step_seconds / step_seconds:.0%}"
            for each in group
        ]
        lowest = min(group, key=lambda each: each.flops / each.seconds)
        axes.annotate(
            "\n".join(lines), (lowest.flops / lowest.bytes, lowest.flops / lowest.seconds), xytext=(0, -below),
            textcoords="offset points", ha="center", va="top", fontsize=8, color=TEXT,
            arrowprops={"arrowstyle": "-", "color": QUIET_TEXT, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 6},
        )  # fmt: skip
        below += 12 + 11 * len(lines)


def _labels_overlap(one: KernelPoint, other: KernelPoint) -> bool:
    across = one.flops / one.bytes * other.bytes / other.flops
    upwards = one.flops / one.seconds * other.seconds / other.flops
    return max(across, 1 / across) < 1.6 and max(upwards, 1 / upwards) < 1.6


def _draw_communication(axes: Axes, found: Roofline) -> dict[str, float]:
    reached = found.flops / found.step_seconds
    named = {"within a node": found.bandwidth_inside_node, "between nodes": found.bandwidth_out_of_node}
    rates = {name: rate for name, rate in named.items() if rate}
    if all(abs(found.ring_bandwidth / rate - 1) > 0.05 for rate in rates.values()) and found.ring_bandwidth:
        rates[_RING] = found.ring_bandwidth
    shown = [each for each in found.communication if each.seconds >= _LEAST * found.step_seconds]
    intensities = [found.flops / each.bytes for each in shown] + [found.peak_flops / rate for rate in rates.values()]
    low, high = min([*intensities, 1e4]) / 8, max([*intensities, 1e4]) * 30
    heights = [reached, found.peak_flops, *(found.flops / each.seconds for each in shown)]
    for name, rate in rates.items():
        ring = name == _RING  # so near to another that it has no room for a name
        (line,) = axes.plot([low, high], [low * rate, high * rate], ":" if ring else "-", color=TEXT, linewidth=1.6)
        line.set_label(f"{name} {format_bytes_per_second(rate)}" if ring else "_")
    axes.axhline(found.peak_flops, color=TEXT, linewidth=1.6)
    axes.axhline(reached, color=QUIET_TEXT, linewidth=1.0, linestyle="--")
    for each in shown:
        name = f"{each.axis} {each.kind.replace('_', '-')}"
        share = f"{each.seconds / found.step_seconds:.1%} of the step"
        axes.plot([found.flops / each.bytes], [found.flops / each.seconds], "o", markersize=8,
                  color=op_colour(each.axis, each.kind), markeredgecolor=STREAMS.get(each.axis, TEXT), zorder=3,
                  label=f"{name}: {format_seconds(each.seconds)}, {share}")  # fmt: skip
    if shown or _RING in rates:  # above the slopes nothing lies
        axes.legend(loc="upper left", fontsize=8, edgecolor="none", framealpha=0.85, handletextpad=0.2)
    room = 6.0 * 1.7 ** (len(shown) + (_RING in rates))  # for a line of the legend each
    _set_log_axes(axes, (low, high), (0.3 * min(heights), room * max(heights)))
    axes.annotate(f"this step: {_rate_text(reached)}", (high / 1.2, reached), xytext=(0, -10), ha="right",
                  textcoords="offset points", fontsize=8, color=QUIET_TEXT)  # fmt: skip
    title, x = "communication: dots near the dashed line limit the step", "FLOP of the step per byte sent"
    label_axes(axes, x, "FLOP/s if this communication alone took time", title, grid=LANE_SURROUND)
    if not shown:
        text = "no communication above 0.1 % of the step"
        axes.text(0.5, 0.4, text, transform=axes.transAxes, ha="center", color=QUIET_TEXT)
    return {name: rate for name, rate in rates.items() if name != _RING}


class _SlopeLabel(Annotation):
    def get_rotation(self) -> float:
        x, y = self.xy
        transform = self.axes.transData if self.axes else None
        if transform is None:
            return 0.0
        (x0, y0), (x1, y1) = transform.transform([(x, y), (10 * x, 10 * y)])
        return math.degrees(math.atan2(y1 - y0, x1 - x0))


def _label_slopes(axes: Axes, rates: Mapping[str, float], peak: float) -> None:
    (low, high), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    axes.annotate(f"peak {_rate_text(peak)}", (high / 1.1, peak), xytext=(0, 4), textcoords="offset points", ha="right",
                  fontsize=8.5, color=TEXT)  # fmt: skip
    points = [line for line in axes.lines if line.get_marker() == "o"]
    taken = [(float(x), float(y)) for line in points for x, y in np.asarray(line.get_xydata())]
    others = (np.asarray(line.get_ydata()) for line in axes.lines if line not in points)
    flat = [float(heights[0]) for heights in others if np.ptp(heights) == 0]
    for name, rate in rates.items():
        ridge = len(rates) == 1 and name == "device memory"
        first, end = max(low, bottom / rate), peak / rate if ridge else min(high, top / rate)
        places = [first ** (1 - along) * end**along for along in (0.55, 0.45, 0.35, 0.25, 0.65)]
        meets = [(line / rate, line) for line in flat]
        x = max(places, key=lambda x: min((_log_distance((x, x * rate), one) for one in (*taken, *meets)), default=0.0))
        taken.append((x, x * rate))
        axes.add_artist(
            _SlopeLabel(f"{name} {format_bytes_per_second(rate)}", (x, x * rate), xytext=(-4, 5), ha="center",
                       va="baseline", textcoords="offset points", fontsize=8.5, color=TEXT, rotation_mode="anchor")
        )  # fmt: skip


def _log_distance(one: tuple[float, float], other: tuple[float, float]) -> float:
    return min(math.hypot(math.log10(one[0] / other[0]), math.log10(one[1] / other[1])), 1.6)


def _set_log_axes(axes: Axes, across: tuple[float, float], upwards: tuple[float, float]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*across)
    axes.set_ylim(*upwards)
    axes.yaxis.set_major_formatter(lambda rate, _: _rate_text(rate))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _rate_text(rate: float) -> str:
    for scale, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if rate >= scale * 0.9995:
            return f"{rate / scale:.3g} {unit}FLOP/s"
    return f"{rate:.3g} FLOP/s"
