"""A Gantt of the weeks of a run: a row a week, coloured by what the job did, a mark for every outage by its cause."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.show.bars import bar_rows
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT
from simcluster.show.run_looks import DAY, LOOKS, PlayedRun, percent, weekly_goodput
from simcluster.show.weeks_boxes import SHORT, boxes_of, outages_of

MOST_CAUSES = 8
_MOST_WEEKS = 120
_ROW, _HEAD, _FOOT = 0.46, 0.5, 1.75  # inches
_WIDTH, _LEFT, _RIGHT = 15.0, 0.75, 1.55
_BAR = (0.0, 0.40)  # of a row: top of the bar, its height; marks stand above it
_MARKS = (  # shape and colour of a cause, the most frequent first
    ("o", COMPUTE_KINDS["forward"]), ("s", STREAMS["tp"]), ("^", COMPUTE_KINDS["weight_grad"]), ("D", STREAMS["dp"]),
    ("v", COMPUTE_KINDS["backward"]), ("P", STREAMS["cp"]), ("X", COMPUTE_KINDS["other"]), ("|", QUIET_TEXT),
)  # fmt: skip


def weeks(training: PlayedRun, title: str = "") -> Figure:
    """The first played run, week by week, as a picture; InputError for one of no length or of more than 120 weeks.

    Time within the week goes to the right.  Training that was lost later is coloured where it was done the first time;
    checkpoints shorter than 1/2000 of a week are part of training.  The seven causes with the most outages have a mark
    each, all others share one.  The bar below the rows is the mean outage, not to the scale of the weeks.
    """
    run = training.run
    boxes, outages = boxes_of(training.log, run), outages_of(training.log, run)
    if boxes.empty:
        raise InputError("nothing to draw: the run has no length")
    count = int(boxes["week"].max()) + 1
    if count > _MOST_WEEKS:
        raise InputError(f"{count} weeks are too many rows to read; a picture has at most {_MOST_WEEKS}")
    height = _HEAD + _ROW * count + _FOOT
    figure = Figure(figsize=(_WIDTH, height), dpi=150)
    axes = figure.add_axes((_LEFT / _WIDTH, _FOOT / height, 1 - (_LEFT + _RIGHT) / _WIDTH, _ROW * count / height))
    length = min(run.week, float(boxes["end_s"].max()))
    unit, name = (DAY, "days") if length > 2 * DAY else (3600.0, "hours")
    _draw_boxes(axes, boxes, run.week, unit)
    marked = _draw_outages(axes, outages, run.week, unit)
    axes.set_xlim(0, length / unit)
    bar_rows(axes, [f"week {number + 1}" for number in range(count)], f"time within the week ({name})")
    axes.set_ylim(count - 0.42, -0.6)
    axes.spines[["left"]].set_visible(False)
    _draw_columns(axes, training, outages, count)
    _draw_mean(figure, height, boxes, len(outages))
    _draw_legends(figure, height, boxes, marked, run.week)
    figure.text(
        _LEFT / _WIDTH, 1 - 0.12 / height, title or _title(training, boxes, outages), fontsize=12, va="top", color=TEXT
    )
    return figure


def _draw_boxes(axes: Axes, boxes: pd.DataFrame, week: float, unit: float) -> None:
    """Training first, all along: what has no room for a pixel of its own lies on it."""
    for fate, (words, colour) in LOOKS.items():
        rows = boxes[boxes["what"] == fate]
        if fate == "productive":
            rows = boxes.groupby("week", as_index=False).agg(begin_s=("begin_s", "min"), end_s=("end_s", "max"))
        begin = (rows["begin_s"] - rows["week"] * week).to_numpy(np.float64) / unit
        end = (rows["end_s"] - rows["week"] * week).to_numpy(np.float64) / unit
        top = rows["week"].to_numpy(np.float64) + _BAR[0]
        corners = [(begin, top), (end, top), (end, top + _BAR[1]), (begin, top + _BAR[1])]
        paths = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
        axes.add_collection(PolyCollection(list(paths), facecolor=colour, linewidth=0, label=words))


def _draw_outages(axes: Axes, outages: pd.DataFrame, week: float, unit: float) -> list[Line2D]:
    """A mark for each; returns the entries of the legend, with counts."""
    counts = outages["cause"].value_counts(sort=True)
    ordered = sorted(counts.index, key=lambda cause: (-counts[cause], str(cause)))
    alone = ordered if len(ordered) <= MOST_CAUSES else ordered[: MOST_CAUSES - 1]
    groups = [(str(cause), [cause]) for cause in alone]
    if len(ordered) > len(alone):
        groups.append((f"{len(ordered) - len(alone)} other causes", ordered[len(alone) :]))
    size = float(np.clip(9e3 / max(1, len(outages)), 5, 26))
    entries = []
    for (name, causes), (marker, colour) in zip(groups, _MARKS, strict=False):
        at = outages.loc[outages["cause"].isin(causes), "at_s"].to_numpy(np.float64)
        number = np.floor(at / week)
        axes.scatter(
            (at - number * week) / unit, number + _BAR[0] - 0.14, marker=marker, s=size, color=colour,
            linewidth=1.0 if marker == "|" else 0, zorder=3, label=name, clip_on=False,
        )  # fmt: skip
        entries.append(
            Line2D([], [], marker=marker, color=colour, linestyle="", markersize=6, label=f"{name} ({len(at):,})")
        )
    return entries


def _draw_columns(axes: Axes, training: PlayedRun, outages: pd.DataFrame, count: int) -> None:
    """At the right: what was productive of each week, and its outages."""
    goodput = weekly_goodput(training.outcomes)[0]
    number = np.floor(outages["at_s"].to_numpy(np.float64) / training.run.week).astype(np.int64)
    stops = np.bincount(number, minlength=count)
    for place, words in ((1.045, "goodput"), (1.105, "outages")):
        axes.text(place, -0.55, words, transform=axes.get_yaxis_transform(), fontsize=8, ha="right", color=QUIET_TEXT)
    for week in range(count):
        share = "" if week >= len(goodput) or np.isnan(goodput[week]) else f"{goodput[week]:.1%}".replace("%", " %")
        for place, words in ((1.045, share), (1.105, f"{stops[week]}")):
            axes.text(
                place,
                week + 0.2,
                words,
                transform=axes.get_yaxis_transform(),
                fontsize=9,
                ha="right",
                va="center",
                color=TEXT,
            )


def _draw_mean(figure: Figure, height: float, boxes: pd.DataFrame, count: int) -> None:
    """What an outage is made of, on average, in minutes."""
    known = boxes[~boxes["what"].isin(["productive", "slow", "checkpoint", "verification"])]
    seconds = (known["end_s"] - known["begin_s"]).groupby(known["what"]).sum() / max(1, count)
    if not count or not seconds.sum():
        return
    axes = figure.add_axes((_LEFT / _WIDTH, 0.98 / height, 1 - (_LEFT + _RIGHT) / _WIDTH, 0.17 / height))
    left = 0.0
    for fate, (_, colour) in LOOKS.items():
        if fate in seconds.index:
            axes.barh(0, seconds[fate], left=left, height=1.0, color=colour, linewidth=0)
            if seconds[fate] > 0.06 * seconds.sum():
                axes.text(
                    left + seconds[fate] / 2, 0.62, _minutes(seconds[fate]), ha="center", va="bottom", fontsize=7.5
                )
            left += seconds[fate]
    axes.set_xlim(0, left)
    axes.set_ylim(-0.5, 0.5)
    axes.set_axis_off()
    axes.text(-0.006, 0, "mean\noutage", transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=8.5)
    axes.text(1.01, 0, _minutes(left), transform=axes.get_yaxis_transform(), ha="left", va="center", fontsize=9)


def _draw_legends(figure: Figure, height: float, boxes: pd.DataFrame, marked: list[Line2D], week: float) -> None:
    seen = set(boxes["what"])
    patches = [Patch(facecolor=colour, label=words) for fate, (words, colour) in LOOKS.items() if fate in seen]
    _legend(figure, 0.86 / height, patches, len(patches), 0.8)
    if marked:  # legends fill columns; the most frequent are to stand first in the upper row
        rows = -(-len(marked) // 4)
        _legend(figure, 0.60 / height, [each for at in range(4) for each in marked[at : 4 * rows : 4]], 4, 0.1)
    if "checkpoint" not in seen:
        words = f"Checkpoints shorter than {_minutes(SHORT * week)} are part of training."
        figure.text(1 - 0.3 / _WIDTH, 0.08 / height, words, fontsize=7, color=QUIET_TEXT, ha="right")


def _legend(figure: Figure, top: float, handles: Sequence[Artist], columns: int, pad: float) -> None:
    figure.legend(
        handles=handles, ncols=columns, bbox_to_anchor=(_LEFT / _WIDTH, top), loc="upper left", frameon=False,
        fontsize=8.5, borderaxespad=0.0, borderpad=0.0, columnspacing=1.3, handletextpad=pad,
    )  # fmt: skip


def _minutes(seconds: float) -> str:
    return format_seconds(seconds) if seconds < 100 else f"{seconds / 60:.3g} min"


def _title(training: PlayedRun, boxes: pd.DataFrame, outages: pd.DataFrame) -> str:
    wall = float(boxes["end_s"].max())
    length = f"{wall / DAY:.3g} days" if wall > 2 * DAY else f"{wall / 3600:.3g} hours"
    goodput = float(training.outcomes.steps[0]) * training.run.pattern.step / wall
    spent = {fate: float(each[0]) for fate, each in training.outcomes.spent().items() if fate != "productive"}
    fate = max(spent, key=lambda name: spent[name])
    most = f"; most of the rest: {LOOKS[fate][0]}, {percent(spent[fate] / wall)}" if spent[fate] > 0 else ""
    words = f"{len(outages):,} outage{'s' * (len(outages) != 1)}"
    kept = f"goodput {percent(goodput)}"
    return f"{training.scenario.name}: {length} of {training.run.gpus:,} GPUs, {words}; {kept}{most}"
