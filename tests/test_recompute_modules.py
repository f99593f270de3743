"""Recompute by module: what each frees, which kernels and collectives it runs again, and what FLOPs count of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from simcluster import InputError, simulate
from simcluster.model.flops import hardware_flops_per_sequence, model_flops_per_sequence
from simcluster.model.kernel_choices import RECOMPUTE_MODULES, RecomputeModule
from simcluster.model.layers import RankShape
from simcluster.model.memory import activation_bytes
from simcluster.model.transformer import Model
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.work_kinds import Collective
from simcluster.results.result import Result
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.scenario.memory_plan import offload_of, shape_of
from simcluster.scenario.scenario import load

MLA = {"q_lora_rank": 192, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
MOE = {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256, "shared_experts": 1, "first_dense_layers": 1}
FIELDS: dict[str, Any] = {
    "layers": 2, "hidden_size": 512, "heads": 8, "vocab_size": 1024, "sequence_length": 128, "gated_mlp": True,
    "ffn_hidden_size": 1024, "mla": MLA, "moe": MOE,
}  # fmt: skip
MODEL = Model.model_validate(FIELDS)
DENSE, MIXED = 0, 1
PLAIN = RankShape(1, ep=4)

FREED: dict[RecomputeModule, tuple[set[str], set[str]]] = {
    "core_attn": ({"log_sum_exp"}, {"log_sum_exp"}),
    "moe_act": (set(), {"experts_product"}),
    "layernorm": ({"latent_input"}, {"latent_input", "mlp_input"}),
    "mla_up_proj": ({"latent_normed", "query", "key", "value"}, {"latent_normed", "query", "key", "value"}),
    "mlp": ({"mlp_input", "gate", "up", "mlp_product"}, set()),
    "shared_experts": (set(), {"shared_gate", "shared_up", "shared_product"}),
    "moe": (
        set(),
        {"router_probabilities", "experts_input", "experts_gate", "experts_up", "experts_product", "experts_output",
         "shared_gate", "shared_up", "shared_product"},
    ),
}  # fmt: skip
"""Tensors that go, of a dense layer and of one with experts (Megatron-LM, transformer_config.py: recompute_modules)."""


def selective(*modules: RecomputeModule, **fields: Any) -> RankShape:
    return replace(PLAIN, recompute="selective", modules=modules, **fields)


@cache
def played(modules: tuple[str, ...] | str, **fields: Any) -> Result:
    training = {"global_batch": 16, "recompute": modules if isinstance(modules, str) else list(modules)}
    sections = {"model": FIELDS, "training": training, "memory": {"backward_temporaries": True}}
    parallel = {"ep": 4, "pp": 1, "tp": 1, "zero": 1}
    return simulate(load({"cluster": {"topology": "flat", "gpus": 4}, **sections, "parallel": parallel}))


@pytest.mark.parametrize("module", RECOMPUTE_MODULES)
@pytest.mark.parametrize("layer", [DENSE, MIXED])
def test_a_module_frees_its_tensors_alone(module: RecomputeModule, layer: int) -> None:
    before, after = (activation_bytes(MODEL, shape, layer) for shape in (PLAIN, selective(module)))
    assert set(before) - set(after) == FREED[module][layer]
    assert all(before[name] == size for name, size in after.items())


@pytest.mark.parametrize("module", RECOMPUTE_MODULES)
def test_a_run_holds_what_was_counted_and_pays_for_what_it_freed(module: RecomputeModule) -> None:
    plain, again = played("none"), played((module,))
    (counted,) = plan_footprints(again.scenario)
    assert again.memory.total == pytest.approx(counted.total, rel=1e-12)
    assert again.memory.total <= plain.memory.total
    assert again.step_time > plain.step_time
    assert again.times.breakdown["recompute"] > 0


@pytest.mark.parametrize("module", RECOMPUTE_MODULES)
def test_flops_count_the_products_that_run_again(module: RecomputeModule) -> None:
    counted = hardware_flops_per_sequence(MODEL, "selective", modules=(module,)) - model_flops_per_sequence(MODEL)
    passes = CachedPassSegmentMaker(MODEL, selective(module), lambda kernels: sum(kernel.flops for kernel in kernels),
                    overlap_tensor=False)  # fmt: skip
    ops = [
        op for part in (DENSE, MIXED) for op in passes.segment("B", PassLayers((part,))).ops if op.kind == "recompute"
    ]
    flops = sum(op.work.seconds for op in ops if not isinstance(op.work, Collective))  # type: ignore[union-attr]
    router = 2 * 128 * 512 * 8 if module == "moe" else 0  # Megatron-LM does not count it
    assert flops == pytest.approx(counted + router, rel=1e-9)


def test_a_whole_mixture_that_runs_again_sends_its_rows_again() -> None:
    """Two all-to-alls forward and two backward; with the module two more, and shared experts gather again."""

    def calls(shape: RankShape) -> dict[str, int]:
        passes = CachedPassSegmentMaker(MODEL, shape, lambda kernels: 0.0, overlap_tensor=False)
        ops = [op for op in passes.segment("B", PassLayers((MIXED,))).ops if isinstance(op.work, Collective)]
        return {name: sum(op.name == name for op in ops) for name in ("dispatch", "combine", "shared_again")}

    split = {"tp": 2, "sequence_parallel": True}
    assert calls(selective("moe_act", **split)) == {"dispatch": 0, "combine": 0, "shared_again": 0}
    assert calls(selective("shared_experts", **split))["shared_again"] == 2
    moe = calls(selective("moe"))
    assert (moe["dispatch"], moe["combine"]) == (1, 1)


def test_the_old_spelling_and_a_list_are_one() -> None:
    old, new = played("selective"), played(("core_attn",))
    assert (old.step_time, old.memory) == (new.step_time, new.memory)
    base = {"cluster": {"topology": "flat", "gpus": 4}, "model": FIELDS}
    for training in (
        {"recompute": "moe_act"},
        {"recompute": ["moe_act"]},
        {"recompute_modules": ["moe_act"]},
        {"recompute": "selective", "recompute_modules": "moe_act"},
    ):
        found = load({**base, "training": {"global_batch": 16, **training}}).training
        assert (found.recompute, found.recompute_modules) == ("selective", ("moe_act",))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training.recompute": ["moe_act"], "model.moe": None}, ["moe_act", "model.moe"]),
        ({"training.recompute": ["mla_up_proj"], "model.mla": None}, ["mla_up_proj", "model.mla"]),
        ({"training.recompute_modules": ["norm"]}, ["must be a list of modules", "layernorm"]),
        ({"training.recompute": []}, ["must be a list of modules"]),
        ({"training.recompute": ["mlp"], "training.recompute_modules": ["moe"]}, ["keep one"]),
    ],
)
def test_what_is_not_there_is_told(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as problem:
        load("tiny_3d", {**{f"model.{name}": value for name, value in FIELDS.items()}, **changes})
    assert all(word in str(problem.value) for word in words)


def test_probabilities_in_the_activation_keep_no_output_of_experts() -> None:
    inside = replace(PLAIN, probabilities="activation")
    before, after = (activation_bytes(MODEL, shape, MIXED) for shape in (PLAIN, inside))
    assert before.keys() - after.keys() == {"experts_output"}
    assert before["experts_output"] == 2 * 128 * 2 * 512


def test_inputs_of_activation_functions_in_fp8_are_half() -> None:
    small = replace(PLAIN, activation_input="fp8")
    for layer, names in ((DENSE, {"gate", "up"}), (MIXED, {"experts_gate", "experts_up", "shared_gate", "shared_up"})):
        before, after = (activation_bytes(MODEL, shape, layer) for shape in (PLAIN, small))
        assert {name for name in before if after[name] != before[name]} == names
        assert all(after[name] == before[name] / 2 for name in names)


@pytest.mark.parametrize(
    ("modules", "names"),
    [
        (["core_attn"], ["query", "key", "value"]),
        (["attn_norm", "mlp_norm"], ["attention_norm_input", "mlp_norm_input"]),
        (["moe_act"], ["experts_gate", "experts_up"]),
        (["expert_fc1", "attn_proj", "qkv_linear"], ["experts_input", "projection_input", "latent_input"]),
    ],
)
def test_inputs_of_modules_go_to_the_host(modules: list[str], names: list[str]) -> None:
    """What is not kept does not travel: with the norms run again their outputs are not there."""
    base = {"cluster": {"topology": "dgx_a100", "nodes": 1}, "gpus": 4, "model": FIELDS, "parallel": {"ep": 4}}
    for training in ({}, {"recompute": ["layernorm", "mla_up_proj"]}):
        made = load(
            {**base, "training": {"global_batch": 16, **training}, "memory": {"offload": {"modules": modules}}}
        )  # fmt: skip
        parts = activation_bytes(made.model, shape_of(made), MIXED)
        offload = offload_of(made)
        assert offload.activations == 1
        assert offload.kept_bytes_of_layers([MIXED]) == sum(parts.get(name, 0.0) for name in names)
