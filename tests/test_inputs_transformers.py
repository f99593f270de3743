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
from simcluster.model.layers import parameters
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
    for kind in ("gemma4_text", "gemma4_unified_text"):  # __post_init__ of both: with attention_k_eq_v only
        wider = {"model_type": kind, **published, "num_global_key_value_heads": 2}
        assert model_from_config(wider)["layer_types"]["F"] == {"head_dim": 512}
        joined = model_from_config({**wider, "attention_k_eq_v": True})["layer_types"]["F"]
        assert joined == {"head_dim": 512, "kv_heads": 2, "values_from_keys": True}


@pytest.mark.parametrize(
    ("joined", "experts", "count"),
    [(False, False, 17_053_056), (True, False, 16_659_840), (False, True, 26_527_152), (True, True, 26_133_936)],
)
def test_small_gemma_4_counts_as_its_module(joined: bool, experts: bool, count: int) -> None:
    """Gemma4ForCausalLM of transformers 5.24 on the meta device."""
    sizes = {
        "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 6,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "global_head_dim": 128,
        "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 0, "attention_k_eq_v": joined,
    }  # fmt: skip
    more = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 128}
    assert count_config_parameters({"model_type": "gemma4_text", **sizes, **(more if experts else {})}).total == count


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("gemma4_text", {"hidden_size_per_layer_input": 256}, "embeddings for each layer are not modelled"),
        ("gemma4_text", {"num_kv_shared_layers": 2}, "keys and values that layers share"),
        ("gemma4_text", {"use_double_wide_mlp": True}, "MLPs of several widths"),
        ("gemma4_text", {"use_bidirectional_attention": "all"}, "only causal decoders are modelled"),
        (
            "gemma4_text",
            {"final_logit_softcapping": "30"},
            "final_logit_softcapping '30' is not a number of at least 0",
        ),
        ("mamba2", {"use_bias": True}, "use_bias is true: biases of Mamba-2's projections"),
        ("mamba2", {"use_conv_bias": False}, "use_conv_bias is false"),
        ("granitemoehybrid", {"mamba_proj_bias": True}, "mamba_proj_bias is true"),
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
        ("zamba2", {}, "layers that share the weights of one block"),
        ("mamba", {}, "layers of Mamba-1 are not modelled, only those of Mamba-2"),
        ("xlstm", {}, r"recurrent layers of xLSTM \(mLSTM and sLSTM\) are not modelled"),
        ("laguna", {}, "a gate for each attention head"),
        ("longcat_flash", {}, "two attention blocks around the experts"),
        ("lfm2_moe", {}, "layers of convolutions"),
        ("hy_v4", {}, r"several residual streams \(hyper-connections\) are imported of deepseek_v4 alone"),
    ],
)
def test_what_stays_out_of_scope_is_named(kind: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        model_from_config({"model_type": kind, **CONFIGS.get(kind, (0, 0, {}))[2], **change})


def test_gemma_4_has_embeddings_for_each_layer_unless_it_says_none() -> None:
    """Gemma4TextConfig's default is 256 (E2B); null is none."""
    config = {key: value for key, value in CONFIGS["gemma4_text"][2].items() if key != "hidden_size_per_layer_input"}
    with pytest.raises(InputError, match=r"embeddings for each layer are not modelled \(Gemma 4 E2B and E4B"):
        model_from_config({"model_type": "gemma4_text", **config})
    assert Model(**model_from_config({"model_type": "gemma4_text", **config, "hidden_size_per_layer_input": None}))


def test_caps_of_logits() -> None:
    """Gemma 2's and VaultGemma's default is 30, Gemma 3's and 4's none; null switches it off."""
    caps = {kind: model(kind).logit_softcap for kind in ("vaultgemma", "gemma4_text", "muse_glimmer_text")}
    assert caps == {"vaultgemma": True, "gemma4_text": None, "muse_glimmer_text": True}
    assert model("vaultgemma", final_logit_softcapping=None).logit_softcap is None
    assert model("gemma4_text", final_logit_softcapping=30.0).logit_softcap is True


def test_positions_of_granite_4() -> None:
    """GraniteMoeHybridModel rotates with position_embedding_type rope alone, Bamba always."""
    words = [model("granitemoehybrid", position_embedding_type=word).position for word in ("rope", "nope", None)]
    assert words == ["rope", "none", "none"]
    assert model("bamba").position == "rope"


def test_pure_mamba_2_is_a_pattern_of_one_letter() -> None:
    found, (_, _, config) = model("mamba2"), CONFIGS["mamba2"]
    sizes = {"heads": 48, "head_dim": 64, "groups": 1, "state": 128, "conv": 4, "chunk": 256}
    fields = {"hidden_size": 1536, "heads": 48, "head_dim": 64, "vocab_size": 50288, "sequence_length": 2048}
    by_hand = Model(
        **fields, layers="M" * 48, layer_kinds={"mamba2": sizes}, norm="rmsnorm", position="none", bias=False
    )
    assert found == by_hand.model_copy(update={"pattern": ("M",)})
    assert count_config_parameters({"model_type": "mamba2", **config}).active == 780_161_280
    whole = model("mamba2", **dict.fromkeys(config, None))  # Mamba2Config(): 7,285,403,648 in its module
    assert parameters(whole).total == 7_285_403_648


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
