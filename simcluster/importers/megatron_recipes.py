"""The models of Megatron-Bridge's recipes, as Megatron-LM's options."""

from __future__ import annotations

import re

from simcluster.base.errors import InputError
from simcluster.catalogue.models import model_document
from simcluster.documents.diagnostics import listed, shown
from simcluster.model.transformer import Model

_RECIPE = re.compile(r"(llama3|llama31|llama3_1)_(8b|70b|405b)(_\w+)?")
_MIXTURES = {
    "mixtral_8x7b": "mixtral-8x7b",
    "mixtral_8x22b": "mixtral-8x22b",
    "qwen3_30b_a3b": "qwen3-30b-a3b",
    "qwen3_235b_a22b": "qwen3-235b-a22b",
    "deepseek_v2_lite": "deepseek-v2-lite",
    "deepseek_v3": "deepseek-v3",
    "gpt_oss_20b": "gpt-oss-20b",
    "gpt_oss_120b": "gpt-oss-120b",
}
_SIZES = {
    "num-layers": "layers",
    "hidden-size": "hidden_size",
    "ffn-hidden-size": "ffn_hidden_size",
    "num-attention-heads": "heads",
    "vocab-size": "vocab_size",
    "seq-length": "sequence_length",
}
_EXPERTS = {
    "num-experts": "experts",
    "moe-router-topk": "top_k",
    "moe-ffn-hidden-size": "expert_ffn_hidden_size",
    "moe-shared-expert-intermediate-size": "shared_width",
}
_LATENT = {
    "q-lora-rank": "q_lora_rank",
    "kv-lora-rank": "kv_lora_rank",
    "qk-head-dim": "qk_nope_head_dim",
    "qk-pos-emb-head-dim": "qk_rope_head_dim",
    "v-head-dim": "v_head_dim",
}
Options = dict[str, tuple[str, ...]]


def known_recipe(name: object, source: str) -> str:
    """The name of a recipe; InputError for one whose model is not known here."""
    if isinstance(name, str) and (_RECIPE.fullmatch(name) or _mixture(name)):
        return name
    raise InputError(
        f"{source}: recipe {shown(name)} is not known here; known are llama3_8b, llama3_70b, llama31_405b, "
        f"{listed(_MIXTURES)} with what follows (llama3_8b_pretrain_config); or give the model's fields, as in "
        "model.num_layers=32"
    )


def _mixture(name: str) -> str | None:
    return next((preset for known, preset in _MIXTURES.items() if name == known or name.startswith(f"{known}_")), None)


def recipe_options(recipe: str) -> Options:
    """The model of a recipe that is known, as Megatron-LM's options."""
    match = _RECIPE.fullmatch(recipe)
    model = Model(**model_document(_mixture(recipe) or f"llama3-{match[2] if match else ''}"))
    options = _of(model, _SIZES)
    flags = ["swiglu", "untie-embeddings-and-output-weights", "bf16"]
    flags += ["disable-bias-linear"] * (model.bias is False) + ["qk-layernorm"] * bool(model.qk_norm or model.mla)
    if model.mla:
        options |= _of(model.mla, _LATENT)
        flags.append("multi-latent-attention")
    else:
        options |= _of(model, {"num-query-groups": "kv_heads"})
        if model.head_dim * model.heads != model.hidden_size:
            options["kv-channels"] = (str(model.head_dim),)
    if model.moe:
        options |= _of(model.moe, _EXPERTS)
        flags.append("moe-grouped-gemm")
        flags += ["moe-router-enable-expert-bias"] * (model.moe.router_bias and not model.bias)
        dense = model.moe.first_dense_layers
        if dense:
            options["moe-layer-freq"] = (f"[0]*{dense}+[1]*{model.layers - dense}",)
        options["moe-token-dispatcher-type"] = ("alltoall",)
    if model.attention_window:
        options["window-size"] = (f"{model.attention_window - 1},0",)
        options["window-attn-skip-freq"] = (str(model.full_attention_every),)
    if model.attention_sinks:
        options["softmax-type"] = ("learnable",)
    words = {"normalization": "RMSNorm", "position-embedding-type": "rope", "hidden-dropout": "0"}
    options |= {name: (word,) for name, word in {**words, "attention-dropout": "0"}.items()}
    return options | dict.fromkeys(flags, ())


def _of(section: object, fields: dict[str, str]) -> Options:
    found = {option: getattr(section, field) for option, field in fields.items()}
    return {option: (str(value),) for option, value in found.items() if value}
