"""The roofline of a step: each kernel under the roofs of compute and memory, each communication under the network's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from simcluster.base.units import format_bytes_per_second, format_seconds
from simcluster.results.result import Result
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, colour_of
from simcluster.studies.kernels import PHASES
from simcluster.studies.roofline import KernelPoint, Roofline
from simcluster.studies.roofline import roofline as limits

_LABELLED = 6
_RING = "ring over all machines"
_LEAST = 1e-3  # of the step, for a communication to be drawn
_NAMES = {"input_grad": "input gradient", "weight_grad": "weight gradient"}
_MARKERS = {"forward": "o", "recompute": "D", "input_grad": "s", "weight_grad": "^"}


def roofline(result: Result, *, title: str | None = None) -> Figure:
    """Left: FLOP/s of every kernel against its FLOP for each byte of device memory; an area is its time in the step.

    Kernels without products stand at the left edge, as far below the roof as they are below memory's bandwidth.  Right:
    FLOP/s of a GPU if a communication took all the time, against the step's FLOP for each of its bytes, under the roofs
    of the links; communication of less than a thousandth of the step is left out.
    """
    found = limits(result)
    figure = Figure(figsize=(13.0, 6.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.3, 1.0])
    slopes = [_kernels(left, found), _wires(right, found)]
    figure.suptitle(title or f"{result.scenario.name}: roofline of a step", fontsize=11, color=TEXT)
    figure.draw_without_rendering()  # the slopes' angles are known when the layout is
    for axes, rates in zip((left, right), slopes, strict=True):
        _name_slopes(axes, rates, found.peak)
    return figure


def _kernels(axes: Axes, found: Roofline) -> dict[str, float]:
    products = [each for each in found.kernels if each.flops > 0 and each.bytes > 0]
    others = [each for each in found.kernels if not each.flops and each.bytes > 0]
    intensities = [each.flops / each.bytes for each in products] + [found.peak / found.memory]
    low, high = min(intensities) / 8, max(intensities) * 4
    whole = sum(each.step_seconds for each in found.kernels) or 1.0
    axes.plot([low, found.peak / found.memory, high], [low * found.memory, found.peak, found.peak], color=TEXT,
              linewidth=1.6)  # fmt: skip
    edge = low * 1.4
    for phase in PHASES:
        mine = [each for each in products if each.phase == phase]
        memory = [each for each in others if each.phase == phase]
        x = [each.flops / each.bytes for each in mine] + [edge] * len(memory)
        y = [each.flops / each.seconds for each in mine] + [edge * each.bytes / each.seconds for each in memory]
        area = [20 + 2500 * each.step_seconds / whole for each in (*mine, *memory)]
        axes.scatter(x, y, s=area, marker=_MARKERS[phase], color=COMPUTE_KINDS[phase], alpha=0.8, edgecolor="white",
                     linewidth=0.7, zorder=3)  # fmt: skip
    _frame(axes, (low, high), (0.25 * low * found.memory, 2.2 * found.peak))
    _label_kernels(axes, products[:_LABELLED], whole)
    if others:
        text = "  without products: as far\n  below the roof as below memory's rate"
        axes.text(edge, 0.28 * low * found.memory, text, fontsize=7.5, color=QUIET_TEXT, va="bottom")
    axes.set_xlabel("FLOP for each byte of device memory", fontsize=9, color=TEXT)
    axes.set_ylabel("FLOP/s while it runs", fontsize=9, color=TEXT)
    axes.set_title("kernels; area: time in the step", fontsize=9.5, color=TEXT, loc="left")
    phases = [phase for phase in PHASES if any(each.phase == phase for each in found.kernels)]
    handles = [Line2D([], [], marker=_MARKERS[phase], linestyle="", markersize=7, color=COMPUTE_KINDS[phase],
                      label=_NAMES.get(phase, phase)) for phase in phases]  # fmt: skip
    axes.legend(handles=handles, fontsize=8, frameon=False, loc="lower right")
    return {"device memory": found.memory}


def _label_kernels(axes: Axes, points: Sequence[KernelPoint], whole: float) -> None:
    """Names of the largest points below them: those that lie together in one list, the rightmost list highest."""
    groups: list[list[KernelPoint]] = []
    for each in sorted(points, key=lambda each: -each.flops / each.bytes):
        if groups and _together(groups[-1][0], each):
            groups[-1].append(each)
        else:
            groups.append([each])
    below = 26
    for group in groups:
        lines = [
            f"{each.name.removesuffix(f'_{each.phase}').replace('_', ' ')}, {_NAMES.get(each.phase, each.phase)}: "
            f"{each.step_seconds / whole:.0%}"
            for each in group
        ]
        lowest = min(group, key=lambda each: each.flops / each.seconds)
        axes.annotate(
            "\n".join(lines), (lowest.flops / lowest.bytes, lowest.flops / lowest.seconds), xytext=(0, -below),
            textcoords="offset points", ha="center", va="top", fontsize=8, color=TEXT,
            arrowprops={"arrowstyle": "-", "color": QUIET_TEXT, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 6},
        )  # fmt: skip
        below += 12 + 11 * len(lines)


def _together(one: KernelPoint, other: KernelPoint) -> bool:
    """Do two points lie so near to each other that their names would?"""
    across = one.flops / one.bytes * other.bytes / other.flops
    upwards = one.flops / one.seconds * other.seconds / other.flops
    return max(across, 1 / across) < 1.6 and max(upwards, 1 / upwards) < 1.6


def _wires(axes: Axes, found: Roofline) -> dict[str, float]:
    reached = found.flops / found.step_seconds
    rates = {name: rate for name, rate in (("inside a machine", found.inside), ("out of it", found.outside)) if rate}
    if all(abs(found.ring / rate - 1) > 0.05 for rate in rates.values()) and found.ring:
        rates[_RING] = found.ring
    shown = [each for each in found.wires if each.seconds >= _LEAST * found.step_seconds]
    intensities = [found.flops / each.bytes for each in shown] + [found.peak / rate for rate in rates.values()]
    low, high = min([*intensities, 1e4]) / 8, max([*intensities, 1e4]) * 30
    heights = [reached, found.peak, *(found.flops / each.seconds for each in shown)]
    for name, rate in rates.items():
        style = ":" if name == _RING else "-"
        axes.plot([low, high], [low * rate, high * rate], style, color=TEXT, linewidth=1.6)
    axes.axhline(found.peak, color=TEXT, linewidth=1.6)
    axes.axhline(reached, color=QUIET_TEXT, linewidth=1.0, linestyle="--")
    for number, each in enumerate(shown):
        place = found.flops / each.bytes, found.flops / each.seconds
        axes.plot(*([value] for value in place), "o", markersize=8, color=colour_of(each.axis, each.kind),
                  markeredgecolor=STREAMS.get(each.axis, TEXT), zorder=3)  # fmt: skip
        share = f"{each.seconds / found.step_seconds:.1%} of the step"
        text = f"{each.axis} {each.kind.replace('_', '-')}: {format_seconds(each.seconds)}, {share}"
        axes.annotate(
            text, place, xytext=(10, -4 - 9 * (number % 2)), textcoords="offset points", fontsize=8, color=TEXT
        )
    _frame(axes, (low, high), (0.3 * min(heights), 6 * max(heights)))
    axes.annotate(f"the step as it is: {_flops(reached)}", (high / 1.2, reached), xytext=(0, -10), ha="right",
                  textcoords="offset points", fontsize=8, color=QUIET_TEXT)  # fmt: skip
    axes.set_xlabel("FLOP of the step for each byte on the wire", fontsize=9, color=TEXT)
    axes.set_ylabel("FLOP/s if only this took time", fontsize=9, color=TEXT)
    axes.set_title("communication: what comes down to the step's line limits it", fontsize=9.5, color=TEXT, loc="left")
    if not shown:
        axes.text(0.5, 0.4, "no communication to speak of", transform=axes.transAxes, ha="center", color=QUIET_TEXT)
    return rates


def _name_slopes(axes: Axes, rates: Mapping[str, float], peak: float) -> None:
    """What the flat roof and the slopes are, along them; a slope's name is where it is inside the picture."""
    (low, high), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    axes.annotate(f"peak {_flops(peak)}", (high / 1.1, peak), xytext=(0, 4), textcoords="offset points", ha="right",
                  fontsize=8.5, color=TEXT)  # fmt: skip
    for name, rate in rates.items():
        end = peak / rate if len(rates) == 1 and name == "device memory" else min(high, top / rate)
        along = 0.3 if name == _RING else 0.55
        x = max(low, bottom / rate) ** (1 - along) * end**along
        (x0, y0), (x1, y1) = axes.transData.transform([(x, x * rate), (10 * x, 10 * x * rate)])
        beside, over = ((4, -5), "top") if name == _RING else ((-4, 5), "baseline")
        axes.annotate(f"{name} {format_bytes_per_second(rate)}", (x, x * rate), xytext=beside, ha="center", va=over,
                      textcoords="offset points", fontsize=8.5, color=TEXT, rotation_mode="anchor",
                      rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)))  # fmt: skip


def _frame(axes: Axes, across: tuple[float, float], upwards: tuple[float, float]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*across)
    axes.set_ylim(*upwards)
    axes.yaxis.set_major_formatter(lambda rate, _: _flops(rate))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=8)
    axes.grid(which="major", color="#ECEEF0", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _flops(rate: float) -> str:
    for scale, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if rate >= scale * 0.9995:
            return f"{rate / scale:.3g} {unit}FLOP/s"
    return f"{rate:.3g} FLOP/s"
