"""What every supported ``model_type`` of transformers means: where its sizes are, and what no config writes down.

Sources: the configuration and modelling files of each family in huggingface/transformers (configuration_llama.py,
modeling_gemma2.py, ...), from knowledge of them; the counts that come out are tested against published ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.hf_config import Config
from simcluster.importers.hf_mixtures import (
    deepseek_v2,
    deepseek_v3,
    glm4_moe,
    gpt_oss,
    llama4,
    mixtral,
    predicted,
    qwen_moe,
    unweighted_norms,
)

Fields = dict[str, Any]
"""Fields of ``Model``; None for what the config leaves out."""

COMMON = {
    "layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "ffn_hidden_size": ("intermediate_size",),
    "vocab_size": ("vocab_size",),
    "sequence_length": ("max_position_embeddings",),
}
LLAMA_KEYS = {**COMMON, "kv_heads": ("num_key_value_heads",), "head_dim": ("head_dim",)}
LLAMA = {"gated_mlp": True, "norm": "rmsnorm", "position": "rope", "bias": False}
GPT = {"gated_mlp": False, "norm": "layernorm", "position": "learned", "bias": True}


@dataclass(frozen=True, slots=True)
class Family:
    """Under which keys one ``model_type`` keeps the fields of ``Model`` (the first present), and what it implies.

    ``tied`` is what transformers assumes where tie_word_embeddings is not written; ``refine`` changes the fields by
    what else the config says, ``experts`` adds those and what else mixtures have, ``assumed`` says what is left out.
    """

    keys: Mapping[str, tuple[str, ...]]
    implied: Mapping[str, Any]
    tied: bool
    four_times: bool = False  # a missing MLP width means 4 x hidden_size
    refine: Callable[[Config, Fields], None] | None = None
    experts: Callable[[Config, Fields], None] | None = None
    assumed: Callable[[Config], tuple[str, ...]] | None = None
    fallback: Mapping[str, int] = field(default_factory=dict)  # what transformers assumes where a size is not written


def _llama(config: Config, fields: Fields) -> None:
    attention, mlp = config.switch("attention_bias", False), config.switch("mlp_bias", False)
    if mlp and not attention:
        raise InputError(
            "mlp_bias is true and attention_bias false: biases of the MLP alone are not modelled; set both to one value"
        )
    fields["bias"] = True if mlp else "attention" if attention else False


def _mistral(config: Config, fields: Fields) -> None:
    _window(fields, config.size("sliding_window"))


def _qwen2(config: Config, fields: Fields) -> None:
    fields["bias"] = "qkv"
    _qwen_window(config, fields)


def _qwen3(config: Config, fields: Fields) -> None:
    fields["bias"] = "attention" if config.switch("attention_bias", False) else False
    fields["qk_norm"] = "head"
    _qwen_window(config, fields)


def _qwen_window(config: Config, fields: Fields) -> None:
    """The layers from max_window_layers on have the window; only all or none of them is modelled."""
    window, layers, sequence = config.size("sliding_window"), fields["layers"], fields["sequence_length"]
    if not config.switch("use_sliding_window", False) or not window or not sequence or window >= sequence:
        return
    first = config.natural("max_window_layers", 28)
    if 0 < first < (layers or 0):
        raise InputError(
            f"sliding_window {window} is shorter than the sequence of {sequence} in the layers from {first} on, and a "
            f"window in some layers that follow each other is not modelled; give a sequence_length of at most {window}"
        )
    if first == 0:
        _window(fields, window)


def _window(fields: Fields, window: int | None, full_every: int | None = None) -> None:
    if window is None or (fields["sequence_length"] is not None and window >= fields["sequence_length"]):
        return
    fields["attention_window"] = window
    if full_every is not None:
        fields["full_attention_every"] = full_every


def period_of(types: list[str] | None, default: int) -> int | None:
    """Every which layer attends to all (None: none does); InputError where they do not repeat like that."""
    if types is None:
        return default
    full = [number for number, kind in enumerate(types, 1) if kind == "full_attention"]
    every = full[0] if full else None
    if full != (list(range(every, len(types) + 1, every)) if every else []):
        raise InputError("layer_types: full_attention in every n-th layer is modelled, and these come otherwise")
    return every


def _gemma(config: Config, fields: Fields) -> None:
    fields["bias"] = "attention" if config.switch("attention_bias", False) else False


def _gemma2(config: Config, fields: Fields) -> None:
    _gemma(config, fields)
    fields["layer_norms"] = 4
    _window(fields, config.size("sliding_window") or 4096, period_of(_types(config, fields), 2))


def _gemma3(config: Config, fields: Fields) -> None:
    _gemma(config, fields)
    fields |= {"layer_norms": 4, "qk_norm": "head"}
    every = config.size(("sliding_window_pattern", "_sliding_window_pattern")) or 6
    _window(fields, config.size("sliding_window") or 4096, period_of(_types(config, fields), every))


def _types(config: Config, fields: Fields) -> list[str] | None:
    return config.layer_types(fields["layers"])


def _gpt2(config: Config, fields: Fields) -> None:
    fields["position_rows"] = config.size(("n_positions", "n_ctx"))


def _gpt_neox(config: Config, fields: Fields) -> None:
    if not config.switch("attention_bias", True):
        raise InputError("attention_bias is false: GPT-NeoX with biases in its MLP alone is not modelled")
    fields["parallel_residual"] = config.switch("use_parallel_residual", True) or None


def _opt(config: Config, fields: Fields) -> None:
    projection, hidden = config.size("word_embed_proj_dim"), fields["hidden_size"]
    if projection is not None and projection != hidden:
        raise InputError(
            f"word_embed_proj_dim {projection} differs from hidden_size {hidden}, which is not modelled; "
            "use a model whose embeddings are as wide as its layers"
        )
    if not config.switch("do_layer_norm_before", True) or config.switch("_remove_final_layer_norm", False):
        raise InputError("a norm behind each block instead of before it (do_layer_norm_before false) is not modelled")
    if not config.switch("layer_norm_elementwise_affine", True):
        raise InputError("norms without parameters (layer_norm_elementwise_affine false) are not modelled")
    fields["bias"] = config.switch("enable_bias", True)
    positions = config.size("max_position_embeddings")
    fields["position_rows"] = None if positions is None else positions + 2  # OPTLearnedPositionalEmbedding.offset


def _bloom(config: Config, fields: Fields) -> None:
    fields["embedding_norm"] = True


def _falcon(config: Config, fields: Fields) -> None:
    new = config.switch("new_decoder_architecture", False)
    if new:
        norms = config.natural("num_ln_in_parallel_attn", 2) or 2
        fields["kv_heads"] = config.size("num_kv_heads") or fields["heads"]
    else:
        norms = 1 if config.switch("parallel_attn", True) else 2
        fields["kv_heads"] = 1 if config.switch("multi_query", True) else fields["heads"]
    if norms not in (1, 2):
        raise InputError(f"num_ln_in_parallel_attn {norms} is not modelled; 1 or 2 is")
    if norms == 1:
        fields["layer_norms"] = 1
    fields["parallel_residual"] = new or config.switch("parallel_attn", True) or None
    fields["bias"] = config.switch("bias", False)
    fields["position"] = "none" if config.switch("alibi", False) else "rope"


def _olmoe(config: Config, fields: Fields) -> None:
    _gemma(config, fields)
    fields["qk_norm"] = "full"


def _gpt_oss(config: Config, fields: Fields) -> None:
    _window(fields, config.size("sliding_window") or 128, period_of(_types(config, fields), 2))


_GEMMA = {"head_dim": 256}
_MIXTURE_KEYS = {**LLAMA_KEYS, "ffn_hidden_size": ("intermediate_size", "moe_intermediate_size")}
_DEEPSEEK_V3 = Family(COMMON, LLAMA, tied=False, experts=deepseek_v3, assumed=predicted)

FAMILIES: dict[str, Family] = {
    "llama": Family(LLAMA_KEYS, LLAMA, tied=False, refine=_llama),
    "mistral": Family(LLAMA_KEYS, LLAMA, tied=False, refine=_mistral),
    "qwen2": Family(LLAMA_KEYS, LLAMA, tied=False, refine=_qwen2),
    "qwen3": Family(LLAMA_KEYS, LLAMA, tied=False, refine=_qwen3),
    "gemma": Family(LLAMA_KEYS, LLAMA, tied=True, refine=_gemma, fallback=_GEMMA),
    "gemma2": Family(LLAMA_KEYS, LLAMA, tied=True, refine=_gemma2, fallback=_GEMMA),
    "gemma3_text": Family(LLAMA_KEYS, LLAMA, tied=True, refine=_gemma3, fallback=_GEMMA),
    "gpt2": Family(
        {
            "layers": ("n_layer",),
            "hidden_size": ("n_embd",),
            "heads": ("n_head",),
            "ffn_hidden_size": ("n_inner",),
            "vocab_size": ("vocab_size",),
            "sequence_length": ("n_positions", "n_ctx"),
        },
        GPT,
        tied=True,
        four_times=True,
        refine=_gpt2,
    ),
    "gpt_neox": Family(COMMON, {**GPT, "position": "rope"}, tied=False, refine=_gpt_neox),
    "opt": Family({**COMMON, "ffn_hidden_size": ("ffn_dim",)}, GPT, tied=True, refine=_opt),
    "bloom": Family(
        {
            "layers": ("n_layer", "num_hidden_layers"),
            "hidden_size": ("hidden_size", "n_embed"),
            "heads": ("n_head", "num_attention_heads"),
            "vocab_size": ("vocab_size",),
            "sequence_length": ("seq_length",),
        },
        {**GPT, "position": "none"},  # ALiBi
        tied=True,
        four_times=True,
        refine=_bloom,
    ),
    "falcon": Family(
        {
            **COMMON,
            "layers": ("num_hidden_layers", "n_layer"),
            "heads": ("num_attention_heads", "n_head"),
            "ffn_hidden_size": ("ffn_hidden_size",),
        },
        {**GPT, "bias": False},
        tied=True,
        four_times=True,
        refine=_falcon,
    ),
    "mixtral": Family(LLAMA_KEYS, LLAMA, tied=False, refine=_mistral, experts=mixtral),
    "qwen2_moe": Family(_MIXTURE_KEYS, LLAMA, tied=False, refine=_qwen2, experts=qwen_moe),
    "qwen3_moe": Family(_MIXTURE_KEYS, LLAMA, tied=False, refine=_qwen3, experts=qwen_moe),
    "deepseek_v2": Family(COMMON, LLAMA, tied=False, experts=deepseek_v2),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe": Family(LLAMA_KEYS, LLAMA, tied=False, experts=glm4_moe, assumed=predicted),
    "olmoe": Family(LLAMA_KEYS, LLAMA, tied=False, refine=_olmoe, experts=mixtral),
    "granitemoe": Family(LLAMA_KEYS, LLAMA, tied=False, refine=_gemma, experts=mixtral),
    "llama4_text": Family(
        {**LLAMA_KEYS, "ffn_hidden_size": ("intermediate_size_mlp",)},
        LLAMA,
        tied=False,
        refine=_gemma,
        experts=llama4,
        assumed=unweighted_norms,
    ),
    "gpt_oss": Family(
        LLAMA_KEYS, {**LLAMA, "bias": True}, tied=False, refine=_gpt_oss, experts=gpt_oss, fallback={"head_dim": 64}
    ),
}
