"""Gantt chart of a long run: one row per week, coloured by activity, with a mark for each outage.

The boxes come from the log of the run: what the job did when, including work lost later, and what stopped it.
"""

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

from simcluster.base.arrays import Floats, concat_ranges, run_starts
from simcluster.base.errors import InputError
from simcluster.base.units import DAY, format_seconds
from simcluster.documents.argument_types import check_arguments
from simcluster.longrun.events.run_record import STRIKE, TRAINING
from simcluster.longrun.long_run import LongRun
from simcluster.longrun.pictures.lost_time_plot import LOOKS, format_share, goodput_by_run_and_week, group_causes
from simcluster.longrun.studies.staged_training import StagedTraining
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.show.bars import set_up_bar_rows
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT

_ORDER = ("lost", "pause", "detection", "diagnosis", "waiting", "maintenance", "restart")  # within one outage
_ROUNDING = 1e-6


def activity_boxes(log: pd.DataFrame, run: LongRun) -> pd.DataFrame:
    """Return a run's activities as boxes (begin_s, end_s, what, week), each within one week.

    ``what`` is a time category; training is "slow" while something slows it, and "lost" if it was redone later. Boxes
    are contiguous: they sum to the wall time.
    """
    log = log[log["what"] != STRIKE].reset_index(drop=True)  # without the instants of failures
    begin, end = log["begin_s"].to_numpy(np.float64), log["end_s"].to_numpy(np.float64)
    trains = (log["what"] == TRAINING).to_numpy(bool)
    training = np.where(log["cause"] == "", "productive", "slow")
    lost = _redone_seconds(log, trains)
    begins, ends = np.concatenate([begin, end - lost]), np.concatenate([end - lost, end])
    what = np.concatenate([np.where(trains, training, log["what"]), np.full(len(log), "lost", dtype=object)])
    rows = pd.DataFrame({"begin_s": begins, "end_s": ends, "what": what})
    rows = rows[rows["end_s"] > rows["begin_s"]].sort_values("begin_s", kind="stable", ignore_index=True)
    first = run_starts(rows["what"].to_numpy(object))
    begin, end = rows["begin_s"].to_numpy()[first], rows["end_s"].to_numpy()[np.append(first[1:], len(rows)) - 1]
    number = np.floor(begin / run.week).astype(np.int64)  # of the week in which a box begins, and of all that it is in
    count = np.maximum(1, np.ceil(end / run.week).astype(np.int64) - number)
    boxes = pd.DataFrame({"begin_s": begin, "end_s": end, "what": rows["what"].to_numpy(object)[first]})
    boxes = boxes.loc[boxes.index.repeat(count)].reset_index(drop=True)
    week = np.repeat(number, count) + concat_ranges(count)
    begin, end = np.maximum(boxes["begin_s"], week * run.week), np.minimum(boxes["end_s"], (week + 1) * run.week)
    return boxes.assign(begin_s=begin, end_s=end, week=week)


def list_outages(log: pd.DataFrame, run: LongRun) -> pd.DataFrame:
    """Return a table with the time (s) and cause of every stop or pause of the job."""
    log = log[log["what"] != STRIKE].reset_index(drop=True)  # without the instants of failures
    parts = {part.name: number for number, part in enumerate(run.restart)}
    rows = log[log["what"] != TRAINING]
    what, cause = rows["what"].to_numpy(object), rows["cause"].to_numpy(object)
    pairs = zip(what, rows["which"], strict=True)
    place = np.array([_ORDER.index(each) + (parts.get(part, 0) if each == "restart" else 0) for each, part in pairs])
    new = np.ones(len(rows), dtype=bool)
    follows = np.diff(rows.index.to_numpy()) == 1
    again = (place[1:] < place[:-1]) | ((place[1:] == place[:-1]) & (what[1:] != "waiting"))
    new[1:] = ~follows | again | (cause[1:] != cause[:-1])
    return pd.DataFrame({"at_s": rows["begin_s"].to_numpy(np.float64)[new], "cause": cause[new]})


