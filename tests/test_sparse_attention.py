"""Sparse attention with an indexer (DeepSeek-V3.2, GLM-5): counts and bytes by hand, traffic, engines, messages."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_blocks import attention_block

import simcluster
from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.model.flops import layer_flops, model_flops_per_sequence
from simcluster.model.kernels import Kernel
from simcluster.model.layers import LAYER_KINDS, RankShape, layer_parameters_per_tp_rank, parameters
from simcluster.model.memory import activation_bytes, layer_backward_tensors
from simcluster.model.quantization import torch_quantization, weight_cast_kernels
from simcluster.model.transformer import Model
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.work_kinds import Collective

V32 = Model(**load_model_entry("deepseek-v3.2"))
V3 = Model(**load_model_entry("deepseek-v3"))
GLM5 = Model(**load_model_entry("glm-5"))
MLA = {"q_lora_rank": 192, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 48}
INDEXER = {"heads": 4, "head_dim": 32, "top_k": 64}
SMALL: dict[str, Any] = {
    "layers": 4, "hidden_size": 512, "heads": 8, "vocab_size": 1024, "sequence_length": 256, "gated_mlp": True,
    "ffn_hidden_size": 1024, "mla": {**MLA, "indexer": INDEXER},
}  # fmt: skip
KIND = LAYER_KINDS["sparse_attention"]


def kernels(model: Model, shape: RankShape, phase: str) -> dict[str, Kernel]:
    """Return the kernels of the first layer's attention by name."""
    return {kernel.name: kernel for part in attention_block(model, shape).sections for kernel in getattr(part, phase)}


def scenario(model: dict[str, Any], **changes: Any) -> simcluster.Scenario:
    """Return a small job with this model; ``changes`` are paths with two underscores for a dot."""
    document: dict[str, Any] = {
        "model": model,
        "cluster": {"topology": "dgx_h100", "nodes": 1},
        "parallel": {"tp": 2, "pp": 2, "dp": 2},
        "training": {"global_batch": 8, "micro_batch": 1, "precision": "bf16-mixed"},
    }
    return simcluster.scenario(document, **changes)


# --- parameters and FLOP ----------------------------------------------------------------------------------------------


def test_indexers_have_the_parameters_of_transformers() -> None:
    """DeepseekV32ForCausalLM and GlmMoeDsaForCausalLM of transformers 5.24 on meta tensors, names with "indexer"."""
    by_hand = 1536 * 64 * 128 + 7168 * 128 + 7168 * 64 + 2 * 128
    assert parameters(V32).total - parameters(V3).total == 61 * by_hand == 851_524_864
    bare = GLM5.model_copy(update={"mla": GLM5.mla and GLM5.mla.model_copy(update={"indexer": None})})
    assert parameters(GLM5).total - parameters(bare).total == 731_008_512


def test_every_tensor_parallel_rank_has_the_whole_indexer() -> None:
    indexer = 1536 * 64 * 128 + 7168 * 128 + 7168 * 64 + 2 * 128
    own = [layer_parameters_per_tp_rank(each, 8) for each in (V32, V3)]
    assert own[0] - own[1] == indexer


@pytest.mark.parametrize("top_k", [1, 64, 100, 255])
def test_a_query_meets_the_top_k_or_all_earlier_keys(top_k: int) -> None:
    """As in a window: half of the diagonal and of the edge are left out, as Megatron-LM's one half of a square does."""
    model = Model(**{**SMALL, "mla": {**MLA, "indexer": {**INDEXER, "top_k": top_k}}})
    keys = sum(min(token + 1, top_k) for token in range(256))
    scores = 2 * 256 * 256 / 2 * 4 * 32
    core = layer_flops(model, 1).core
    assert core.forward - scores == pytest.approx(2 * 8 * (48 + 48) * (keys - top_k / 2), rel=1e-12)
    assert core.input_grad == 2 * core.forward


