"""Parameter counts of published models, by their config.json (sizes only, as on the model's page), to the last one."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from activation_bytes import activation_bytes_per_layer
from conftest import for_each
from hypothesis import given
from hypothesis import strategies as st
from layer_blocks import attention_block, mlp_block

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.importers.hugging_face import (
    assumptions_of_config,
    classify_config_keys,
    count_config_parameters,
    model_from_config,
    parse_config_json,
    sequence_length_notes,
)
from simcluster.model.flops import layer_flops
from simcluster.model.layer_block import embedding_block
from simcluster.model.layers import RankShape, layer_kinds, parameters, stage_parameters_per_tp_rank
from simcluster.model.transformer import Model
from simcluster.scenario.scenario import from_document
from simcluster.step.simulate import simulate


def llama(
    kind: str, layers: int, hidden: int, ffn: int, heads: int, kv: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        **more,
    }


MOSAIC = {"n_layers": 32, "d_model": 4096, "n_heads": 32, "vocab_size": 50432, "max_seq_len": 2048}
DBRX = {"n_layers": 40, "d_model": 6144, "n_heads": 48, "vocab_size": 100352} | {
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "model_type": ""},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "model_type": ""},
}


def gpt2(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    sizes = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "n_positions": 1024, "vocab_size": 50257}
    return {"model_type": "gpt2", **sizes}


def opt(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "opt",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "ffn_dim": 4 * hidden,
        "num_attention_heads": heads,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": hidden,
    }


def bloom(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    sizes = {"n_layer": layers, "hidden_size": hidden, "n_head": heads, "vocab_size": 250880, "seq_length": 2048}
    return {"model_type": "bloom", **sizes}


def neox(layers: int, hidden: int, heads: int, vocab: int) -> dict[str, Any]:
    config = llama("gpt_neox", layers, hidden, 4 * hidden, heads, heads, vocab)
    return {key: value for key, value in config.items() if key != "num_key_value_heads"}


def falcon(layers: int, hidden: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "vocab_size": 65024}
    return {"model_type": "falcon", **sizes, "bias": False, "alibi": False, "parallel_attn": True, **more}


def qwen_moe(
    kind: str, layers: int, hidden: int, heads: int, kv: int, number: int, top_k: int, width: int, **more: Any
):
    mixture = {"num_experts": number, "num_experts_per_tok": top_k, "moe_intermediate_size": width}
    return llama(kind, layers, hidden, 4 * hidden, heads, kv, 151936, **mixture, **more)


def deepseek(
    kind: str, layers: int, hidden: int, ffn: int, heads: int, vocab: int, width: int, number: int, **more: Any
):
    latent = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    mixture = {"moe_intermediate_size": width, "n_routed_experts": number, "moe_layer_freq": 1}
    config = llama(kind, layers, hidden, ffn, heads, heads, vocab)
    return {**config, **latent, **mixture, **more}


def gpt_oss(layers: int, number: int) -> dict[str, Any]:
    mixture = {"num_local_experts": number, "num_experts_per_tok": 4, "sliding_window": 128}
    return llama("gpt_oss", layers, 2880, 2880, 64, 8, 201088, head_dim=64, **mixture)


def glm(layers: int, hidden: int, ffn: int, number: int, width: int, **more: Any) -> dict[str, Any]:
    mixture = {"n_routed_experts": number, "n_shared_experts": 1, "moe_intermediate_size": width}
    rest = {"num_experts_per_tok": 8, "attention_bias": True, "head_dim": 128, "num_nextn_predict_layers": 1}
    return llama("glm4_moe", layers, hidden, ffn, 96, 8, 151552, **mixture, **rest, **more)


def llama4(number: int, step: int) -> dict[str, Any]:
    mixture = {"num_local_experts": number, "num_experts_per_tok": 1, "interleave_moe_layer_step": step}
    return llama("llama4_text", 48, 5120, 8192, 40, 8, 202048, head_dim=128, intermediate_size_mlp=16384, **mixture)


TIED = {"tie_word_embeddings": True}
# Counts of the published weights: the "model size" of each model's page (its safetensors index), and
# model.num_parameters() of transformers where that is rounded.
DENSE = {
    "Phi-3-mini-4k": (llama("phi3", 32, 3072, 8192, 32, 32, 32064), 3_821_079_552),
    "phi-4": (llama("phi3", 40, 5120, 17920, 40, 10, 100352), 14_659_507_200),
    "OLMo-2-1124-7B": (llama("olmo2", 32, 4096, 11008, 32, 32, 100352), 7_298_617_344),
    "SmolLM3-3B": (llama("smollm3", 36, 2048, 11008, 16, 4, 128256), 3_075_098_624),
    "Seed-OSS-36B": (llama("seed_oss", 64, 5120, 27648, 80, 8, 155136, head_dim=128), 36_151_104_512),
    "GLM-4-9B-0414": (llama("glm4", 40, 4096, 13696, 32, 2, 151552, head_dim=128, attention_bias=True), 9_400_279_040),
    "stablelm-2-1_6b": (llama("stablelm", 24, 2048, 5632, 32, 32, 100352, use_qkv_bias=True), 1_644_515_328),
    "starcoder2-7b": (llama("starcoder2", 32, 4608, 18432, 36, 4, 49152), 7_173_923_840),
    "Llama-2-7b": (llama("llama", 32, 4096, 11008, 32, 32, 32000), 6_738_415_616),
    "Llama-2-13b": (llama("llama", 40, 5120, 13824, 40, 40, 32000), 13_015_864_320),
    "Llama-2-70b": (llama("llama", 80, 8192, 28672, 64, 8, 32000), 68_976_648_192),
    "Llama-3-8B": (llama("llama", 32, 4096, 14336, 32, 8, 128256), 8_030_261_248),
    "Llama-3-70B": (llama("llama", 80, 8192, 28672, 64, 8, 128256), 70_553_706_496),
    "Llama-3.1-405B": (llama("llama", 126, 16384, 53248, 128, 8, 128256), 405_853_388_800),
    "Llama-3.2-1B": (llama("llama", 16, 2048, 8192, 32, 8, 128256, **TIED), 1_235_814_400),
    "Llama-3.2-3B": (llama("llama", 28, 3072, 8192, 24, 8, 128256, **TIED), 3_212_749_824),
    "Mistral-7B-v0.1": (llama("mistral", 32, 4096, 14336, 32, 8, 32000), 7_241_732_096),
    "Qwen2.5-0.5B": (llama("qwen2", 24, 896, 4864, 14, 2, 151936, **TIED), 494_032_768),
    "Qwen2.5-1.5B": (llama("qwen2", 28, 1536, 8960, 12, 2, 151936, **TIED), 1_543_714_304),
    "Qwen2.5-7B": (llama("qwen2", 28, 3584, 18944, 28, 4, 152064), 7_615_616_512),
    "Qwen2.5-72B": (llama("qwen2", 80, 8192, 29568, 64, 8, 152064), 72_706_203_648),
    "Qwen3-4B": (llama("qwen3", 36, 2560, 9728, 32, 8, 151936, head_dim=128, **TIED), 4_022_468_096),
    "Qwen3-8B": (llama("qwen3", 36, 4096, 12288, 32, 8, 151936, head_dim=128), 8_190_735_360),
    "Qwen3-32B": (llama("qwen3", 64, 5120, 25600, 64, 8, 151936, head_dim=128), 32_762_123_264),
    "gemma-2b": (llama("gemma", 18, 2048, 16384, 8, 1, 256000, head_dim=256), 2_506_172_416),
    "gemma-7b": (llama("gemma", 28, 3072, 24576, 16, 16, 256000, head_dim=256), 8_537_680_896),
    "gemma-2-2b": (llama("gemma2", 26, 2304, 9216, 8, 4, 256000, head_dim=256), 2_614_341_888),
    "gemma-2-9b": (llama("gemma2", 42, 3584, 14336, 16, 8, 256000, head_dim=256), 9_241_705_984),
    "gemma-2-27b": (llama("gemma2", 46, 4608, 36864, 32, 16, 256000, head_dim=128), 27_227_128_320),
    "gemma-3-1b": (llama("gemma3_text", 26, 1152, 6912, 4, 1, 262144, head_dim=256), 999_885_952),
    "internlm2-7b": (llama("internlm2", 32, 4096, 14336, 32, 8, 92544, bias=False), 7_737_708_544),
    "command-r-v01": (llama("cohere", 40, 8192, 22528, 64, 64, 256000, **TIED), 34_980_831_232),
    "mpt-7b": ({"model_type": "mpt", **MOSAIC, "attn_config": {"alibi": True}}, 6_649_286_656 + 65 * 4096),  # so too
    "phi-2": (llama("phi", 32, 2560, 10240, 32, 32, 51200), 2_779_683_840 - 51200),  # less the biases of its head
    "chatglm3-6b": (
        {
            "model_type": "chatglm",
            "num_layers": 28,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "multi_query_group_num": 2,
            "kv_channels": 128,
            "ffn_hidden_size": 13696,
            "padded_vocab_size": 65024,
            "seq_length": 8192,
            "add_qkv_bias": True,
            "tie_word_embeddings": False,
        },
        6_243_584_000,
    ),
    "starcoderbase": (
        {**gpt2(40, 6144, 48), "model_type": "gpt_bigcode", "vocab_size": 49152, "n_positions": 8192},
        15_517_456_384,
    ),
    "Qwen2.5-VL-7B": (llama("qwen2_5_vl", 28, 3584, 18944, 28, 4, 152064), 7_615_616_512),  # its decoder, Qwen2.5 7B
    "Olmo-3-7B": (llama("olmo3", 32, 4096, 11008, 32, 32, 100278), 7_298_011_136),
    "EXAONE-4.0-32B": (llama("exaone4", 64, 5120, 27392, 40, 8, 102400), 32_003_216_384),
    "Nemotron-4-15B": (llama("nemotron", 32, 6144, 24576, 48, 8, 256000), 15_628_775_424),
    "gpt2": (gpt2(12, 768, 12), 124_439_808),
    "gpt2-xl": (gpt2(48, 1600, 25), 1_557_611_200),
    "pythia-6.9b": (neox(32, 4096, 32, 50432), 6_857_302_016),
    "gpt-neox-20b": (neox(44, 6144, 64, 50432), 20_554_567_680),
    "opt-125m": (opt(12, 768, 12), 125_239_296),
    "opt-1.3b": (opt(24, 2048, 32), 1_315_758_080),
    "opt-6.7b": (opt(32, 4096, 32), 6_658_473_984),
    "bloom-560m": (bloom(24, 1024, 16), 559_214_592),
    "bloom": (bloom(70, 14336, 112), 176_247_271_424),
    "falcon-7b": (falcon(32, 4544, 71, multi_query=True), 6_921_720_704),
    "falcon-40b": (falcon(60, 8192, 128, new_decoder_architecture=True, num_kv_heads=8), 41_303_293_952),
}
V2 = {"q_lora_rank": 1536, "n_shared_experts": 2, "first_k_dense_replace": 1, "num_experts_per_tok": 6}
INDEX = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
V3 = {"q_lora_rank": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3, "num_experts_per_tok": 8}
MIXTURES = {
    "Mixtral-8x7B": (
        llama("mixtral", 32, 4096, 14336, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2),
        46_702_792_704,
    ),
    "Mixtral-8x22B": (
        llama("mixtral", 56, 6144, 16384, 48, 8, 32768, num_local_experts=8, num_experts_per_tok=2),
        140_630_071_296,
    ),
    "Qwen1.5-MoE-A2.7B": (
        qwen_moe("qwen2_moe", 24, 2048, 16, 16, 60, 4, 1408, shared_expert_intermediate_size=5632),
        14_315_784_192,
    ),
    "Qwen3-30B-A3B": (qwen_moe("qwen3_moe", 48, 2048, 32, 4, 128, 8, 768, head_dim=128), 30_532_122_624),
    "Qwen3-235B-A22B": (qwen_moe("qwen3_moe", 94, 4096, 64, 4, 128, 8, 1536, head_dim=128), 235_093_634_560),
    "deepseek-moe-16b": (
        llama(
            "deepseek",
            28,
            2048,
            10944,
            16,
            16,
            102400,
            moe_intermediate_size=1408,
            n_routed_experts=64,
            n_shared_experts=2,
            num_experts_per_tok=6,
            first_k_dense_replace=1,
        ),
        16_375_728_128,
    ),
    "Ling-mini-2.0": (
        llama(
            "bailing_moe_v2",
            20,
            2048,
            5120,
            16,
            4,
            157184,
            head_dim=128,
            moe_intermediate_size=512,
            num_experts=256,
            num_shared_experts=1,
            num_experts_per_tok=8,
            first_k_dense_replace=1,
            n_group=8,
            topk_group=4,
            use_qk_norm=True,
        ),
        16_255_643_392,
    ),
    "Qwen3-VL-235B-A22B": (qwen_moe("qwen3_vl_moe_text", 94, 4096, 64, 4, 128, 8, 1536, head_dim=128), 235_093_634_560),
    "DeepSeek-V2": (deepseek("deepseek_v2", 60, 5120, 12288, 128, 102400, 1536, 160, **V2), 235_741_434_880),
    "DeepSeek-V2-Lite": (
        deepseek("deepseek_v2", 27, 2048, 10944, 16, 102400, 1408, 64, **{**V2, "q_lora_rank": None}),
        15_706_484_224,
    ),
    "DeepSeek-V3": (
        deepseek("deepseek_v3", 61, 7168, 18432, 128, 129280, 2048, 256, n_group=8, topk_group=4, **V3),
        671_026_419_200,
    ),
    # DeepseekV32ForCausalLM and GlmMoeDsaForCausalLM of transformers 5.24 on meta tensors, and the biases of routers,
    # which are buffers there
    "DeepSeek-V3.2": (
        deepseek("deepseek_v32", 61, 7168, 18432, 128, 129280, 2048, 256, n_group=8, topk_group=4, **V3, **INDEX),
        671_877_929_216 + 58 * 256,
    ),
    "GLM-5": (
        {
            **deepseek("glm_moe_dsa", 78, 6144, 12288, 64, 154880, 2048, 256, **V3, **INDEX),
            "q_lora_rank": 2048,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "index_n_heads": 32,
        },
        743_911_199_232 + 75 * 256,
    ),
    "ERNIE-4.5-21B-A3B": (
        llama(
            "ernie4_5_moe",
            28,
            2560,
            12288,
            20,
            4,
            103424,
            moe_num_experts=64,
            moe_k=6,
            moe_intermediate_size=1536,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
            moe_layer_end_index=-1,
            tie_word_embeddings=True,
        ),
        21_825_437_888,
    ),
    "MiniMax-M2": (
        llama("minimax_m2", 62, 3072, 1536, 48, 8, 200064, head_dim=128, num_local_experts=256, num_experts_per_tok=8),
        228_689_764_864,
    ),
    "dots.llm1": (
        llama(
            "dots1",
            62,
            4096,
            10944,
            32,
            32,
            152064,
            moe_intermediate_size=1408,
            n_routed_experts=128,
            n_shared_experts=2,
            num_experts_per_tok=6,
            first_k_dense_replace=1,
        ),
        142_774_381_696,
    ),
    "dbrx": (  # and biases of its norms, which it has not
        {"model_type": "dbrx", **MOSAIC, **DBRX},
        131_596_523_520 + 81 * 6144,
    ),
    "gpt-oss-20b": (gpt_oss(24, 32), 20_914_757_184),
    "gpt-oss-120b": (gpt_oss(36, 128), 116_829_156_672),
    "Kimi-K2": (
        deepseek("kimi_k2", 61, 7168, 18432, 64, 163840, 2048, 384, **{**V3, "first_k_dense_replace": 1}),
        1_026_408_232_448,
    ),
    "GLM-4.5-Air": (glm(46, 4096, 10944, 128, 1408, first_k_dense_replace=1), 106_852_251_264),
    "GLM-4.5": (glm(92, 5120, 12288, 160, 1536, first_k_dense_replace=3, use_qk_norm=True), 352_797_829_024),
    "OLMoE-1B-7B": (
        llama("olmoe", 16, 2048, 1024, 16, 16, 50304, num_experts=64, num_experts_per_tok=8),
        6_919_161_856,
    ),
    "granite-3.0-1b-a400m": (
        llama("granitemoe", 24, 1024, 512, 16, 8, 49155, num_local_experts=32, num_experts_per_tok=8, **TIED),
        1_334_628_352,
    ),
    "Llama-4-Scout": (llama4(16, 1), 107_769_861_120),  # its text alone: "109B" with the tower for images
    "Llama-4-Maverick": (llama4(128, 2), 400_711_848_960),
}


@for_each("name", DENSE)
def test_dense_models_have_their_published_parameters(name: str) -> None:
    config, published = DENSE[name]
    assert count_config_parameters(config).total == published
    assert parameters(Model(**model_from_config(config, sequence_length=1024))).total == published


@for_each("name", MIXTURES)
def test_mixtures_have_their_published_parameters(name: str) -> None:
    config, published = MIXTURES[name]
    assert count_config_parameters(config).total == published
    assert parameters(Model(**model_from_config(config, sequence_length=1024))).total == published


def test_active_parameters_leave_out_experts_that_a_token_does_not_visit() -> None:
    config, total = MIXTURES["Mixtral-8x7B"]
    found = count_config_parameters(config)
    assert total - found.active == 32 * 6 * 3 * 4096 * 14336
    assert found.active == 12_879_925_248  # "13B active", mistral.ai


def test_sizes_in_sections_of_a_config_are_read_and_accounted_for() -> None:
    config = {"model_type": "dbrx", **MOSAIC, **DBRX}
    found = model_from_config(config)
    assert found["moe"] == {"experts": 16, "top_k": 4, "expert_ffn_hidden_size": 10752}
    assert (found["kv_heads"], found["position"], found["tied_embeddings"]) == (8, "rope", False)
    mapped, idle, unknown = classify_config_keys({**config, "own": 1}, sequence_length=1024)
    assert {"attn_config", "ffn_config", "kv_n_heads", "moe_top_k"} <= set(mapped)
    assert (idle, unknown) == (("clip_qkv",), ("own",))
    mpt: dict[str, Any] = {"model_type": "mpt", **MOSAIC}
    assert model_from_config({**mpt, "attn_config": {"attn_type": "multiquery_attention"}})["kv_heads"] == 1
    with pytest.raises(InputError, match="MPT with learned positions is not modelled"):
        model_from_config({**mpt, "attn_config": {"alibi": False}})


def test_that_weights_are_published_quantized_is_told() -> None:
    stored = {"quantization_config": {"bits": 4, "quant_method": "gptq"}}
    config = {**DENSE["Llama-2-7b"][0], **stored}
    assert assumptions_of_config(config) == (
        "weights are trained unquantized: training with quantization_config (gptq, 4 bits) is not modelled",
    )
    assert model_from_config(config) == model_from_config(DENSE["Llama-2-7b"][0])
    assert "quantization_config" not in classify_config_keys(config, sequence_length=1024)[1]
    assert assumptions_of_config({**config, "quantization_config": None}) == ()


def test_of_a_model_of_several_parts_the_decoder_is_taken_and_the_rest_is_named() -> None:
    """Gemma 3 27B: 27,432,406,640 parameters less those of its SigLIP tower and of the projection behind it."""
    text = llama("gemma3_text", 62, 5376, 21504, 32, 16, 0, head_dim=128, sliding_window=1024)
    for defaulted in ("vocab_size", "max_position_embeddings"):
        del text[defaulted]
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}
    assert count_config_parameters(config).total == 27_432_406_640 - 416_866_032 - (1152 * 5376 + 1152)
    assert assumptions_of_config(config) == ("only the text decoder, without vision_config",)
    assert model_from_config(config)["sequence_length"] == 131072
    flat = {**DENSE["Qwen2.5-VL-7B"][0], "vision_config": {"hidden_size": 1280}}
    assert assumptions_of_config(flat) == ("only the text decoder, without vision_config",)
    assert count_config_parameters(flat).total == DENSE["Qwen2.5-VL-7B"][1]
    tied = {"model_type": "x", "tie_word_embeddings": True, "text_config": DENSE["Qwen3-8B"][0]}
    assert model_from_config(tied)["tied_embeddings"] is True


@pytest.mark.parametrize(("name", "with_its_layer"), [("GLM-4.5-Air", 110_468_824_832), ("GLM-4.5", 358_337_791_296)])
def test_multi_token_prediction_is_left_out_and_said(name: str, with_its_layer: int) -> None:
    """The published weights have a whole layer more, what joins two states, two norms, and copies of both tables."""
    config, total = MIXTURES[name]
    model, h = Model(**model_from_config(config)), config["hidden_size"]
    kinds = layer_kinds(model, model.layers - 1)
    layer = sum(kind.count_parameters(model) + kind.count_expert_parameters(model) for kind in kinds)
    layer += model.layer_norm_parameters
    assert total + layer + 2 * h * h + 3 * h + 2 * 151552 * h == with_its_layer
    assert assumptions_of_config(config) == (
        "time and parameters exclude the 1 layer of multi-token prediction (mtp_layers: 1 in the model adds them)",
    )
    assert assumptions_of_config({**config, "num_nextn_predict_layers": 0}) == ()


@pytest.mark.parametrize("name", ["Qwen3-8B", "Qwen2.5-7B", "gemma-2-9b", "falcon-7b", "bloom-560m", "opt-125m"])
def test_stages_together_hold_the_model(name: str) -> None:
    config, total = DENSE[name]
    model = Model(**model_from_config(config, sequence_length=512), vocab_multiple=1)
    layers = model.layers
    parts = [
        stage_parameters_per_tp_rank(model, 1, layers=layers - 3, first=True, last=False),
        stage_parameters_per_tp_rank(model, 1, layers=3, first=False, last=True),
    ]
    twice = model.vocab_size * model.hidden_size if model.tied_embeddings else 0
    assert sum(parts) == total + twice


def test_biases_are_where_the_family_has_them() -> None:
    base = DENSE["Llama-2-7b"][0]
    assert model_from_config({**base, "attention_bias": True})["bias"] == "attention"
    assert model_from_config({**base, "attention_bias": True, "mlp_bias": True})["bias"] is True
    with pytest.raises(InputError, match="biases only in the MLP are not modelled"):
        model_from_config({**base, "mlp_bias": True})
    qkv, attention = (Model(**model_from_config(base) | {"bias": bias}) for bias in ("qkv", "attention"))
    assert parameters(attention).total - parameters(qkv).total == 32 * 4096


def test_attention_and_mlp_side_by_side() -> None:
    """Both of NeoX and Falcon read the same hidden state, unless their config says otherwise."""
    neox, falcon = DENSE["pythia-6.9b"][0], DENSE["falcon-7b"][0]
    found = [
        model_from_config(config, sequence_length=512).get("parallel_residual")
        for config in (
            neox,
            falcon,
            {**DENSE["falcon-40b"][0], "parallel_attn": False},  # the new architecture always has it
            {**neox, "use_parallel_residual": False},
            {**falcon, "parallel_attn": False},
            DENSE["Llama-2-7b"][0],
        )
    ]
    assert found == [True, True, True, None, None, None]


def test_windows_and_their_periods() -> None:
    gemma2 = DENSE["gemma-2-9b"][0]
    assert "attention_window" not in model_from_config({**gemma2, "sliding_window": 4096})
    found = model_from_config({**gemma2, "sliding_window": 1024})
    assert (found["attention_window"], found["full_attention_every"]) == (1024, 2)
    gemma3 = model_from_config({**DENSE["gemma-3-1b"][0], "sliding_window": 512})
    assert (gemma3["attention_window"], gemma3["full_attention_every"]) == (512, 6)
    types = ["sliding_attention"] * 3 + ["full_attention"]
    listed = {**DENSE["gemma-3-1b"][0], "num_hidden_layers": 8, "sliding_window": 512}
    assert model_from_config({**listed, "layer_types": types * 2})["full_attention_every"] == 4
    assert "full_attention_every" not in model_from_config({**listed, "layer_types": ["sliding_attention"] * 8})
    irregular = model_from_config({**listed, "layer_types": [*types, *reversed(types)]})
    assert (irregular["pattern"], irregular["layer_types"]["S"]) == ("SSSFF", {"attention_window": 512})
    assert "attention_window" not in irregular
    with pytest.raises(InputError, match="must be a list of 8 words"):
        model_from_config({**listed, "layer_types": types})


def test_a_window_in_the_last_layers_is_a_pattern() -> None:
    windows = {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 20}
    model = Model(**model_from_config({**QWEN3_4B, **windows}))
    assert [model.layer_model(layer).attention_window for layer in (0, 19, 20, 35)] == [None, None, 4096, 4096]


def test_a_window_does_the_work_of_the_tokens_in_it() -> None:
    """Exactly w s - w (w - 1) / 2 pairs; the arithmetic leaves out the diagonal's half, as for the whole triangle."""
    sequence, window = 4096, 512
    model = Model(**model_from_config(DENSE["Mistral-7B-v0.1"][0]) | {"attention_window": window})
    pairs = sum(min(token, window) for token in range(1, sequence + 1))
    assert model.causal_factor * sequence**2 == pytest.approx(pairs - sequence / 2, rel=1e-3)
    whole = Model(**model_from_config(DENSE["Mistral-7B-v0.1"][0]))
    mixed = Model(
        **model_from_config(DENSE["Mistral-7B-v0.1"][0]) | {"attention_window": 512, "full_attention_every": 2}
    )
    cores = [layer_flops(each, 1).core.forward for each in (model, mixed, whole)]
    assert cores[1] == pytest.approx((cores[0] + cores[2]) / 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vision_config": {"hidden_size": 1}}, "has vision_config, so the model is multimodal"),
        ({"text_config": {"hidden_size": 1}}, "the config of model_type 'gemma2' lacks num_hidden_layers"),
        (
            {"text_config": {"hidden_size": 1}, "model_type": "minimax_m3_vl"},
            "'minimax_m3_vl', which .*sparse attention",
        ),
        ({"index_topk": 2048}, "has index_topk: sparse attention of this kind is not modelled"),
        ({"model_type": "jamba"}, "layers of Mamba-1 are not modelled, only those of Mamba-2"),
        ({"model_type": "doge"}, "sparse attention of this kind is not modelled"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is true"),
        ({"model_type": "gemma4"}, "'gemma4', which is not supported; supported: .*gemma3_text"),
        ({"num_hidden_layers": 10**10}, "not a positive whole number"),
        ({"hidden_size": 10**5000}, "not a positive whole number"),
        ({"num_key_value_heads": 5}, "kv_heads 5 does not divide heads 16"),
    ],
)
def test_what_is_not_a_decoder_of_text_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises((InputError, ValueError), match=words):
        Model(**model_from_config({**DENSE["gemma-2-9b"][0], **change}))


