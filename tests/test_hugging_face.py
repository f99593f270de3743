"""Published ``config.json`` files (sizes only) become the models that they describe."""

import re
from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import model_document
from simcluster.importers.hugging_face import model_from_config, parse_config
from simcluster.model.layers import parameters
from simcluster.model.transformer import Model

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "n_inner": None,
    "vocab_size": 50257,
}
OPT_1B: dict[str, Any] = {
    "model_type": "opt",
    "hidden_size": 2048,
    "ffn_dim": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 2048,
}
NEOX_20B: dict[str, Any] = {
    "model_type": "gpt_neox",
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "vocab_size": 50432,
    "max_position_embeddings": 2048,
}
BLOOM_176B: dict[str, Any] = {
    "model_type": "bloom",
    "n_layer": 70,
    "n_embed": 14336,
    "num_attention_heads": 112,
    "vocab_size": 250880,
    "seq_length": 2048,
}
QWEN3_4B: dict[str, Any] = {
    **LLAMA_8B,
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
MISTRAL_7B: dict[str, Any] = {
    **LLAMA_8B,
    "model_type": "mistral",
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}


def model(config: dict[str, Any], sequence_length: int | None = None) -> Model:
    return Model(**model_from_config(config, sequence_length=sequence_length))


def test_llama_8b_is_the_preset() -> None:
    expected = {key: value for key, value in Model(**model_document("llama3-8b")).model_dump().items() if key != "name"}
    assert {key: value for key, value in model(LLAMA_8B).model_dump().items() if key != "name"} == expected


# What transformers counts, or the model's card says (more of them: test_inputs_hugging_face).
@pytest.mark.parametrize(
    ("config", "published"),
    [
        (GPT2, 124_439_808),
        (OPT_1B, 1_315_758_080),
        (NEOX_20B, 20_554_567_680),
        (BLOOM_176B, 176_247_271_424),
        (QWEN3_4B, 4_022_468_096),
        (MISTRAL_7B, 7_241_732_096),
    ],
)
def test_published_parameter_counts(config: dict[str, Any], published: int) -> None:
    assert parameters(model(config)).total == published


def test_kv_heads_and_head_dim_default_as_in_transformers() -> None:
    config = {key: value for key, value in LLAMA_8B.items() if key != "num_key_value_heads"} | {"head_dim": None}
    assert (model(config).kv_heads, model(config).head_dim) == (32, 128)


def test_families_differ_in_what_no_config_writes_down() -> None:
    assert (model(GPT2).position, model(GPT2).norm, model(GPT2).gated_mlp, model(GPT2).tied_embeddings) == (
        "learned",
        "layernorm",
        False,
        True,
    )
    assert (model(NEOX_20B).position, model(NEOX_20B).bias, model(NEOX_20B).tied_embeddings) == ("rope", True, False)
    assert model(BLOOM_176B).position == "none"
    assert not model({**OPT_1B, "enable_bias": False}).bias
    assert model({**LLAMA_8B, "attention_bias": True, "mlp_bias": True}).bias


def test_the_sequence_of_training_wins_over_the_longest_possible() -> None:
    assert model(LLAMA_8B, sequence_length=2048).sequence_length == 2048
    assert model(LLAMA_8B).sequence_length == 8192


def test_a_window_as_long_as_the_sequence_is_full_attention() -> None:
    assert model(MISTRAL_7B, sequence_length=4096).attention_window is None
    assert model(MISTRAL_7B).attention_window == 4096
    assert model({**QWEN3_4B, "sliding_window": 1024, "use_sliding_window": False}).sequence_length == 40960


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {},
            "has no model_type; supported are llama, mistral, qwen2, .*, gpt2, gpt_neox, opt, bloom, falcon",
        ),
        ({**LLAMA_8B, "model_type": "mamba"}, "model_type 'mamba', which is not supported: layers that are not all"),
        ({**LLAMA_8B, "model_type": "own"}, "model_type 'own', which is not supported; supported are llama"),
        ({**LLAMA_8B, "model_type": ["llama"]}, "which is not supported"),
        ({**LLAMA_8B, "model_type": "mixtral", "num_local_experts": 8}, "lacks num_experts_per_tok"),
        ({"model_type": "llama"}, r"lacks num_hidden_layers \(layers\), hidden_size \(hidden_size\), .*heads"),
        ({**LLAMA_8B, "intermediate_size": None}, r"lacks intermediate_size \(ffn_hidden_size\)"),
        ({**GPT2, "n_positions": None}, r"lacks n_positions or n_ctx \(sequence_length\)"),
        ({**LLAMA_8B, "hidden_size": "4096"}, "hidden_size '4096' is not a positive whole number"),
        ({**LLAMA_8B, "num_hidden_layers": -1}, "num_hidden_layers '-1' is not a positive whole number"),
        ({**LLAMA_8B, "num_hidden_layers": True}, "num_hidden_layers 'True' is not"),
        ({**LLAMA_8B, "tie_word_embeddings": "no"}, "tie_word_embeddings 'no' is neither true nor false"),
        (
            {**QWEN3_4B, "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 20},
            "sliding_window 4096 is shorter than the sequence of 40960 in the layers from 20 on.*at most 4096",
        ),
        ({**OPT_1B, "word_embed_proj_dim": 512}, "word_embed_proj_dim 512 differs from hidden_size 2048"),
    ],
)
def test_what_cannot_be_read_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        model_from_config(config)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[1]", "holds no JSON object"),
        ('{"a": 1, "a": 2}', "the key 'a' appears twice"),
        ('{"a": {"b": 1, "b": 1}}', "the key 'b' appears twice"),
        ('{"a": ' + "9" * 5000 + "}", "JSON"),
        ("[" * 200_000, "JSON"),
    ],
)
def test_a_bad_text_is_one_clear_error(content: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        parse_config(content, "bad.json")
    assert "bad.json" in str(caught.value)


FLA: dict[str, Any] = {"model_type": "transformer", "hidden_size": 1024, "num_hidden_layers": 24, "num_heads": 16}


def test_the_transformer_of_flash_linear_attention() -> None:
    fields = model_from_config(FLA)
    assert (fields["ffn_hidden_size"], fields["vocab_size"], fields["sequence_length"]) == (2816, 32000, 2048)
    assert model_from_config({**FLA, "intermediate_size": 4096})["ffn_hidden_size"] == 4096
    assert model_from_config({**FLA, "hidden_ratio": 2})["ffn_hidden_size"] == 1536
    assert "qk_norm" not in fields
    more = model_from_config({**FLA, "qk_norm": True, "qkv_bias": True, "num_kv_heads": 4, "window_size": 512})
    assert (more["qk_norm"], more["bias"], more["kv_heads"], more["attention_window"]) == ("head", "qkv", 4, 512)
    with pytest.raises(InputError, match="model_type 'gla', which is not supported: layers that are not all"):
        model_from_config({**FLA, "model_type": "gla"})


LLAMA = (
    '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, '
    '"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192'
)


@pytest.mark.parametrize("constant", ["Infinity", "-Infinity", "NaN"])
def test_numbers_that_are_not_finite_stop_only_where_they_are_needed(constant: str) -> None:
    """transformers writes them (time_step_limit of Mamba's configs), also in the config of a Llama."""
    plain = model_from_config(parse_config(LLAMA + "}", "config.json"))
    beside = f'{LLAMA}, "time_step_limit": [0.0, {constant}], "router_jitter_noise": {constant}}}'
    assert model_from_config(parse_config(beside, "config.json")) == plain
    for key in ("hidden_size", "num_hidden_layers", "num_key_value_heads", "head_dim", "tie_word_embeddings"):
        needed = re.sub(rf', "{key}": \w+', "", LLAMA) + f', "{key}": {constant}}}'
        with pytest.raises(InputError, match=rf"^{key} "):
            model_from_config(parse_config(needed, "config.json"))
