"""Lemons: machines of a bad batch that fail again and again, and the rules by which one is retired."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from long_run_forms import is_near

from simcluster.base.errors import InputError
from simcluster.longrun.checkpoint_pattern import CheckpointPattern, SnapshotCost
from simcluster.longrun.long_run import DefectiveBatch, FailureMode, LongRun, RunOutcomes, SpareNodes
from simcluster.longrun.part_lifetimes import should_retire_node
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies.advice import advise
from simcluster.longrun.studies.advice_nodes import expected_extra_failures, expected_healthy_retired
from simcluster.longrun.studies.training import train
from simcluster.scenario.run_times import FixedTime
from simcluster.scenario.scenario import load

DAY = 86400.0
MACHINES, BAD, TIMES = 50, 10, 20.0
EACH = 1 / (100 * DAY)


def run_of(bad: DefectiveBatch, days: float = 400) -> LongRun:
    """Nothing takes time, so that failures are a Poisson process of the wall."""
    cause = FailureMode("node", "stop", MACHINES * EACH, MACHINES, defective_batch=bad)
    return LongRun(CheckpointPattern(10.0, 60, SnapshotCost(0.0)), (cause,), machines=MACHINES, until=days * DAY)


def strikes(bad: DefectiveBatch, runs: int = 400) -> np.ndarray:
    return simulate_runs(run_of(bad), 5, runs).strikes[:, 0].astype(float)


def same(one: RunOutcomes, other: RunOutcomes) -> bool:
    return bool((one.wall == other.wall).all() and (one.strikes == other.strikes).all())


@pytest.mark.parametrize(
    ("failures", "rule", "limit", "window", "retired"),
    [
        ([0.0, 3.0, 6.0], "window", 2, 4.0, True),
        ([1.0, 6.0], "window", 2, 4.0, False),
        ([0.0, 3.0, 6.0], "window", 3, math.inf, True),
        ([1.0, 6.0], "window", 3, math.inf, False),
        ([6.0], "window", 1, 0.1, True),
        ([0.0, 3.0, 6.0], "fading", 1.7, 3.0, True),  # 1 + 1/2 + 1/4
        ([1.0, 6.0], "fading", 1.7, 3.0, False),  # 1 + 2^(-5/3) = 1.31
        ([6.0], "fading", 1.7, 3.0, False),
    ],
)
def test_rules(
    failures: list[float], rule: Literal["window", "fading"], limit: float, window: float, retired: bool
) -> None:
    assert should_retire_node(failures, rule, limit, window) == retired


@pytest.mark.parametrize("limit", [1, 3])
def test_each_lemon_fails_as_often_as_it_may(limit: int) -> None:
    """Failures beyond those of healthy machines: n of each, less those of a healthy one in the time that takes."""
    healthy = MACHINES * EACH * 400 * DAY
    assert is_near(strikes(DefectiveBatch(BAD, TIMES, 0.0, limit)), healthy + BAD * limit * (1 - 1 / TIMES))


@pytest.mark.parametrize("window", [1 * DAY, 5 * DAY])
def test_two_failures_in_a_window(window: float) -> None:
    """Gaps of a lemon of rate r are exponential: 1 + 1 / (1 - e^(-r W)) failures until two are so near."""
    often = 1 + 1 / (1 - math.exp(-TIMES * EACH * window))
    expected = MACHINES * EACH * 400 * DAY + BAD * often * (1 - 1 / TIMES)
    assert is_near(strikes(DefectiveBatch(BAD, TIMES, 0.0, 2, window)), expected)


@pytest.mark.parametrize(("cured", "limit", "days"), [(0.0, math.inf, 60), (0.3, math.inf, 60), (0.3, 2, 20)])
def test_failures_of_lemons_that_may_be_cured(cured: float, limit: float, days: float) -> None:
    run = run_of(DefectiveBatch(BAD, TIMES, cured, 0.0 if math.isinf(limit) else limit), days)
    found = simulate_runs(run, 6, 400).strikes[:, 0].astype(float)
    healthy = MACHINES * EACH * days * DAY
    assert is_near(found, healthy + expected_extra_failures(run, run.causes[0], limit, days * DAY))


def test_a_rule_of_one_is_a_sure_cure_and_a_short_window_is_never() -> None:
    cured, never = (
        simulate_runs(run_of(bad, 100), 2, 20)
        for bad in (DefectiveBatch(BAD, TIMES, 1.0), DefectiveBatch(BAD, TIMES, 0.0))
    )
    assert same(simulate_runs(run_of(DefectiveBatch(BAD, TIMES, 0.0, 1), 100), 2, 20), cured)
    assert same(simulate_runs(run_of(DefectiveBatch(BAD, TIMES, 0.0, 2, 1e-6), 100), 2, 20), never)
    assert same(simulate_runs(run_of(DefectiveBatch(BAD, TIMES, 0.0, 1.9, 1e-6, "fading"), 100), 2, 20), never)
    assert not same(cured, never)


def test_a_new_machine_takes_its_time() -> None:
    """Each of the retired is away once for as long as a new one takes: 10 waits of it, of a job without spares."""
    bad = DefectiveBatch(BAD, 1e5, 0.0, 1, replaced=FixedTime(seconds="20 d"))
    run = run_of(bad)
    cause = replace(run.causes[0], rate=run.causes[0].rate / 1000, repair=FixedTime(seconds="1 s"))
    outcomes = simulate_runs(replace(run, causes=(cause,), spares=SpareNodes()), 1, 20)
    waiting = outcomes.seconds_by_category()["waiting"]
    few = outcomes.strikes[:, 0] - BAD  # of healthy ones
    np.testing.assert_allclose(waiting, BAD * 20 * DAY + few, rtol=1e-9)


def test_healthy_machines_are_retired_by_chance() -> None:
    run = run_of(DefectiveBatch(0, 1.0))
    cause, seconds = run.causes[0], 400 * DAY
    assert expected_healthy_retired(run, cause, 1, math.inf, seconds) == pytest.approx(50 * (1 - math.exp(-4)))
    assert expected_healthy_retired(run, cause, 2, math.inf, seconds) == pytest.approx(50 * (1 - 5 * math.exp(-4)))
    draws = np.random.default_rng(1)
    gaps = draws.exponential(1 / EACH, (20_000, 20))
    found = ((gaps[:, 1:] < 2 * DAY) & (gaps.cumsum(axis=1)[:, 1:] < seconds)).any(axis=1)
    error = 4 * math.sqrt(found.mean() / len(found)) + found.mean() * 0.05
    assert abs(expected_healthy_retired(run, cause, 2, 2 * DAY, seconds) / 50 - found.mean()) < error
    rarer = [expected_healthy_retired(run, cause, 3, window, seconds) for window in (DAY, 10 * DAY, math.inf)]
    assert rarer == sorted(rarer)


NODE = {"name": "node", "of": "host", "mtbf": "100 d", "repair": "1 h", "detect": "20 min"}
LEMON = {"share": "25%", "times": 200, "cured": "0%"}


def test_the_advice_weighs_lemons_against_healthy_machines() -> None:
    run = {"days": "20 d", "failures": [NODE | {"bad": LEMON}], "checkpoint": {"stall": "5 s", "every": "10 min"}}
    scenario = load("tiny_dp", {"run": run, "cluster.gpus": 8, "cluster.gpus_per_host": 1})
    found = advise("bad-batch", scenario, played=60)
    healthy = found.table["healthy_ever"].to_numpy()
    assert healthy[1] < 1 < healthy[0]  # six of them, a failure each 100 d
    assert "Retiring a node after 2 failures" in found.sentence
    gains = found.table["ever"].to_numpy()
    assert (np.diff(gains) <= 0).all()
    assert gains[0] > found.table["ever_half_width"].iloc[0]
    assert (found.table["window"] <= found.table["ever"] + 1e-12).all()


def test_what_makes_no_sense_is_refused() -> None:
    for bad, message in (
        ({"retire": 2, "rule": "fading"}, "'rule: fading' requires this key"),
        ({"within": "7 d"}, "as in retire: 3"),
        ({"retire": 2, "within": "0 s"}, "must be a time above 0"),
    ):
        with pytest.raises(InputError, match=message):
            load("tiny_dp", {"run": {"days": "1 d", "failures": [NODE | {"bad": LEMON | bad}]}})
    endless = {"steps": 10**6, "failures": [NODE | {"bad": LEMON | {"share": "100%", "times": 1e5}}]}
    with pytest.raises(InputError, match="would practically never end"):
        train(load("tiny_dp", {"run": endless | {"checkpoint": {"stall": "5 s", "every": "10 min"}}}), played=1)
    with pytest.raises(InputError, match="no failure has defective nodes"):
        advise(
            "bad-batch",
            load("tiny_dp", {"run": {"days": "1 d", "failures": [NODE], "checkpoint": {"stall": "1 s"}}}),
            played=2,
        )