def blocks(**features: Any) -> dict[str, float]:
    """Bytes of every forward kernel of a layer, of the embedding in front of it, and their sum."""
    config = model_from_config(DENSE["Llama-2-7b"][0], sequence_length=1024)
    model, shape = Model(**config | features), RankShape(micro_batch=1, tp=2)
    kernels = [
        kernel
        for block in (embedding_block(model, shape), attention_block(model, shape), mlp_block(model, shape))
        for section in (block.entry, block.body, block.exit)
        for kernel in section.forward
    ]
    return {kernel.name: kernel.bytes for kernel in kernels}


def test_norms_are_kernels_with_their_bytes() -> None:
    plain, tokens, hidden = blocks(), 1024, 4096
    added = {
        "qk_norm": ({"qk_norm": "head"}, {"qk_norm": 2 * 2 * tokens * 2 * hidden / 2}),
        "four": (
            {"layer_norms": 4},
            dict.fromkeys(("attention_post_norm", "mlp_post_norm"), 2 * 2 * tokens * hidden),
        ),
        "embedding": ({"embedding_norm": True}, {"embedding_norm": 2 * 2 * tokens * hidden}),
    }
    for features, expected in added.values():
        assert blocks(**features) == plain | expected
    assert plain.keys() - blocks(layer_norms=1).keys() == {"mlp_norm"}


