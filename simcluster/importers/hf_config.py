"""One ``config.json`` being read: values by key, each checked, and its experts and attention as fields of ``Model``.

Sources: configuration_mixtral.py, modeling_deepseek_v3.py, ... of huggingface/transformers, from knowledge of them; the
counts that come out are tested against published ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.layer_lists import MOST_LAYERS, places

_LARGEST = 10**9
_MOST_LAYERS = 100_000
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Config:
    """A parsed config and its ``model_type``; ``asked`` are the keys that were looked for."""

    data: Mapping[str, Any]
    kind: str
    asked: set[str] = field(default_factory=set, compare=False)

    def value(self, key: str) -> Any:
        """Return what the config has under a key, None where it is not there; InputError for Infinity and NaN."""
        self.asked.add(key)
        value = self.data.get(key)
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{key} {value} is not a finite number; write one")
        return value

    def size(self, keys: str, what: str = "") -> int | None:
        """Return the first of ``keys`` (one text) that is not null, if one is; ``what`` the model calls it."""
        self.asked.update(keys.split())
        for key in keys.split():
            value = self.data.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
                belongs = f"; it is the model's {what}" if what else ""
                raise InputError(
                    f"{key} {_short(value)} is not a positive whole number (of at most {_LARGEST:,}); write "
                    f"one{belongs}"
                )
            return value
        return None

    def needed(self, keys: str) -> int:
        """As ``size``; InputError where there is none."""
        value = self.size(keys)
        if value is None:
            named = keys.replace(" ", " or ")
            lacks = f"lacks {named}, which must be there"
            raise InputError(f"the config of model_type {self.kind!r} {lacks}; add what is missing to it")
        return value

    def natural(self, key: str, default: int) -> int:
        """Return a whole number from 0."""
        value = self.value(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
            raise InputError(f"{key} {_short(value)} is not a whole number from 0 on")
        return value

    def switch(self, key: str, default: bool) -> bool:
        """True or false; the default where the key is not there or null."""
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{key} {_short(value)} is neither true nor false; write one of them")
        return value

    def layer_types(self, layers: int) -> list[str] | None:
        """Return what kind of attention every layer has, where the config lists it."""
        value = self.value("layer_types")
        if value is None:
            return None
        known = ("full_attention", "sliding_attention")
        wrong = not isinstance(value, list) or len(value) != layers or layers > _MOST_LAYERS
        if wrong or any(item not in known for item in value):
            raise InputError(f"layer_types is to name one of {' and '.join(known)} for each of the {layers} layers")
        return list(value)

    def numbers(self, key: str) -> list[int]:
        """Return a list of layer numbers; empty where the key is not there or null."""
        value = self.value(key)
        if value is None:
            return []
        if not isinstance(value, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in value):
            raise InputError(f"{key} {_short(value)} is not a list of layer numbers; write one, as in [0, 1]")
        return list(dict.fromkeys(value))


def _short(value: object) -> str:
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits
        return "of thousands of digits"
    return repr(text[:40])


def _moe(config: Config, experts: int, width: int, **more: Any) -> dict[str, Any]:
    top_k = config.needed("num_experts_per_tok experts_per_token moe_k moe_top_k")
    if top_k > experts:
        raise InputError(f"num_experts_per_tok {top_k} is more than the {experts} experts that there are")
    kept = {name: value for name, value in more.items() if value and (name, value) != ("every", 1)}
    return {"experts": experts, "top_k": top_k, "expert_ffn_hidden_size": width, **kept}


def mixtral(config: Config, fields: Fields) -> None:
    """Make every layer's MLP a mixture of gated MLPs of intermediate_size (so too OLMoE, Granite MoE and DBRX)."""
    experts = config.needed("num_local_experts num_experts moe_num_experts")
    shared = config.size("shared_intermediate_size") if config.kind == "granitemoeshared" else None
    fields["moe"] = _moe(config, experts, fields["ffn_hidden_size"], shared_ffn_hidden_size=shared)


def qwen_moe(config: Config, fields: Fields) -> None:
    """Set mixtures in every decoder_sparse_step-th layer but mlp_only_layers; Qwen 2 gates a shared expert."""
    shared: Fields = {}
    if config.kind == "qwen2_moe":
        shared = {"shared_ffn_hidden_size": config.needed("shared_expert_intermediate_size"), "shared_gate": True}
    experts, width = config.needed("num_experts num_local_experts"), config.needed("moe_intermediate_size")
    layers, step, dense = fields["layers"], config.size("decoder_sparse_step") or 1, config.numbers("mlp_only_layers")
    where: dict[str, int] | None = {"every": step}
    if dense:
        kept = frozenset(dense)
        if layers > MOST_LAYERS:
            raise InputError(f"mlp_only_layers of {layers:,} layers are not read; leave it out")
        where = places([number not in kept and (number + 1) % step == 0 for number in range(layers)])
    if where is None:
        raise InputError(
            f"mlp_only_layers: MLPs in the first layers, and a mixture in every n-th behind them, is modelled, and "
            f"these {len(dense)} of {layers} layers come otherwise; leave it out, or name the first layers alone"
        )
    fields["moe"] = _moe(config, experts, width, **shared, **where)


