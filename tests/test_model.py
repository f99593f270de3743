"""Model documents, parameter counts, and FLOPs against published figures."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.documents.catalogue import load_presets
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.model.flops import (
    hardware_flops_per_sequence,
    layer_flops,
    lm_head_flops,
    model_flops_per_sequence,
    torchtitan_flops_per_sequence,
)
from simcluster.model.layers import (
    embedding_parameters_per_tp_rank,
    layer_parameters_per_tp_rank,
    parameters,
    stage_parameters_per_tp_rank,
)
from simcluster.model.shard_widths import padded_vocab_size, shard_widths
from simcluster.model.transformer import Model

SMALL: dict[str, Any] = {"layers": 2, "hidden_size": 64, "heads": 8, "vocab_size": 1000, "sequence_length": 128}


def preset(name: str) -> Model:
    return Model(**load_model_entry(name))


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Models whose heads, key-value heads and MLP columns all divide by 1, 2 and 4."""
    gated = draw(st.booleans())
    kv_heads = draw(st.sampled_from([4, 8]))
    return Model(
        layers=draw(st.integers(1, 5)),
        hidden_size=draw(st.sampled_from([64, 96, 256])),
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([8, 16, 80])),
        ffn_hidden_size=4 * draw(st.integers(1, 100)),
        vocab_size=draw(st.integers(1, 3000)),
        sequence_length=32 * draw(st.integers(1, 8)),
        gated_mlp=gated,
        bias=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        causal=draw(st.booleans()),
    )


# --- documents ------------------------------------------------------------------------------------------------------


def test_a_plain_mlp_means_the_gpt_family() -> None:
    model = Model(**SMALL)
    assert (model.kv_heads, model.head_dim, model.ffn_hidden_size) == (8, 8, 256)
    assert (model.norm, model.position, model.bias, model.tied_embeddings) == ("layernorm", "learned", True, True)


def test_a_gated_mlp_means_the_llama_family() -> None:
    model = Model(**SMALL, gated_mlp=True, ffn_hidden_size=172)
    assert (model.norm, model.position, model.bias, model.tied_embeddings) == ("rmsnorm", "rope", False, False)


def test_what_is_written_wins_over_the_family() -> None:
    model = Model(**SMALL, norm="rmsnorm", position="rope", bias=False, tied_embeddings=False, head_dim=16, kv_heads=2)
    assert (model.norm, model.position, model.bias, model.tied_embeddings) == ("rmsnorm", "rope", False, False)
    assert (model.query_size, model.kv_size) == (128, 32)