def test_norms_keep_their_inputs_for_backward() -> None:
    config = model_from_config(DENSE["Llama-2-7b"][0], sequence_length=1024)
    shape = RankShape(micro_batch=1, tp=2)
    kept = {
        name: activation_bytes_per_layer(Model(**config | features), shape)
        for name, features in {
            "plain": {},
            "qk": {"qk_norm": "head"},
            "4": {"layer_norms": 4},
            "1": {"layer_norms": 1},
        }.items()
    }
    row = 2 * 1024 * 4096
    assert kept["qk"] - kept["plain"] == row  # queries and keys, halved by tp
    assert kept["4"] - kept["plain"] == 2 * row
    assert kept["plain"] - kept["1"] == 2 * row  # the norm's input, and the product's, which the attention has


@pytest.mark.parametrize("name", ["gemma-2-9b", "Qwen3-8B", "falcon-40b", "bloom-560m"])
def test_families_can_be_simulated(name: str) -> None:
    fields = model_from_config(DENSE[name][0] | {"num_hidden_layers": 4, "n_layer": 4}, sequence_length=1024)
    scenario = from_document(
        {
            "cluster": {"topology": "flat_8"},
            "model": fields,
            "parallel": {"tp": 4},
            "training": {"global_batch": 4},
        }
    )
    result = simulate(scenario)
    assert 0 < result.mfu < 1
    assert result.memory.parameters > 0


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**12), st.floats(), st.text(max_size=5), st.lists(st.none())
)


