"""Advice on runs of weeks: closed forms beside the simulation, golden numbers, and what every question keeps to."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.longrun import closed_forms
from simcluster.longrun.studies.advice import ADVICE, GRID, advise
from simcluster.longrun.studies.advice_nodes import SHORT
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.policy_bench import Advice, paired_difference
from simcluster.longrun.studies.policy_comparison import compare_policies, difference_table
from simcluster.longrun.studies.run_builder import build_long_run
from simcluster.longrun.studies.run_closed_forms import break_even_hours, expected_efficiency, mean_interruption
from simcluster.scenario.scenario import Scenario, load
from simcluster.show import plots

GPU = {"name": "gpu", "of": "gpu", "mtbf": "12 h"}
REPAIR = {"kind": "exponential", "mean": "12 h"}
RUN: dict[str, Any] = {
    "days": "5 d",
    "price": 2.0,
    "failures": [{**GPU, "repair": REPAIR}],
    "detection": "2 min",
    "checkpoint": {"every": "60 min", "to": "20 MB/s"},
    "restart": [{"part": "load", "takes": "2 min"}, {"part": "warm up", "takes": "6 min", "exposed": False}],
    "spares": {"hot": 6},
}
BAD = {"share": "100%", "times": 3, "cured": "10%"}
OF = {"bad-batch": {"failures": [{**GPU, "repair": REPAIR, "bad": BAD}]}}
"""What a question needs beyond that."""
PLAYED = 30


def scenario_of(**changes: Any) -> Scenario:
    """Four GPUs of which one fails every three hours."""
    return load("tiny_dp", {"run": {**RUN, **changes}})


@pytest.fixture(scope="module")
def states() -> ClusterStateSimulator:
    """Steps, played once for all tests here."""
    return ClusterStateSimulator(scenario_of())


@pytest.fixture(scope="module")
def answers(states: ClusterStateSimulator) -> Mapping[str, Advice]:
    """Every question, asked once."""
    asked = {question: scenario_of(**OF.get(question, {})) for question in ADVICE}
    return {question: advise(question, scenario, states=states, played=PLAYED) for question, scenario in asked.items()}


# --- what every question keeps to: a new entry of ADVICE is tested by these -------------------------------------------


@pytest.mark.parametrize("question", ADVICE)
def test_an_answer_is_a_sentence_on_a_table(question: str, answers: Mapping[str, Advice]) -> None:
    found = answers[question]
    assert (found.question, found.name, found.played) == (question, scenario_of().name, PLAYED)
    assert found.sentence[0].isupper() or found.sentence[0].isdigit()
    assert found.sentence.endswith(".")
    assert ". " not in found.sentence
    assert len(found.table) > 1
    assert found.table[found.picture.x].is_monotonic_increasing
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["answer"] == found.sentence
    assert len(document["table"]) == len(found.table)
    assert set(document["table"][0]) == set(found.table)


@pytest.mark.parametrize("question", ADVICE)
def test_what_is_drawn_stands_in_the_table(question: str, answers: Mapping[str, Advice]) -> None:
    found, columns = answers[question], set(answers[question].table)
    simulated = [line for line in found.picture.lines if not line.is_dashed]
    theory = [line for line in found.picture.lines if line.is_dashed]
    assert theory
    assert all(line.half_width_column for line in simulated)
    assert {line.column for line in found.picture.lines} | {line.half_width_column for line in simulated} <= columns
    x = found.table[found.picture.x]
    assert all(x.min() <= mark.x <= x.max() for mark in found.picture.marks)
    assert found.picture.marks
    figure = plots.advice(found)
    drawn = {text.get_text() for text in figure.axes[0].get_legend().get_texts()}
    assert drawn <= {line.label for line in found.picture.lines}
    assert {line.label for line in theory} <= drawn
    assert figure.axes[0].get_xlabel() == found.picture.x_label


@pytest.mark.parametrize("question", ["interval", "reliability"])
def test_the_same_again_to_the_bit(question: str, answers: Mapping[str, Advice], states: ClusterStateSimulator) -> None:
    again = advise(question, scenario_of(), states=states, played=PLAYED)
    pd.testing.assert_frame_equal(again.table, answers[question].table, check_exact=True)


def test_steps_are_played_once_for_all(states: ClusterStateSimulator, answers: Mapping[str, Advice]) -> None:
    """The healthy step, those beside a write and copies to peers, and one with a slow node for each place in the
    pipeline: there is one."""
    assert len(answers) == len(ADVICE)
    assert len(states.step_times) == 4


def test_one_run_has_no_interval(states: ClusterStateSimulator) -> None:
    with pytest.raises(InputError, match="a whole number of at least 2"):
        advise("nine", scenario_of(), states=states, played=1)


# --- each question against what is known ------------------------------------------------------------------------------


def test_the_best_interval_is_that_of_the_closed_form(states: ClusterStateSimulator) -> None:
    scenario = scenario_of(spares={"unlimited": True})
    found = advise("interval", scenario, states=states, played=100)
    run = build_long_run(scenario, states)
    known = closed_forms.best_interval(run.pattern.storage.stall, 1 / mean_interruption(run).rate)
    best = found.table.loc[found.table["goodput"].idxmax(), "interval_s"]
    assert known / GRID * 0.999 <= best <= known * GRID * 1.001
    gap = (found.table["goodput"] - found.table["closed_form"]).abs()
    assert (gap < 2 * found.table["half_width"] + 1e-3).all()  # 4 standard errors; what is not saved at the end counts


def test_spares_equal_erlang_b(states: ClusterStateSimulator) -> None:
    """Nothing but the wait stops the failures, and repairs are short against the run: Erlang B is exact."""
    quick = {"kind": "exponential", "mean": "1 h"}
    scenario = scenario_of(
        days="8 d", failures=[{**GPU, "mtbf": "4 h", "repair": quick}], detection="0 s", restart=[], spares={"hot": 1}
    )
    table = advise("spares", scenario, states=states, played=100).table
    error = table["short_half_width"] / 1.984  # Student's t of 100 runs
    assert closed_forms.erlang_b(2, 1.0) == pytest.approx(0.2)
    assert table.set_index("spares").loc[1, "erlang_b"] == pytest.approx(0.2)
    often = table["erlang_b"] > 0.01
    assert often.sum() >= 3
    assert ((table["short"] - table["erlang_b"]).abs()[often] < 4 * error[often]).all()


def test_erlang_is_not_shown_for_racks(states: ClusterStateSimulator) -> None:
    """Its nodes leave one at a time."""
    rack = {"name": "power", "of": "rack", "machines": 2, "mtbf": "9 d", "repair": REPAIR}
    found = advise("spares", scenario_of(failures=[rack], spares={"hot": 2}), states=states, played=4)
    assert found.table["erlang_b"].isna().all()
    assert "Erlang" not in found.sentence
    assert "Erlang B does not hold where a failure takes several nodes, and is not shown" in found.notes[0]


def test_the_fewest_spares_are_enough_and_one_less_is_not(answers: Mapping[str, Advice]) -> None:
    found = answers["spares"]
    short = found.table.set_index("spares")["short"]
    fewest = int(found.sentence.split()[0])
    assert short[fewest] < SHORT <= short[fewest - 1]


def test_making_spares_ready_is_not_being_short(states: ClusterStateSimulator) -> None:
    ready = scenario_of(spares={"warm": 40, "warm_ready": "10 min"})
    table = advise("spares", ready, states=states, played=4).table
    assert table["short"].iloc[-1] == pytest.approx(0, abs=1e-4)
    plenty = advise("spares", scenario_of(spares={"hot": 40}), states=states, played=4).table
    assert table["goodput"].iloc[-1] < plenty["goodput"].iloc[-1] - 0.02


def test_the_budget_of_a_restart_gives_the_target(states: ClusterStateSimulator) -> None:
    scenario = scenario_of(spares={"unlimited": True}, checkpoint={"every": "10 min", "stall": "5 s"})
    found = advise("restart", scenario, target=0.85, states=states, played=60)
    budget = next(mark for mark in found.picture.marks if mark.chosen)
    run = build_long_run(scenario, states)
    parts = budget.x - mean_interruption(run).detection
    assert parts > 0
    there = closed_forms.kept_share(run.pattern.steps * run.pattern.step, 5, parts / 4, 120 + parts * 3 / 4, 1 / 10800)
    assert there == pytest.approx(0.85, abs=4e-3)
    assert (
        list(found.second["part"]) == ["warm up", "load", "detection"] or found.second["gain"].is_monotonic_decreasing
    )
    with pytest.raises(InputError, match="between 0 and 1"):
        advise("restart", scenario, target=90, states=states, played=2)


def test_one_percent_for_thirty_days() -> None:
    """16,384 GPUs at 2.35 $/h; a restart of 10 min is paid back in 1,000 min."""
    assert break_even_hours(600, 0.01) == pytest.approx(16.67, abs=0.005)
    assert math.isinf(break_even_hours(600, 0.0))


def test_a_slow_node_costs_what_it_comes_to_by_hand(states: ClusterStateSimulator) -> None:
    """Failures are rare here: by hand is first order, without those that strike because the work takes longer."""
    rare = scenario_of(days="20 d", failures=[{**GPU, "mtbf": "8 d"}], checkpoint={"every": "30 min", "stall": "20 s"})
    found = advise("straggler", rare, slower=0.5, states=states, played=300)
    row = found.table.set_index("hours").loc[8.0]
    for way in ("left", "at_once", "checkpoint"):
        assert abs(row[f"{way}_simulated"] - row[way]) < 2 * row[f"{way}_half_width"], way
        assert row[f"{way}_half_width"] < 0.25 * row[way], way
        assert row[f"{way}_dollars"] == pytest.approx(2 * row[way])


def test_one_more_nine_is_worth_the_gpus_that_make_up_for_it(answers: Mapping[str, Advice]) -> None:
    table = answers["reliability"].table.set_index("times")
    assert (table["gpus"].diff().dropna() > 0).all()
    assert table.loc[10.0, "gpus_plain"] == pytest.approx(
        4 * (table.loc[10.0, "goodput"] / table.loc[1.0, "goodput"] - 1)
    )
    assert table.loc[10.0, "gpus"] > table.loc[10.0, "gpus_plain"]  # what is bought fails as well


def test_a_run_in_which_nothing_fails_is_refused(states: ClusterStateSimulator) -> None:
    with pytest.raises(InputError, match="no failure stops the job"):
        advise("nine", scenario_of(failures=[]), states=states, played=2)
    with pytest.raises(InputError, match="auto needs run"):
        advise("interval", scenario_of(failures=[]), states=states, played=2)
    with pytest.raises(InputError, match="no failure removes a node"):
        advise("spares", scenario_of(failures=[GPU]), states=states, played=2)


# --- policies ---------------------------------------------------------------------------------------------------------


def test_common_numbers_make_the_interval_of_a_difference_narrow() -> None:
    found = compare_policies({"60 min": scenario_of(), "40 min": {"run.checkpoint.every": "40 min"}}, played=60)
    row = found.table.loc["40 min"]
    apart = np.hypot(*found.table["half_width"])
    assert row["variance_gained"] > 4
    assert row["difference_half_width"] < apart / 2
    assert row["variance_gained"] == pytest.approx((apart / row["difference_half_width"]) ** 2)
    assert f"{100 * row['difference']:+.3f}" in found.sentence
    assert json.dumps(found.to_dict(), allow_nan=False)


def test_a_difference_of_runs_that_are_known() -> None:
    first, second = np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 4.5])
    gap = paired_difference(first, second)
    assert gap.mean == pytest.approx(7 / 6)
    assert gap.half_width == pytest.approx(4.302653 * np.std([1, 1, 1.5], ddof=1) / math.sqrt(3))
    assert gap.variance_gain == pytest.approx((1.0 + np.var(second, ddof=1)) / np.var([1, 1, 1.5], ddof=1))
    assert list(difference_table({"a": first, "b": second})["mean"]) == [2.0, pytest.approx(19 / 6)]


def test_policies_that_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="two or more policies"):
        compare_policies({"one": scenario_of()})
    with pytest.raises(InputError, match="must be a scenario"):
        compare_policies({"one": {"run.spares.hot": 1}, "other": scenario_of()})


def test_the_closed_form_knows_where_there_is_none(states: ClusterStateSimulator) -> None:
    two = {"every": "20 min", "stall": "5 s", "memory": {"storage_every": 4, "stall": "1 s", "write": "2 s"}}
    assert math.isnan(expected_efficiency(build_long_run(scenario_of(checkpoint=two), states)))


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_answers_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, run = tmp_path / "nine.png", f"run={json.dumps(RUN)}"
    assert cli.main(["advise", "nine", "tiny_dp", "--set", run, "--played", "5", "--plot", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "Ten times the reliability" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["intervl", "tiny_dp"], "did you mean 'interval'"),
        (["nine", "tiny_dp"], "has no run: section"),
        (["nine", "tiny_dp", "--slower", "1%"], "question reliability has no option slower; use it with straggler"),
        (["straggler", "tiny_dp", "--slower", "much"], "must be a share, as in 1% or 0.01"),
    ],
)
def test_a_bad_question_is_one_message(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", *argv]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


def test_a_blocking_checkpoint_of_a_program_whose_snapshot_was_measured_waits_for_the_write_as_well() -> None:
    given = {"mode": "snapshot", "to": "0.2 GB/s", "stall": "2 s", "every": "100 steps"}
    found = advise("async-checkpoint", scenario_of(checkpoint=given), played=20)
    assert "stops training for 2 s" in found.notes[0]
    blocking, write = (
        float(found.notes[0].split(words)[1].split(" s")[0]) for words in ("stops training for ", "takes ")
    )
    assert blocking == pytest.approx(2 + write, rel=1e-3)
    assert "are worth it" in found.sentence


def test_copies_in_peers_memory_are_worth_what_they_save(answers: Mapping[str, Advice]) -> None:
    """Storage alone is the row of one; the closed form of two levels says how much the others gain."""
    table = answers["memory"].table.set_index("storage_every")
    alone, best = table.loc[1], table["goodput"].idxmax()
    assert best > 1
    assert table.loc[best, "difference"] > table.loc[best, "difference_half_width"]
    gained = table.loc[best, "closed_form"] - alone["closed_form"]
    assert table.loc[best, "difference"] == pytest.approx(gained, rel=0.35)
    assert (table["interval_s"].diff().dropna() <= 0).all()  # cheaper snapshots are taken more often
