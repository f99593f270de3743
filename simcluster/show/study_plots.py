"""Plots of many simulations: a layout search, step times of replicas, and scaling curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds, format_seconds_short
from simcluster.documents.argument_types import check_arguments
from simcluster.results.distribution import Distribution
from simcluster.show.bars import choose_time_unit, label_axes
from simcluster.show.palette import COMPUTE_KINDS, LANE_SURROUND, QUIET_TEXT, STREAMS, TEXT, WAITING, parse_rgb
from simcluster.show.plan_answer import ranked_layout_name
from simcluster.studies.search.plan import PlanResult, RankedLayout

_MOST_NAMED = 9
_MARGIN = 0.08
_NEAR = 0.035  # of the axis: numbers of points so near would meet
_FAR = 1.6  # times the most that any layout holds: where less may be used, the picture goes up to it


@check_arguments
def pareto(found: PlanResult, title: str = "") -> Figure:
    """Plot step time against the fullest GPU's memory, with a dot per layout and the Pareto front as a line.

    Points of the front are numbered, and named at the side.
    """
    front = _pareto_front(found)
    figure = Figure(figsize=(11.0, 5.2), layout="constrained")
    axes, side = figure.subplots(1, 2, width_ratios=(2.0, 1.05))
    every = [*dict.fromkeys((one.memory, one.step_time) for one in (*found.best, *found.other_layouts, *found.front))]
    axes.scatter([size / 1e9 for size, _ in every], [time for _, time in every], s=16, color=WAITING, label="simulated")
    if found.tight:
        tight = [each.memory / 1e9 for each in found.tight], [each.step_time for each in found.tight]
        axes.scatter(*tight, s=26, facecolor="none", edgecolor=QUIET_TEXT, label="too little memory left free")
    limit = found.capacity / 1e9
    xs, ys = [each.memory / 1e9 for each in front], [each.step_time for each in front]
    most = max(size for size, _ in every) / 1e9
    near = limit <= _FAR * most
    end = limit if near else most + _MARGIN * (most - xs[0])
    axes.step([*xs, end], [*ys, ys[-1]], where="post", color=STREAMS["dp"], linewidth=1.4, label="front")
    axes.scatter(xs, ys, s=30, color=STREAMS["dp"], zorder=3)
    axes.scatter(xs[-1:], ys[-1:], s=64, color=COMPUTE_KINDS["forward"], edgecolor=TEXT, zorder=4, label="winner")
    if near:
        axes.axvline(limit, color=QUIET_TEXT, linewidth=1.0, linestyle=(0, (4, 3)))
    axes.margins(x=_MARGIN, y=0.16)
    axes.text(
        limit if near else 1.0, 1.0, f" usable memory {limit:.3g} GB {'' if near else '→'} ", ha="right", va="top",
        fontsize=8.5, color=QUIET_TEXT, transform=axes.get_xaxis_transform() if near else axes.transAxes,
    )  # fmt: skip
    _label_pareto_front(axes, side, front, [*zip(xs, ys, strict=True)])
    axes.set_xlabel("memory of the fullest GPU, GB", fontsize=9.5, color=QUIET_TEXT)
    axes.set_ylabel("step time", fontsize=9.5, color=QUIET_TEXT)
    axes.yaxis.set_major_formatter(lambda value, place: format_seconds_short(value))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, fontsize=8.5, loc="outside lower left", ncols=4)
    if title:
        heading = f"{title}: step time against memory of {len(every)} simulated layouts"
        figure.suptitle(heading, fontsize=10.5, color=TEXT, x=0.01, ha="left")
    return figure


def _pareto_front(found: PlanResult) -> list[RankedLayout]:
    kept: list[RankedLayout] = []
    for each in sorted((*found.best, *found.other_layouts, *found.front), key=lambda one: (one.step_time, one.memory)):
        if not kept or each.memory < kept[-1].memory:
            kept.append(each)
    return kept[::-1]


def _label_pareto_front(axes: Axes, side: Axes, front: list[RankedLayout], places: list[tuple[float, float]]) -> None:
    side.axis("off")
    every = max(1, -(-len(front) // _MOST_NAMED))
    left, right = axes.get_xlim()
    before, above = math.inf, False
    for line, place in enumerate(range(len(front) - 1, -1, -every)):
        at = places[place]
        above = not above or before - at[0] > _NEAR * (right - left)  # of two that are near one is below
        before = at[0]
        axes.annotate(
            str(line + 1), at, xytext=(5, 5 if above else -13), textcoords="offset points", fontsize=8.5, color=TEXT,
            fontweight="bold",
        )  # fmt: skip
        parts = ranked_layout_name(front[place]).split(", ")
        head = f"{line + 1}   {format_seconds(at[1])}, {at[0]:.{1 if at[0] >= 10 else 2}f} GB: {', '.join(parts[:4])}"
        text = f"{head}\n      {', '.join(parts[4:])}"
        side.text(
            0.0, 1.0 - line / _MOST_NAMED, text, transform=side.transAxes, fontsize=8, color=TEXT, va="top",
            fontweight="bold" if line == 0 else "normal",
        )  # fmt: skip


@check_arguments
def replicas(distribution: Distribution, *, title: str = "step time") -> Figure:
    """Draw a histogram of replicas' step times with mean, 95 % interval, p5, p95, and the time without randomness."""
    times = distribution.step_times
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots()
    bins = int(np.clip(np.sqrt(len(times)) * 1.5, 5, 60))
    axes.hist(times, bins=bins, color=parse_rgb(STREAMS["dp"]), alpha=0.75)
    low, high = distribution.interval
    mean, colour = distribution.mean, parse_rgb(STREAMS["tp"])
    axes.axvspan(low, high, color=colour, alpha=0.25, linewidth=0)
    axes.axvline(mean, color=colour, linewidth=1.8, label=f"mean {mean:.6g} s, its 95 % interval shaded")
    marks = {"p5": distribution.quantile(0.05), "p95": distribution.quantile(0.95)}
    for name, value in marks.items():
        axes.axvline(value, color=QUIET_TEXT, linewidth=1.0, linestyle=":", label=f"{name} {value:.6g} s")
    spread = float(times.max() - times.min())
    if float(times.min()) - 2 * spread <= distribution.planned <= float(times.max()) + 2 * spread:
        axes.axvline(distribution.planned, color=TEXT, linewidth=1.2, linestyle="--",
                     label=f"without chance {distribution.planned:.6g} s")  # fmt: skip
    else:
        axes.plot([], [], " ", label=f"without chance {distribution.planned:.6g} s (off the scale)")
    axes.legend(fontsize=8, frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    label_axes(axes, "step time (s)", f"number of replicas (of {len(times):,})")
    figure.suptitle(title, fontsize=11, color=TEXT)
    return figure


_NEEDED = ("gpus", "step_time_s", "tokens_per_s_per_gpu")
_LOOKS = (
    (COMPUTE_KINDS["forward"], "o"),
    (STREAMS["tp"], "s"),
    (COMPUTE_KINDS["weight_grad"], "^"),
    (STREAMS["dp"], "D"),
    (COMPUTE_KINDS["backward"], "v"),
    (STREAMS["ep"], "*"),
)
_SAME = 1e-3  # of the tokens of a step: rounding of a table


@check_arguments
def scaling(table: pd.DataFrame, *, by: str | None = None, title: str = "scaling") -> Figure:
    """Plot step time and throughput per GPU over the number of GPUs, with a line per value of the column ``by``.

    The dashed line is ideal: the first row's throughput per GPU at every size. Strong scaling (constant tokens per
    step) or weak scaling (constant tokens per step and GPU) is detected from the rows and named.
    """
    rows = _sorted_rows(table, by)
    series = [(str(name), part) for name, part in rows.groupby(by, sort=False)] if by else [("", rows)]
    if len(series) > len(_LOOKS):
        raise InputError(
            f"{by} has {len(series)} values, but a plot shows at most {len(_LOOKS)} lines; filter the table"
        )
    short = [f"the rows of {name}" if name else "the rows" for name, part in series if part["gpus"].nunique() < 2]
    if short:
        raise InputError(f"{short[0]} all have the same number of GPUs; a scaling curve needs two or more numbers")
    figure = Figure(figsize=(11.5, 4.8), layout="constrained")
    times, rates = figure.subplots(1, 2)
    for number, ((name, part), (colour, marker)) in enumerate(zip(series, _LOOKS, strict=False)):
        _draw_scaling_line(times, rates, part, name, colour, marker, above=number == 0 and len(series) > 1)
    _set_up_axes(times, rows, "step time", _scaling_kind(series))
    _set_up_axes(rates, rows, "tokens/s/GPU", "throughput per GPU; labels: percent of ideal")
    rates.set_ylim(0, 1.18 * float(rows["tokens_per_s_per_gpu"].max()))
    times.plot([], [], "--", color=QUIET_TEXT, linewidth=1.0, label="ideal")
    times.legend(fontsize=8.5, frameon=False, title=by, title_fontsize=8.5)
    figure.suptitle(title, fontsize=11, color=TEXT)
    return figure


def _sorted_rows(table: pd.DataFrame, by: str | None) -> pd.DataFrame:
    missing = [name for name in (*_NEEDED, *([by] if by else [])) if name not in table.columns]
    if missing:
        raise InputError(
            f"the table has no column {missing[0]!r}; give a table of compare or sweep, which has {', '.join(_NEEDED)}"
        )
    rows = table.dropna(subset=list(_NEEDED)).sort_values(["gpus", "step_time_s"], kind="stable")
    if rows.empty:
        raise InputError("the table has no row with a result; give a table with at least one simulated variant")
    return rows.drop_duplicates([*([by] if by else []), "gpus"])


def _tokens_per_step(part: pd.DataFrame) -> pd.Series:
    return part["tokens_per_s_per_gpu"] * part["step_time_s"] * part["gpus"]


def _scaling_kind(series: Sequence[tuple[str, pd.DataFrame]]) -> str:
    kinds = set()
    for _, part in series:
        tokens = _tokens_per_step(part)
        strong, weak = (float(each.max() / each.min()) - 1 < _SAME for each in (tokens, tokens / part["gpus"]))
        kinds.add("strong scaling: constant batch" if strong else "weak scaling: constant batch per GPU" if weak
                  else "batch and GPUs change")  # fmt: skip
    return kinds.pop() if len(kinds) == 1 else "batch and GPUs change"


def _draw_scaling_line(
    times: Axes, rates: Axes, part: pd.DataFrame, name: str, colour: str, marker: str, *, above: bool
) -> None:
    gpus, rate = part["gpus"].tolist(), part["tokens_per_s_per_gpu"].tolist()
    ideal = (_tokens_per_step(part) / (part["gpus"] * rate[0])).tolist()
    for axes, values, best in ((times, part["step_time_s"].tolist(), ideal), (rates, rate, [rate[0]] * len(rate))):
        axes.plot(gpus, best, "--", color=colour, linewidth=1.0, alpha=0.7)
        axes.plot(gpus, values, color=colour, marker=marker, linewidth=1.6, markersize=6, label=name or "simulated")
    for size, value in list(zip(gpus, rate, strict=True))[1:]:
        rates.annotate(
            f"{value / rate[0]:.0%}", (size, value), xytext=(0, 8 if above else -14), textcoords="offset points",
            ha="center", fontsize=8, color=colour,
        )  # fmt: skip


def _set_up_axes(axes: Axes, rows: pd.DataFrame, label: str, title: str) -> None:
    axes.set_xscale("log", base=2)
    sizes = sorted(rows["gpus"].unique().tolist())
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    if label == "step time":
        shortest, longest = float(rows["step_time_s"].min()), float(rows["step_time_s"].max())
        unit, scale = choose_time_unit(longest)
        if longest > 2 * shortest:
            axes.set_yscale("log", base=2)
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0, 1.25 * longest)
        axes.yaxis.set_major_formatter(lambda seconds, _: f"{seconds / scale:.4g} {unit}")
    else:
        axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:,.0f}")
    label_axes(axes, "GPUs", label, title, tick_size=8.5, grid=LANE_SURROUND)
