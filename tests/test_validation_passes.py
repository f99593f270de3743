"""Validations of a run: forward passes with their own bubble, and what they and checkpoints add to a step."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tiny
from test_offload import TICK, fixed_job, run_of

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.longrun.checkpoint_pattern import CheckpointPattern, SnapshotCost
from simcluster.longrun.long_run import LongRun
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator, simulate_validation
from simcluster.longrun.studies.periodic_work import list_periodic_work
from simcluster.longrun.studies.run_builder import build_long_run
from simcluster.planning.job import OffloadOptions
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate

RUN = {"days": "1 d", "checkpoint": {"stall": "60 ms", "every": "83 steps"}}


def running(name: str = "tiny_3d", more: dict[str, Any] | None = None, **run: Any) -> Any:
    return load(name, {"run": {**RUN, **run}, **(more or {})})


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("microbatches", [4, 8, 32])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_a_validation_has_a_bubble_of_its_own(tiny: Tiny, pp: int, microbatches: int, schedule: str) -> None:
    """(P - 1) / (K + P - 1), whatever the schedule: stages that take as long, and sends that take nothing."""
    scenario = tiny(
        cluster={"topology": "flat", "gpus": pp, "path_latency": "0 s"},
        gpus=pp, model={"layers": 4}, parallel={"pp": pp}, pipeline={"schedule": schedule},
        training={"global_batch": microbatches, "dropout": False}, collectives={"nccl": "none"},
    )  # fmt: skip
    job = replace(fixed_job(scenario, 1000, 2000, OffloadOptions()), send_bytes=0.0)
    found = run_of(job.forward_only_job(), scenario)
    assert found.step_time == pytest.approx((microbatches + pp - 1) * 1000 * TICK, rel=1e-6)
    assert found.times.bubble_fraction == pytest.approx((pp - 1) / (microbatches + pp - 1), rel=1e-6)


def test_a_validation_computes_forward_alone() -> None:
    for name, changes in (("tiny_dp", {}), ("tiny_3d", {}), ("tiny_dp", {"parallel.zero": 3})):
        scenario = load(name, changes)
        step, passed = simulate(scenario).times.breakdown, simulate_validation(scenario).times.breakdown
        assert passed["forward"] == pytest.approx(step["forward"], rel=1e-3)  # gathers beside it slow it
        assert passed["backward"] == passed["optimizer"] == passed["recompute"] == 0.0
        gathers = changes.get("parallel.zero") == 3
        assert (passed["exposed_dp"] > 0) == gathers  # parameters are gathered, gradients are none


def test_checkpoint_and_loader_of_the_scenario_are_not_in_it() -> None:
    more = {"data.loader": {"batch": "1 s"}, "checkpoint": {"to": "1 GB/s"}, "steps": 2}
    assert simulate_validation(load("tiny_3d", more)).step_time == simulate_validation(load("tiny_3d")).step_time


@pytest.mark.parametrize(("every", "batches", "overhead"), [(1000, 50, 0.0167), (500, 100, 0.0667), (250, 100, 0.1333)])
def test_the_overhead_is_that_of_its_batches(every: int, batches: int, overhead: float) -> None:
    """E f / V with f = F / (F + B) = 1/3."""
    pattern = CheckpointPattern(13.71, 83, SnapshotCost(60.0), validation=batches * 13.71 / 3 / every)
    spent = simulate_runs(LongRun(pattern, (), goal=8300), 0, 1).seconds_by_category()
    assert spent["validation"] / spent["productive"] == pytest.approx(overhead, abs=5e-5)
    assert spent["productive"] == pytest.approx(8300 * 13.71)
    assert sum(spent.values()) == pytest.approx(8300 * pattern.step_with_validation + 100 * 60.0)


def test_a_run_plays_one_batch_forward_and_takes_that_of_every_so_many_steps() -> None:
    scenario = running(validation={"every": "1000 steps", "batches": 50})
    states = ClusterStateSimulator(scenario)
    run = build_long_run(scenario, states)
    one = simulate_validation(scenario).step_time
    assert states.step_times["a batch of validation"] == one
    assert run.pattern.validation == 50 * one / 1000
    assert run.pattern.step == states.healthy_step_time
    measured = running(validation={"every": 200, "seconds": "3 s"})
    assert build_long_run(measured, ClusterStateSimulator(measured)).pattern.validation == pytest.approx(0.015)


def test_a_validation_that_cannot_be_is_told() -> None:
    for given in ({"batches": 3}, {"every": "20 min"}, {"every": 0}):
        with pytest.raises(InputError, match="every"):
            running(validation=given)


def test_what_comes_every_so_many_steps_is_told_by_the_step() -> None:
    result = simulate(running(validation={"every": 1000, "batches": 50}))
    checkpoint, validation = list_periodic_work(result)
    assert (checkpoint.seconds, checkpoint.interval_steps) == (0.06, 83)
    assert validation.seconds_per_step == pytest.approx(50 * simulate_validation(result.scenario).step_time / 1000)
    assert list_periodic_work(simulate(load("tiny_3d"))) == ()
    never = running(checkpoint={"stall": "60 ms"})  # auto, and nothing fails
    assert list_periodic_work(simulate(never)) == ()


def test_an_auto_interval_is_that_of_the_run() -> None:
    failures = [
        {"name": "gpu", "mtbf": "2 h"},
        {"name": "hot", "effect": "slow", "mtbf": "2 h", "by": [1.5], "lasts": "1 h"},
    ]
    scenario = running(failures=failures, checkpoint={"stall": "1 s"}, validation={"every": 100, "batches": 9})
    (row, _) = list_periodic_work(simulate(scenario))
    assert row.interval_steps == build_long_run(scenario, ClusterStateSimulator(scenario)).pattern.steps


def test_run_prints_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.json"
    changes = ["--run.days", "1 d", "--run.validation.every", "1000 steps", "--run.validation.batches", "50"]
    changes += ["--run.checkpoint.stall", "60 ms", "--run.checkpoint.every", "83 steps"]
    assert main(["run", "tiny_3d", *changes, "--json", str(out)]) == 0
    assert re.search(r"amortised +checkpoint 722.9 us per step \(60.00 ms every 83\)", capsys.readouterr().out)
    found = json.loads(out.read_text())
    rows = [found["amortised"][name]["step_s"] for name in ("checkpoint", "validation")]
    assert found["amortised"]["step_time_s"] == pytest.approx(found["step_time_s"] + np.sum(rows))


def test_train_tells_validations_and_what_they_take(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["--run.days", "1 d", "--run.checkpoint.stall", "1 s", "--run.checkpoint.every", "900 steps"]
    assert main(["train", "tiny_3d", *run, "--run.validation", "{every: 1000, seconds: 2 s}", "--played", "2"]) == 0
    text = capsys.readouterr().out
    assert "  validation   2.000 s every 1,000 steps" in text
    assert re.search(r"^    validations +\d", text, re.MULTILINE)
