"""Selective recompute: time, memory and FLOPs agree on whether the core attention runs again, whatever its kernel."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Tiny, tiny_scenario
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.devices.device import kernel_seconds
from simcluster.devices.software import list_software_names, load_software
from simcluster.model.context_parallel import fused_core_section
from simcluster.model.flops import layer_flops
from simcluster.model.rank_shape import local_sizes
from simcluster.results.result import Result
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.scenario.memory_plan import shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate

FUSED_LEFT_ALONE = (
    "megatron-deepspeed", "megatron-deepspeed-by-layer", "megatron-lm-2021", "megatron-lm-2022", "torch-1-eager",
    "torch-eager", "torch-compile", "torchtitan", "llm-foundry", "deepspeed-zero-3",
)  # fmt: skip


def core_seconds(scenario: Scenario) -> float:
    """One fused core attention, forward, on a rank."""
    shape = shape_of(scenario)
    (kernel,) = fused_core_section(scenario.model, shape, local_sizes(scenario.model, shape)).forward
    return kernel_seconds(scenario.cluster.device, kernel, precision="bf16")


@settings(max_examples=24)
@given(
    recompute=st.sampled_from(["none", "selective", "operators", "full"]),
    attention=st.sampled_from(["fused", "unfused"]),
    software=st.sampled_from(list_software_names()),
    schedule=st.sampled_from(["1f1b", "zb-h1"]),
    every=st.integers(1, 3),
)
def test_what_runs_again_is_in_time_and_flops_or_in_neither(
    recompute: str, attention: str, software: str, schedule: str, every: int
) -> None:
    if recompute == "operators" and attention == "unfused":
        return  # refused by name
    training = {"recompute": recompute, "attention": attention}
    if recompute in ("selective", "full"):
        training["recompute_every"] = every
    result = simulate(
        tiny_scenario(
            training=training, software=software, pipeline={"schedule": schedule}, parallel={"pp": 2},
            cluster={"topology": "flat", "gpus": 2},
        )
    )  # fmt: skip
    seconds = result.times.breakdown["recompute"]
    assert (result.hfu == result.mfu) == (seconds == 0)
    assert (seconds > 0) == (
        recompute in ("operators", "full")
        or (recompute == "selective" and (attention == "unfused" or software not in FUSED_LEFT_ALONE))
    )


@pytest.mark.parametrize("software", list_software_names())
def test_frameworks_that_run_any_core_again_are_named(software: str) -> None:
    found = load_software(software)
    assert (found is not None and found.selective == "unfused-core") == (software in FUSED_LEFT_ALONE)


@pytest.mark.parametrize("software", ["ideal", "megatron-core"])
@pytest.mark.parametrize("every", [1, 2])
def test_a_fused_core_that_runs_again_takes_its_forward_and_frees_its_statistics(
    software: str, every: int, tiny: Tiny
) -> None:
    """recompute_s = microbatches x layers x core forward; kept less 4 s b a a layer and microbatch in flight."""

    def run(**training: Any) -> Result:
        sections = {"parallel": {"pp": 2}, "cluster": {"topology": "flat", "gpus": 2}, "software": software}
        return simulate(tiny(training={"micro_batch": 2, "global_batch": 8, **training}, **sections))

    plain, again = run(), run(recompute="selective", recompute_every=every)
    scenario = again.scenario
    own = len(range(0, 2, every))  # of the layers of either stage, 0 and 1, 2 and 3
    core, launches = core_seconds(scenario), 4 * own
    assert again.times.breakdown["recompute"] == pytest.approx(launches * core, rel=1e-9)
    assert again.step_time > plain.step_time
    statistics = 4.0 * 2 * scenario.model.sequence_length * scenario.model.heads
    few, many = plan_footprints(scenario), plan_footprints(plain.scenario)
    kept = [before.activations - after.activations for before, after in zip(many, few, strict=True)]
    assert kept[0] == pytest.approx(2 * own * statistics, rel=1e-9)  # two microbatches in flight
    more = again.facts.hardware_flops - again.facts.model_flops
    assert more == pytest.approx(8 * 2 * own * layer_flops(scenario.model, 1).core.forward, rel=1e-12)
    assert again.hfu / again.mfu == pytest.approx(1 + more / again.facts.model_flops, rel=1e-12)


def test_where_a_fused_core_is_left_alone_nothing_changes(tiny: Tiny) -> None:
    none, selective = (
        simulate(tiny(training={"recompute": mode}, software="torchtitan")) for mode in ("none", "selective")
    )
    assert (selective.step_time, selective.memory) == (none.step_time, none.memory)
    assert selective.facts == none.facts


@pytest.mark.parametrize("how", ["ring", "all_gather", "all_to_all"])
def test_a_core_shared_over_cp_hands_keys_round_again(how: str, tiny: Tiny) -> None:
    """The checkpoint holds the exchange, too: one forward's calls more for each layer and microbatch."""

    def calls(recompute: str) -> int:
        sections = {"parallel": {"cp": 2, "cp_comm": how}, "cluster": {"topology": "flat", "gpus": 2}}
        result = simulate(tiny(training={"recompute": recompute}, **sections))
        return int((result.timeline["stream"] == "cp").sum())

    forward = {"ring": 1, "all_gather": 1, "all_to_all": 2}[how]
    assert calls("selective") - calls("none") == 4 * 4 * forward * 1