@given(st.data())
def test_no_config_leads_to_anything_but_a_count_or_one_complaint(data: st.DataObject) -> None:
    config, _ = data.draw(st.sampled_from([*DENSE.values(), *MIXTURES.values()]))
    changed = {**config, **data.draw(st.dictionaries(st.sampled_from([*config, "sliding_window", "head_dim"]), JUNK))}
    try:
        assert count_config_parameters(changed).total > 0
    except InputError:
        return


def test_a_config_beside_a_scenario_says_a_key_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "model_type": "gpt2"}')
    document = {
        "cluster": {"topology": "flat_8"},
        "model": {"preset": "./config.json"},
        "training": {"global_batch": 8},
    }
    with pytest.raises(InputError, match=r"config\.json: the key 'model_type' appears twice"):
        from_document(document, folder=tmp_path)


def test_a_dense_hunyuan() -> None:
    config = llama("hunyuan_v1_dense", 32, 4096, 14336, 32, 8, 128167, head_dim=128, use_cla=False, **TIED)
    assert model_from_config(config, sequence_length=4096)["qk_norm"] == "head"
    with pytest.raises(InputError, match="use_cla shares keys and values between layers"):
        model_from_config({**config, "use_cla": True}, sequence_length=4096)


def test_every_key_of_a_config_is_accounted_for() -> None:
    config = llama("qwen3", 4, 256, 512, 4, 2, 1024, rms_norm_eps=1e-6, own_key=3, empty=None, use_mla=False)
    config |= {"layer_types": ["full_attention"] * 4, "use_sliding_window": False, "max_window_layers": 4}
    mapped, idle, unknown = classify_config_keys(config, sequence_length=1024)
    assert sorted((*mapped, *idle, *unknown)) == sorted(config)
    assert unknown == ("own_key",)
    assert {"model_type", "use_sliding_window", "hidden_size"} <= set(mapped)
    assert set(idle) == {"rms_norm_eps", "empty", "use_mla", "layer_types", "max_window_layers"}
    config |= {"use_mla": True, "layer_types": [*["full_attention"] * 3, "linear_attention"]}
    assert set(classify_config_keys(config, sequence_length=1024)[2]) == {"own_key", "use_mla", "layer_types"}


