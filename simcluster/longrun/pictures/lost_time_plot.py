"""Plot of unproductive GPU time by category and by cause, and helpers for all plots of long runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.units import DAY
from simcluster.documents.argument_types import check_arguments
from simcluster.longrun.long_run import FATES, RunOutcomes, cause_names
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.show.bars import set_up_bar_rows
from simcluster.show.palette import (
    COMPUTE_KINDS,
    MEMORY,
    QUIET_TEXT,
    STREAMS,
    TEXT,
    Colour,
    parse_rgb,
    text_colour_on,
    tint_colour,
)

CHECKPOINTS = "checkpoints"
"""Group of lost time that has no cause: checkpoint stalls, writes and verifications."""

LOOKS: Mapping[str, tuple[str, Colour]] = {
    "productive": ("productive training", tint_colour(parse_rgb(COMPUTE_KINDS["forward"]), 0.62)),
    "slow": ("slowed by a device", parse_rgb(COMPUTE_KINDS["input_grad"])),
    "write": ("slowed by a write", tint_colour(parse_rgb(COMPUTE_KINDS["weight_grad"]), 0.55)),
    "checkpoint": ("checkpoint", parse_rgb(COMPUTE_KINDS["weight_grad"])),
    "verification": ("verification", parse_rgb(COMPUTE_KINDS["other"])),
    "validation": ("validation", parse_rgb(COMPUTE_KINDS["validation"])),
    "lost": ("redone work", parse_rgb(STREAMS["tp"])),
    "detection": ("detection", parse_rgb(COMPUTE_KINDS["backward"])),
    "diagnosis": ("wrong diagnosis", parse_rgb(COMPUTE_KINDS["recompute"])),
    "waiting": ("waiting for nodes", parse_rgb(COMPUTE_KINDS["optimizer"])),
    "restart": ("restart", parse_rgb(STREAMS["ep"])),
    "pause": ("pause", parse_rgb(STREAMS["dp"])),
    "maintenance": ("maintenance", parse_rgb(MEMORY["gradients"])),
}
"""Label and colour of each time category, in the order of legends."""


def draw_title(figure: Figure, text: str, size: float = 11.5) -> None:
    """Draw a left-aligned title above all axes of a figure, wrapped to the figure's width."""
    letters = int(figure.get_figwidth() * 72 / (0.58 * size))
    figure.suptitle(fill(text, letters), fontsize=size, color=TEXT, x=0.01, ha="left")


def annotate_point(axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], **look: Any) -> None:
    """Annotate a data point with small text; ``shift`` is in points."""
    look = {"fontsize": 8.5, "color": TEXT, **look}
    axes.annotate(text, at, xytext=shift, textcoords="offset points", **look)


def group_causes(ordered: Sequence[str], most: int = 8) -> dict[str, list[str]]:
    """Group ordered causes of lost time into at most ``most`` groups: the first causes alone, all others together."""
    alone = ordered if len(ordered) <= most else ordered[: most - 1]
    rest = {f"{len(ordered) - len(alone)} other causes": list(ordered[len(alone) :])} if len(ordered) > most else {}
    return {cause: [cause] for cause in alone} | rest


def time_share_table(outcomes: RunOutcomes) -> pd.DataFrame:
    """Return shares of the wall time by category (rows) and cause (columns); the table sums to 1.

    Columns are causes, ``CHECKPOINTS``, and "".
    """
    whole = float(outcomes.wall.sum())
    table = pd.DataFrame(0.0, index=list(LOOKS), columns=["", CHECKPOINTS, *cause_names(outcomes.run)])
    spent = outcomes.seconds_by_category()
    for fate in LOOKS:
        if fate in FATES:
            table.loc[fate, cause_names(outcomes.run)] = outcomes.fates[:, FATES.index(fate)].sum(axis=0) / whole
        else:
            table.loc[fate, "" if fate == "productive" else CHECKPOINTS] = float(spent[fate].sum()) / whole
    return table


def goodput_by_run_and_week(outcomes: RunOutcomes) -> Floats:
    """Return the goodput of each run in each week as an array [run, week]; nan after a run's end.

    A partial last week counts from half a day on. A step lost after the end of its week is subtracted from the next
    one.
    """
    good, lasts = outcomes.weekly_goodput()
    return np.where(lasts < min(DAY / 2, float(outcomes.wall.min())), np.nan, good)


def format_share(share: float) -> str:
    """Return a share as text with about three digits: "92.1 %", "0.31 %"."""
    return f"{100 * share:.2f} %" if share < 0.1 else f"{100 * share:.1f} %"


_SEEN = 0.005  # of unproductive time: less is not visible as a colour
_ROW = 0.36  # inches
_MANY = ((1e6, "million "), (1e3, "thousand "))


