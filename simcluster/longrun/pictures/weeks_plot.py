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
from simcluster.base.runs import begins
from simcluster.base.units import DAY, format_seconds
from simcluster.documents.argument_types import checked
from simcluster.longrun.pictures.fates_plot import LOOKS, group_causes, percent
from simcluster.longrun.pictures.weeks_boxes import SHORT, WeekRows, rows_of
from simcluster.longrun.studies.staged import StagedTraining
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.show.bars import bar_rows
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT

_MOST_WEEKS = 120
_ROW, _HEAD, _FOOT = 0.46, 0.5, 1.75  # inches
_WIDTH, _LEFT, _LEFT_OF_STAGES, _RIGHT = 15.0, 0.75, 1.25, 1.55
_BAR = (0.0, 0.40)  # of a row: top of the bar, its height; marks stand above it
_MARKS = (  # shape and colour of a cause, the most frequent first
    ("o", COMPUTE_KINDS["forward"]), ("s", STREAMS["tp"]), ("^", COMPUTE_KINDS["weight_grad"]), ("D", STREAMS["dp"]),
    ("v", COMPUTE_KINDS["backward"]), ("P", STREAMS["cp"]), ("X", COMPUTE_KINDS["other"]), ("|", QUIET_TEXT),
)  # fmt: skip


@checked
def weeks(training: TrainingRun | StagedTraining, title: str = "") -> Figure:
    """The first played run, week by week, as a picture; InputError for one of no length or of more than 120 weeks.

    Each stage of a run of stages begins a row, and its weeks are counted from there.

    Time within the week goes to the right.  Training that was lost later is coloured where it was done the first time;
    checkpoints shorter than 1/2000 of a week are part of training.  The seven causes with the most outages have a mark
    each, all others share one.  The bar below the rows is the mean outage, not to the scale of the weeks.
    """
    runs = list(training.stages) if isinstance(training, StagedTraining) else [training]
    rows = rows_of(runs)
    boxes, count = rows.boxes, len(rows.names)
    if boxes.empty:
        raise InputError("nothing to draw: the run has no length; ask for more days, steps or tokens")
    if count > _MOST_WEEKS:
        raise InputError(f"{count} weeks are too many rows to read; a picture has at most {_MOST_WEEKS}")
    height = _HEAD + _ROW * count + _FOOT
    figure = Figure(figsize=(_WIDTH, height), dpi=150)
    left = _LEFT if len(runs) == 1 else _LEFT_OF_STAGES
    axes = figure.add_axes((left / _WIDTH, _FOOT / height, 1 - (left + _RIGHT) / _WIDTH, _ROW * count / height))
    length = float(boxes["end_s"].max())
    unit, name = (DAY, "days") if length > 2 * DAY else (3600.0, "hours")
    axes.set_xlim(0, length / unit)  # before what is drawn, whose own limits would be looked for each time
    axes.set_ylim(count - 0.42, -0.6)
    _draw_boxes(axes, boxes, unit)
    marked = _draw_outages(axes, rows.outages, unit)
    bar_rows(axes, rows.names, f"time within the week ({name})")
    axes.set_ylim(count - 0.42, -0.6)
    axes.spines[["left"]].set_visible(False)
    _draw_columns(axes, rows)
    _draw_mean(figure, height, left, boxes, len(rows.outages))
    _draw_legends(figure, height, left, boxes, marked, rows.week)
    title = title or _title(training.scenario.name, runs, rows)
    figure.text(left / _WIDTH, 1 - 0.12 / height, title, fontsize=12, va="top", color=TEXT)
    return figure


def _draw_boxes(axes: Axes, boxes: pd.DataFrame, unit: float) -> None:
    what, row = boxes["what"].to_numpy(object), boxes["row"].to_numpy(np.float64)
    begun, ended = boxes["begin_s"].to_numpy(np.float64) / unit, boxes["end_s"].to_numpy(np.float64) / unit
    for fate, (words, colour) in LOOKS.items():
        mine = what == fate
        begin, end, top = begun[mine], ended[mine], row[mine]
        if fate == "productive":
            firsts = begins(row)
            begin, end, top = begun[firsts], ended[np.append(firsts[1:], len(row)) - 1], row[firsts]
        low = top + _BAR[0]
        corners = [(begin, low), (end, low), (end, low + _BAR[1]), (begin, low + _BAR[1])]
        paths = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
        drawn = PolyCollection(paths, facecolor=colour, linewidth=0, label=words)  # type: ignore[arg-type]  # an array is drawn at once
        axes.add_collection(drawn, autolim=False)


