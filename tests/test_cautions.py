"""What is said of a run that asks for more than it looks: gradients whole under ZeRO 2, a fused core run again."""

from __future__ import annotations

import json

import pytest
from conftest import Tiny

from simcluster import cli
from simcluster.step.simulate import simulate


@pytest.mark.parametrize(("zero", "beside", "said"), [(1, False, 0), (2, False, 1), (2, True, 0), (3, False, 0)])
def test_zero_2_says_what_it_has_whole(zero: int, beside: bool, said: int, tiny: Tiny) -> None:
    result = simulate(
        tiny(
            cluster={"topology": "flat", "gpus": 4}, parallel={"zero": zero},
            overlap={"interference": "none", "grad_reduce": beside, "bucket_size": "1 MB"},
        )
    )  # fmt: skip
    found = [text for text in result.warnings() if text.startswith("ZeRO 2")]
    assert len(found) == said
    if said:
        (state,) = result.facts.footprints
        held = max(result.memory_timeline.curve(0)[1]["gradients"]) + state.gradients
        assert held == state.gradients + state.unsharded == 5 * state.gradients  # its fourth, and the whole
        assert f"holds up to {held / 1e6:.1f} MB of gradients per GPU" in found[0]
        assert f"{4 * state.gradients / 1e6:.1f} MB unsharded" in found[0]


def test_one_replica_has_nothing_to_share(tiny: Tiny) -> None:
    assert simulate(tiny(parallel={"zero": 2})).warnings() == []


@pytest.mark.parametrize(
    ("recompute", "attention", "software", "said"),
    [
        ("selective", "fused", "ideal", True), ("selective", "fused", "megatron-core", True),
        ("selective", "fused", "torchtitan", False), ("selective", "unfused", "ideal", False),
        ("none", "fused", "ideal", False), ("full", "fused", "ideal", False),
    ],
)  # fmt: skip
def test_selective_recompute_of_a_fused_core_says_what_it_costs(
    recompute: str, attention: str, software: str, said: bool, tiny: Tiny
) -> None:
    result = simulate(tiny(training={"recompute": recompute, "attention": attention}, software=software))
    assert any("recomputes the fused attention" in text for text in result.warnings()) == said


def test_a_plan_names_the_faults_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["plan", "tiny_dp", "--vary", "parallel.tp=1", "--vary", "parallel.pp=1", "--vary", "training.micro_batch=4"]
    base += ["--vary", "training.recompute=none", "--vary", "parallel.zero=1", "--executor", "1"]
    slow = ["--set", "faults=[{kind: slow_gpu, rank: 1, factor: 2}]"]
    assert cli.main([*base, *slow]) == 0
    assert "times and memory exclude the scenario's faults (slow_gpu)" in capsys.readouterr().out
    assert cli.main([*base, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["faults_left_out"] == []
