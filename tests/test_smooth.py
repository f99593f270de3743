"""Numbers of replicas next to each other take nearly the same step, and are simulated as quickly."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest

from simcluster.scenario.scenario import Scenario, load
from simcluster.step.simulate import simulate

DGX = (8, 9, 12, 16, 17, 24, 32, 33, 40, 48, 64, 65, 96)
WHOLE_RACKS = (8, 16, 24, 40, 48)
SHARED_RACKS = (10, 12, 20, 28, 44)  # at least two ranks of every group are in every rack that it reaches


def gpt3(dp: int) -> Scenario:
    """MegaScale's baseline: units of 64 machines, of which no dp but 64 fills whole ones."""
    return load(
        "gpt3_175b_64xa100",
        {
            "cluster.nodes": 2 * dp, "cluster.fabric.nodes_per_unit": 64, "gpus": 16 * dp, "model.layers": 8,
            "parallel": {"tp": 8, "pp": 2, "dp": dp, "sequence_parallel": True, "zero": 1},
            "training.global_batch": 4 * dp, "training.micro_batch": 1, "pipeline": {"schedule": "1f1b"},
        },
    )  # fmt: skip


@cache
def gb200_seconds(dp: int) -> float:
    """Return the step time of tp 4 and dp on racks of which 64 GPUs are used: 16 ranks of a group at most in one."""
    scenario = load(
        {
            "cluster": {"topology": "gb200_nvl72", "nodes": -(-dp // 8), "machine": {"trays": 16}},
            "gpus": 8 * dp,
            "model": {"preset": "llama3-70b", "layers": 16},
            "parallel": {"tp": 4, "pp": 2, "dp": dp, "sequence_parallel": True, "zero": 1},
            "training": {"global_batch": 8 * dp, "micro_batch": 1, "precision": "bf16-mixed"},
            "overlap": {"grad_reduce": True, "param_gather": True, "tensor": True},
        }
    )
    return simulate(scenario).step_time


def test_a_step_grows_evenly_with_the_number_of_replicas() -> None:
    """A ring's last bytes, (dp - 1) / dp of all, and its latency: no number of machines is a bad one."""
    seconds = {dp: simulate(gpt3(dp)).step_time for dp in DGX}
    for fewer, more in pairwise(DGX):
        assert 0 <= seconds[more] / seconds[fewer] - 1 < 0.015, (fewer, more, seconds)


@pytest.mark.parametrize("dp", SHARED_RACKS)
def test_groups_that_share_racks_use_the_nics_that_they_have(dp: int) -> None:
    seconds = {each: gb200_seconds(each) for each in (*WHOLE_RACKS, dp)}
    worst = max(seconds[each] for each in WHOLE_RACKS)
    assert seconds[dp] < 1.02 * worst, seconds


@pytest.mark.parametrize("dp", [79, 127])
def test_a_prime_number_of_replicas_folds(dp: int) -> None:
    """Units of 64 machines that groups of a prime number of machines share, each in another way."""
    result = simulate(gpt3(dp))
    assert len(result.folding.classes.rank_representatives) < 32 < result.gpus
