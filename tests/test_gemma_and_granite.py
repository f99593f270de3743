"""Gemma 3, Gemma 4 and Granite 4 by name: parameters, kernels and kept tensors against forms worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from activation_bytes import activation_bytes_per_layer
from conftest import tiny_scenario

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import find_model_preset, load_model_entry
from simcluster.importers.hugging_face import (
    assumptions_of_config,
    classify_config_keys,
    count_config_parameters,
    model_from_config,
)
from simcluster.importers.named_models import find_published_model_name
from simcluster.model.flops import layer_flops
from simcluster.model.kernels import Kernel
from simcluster.model.layer_block import lm_head_block, lm_head_tensors
from simcluster.model.layers import layer_kinds, layer_matrices, parameters
from simcluster.model.memory import layer_backward_tensors
from simcluster.model.rank_shape import RankShape
from simcluster.model.transformer import Model
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate

LAYERS = ["sliding_attention"] * 5 + ["full_attention"]
GEMMA3: dict[str, Any] = {
    "model_type": "gemma3_text", "vocab_size": 262208, "sliding_window": 1024, "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 168, "final_logit_softcapping": None,
}  # fmt: skip
GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text", "vocab_size": 262144, "sliding_window": 1024, "max_position_embeddings": 262144,
    "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0, "final_logit_softcapping": 30.0, "use_bidirectional_attention": "vision",
}  # fmt: skip
GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid", "num_hidden_layers": 40, "vocab_size": 100352, "max_position_embeddings": 131072,
    "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)], "mamba_d_head": 64,
    "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_chunk_size": 256, "mamba_proj_bias": False,
    "position_embedding_type": "nope", "tie_word_embeddings": True,
}  # fmt: skip


def sizes(layers: int, hidden: int, ffn: int, heads: int, kv: int, **more: Any) -> dict[str, Any]:
    known = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": ffn}
    return {**known, "num_attention_heads": heads, "num_key_value_heads": kv, **more}


def granite_sizes(hidden: int, ffn: int, heads: int, kv: int, experts: int, top_k: int, mamba: int) -> dict[str, Any]:
    mixture = {"num_local_experts": experts, "num_experts_per_tok": top_k, "shared_intermediate_size": 2 * ffn}
    return {**GRANITE, **sizes(40, hidden, ffn, heads, kv, **mixture), "mamba_n_heads": mamba}


# What torch counts in Gemma3ForCausalLM, Gemma4ForCausalLM and GraniteMoeHybridForCausalLM of transformers 5.24, built
# of these configs on the meta device.
PRESETS: dict[str, tuple[int, dict[str, Any]]] = {
    "gemma3-12b": (11_766_034_176, GEMMA3 | sizes(48, 3840, 15360, 16, 8, head_dim=256)),
    "gemma3-27b": (27_009_346_304, GEMMA3 | sizes(62, 5376, 21504, 32, 16, head_dim=128)),
    "gemma4-31b": (
        30_697_345_280,
        GEMMA4 | sizes(60, 5376, 21504, 32, 16, num_global_key_value_heads=4, layer_types=LAYERS * 10),
    ),
    "gemma4-26b-a4b": (
        25_233_141_760,
        GEMMA4
        | sizes(30, 2816, 2112, 16, 8, num_global_key_value_heads=2, layer_types=LAYERS * 5)
        | {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
    ),
    "granite-4.0-h-tiny": (6_939_037_248, granite_sizes(1536, 512, 12, 4, 64, 6, 48)),
    "granite-4.0-h-small": (32_207_337_984, granite_sizes(4096, 768, 32, 8, 72, 10, 128)),
}


def preset(name: str, **more: Any) -> Model:
    return Model.model_validate({**load_model_entry(name), **more})


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_its_config_says(name: str) -> None:
    count, config = PRESETS[name]
    found = preset(name)
    assert parameters(found).total == count
    read = Model(**model_from_config(config, sequence_length=found.sequence_length))
    kinds = {kind: {"head_dim": 64, "state": 128, "conv": 4, **own} for kind, own in (found.layer_kinds or {}).items()}
    assert read.model_copy(update={"name": name}) == found.model_copy(update={"layer_kinds": kinds or None})


@pytest.mark.parametrize(
    ("hidden", "heads", "mamba", "attends", "count"),
    [(2048, 32, 64, range(5, 40, 10), 3_191_396_096), (2560, 40, 80, range(40), 3_402_836_480)],
    ids=["granite-4.0-h-micro", "granite-4.0-micro"],
)
def test_granite_4_without_experts(hidden: int, heads: int, mamba: int, attends: range, count: int) -> None:
    """GraniteMoeHybridForCausalLM with num_local_experts 0: an MLP of shared_intermediate_size in each layer."""
    layers = ["attention" if layer in attends else "mamba" for layer in range(40)]
    none = {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 8192, "layer_types": layers}
    config = {**GRANITE, **sizes(40, hidden, 8192, heads, 8, **none), "mamba_n_heads": mamba}
    assert count_config_parameters(config).total == count


def test_towers_of_gemma_4_are_left_out_by_name() -> None:
    count, text = PRESETS["gemma4-31b"]
    whole = {"model_type": "gemma4", "text_config": text, "vision_config": {"hidden_size": 1152}, "audio_config": None}
    assert assumptions_of_config(whole) == ("only the text decoder, without vision_config",)
    assert count_config_parameters(whole).total == count


def test_no_key_of_a_config_is_unknown() -> None:
    """Keys of the published files that change no step are known as such."""
    more: dict[str, dict[str, Any]] = {
        "gemma4_text": {"vocab_size_per_layer_input": 262144, "hidden_activation": "gelu_pytorch_tanh"},
        "gemma3_text": {"rope_local_base_freq": 10000.0, "attn_logit_softcapping": None, "sliding_window_pattern": 6},
        "granitemoehybrid": {"mamba_expand": 2, "mamba_conv_bias": True, "normalization_function": "rmsnorm"}
        | dict.fromkeys(("attention_multiplier", "embedding_multiplier", "logits_scaling"), 1.0),
    }
    for _, config in PRESETS.values():
        whole = {**config, **more[config["model_type"]]}
        assert classify_config_keys(whole, sequence_length=4096)[2] == ()


def test_names_on_hugging_face_lead_to_presets() -> None:
    assert find_model_preset("google/gemma-3-27b-it") == "gemma3-27b"
    assert find_model_preset("google/gemma-4-26B-A4B-it") == "gemma4-26b-a4b"
    assert find_model_preset("ibm-granite/granite-4.0-h-tiny") == "granite-4.0-h-tiny"
    assert find_published_model_name("ibm-granite/granite-4.0-h-small-base") == "granite-4.0-h-small"


def test_active_parameters_of_gemma_4_26b_a4b() -> None:
    """3.8B of 25.2B: all but the 120 experts of 128 that a token does not visit."""
    unvisited = 120 * 3 * 2816 * 704
    found = parameters(preset("gemma4-26b-a4b"))
    assert found.total - found.active == 30 * unvisited
    assert round(found.active / 1e9, 1) == 3.8


def test_layers_of_gemma_4_31b() -> None:
    """Heads, windows and weight matrices of layers 0 (sliding) and 5 (all tokens), as in modeling_gemma4.py."""
    model = preset("gemma4-31b")
    own = [model.layer_model(layer) for layer in range(6)]
    assert [each.attention_window for each in own] == [1024] * 5 + [None]
    for layer, width, kv, matrices in ((0, 32 * 256, 16 * 256, 2), (5, 32 * 512, 4 * 512, 1)):
        query, keys, output, *_ = layer_matrices(model, layer, tp=1, ep=1, etp=1)
        assert (query.rows, output.columns) == (width, width)
        assert (keys.rows, keys.count) == (kv, matrices)
    norms = 4 * 5376 + 2 * 512
    full = 5376 * (2 * 32 * 512 + 4 * 512) + 3 * 5376 * 21504 + norms
    short = 5376 * (2 * 32 * 256 + 2 * 16 * 256) + 3 * 5376 * 21504 + 4 * 5376 + 2 * 256
    assert parameters(model).total == 50 * short + 10 * full + 262144 * 5376 + 5376


def test_flops_of_layers_of_gemma_4_31b() -> None:
    """Weights at 2 FLOP a token; scores and values of the pairs that a mask leaves, at each layer's width of heads."""
    model, tokens, hidden = preset("gemma4-31b"), 8192, 5376
    short, full = (layer_flops(model, 1, layer=layer).total.forward for layer in (0, 5))
    mlp = 6.0 * tokens * hidden * 21504
    pairs = 1024 * tokens - 1024 * 1024 / 2, tokens * tokens / 2
    assert full == pytest.approx(
        mlp + 2.0 * tokens * hidden * (2 * 32 * 512 + 4 * 512) + 4.0 * pairs[1] * 32 * 512, rel=1e-12
    )
    assert short == pytest.approx(
        mlp + 2.0 * tokens * hidden * (2 * 32 * 256 + 2 * 16 * 256) + 4.0 * pairs[0] * 32 * 256, rel=1e-12
    )


