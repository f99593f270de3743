"""Where the GPU-time of runs went: what was not kept, by fate and by cause, for one policy or several side by side."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simcluster.base.errors import InputError
from simcluster.base.units import DAY
from simcluster.documents.argument_types import checked
from simcluster.longrun.pictures.run_looks import CHECKPOINTS, LOOKS, PlayedRun, percent, shares_of
from simcluster.show.bars import bar_rows
from simcluster.show.palette import QUIET_TEXT, TEXT, text_on

MOST_CAUSES = 8
_SEEN = 0.005  # of what is not productive: less is no colour to look for
_ROW = 0.36  # inches


@checked
def fates(trainings: Mapping[str, PlayedRun], title: str = "") -> Figure:
    """Above, a bar a policy: the share of its time that is not productive, by fate; below, the same by cause.

    Shares are means over the played runs, of the wall time (so of the GPU-time).  The seven causes that take most over
    all policies have a row each, the others share one; checkpoints have no cause and a row
    of their own.  InputError without a policy.
    """
    if not trainings:
        raise InputError('nothing to draw: give at least one, as in {"as planned": train(scenario)}')
    tables = {name: shares_of(training.outcomes) for name, training in trainings.items()}
    groups = _groups(tables)
    rows = len(tables), len(groups) * len(tables)
    heights = [_ROW * rows[0] + 0.55, _ROW * (0.78 * rows[1] + 0.22 * len(groups)) + 0.55]
    figure = Figure(figsize=(11.5, 1.25 + sum(heights)), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=heights)
    _draw_policies(above, trainings, tables)
    _draw_causes(below, tables, groups)
    seen = [
        fate
        for fate in LOOKS
        if fate != "productive" and any(table.loc[fate].sum() > _SEEN * _gone(table) for table in tables.values())
    ]
    patches = [Patch(facecolor=LOOKS[fate][1], label=LOOKS[fate][0]) for fate in seen]
    figure.legend(
        handles=patches, ncols=min(6, max(1, len(patches))), loc="outside lower left", frameon=False, fontsize=8.5
    )
    figure.suptitle(title or _title(trainings, tables), fontsize=11.5, color=TEXT, x=0.01, ha="left")
    return figure


def _draw_policies(axes: Axes, trainings: Mapping[str, PlayedRun], tables: Mapping[str, pd.DataFrame]) -> None:
    most = max(_gone(table) for table in tables.values()) or 1e-6
    for row, (name, table) in enumerate(tables.items()):
        end = _stacked(axes, row, 0.66, table.sum(axis=1), least=0.05 * most)
        outcomes = trainings[name].outcomes
        words = f"{percent(end)} not productive · {outcomes.wall.mean() / DAY:.3g} d · {_hours(trainings[name], end)}"
        axes.text(end + 0.008 * most, row, words, va="center", fontsize=8.5, color=TEXT)
    bar_rows(axes, list(tables))
    axes.set_xlim(0, most * 1.6)
    _ticks(axes, "share of the GPU-time, by what became of it (%)", most)


def _draw_causes(axes: Axes, tables: Mapping[str, pd.DataFrame], groups: Mapping[str, list[str]]) -> None:
    most = max(float(table[causes].sum().sum()) for table in tables.values() for causes in groups.values()) or 1e-6
    names, places, at = [], [], 0.0
    for words, causes in groups.items():
        for number, (policy, table) in enumerate(tables.items()):
            end = _stacked(axes, at, 0.62, table[causes].sum(axis=1))
            axes.text(end + 0.008 * most, at, percent(end), va="center", fontsize=8, color=TEXT)
            first = words if number == 0 else ""
            names.append(first if len(tables) == 1 else f"{first}   {policy}".strip())
            places.append(at)
            at += 0.78
        at += 0.22
    bar_rows(axes, names, places=places, size=8)
    axes.set_xlim(0, most * 1.6)
    _ticks(axes, "share of the GPU-time, by cause (%)", most)


def _stacked(axes: Axes, row: float, height: float, shares: pd.Series[float], least: float = 1.0) -> float:
    """One bar; parts of at least ``least`` say how much they are.  Returns where it ends."""
    left = 0.0
    for fate, (_, colour) in LOOKS.items():
        share = float(shares[fate])
        if fate == "productive" or share <= 0:
            continue
        axes.barh(row, share, left=left, height=height, color=colour, linewidth=0)
        if share >= least:
            number = f"{100 * share:.2g}"
            axes.text(left + share / 2, row, number, ha="center", va="center", fontsize=7.5, color=text_on(colour))
        left += share
    return left


def _groups(tables: Mapping[str, pd.DataFrame]) -> dict[str, list[str]]:
    """Causes by row: those that took anything, most first; the rest together."""
    known = list(dict.fromkeys(cause for table in tables.values() for cause in table.columns if cause))
    for table in tables.values():
        for cause in known:
            if cause not in table.columns:
                table[cause] = 0.0
    taken = {cause: sum(float(table[cause].sum()) for table in tables.values()) for cause in known}
    ordered = sorted((cause for cause in known if taken[cause] > 0), key=lambda cause: -taken[cause])
    own = [CHECKPOINTS] if CHECKPOINTS in ordered else []
    ordered = [cause for cause in ordered if cause != CHECKPOINTS]
    alone = ordered if len(ordered) <= MOST_CAUSES else ordered[: MOST_CAUSES - 1]
    groups = {cause: [cause] for cause in alone}
    if len(ordered) > len(alone):
        groups[f"{len(ordered) - len(alone)} other causes"] = ordered[len(alone) :]
    groups |= {words: [words] for words in own}
    return groups or {CHECKPOINTS: [CHECKPOINTS]}


def _ticks(axes: Axes, label: str, most: float) -> None:
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}" if value <= 1.02 * most else "")
    axes.set_xlabel(label, fontsize=9, color=QUIET_TEXT, loc="left")


def _gone(table: pd.DataFrame) -> float:
    return float(table.drop(index="productive").sum().sum())


def _hours(training: PlayedRun, share: float) -> str:
    hours = share * training.outcomes.wall.mean() / 3600 * training.run.gpus
    for unit, words in ((1e6, "million GPU-hours"), (1e3, "thousand GPU-hours")):
        if hours >= unit:
            return f"{hours / unit:.3g} {words}"
    return f"{hours:.3g} GPU-hours"


def _title(trainings: Mapping[str, PlayedRun], tables: Mapping[str, pd.DataFrame]) -> str:
    """What is productive, and what takes most of the rest."""
    kept = {name: 1 - _gone(table) for name, table in tables.items()}
    best = max(kept, key=lambda name: kept[name])
    losses = tables[best].drop(index="productive").sum(axis=1)
    most = str(losses.idxmax())
    rest = f"most of the rest: {LOOKS[most][0]}, {percent(float(losses[most]))}"
    if len(kept) == 1:
        return f"{trainings[best].scenario.name}: {percent(kept[best])} of the GPU-time was productive; {rest}"
    worst = min(kept, key=lambda name: kept[name])
    return f"{best}: {percent(kept[best])} productive, the most; {worst}: {percent(kept[worst])}, the least"
