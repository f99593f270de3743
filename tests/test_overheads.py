"""What memory holds besides state and activations: buffers, fragmentation, temporaries; and every k-th layer."""

from __future__ import annotations

from typing import Any

import pytest
from activation_bytes import activation_bytes_per_layer, gradients_of, head_activation_bytes, lm_head_working_bytes
from conftest import Tiny, tiny_scenario
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.devices.device import memory_kernel_seconds
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.model.flops import hardware_flops_per_sequence, layer_flops, model_flops_per_sequence
from simcluster.model.layers import RankShape
from simcluster.model.memory import activation_bytes
from simcluster.model.recipes import RECIPES, recipe_named
from simcluster.model.shard_widths import padded_vocab_size
from simcluster.model.transformer import Model
from simcluster.planning.footprint import Footprint
from simcluster.planning.owned_parameters import megatron_te_buffer_bytes, nccl_buffer_bytes
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.scenario.scenario import from_document
from simcluster.step.simulate import simulate
from simcluster.traffic.nccl.platforms import load_platform

LLAMA = Model(**{**load_model_entry("llama3-70b"), "sequence_length": 4096})
FOUR: dict[str, Any] = {"cluster": {"topology": "flat", "gpus": 4}, "parallel": {"pp": 2}}


def planned(**sections: Any) -> tuple[Footprint, ...]:
    return plan_footprints(tiny_scenario(**{**FOUR, **sections}))


def test_nothing_is_added_unless_asked_for() -> None:
    for each in planned():
        assert (each.buffers, each.fragmentation, each.unsharded) == (0.0, 1.0, 0.0)


@given(st.floats(1, 4))
def test_fragmentation_is_a_factor_on_what_comes_and_goes(factor: float) -> None:
    for plain, lossy in zip(planned(), planned(memory={"fragmentation": factor}), strict=True):
        lost = (factor - 1) * (plain.activations + plain.other)
        assert lossy.activations == plain.activations
        assert lossy.other == pytest.approx(plain.other + lost, rel=1e-12)
        assert lossy.parameters + lossy.gradients + lossy.optimizer == (
            plain.parameters + plain.gradients + plain.optimizer
        )


def test_a_run_loses_what_the_plan_does_and_adds_up(tiny: Tiny) -> None:
    memory = {"fragmentation": 1.25, "workspace": "1 MB", "communication_buffers": "2 MB"}
    plain, lossy = simulate(tiny(**FOUR)), simulate(tiny(**FOUR, memory=memory))
    moving = plain.memory.activations + plain.memory.other
    assert lossy.memory.total == pytest.approx(plain.memory.total + 0.25 * moving + 3e6, rel=1e-12)
    values = lossy.to_dict()
    assert sum(values["memory_bytes"].values()) == pytest.approx(values["peak_memory_bytes"], rel=1e-12)
    assert values["memory_bytes"]["other"] == lossy.memory.other + 3e6
    assert lossy.step_time == plain.step_time


def test_nccl_takes_channels_times_buffers_for_both_directions_of_every_group() -> None:
    one_set = 4 * 2**20 + 4_915_200 + 512 * 2**10
    h100 = load_platform("dgx-h100")
    channels = h100.channel_graphs(2).ring.channels
    assert nccl_buffer_bytes(ParallelPlan(tp=8, dp=2), h100, machines=2) == 2 * 2 * channels * one_set
    assert nccl_buffer_bytes(ParallelPlan(tp=2), None, machines=1) == 2 * 16 * one_set
    assert nccl_buffer_bytes(ParallelPlan(), h100, machines=1) == 0
    automatic = planned(memory={"communication_buffers": "auto"})
    assert {each.buffers for each in automatic} == {2 * 2 * 16 * one_set}  # pp 2, dp 2


def test_megatron_te_keeps_a_gradient_for_each_shape_of_weight() -> None:
    h, q, kv, f, vocab = 8192, 8192, 1024, 28672, 128256
    layer = 2 * (h * (q + 2 * kv) + q * h + 3 * h * f)
    assert megatron_te_buffer_bytes(LLAMA, RankShape(1), [0, 1], last=False) == layer
    assert megatron_te_buffer_bytes(LLAMA, RankShape(1), [0, 1], last=True) == layer + 2 * vocab * h
    split = RankShape(1, tp=8, sequence_parallel=True)
    assert megatron_te_buffer_bytes(LLAMA, split, [0], last=False) == layer / 8
    padded = 126 * 1024
    assert megatron_te_buffer_bytes(LLAMA, split, [0], last=True) == layer / 8 + 2 * padded * h / 8 + 2 * 4096 * h


