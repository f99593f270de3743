"""Bytes per rank: what parallelism and recomputation may do to them, and the numbers of the papers."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from activation_bytes import (
    activation_bytes_per_layer,
    embedding_activation_bytes,
    head_activation_bytes,
    head_activation_parts,
    lm_head_working_bytes,
    working_bytes,
)
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.model.layers import RankShape
from simcluster.model.memory import activation_bytes
from simcluster.model.quantization import torch_quantization
from simcluster.model.recipes import RECIPES, recipe_named, state_bytes
from simcluster.model.transformer import Model, Recompute


def gpt(layers: int, hidden: int, heads: int) -> Model:
    return Model(
        layers=layers, hidden_size=hidden, heads=heads, vocab_size=51200, sequence_length=2048, gated_mlp=False
    )


GPT_22B, GPT_175B = gpt(48, 6144, 64), gpt(96, 12288, 96)
GPT_530B, GPT_1T = gpt(105, 20480, 128), gpt(128, 25600, 160)
LLAMA = {
    name: Model(**{**load_model_entry(name), "sequence_length": 8192})
    for name in ("llama3-8b", "llama3-70b", "llama3-405b")
}

models = st.sampled_from([GPT_22B, GPT_175B, *LLAMA.values()])
shapes = st.builds(
    RankShape,
    micro_batch=st.integers(1, 8),
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 4]),
    sequence_parallel=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
    attention=st.sampled_from(["fused", "unfused"]),
    dropout=st.booleans(),
)


def per_layer(
    model: Model,
    *,
    micro_batch: int = 1,
    tp: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
    attention: Literal["fused", "unfused"] = "unfused",
    dropout: bool = True,
) -> float:
    shape = RankShape(
        micro_batch=micro_batch,
        tp=tp,
        sequence_parallel=sequence_parallel,
        recompute=recompute,
        attention=attention,
        dropout=dropout,
    )
    return activation_bytes_per_layer(model, shape)


# --- invariants of activations --------------------------------------------------------------------------------------


@given(models, shapes)
def test_more_tensor_parallelism_never_holds_more(model: Model, shape: RankShape) -> None:
    """While the softmax stays in one kernel (it takes squares of scores by four)."""
    narrower = replace(shape, micro_batch=4 * shape.micro_batch)
    wider = replace(narrower, tp=2 * shape.tp)
    assert activation_bytes_per_layer(model, wider) <= activation_bytes_per_layer(model, narrower)


def test_a_softmax_step_by_step_keeps_its_fp32_result_too() -> None:
    """175B, 6 heads of one sequence on a rank: 4 bytes more for each of their scores."""
    square = 6 * 2048 * 2048
    shape = RankShape(micro_batch=1, tp=16, attention="unfused")
    parts = activation_bytes(GPT_175B, shape)
    assert (parts["softmax_output"], parts["softmax_output_in_fp32"]) == (2 * square, 4 * square)
    assert "softmax_output_in_fp32" not in activation_bytes(GPT_175B, replace(shape, micro_batch=2))


@given(models, shapes)
def test_sequence_parallelism_never_holds_more(model: Model, shape: RankShape) -> None:
    sharded = activation_bytes_per_layer(model, replace(shape, sequence_parallel=True))
    whole = activation_bytes_per_layer(model, replace(shape, sequence_parallel=False))
    assert sharded < whole if shape.tp > 1 else sharded == whole


@given(models, shapes)
def test_recomputing_more_keeps_less_and_brings_it_back(model: Model, shape: RankShape) -> None:
    none, selective, full = (replace(shape, recompute=mode) for mode in ("none", "selective", "full"))
    kept = [activation_bytes_per_layer(model, mode) for mode in (full, selective, none)]
    assert kept[0] < kept[1] < kept[2]
    alone = activation_bytes_per_layer(model, replace(selective, keeps_fused_core=True))
    assert alone == (kept[1] if shape.attention == "unfused" else kept[2])
    assert working_bytes(model, none) == 0
    for mode in (selective, full):
        whole = activation_bytes_per_layer(model, mode) + working_bytes(model, mode)
        assert whole == pytest.approx(kept[2], rel=1e-12)


@given(models, shapes, st.integers(2, 5))
def test_a_larger_microbatch_holds_in_proportion(model: Model, shape: RankShape, times: int) -> None:
    shape = replace(shape, micro_batch=4 * shape.micro_batch)  # so that the softmax is one kernel for both
    larger = replace(shape, micro_batch=times * shape.micro_batch)
    for part in (activation_bytes_per_layer, working_bytes, embedding_activation_bytes, head_activation_bytes):
        assert part(model, larger) == pytest.approx(times * part(model, shape), rel=1e-12)


@given(models, shapes)
def test_context_parallelism_divides_everything(model: Model, shape: RankShape) -> None:
    split, whole = replace(shape, cp=2), replace(shape, cp=1)
    for part in (activation_bytes_per_layer, working_bytes, head_activation_bytes, lm_head_working_bytes):
        assert 2 * part(model, split) == pytest.approx(part(model, whole), rel=1e-12)


@given(models, shapes)
def test_dropout_only_adds_and_fused_attention_only_removes(model: Model, shape: RankShape) -> None:
    wet, dry = replace(shape, dropout=True, recompute="none"), replace(shape, dropout=False, recompute="none")
    assert activation_bytes_per_layer(model, dry) < activation_bytes_per_layer(model, wet)
    fused, unfused = replace(dry, attention="fused"), replace(dry, attention="unfused")
    assert activation_bytes_per_layer(model, fused) < activation_bytes_per_layer(model, unfused)
    assert "log_sum_exp" in activation_bytes(model, fused)
    assert not any("softmax" in name for name in activation_bytes(model, fused))


# --- activations: the formulas and numbers of arXiv:2205.05198 ------------------------------------------------------


@pytest.mark.parametrize("model", [GPT_22B, GPT_175B, GPT_530B, GPT_1T])
@pytest.mark.parametrize("t", [1, 2, 8])
def test_formulas_of_table_2(model: Model, t: int) -> None:
    s, b, h, a = 2048, 3, model.hidden_size, model.heads
    square = 5 * a * s / h
    expected = {
        (False, "none"): s * b * h * (10 + 24 / t + square / t),
        (True, "none"): s * b * h / t * (34 + square),
        (False, "selective"): s * b * h * (10 + 24 / t),
        (True, "selective"): s * b * h * 34 / t,
        (False, "full"): s * b * h * 2,
        (True, "full"): s * b * h * 2 / t,
    }
    for (sequence_parallel, recompute), size in expected.items():
        got = per_layer(model, micro_batch=b, tp=t, sequence_parallel=sequence_parallel, recompute=recompute)
        assert got == pytest.approx(size, rel=1e-12), (sequence_parallel, recompute)


@pytest.mark.parametrize(
    ("model", "micro_batch", "tp", "tp_sp", "selective", "full"),
    [
        (GPT_22B, 4, 1.3254, 0.8850, 0.2139, 0.1007),
        (GPT_175B, 1, 0.5788, 0.3586, 0.1070, 0.0503),
        (GPT_530B, 1, 0.8808, 0.5138, 0.1783, None),
        (GPT_1T, 1, 1.1010, 0.6423, 0.2228, None),
    ],
)
def test_gigabytes_a_layer_of_the_published_models(
    model: Model, micro_batch: int, tp: float, tp_sp: float, selective: float, full: float | None
) -> None:
    def measure(sequence_parallel: bool, recompute: Recompute) -> float:
        return per_layer(model, micro_batch=micro_batch, tp=8, sequence_parallel=sequence_parallel, recompute=recompute)

    assert measure(False, "none") == pytest.approx(tp * 1e9, abs=5.1e4)
    assert measure(True, "none") == pytest.approx(tp_sp * 1e9, abs=5.1e4)
    assert measure(True, "selective") == pytest.approx(selective * 1e9, abs=5.1e4)
    if full is not None:
        assert measure(False, "full") == pytest.approx(full * 1e9, abs=5.1e4)


@pytest.mark.parametrize(
    ("model", "sp", "selective", "both", "full"),
    [(GPT_22B, 66.84, 49.42, 16.18, 7.64), (GPT_175B, 62.04, 56.53, 18.49, 8.71)],
)
def test_figure_7_in_percent_of_tensor_parallelism_alone(
    model: Model, sp: float, selective: float, both: float, full: float
) -> None:
    """Figure 7 as digitised by Calculon's authors (calculon-ai/calculon@caa4b11, kProfile): one percent point."""
    base = per_layer(model, tp=8)
    assert 100 * per_layer(model, tp=8, sequence_parallel=True) / base == pytest.approx(sp, abs=1)
    assert 100 * per_layer(model, tp=8, recompute="selective") / base == pytest.approx(selective, abs=1)
    together = per_layer(model, tp=8, sequence_parallel=True, recompute="selective")
    assert 100 * together / base == pytest.approx(both, abs=1)
    assert 100 * per_layer(model, tp=8, recompute="full") / base == pytest.approx(full, abs=1)