def _redone_seconds(log: pd.DataFrame, trains: np.ndarray) -> Floats:
    """Return, for each training row of a log, how many seconds at the row's end had to be redone.

    A row ``lost`` states how far training had come, the next row where it resumes: the work in between was lost.
    """
    at = log["at_s"].to_numpy(np.float64)
    wall = (log["end_s"] - log["begin_s"]).to_numpy(np.float64)
    before = np.concatenate([[0.0], at[:-1]])
    lost = (log["what"] == "lost").to_numpy(bool)
    plain = (log["cause"] == "").to_numpy(bool) | np.concatenate([[False], lost[:-1]])
    begun = np.where(trains, np.where(plain, at - wall, before), at)  # on the nominal clock
    goes_on = np.full(len(at), np.inf)
    where = np.flatnonzero(lost[:-1])
    goes_on[where] = begun[where + 1]
    latest = np.minimum.accumulate(goes_on[::-1])[::-1]
    share = np.clip((at - latest) / np.maximum(at - begun, _ROUNDING), 0.0, 1.0)
    return np.where(trains & (at - latest > _ROUNDING), share * wall, 0.0)


_MOST_WEEKS = 120
_ROW, _HEAD, _FOOT, _FOOT_WITHOUT_OUTAGES = 0.46, 0.5, 1.75, 1.05  # inches
_WIDTH, _LEFT, _LEFT_OF_STAGES, _RIGHT = 15.0, 0.75, 1.25, 1.55
_BAR = 0.40  # of a row: height of the bar; marks stand above it
_MARKS = (  # shape and colour of a cause, the most frequent first
    ("o", COMPUTE_KINDS["forward"]), ("s", STREAMS["tp"]), ("^", COMPUTE_KINDS["weight_grad"]), ("D", STREAMS["dp"]),
    ("v", COMPUTE_KINDS["backward"]), ("P", STREAMS["cp"]), ("X", COMPUTE_KINDS["other"]), ("|", QUIET_TEXT),
)  # fmt: skip