def test_a_loss_in_place_keeps_the_16_bit_logits_alone() -> None:
    logits = 4096 * 128256
    usual, fused = RankShape(1), RankShape(1, logits="in-place")
    assert head_activation_bytes(LLAMA, usual) - head_activation_bytes(LLAMA, fused) == 2 * logits
    assert (lm_head_working_bytes(LLAMA, usual), lm_head_working_bytes(LLAMA, fused)) == (2 * logits, 0)


def test_temporaries_of_a_backward() -> None:
    n, h, f = 4096, 8192, 28672
    assert gradients_of("mlp", LLAMA, RankShape(1)) == 0
    assert gradients_of("mlp", LLAMA, RankShape(1, temporaries=True)) == 2 * n * (h + 2 * f)
    split = RankShape(1, tp=8, sequence_parallel=True, temporaries=True)
    assert gradients_of("mlp", LLAMA, split) == 2 * n * (h + h / 8 + 2 * f / 8)
    assert gradients_of("lm_head", LLAMA, split) == 2 * n * (h + h / 8)
    assert gradients_of("embedding", LLAMA, split) == 0


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_temporaries_only_add_and_the_run_agrees(recompute: str, tiny: Tiny) -> None:
    training = {"global_batch": 4, "recompute": recompute}
    plain, more = (simulate(tiny(training=training, memory={"backward_temporaries": on})) for on in (False, True))
    assert more.memory.total > plain.memory.total
    (footprint,) = more.facts.footprints
    assert more.memory.total == pytest.approx(footprint.total, rel=1e-12)


# --- recipes ----------------------------------------------------------------------------------------------------------


def test_fp8_recipes_gather_what_is_the_weight_and_not_its_copies() -> None:
    gathered = {name: recipe.gathered_weight for name, recipe in RECIPES.items() if name.startswith("fp8")}
    assert gathered == {"fp8-20": 2, "fp8-19": 2, "fp8-18": 2, "fp8-params-18": 1, "fp8-params-17": 1,
                        "fp8-params-16": 1, "fp8-aware-14": 2, "fp8-params-14": 1, "fp8-13": 1}  # fmt: skip
    assert recipe_named("nvfp4-19").gathered_weight == recipe_named("nvfp4-17").gathered_weight == 2
    assert all(
        recipe.gathered_weight == recipe.weight for name, recipe in RECIPES.items() if name[:3] not in ("fp8", "nvf")
    )
    h100 = {"topology": "flat", "gpus": 4, "device": "h100"}
    training = {"global_batch": 4, "precision": "fp8-mixed"}
    kept = [planned(cluster=h100, training={**training, "memory_recipe": name})[0] for name in ("fp8-20", "mixed-18")]
    assert kept[0].parameters == 4 / 2 * kept[1].parameters
    assert recipe_named("fp8-13").total == 13


# --- every k-th layer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("every", [1, 2, 3, 4, 9])
def test_every_kth_layer_is_recomputed_and_no_other(mode: str, every: int, tiny: Tiny) -> None:
    """Layers 0, k, 2 k of four run again on the device, are kept small, and count in the hardware's FLOPs."""
    training = {"global_batch": 4, "recompute": mode, "recompute_every": every, "attention": "unfused"}
    result = simulate(tiny(training=training, cluster={"topology": "flat", "gpus": 2}, parallel={"pp": 2}))
    timeline = result.timeline
    again = range(0, 4, every)
    assert set(timeline[timeline["kind"] == "recompute"]["layer"]) == set(again)
    model, again_shape = result.scenario.model, RankShape(1, recompute=mode, attention="unfused")  # type: ignore[arg-type]
    plain = activation_bytes_per_layer(model, RankShape(1, attention="unfused"))
    less = activation_bytes_per_layer(model, again_shape)
    first = [less if layer in again else plain for layer in (0, 1)]
    working = sum(activation_bytes(model, RankShape(1, attention="unfused")).values()) - less
    footprint = result.facts.footprints[0]
    assert 2 * sum(first) - working <= footprint.activations <= 2 * sum(first)  # two microbatches in flight
    own = layer_flops(model, 1)
    extra = {"selective": own.core.forward, "full": own.total.forward}[mode]
    assert result.facts.hardware_flops - result.facts.model_flops == pytest.approx(4 * len(again) * extra, rel=1e-12)