@pytest.mark.parametrize("top_k", [256, 1000])
def test_as_many_keys_as_tokens_are_the_pairs_of_dense_attention(top_k: int) -> None:
    sparse = Model(**{**SMALL, "mla": {**MLA, "indexer": {**INDEXER, "top_k": top_k}}})
    dense = Model(**{**SMALL, "mla": MLA})
    scores = 2.0 * 256 * 256 / 2 * 4 * 32
    assert layer_flops(sparse, 1).core.forward - scores == layer_flops(dense, 1).core.forward
    core = kernels(sparse, RankShape(micro_batch=1), "forward")["sparse_attention"]
    assert (core.n, core.flops) == (256, 2.0 * 256 * 256 * 8 * (80 + 64))


@pytest.mark.parametrize("tp", [1, 4])
def test_kernels_have_the_published_flop_and_bytes(tp: int) -> None:
    """Per token of DeepSeek-V3.2: per_token_flop of sparse_mla_fwd.py and _bwd.py, logits_flops of the indexer's."""
    shape, heads, top_k = RankShape(micro_batch=1, tp=tp), 128 // tp, 2048
    forward, back = (kernels(V32, shape, phase) for phase in ("forward", "input_grad"))
    blocks = max(1, heads // 64)

    def per_token(found: dict[str, Kernel], name: str) -> tuple[float, float]:
        return found[name].flops / 4096, found[name].bytes / 4096

    assert per_token(forward, "index_scores") == (
        2 * (4096 / 2) * 64 * 128, 2 * (64 * 128 + 128) + 4 * 64 + 4 * 4096 / 2,
    )  # fmt: skip
    assert per_token(forward, "index_top_k") == (0, 4 * 4096 / 2 + 8 * top_k)
    assert per_token(forward, "sparse_attention") == (
        2 * top_k * heads * (576 + 512), 2 * 576 * top_k + 4 * top_k + 2 * heads * (576 + 512) + 4 * heads,
    )  # fmt: skip
    assert per_token(back, "sparse_attention_input_grad") == (
        2 * top_k * heads * (3 * 576 + 2 * 512),
        2 * 576 * top_k + 4 * top_k + 2 * heads * (2 * 576 + 512) + 8 * heads + 4 * 576 * top_k * blocks,
    )
    assert per_token(back, "sparse_row_sums") == (0, 4 * heads * 512 + 4 * heads + 4 * 576)
    assert per_token(back, "sparse_key_grad") == (0, 6 * 576)
    assert per_token(back, "index_target")[0] == 2 * top_k * heads * 576
    assert per_token(back, "index_scores_grad")[0] == 3 * 2 * top_k * 64 * 128
    assert per_token(forward, "latent_key")[0] == 2 * heads * 128 * 512
    assert per_token(forward, "latent_value")[0] == 2 * heads * 512 * 128
    core = 2 * 4096 * 2048 * (128 * (576 + 512) + 64 * 128)
    assert layer_flops(V32, 1, attention_backward="flash").core.forward == core


def test_the_indexer_gives_its_inputs_no_gradient() -> None:
    forward, back, weight = (
        kernels(V32, RankShape(micro_batch=1), each) for each in ("forward", "input_grad", "weight_grad")
    )
    for name in ("index_query", "index_key", "index_weights"):
        assert name in forward
        assert f"{name}_input_grad" not in back
        assert weight[f"{name}_weight_grad"].flops == forward[name].flops


def test_heads_stay_in_16_bits_and_the_indexer_is_in_fp8() -> None:
    shape = RankShape(micro_batch=1, quantization=torch_quantization(), weight_cast_bytes=4.0)
    found = kernels(V32, shape, "forward")
    kept = {name for name, each in found.items() if each.keeps_16_bits}
    assert kept == {"latent_key", "latent_value"}
    assert found["sparse_attention"].kind == "attention"
    assert found["index_scores"].operand_bytes == found["index_query"].operand_bytes == 1.0
    assert found["index_cast"].bytes == 3 * 4096 * 65 * 128
    casts = {each.name for each in weight_cast_kernels(shape, attention_block(V32, shape).sections)}
    assert {"index_query_weight_cast", "latent_query_weight_cast"} < casts
    assert not {"latent_key_weight_cast", "latent_value_weight_cast"} & casts


def test_positions_in_steps_are_copies_of_every_part() -> None:
    """One token, 8 heads of 32 + 16 and narrow keys of 80, by hand: 14 goes over what is turned, then one copy."""
    one = Model(**{**SMALL, "sequence_length": 1})
    fused, steps = (kernels(one, RankShape(micro_batch=1, rope=how), "forward") for how in ("fused", "steps"))
    assert fused["latent_rope"].bytes == 2 * 2 * 9 * 80
    moved = sum(each.bytes for name, each in steps.items() if name.startswith("latent_rope") or name == "latent_copy")
    assert moved == 2 * (14 * 9 * 16 + 2 * 9 * 80)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_kept_tensors_by_hand() -> None:
    """Bytes per token of DeepSeek-V3.2, without parallelism."""
    kept = {name: size / 4096 for name, size in activation_bytes(V32, RankShape(micro_batch=1)).items()}
    expected = {
        "attention_norm_input": 2 * 7168, "latent_input": 2 * 7168, "latent": 2 * (512 + 64 + 1536),
        "latent_normed": 2 * (512 + 1536), "query_heads": 2 * 128 * 128, "query": 2 * 128 * 576, "key": 2 * 576,
        "index_key_norm_input": 2 * 128, "index_query": 2 * 64 * 128, "index_key": 2 * 128, "index_weights": 2 * 64,
        "top_k_indices": 4 * 2048, "top_k_scores": 4 * 2048, "log_sum_exp": 4 * 128, "core_output": 2 * 128 * 512,
        "projection_input": 2 * 128 * 128,
    }  # fmt: skip
    attention = {name: size for name, size in kept.items() if name in expected or name.startswith("index")}
    assert attention == expected
    parallel = activation_bytes(V32, RankShape(micro_batch=1, tp=4, sequence_parallel=True))
    assert parallel["index_input"] == 2 * 4096 * (7168 + 1536)
    assert parallel["query"] * 4 == expected["query"] * 4096
    full = activation_bytes(V32, RankShape(micro_batch=1, recompute="full"))
    assert set(full) & set(expected) == {"attention_norm_input"}


def test_a_split_backward_keeps_the_gradients_of_outputs() -> None:
    made = {
        each.name: each.bytes for each in layer_backward_tensors(V32, RankShape(micro_batch=1), 0) if each.made == "I"
    }
    assert made["query_grad"] == 2 * 4096 * 128 * 512
    assert made["index_grad"] == 2 * 4096 * (64 * 128 + 128 + 64)


# --- traffic ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_the_indexer_gathers_its_inputs_and_sums_its_target(sequence_parallel: bool) -> None:
    """The hidden state and the queries' narrow vector, forward alone; fp32 rows of top_k in the backward."""
    shape = RankShape(micro_batch=1, tp=4, sequence_parallel=sequence_parallel)
    made = CachedPassSegmentMaker(Model(**SMALL), shape, lambda kernels: 0.0, overlap_tensor=False)

    def moved(kind: str) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for op in made.segment(kind, PassLayers((0,))).ops:
            if isinstance(op.work, Collective):
                found[op.work.kind, op.name] += int(op.work.size)
        return found

    forward, backward, inputs = (moved(kind) for kind in "FBI")
    narrow, indexed = 2 * 256 * (64 + 16 + 192), 2 * 256 * (512 + 192)
    gathers = {("all_gather", "attention"): narrow + indexed} if sequence_parallel else {}
    assert {key: size for key, size in forward.items() if key == ("all_gather", "attention")} == gathers
    assert backward["all_reduce", "attention_target"] == inputs["all_reduce", "attention_target"] == 4 * 256 * 64
    if sequence_parallel:
        assert backward["all_gather", "attention_input"] == backward["reduce_scatter", "attention_grad"] == narrow


def test_context_parallel_ranks_gather_narrow_and_index_keys() -> None:
    """1152 bytes of narrow keys and 256 of index keys per token of V3.2, before both kernels; gradients are summed."""
    shape = RankShape(micro_batch=1, cp=4, cp_comm="all_gather")
    made = CachedPassSegmentMaker(V32, shape, lambda kernels: 0.0, overlap_tensor=False)
    found = [
        [
            (op.work.kind, op.name, op.work.size)
            for op in made.segment(kind, PassLayers((0,))).ops
            if isinstance(op.work, Collective)
        ]
        for kind in "FB"
    ]
    gathered = ("all_gather", "keys_values", 4096 * 2 * (576 + 128))
    assert found == [[gathered], [gathered, ("reduce_scatter", "keys_values_grad", 4096 * 2 * (576 + 128))]]


@pytest.mark.parametrize("shares", ["zigzag", "contiguous"])
def test_context_parallel_ranks_share_the_work(shares: Any) -> None:
    """All meet top_k keys; of index scores the last of four contiguous ranks has 7/4 of the mean."""
    whole = kernels(V32, RankShape(micro_batch=1), "forward")
    part = kernels(V32, RankShape(micro_batch=1, cp=4, cp_comm="all_gather", cp_shares=shares), "forward")
    assert part["sparse_attention"].flops == whole["sparse_attention"].flops / 4
    slowest = {"zigzag": 1.0, "contiguous": 1.75}[shares]
    assert part["index_scores"].flops == slowest * whole["index_scores"].flops / 4


# --- engines and messages ---------------------------------------------------------------------------------------------


MOE = {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256, "shared_experts": 1}


@pytest.mark.parametrize("engine", ["reference", "compiled"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parallel__sequence_parallel": True, "overlap__tensor": True, "software__rope": "steps"},
        {"training__recompute": "full", "training__precision": "fp8-mixed"},
        {"pipeline__schedule": "zb-h1", "parallel__sequence_parallel": True},
        {"parallel__zero": 3, "parallel__pp": 1, "parallel__dp": 4},
        {"model__moe": MOE, "parallel__sequence_parallel": True, "parallel__ep": 2, "model__mtp_layers": 1},
        {"model__pattern": "ab", "model__layer_types": {"a": {}, "b": {"mla": None, "head_dim": 48, "kv_heads": 2}}},
        {"training__optimizer": "muon", "parallel__zero": 1},
        {"model__mla__q_lora_rank": None, "parallel__sequence_parallel": True, "training__micro_batch": 2},
        {"parallel__cp": 2, "parallel__dp": 1, "parallel__cp_comm": "all_gather"},
        {"parallel__cp": 2, "parallel__dp": 1, "parallel__cp_comm": "all_gather", "parallel__cp_shares": "contiguous"},
    ],
)
def test_engines_agree(engine: str, changes: dict[str, Any]) -> None:
    base = scenario(SMALL, **changes)
    folded, other = simcluster.simulate(base), simcluster.simulate(base, engine=engine)
    assert other.step_time == folded.step_time == simcluster.simulate(base, folded=False).step_time


@given(top_k=st.sampled_from([16, 128]), tp=st.sampled_from([1, 2]))
def test_more_keys_take_more_time(top_k: int, tp: int) -> None:
    def step(keys: int) -> float:
        model = {**SMALL, "sequence_length": 4096, "mla": {**MLA, "indexer": {**INDEXER, "top_k": keys}}}
        return simcluster.simulate(scenario(model, parallel__tp=tp, parallel__dp=4 // tp)).step_time

    assert step(top_k) < step(8 * top_k)


def test_model_flops_of_long_sequences_by_hand() -> None:
    """128K tokens of V3.2: the core meets 2048 (1 - 1/128) keys a query, and the indexer half of all."""
    length = 131072
    sparse, dense = (
        model_flops_per_sequence(each.model_copy(update={"sequence_length": length})) for each in (V32, V3)
    )
    left_out = length * (length / 2 - 2048 * (1 - 1 / 128)) * 128 * (192 + 128)
    scores = length * (length / 2) * 64 * 128
    weights = length * (1536 * 64 * 128 + 7168 * (128 + 64))
    assert dense - sparse == pytest.approx(3 * 2 * 61 * (left_out - scores - weights), rel=1e-12)


DOCUMENTS = {"kind": "lognormal", "median": 64, "sigma": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"parallel__cp": 2, "parallel__dp": 1},
            "parallel.cp_comm: ring is not modelled with model.mla.indexer; use all_g",
        ),
        (
            {"training__attention": "unfused"},
            "training.attention: is not modelled with layers of kind sparse_attention",
        ),
        (
            {"training__recompute": "selective"},
            "recompute 'selective' is not modelled with model.mla.indexer; use none",
        ),
        ({"training__recompute": "operators"}, "recompute 'operators' is not modelled with model.mla.indexer"),
        ({"model__attention_window": 64}, "model.attention_window: is not modelled with layers of kind sparse_att"),
        ({"model__attention_chunk": 64}, "model.attention_chunk: is not modelled with layers of kind sparse_att"),
        ({"model__attention_sinks": True}, "model.attention_sinks: is not modelled with layers of kind sparse_att"),
        ({"model__causal": False}, "model.causal: is not modelled with layers of kind sparse_attention"),
        (
            {"data__documents": DOCUMENTS},
            "data.mask: document is not modelled with model.mla.indexer; set mask to none",
        ),
        (
            {"faults": [{"kind": "sequence_lengths", "documents": DOCUMENTS}]},
            "faults: sequence_lengths is not modelled",
        ),
        ({"model__mla__indexer__top_k": 0}, "0 is not a whole number"),
    ],
)
def test_what_is_not_modelled_is_rejected_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario(SMALL, **changes)


