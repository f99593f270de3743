"""A run of weeks as a user meets it: accounts that sum, closed forms beside, the command, and Llama 3's 54 days."""

from __future__ import annotations

import ast
import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_documents_cited import undescribed

import simcluster
from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.longrun.event_log import read_event_log
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies.closed_form_comparison import compare_closed_forms
from simcluster.longrun.studies.failure_replay import resolve_log_path
from simcluster.longrun.studies.logged_failures import replace_failures_by_log
from simcluster.longrun.studies.run_chunks import MOST_PER_CHUNK, _split_chunks
from simcluster.longrun.studies.training import TrainingRun, train
from simcluster.scenario.run_times import FixedTime
from simcluster.scenario.scenario import load

BY_NONE = ["productive", "checkpoint", "write", "verification", "validation"]
"""Fates that no cause has."""

RUN: dict[str, Any] = {
    "days": "21 d",
    "failures": {
        "also": [
            {
                "name": "machine",
                "of": "host",
                "count": 400,
                "within": "54 d",
                "repair": {"kind": "exponential", "mean": "6 h"},
            },
            {"name": "hot", "effect": "slow", "count": 40, "within": "54 d", "by": [1.2], "lasts": "3 h"},
            {"name": "flap", "of": "nic", "effect": "pause", "count": 60, "within": "54 d", "lasts": "2 min"},
        ]
    },
    "checkpoint": {"stall": "20 s"},
    "restart": [{"part": "stop", "takes": "1 min", "exposed": False}, {"part": "warm up", "takes": "4 min"}],
    "spares": {"warm": 3},
    "wrong_diagnosis": 0.1,
    "maintenance": {"every": "3 d", "lasts": "30 min"},
    "price": 2.0,
    "achievable_mfu": "50%",
}
PLAIN: dict[str, Any] = {
    "steps": 80_000_000,
    "failures": {"also": [{"name": "host", "of": "host", "count": 300, "within": "30 d"}]},
    "checkpoint": {"stall": "30 s", "every": "30 min"},
    "restart": [{"part": "warm up", "takes": "5 min"}],
}


def trained(run: dict[str, Any], played: int = 60, **more: Any) -> TrainingRun:
    return train(load("tiny_dp", {"run": run}), played=played, **more)


@pytest.fixture(scope="module")
def training() -> TrainingRun:
    return trained(RUN)


@pytest.fixture(scope="module")
def plain() -> TrainingRun:
    return trained(PLAIN, played=400)


# --- accounts ---------------------------------------------------------------------------------------------------------


def test_fates_sum_to_the_wall_of_every_run(training: TrainingRun) -> None:
    spent = training.outcomes.seconds_by_category()
    assert np.allclose(sum(spent.values()), training.outcomes.wall, rtol=1e-12)
    assert all((seconds >= -1e-6).all() for seconds in spent.values())
    assert training.breakdown["mean_s"].sum() == pytest.approx(training.outcomes.wall.mean(), rel=1e-12)
    assert training.breakdown["share"].sum() == pytest.approx(1, rel=1e-12)
    shown = [fate for fate, share in training.breakdown["share"].items() if share > 1e-9]
    assert {"productive", "checkpoint", "lost", "slow", "detection", "diagnosis", "waiting", "restart"} < set(shown)
    assert {"pause", "maintenance"} < set(shown)


def test_causes_sum_to_the_fates(training: TrainingRun) -> None:
    breakdown, causes = training.breakdown, training.causes
    for fate in breakdown.index.difference(BY_NONE):
        assert causes[f"{fate}_s"].sum() == pytest.approx(breakdown.loc[fate, "mean_s"], rel=1e-9, abs=1e-6)
    assert causes["all_s"].sum() + breakdown.loc[BY_NONE, "mean_s"].sum() == pytest.approx(
        training.outcomes.wall.mean(), rel=1e-12
    )
    assert causes.loc["maintenance", "outages"] == pytest.approx(6, abs=1)
    assert causes.loc["flap", ["strikes", "outages"]].tolist() == [pytest.approx(23, rel=0.2), 0]