# --- keys that are values ---------------------------------------------------------------------------------------------

DENSE: dict[str, Any] = {
    "layers": 4, "hidden_size": 1024, "heads": 16, "kv_heads": 4, "head_dim": 128, "vocab_size": 4096,
    "sequence_length": 1024, "ffn_hidden_size": 2048, "gated_mlp": True,
}  # fmt: skip
TOKENS, HIDDEN, QUERY, KV = 1024, 1024, 16 * 128, 4 * 128


def kernels_of(model: Model, shape: RankShape, phase: str, kind: int = 0) -> dict[str, Kernel]:
    return {
        kernel.name: kernel
        for section in layer_kinds(model, 0)[kind].sections(model, shape)
        for kernel in getattr(section, phase)
    }


@pytest.mark.parametrize("kernels", ["fused", "eager", "compiled"])
def test_one_projection_of_keys_and_values(kernels: Any) -> None:
    """It removes the columns of the values from QKV's matmuls, and adds a sum of two gradients; nothing else."""
    both, one = Model(**DENSE, qk_norm="qkv"), Model(**DENSE, qk_norm="qkv", values_from_keys=True)
    assert parameters(both).total - parameters(one).total == 4 * HIDDEN * KV
    shape = RankShape(1, kernels=kernels)
    for phase in ("forward", "input_grad", "weight_grad"):
        two, less = kernels_of(both, shape, phase), kernels_of(one, shape, phase)
        new = {"keys_values_grad"} if phase == "input_grad" else set()
        assert less.keys() - two.keys() == new
        assert sum(each.flops for each in two.values()) - sum(each.flops for each in less.values()) == (
            2.0 * TOKENS * HIDDEN * KV
        )
        changed = {name for name in two.keys() & less.keys() if two[name] != less[name]}
        assert changed <= {"qkv", "qkv_input_grad", "qkv_weight_grad", "qkv_weight_grad_accumulate"}
    grads = kernels_of(one, shape, "input_grad")
    assert grads["keys_values_grad"].bytes == 3 * 2 * TOKENS * KV
    sums = {"fused": 0, "compiled": 0, "eager": 1}[kernels]  # two matmuls' input gradients instead of three
    names = [kernel.name for section in layer_kinds(one, 0)[0].sections(one, shape) for kernel in section.input_grad]
    assert names.count("qkv_grads_sum") == sums