def latent(config: Config, fields: Fields) -> None:
    """Add latent attention (MLA)."""
    query = config.size("q_lora_rank")
    widths = {name: config.needed(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    fields["mla"] = {
        "kv_lora_rank": config.needed("kv_lora_rank"), **({"q_lora_rank": query} if query else {}), **widths
    }  # fmt: skip


def glm4(config: Config, fields: Fields) -> None:
    """Add norms of queries and keys, where the config says so."""
    if config.switch("use_qk_norm", False):
        fields["qk_norm"] = "head"


def behind_dense(config: Config, fields: Fields, *, dense: int, shared: int, router_bias: bool = False) -> None:
    """Set mixtures from layer first_k_dense_replace on; ``dense`` and ``shared`` are transformers' defaults.

    A layer has one if its number from 0 divides by moe_layer_freq (modeling_deepseek.py).  ``router_bias``: with a
    correction bias for each expert, which is in the weights though no gradient reaches it.
    """
    step = config.size("moe_layer_freq") or 1
    first = config.natural("first_k_dense_replace", dense)
    if first >= fields["layers"]:
        raise InputError(
            f"first_k_dense_replace {first} leaves none of the {fields['layers']} layers to experts; use a smaller one"
        )
    fields["moe"] = _moe(
        config,
        config.needed("n_routed_experts num_experts"),
        config.needed("moe_intermediate_size"),
        shared_experts=config.natural("n_shared_experts", config.natural("num_shared_experts", shared)),
        first_dense_layers=first,
        every=step,
        offset=1 if step > 1 else 0,
        router_bias=router_bias,
        **_groups(config),
    )


def _groups(config: Config) -> dict[str, int]:
    groups, top_groups = config.size("n_group") or 1, config.size("topk_group") or 1
    return {"groups": groups, "top_groups": top_groups} if top_groups < groups else {}


def llama4(config: Config, fields: Fields) -> None:
    """Set mixtures in every interleave_moe_layer_step-th layer (or moe_layers), with one shared expert of their width.

    Attention is in chunks, which for sequences no longer than one is plain attention.
    """
    layers, chunk = fields["layers"], config.size("attention_chunk_size") or 8192
    if fields["sequence_length"] > chunk:
        raise InputError(
            f"attention_chunk_size {chunk} is shorter than the sequence of {fields['sequence_length']}, and attention "
            f"in chunks is not modelled; give a sequence_length of at most {chunk}"
        )
    where: dict[str, int] | None = {"every": config.size("interleave_moe_layer_step") or 1}
    listed = frozenset(config.numbers("moe_layers"))
    if listed and layers <= MOST_LAYERS:
        where = places([number in listed for number in range(layers)])
    if where is None:
        raise InputError(
            "moe_layers: a mixture in every n-th layer is modelled, and these come otherwise; leave it out"
        )
    width = config.needed("intermediate_size")
    fields["moe"] = _moe(config, config.needed("num_local_experts"), width, shared_experts=1, **where)


def unweighted_norms(config: Config) -> tuple[str, ...]:
    """Return what is left out of Llama 4."""
    return ("without the norms of queries and keys, which have no parameters",) * config.switch("use_qk_norm", True)


def predicted(config: Config) -> tuple[str, ...]:
    """Return what is left out of a model with layers for multi-token prediction."""
    number = config.natural("num_nextn_predict_layers", 0) or config.natural("num_mtp_modules", 0)
    if not number:
        return ()
    layers = f"{number} layer{'s' * (number > 1)}"
    return (
        f"without the {layers} of multi-token prediction, in time and in the parameters (mtp_layers: {number} of the "
        "model has them)",
    )


def minimax(config: Config, fields: Fields) -> None:
    """Set mixtures in every layer with a bias for each expert, and norms over the width of queries and keys."""
    mixtral(config, fields)
    if config.switch("use_routing_bias", True):
        fields["moe"]["router_bias"] = True
    if config.switch("use_qk_norm", True):
        fields["qk_norm"] = "full"


def ernie(config: Config, fields: Fields) -> None:
    """Set mixtures from layer moe_layer_start_index on, with a correction bias for each expert."""
    first, step = config.natural("moe_layer_start_index", 1), config.size("moe_layer_interval") or 1
    to_the_end = config.value("moe_layer_end_index") in (None, -1)
    last = fields["layers"] - 1 if to_the_end else config.natural("moe_layer_end_index", 0)
    if last < fields["layers"] - 1:
        raise InputError(
            f"moe_layer_end_index {last} leaves the last layers without experts, which is not modelled; leave it out"
        )
    fields["moe"] = _moe(
        config, config.needed("moe_num_experts"), config.needed("moe_intermediate_size"),
        shared_experts=config.natural("moe_num_shared_experts", 2), first_dense_layers=first, every=step,
        offset=(first + 1) % step if step > 1 else 0, router_bias=config.switch("moe_use_aux_free", True),
    )  # fmt: skip


def gpt_oss(config: Config, fields: Fields) -> None:
    """Set mixtures with biases, a learned sink for each head, and limits in front of the activation function."""
    fields["attention_sinks"] = fields["clamped_activation"] = True
    mixtral(config, fields)
    fields["moe"]["router_bias"] = True
