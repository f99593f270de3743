"""From the log of a run to boxes: what the job did when, with what came to nothing, and when it was stopped by what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simcluster.base.arrays import Floats, Ints
from simcluster.base.runs import begins
from simcluster.longrun.events.record import STRIKE
from simcluster.longrun.pictures.fates_plot import weekly_goodput
from simcluster.longrun.run import FATES, LongRun
from simcluster.longrun.studies.training_run import TrainingRun

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