@given(models())
def test_a_dumped_model_is_a_document_of_the_same_model(model: Model) -> None:
    assert Model.model_validate(model.model_dump()) == model


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": 0}, "0 is not a whole number from 1"),
        ({"layers": True}, "True is not a whole number"),
        ({"layers": 2.0}, "2.0 is not a whole number"),
        ({"layers": "2"}, "'2' is not a whole number"),
        ({"layers": 10**400}, r"\.\.\. is not a whole number"),
        ({"heads": 7}, "hidden_size 64 is not a multiple of heads 7; use 63 or 70, or give head_dim"),
        ({"heads": 100}, "hidden_size 64 is not a multiple of heads 100; use 100, or give head_dim"),
        ({"kv_heads": 3}, "kv_heads 3 does not divide heads 8.*use one of 1, 2, 4, 8"),
        ({"gated_mlp": True}, "ffn_hidden_size is missing"),
        ({"gated_mlp": "yes"}, "valid boolean"),
        ({"norm": "batchnorm"}, "'layernorm' or 'rmsnorm'"),
        ({"moe": {"experts": 64, "top_k": 8}}, "expert_ffn_hidden_size"),
        ({"moe": {"experts": 4, "top_k": 8, "expert_ffn_hidden_size": 64}}, "top_k 8 is more than the 4 experts"),
        (
            {"moe": {"experts": 4, "top_k": 1, "expert_ffn_hidden_size": 64, "first_dense_layers": 99}},
            "none of the 2 layers has experts",
        ),
        ({"depth": 3}, "Extra inputs are not permitted"),
        ({"kv_heads": 0}, "0 is not a whole number"),
    ],
)
def test_a_bad_document_is_an_error_that_says_why(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Model(**{**SMALL, **change})


def test_a_missing_size_is_an_error() -> None:
    with pytest.raises(ValueError, match="hidden_size"):
        Model.model_validate({key: value for key, value in SMALL.items() if key != "hidden_size"})


# --- presets --------------------------------------------------------------------------------------------------------


def test_every_preset_is_a_valid_model_of_its_name() -> None:
    assert tuple(load_presets("models.yaml")) == (
        "gpt3-175b",
        "megatron-22b",
        "megatron-530b",
        "megatron-1t",
        "llama-7b",
        "llama-13b",
        "llama2-7b",
        "llama2-13b",
        "llama2-70b",
        "llama3-8b",
        "llama3-70b",
        "llama3-405b",
        "mixtral-8x7b",
        "mixtral-8x22b",
        "qwen3-30b-a3b",
        "qwen3-235b-a22b",
        "deepseek-v2-lite",
        "deepseek-v2",
        "deepseek-v3",
        "deepseek-v3.2",
        "deepseek-v4-flash",
        "deepseek-v4-pro",
        "glm-5",
        "llama4-scout",
        "llama4-maverick",
        "gpt-oss-20b",
        "gpt-oss-120b",
        "nemotron-h-8b",
        "nemotron-h-56b",
        "nemotron-3-nano-30b",
        "nemotron-3-super-120b",
        "gemma3-12b",
        "gemma3-27b",
        "gemma4-31b",
        "gemma4-26b-a4b",
        "granite-4.0-h-tiny",
        "granite-4.0-h-small",
        "qwen3-next-80b",
        "kimi-linear-48b",
        "minimax-m1",
        "qwen2.5-vl-7b",
        "wan2.1-14b",
    )
    for name in load_presets("models.yaml"):
        assert preset(name).name == name


def test_a_preset_document_is_the_callers_own() -> None:
    load_model_entry("llama3-8b")["layers"] = 1
    assert load_model_entry("llama3-8b")["layers"] == 32


def test_an_unknown_preset_names_a_near_one() -> None:
    with pytest.raises(InputError, match=r"'GPT3-175'; did you mean 'gpt3-175b'\?; use one of simcluster list models"):
        load_model_entry("GPT3-175")


# --- parameters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("megatron-22b", 22.0743),
        ("megatron-530b", 529.6008),
        ("megatron-1t", 1008.0388),
        ("llama3-8b", 8.0303),
        ("llama3-70b", 70.5537),
        ("llama3-405b", 405.8534),
    ],
)
def test_parameter_counts(name: str, billions: float) -> None:
    assert round(parameters(preset(name)).total / 1e9, 4) == billions


@pytest.mark.parametrize(
    ("name", "total"),
    # layers x (queries, keys, values and output, three products of the MLP, two norms), embedding and head, last norm
    [
        ("llama-7b", 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096) + 2 * 32000 * 4096 + 4096),
        ("llama-13b", 40 * (4 * 5120 * 5120 + 3 * 5120 * 13824 + 2 * 5120) + 2 * 32000 * 5120 + 5120),
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        (
            "llama2-70b",
            80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192) + 2 * 32000 * 8192 + 8192,
        ),
        ("llama2-70b", 68_976_648_192),
    ],
)
def test_llama_parameters_to_the_last_one(name: str, total: int) -> None:
    assert parameters(preset(name)).total == total


def test_llama_2_of_7b_and_13b_is_llama_over_sequences_of_twice_the_length() -> None:
    for first, second in (("llama-7b", "llama2-7b"), ("llama-13b", "llama2-13b")):
        longer = {**load_model_entry(first), "name": second, "sequence_length": 4096}
        assert longer == load_model_entry(second)


def korthikanti_flops_per_sequence(model: Model) -> float:
    """Model FLOPs with the whole attention square (arXiv:2205.05198, appendix A; also what PaLM counts)."""
    return model_flops_per_sequence(model.model_copy(update={"causal": False}))


def narayanan_flops_per_sequence(model: Model) -> float:
    """Hardware FLOPs under full recompute, whole square (arXiv:2104.04473, equation 3)."""
    return hardware_flops_per_sequence(model.model_copy(update={"causal": False}), "full")


@pytest.mark.parametrize("name", ["gpt3-175b", "megatron-22b", "megatron-530b", "megatron-1t"])
def test_gpt_parameters_are_equation_2_of_narayanan_plus_the_final_norm(name: str) -> None:
    model = preset(name)
    h, L = model.hidden_size, model.layers
    equation = 12 * L * h**2 + 13 * L * h + (model.vocab_size + model.sequence_length) * h
    assert parameters(model).total == equation + 2 * h