@pytest.mark.parametrize(("name", "per_hidden"), [("llama3-8b", 34.0), ("llama3-70b", 33.5), ("llama3-405b", 31.75)])
def test_llama_keeps_8h_4q_4kv_6f(name: str, per_hidden: float) -> None:
    model, s = LLAMA[name], 8192
    h, q, kv, f, a = model.hidden_size, model.query_size, model.kv_size, model.ffn_hidden_size, model.heads
    parts = activation_bytes(model, RankShape(micro_batch=1))
    assert parts.pop("log_sum_exp") == 4 * s * a
    assert sum(parts.values()) == s * (8 * h + 4 * q + 4 * kv + 6 * f) == s * h * per_hidden


@pytest.mark.parametrize(("tp", "sequence_parallel"), [(1, False), (2, False), (8, True)])
def test_operands_of_fp8_products_are_kept_in_a_byte(tp: int, sequence_parallel: bool) -> None:
    """Two inputs of h and the product of f lose a byte an element, the attention's output gains one: 6h 5q 4kv 5f."""
    model = LLAMA["llama3-70b"]
    shape = RankShape(micro_batch=1, tp=tp, sequence_parallel=sequence_parallel, quantization=torch_quantization())
    tokens, head = 8192, 128
    edge = tp if sequence_parallel else 1
    body = 5 * 64 * head + 4 * 8 * head + 5 * 28672
    expected = tokens * (6 * 8192 / edge + body / tp) + 4 * tokens * 64 / tp
    assert activation_bytes_per_layer(model, shape) == pytest.approx(expected, rel=1e-12)
    assert head_activation_bytes(model, shape) == head_activation_bytes(model, replace(shape, quantization=None))