def test_less_recomputation_is_faster_and_larger(tiny: Tiny) -> None:
    results = [
        simulate(tiny(training={"global_batch": 4, "recompute": "full", "recompute_every": every}))
        for every in (1, 2, 4)
    ]
    none = simulate(tiny())
    times = [each.step_time for each in (*results, none)]
    sizes = [each.memory.activations for each in (*results, none)]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 4
    assert sizes == sorted(sizes)


@given(st.integers(1, 12), st.integers(1, 12))
def test_hardware_flops_of_every_kth_layer(layers: int, every: int) -> None:
    model = LLAMA.model_copy(update={"layers": layers})
    found = hardware_flops_per_sequence(model, "full", every=every) - model_flops_per_sequence(model)
    expected = len(range(0, layers, every)) * layer_flops(model, 1).total.forward
    assert found == pytest.approx(expected, rel=1e-9)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ({"fragmentation": 0.9}, "fragmentation"),
        ({"communication_buffers": "some"}, "auto, none or an amount"),
        ({"library": "deepspeed"}, "library"),
        ({"workspace": 64}, "workspace"),
    ],
)
def test_bad_memory_sections_name_the_key(memory: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny_scenario(memory=memory)


def test_a_document_with_amounts_reads_back() -> None:
    scenario = tiny_scenario(memory={"communication_buffers": "1 GB", "workspace": "64 MiB", "fragmentation": 1.1})
    assert from_document(scenario.document()) == scenario
    with pytest.raises(InputError, match="every = 0 must be at least 1; 1 means every layer"):
        hardware_flops_per_sequence(LLAMA, "full", every=0)


def test_gathered_logits_are_whole_on_every_rank() -> None:
    split = RankShape(1, tp=8, sequence_parallel=True)
    gathered, vocab = RankShape(1, tp=8, sequence_parallel=True, logits="gathered"), 126 * 1024
    more = head_activation_bytes(LLAMA, gathered) - head_activation_bytes(LLAMA, split)
    assert more == 4 * 4096 * (vocab - vocab / 8)
    assert lm_head_working_bytes(LLAMA, gathered) == 8 * lm_head_working_bytes(LLAMA, split) == 2 * 4096 * vocab
    alone = RankShape(1)
    assert head_activation_bytes(LLAMA, alone) == head_activation_bytes(LLAMA, RankShape(1, logits="gathered"))


def test_gathered_logits_travel_in_place_of_three_sums(tiny: Tiny) -> None:
    cluster = {"cluster": {"topology": "flat", "gpus": 4}, "parallel": {"tp": 4}}
    gathered = simulate(tiny(**cluster, memory={"logits": "gathered"}))
    calls = {(call["kind"], call["size_bytes"]) for call in gathered.collectives if call["axis"] == "tp"}
    model = gathered.scenario.model
    assert ("all_gather", 2.0 * model.sequence_length * padded_vocab_size(model, 4)) in calls
    assert not [size for kind, size in calls if kind == "all_reduce" and size == 4.0 * model.sequence_length]
    assert gathered.fit_verdict == "yes"


# --- gradients set to zero --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dp", [2, 8])
@pytest.mark.parametrize("recipe", ["mixed-16", "mixed-18"])
def test_zero_1_clears_the_whole_buffer_and_zero_2_its_shard(tiny: Tiny, dp: int, recipe: str) -> None:
    """With one microbatch nothing else differs: both reduce and gather once, and update 1/dp of the parameters."""
    steps = {}
    for zero in (1, 2):
        scenario = tiny(
            cluster={"topology": "dgx_h100", "nodes": 1}, gpus=dp, parallel={"dp": dp, "zero": zero},
            training={"global_batch": dp, "memory_recipe": recipe},
        )  # fmt: skip
        steps[zero] = simulate(scenario).step_time
    device, parts = scenario.cluster.device, recipe_named(recipe)
    whole = plan_footprints(scenario)[0].parameters / parts.weight
    cleared = memory_kernel_seconds(device, (1 - 1 / dp) * whole * parts.gradient)
    assert steps[1] - steps[2] == pytest.approx(cleared, rel=1e-6)