def test_parts_sum_to_the_restarts(training: TrainingRun) -> None:
    assert training.parts["mean_s"].sum() == pytest.approx(training.breakdown.loc["restart", "mean_s"], rel=1e-9)
    assert list(training.parts.index) == ["stop", "warm up"]


def test_weeks_sum_to_the_steps(training: TrainingRun) -> None:
    assert training.weeks["week"].tolist() == [1, 2, 3]
    assert training.weeks["goodput"].mean() == pytest.approx(training.goodput, rel=1e-9)
    assert (training.weeks["p10"] < training.weeks["p90"]).all()


def test_a_week_that_is_not_whole_counts_as_long_as_it_is(plain: TrainingRun) -> None:
    days = plain.outcomes.wall / 86400
    assert plain.weeks["runs"].tolist()[0] == 400
    assert plain.weeks["runs"].iloc[-1] == (days > 7 * (len(plain.weeks) - 1)).sum()
    assert plain.weeks["goodput"].iloc[0] == pytest.approx(plain.goodput, abs=0.01)


def test_the_log_of_the_first_run_is_the_first_run(training: TrainingRun) -> None:
    log = training.log
    assert list(log.columns) == ["begin_s", "end_s", "what", "cause", "which", "at_s", "steps", "snapshots"]
    assert log["end_s"].max() == pytest.approx(training.outcomes.wall[0])
    seconds = (log["end_s"] - log["begin_s"]).groupby(log["what"]).sum()
    for fate in ("detection", "restart", "waiting", "maintenance", "pause"):
        assert seconds[fate] == pytest.approx(training.outcomes.seconds_by_category()[fate][0], rel=1e-6)


def test_money_time_and_work(training: TrainingRun) -> None:
    hours = 21 * 24 * training.run.gpus
    assert training.days == pytest.approx(21)
    assert training.gpu_hours == pytest.approx(hours)
    assert training.dollars == pytest.approx(2.0 * (hours + training.spare_gpu_hours))
    assert training.spare_gpu_hours == pytest.approx(3 * training.run.gpus / training.run.machines * 21 * 24)
    step = training.run.pattern.step
    assert training.tokens == pytest.approx(
        training.goodput * 21 * 86400 / step * training.scenario.tokens_per_step, rel=1e-6
    )
    assert training.step_mfu == pytest.approx(simcluster.simulate(training.scenario).mfu, rel=1e-12)
    assert training.effective_mfu == pytest.approx(training.step_mfu * training.goodput)
    assert training.ettr == pytest.approx(training.goodput + training.breakdown.loc["slow", "share"])
    assert trained({**RUN, "price": None}, played=2).dollars is None


# --- closed forms -----------------------------------------------------------------------------------------------------


def test_closed_forms_hold_where_they_should(plain: TrainingRun) -> None:
    table = plain.expected.set_index("closed_form")
    assert table["explained"].all(), table[["value", "simulated", "half_width", "why"]]
    for name in ("goodput, exact", "days", "standard deviation of days"):
        row = table.loc[name]
        assert abs(row["value"] - row["simulated"]) < 2 * row["half_width"]
    assert table.loc["days", "half_width"] < 0.01 * table.loc["days", "value"]
    assert "beyond first order" in table.loc["goodput, first order", "why"]


def test_a_gap_is_explained_by_what_takes_the_time(training: TrainingRun) -> None:
    row = training.expected.set_index("closed_form").loc["goodput, exact"]
    assert row["value"] - row["simulated"] > 3 * row["half_width"]
    assert row["explained"], row["why"]
    for words in ("maintenance and its restarts", "waiting for nodes", "wrong diagnoses", "slow devices", "pauses"):
        assert words in row["why"]


def test_a_gap_that_nothing_explains_is_flagged(plain: TrainingRun) -> None:
    """With another rate than was played, no closed form is right, and the table says so."""
    (cause,) = plain.run.causes
    table = compare_closed_forms(replace(plain.run, causes=(replace(cause, rate=2 * cause.rate),)), plain.outcomes)
    flagged = table.set_index("closed_form")
    assert not flagged.loc[["goodput, exact", "failures, rate x wall", "days"], "explained"].any()
    assert "NOT EXPLAINED" in flagged.loc["goodput, exact", "why"]


