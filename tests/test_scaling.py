"""From a budget to a loss as a user meets it: the command, the simulated step in it, runs that end by a loss."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_documents_cited import undescribed

import simcluster
from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.longrun.budget.critical_batch import CriticalBatch
from simcluster.longrun.budget.loss_laws import loss_law
from simcluster.longrun.scaling.scaling_result import ScalingResult, compute_optimal
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.run_builder import build_long_run
from simcluster.model.layers import parameters
from simcluster.scenario.scenario import Scenario, load
from simcluster.show import plots

SIZES = {"cluster.gpus": [4, 8, 16]}


@pytest.fixture(scope="module")
def tiny() -> Scenario:
    return load("tiny_dp")


@pytest.fixture(scope="module")
def grown(tiny: Scenario) -> ScalingResult:
    """More GPUs, each with its own part of a batch that grows."""
    return compute_optimal(tiny, loss=5.0, price=2, vary=SIZES)


# --- budgets and losses -----------------------------------------------------------------------------------------------


def test_a_budget() -> None:
    """GPT-3's, by each law: the 20 tokens per parameter of the rule, the refit's 18.7, 87 by two digits."""
    found = simcluster.compute_optimal(compute=3.15e23, parameters="175B")
    best, own = found.best, found.own
    assert best is not None
    assert own is not None
    assert (best.parameters, best.tokens, best.loss) == pytest.approx((53.02e9, 0.990e12, 1.9923), rel=5e-4)
    assert (own.tokens, own.loss) == pytest.approx((300e9, 2.0085), rel=5e-5)
    ratios = found.laws["tokens_per_parameter"]
    assert ratios["besiroglu"] == pytest.approx(18.7, abs=0.05)
    assert ratios["hoffmann-printed"] == pytest.approx(87.4, abs=0.05)
    thumb = found.laws.loc["20 tokens per parameter"]
    assert (thumb["parameters"], thumb["tokens"]) == pytest.approx((51.2e9, 1.025e12), rel=1e-3)
    assert found.laws["loss"]["besiroglu"] == best.loss
    assert "extrapolated" in found.summary()
    assert "N x 3.27, D x 3.11" in found.summary()


def test_gpus_and_days_are_a_budget() -> None:
    """GPT-3 on one GPU of 989 TFLOP/s takes 3,686.4 days."""
    found = compute_optimal(gpus=1, days=3686.4, law="hoffmann")
    assert found.compute == pytest.approx(3.15e23, rel=1e-5)
    assert "at peak, which no run reaches" in found.summary()
    half = compute_optimal(gpus="1,024", days=30, mfu="50%", price=2)
    assert half.compute == pytest.approx(1024 * 30 * 86400 * 0.5 * 989e12, rel=1e-12)
    assert half.best is not None
    assert half.request.rate.gpu_hours(half.best.compute) == pytest.approx(1024 * 720, rel=1e-9)
    assert "$1.475 M" in half.summary()


def test_a_loss() -> None:
    found = compute_optimal(parameters="7B", loss=2.0, law="hoffmann-printed", mfu="40%", price=2, serve=1e13)
    text = found.summary()
    assert "3.392T tokens" in text
    assert "4,168 days on one h100" in text
    assert "6.487B parameters on 3.889T tokens (600 per parameter): 2.811e23 FLOP" in text
    assert found.serving["parameters"].tolist() == pytest.approx([15.30e9, 11.52e9, 6.487e9, 3.756e9], rel=5e-4)
    assert found.request.critical == pytest.approx(7.3715e6, rel=1e-5)
    assert "rounded" in text
    assert "extrapolated" in text


def test_never() -> None:
    found = compute_optimal(parameters="7B", loss=1.87, law="hoffmann-printed")
    assert "never: its lowest loss is 1.8727" in found.summary()
    assert found.to_dict()["to_loss"]["tokens"] is None
    assert "no model gets below 1.69" in compute_optimal(loss=1.6, law="hoffmann-printed").summary()
    text = compute_optimal(parameters="7B", loss=2.1, unique="5B").summary()
    assert "never on 5B unique tokens" in text
    assert "x unique" in text


def test_repeated_data_take_more_tokens() -> None:
    plain, repeated = (compute_optimal(parameters="7B", loss=2.15, unique=unique) for unique in ("10T", "100B"))
    assert plain.to_loss is not None
    assert repeated.to_loss is not None
    assert plain.to_loss.tokens == plain.law.tokens_to_loss(2.15, 7e9)
    assert 1.0 < repeated.to_loss.tokens / plain.to_loss.tokens < 1.2
    five = compute_optimal(parameters="7B", tokens="1T", unique="200B")
    assert five.own is not None
    assert five.laws["own_loss"]["besiroglu"] == five.own.loss
    worth = 200e9 * (1 + 15.387756 * (1 - math.exp(-4 / 15.387756)))
    assert five.own.loss == pytest.approx(five.law.loss(7e9, worth), rel=1e-12)
    assert five.own.loss > five.law.loss(7e9, 1e12)
    assert "best and cheapest models are on fresh data" in five.summary()
    assert repeated.epochs["worth"][4] == pytest.approx(372.6e9, rel=3e-4)


@pytest.mark.parametrize(
    ("question", "line"),
    [
        ({"compute": 3.15e23}, "ScalingResult(besiroglu, 3.15e23 FLOP: 53.02B on 990.1B tokens)"),
        ({"parameters": "7B", "loss": 1.9}, "ScalingResult(besiroglu, 7B parameters, loss 1.9: never)"),
        ({"parameters": "7B", "loss": 2.1}, "ScalingResult(besiroglu, 7B parameters, loss 2.1: 620.1B tokens)"),
    ],
)
def test_one_line(question: dict[str, Any], line: str) -> None:
    found = compute_optimal(**question)
    assert repr(found) == line
    assert str(found) == found.summary()


# --- a scenario's simulated step --------------------------------------------------------------------------------------


def test_days_are_those_of_the_simulated_step(tiny: Scenario) -> None:
    found = compute_optimal(tiny, loss=5.0, price=3)
    goal = found.to_loss
    assert goal is not None
    step = simcluster.simulate(tiny).step_time
    assert goal.parameters == parameters(tiny.model).total
    assert found.request.rate.days(goal.compute) * 86400 == pytest.approx(
        goal.tokens / tiny.tokens_per_step * step, rel=1e-12
    )
    row = found.batches.iloc[0]
    assert row["steps"] == pytest.approx(
        (goal.tokens / found.request.critical) * (1 + found.request.critical / tiny.tokens_per_step)
    )
    assert row["days"] * 86400 == pytest.approx(row["steps"] * step, rel=1e-12)
    assert row["dollars"] == pytest.approx(row["days"] * 24 * 4 * 3, rel=1e-12)


def test_more_gpus_with_a_larger_batch(grown: ScalingResult) -> None:
    """t = S(B) t_step(B): shorter and dearer with every doubling, as the critical batch says."""
    table, critical = grown.batches, grown.critical_batch
    assert critical is not None
    assert table["gpus"].tolist() == [4, 8, 16]
    assert table["batch"].tolist() == [32768, 65536, 131072]
    for row in table.to_dict("records"):
        assert row["steps"] == pytest.approx(critical.steps_at(row["batch"]), rel=1e-12)
        assert row["tokens"] == pytest.approx(row["steps"] * row["batch"], rel=1e-12)
    assert (np.diff(table["days"]) < 0).all()
    assert (np.diff(table["dollars"]) > 0).all()


def test_the_same_batch_and_what_cannot_be(tiny: Scenario) -> None:
    found = compute_optimal(tiny, loss=5.0, vary={"cluster.gpus": [8, 3]}, batch="same")
    assert found.batches["batch"].tolist()[0] == 32768
    assert "gpus 3: " in found.summary()
    assert found.batches["refused"].tolist()[1]
    with pytest.raises(InputError, match="no valid variant"):
        compute_optimal(tiny, loss=5.0, vary={"cluster.gpus": [3]}, batch="same")
    with pytest.raises(InputError, match=r"x 0\.7 is not a whole number"):
        compute_optimal(tiny, loss=5.0, vary={"training.micro_batch": [1], "cluster.gpus": [2.8]})


def test_a_critical_batch_of_ones_own(tiny: Scenario) -> None:
    found = compute_optimal(tiny, loss=5.0, critical_batch="32768")
    goal = found.to_loss
    assert goal is not None
    assert found.critical_batch == CriticalBatch(32768.0, goal.tokens)
    assert found.batches["tokens"].iloc[0] == pytest.approx(2 * goal.tokens)


def test_kaplan_counts_no_embeddings(tiny: Scenario) -> None:
    found, count = compute_optimal(tiny, loss=5.0, law="kaplan"), parameters(tiny.model)
    assert found.request.parameters == count.total - count.embedding - count.lm_head
    assert "without embeddings" in found.summary()


# --- runs of weeks ----------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {"failures": "rsc-1", "checkpoint": {"stall": "1 s", "every": "100 steps"}, "price": 2}


def test_a_run_ends_by_a_loss(tiny: Scenario) -> None:
    scenario = load("tiny_dp", {"run": {**RUN, "loss": 4.5}})
    tokens = loss_law("besiroglu").tokens_to_loss(4.5, parameters(tiny.model).total)
    run = build_long_run(scenario, ClusterStateSimulator(scenario))
    assert run.goal == math.ceil(tokens / tiny.tokens_per_step)
    played = simcluster.train(scenario, played=2)
    assert played.loss == pytest.approx(4.5, abs=1e-3)
    assert "by besiroglu; the best model for the same" in played.summary()
    assert "the batch is 0.21 x the critical batch" in played.summary()
    assert played.to_dict()["loss"] == played.loss
    asked = compute_optimal(scenario)
    assert asked.request.loss == 4.5
    assert asked.request.price == 2


def test_a_run_says_what_is_asked(tiny: Scenario) -> None:
    """Its days (without failures), steps or tokens are the budget; what is given comes first."""
    step = simcluster.simulate(tiny).step_time
    days, steps = (
        compute_optimal(load("tiny_dp", {"run": {**RUN, **end}})) for end in ({"days": "2 d"}, {"steps": 1000})
    )
    assert days.own is not None
    assert steps.own is not None
    assert days.own.tokens == pytest.approx(2 * 86400 / step * tiny.tokens_per_step, rel=1e-12)
    assert steps.own.tokens == 1000 * tiny.tokens_per_step
    given = compute_optimal(load("tiny_dp", {"run": {**RUN, "days": "2 d"}}), tokens="1B")
    assert given.own is not None
    assert given.own.tokens == 1e9


def test_a_run_tells_a_loss_only_by_a_law_that_is_asked() -> None:
    own = {"form": "NDC", "E": 1.5, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28}
    silent, told = (
        simcluster.train(load("tiny_dp", {"run": {**RUN, "steps": 2000, **law}}), played=2)
        for law in ({}, {"law": own})
    )
    assert silent.loss is None
    assert "loss" not in silent.summary()
    assert told.loss == pytest.approx(loss_law(own).loss(parameters(told.scenario.model).total, told.tokens))
    assert told.scenario.document()["run"]["law"] == own


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"loss": 2.0}, "never reached: by besiroglu a model of 59.82M parameters stays above 2.76"),
        ({"loss": 5.0, "law": "llama3"}, "but no loss"),
        ({"loss": 5.0, "days": "1 d"}, "set one of days, steps, tokens or loss; got days and loss"),
    ],
)
def test_runs_that_cannot_end_so(run: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        simcluster.train(load("tiny_dp", {"run": {**RUN, **run}}), played=1)


# --- bad questions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({}, "no input is given"),
        ({"gpus": 64}, "gpus alone does not define a question; give a budget"),
        ({"compute": "much"}, "compute 'much' is not a number above zero"),
        ({"compute": 1e99}, r"compute 1e\+99: must lie between 1 and 1e\+40"),
        ({"parameters": "7", "loss": 2.0}, "parameters 7: must lie between"),
        ({"compute": 1e22, "days": 3}, "both are given"),
        ({"days": 3}, "days: the number of GPUs is unknown"),
        ({"compute": 1e22, "tokens": "1T"}, "each determines the other"),
        ({"compute": 1e22, "serve": 1e12}, "must reach is unknown"),
        ({"compute": 1e22, "vary": {"gpus": [1]}}, "no scenario is given"),
        ({"loss": 2.0, "gpus": 8, "mfu": 1.5}, "mfu 1.5 must be a share"),
        ({"scenario": "tiny_dp", "loss": 5.0, "mfu": 0.4}, "mfu: already set by the scenario"),
        ({"loss": 2.0, "device": "h10"}, "there is no device 'h10'"),
        ({"loss": 2.0, "batch": "shrinks"}, "must be 'grows'"),
    ],
)
def test_bad_questions(question: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        compute_optimal(**question)


# --- the command ------------------------------------------------------------------------------------------------------


def test_json_keys_are_those_of_the_contract(grown: ScalingResult) -> None:
    budget = compute_optimal(compute=1e23, parameters="7B", unique="1T", law="muennighoff")
    answers = (each.to_dict() for each in (grown, budget, compute_optimal(loss=2.0, serve=1e12)))
    assert undescribed("From a budget to a loss", *answers) == []


def test_the_command_fits_and_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    law = loss_law("besiroglu")
    rows = [f"{n},{d},{law.loss(n, d)!r}" for n in (1e8, 1e9, 1e10) for d in (1e9, 2e10, 3e11)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["parameters,tokens,loss", *rows]) + "\n")
    assert cli.main(["scaling", "--fit", str(path), "--compute", "1e22", "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    best = law.compute_optimal_size(1e22)
    assert said["fit"]["rows"] == 9
    for name in ("E", "alpha", "beta"):  # exact rows give their law back
        assert said["fit"][name] == pytest.approx(getattr(law, name), rel=5e-3)
    assert said["fit"]["largest_error"] < 1e-4
    assert said["best"]["loss"] == pytest.approx(best.loss, rel=1e-4)
    assert said["law"]["name"] == "fitted"
    assert cli.main(["scaling", "--fit", str(path), "--law", "kaplan"]) == 2
    assert cli.main(["scaling", "--compute", "1e22", "--set", "gpus=2"]) == 2


def test_pictures(grown: ScalingResult) -> None:
    """A curve a budget, the best models on them, one's own; sizes of model, and the variants that were played."""
    found = compute_optimal(compute=3.15e23, parameters="175B", price=2)
    (axes,) = plots.isoflop(found).axes
    path = next(line for line in axes.lines if line.get_label() == "best model for each budget")
    best = found.best
    assert best is not None
    assert path.get_xdata()[2] == pytest.approx(best.parameters, rel=1e-9)
    star = next(line for line in axes.lines if line.get_label() == "your model")
    assert star.get_ydata()[0] == pytest.approx(2.0085, abs=5e-5)
    for curve in axes.lines[:5]:
        assert np.asarray(curve.get_ydata()).min() >= min(path.get_ydata()) - 1e-9
    left, right = plots.costs(grown).axes
    assert any("(yours)" in str(line.get_label()) for line in left.lines)
    assert right.lines[0].get_xdata().tolist() == grown.batches["days"].tolist()
    assert right.lines[0].get_ydata().tolist() == grown.batches["dollars"].tolist()


def test_no_size_is_cheaper_than_the_best_one() -> None:
    found = compute_optimal(compute=3.15e23, parameters="175B", price=2)
    for row in found.costs.to_dict("records"):
        cheapest = found.law.cheapest_size(row["loss"])
        assert cheapest is not None
        assert row["compute"] >= cheapest.compute * (1 - 1e-9)
        assert row["dollars"] == pytest.approx(row["gpu_hours"] * 2, rel=1e-12)