@given(models(), st.sampled_from([1, 2, 4]))
def test_ranks_hold_the_model_and_copies_of_norms_row_biases_and_positions(model: Model, tp: int) -> None:
    """tp x the rank's share = the whole (padded) model + (tp - 1) x what every rank holds."""
    count = parameters(model)
    held = stage_parameters_per_tp_rank(model, tp, layers=model.layers, first=True, last=True)
    copied_bias = 2 * model.hidden_size if model.bias else 0
    copied = model.layers * (model.layer_norm_parameters + copied_bias) + count.position_embedding + count.final_norm
    tables = 1 if model.tied_embeddings else 2
    padding = tables * (padded_vocab_size(model, tp) - model.vocab_size) * model.hidden_size
    assert tp * held == count.total + padding + (tp - 1) * copied


@given(models(), st.sampled_from([1, 2, 4]))
def test_stages_hold_the_model_and_a_second_copy_of_a_tied_table(model: Model, tp: int) -> None:
    whole = stage_parameters_per_tp_rank(model, tp, layers=model.layers, first=True, last=True)
    first = stage_parameters_per_tp_rank(model, tp, layers=1, first=True, last=False)
    last = stage_parameters_per_tp_rank(model, tp, layers=model.layers - 1, first=False, last=True)
    table = padded_vocab_size(model, tp) // tp * model.hidden_size
    assert first + last == whole + (table if model.tied_embeddings else 0)


def test_llama_70b_on_one_of_eight_ranks() -> None:
    model = preset("llama3-70b")
    layer = layer_parameters_per_tp_rank(model, 1)
    assert layer_parameters_per_tp_rank(model, 8) == (layer - 2 * 8192) // 8 + 2 * 8192
    assert embedding_parameters_per_tp_rank(model, 8) == 129024 // 8 * 8192


@pytest.mark.parametrize(("vocab", "tp", "padded"), [(50257, 1, 50304), (50257, 8, 51200), (51200, 8, 51200)])
def test_padded_vocabulary(vocab: int, tp: int, padded: int) -> None:
    assert padded_vocab_size(Model(**{**SMALL, "vocab_size": vocab}), tp) == padded


def test_more_ranks_than_key_value_heads_share_copies() -> None:
    assert shard_widths(preset("llama3-405b"), 16).kv_heads == 1
    assert shard_widths(preset("llama3-405b"), 4).kv_heads == 2


@pytest.mark.parametrize("tp", [0, -1, 3, 16])
def test_a_tp_that_does_not_split_the_model_names_those_that_do(tp: int) -> None:
    with pytest.raises(InputError, match=f"tp {tp} does not split heads 8, kv_heads 8 .*use one of 1, 2, 4, 8"):
        shard_widths(Model(**SMALL), tp)


# --- FLOPs ----------------------------------------------------------------------------------------------------------


@given(models(), st.integers(1, 4))
def test_model_flops_are_three_forwards(model: Model, micro_batch: int) -> None:
    layer = layer_flops(model, micro_batch).total
    assert layer.total == 3 * layer.forward
    assert layer.backward == layer.input_grad + layer.weight_grad
    forward = model.layers * layer_flops(model, 1).total.forward + lm_head_flops(model, 1).forward
    assert math.isclose(model_flops_per_sequence(model), 3 * forward, rel_tol=1e-12)


@given(models())
def test_flash_backward_forms_the_scores_once_more(model: Model) -> None:
    plain, flash = layer_flops(model, 1), layer_flops(model, 1, attention_backward="flash")
    assert flash.total.total - plain.total.total == pytest.approx(0.5 * plain.core.forward, rel=1e-9)
    assert flash.core.weight_grad == 0
    assert flash.total.input_grad > flash.total.forward > flash.total.weight_grad


@given(models())
def test_hardware_flops_grow_with_recompute(model: Model) -> None:
    none, selective, full = (hardware_flops_per_sequence(model, mode) for mode in ("none", "selective", "full"))
    assert none == model_flops_per_sequence(model)
    assert none < selective < full
    layers = none - lm_head_flops(model, 1).total
    assert full - none == pytest.approx(layers / 3, rel=1e-9)


@given(models())
def test_the_megatron_formula(model: Model) -> None:
    """``num_floating_point_operations`` of Megatron-LM for one causal sequence, term by term."""
    causal = model.model_copy(update={"causal": True})
    h, L, s = causal.hidden_size, causal.layers, causal.sequence_length
    q, kv = causal.query_size, causal.kv_size
    per_token = 6 * h * causal.ffn_hidden_size * (3 if causal.gated_mlp else 2) * L
    per_token += 6 * L * (h * (q + 2 * kv) + q * h) + 6 * h * causal.vocab_size
    assert model_flops_per_sequence(causal) == s * per_token + 6 * q * L * s**2