@pytest.mark.parametrize("mode", [{"stall": "30 s"}, {"stall": "3 s", "write": "5 min", "mode": "snapshot"}])
def test_a_run_whose_restarts_never_end_has_no_goodput(mode: dict[str, Any]) -> None:
    run = {**PLAIN, "steps": None, "days": "30 d", "checkpoint": {**mode, "every": "30 min"}}
    found = trained({**run, "restart": [{"part": "warm up", "takes": "3e9 min"}]}, played=3)
    assert found.expected.set_index("closed_form").loc["goodput, exact", "value"] == 0.0


def test_writes_behind_training_have_their_own_form() -> None:
    run = {
        **PLAIN,
        "checkpoint": {"stall": "3 s", "write": "5 min", "mode": "snapshot", "slowed": 0.1, "every": "20 min"},
    }
    table = trained(run, played=300).expected.set_index("closed_form")
    assert "best interval, asynchronous writes" in table.index
    row = table.loc["goodput, exact"]
    assert abs(row["value"] - row["simulated"]) < 2e-3
    assert row["holds"].endswith("asynchronous checkpoints")


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "members"), [(1, 4), (7, 3), (10_000, 2), (100_001, 3)])
def test_chunks_are_all_runs_once(count: int, members: int) -> None:
    parts = list(_split_chunks(count, members))
    assert [run for first, many in parts for run in (first, first + many)][1:-1:2] == [first for first, _ in parts[1:]]
    assert sum(many for _, many in parts) == count
    assert max(many for _, many in parts) <= MOST_PER_CHUNK


# --- the command ------------------------------------------------------------------------------------------------------

ARGV = [
    "train", "tiny_dp", "--run.days", "14 d", "--run.failures", "rsc-1",
    "--set", "run.checkpoint={stall: 5 s, every: 2 h}",
]  # fmt: skip


def test_json_keys_are_those_of_the_contract(training: TrainingRun, plain: TrainingRun) -> None:
    assert undescribed("A run of weeks", training.to_dict(), plain.to_dict()) == []


def test_the_command_writes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / f"{name}.csv" for name in ("log", "weeks")}
    argv = [*ARGV, "--played", "5", "--json", str(tmp_path / "run.json")]
    assert cli.main([*argv, "--log", str(files["log"]), "--weeks", str(files["weeks"])]) == 0
    text = capsys.readouterr().out
    for words in ("  goodput  ", "wall-clock breakdown", "closed form", "1 state of the cluster", "5 runs simulated"):
        assert words in text
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["played"] == 5
    assert f"{found['goodput']:.2%}" in text
    assert files["log"].read_text().startswith("begin_s,end_s,what,cause,which,at_s,steps,snapshots\n")
    assert files["weeks"].read_text().count("\n") == 3


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--run.failures", "rsc1"], "did you mean 'rsc-1'"),
        (["--run.tokens", "300B"], "set one of days, steps, tokens"),
        (
            ["--set", "run.checkpoint={stall: 1 s, write: 1 h, every: 20 min}"],
            "a write of 3600 s must fit between two snapshots",
        ),
        (["--set", "run.checkpoint={every: 1 h}"], "run.checkpoint: needs a duration"),
        (["--played", "0"], "--played 0: simulate at least one run"),
        (["--workers", "0"], "0 processes cannot simulate anything"),
        (["--log", "events.txt"], "a table ends in .csv or .parquet"),
        (
            ["--run.days", "null", "--run.steps", "5000", "--run.restart", "[{part: load, takes: 400 d}]"],
            "the run would practically never end",
        ),
    ],
)
def test_bad_input_is_one_message(more: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*ARGV, *more]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("simcluster: error: ")
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


def test_a_scenario_without_a_run_is_told_what_one_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "tiny_dp"]) == 2
    told = capsys.readouterr().err
    assert "has no run: section" in told
    options, changes = told.split("as in ", 1)[1].split(", or in Python with_(")
    assert cli.main(["train", "tiny_dp", "--played", "2", *shlex.split(options)]) == 0
    run = load("tiny_dp").with_(ast.literal_eval(changes.strip().removesuffix(")")))
    assert simcluster.train(run, played=2).scenario.run is not None