def test_llama_8b_in_gigabytes() -> None:
    model = LLAMA["llama3-8b"]
    whole = per_layer(model, attention="fused", dropout=False)
    split = per_layer(model, attention="fused", dropout=False, tp=8, sequence_parallel=True)
    assert whole == pytest.approx(1.1419e9, abs=5e4)
    assert split == pytest.approx(0.1427e9, abs=5e4) == whole / 8


def test_key_value_heads_are_copied_when_there_are_fewer_than_ranks() -> None:
    model = LLAMA["llama3-8b"]  # 8 key-value heads
    parts = activation_bytes(model, RankShape(micro_batch=1, tp=16))
    assert parts["key"] == parts["value"] == 2 * 8192 * model.head_dim
    assert parts["query"] == 2 * 8192 * model.head_dim * 2


# --- outside the layers ---------------------------------------------------------------------------------------------


def test_the_embedding_keeps_its_dropout_mask() -> None:
    shape = RankShape(micro_batch=2, tp=8, dropout=True)
    assert embedding_activation_bytes(GPT_22B, shape) == 2048 * 2 * 6144
    assert embedding_activation_bytes(GPT_22B, replace(shape, sequence_parallel=True)) == 2048 * 2 * 6144 / 8
    assert embedding_activation_bytes(GPT_22B, replace(shape, dropout=False)) == 0


def test_the_head_keeps_4_sbh_of_1_plus_v_over_h() -> None:
    s, b, h, v, t = 2048, 2, 6144, 51200, 8
    shape = RankShape(micro_batch=b, tp=t, sequence_parallel=True)
    assert head_activation_bytes(GPT_22B, shape) == pytest.approx(4 * s * b * h * (1 + v / h) / t, rel=1e-12)


def test_the_logit_peak_of_llama_at_tp_8() -> None:
    """8192 tokens, 128256 words over 8 ranks; one rank pads nothing, so an eighth of its logits is the figure."""
    shape = RankShape(micro_batch=1)
    assert head_activation_parts(LLAMA["llama3-8b"], shape)["logits"] / 8 == pytest.approx(0.525e9, abs=5e5)
    assert lm_head_working_bytes(LLAMA["llama3-8b"], shape) / 8 == pytest.approx(0.263e9, abs=5e5)