def test_documents_without_a_mask_of_their_own_are_simulated() -> None:
    packed = scenario(SMALL, data__documents=DOCUMENTS, data__mask="none")
    assert simcluster.simulate(packed).step_time == simcluster.simulate(scenario(SMALL)).step_time


def test_dense_layers_beside_sparse_ones_leave_the_rules_of_sparse_ones() -> None:
    types = {"a": {}, "b": {"mla": None, "head_dim": 48, "kv_heads": 2}}
    with pytest.raises(InputError, match=r"training\.attention: is not modelled with layers of kind sparse_attention"):
        scenario({**SMALL, "pattern": "ab", "layer_types": types}, training__attention="unfused")


@pytest.mark.parametrize("preset", ["deepseek-v2-lite", "deepseek-v3.2"])
@pytest.mark.parametrize("rope", ["fused", "steps"])
@pytest.mark.parametrize("phase", ["forward", "input_grad"])
def test_latent_attention_without_positions_is_not_rotated(
    preset: str, rope: Literal["fused", "steps"], phase: str
) -> None:
    """Kimi Linear (modeling_kimi_linear.py): heads are assembled by copies, and nothing is rotated."""
    shape = RankShape(micro_batch=1, rope=rope)
    turned, still = (
        kernels(Model(**{**load_model_entry(preset), "position": position}), shape, phase)
        for position in ("rope", "none")
    )
    assert any(name.startswith("latent_rope") for name in turned)
    assert not any(name.startswith("latent_rope") for name in still)
    copied = [name for name in still if name.startswith("latent_") and "copy" in name]
    assert copied
    if rope == "steps":  # the copies remain as they are
        assert {name: turned[name] for name in copied} == {name: still[name] for name in copied}
        assert turned.keys() - still.keys() == {name for name in turned if name.startswith("latent_rope")}