def test_norms_of_queries_keys_and_values() -> None:
    """Those of values have no parameters; a projection of keys and values is kept once as the input of both norms."""
    plain, head, all_three, one = (
        Model(**DENSE, **more)
        for more in ({}, {"qk_norm": "head"}, {"qk_norm": "qkv"}, {"qk_norm": "qkv", "values_from_keys": True})
    )
    assert parameters(head).total == parameters(all_three).total == parameters(plain).total + 4 * 2 * 128
    shape = RankShape(1)
    norms = [kernels_of(model, shape, "forward")["qk_norm"].bytes for model in (head, all_three, one)]
    assert norms == [4.0 * TOKENS * (QUERY + KV), *[4.0 * TOKENS * (QUERY + 2 * KV)] * 2]
    kept = [activation_bytes_per_layer(model, shape) for model in (plain, head, all_three, one)]
    assert [more - kept[0] for more in kept[1:]] == [
        2.0 * TOKENS * width for width in (QUERY + KV, QUERY + 2 * KV, QUERY + KV)
    ]
    grad = {tensor.name: tensor.bytes for tensor in layer_backward_tensors(one, shape, 0)}["qkv_output_grad"]
    assert grad == 2.0 * TOKENS * (QUERY + KV)


@pytest.mark.parametrize("bias", [True, "qkv"])
def test_biases_of_one_projection(bias: Any) -> None:
    both, one = (Model(**DENSE, bias=bias, qk_norm="qkv", values_from_keys=join) for join in (None, True))
    assert parameters(both).total - parameters(one).total == 4 * (HIDDEN + 1) * KV