# --- model state ----------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(list(RECIPES)), st.integers(0, 3), st.integers(1, 4096), st.floats(1, 1e13, allow_infinity=False)
)
def test_each_zero_stage_holds_no_more_than_the_one_below(name: str, zero: int, dp: int, parameters: float) -> None:
    recipe = RECIPES[name]
    state = state_bytes(parameters, recipe, zero=zero, dp=dp)
    below = state_bytes(parameters, recipe, zero=max(zero - 1, 0), dp=dp)
    assert state.total <= below.total <= parameters * recipe.total * (1 + 1e-12)
    assert state.total >= parameters * recipe.total / dp * (1 - 1e-12)
    assert state_bytes(parameters, recipe, zero=zero, dp=2 * dp).total <= state.total


def test_recipes_add_up_to_what_they_are_named_for() -> None:
    for name, recipe in RECIPES.items():
        assert recipe.name == name
        assert int(recipe.total) == int(name.rpartition("-")[2])  # nvfp4-19 has an eighth more, scales
    assert [recipe.update_traffic for recipe in RECIPES.values()] == [
        28, 28, 30, 22, 14, 28, 26, 20, 18, 22, 32, 31, 30, 28, 30, 29, 31.125, 29.125, 22, 22, 21,
    ]  # fmt: skip


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_zero_paper(zero: int, gigabytes: float) -> None:
    """arXiv:1910.02054 figure 1: 7.5e9 parameters, 64 ranks, K = 12."""
    total = state_bytes(7.5e9, recipe_named("mixed-16"), zero=zero, dp=64).total
    assert total == pytest.approx(gigabytes * 1e9, abs=0.05e9)


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 156), (2, 42.25), (3, 19.5)])
def test_zero_without_a_master_copy(zero: int, gigabytes: float) -> None:
    assert state_bytes(13e9, recipe_named("bf16-12"), zero=zero, dp=8).total == gigabytes * 1e9


@pytest.mark.parametrize("n", [1, 2, 8, 64])
def test_zero_in_bytes_a_parameter(n: int) -> None:
    def each(name: str, zero: int) -> float:
        return state_bytes(1, recipe_named(name), zero=zero, dp=n).total

    assert each("mixed-18", 1) == pytest.approx(6 + 12 / n, rel=1e-12)
    assert each("bf16-12", 1) == pytest.approx(4 + 8 / n, rel=1e-12)
    assert each("bf16-12", 2) == pytest.approx(2 + 10 / n, rel=1e-12)
    assert each("bf16-12", 3) == pytest.approx(12 / n, rel=1e-12)


def test_model_state_of_175b_on_256_gpus() -> None:
    state = state_bytes(175e9 / (8 * 4), recipe_named("bf16-12"), zero=2, dp=8)
    assert state.parameters == pytest.approx(10.94e9, abs=5e6)
    assert state.optimizer == pytest.approx(5.47e9, abs=5e6)
    assert state.gradients == pytest.approx(1.37e9, abs=5e6)
    assert state.total == pytest.approx(17.78e9, abs=1e7)


def test_mixed_precision_of_large_models() -> None:
    assert state_bytes(70e9, recipe_named("mixed-16")).total == 1.12e12
    assert state_bytes(13e9, recipe_named("mixed-16")).total == 208e9


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [12, 16, "16", "mixed16", None])
def test_a_bare_total_is_no_recipe(name: object) -> None:
    with pytest.raises(InputError, match=r"mixed-16 \(2 \+ 2 \+ 12\).*bf16-12 \(2 \+ 2 \+ 8\)"):
        recipe_named(name)


def test_a_near_miss_is_recognised() -> None:
    with pytest.raises(InputError, match="did you mean 'mixed-18'"):
        recipe_named("mixed18")


@pytest.mark.parametrize(("zero", "dp", "message"), [(4, 8, "use 0"), (-1, 8, "use 0"), (1, 0, "dp 0")])
def test_impossible_sharding(zero: int, dp: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        state_bytes(1e9, RECIPES["mixed-16"], zero=zero, dp=dp)
