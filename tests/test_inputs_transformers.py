"""Parameter counts of configs of transformers 5.24 against the modules that it builds of them on the meta device.

``inputs/transformers_configs.json`` has by model_type what ``sum(p.numel() for p in model.parameters())`` gave, of the
text decoder with its LM head; how many router biases are buffers there, and so not among these; and the keys of the
config (defaults of transformers, most with six layers) that the importer reads.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.importers.hugging_face import count_config_parameters, model_from_config
from simcluster.model.transformer import Model

CONFIGS: dict[str, Any] = json.loads((Path(__file__).parent / "inputs" / "transformers_configs.json").read_text())


def model(kind: str, **more: Any) -> Model:
    return Model(**model_from_config({"model_type": kind, **CONFIGS[kind][2], **more}))


@pytest.mark.parametrize("kind", CONFIGS)
def test_parameters_are_those_of_the_module(kind: str) -> None:
    count, buffers, config = CONFIGS[kind]
    assert count_config_parameters({"model_type": kind, **config}).total == count + buffers


@pytest.mark.parametrize(
    ("kind", "windows", "positions"),
    [
        ("afmoe", [1024] * 3 + [None] + [1024] * 2, "RRRNRR"),
        ("exaone4", [4096] * 3 + [None] + [4096] * 2, "RRRNRR"),
        ("cohere2", [4096] * 3 + [None] + [4096] * 2, "RRRNRR"),
        ("mellum", [None] * 6, "RRRRRR"),
        ("granite_swa", [None, 128, 128, 128, None, 128], "NRRRNR"),
        ("smollm3", [None] * 6, "RRRNRR"),
        ("lara_mini", [None, 512, None, None, 512, None], "RRRNRR"),
    ],
)
def test_windows_and_positions_by_layer(kind: str, windows: list[int | None], positions: str) -> None:
    """As the attention of modeling_*.py applies them: the rotation is left out where there is no window, or listed."""
    found = model(kind, max_position_embeddings=8192)
    layers = [found.layer_model(layer) for layer in range(6)]
    assert [layer.attention_window for layer in layers] == windows
    assert "".join("N" if layer.position == "none" else "R" for layer in layers) == positions


def test_heads_of_gemma_4_by_layer() -> None:
    found = model("gemma4_text")
    assert [found.layer_model(layer).head_dim for layer in range(8)] == [256] * 5 + [512, 256, 512]
    published = {key: value for key, value in CONFIGS["gemma4_text"][2].items() if key != "per_layer_config"}
    assert Model(**model_from_config({"model_type": "gemma4_text", **published, "global_head_dim": 512})) == found
    wider = model_from_config({"model_type": "gemma4_unified_text", **published, "num_global_key_value_heads": 2})
    assert wider["layer_types"]["F"] == {"head_dim": 512, "kv_heads": 2}


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("gemma4_text", {"hidden_size_per_layer_input": 256}, "embeddings for each layer are not modelled"),
        ("gemma4_text", {"attention_k_eq_v": True}, "keys are its values"),
        ("gemma4_text", {"enable_moe_block": True}, "experts side by side"),
        ("gemma4_text", {"per_layer_config": {"5": {"head_dim": 512}}}, "for each full_attention layer"),
        ("gemma4_text", {"per_layer_config": {"5": {"width": 5}, "7": {"width": 5}}}, "for each full_attention layer"),
        ("gemma4_text", {"per_layer_config": [512]}, "for each full_attention layer"),
        ("granite_swa", {"layer_rope_theta": [0]}, "is not a list of 6 numbers"),
        ("mellum", {"mlp_layer_types": ["sparse"] * 5}, "mlp_layer_types must be a list of 6 words"),
        ("mellum", {"mlp_layer_types": ["dense"] * 6}, "none of the 6 layers has experts"),
        ("nemotron_h", {"layers_block_type": ["conv"] * 4}, "layers_block_type must be a list of 4 words"),
        ("lara_mini", {"layer_types": ["conv"] * 6}, "each linear_attention or full_attention or sliding_attention"),
        ("phimoe", {"lm_head_bias": True}, "a bias of the LM head"),
        ("gemma3n_text", {}, r"embeddings for each layer \(AltUp\)"),
        ("falcon_h1", {}, "attention and Mamba-2 side by side"),
        ("laguna", {}, "a gate for each attention head"),
        ("longcat_flash", {}, "two attention blocks around the experts"),
        ("lfm2_moe", {}, "layers of convolutions"),
        ("hy_v4", {}, "several residual streams"),
    ],
)
def test_what_stays_out_of_scope_is_named(kind: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        model_from_config({"model_type": kind, **CONFIGS.get(kind, (0, 0, {}))[2], **change})


def test_which_layers_have_experts() -> None:
    """By mlp_layer_types, which transformers writes in place of the first dense layers."""
    words = ["dense", "sparse", "sparse", "dense", "sparse", "sparse"]
    found = model("exaone_moe", mlp_layer_types=words)
    assert [found.has_experts(layer) for layer in range(6)] == [word == "sparse" for word in words]
    assert model("exaone_moe", mlp_layer_types=["dense"] * 2 + ["sparse"] * 4).moe.first_dense_layers == 2  # type: ignore[union-attr]


def test_layers_of_nemotron_by_name() -> None:
    found = model("nemotron_h", layers_block_type=["mamba", "moe", "attention", "mlp"])
    assert found.pattern == tuple("ME*-")
    assert found == model("nemotron_h")


def test_kimi_linear_has_no_positions() -> None:
    assert model("kimi_linear").position == load_model_entry("kimi-linear-48b")["position"] == "none"


@pytest.mark.parametrize("tied", [True, False])
def test_the_whole_model_says_whether_its_lm_head_is_tied(tied: bool) -> None:
    """As in Qwen3VLMoeForConditionalGeneration (false) and Mistral3ForConditionalGeneration (true)."""
    text = {"model_type": "helium", **CONFIGS["helium"][2], "tie_word_embeddings": not tied}
    assert model_from_config({"text_config": text, "tie_word_embeddings": tied})["tied_embeddings"] is tied
    assert model_from_config({"text_config": text})["tied_embeddings"] is not tied