# --- experts next to an MLP -------------------------------------------------------------------------------------------

MOE: dict[str, Any] = {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256, "shared_ffn_hidden_size": 512}
SPARSE = {name: value for name, value in DENSE.items() if name != "ffn_hidden_size"}


def mixture(**more: Any) -> Model:
    return Model(**SPARSE, moe={**MOE, **more})


@pytest.mark.parametrize("tp", [1, 2])
def test_norms_around_experts(tp: int) -> None:
    """Four more norms of the hidden state, of which the router's has a scale alone; each with input gradient."""
    plain, apart = mixture(), mixture(separate_norms=True)
    assert parameters(apart).total - parameters(plain).total == 4 * (4 * HIDDEN + 8)
    shape = RankShape(1, tp=tp, sequence_parallel=tp > 1)
    row = 2.0 * TOKENS * HIDDEN / tp
    names = ("router_norm", "experts_norm", "experts_post_norm", "shared_post_norm")
    for phase, passes, end in (("forward", 2, ""), ("input_grad", 3, "_input_grad")):
        before, found = kernels_of(plain, shape, phase, 1), kernels_of(apart, shape, phase, 1)
        added = {f"{name}{end}": passes * row for name in names}
        assert {name: kernel.bytes for name, kernel in found.items()} == {
            **{name: kernel.bytes for name, kernel in before.items()}, **added,
        }  # fmt: skip
    kept = [activation_bytes_per_layer(model, shape) for model in (plain, apart)]
    assert kept[1] - kept[0] == 3 * row  # the router's input, and those of two norms


def test_a_norm_after_experts() -> None:
    """Four norms per layer: the last follows the experts as it follows an MLP."""
    shape, row = RankShape(1), 2.0 * TOKENS * HIDDEN
    two, four = (Model(**SPARSE, moe=MOE, layer_norms=number) for number in (2, 4))
    assert parameters(four).total - parameters(two).total == 4 * 2 * HIDDEN
    found = kernels_of(four, shape, "forward", 1)
    assert found.keys() - kernels_of(two, shape, "forward", 1).keys() == {"mlp_post_norm"}
    assert found["mlp_post_norm"].bytes == 2 * row
    kept = [activation_bytes_per_layer(model, shape) for model in (two, four)]
    assert kept[1] - kept[0] == 2 * row  # inputs of the norms after attention and experts
    dense = [activation_bytes_per_layer(Model(**DENSE, layer_norms=number), shape) for number in (2, 4)]
    assert kept[1] - kept[0] == dense[1] - dense[0]


def test_the_mlp_of_gemma_4_is_a_shared_expert() -> None:
    """Its matmuls are those of a dense MLP of the same width."""
    dense, shape = Model(**{**DENSE, "ffn_hidden_size": 512}), RankShape(1)
    for phase in ("forward", "input_grad", "weight_grad"):
        shared = kernels_of(mixture(separate_norms=True), shape, phase, 1)
        for name, kernel in kernels_of(dense, shape, phase, 1).items():
            if kernel.kind == "matmul":
                assert shared[name.replace("mlp_", "shared_")] == replace(kernel, name=name.replace("mlp_", "shared_"))


# --- capped logits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernels", "forward", "backward"), [("fused", 6, 7), ("eager", 6, 7), ("compiled", 2, 3)])
def test_capped_logits(kernels: Any, forward: int, backward: int) -> None:
    """Division, hyperbolic tangent and multiplication, each a kernel unless compiled; the tangent is kept."""
    plain, capped, shape = Model(**DENSE), Model(**DENSE, logit_softcap=True), RankShape(1, tp=2, kernels=kernels)
    logits = 2.0 * TOKENS * 4096 / 2
    body = lm_head_block(capped, shape).body
    added = {kernel.name: kernel.bytes for kernel in (*body.forward, *body.input_grad) if "softcap" in kernel.name}
    assert added == {"logit_softcap": forward * logits, "logit_softcap_input_grad": backward * logits}
    assert len(body.forward) == len(lm_head_block(plain, shape).body.forward) + 1
    kept = [sum(each.bytes for each in lm_head_tensors(model, shape)) for model in (plain, capped)]
    assert kept[1] - kept[0] == logits
    assert parameters(plain) == parameters(capped)