def _draw_outages(axes: Axes, outages: pd.DataFrame, unit: float) -> list[Line2D]:
    counts = outages["cause"].value_counts(sort=True)
    ordered = sorted(map(str, counts.index), key=lambda cause: (-counts[cause], cause))
    begun, rows = outages["at_s"].to_numpy(np.float64), outages["row"].to_numpy(np.float64)
    size = float(np.clip(9e3 / max(1, len(outages)), 5, 26))
    entries = []
    for (name, causes), (marker, colour) in zip(group_causes(ordered).items(), _MARKS, strict=False):
        mine = outages["cause"].isin(causes).to_numpy()
        at, row = begun[mine], rows[mine]
        axes.scatter(
            at / unit, row + _BAR[0] - 0.14, marker=marker, s=size, color=colour,
            linewidth=1.0 if marker == "|" else 0, zorder=3, label=name, clip_on=False,
        )  # fmt: skip
        entries.append(
            Line2D([], [], marker=marker, color=colour, linestyle="", markersize=6, label=f"{name} ({len(at):,})")
        )
    return entries


def _draw_columns(axes: Axes, rows: WeekRows) -> None:
    for place, words in ((1.045, "goodput"), (1.105, "outages")):
        axes.text(place, -0.55, words, transform=axes.get_yaxis_transform(), fontsize=8, ha="right", color=QUIET_TEXT)
    for row, (goodput, stops) in enumerate(zip(rows.goodput, rows.stops, strict=True)):
        share = "" if np.isnan(goodput) else f"{goodput:.1%}".replace("%", " %")
        for place, words in ((1.045, share), (1.105, f"{stops}")):
            axes.text(
                place, row + 0.2, words, transform=axes.get_yaxis_transform(), fontsize=9, ha="right", va="center",
                color=TEXT,
            )  # fmt: skip


def _draw_mean(figure: Figure, height: float, begin: float, boxes: pd.DataFrame, count: int) -> None:
    known = boxes[~boxes["what"].isin(["productive", "slow", "checkpoint", "verification"])]
    seconds = (known["end_s"] - known["begin_s"]).groupby(known["what"]).sum() / max(1, count)
    if not count or not seconds.sum():
        return
    axes = figure.add_axes((begin / _WIDTH, 0.98 / height, 1 - (begin + _RIGHT) / _WIDTH, 0.17 / height))
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


def _draw_legends(
    figure: Figure, height: float, left: float, boxes: pd.DataFrame, marked: list[Line2D], week: float
) -> None:
    seen = set(boxes["what"])
    patches = [Patch(facecolor=colour, label=words) for fate, (words, colour) in LOOKS.items() if fate in seen]
    _legend(figure, (left, 0.86 / height), patches, len(patches), 0.8)
    if marked:  # legends fill columns; the most frequent are to stand first in the upper row
        rows = -(-len(marked) // 4)
        _legend(figure, (left, 0.60 / height), [each for at in range(4) for each in marked[at : 4 * rows : 4]], 4, 0.1)
    if "checkpoint" not in seen:
        words = f"Checkpoints shorter than {_minutes(SHORT * week)} are part of training."
        figure.text(1 - 0.3 / _WIDTH, 0.08 / height, words, fontsize=7, color=QUIET_TEXT, ha="right")


def _legend(figure: Figure, at: tuple[float, float], handles: Sequence[Artist], columns: int, pad: float) -> None:
    figure.legend(
        handles=handles, ncols=columns, bbox_to_anchor=(at[0] / _WIDTH, at[1]), loc="upper left", frameon=False,
        fontsize=8.5, borderaxespad=0.0, borderpad=0.0, columnspacing=1.3, handletextpad=pad,
    )  # fmt: skip


def _minutes(seconds: float) -> str:
    return format_seconds(seconds) if seconds < 100 else f"{seconds / 60:.3g} min"


def _title(name: str, runs: Sequence[TrainingRun], rows: WeekRows) -> str:
    wall, outages = rows.wall, len(rows.outages)
    length = f"{wall / DAY:.3g} days" if wall > 2 * DAY else f"{wall / 3600:.3g} hours"
    fates = [training.outcomes.spent() for training in runs]
    spent = {fate: sum(float(each[fate][0]) for each in fates) for fate in fates[0] if fate != "productive"}
    fate = max(spent, key=lambda name: spent[name])
    most = f"; most of the rest: {LOOKS[fate][0]}, {percent(spent[fate] / wall)}" if spent[fate] > 0 else ""
    words = f"{outages:,} outage{'s' * (outages != 1)}"
    gpus = " to ".join(f"{count:,}" for count in sorted({training.run.gpus for training in runs}))
    return f"{name}: {length} of {gpus} GPUs, {words}; goodput {percent(rows.productive / wall)}{most}"