@check_arguments
def lost_time(trainings: Mapping[str, TrainingRun], title: str = "") -> Figure:
    """Draw the unproductive time of each policy: by category in one panel, by failure cause in another.

    Shares are means over the simulated runs, of the wall time (so of the GPU-time). The seven causes that take most
    over all policies have a row each, the others share one; checkpoints have no cause and a separate row.
    InputError without a policy.
    """
    if not trainings:
        raise InputError('nothing to draw: give at least one training, as in {"as planned": train(scenario)}')
    tables = {name: time_share_table(training.outcomes) for name, training in trainings.items()}
    causes = list(dict.fromkeys(cause for table in tables.values() for cause in table.columns))
    tables = {name: table.reindex(columns=causes, fill_value=0.0) for name, table in tables.items()}
    groups = _cause_groups(tables)
    rows = len(tables), len(groups) * len(tables)
    heights = [_ROW * rows[0] + 0.55, _ROW * (0.78 * rows[1] + 0.22 * len(groups)) + 0.55]
    figure = Figure(figsize=(11.5, 1.25 + sum(heights)), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=heights)
    _draw_by_category(above, trainings, tables)
    _draw_by_cause(below, tables, groups)
    seen = [
        fate
        for fate in LOOKS
        if fate != "productive" and any(table.loc[fate].sum() > _SEEN * _lost_share(table) for table in tables.values())
    ]
    patches = [Patch(facecolor=LOOKS[fate][1], label=LOOKS[fate][0]) for fate in seen]
    figure.legend(
        handles=patches, ncols=min(6, max(1, len(patches))), loc="outside lower left", frameon=False, fontsize=8.5
    )
    draw_title(figure, title or _figure_title(trainings, tables))
    return figure


def _draw_by_category(axes: Axes, trainings: Mapping[str, TrainingRun], tables: Mapping[str, pd.DataFrame]) -> None:
    most = max(_lost_share(table) for table in tables.values()) or 1e-6
    for row, (name, table) in enumerate(tables.items()):
        end = _draw_stacked_bar(axes, row, 0.66, table.sum(axis=1), least=0.05 * most)
        days = trainings[name].outcomes.wall.mean() / DAY
        hours = end * days * 24 * trainings[name].run.gpus
        unit, many = next((each for each in _MANY if hours >= each[0]), (1.0, ""))
        words = f"{format_share(end)} unproductive · {days:.3g} d · {hours / unit:.3g} {many}GPU-hours"
        axes.text(end + 0.008 * most, row, words, va="center", fontsize=8.5, color=TEXT)
    _label_stacked_bars(axes, list(tables), "by category", most)


def _draw_by_cause(axes: Axes, tables: Mapping[str, pd.DataFrame], groups: Mapping[str, list[str]]) -> None:
    most = max(float(table[causes].sum().sum()) for table in tables.values() for causes in groups.values()) or 1e-6
    names, places, at = [], [], 0.0
    for words, causes in groups.items():
        for number, (policy, table) in enumerate(tables.items()):
            end = _draw_stacked_bar(axes, at, 0.62, table[causes].sum(axis=1))
            axes.text(end + 0.008 * most, at, format_share(end), va="center", fontsize=8, color=TEXT)
            first = words if number == 0 else ""
            names.append(first if len(tables) == 1 else f"{first}   {policy}".strip())
            places.append(at)
            at += 0.78
        at += 0.22
    _label_stacked_bars(axes, names, "by cause", most, positions=places, size=8)


def _label_stacked_bars(axes: Axes, names: Sequence[str], grouping: str, most: float, **look: Any) -> None:
    set_up_bar_rows(axes, names, **look)
    axes.set_xlim(0, most * 1.6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}")
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= 1.02 * most])  # beyond are the numbers of bars
    axes.set_xlabel(f"share of the GPU-time, {grouping} (%)", fontsize=9, color=QUIET_TEXT, loc="left")


def _draw_stacked_bar(axes: Axes, row: float, height: float, shares: pd.Series[float], least: float = 1.0) -> float:
    left = 0.0
    for fate, (_, colour) in LOOKS.items():
        share = float(shares[fate])
        if fate == "productive" or share <= 0:
            continue
        axes.barh(row, share, left=left, height=height, color=colour, linewidth=0)
        if share >= least:
            text = f"{100 * share:.2g}"
            axes.text(left + share / 2, row, text, ha="center", va="center", fontsize=7.5, color=text_colour_on(colour))
        left += share
    return left


def _cause_groups(tables: Mapping[str, pd.DataFrame]) -> dict[str, list[str]]:
    known = [str(cause) for cause in next(iter(tables.values())).columns if cause]
    taken = {cause: sum(float(table[cause].sum()) for table in tables.values()) for cause in known}
    ordered = sorted((cause for cause in known if taken[cause] > 0), key=lambda cause: -taken[cause])
    groups = group_causes([cause for cause in ordered if cause != CHECKPOINTS])
    if CHECKPOINTS in ordered or not groups:
        groups[CHECKPOINTS] = [CHECKPOINTS]
    return groups


def _lost_share(table: pd.DataFrame) -> float:
    return float(table.drop(index="productive").sum().sum())


def _figure_title(trainings: Mapping[str, TrainingRun], tables: Mapping[str, pd.DataFrame]) -> str:
    kept = {name: 1 - _lost_share(table) for name, table in tables.items()}
    best = max(kept, key=lambda name: kept[name])
    losses = tables[best].drop(index="productive").sum(axis=1)
    most = str(losses.idxmax())
    rest = f"most of the rest: {LOOKS[most][0]}, {format_share(float(losses[most]))}"
    if len(kept) == 1:
        return f"{trainings[best].scenario.name}: {format_share(kept[best])} of the GPU-time was productive; {rest}"
    worst = min(kept, key=lambda name: kept[name])
    return f"{best}: {format_share(kept[best])} productive, the most; {worst}: {format_share(kept[worst])}, the least"