# --- whole steps ------------------------------------------------------------------------------------------------------


def small(name: str, parallel: dict[str, Any], **more: Any) -> Scenario:
    """A preset with two of its periods, or fewer layers, on 8 GPUs."""
    entry = load_model_entry(name)
    count = 12 if name.startswith("gemma") else 20
    model = {**entry, "name": name, "layers": count, "sequence_length": 2048, "vocab_size": 4096}
    cluster = {"topology": "dgx_h100", "nodes": 1, "gpus_per_node": 8}
    return tiny_scenario(
        cluster=cluster, model={**dict.fromkeys(("heads", "kv_heads")), **model}, parallel=parallel,
        pipeline={"schedule": "1f1b"}, training={"global_batch": 4, **more},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parallel"),
    [
        ("gemma3-12b", {"tp": 2, "pp": 2, "dp": 2, "sequence_parallel": True}),
        ("gemma4-31b", {"tp": 4, "pp": 2, "dp": 1, "sequence_parallel": True}),
        ("gemma4-31b", {"tp": 1, "cp": 2, "pp": 1, "dp": 4, "zero": 3}),
        ("gemma4-26b-a4b", {"tp": 2, "pp": 1, "dp": 4, "ep": 4, "sequence_parallel": True}),
        ("granite-4.0-h-tiny", {"tp": 1, "pp": 2, "dp": 4, "ep": 4}),
    ],
)
@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_all_engines_simulate_presets_alike(name: str, parallel: dict[str, Any], recompute: str) -> None:
    made = small(name, parallel, recompute=recompute)
    folded = simulate(made)
    assert folded.step_time == simulate(made, folded=False).step_time
    assert folded.step_time == simulate(made.with_({"engine": "reference"})).step_time
    assert 0 < folded.mfu < 1


SHORT = {"attention_window": 1024}
WIDE = {"head_dim": 512, "kv_heads": 2}
SEPARATE = {"layer_types": {"S": SHORT, "F": WIDE}}


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({}, {"logit_softcap": None}),
        ({}, {"layer_norms": None}),
        (SEPARATE, {**SEPARATE, "qk_norm": "head"}),
        (SEPARATE, {}),
        ({"layer_types": {"S": {}, "F": WIDE}}, SEPARATE),
        ({}, {"moe": {"experts": 128, "top_k": 8, "expert_ffn_hidden_size": 704, "shared_ffn_hidden_size": 2112}}),
    ],
    ids=["cap of logits", "norms after blocks", "norms of values", "values apart", "windows", "norms of experts"],
)
def test_each_mechanism_takes_time(more: dict[str, Any], less: dict[str, Any]) -> None:
    made = small("gemma4-26b-a4b", {"tp": 2, "pp": 1, "dp": 4, "sequence_parallel": True})
    with_it, without = (made.with_({f"model.{name}": value for name, value in each.items()}) for each in (more, less))
    assert simulate(with_it).step_time > simulate(without).step_time


@pytest.mark.parametrize(
    ("model", "training", "message"),
    [
        ({"values_from_keys": True}, {}, "values_from_keys needs norms that tell values from keys; also set qk_norm"),
        ({"moe": {**MOE, "shared_ffn_hidden_size": None, "separate_norms": True}}, {}, "separate_norms needs shared"),
        (
            {"qk_norm": "qkv", "values_from_keys": True},
            {"recompute": "operators"},
            "operators counts a matmul for values, which model.values_from_keys removes",
        ),
        ({"blocks": ["mlp"], "values_from_keys": True, "qk_norm": "qkv"}, {}, "has no effect, since no layer has"),
        (
            {"mla": {"kv_lora_rank": 64, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128},
             "head_dim": None, "kv_heads": 16, "qk_norm": "qkv", "values_from_keys": True},
            {},
            "mla has keys for each of the 16 heads",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together(model: dict[str, Any], training: dict[str, Any], message: str) -> None:
    fields = {name: value for name, value in {**DENSE, **model}.items() if value is not None}
    with pytest.raises(InputError, match=message):
        tiny_scenario(model=fields, training=training)
