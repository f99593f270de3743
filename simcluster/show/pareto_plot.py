"""Layouts in the plane of memory and time: those that were played, and the front of those that nothing beats."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simcluster.base.units import format_seconds, format_seconds_round
from simcluster.documents.argument_types import checked
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, WAITING
from simcluster.show.plan_answer import name_of
from simcluster.studies.search.plan import Found, Ranked

_MOST_NAMED = 9
_MARGIN = 0.08
_NEAR = 0.035  # of the axis: numbers of points so near would meet
_FAR = 1.6  # times the most that any layout holds: where less may be used, the picture goes up to it


@checked
def pareto(found: Found, title: str = "") -> Figure:
    """Step time against the bytes of the fullest GPU: what was played as dots, the front as steps, its points numbered
    and named at the side."""
    front = _front(found)
    figure = Figure(figsize=(11.0, 5.2), layout="constrained")
    axes, side = figure.subplots(1, 2, width_ratios=(2.0, 1.05))
    every = list(dict.fromkeys((each.memory, each.step_time) for each in (*found.best, *found.others, *found.front)))
    axes.scatter([size / 1e9 for size, _ in every], [time for _, time in every], s=16, color=WAITING, label="played")
    if found.tight:
        tight = [each.memory / 1e9 for each in found.tight], [each.step_time for each in found.tight]
        axes.scatter(*tight, s=26, facecolor="none", edgecolor=QUIET_TEXT, label="too little left free")
    limit = found.capacity / 1e9
    xs, ys = [each.memory / 1e9 for each in front], [each.step_time for each in front]
    most = max(size for size, _ in every) / 1e9
    near = limit <= _FAR * most
    axes.step(
        [*xs, limit if near else most + _MARGIN * (most - xs[0])],
        [*ys, ys[-1]],
        where="post",
        color=STREAMS["dp"],
        linewidth=1.4,
        label="front",
    )
    axes.scatter(xs, ys, s=30, color=STREAMS["dp"], zorder=3)
    axes.scatter(xs[-1:], ys[-1:], s=64, color=COMPUTE_KINDS["forward"], edgecolor=TEXT, zorder=4, label="winner")
    if near:
        axes.axvline(limit, color=QUIET_TEXT, linewidth=1.0, linestyle=(0, (4, 3)))
    axes.margins(x=_MARGIN, y=0.16)
    axes.text(
        limit if near else 1.0, 1.0, f" {limit:.3g} GB may be used {'' if near else '→'} ", ha="right", va="top",
        fontsize=8.5, color=QUIET_TEXT, transform=axes.get_xaxis_transform() if near else axes.transAxes,
    )  # fmt: skip
    _name(axes, side, front, (xs, ys))
    axes.set_xlabel("memory of the fullest GPU, GB", fontsize=9.5, color=QUIET_TEXT)
    axes.set_ylabel("step time", fontsize=9.5, color=QUIET_TEXT)
    axes.yaxis.set_major_formatter(lambda value, place: format_seconds_round(value))
    axes.spines[["top", "right"]].set_visible(False)
    side.legend(*axes.get_legend_handles_labels(), frameon=False, fontsize=8.5, loc="lower left")
    if title:
        axes.set_title(f"{title}, step time against memory", fontsize=10.5, color=TEXT, loc="left")
    return figure


def _front(found: Found) -> list[Ranked]:
    """The layouts that were played of which no other is as fast in as little memory, least memory first."""
    kept: list[Ranked] = []
    for each in sorted((*found.best, *found.others, *found.front), key=lambda one: (one.step_time, one.memory)):
        if not kept or each.memory < kept[-1].memory:
            kept.append(each)
    return kept[::-1]


def _name(axes: Axes, side: Axes, front: Sequence[Ranked], places: tuple[Sequence[float], Sequence[float]]) -> None:
    """Numbers beside some points of the front, evenly chosen, and what they are in a list; the winner is the last."""
    side.axis("off")
    every = max(1, -(-len(front) // _MOST_NAMED))
    left, right = axes.get_xlim()
    before, above = math.inf, False
    for line, place in enumerate(range(len(front) - 1, -1, -every)):
        at = places[0][place], places[1][place]
        above = not above or before - at[0] > _NEAR * (right - left)  # of two that are near one is below
        before = at[0]
        axes.annotate(
            str(line + 1), at, xytext=(5, 5 if above else -13), textcoords="offset points", fontsize=8.5, color=TEXT,
            fontweight="bold",
        )  # fmt: skip
        parts = name_of(front[place]).split(", ")
        head = f"{line + 1}   {format_seconds(at[1])}, {at[0]:.{1 if at[0] >= 10 else 2}f} GB: {', '.join(parts[:4])}"
        text = f"{head}\n      {', '.join(parts[4:])}"
        side.text(
            0.0, 1.0 - line / _MOST_NAMED, text, transform=side.transAxes, fontsize=8, color=TEXT, va="top",
            fontweight="bold" if line == 0 else "normal",
        )  # fmt: skip
