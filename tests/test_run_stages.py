"""A run of stages: each stage is a run of its own, and the whole is their sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_documents_cited import undescribed

import simcluster
from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.longrun.studies.staged_training import CHANGE
from simcluster.longrun.studies.training import StagedTraining, split_into_stages, train_stages
from simcluster.scenario.scenario import load

STAGES: list[dict[str, Any]] = [
    {"until": "0.5T tokens", "set": {"training.global_batch": 64}},
    {"until": "2T", "set": {}},
    {"set": {"model.sequence_length": 4096, "training.global_batch": 32}, "change": "10 min"},
]
RUN: dict[str, Any] = {
    "tokens": "3T",
    "failures": [{"name": "machine", "of": "host", "mtbf": "3 d"}],
    "checkpoint": {"stall": "20 s", "every": "1 h"},
    "restart": [{"part": "warm up", "takes": "4 min"}],
    "price": 2.0,
}


def scenario(run: dict[str, Any] | None = None, stages: Any = STAGES) -> simcluster.Scenario:
    return load("tiny_dp", {"run": {**(run or RUN), "stages": stages}})


@pytest.fixture(scope="module")
def staged() -> StagedTraining:
    return train_stages(scenario(), played=40)


def test_a_stage_is_the_scenario_with_what_it_sets() -> None:
    whole = scenario()
    first, second, third = split_into_stages(whole)
    assert [each.run.tokens for each in (first, second, third) if each.run] == [0.5e12, 1.5e12, 1e12]
    assert (first.training.global_batch, third.training.global_batch) == (64, 32)
    assert second.training == whole.training
    assert third.model.sequence_length == 4096
    assert (first.model, second.model) == (whole.model, whole.model)


def test_the_whole_is_the_sum_of_its_stages(staged: StagedTraining) -> None:
    walls = sum(stage.outcomes.wall for stage in staged.stages)
    assert np.allclose(staged.wall, walls + 600)
    assert staged.tokens == pytest.approx(3e12, rel=1e-6)
    assert staged.breakdown.sum() == pytest.approx(staged.wall.mean(), rel=1e-12)
    assert staged.breakdown[CHANGE] == 600
    assert staged.dollars is not None
    gpus = staged.stages[0].run.gpus
    assert staged.dollars == pytest.approx(2.0 * gpus * staged.wall / 3600)
    assert staged.numbers.loc["gpu_hours", "mean"] == pytest.approx(gpus * staged.wall.mean() / 3600)
    assert staged.lost_to_failures is not None
    assert 0 < staged.lost_to_failures < 0.2 * staged.dollars.mean()
    assert staged.kwh is not None
    assert staged.kwh.mean() > staged.table["kwh"].sum()
    done = sum(stage.step_mfu * stage.breakdown.loc["productive", "mean_s"] for stage in staged.stages)
    assert staged.effective_mfu == pytest.approx(done / staged.wall.mean(), rel=1e-3)


def test_stages_that_set_nothing_are_one_run() -> None:
    """Up to noise, and the checkpoint at the end of each."""
    parts = train_stages(scenario(stages=[{"until": "1T"}, {}]), played=60)
    whole = simcluster.train(load("tiny_dp", {"run": RUN}), played=60)
    error = np.hypot(*(each.std(ddof=1) / np.sqrt(60) for each in (parts.wall, whole.outcomes.wall)))
    assert abs(parts.wall.mean() - whole.outcomes.wall.mean()) < 4 * error + 20
    one, other = parts.stages
    assert not np.array_equal(one.outcomes.strikes, other.outcomes.strikes)


def test_json_keys_are_those_of_the_contract(staged: StagedTraining) -> None:
    assert undescribed("A run of stages", {**staged.to_dict(), "runs": 0}) == []


def test_the_command_plays_stages(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["train", "tiny_dp", "--played", "2", "--run.tokens", "1T"]
    argv += ["--set", "run.checkpoint={stall: 5 s, every: 2 h}"]
    argv += ["--set", "run.stages=[{until: 200B, set: {training.global_batch: 64}}, {}]"]
    assert cli.main(argv) == 0
    text = capsys.readouterr().out
    for words in ("2 runs of 2 stages", "stage 1: training.global_batch: 64", "stage 2: as the scenario", "1.000T"):
        assert words in text
    assert cli.main(["advise", "interval", *argv[1:2], *argv[4:], "--played", "2"]) == 2
    assert "does not support run.stages; add --set run.stages=null" in capsys.readouterr().err
    assert cli.main([*argv, "--vary", "run.price=1,2"]) == 0
    assert "3 policies, 2 runs of each" in capsys.readouterr().out


def test_policies_of_stages_are_their_runs_side_by_side(staged: StagedTraining) -> None:
    found = simcluster.compare_policies({"now": scenario(), "dear": {"run.price": 20.0}}, measure="dollars", played=40)
    now, dear = found.runs.values()
    assert isinstance(now, StagedTraining)
    np.testing.assert_array_equal(now.wall, staged.wall)
    assert now.stages[1].states == staged.stages[1].states
    assert now.stages[1].notes == staged.stages[1].notes
    np.testing.assert_array_equal(now.goodput_by_run, dear.goodput_by_run)
    assert now.dollars_by_run is not None
    table = found.tables["dollars"]
    assert table.loc["now", "mean"] == pytest.approx(now.dollars_by_run.mean())
    assert table.loc["dear", "difference"] == pytest.approx((dear.dollars_by_run - now.dollars_by_run).mean())
    assert found.best == "now"


def test_what_the_command_writes_of_stages(tmp_path: Path) -> None:
    argv = ["train", "tiny_dp", "--played", "2", "--run.tokens", "1T", "-q", "--gantt", str(tmp_path / "weeks.svg")]
    argv += ["--set", "run.checkpoint={stall: 5 s, every: 2 h}", "--fates", str(tmp_path / "fates.svg")]
    argv += ["--set", "run.stages=[{until: 200B, set: {training.global_batch: 64}}, {change: 10 min}]"]
    argv += ["--log", str(tmp_path / "log.csv"), "--weeks", str(tmp_path / "weeks.csv")]
    argv += ["--plot", str(tmp_path / "plot.svg"), "--power", str(tmp_path / "power.svg")]
    assert cli.main(argv) == 0
    assert "week (each stage begins one)" in (tmp_path / "plot.svg").read_text()
    assert "stage 2: " in (tmp_path / "power.svg").read_text()
    assert "stage 2, week 1" in (tmp_path / "weeks.svg").read_text()
    assert "stage 1" in (tmp_path / "fates.svg").read_text()
    log = pd.read_csv(tmp_path / "log.csv")
    ends = log.groupby("stage")["end_s"].max()
    assert log.groupby("stage")["begin_s"].min()[2] == pytest.approx(ends[1] + 600)
    assert set(pd.read_csv(tmp_path / "weeks.csv")["stage"]) == {1, 2}


def test_the_log_of_stages_is_as_long_as_the_run(staged: StagedTraining) -> None:
    assert staged.log["end_s"].max() == pytest.approx(staged.wall[0])
    for stage in staged.stages:
        assert stage.log["end_s"].max() == pytest.approx(stage.outcomes.wall[0])
    assert staged.weeks.groupby("stage").size().tolist() == [len(stage.weeks) for stage in staged.stages]


@pytest.mark.parametrize(
    ("run", "stages", "words"),
    [
        ({"tokens": None, "days": "3 d"}, [{}], "so the run must also end by tokens: set run.tokens"),
        ({}, [{}, {"until": "1T"}], "stages.0.until: is required (optional only for the last stage)"),
        (
            {},
            [{"until": "4T"}, {}],
            "stages.0.until: stage 1 ends at 4e+12 tokens, but the run ends at 3e+12 and has later stages",
        ),
        (
            {},
            [{"until": "1T"}, {"until": "2T"}],
            "stage 2 is the last and ends at 2e+12 tokens, but the run ends at 3e+12",
        ),
        ({}, [{"until": "2T"}, {"until": "1T"}, {}], "stage 2 ends at 1e+12 tokens and begins at 2e+12"),
        ({}, [{"until": "3 steps"}, {}], "3 steps"),
        ({}, [{"set": {"run.days": "3 d"}}], "run.days is a key of the run, not of a stage"),
        ({}, [{"set": {"training.global_batch": 7}}], "stage 1: "),
        ({}, [{"set": {"training.batch": 8}}], "stage 1: "),
    ],
)
def test_bad_stages_are_one_message(run: dict[str, Any], stages: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        split_into_stages(scenario({**RUN, **run}, stages))
    assert words in str(caught.value)


@pytest.mark.parametrize("played", [0, -3, 2.5, True, "3"])
def test_runs_are_a_whole_number(played: Any) -> None:
    for whole in (scenario(), load("tiny_dp", {"run": RUN})):
        with pytest.raises(InputError, match=r"must be a whole number( of at least 1|, got .*; write played=)"):
            simcluster.train(whole, played=played)


def test_a_run_without_stages_names_the_other_way() -> None:
    with pytest.raises(InputError, match=r"simulate it with simcluster\.train$"):
        train_stages(load("tiny_dp", {"run": RUN}))
