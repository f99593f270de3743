"""A Gantt of the weeks of a run: a row a week, coloured by what the job did, a mark for every outage by its cause.

Boxes come from the log of the run: what the job did when, with what came to nothing, and when it was stopped by what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simcluster.base.arrays import Floats, Ints, begins
from simcluster.base.errors import InputError
from simcluster.base.units import DAY, format_seconds
from simcluster.documents.argument_types import checked
from simcluster.longrun.events.record import STRIKE
from simcluster.longrun.pictures.fates_plot import LOOKS, group_causes, percent, weekly_goodput
from simcluster.longrun.run import FATES, LongRun
from simcluster.longrun.studies.staged import StagedTraining
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.show.bars import bar_rows
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT

SHORT = 1 / 2000
"""Of a week: a checkpoint that takes less of it is drawn as training."""

_TRAINING = ("work", "write", "training", "productive", "checkpoint", "verification")
_ORDER = ("lost", "pause", "detection", "diagnosis", "waiting", "maintenance", "restart")  # within one outage
_ROUNDING = 1e-6


@dataclass(frozen=True)
class WeekRows:
    """The rows of a picture of weeks: of a run a row a week, of a run of stages those of its stages, one after another.

    ``boxes`` has row, begin_s and end_s (since the row begins), what; ``outages`` row, at_s and cause.  Of each row
    ``names`` and ``goodput`` (nan: not known).  ``week`` is the length of a row in seconds, ``wall`` the seconds of the
    first played run (without what lies between stages), ``productive`` those of its kept steps.
    """

    boxes: pd.DataFrame
    outages: pd.DataFrame
    names: list[str]
    goodput: Floats
    week: float
    wall: float
    productive: float

    @property
    def stops(self) -> Ints:
        """Outages of each row."""
        return np.bincount(self.outages["row"].to_numpy(np.int64), minlength=len(self.names))


def rows_of(runs: Sequence[TrainingRun]) -> WeekRows:
    """The rows of one run, or of the stages of one; weeks are counted from where each begins."""
    names: list[str] = []
    boxes, outages, goodput = [], [], []
    for number, training in enumerate(runs, 1):
        run, first = training.run, len(names)
        own, stops = boxes_of(training.log, run), outages_of(training.log, run)
        count = int(own["week"].max()) + 1 if len(own) else 0
        begins = own["week"].to_numpy(np.float64) * run.week
        boxes.append(own.assign(begin_s=own["begin_s"] - begins, end_s=own["end_s"] - begins, row=own["week"] + first))
        week = np.floor(stops["at_s"].to_numpy(np.float64) / run.week).astype(np.int64)
        outages.append(stops.assign(at_s=stops["at_s"] - week * run.week, row=week + first))
        stage = f"stage {number}, " if len(runs) > 1 else ""
        names += [f"{stage}week {each + 1}" for each in range(count)]
        good = np.full(count, np.nan)
        known = weekly_goodput(training.outcomes)[0][:count]
        good[: len(known)] = known
        goodput.append(good)
    return WeekRows(
        boxes=pd.concat(boxes, ignore_index=True),
        outages=pd.concat(outages, ignore_index=True),
        names=names,
        goodput=np.concatenate(goodput),
        week=runs[0].run.week,
        wall=sum(float(training.outcomes.wall[0]) for training in runs),
        productive=sum(float(training.outcomes.steps[0]) * training.run.pattern.step for training in runs),
    )


def boxes_of(log: pd.DataFrame, run: LongRun) -> pd.DataFrame:
    """(begin_s, end_s, what, week) of what the job did, one box for what follows each other, cut at the ends of weeks.

    ``what`` is a fate; training is "slow" while something slows it, and "lost" if it was done again later, the first
    time.  Boxes are contiguous: they sum to the wall time.
    """
    log = log[log["what"] != STRIKE].reset_index(drop=True)  # without the instants of strikes
    begin, end = log["begin_s"].to_numpy(np.float64), log["end_s"].to_numpy(np.float64)
    what = _whats(log, run)
    lost = _lost_seconds(log)
    rows = pd.DataFrame(
        {
            "begin_s": np.concatenate([begin, end - lost]),
            "end_s": np.concatenate([end - lost, end]),
            "what": np.concatenate([what, np.full(len(what), "lost", dtype=object)]),
        }
    )
    rows = rows[rows["end_s"] > rows["begin_s"]].sort_values("begin_s", kind="stable", ignore_index=True)
    what = rows["what"].to_numpy(object)
    first = begins(what)
    last = np.append(first[1:], len(rows)) - 1
    begin, end = rows["begin_s"].to_numpy()[first], rows["end_s"].to_numpy()[last]
    return _cut(pd.DataFrame({"begin_s": begin, "end_s": end, "what": what[first]}), run.week)


def outages_of(log: pd.DataFrame, run: LongRun) -> pd.DataFrame:
    """(at_s, cause) of every time the job was stopped, pauses among them."""
    log = log[log["what"] != STRIKE].reset_index(drop=True)  # without the instants of strikes
    parts = {part.name: number for number, part in enumerate(run.restart)}
    rows = log[~log["what"].isin(_TRAINING)]
    what, which = rows["what"].to_numpy(object), rows["which"].to_numpy(object)
    place = np.array(
        [
            _ORDER.index(each) + (parts.get(part, 0) if each == "restart" else 0)
            for each, part in zip(what, which, strict=True)
        ]
    )
    cause = rows["cause"].to_numpy(object)
    new = np.ones(len(rows), dtype=bool)
    follows = np.diff(rows.index.to_numpy()) == 1
    again = (place[1:] < place[:-1]) | ((place[1:] == place[:-1]) & (what[1:] != "waiting"))
    new[1:] = ~follows | again | (cause[1:] != cause[:-1])
    return pd.DataFrame({"at_s": rows["begin_s"].to_numpy(np.float64)[new], "cause": cause[new]})


def _whats(log: pd.DataFrame, run: LongRun) -> np.ndarray:
    what = log["what"].to_numpy(object).copy()
    short = (log["end_s"] - log["begin_s"]).to_numpy(np.float64) < SHORT * run.week
    trains = log["what"].isin(_TRAINING).to_numpy(bool)
    saves = np.isin(what.astype(str), ("checkpoint", "verification"))
    what[trains & (~saves | short)] = "productive"
    what[trains & (what == "productive") & (log["cause"] != "").to_numpy(bool)] = "slow"
    assert set(np.unique(what.astype(str))) <= {"productive", "checkpoint", "verification", *FATES}
    return what


def _lost_seconds(log: pd.DataFrame) -> Floats:
    """Wall seconds at the end of every row of training that were done again later.

    A row ``lost`` says how far training had come, what follows it where it goes on from: what lies between, and is not
    behind a later such point, was for nothing.
    """
    at = log["at_s"].to_numpy(np.float64)
    wall = (log["end_s"] - log["begin_s"]).to_numpy(np.float64)
    trains = log["what"].isin(_TRAINING).to_numpy(bool)
    before = np.concatenate([[0.0], at[:-1]])
    lost = (log["what"] == "lost").to_numpy(bool)
    after_loss = np.concatenate([[False], lost[:-1]])
    plain = (log["cause"] == "").to_numpy(bool) | after_loss
    begun = np.where(trains, np.where(plain, at - wall, before), at)  # on the nominal clock
    goes_on = np.full(len(at), np.inf)
    where = np.flatnonzero(lost)
    where = where[where + 1 < len(at)]
    goes_on[where] = begun[where + 1]
    latest = np.minimum.accumulate(goes_on[::-1])[::-1]
    done = np.maximum(at - begun, _ROUNDING)
    share = np.clip((at - latest) / done, 0.0, 1.0)
    return np.where(trains & (at - latest > _ROUNDING), share * wall, 0.0)


def _cut(rows: pd.DataFrame, week: float) -> pd.DataFrame:
    begin, end = rows["begin_s"].to_numpy(np.float64), rows["end_s"].to_numpy(np.float64)
    first = np.floor(begin / week).astype(np.int64)
    count = np.maximum(1, np.ceil(end / week).astype(np.int64) - first)
    rows = rows.loc[rows.index.repeat(count)].reset_index(drop=True)
    number = np.repeat(first, count) + np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    rows["begin_s"] = np.maximum(rows["begin_s"], number * week)
    rows["end_s"] = np.minimum(rows["end_s"], (number + 1) * week)
    rows["week"] = number
    return rows


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