@check_arguments
def run_calendar(training: TrainingRun | StagedTraining, title: str = "") -> Figure:
    """Draw the first simulated run, one row per week; raise InputError for more than 120 weeks.

    Each stage of a run with stages begins a row, and its weeks are counted from there. Training that was lost later is
    coloured where it was done the first time; checkpoints are part of training. The seven causes with the most outages
    have a mark each, all others share one. The bar below the rows is the mean outage, not to the scale of the weeks.
    """
    runs = list(training.stages) if isinstance(training, StagedTraining) else [training]
    names, goodput, boxes, outages = _make_week_rows(runs)
    if boxes.empty:
        raise InputError("nothing to draw: the run has no length; ask for more days, steps or tokens")
    if len(names) > _MOST_WEEKS:
        raise InputError(f"{len(names)} weeks are too many to draw; simulate at most {_MOST_WEEKS} weeks")
    foot = _FOOT if len(outages) else _FOOT_WITHOUT_OUTAGES
    height = _HEAD + _ROW * len(names) + foot
    figure = Figure(figsize=(_WIDTH, height), dpi=150)
    left = _LEFT if len(runs) == 1 else _LEFT_OF_STAGES
    wide = 1 - (left + _RIGHT) / _WIDTH
    axes = figure.add_axes((left / _WIDTH, foot / height, wide, _ROW * len(names) / height))
    length = float(boxes["end_s"].max())
    unit, name = (DAY, "days") if length > 2 * DAY else (3600.0, "hours")
    axes.set_xlim(0, length / unit)  # before drawing, so that limits are not recomputed each time
    axes.set_ylim(len(names) - 0.42, -0.6)
    _draw_activities(axes, boxes, unit)
    marked = _draw_outages(axes, outages, unit)
    set_up_bar_rows(axes, names, f"time within the week ({name})")
    axes.set_ylim(len(names) - 0.42, -0.6)
    axes.spines[["left"]].set_visible(False)
    _draw_weekly_columns(axes, goodput, np.bincount(outages["row"].to_numpy(np.int64), minlength=len(names)).tolist())
    if len(outages):
        _draw_mean_row(figure.add_axes((left / _WIDTH, 0.98 / height, wide, 0.17 / height)), boxes, len(outages))
    seen = set(boxes["what"])
    patches = [Patch(facecolor=colour, label=words) for fate, (words, colour) in LOOKS.items() if fate in seen]
    _draw_legend(figure, (left, (0.86 if len(outages) else 0.42) / height), patches, len(patches), 0.8)
    if marked:  # legends fill columns; the most frequent are to stand first in the upper row
        rows = -(-len(marked) // 4)
        by_column = [each for at in range(4) for each in marked[at : 4 * rows : 4]]
        _draw_legend(figure, (left, 0.60 / height), by_column, 4, 0.1)
    words = "Checkpoints are part of training."
    figure.text(1 - 0.3 / _WIDTH, 0.08 / height, words, fontsize=7, color=QUIET_TEXT, ha="right")
    title = title or _run_title(training.scenario.name, runs, len(outages))
    figure.text(left / _WIDTH, 1 - 0.12 / height, title, fontsize=12, va="top", color=TEXT)
    return figure


def _make_week_rows(runs: Sequence[TrainingRun]) -> tuple[list[str], list[float], pd.DataFrame, pd.DataFrame]:
    names: list[str] = []
    boxes, outages, goodput = [], [], list[float]()
    for number, each in enumerate(runs, 1):
        week, row = each.run.week, len(names)
        own, stops = activity_boxes(each.log, each.run), list_outages(each.log, each.run)
        begun = own["week"] * week
        own = own.assign(begin_s=own["begin_s"] - begun, end_s=own["end_s"] - begun, row=own["week"] + row)
        at = np.floor(stops["at_s"].to_numpy(np.float64) / week).astype(np.int64)
        boxes.append(own)
        outages.append(stops.assign(at_s=stops["at_s"] - at * week, row=at + row))
        count = int(own["week"].max()) + 1 if len(own) else 0
        names += [f"{f'stage {number}, ' * (len(runs) > 1)}week {place + 1}" for place in range(count)]
        known = goodput_by_run_and_week(each.outcomes)[0][:count].tolist()
        goodput += known + [np.nan] * (count - len(known))
    return names, goodput, pd.concat(boxes, ignore_index=True), pd.concat(outages, ignore_index=True)


def _draw_activities(axes: Axes, boxes: pd.DataFrame, unit: float) -> None:
    what, row = boxes["what"].to_numpy(object), boxes["row"].to_numpy(np.float64)
    begun, ended = boxes["begin_s"].to_numpy(np.float64) / unit, boxes["end_s"].to_numpy(np.float64) / unit
    for fate, (words, colour) in LOOKS.items():
        mine = what == fate
        begin, end, low = begun[mine], ended[mine], row[mine]
        if fate == "productive":
            firsts = run_starts(row)
            begin, end, low = begun[firsts], ended[np.append(firsts[1:], len(row)) - 1], row[firsts]
        corners = [(begin, low), (end, low), (end, low + _BAR), (begin, low + _BAR)]
        paths = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
        drawn = PolyCollection(paths, facecolor=colour, linewidth=0, label=words)  # type: ignore[arg-type]  # an array is drawn at once
        axes.add_collection(drawn, autolim=False)


def _draw_outages(axes: Axes, outages: pd.DataFrame, unit: float) -> list[Line2D]:
    counts = outages["cause"].value_counts(sort=True)
    ordered = sorted(map(str, counts.index), key=lambda cause: (-counts[cause], cause))
    size = float(np.clip(9e3 / max(1, len(outages)), 5, 26))
    entries = []
    for (name, causes), (marker, colour) in zip(group_causes(ordered).items(), _MARKS, strict=False):
        mine = outages[outages["cause"].isin(causes)]
        axes.scatter(
            mine["at_s"].to_numpy(np.float64) / unit, mine["row"].to_numpy(np.float64) - 0.14, marker=marker, s=size,
            color=colour, linewidth=1.0 if marker == "|" else 0, zorder=3, label=name, clip_on=False,
        )  # fmt: skip
        words = f"{name} ({len(mine):,})"
        entries.append(Line2D([], [], marker=marker, color=colour, linestyle="", markersize=6, label=words))
    return entries


def _draw_weekly_columns(axes: Axes, goodput: Sequence[float], stops: Sequence[int]) -> None:
    side = axes.get_yaxis_transform()
    for place, words in ((1.045, "goodput"), (1.105, "outages")):
        axes.text(place, -0.55, words, transform=side, fontsize=8, ha="right", color=QUIET_TEXT)
    for row, (share, count) in enumerate(zip(goodput, stops, strict=True)):
        kept = "" if np.isnan(share) else f"{share:.1%}".replace("%", " %")
        for place, words in ((1.045, kept), (1.105, f"{count}")):
            axes.text(place, row + 0.2, words, transform=side, fontsize=9, ha="right", va="center", color=TEXT)


def _draw_mean_row(axes: Axes, boxes: pd.DataFrame, count: int) -> None:
    axes.set_axis_off()
    known = boxes[~boxes["what"].isin(["productive", "slow"])]
    seconds = (known["end_s"] - known["begin_s"]).groupby(known["what"]).sum() / count
    if not seconds.sum():
        return
    left = 0.0
    for fate, (_, colour) in LOOKS.items():
        if fate in seconds.index:
            axes.barh(0, seconds[fate], left=left, height=1.0, color=colour, linewidth=0)
            if seconds[fate] > 0.06 * seconds.sum():
                middle, words = left + seconds[fate] / 2, _format_minutes(seconds[fate])
                axes.text(middle, 0.62, words, ha="center", va="bottom", fontsize=7.5)
            left += seconds[fate]
    axes.set_xlim(0, left)
    axes.set_ylim(-0.5, 0.5)
    side = axes.get_yaxis_transform()
    axes.text(-0.006, 0, "mean\noutage", transform=side, ha="right", va="center", fontsize=8.5)
    axes.text(1.01, 0, _format_minutes(left), transform=side, ha="left", va="center", fontsize=9)


def _draw_legend(figure: Figure, at: tuple[float, float], handles: Sequence[Artist], columns: int, pad: float) -> None:
    figure.legend(
        handles=handles, ncols=columns, bbox_to_anchor=(at[0] / _WIDTH, at[1]), loc="upper left", frameon=False,
        fontsize=8.5, borderaxespad=0.0, borderpad=0.0, columnspacing=1.3, handletextpad=pad,
    )  # fmt: skip


def _format_minutes(seconds: float) -> str:
    return format_seconds(seconds) if seconds < 100 else f"{seconds / 60:.3g} min"


def _run_title(name: str, runs: Sequence[TrainingRun], outages: int) -> str:
    wall = sum(float(training.wall[0]) for training in runs)
    productive = sum(float(training.outcomes.steps[0]) * training.run.pattern.step for training in runs)
    length = f"{wall / DAY:.3g} days" if wall > 2 * DAY else f"{wall / 3600:.3g} hours"
    fates = [training.outcomes.seconds_by_category() for training in runs]
    spent = {fate: sum(float(each[fate][0]) for each in fates) for fate in fates[0] if fate != "productive"}
    fate = max(spent, key=lambda name: spent[name])
    most = f"; most of the rest: {LOOKS[fate][0]}, {format_share(spent[fate] / wall)}" if spent[fate] > 0 else ""
    words = f"{outages:,} outage{'s' * (outages != 1)}"
    gpus = " to ".join(f"{count:,}" for count in sorted({training.run.gpus for training in runs}))
    return f"{name}: {length} of {gpus} GPUs, {words}; goodput {format_share(productive / wall)}{most}"