def test_a_key_that_is_not_known_is_told_and_refused_when_strict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**gpt2(2, 64, 2), "own_key": 3, "attn_pdrop": 0.1, "embd_pdrop": 0.0}))
    arguments = ["import", "hugging-face", str(config), "--cluster", "dgx_h100", "--gpus", "8"]
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert "ignored unknown settings: own_key;" in told.err
    assert "# Ignored (unknown): own_key" in told.out
    assert "# No effect on the simulated time: attn_pdrop, embd_pdrop" in told.out
    assert "# Assumed: no dropout, although attn_pdrop is above 0 (--set training.dropout=true)" in told.out
    assert main([*arguments, "--strict"]) == 2
    assert "unknown settings: own_key; remove them" in capsys.readouterr().err


def test_a_length_that_the_config_does_not_say_is_the_default_of_its_kind(tmp_path: Path) -> None:
    config = llama("llama", 2, 128, 256, 4, 4, 1000, max_sequence_length=1024)
    del config["max_position_embeddings"]
    path, out = tmp_path / "config.json", tmp_path / "m.yaml"
    path.write_text(json.dumps(config))
    assert main(["import", "hugging-face", str(path), "-o", str(out)]) == 0
    text = out.read_text()
    assert "  sequence_length: 2048\n" in text
    assert "# Assumed: max_position_embeddings 2048, the default of model_type llama: not in the config" in text
    assert "max_sequence_length 1024 is not read by model_type llama (--sequence-length 1024 uses it)" in text
    assert "max_sequence_length" not in text.partition("# No effect")[2]
    assert main(["import", "hugging-face", str(path), "--sequence-length", "1024", "-o", str(out)]) == 0
    said = out.read_text()
    assert "  sequence_length: 1024\n" in said
    assert "# Assumed" not in said


