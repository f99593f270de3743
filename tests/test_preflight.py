"""simcluster check: every point of the checklist turns when what it looks at is wrong, and remedies are as played."""

from __future__ import annotations

import json
from functools import cache

import pytest

import simcluster
from simcluster.cli import main
from simcluster.scenario.fits import applied
from simcluster.simulate import simulate
from simcluster.whatif.preflight import CHECKS, Point, _contention, preflight, worst, written

GPT = "gpt3_175b_64xa100"


@cache
def points(name: str, *overrides: str) -> dict[str, Point]:
    return {point.name: point for point in preflight(simulate(simcluster.load(name, overrides)))}


def test_a_published_run_passes_every_point() -> None:
    found = points(GPT)
    assert len(found) == len(CHECKS)
    assert {point.verdict for point in found.values()} == {"pass"}
    assert worst(list(found.values())) == "pass"
    assert all(any(letter.isdigit() for letter in point.found) for point in found.values())


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("divisibility", ["training.global_batch=2"]),
        ("memory headroom", ["cluster.scale.memory=0.001"]),
        ("tp inside the NVLink domain", ["parallel.tp=4", "parallel.pp=1"]),
        ("batch against the critical batch", ["training.global_batch=2048"]),
        ("pipeline bubble", ["training.global_batch=2"]),
        ("exposed communication", ["cluster.scale.nvlink=0.01"]),
        ("balance of stages", ["model.vocab_size=2000000"]),
        ("launch-bound microbatches", ["cluster.scale.launch=50"]),
    ],
)
def test_each_point_turns_when_its_matter_is_wrong(name: str, overrides: list[str]) -> None:
    base = simulate(simcluster.load("tiny_3d", ["training.global_batch=8"]))
    worse = simulate(simcluster.load("tiny_3d", ["training.global_batch=8", *overrides]))
    before, after = ({check(run).name: check(run) for check in CHECKS}[name] for run in (base, worse))
    assert after.verdict != "pass"
    assert ("pass", "warn", "fail").index(after.verdict) >= ("pass", "warn", "fail").index(before.verdict)
    assert after.found != before.found


def test_rings_that_share_uplinks_turn_their_point() -> None:
    """Eight leaves with half as many uplinks as GPUs, and 64 rings, each over one GPU of every leaf."""
    changes: dict[str, object] = {
        "cluster": {"topology": "leaf_spine_512"}, "gpus": 512, "parallel": {"tp": 64, "pp": 1}, "model.heads": 64,
        "model.kv_heads": 64, "training.global_batch": 8, "overlap.grad_reduce": False,
    }  # fmt: skip
    found = _contention(simulate(simcluster.load("tiny_3d", changes)))
    assert found.verdict != "pass", found


def test_a_remedy_is_what_its_scenario_gives() -> None:
    found = points(GPT, "pipeline.schedule=1f1b")["pipeline bubble"]
    assert found.verdict == "warn"
    assert found.remedy is not None
    scenario = simcluster.load(GPT, ["pipeline.schedule=1f1b"])
    changed = applied(scenario, found.remedy.values)
    assert changed is not None
    assert simulate(changed).step_time == found.remedy.step_time < simulate(scenario).step_time
    by_hand = simcluster.load(GPT, ["pipeline.schedule=1f1b", *written(found.remedy.values)])
    assert simulate(by_hand).step_time == found.remedy.step_time


def test_changes_are_written_as_the_command_line_reads_them() -> None:
    values = {"overlap.tensor": True, "parallel.order": ("tp", "dp"), "training.micro_batch": 2}
    assert list(written(values)) == ["overlap.tensor=true", "parallel.order=[tp, dp]", "training.micro_batch=2"]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tiny_3d"]) == 0
    out = capsys.readouterr().out
    assert "FAIL  exposed communication" in out
    assert "fix, as played: --set" in out
    assert main(["check", "tiny_3d", "--strict", "--json", "-"]) == 2
    streams = capsys.readouterr()
    assert "not ready to launch" in streams.err
    listed = json.loads(streams.out)
    assert listed["verdict"] == "fail"
    assert listed["points"][0]["name"] == "divisibility"


def test_a_scenario_that_cannot_be_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tiny_3d", "--parallel.tp", "3"]) == 2
    assert "parallel" in capsys.readouterr().err