def test_nothing_that_fails_is_a_run_too() -> None:
    found = trained({"days": "2 d", "checkpoint": {"stall": "10 s", "every": "1 h"}}, played=2)
    assert found.goodput == pytest.approx(1 / (1 + 10 / 3600), abs=1e-4)
    assert len(found.expected) == 0
    assert "nothing stops the job" in found.summary()
    with pytest.raises(InputError, match="no failure stopped the job"):
        found.restart_for(0.9)


# --- Llama 3's 54 days ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama() -> TrainingRun:
    return simcluster.train("llama3_405b_54_days", played=80)


def test_llama_3_is_interrupted_as_often_as_it_was(llama: TrainingRun) -> None:
    """419 were seen; 380 to 461 is the exact 95 % interval of a Poisson mean."""
    assert 380 < llama.numbers.loc["failures", "mean"] < 461
    assert llama.causes.loc["maintenance", "outages"] == pytest.approx(47, abs=0.2)
    shares = llama.causes["strikes"] / llama.causes["strikes"].sum()
    for cause, count in {"faulty GPU": 148, "HBM3 memory": 72, "software bug": 54, "silent data corruption": 6}.items():
        error = math.sqrt(count / 419 / 419 / llama.played)
        assert abs(shares[cause] - count / 419) < 4 * error


def test_llama_3_trains_for_more_than_nine_tenths_of_the_time(llama: TrainingRun) -> None:
    """As published: higher than 90 % effective training time; the restart that it took is not."""
    assert llama.ettr > 0.90
    assert llama.expected["explained"].all(), llama.expected["why"].tolist()
    assert "min to detect and restart" in llama.summary()


def test_the_restart_that_the_published_share_asks_for(llama: TrainingRun) -> None:
    """Played with that much, the share is the published one."""
    outage = llama.restart_for(llama.ettr)
    asked = llama.restart_for(0.90)
    assert 60 < asked - outage < 600
    stop, *others = llama.run.restart
    law = FixedTime(seconds=f"{stop.storage.mean + asked - outage!r} s")
    slower = replace(llama.run, restart=(replace(stop, memory=law, storage=law), *others))
    outcomes = simulate_runs(slower, llama.scenario.seed, 80)
    assert replace(llama, run=slower, outcomes=outcomes).ettr == pytest.approx(0.90, abs=1e-3)


def test_the_log_that_ships_is_what_it_says_it_is(llama: TrainingRun) -> None:
    """Made by the simulator: run 0 of these 54 days with seed 1, as people keep logs; replayed it gives its share."""
    made = replace(llama, scenario=llama.scenario.model_copy(update={"seed": 1}))
    text = resolve_log_path("simulated_54_days").read_text()
    assert text.splitlines()[0].startswith("# Made by simcluster, measured nowhere")
    assert text.partition("\n")[2] == made.incidents.round({"time": 1, "lasts": 1}).to_csv(index=False)
    again = simulate_runs(
        replace_failures_by_log(llama.run, read_event_log(resolve_log_path("simulated_54_days"))), 0, 4
    )
    played = simulate_runs(llama.run, 1, 1)
    assert (again.strikes == played.strikes[0]).all()
    shares = [each.seconds_by_category()["productive"][0] / each.wall[0] for each in (again, played)]
    assert shares[0] == pytest.approx(shares[1], abs=5e-4)


def test_erlang_is_shown_of_nodes_that_leave_one_at_a_time_alone() -> None:
    def forms(**rack: Any) -> list[str]:
        cause = {"name": "power", "of": "host", "mtbf": "9 d", "repair": {"kind": "exponential", "mean": "6 h"}, **rack}
        run = {"days": "9 d", "failures": [cause], "checkpoint": {"stall": "20 s"}, "spares": {"warm": 1}}
        return list(simcluster.train(load("tiny_dp", {"run": run}), played=4).expected["closed_form"])

    assert "waiting for nodes, Erlang" in forms()
    assert "waiting for nodes, Erlang" not in forms(of="rack", machines=2)