def test_a_length_that_is_written_is_no_default() -> None:
    config = llama("llama", 2, 128, 256, 4, 4, 1000)
    assert sequence_length_notes(config) == {}
    assert sequence_length_notes({**config, "model_max_length": 4096, "seq_length": 8192}) == {}
    assert list(sequence_length_notes({**config, "model_max_length": 2048})) == ["model_max_length"]


LLAMA_8B = llama("llama", 32, 4096, 14336, 32, 8, 128256, max_position_embeddings=8192, tie_word_embeddings=False)
GPT2 = {**gpt2(12, 768, 12), "n_inner": None}
OPT_1B, NEOX_20B, BLOOM_176B = (DENSE[name][0] for name in ("opt-1.3b", "gpt-neox-20b", "bloom"))
QWEN3_4B = {**DENSE["Qwen3-4B"][0], "max_position_embeddings": 40960}
MISTRAL_7B = {**DENSE["Mistral-7B-v0.1"][0], "max_position_embeddings": 32768, "sliding_window": 4096}


def model(config: dict[str, Any], sequence_length: int | None = None) -> Model:
    return Model(**model_from_config(config, sequence_length=sequence_length))


def test_llama_8b_is_the_preset() -> None:
    expected = {
        key: value for key, value in Model(**load_model_entry("llama3-8b")).model_dump().items() if key != "name"
    }
    assert {key: value for key, value in model(LLAMA_8B).model_dump().items() if key != "name"} == expected


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
            "has no model_type; supported: llama, mistral, qwen2, .*, gpt2, gpt_neox, opt, bloom, falcon",
        ),
        ({**LLAMA_8B, "model_type": "mamba"}, "model_type 'mamba', which is not supported: layers of Mamba-1"),
        ({**LLAMA_8B, "model_type": "own"}, "model_type 'own', which is not supported; supported: llama"),
        ({**LLAMA_8B, "model_type": ["llama"]}, "which is not supported"),
        ({**LLAMA_8B, "model_type": "mixtral", "num_local_experts": 8}, "lacks num_experts_per_tok"),
        ({"model_type": "llama"}, r"lacks num_hidden_layers \(layers\), hidden_size \(hidden_size\), .*heads"),
        ({**LLAMA_8B, "intermediate_size": None}, r"lacks intermediate_size \(ffn_hidden_size\)"),
        ({**GPT2, "n_positions": None}, r"lacks n_positions or n_ctx \(sequence_length\)"),
        ({**LLAMA_8B, "hidden_size": "4096"}, "hidden_size '4096' is not a positive whole number"),
        ({**LLAMA_8B, "num_hidden_layers": -1}, "num_hidden_layers '-1' is not a positive whole number"),
        ({**LLAMA_8B, "num_hidden_layers": True}, "num_hidden_layers 'True' is not"),
        ({**LLAMA_8B, "tie_word_embeddings": "no"}, "tie_word_embeddings 'no' is neither true nor false"),
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
        ("[1]", "is not a JSON object"),
        ('{"a": 1, "a": 2}', "the key 'a' appears twice"),
        ('{"a": {"b": 1, "b": 1}}', "the key 'b' appears twice"),
        ('{"a": ' + "9" * 5000 + "}", "JSON"),
        ("[" * 200_000, "JSON"),
    ],
)
def test_a_bad_text_is_one_clear_error(content: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        parse_config_json(content, "bad.json")
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
    with pytest.raises(InputError, match="model_type 'gla', which is not supported: linear attention of this kind"):
        model_from_config({**FLA, "model_type": "gla"})


@pytest.mark.parametrize("constant", ["Infinity", "-Infinity", "NaN"])
def test_numbers_that_are_not_finite_stop_only_where_they_are_needed(constant: str) -> None:
    """transformers writes them (time_step_limit of Mamba's configs), also in the config of a Llama."""
    text = json.dumps({key: value for key, value in LLAMA_8B.items() if key != "tie_word_embeddings"}).rstrip("}")
    plain = model_from_config(parse_config_json(text + "}", "config.json"))
    read_file = f'{text}, "time_step_limit": [0.0, {constant}], "router_jitter_noise": {constant}}}'
    assert model_from_config(parse_config_json(read_file, "config.json")) == plain
    for key in ("hidden_size", "num_hidden_layers", "num_key_value_heads", "head_dim", "tie_word_embeddings"):
        needed = re.sub(rf', "{key}": \w+', "", text) + f', "{key}": {constant}}}'
        with pytest.raises(InputError, match=rf"^{key} "):
            model_from_config(parse_config_json(needed, "config.json"))


QWEN_TOWER: dict[str, Any] = {
    "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "in_chans": 3, "patch_size": 14,
    "out_hidden_size": 3584, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}  # fmt: skip
"""vision_config of Qwen2.5-VL 7B."""


def test_a_vision_encoder_that_is_modelled_is_imported() -> None:
    """Qwen2.5-VL 7B is the preset, and Qwen3-VL 8B has the 8,767,123,696 parameters of its module in transformers."""
    config = {**DENSE["Qwen2.5-VL-7B"][0], "vision_config": QWEN_TOWER}
    imported = Model.model_validate(model_from_config(config, sequence_length=8192))
    assert imported.encoder == Model.model_validate(load_model_entry("qwen2.5-vl-7b")).encoder
    (said,) = assumptions_of_config(config)
    assert said.startswith("half of the tokens are of images")
    text = llama("qwen3_vl_text", 36, 4096, 12288, 32, 8, 151936, head_dim=128)
    tower = {
        "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "in_channels": 3,
        "patch_size": 16, "out_hidden_size": 4096, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24],
    }  # fmt: skip
    whole = {"model_type": "qwen3_vl", "text_config": text, "vision_config": tower, "tie_word_embeddings": False}
    assert count_config_parameters(whole).total == 8_767_123_696


@pytest.mark.parametrize("changes", [{"fullatt_block_indexes": [3, 31]}, {"out_hidden_size": 2048}, {"depth": None}])
def test_a_vision_encoder_of_another_form_is_named_as_omitted(changes: dict[str, Any]) -> None:
    config = {**DENSE["Qwen2.5-VL-7B"][0], "vision_config": QWEN_TOWER | changes}
    assert assumptions_of_config(config) == ("only the text decoder, without vision_config",)
    assert "encoder" not in model_from_config(config)
