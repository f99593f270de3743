"""Pictures of a run draw what was played: boxes and bars sum to the wall, marks to the outages; their words say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import simcluster
from simcluster.base.errors import InputError
from simcluster.longrun.pictures.lost_time_plot import CHECKPOINTS, LOOKS, goodput_by_run_and_week, time_share_table
from simcluster.longrun.pictures.run_calendar_plot import activity_boxes, list_outages
from simcluster.longrun.studies.training import TrainingRun
from simcluster.scenario.scenario import load

DAY = 86400.0
RUN = {
    "days": "17 d",
    "failures": [
        {"name": "GPU", "of": "gpu", "mtbf": "20 d", "repair": "6 h"},
        {"name": "software", "of": "job", "mtbf": "12 h", "detect": "10 min"},
        {"name": "hot GPU", "of": "gpu", "effect": "slow", "by": [1.5], "mtbf": "20 d", "lasts": "5 h"},
        {"name": "storage", "of": "job", "effect": "pause", "mtbf": "5 d", "lasts": "3 min"},
    ],
    "checkpoint": {"every": "30 min", "stall": "5 s"},
    "restart": [{"part": "load", "takes": "3 min"}, {"part": "warm up", "takes": "1 h"}],
    "spares": {"warm": 1},
    "maintenance": {"every": "5 d", "lasts": "1 h"},
}


@pytest.fixture(scope="module")
def played() -> TrainingRun:
    return simcluster.train(load("tiny_3d", {"run": RUN}), played=20)


@pytest.fixture(scope="module")
def steady() -> TrainingRun:
    """No device is slow, and there are more kinds of failures than marks."""
    failures = [{"name": f"cause {n}", "of": "job", "mtbf": f"{20 + n} h"} for n in range(10)]
    steps = {"days": None, "steps": 50_000_000, "failures": failures}
    return simcluster.train(load("tiny_3d", {"run": {**RUN, **steps}}), played=12)


def bars(axes: Axes) -> list[Rectangle]:
    return [each for each in axes.patches if isinstance(each, Rectangle)]


def words_of(figure: Figure) -> str:
    texts = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    texts += [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        texts += [text.get_text() for text in axes.texts] + [label.get_text() for label in axes.get_yticklabels()]
        legend = axes.get_legend()
        texts += [] if legend is None else [text.get_text() for text in legend.get_texts()]
        texts += [axes.get_xlabel(), axes.get_ylabel(), figure.get_suptitle()]
    return "\n".join(texts)


def test_boxes_sum_to_the_wall_and_by_fate_to_what_was_spent(steady: TrainingRun) -> None:
    boxes = activity_boxes(steady.log, steady.run)
    seconds = (boxes["end_s"] - boxes["begin_s"]).groupby(boxes["what"]).sum()
    spent = {fate: float(each[0]) for fate, each in steady.outcomes.seconds_by_category().items()}
    spent["productive"] += spent.pop("checkpoint")  # 5 s are too short for a box
    assert seconds.sum() == pytest.approx(steady.outcomes.wall[0], rel=1e-12)
    for fate, expected in spent.items():
        assert seconds.get(fate, 0.0) == pytest.approx(expected, abs=1e-3), fate


def test_boxes_with_a_slow_device_sum_to_the_wall(played: TrainingRun) -> None:
    boxes = activity_boxes(played.log, played.run)
    seconds = (boxes["end_s"] - boxes["begin_s"]).groupby(boxes["what"]).sum()
    spent = {fate: float(each[0]) for fate, each in played.outcomes.seconds_by_category().items()}
    assert seconds.sum() == pytest.approx(played.outcomes.wall[0], rel=1e-12)
    assert seconds["slow"] > spent["slow"] > 0  # all of what is slowed, not what it takes longer
    for fate in ("detection", "waiting", "restart", "pause", "maintenance"):
        assert seconds[fate] == pytest.approx(spent[fate], abs=1e-3), fate
    assert (np.diff(boxes["begin_s"]) > 0).all()
    assert boxes["begin_s"].to_numpy()[1:] == pytest.approx(boxes["end_s"].to_numpy()[:-1])
    assert (boxes["begin_s"] >= boxes["week"] * played.run.week).all()
    assert (boxes["end_s"] <= (boxes["week"] + 1) * played.run.week).all()


def test_work_that_two_failures_undo_is_lost_once() -> None:
    """Training to 100, back to 50, on to 60, back to 20: what came after 20 the first time, and after 50 the second."""
    rows = [
        (0.0, 100.0, "training", "", "", 100.0),
        (100.0, 100.0, "lost", "a", "", 100.0), (100.0, 130.0, "restart", "a", "p", 50.0),
        (130.0, 140.0, "training", "", "", 60.0),
        (140.0, 140.0, "lost", "a", "", 60.0), (140.0, 150.0, "restart", "a", "p", 20.0),
        (150.0, 250.0, "training", "", "", 120.0),
    ]  # fmt: skip
    log = pd.DataFrame(rows, columns=["begin_s", "end_s", "what", "cause", "which", "at_s"])
    run = simcluster.train(load("tiny_3d", {"run": {**RUN, "days": "1 d"}}), played=1).run
    boxes = activity_boxes(log, run)
    found = [tuple(row) for row in boxes[["begin_s", "end_s", "what"]].to_numpy()]
    assert found == [
        (0.0, 20.0, "productive"), (20.0, 100.0, "lost"), (100.0, 130.0, "restart"), (130.0, 140.0, "lost"),
        (140.0, 150.0, "restart"), (150.0, 250.0, "productive"),
    ]  # fmt: skip
    assert list(list_outages(log, run)["at_s"]) == [100.0, 140.0]


def test_marks_are_outages_and_pauses(played: TrainingRun) -> None:
    outages = list_outages(played.log, played.run)
    counts = outages["cause"].value_counts()
    names = [cause.name for cause in played.run.causes]
    for number, name in enumerate(names):
        expected = played.outcomes.strikes[0, number] if name == "storage" else played.outcomes.outages[0, number]
        assert counts.get(name, 0) == expected, name
    assert counts["maintenance"] == played.outcomes.outages[0, len(names)]


def test_weeks_says_how_many_and_of_what(steady: TrainingRun) -> None:
    figure = simcluster.plots.run_calendar(steady)
    words = words_of(figure)
    marks = [each for each in figure.axes[0].collections if isinstance(each, PathCollection)]
    outages = int(steady.outcomes.outages[0].sum())
    assert sum(len(np.asarray(each.get_offsets())) for each in marks) == outages
    assert len(marks) == 8
    for said in ("week 1", "time within the week (days)", f"{outages:,} outages", "other causes", LOOKS["lost"][0]):
        assert said in words
    assert f"{goodput_by_run_and_week(steady.outcomes)[0, 0]:.1%}".replace("%", " %") in words


def test_a_short_run_is_drawn_in_hours() -> None:
    training = simcluster.train(load("tiny_3d", {"run": {**RUN, "days": "20 h"}}), played=1)
    words = words_of(simcluster.plots.run_calendar(training))
    assert "time within the week (hours)" in words
    assert "20 hours" in words


def test_too_many_weeks_are_refused(played: TrainingRun) -> None:
    log = pd.DataFrame([(0.0, 1000 * 7 * DAY, "training", "", "", 1000 * 7 * DAY, 1.0, 0)], columns=played.log.columns)

    years = replace(played)
    vars(years)["log"] = log
    with pytest.raises(InputError, match="at most 120"):
        simcluster.plots.run_calendar(years)


def test_fates_are_all_of_the_time_by_fate_and_by_cause(played: TrainingRun) -> None:
    table = time_share_table(played.outcomes)
    assert table.to_numpy().sum() == pytest.approx(1.0, abs=1e-12)
    assert table[CHECKPOINTS].sum() == table.loc[["write", "checkpoint", "verification"]].to_numpy().sum()
    assert table.loc["productive"].sum() == pytest.approx(
        played.outcomes.seconds_by_category()["productive"].sum() / played.outcomes.wall.sum()
    )
    figure = simcluster.plots.lost_time({"as planned": played})
    above, below = figure.axes
    gone = 1 - table.loc["productive"].sum()
    assert sum(bar.get_width() for bar in bars(above)) == pytest.approx(gone)
    assert sum(bar.get_width() for bar in bars(below)) == pytest.approx(gone)
    for said in ("as planned", "software", "checkpoints", "unproductive", "GPU-hours", "(%)", LOOKS["restart"][0]):
        assert said in words_of(figure)


def test_fates_of_two_policies_share_rows(played: TrainingRun, steady: TrainingRun) -> None:
    figure = simcluster.plots.lost_time({"one": played, "two": steady})
    words = words_of(figure)
    assert len(figure.axes[0].get_yticks()) == 2
    assert len(figure.axes[1].get_yticks()) == 2 * 9  # seven causes, the others, checkpoints
    assert "other causes" in words
    with pytest.raises(InputError, match="give at least one"):
        simcluster.plots.lost_time({})


def test_goodput_by_week_and_by_run(played: TrainingRun) -> None:
    figure = simcluster.plots.goodput(played)
    left, right = figure.axes
    mean = next(line for line in left.lines if "mean" in str(line.get_label()))
    assert mean.get_ydata() == pytest.approx(100 * played.weeks["goodput"])
    heights = [bar.get_height() for bar in cast("BarContainer", right.containers[0])]
    assert sum(heights) == 20
    for said in (
        "week",
        "10 to 90 % of the runs",
        "goodput of a run (%)",
        "closed form",
        f"mean {100 * played.goodput:.4g} %",
    ):
        assert said in words_of(figure)


def test_runs_that_end_with_a_step_are_counted_in_days(steady: TrainingRun) -> None:
    words = words_of(simcluster.plots.goodput(steady))
    assert "wall time of a run (days)" in words
    assert f"mean {steady.days:.4g} d" in words


def test_weeks_of_each_run_add_up_to_its_steps(steady: TrainingRun) -> None:
    good, wall, week = goodput_by_run_and_week(steady.outcomes), steady.outcomes.wall, steady.run.week
    lasts = np.clip(wall[:, None] - week * np.arange(good.shape[1]), 0, week)
    whole = ~np.isnan(np.where(lasts > 0, good, 0)).any(axis=1)
    assert whole.any()
    seconds = np.nansum(good * lasts, axis=1)
    assert seconds[whole] == pytest.approx((steady.outcomes.steps * steady.run.pattern.step)[whole])


def test_pictures_are_the_same_bytes(tmp_path: Path) -> None:
    played = simcluster.train(load("tiny_3d", {"run": {**RUN, "days": "1 d"}}), played=1)
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        simcluster.plots.save_figure(simcluster.plots.run_calendar(played), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