@pytest.mark.parametrize("name", ["gpt3-175b", "megatron-22b", "megatron-530b", "megatron-1t"])
def test_published_closed_forms_of_gpt(name: str) -> None:
    model = preset(name)
    h, L, s, V = model.hidden_size, model.layers, model.sequence_length, model.vocab_size
    korthikanti = 72 * L * s * h**2 * (1 + s / (6 * h) + V / (12 * h * L))
    narayanan = 96 * L * s * h**2 * (1 + s / (6 * h) + V / (16 * h * L))
    assert korthikanti_flops_per_sequence(model) == pytest.approx(korthikanti, rel=1e-12)
    assert narayanan_flops_per_sequence(model) == pytest.approx(narayanan, rel=1e-12)


def test_gpt3_at_batch_1536_under_three_conventions() -> None:
    model = preset("gpt3-175b")
    assert f"{1536 * korthikanti_flops_per_sequence(model):.6e}" == "3.386197e+18"
    assert f"{1536 * model_flops_per_sequence(model):.6e}" == "3.340598e+18"
    assert f"{1536 * narayanan_flops_per_sequence(model):.6e}" == "4.510971e+18"


def test_gpt3_recompute() -> None:
    """Selective adds s/(18 h) of an iteration without its head (whole square); full 33.2 % with the head."""
    model = preset("gpt3-175b")
    ratio = hardware_flops_per_sequence(model, "full") / model_flops_per_sequence(model)
    assert round(ratio, 4) == 1.3321
    assert round(narayanan_flops_per_sequence(model) / korthikanti_flops_per_sequence(model), 4) == 1.3322
    square = model.model_copy(update={"causal": False})
    layer = layer_flops(square, 1)
    products = 3 * (layer.total.forward - layer.core.forward)
    assert layer.core.forward / products == pytest.approx(2048 / (18 * 12288), rel=1e-12)
    with pytest.raises(InputError, match="recompute 'some' is not one of none, selective, operators, full"):
        hardware_flops_per_sequence(model, "some")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "sequence_tera"),
    [("gpt3-175b", 2174.8684), ("llama3-8b", 421.6455), ("llama3-70b", 3680.0311), ("llama3-405b", 20676.2474)],
)
def test_model_flops_of_one_sequence(name: str, sequence_tera: float) -> None:
    assert round(model_flops_per_sequence(preset(name)) / 1e12, 4) == sequence_tera


@pytest.mark.parametrize(("name", "giga"), [("llama3-8b", 51.470), ("llama3-70b", 449.223), ("llama3-405b", 2523.956)])
def test_model_flops_of_one_token(name: str, giga: float) -> None:
    model = preset(name)
    assert round(model_flops_per_sequence(model) / model.sequence_length / 1e9, 3) == giga


def test_one_run_has_several_mfus() -> None:
    model = preset("llama3-8b")
    assert round(torchtitan_flops_per_sequence(model) / 8192 / 1e9, 3) == 57.914
    assert round(6.0 * parameters(model).active / 1e9, 3) == 48.182  # 6 N D


def test_torchtitan_counts_a_tied_table_once() -> None:
    model = preset("llama3-8b")
    tied = model.model_copy(update={"tied_embeddings": True})
    assert torchtitan_flops_per_sequence(tied) == torchtitan_flops_per_sequence(model)


@pytest.mark.parametrize(
    ("name", "forward_tera", "i_over_f", "w_over_f", "core_over_lin", "head_over_layer"),
    [
        ("gpt3-175b", 7.525, 1.021, 0.986, 0.0139, 0.342),
        ("llama3-8b", 4.123, 1.200, 0.867, 0.1538, 2.087),
        ("llama3-70b", 15.118, 1.109, 0.927, 0.0784, 1.139),
        ("llama3-405b", 54.426, 1.061, 0.960, 0.0421, 0.633),
    ],
)
def test_a_layer_by_phase(
    name: str, forward_tera: float, i_over_f: float, w_over_f: float, core_over_lin: float, head_over_layer: float
) -> None:
    model = preset(name)
    flops = layer_flops(model, 1, attention_backward="flash")
    layer, core = flops.total, flops.core.forward
    assert layer.forward / 1e12 == pytest.approx(forward_tera, abs=5.1e-4)
    assert layer.input_grad / layer.forward == pytest.approx(i_over_f, abs=5.1e-4)
    assert layer.weight_grad / layer.forward == pytest.approx(w_over_f, abs=5.1e-4)
    assert core / (layer.forward - core) == pytest.approx(core_over_lin, abs=5.1e-5)
    assert lm_head_flops(model, 1).forward / layer.forward == pytest.approx(head_over_layer, abs=5.1e-4)
