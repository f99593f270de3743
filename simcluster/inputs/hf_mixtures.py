"""Parameters of what ``Model`` has no fields for: experts, latent attention, attention sinks.  Counted, not simulated.

Imports the model's arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simcluster.errors import InputError
from simcluster.inputs.hf_config import Config
from simcluster.model.transformer import Model, parameters


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture in ``layers`` of the layers: ``count`` experts of which a token visits ``top_k``.

    ``expert``, ``shared`` and ``router`` are parameters: of one expert, of what every token visits besides, of what
    chooses.
    """

    layers: int
    count: int
    top_k: int
    expert: int
    shared: int
    router: int


@dataclass(frozen=True, slots=True)
class Described:
    """What a config says beyond the fields of ``Model``.

    ``attention`` replaces the parameters of one layer's attention, biases and inner norms included; ``missing`` is what
    keeps the model from being simulated.
    """

    experts: Experts | None = None
    attention: int | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counted:
    """Parameters of a model, and those that one token meets (all but the experts that it does not visit)."""

    total: int
    active: int


def count(model: Model, described: Described) -> Counted:
    """Exact counts of the whole model, as transformers' modules hold them; no multi-token-prediction layers."""
    plain = parameters(model)
    attention = plain.attention if described.attention is None else described.attention
    experts = described.experts
    rest = plain.embedding + plain.lm_head + plain.final_norm + model.layers * (attention + plain.norm)
    if experts is None:
        total = rest + model.layers * plain.mlp
        return Counted(total, total)
    rest += (model.layers - experts.layers) * plain.mlp + experts.layers * (experts.router + experts.shared)
    one = experts.layers * experts.expert
    return Counted(rest + experts.count * one, rest + experts.top_k * one)


def _chosen(config: Config, number: int) -> int:
    top_k = config.needed(("num_experts_per_tok", "experts_per_token"))
    if top_k > number:
        raise InputError(f"num_experts_per_tok {top_k} is more than the {number} experts that there are")
    return top_k


def mixtral(config: Config, fields: Mapping[str, Any]) -> Described:
    """Every layer's MLP is a mixture of gated MLPs of intermediate_size."""
    hidden, number = fields["hidden_size"], config.needed("num_local_experts")
    expert = 3 * hidden * fields["ffn_hidden_size"]
    router = hidden * number
    return Described(Experts(fields["layers"], number, _chosen(config, number), expert, 0, router))


def qwen_moe(config: Config, fields: Mapping[str, Any]) -> Described:
    """Mixtures in every decoder_sparse_step-th layer but mlp_only_layers; Qwen 2 has a shared expert behind a gate."""
    hidden, number = fields["hidden_size"], config.needed(("num_experts", "num_local_experts"))
    expert = 3 * hidden * config.needed("moe_intermediate_size")
    shared = 0
    if config.kind == "qwen2_moe":
        shared = 3 * hidden * config.needed("shared_expert_intermediate_size") + hidden
    layers, step, dense = fields["layers"], config.size("decoder_sparse_step") or 1, config.numbers("mlp_only_layers")
    mixtures = layers // step - sum(1 for layer in dense if 0 <= layer < layers and (layer + 1) % step == 0)
    return Described(Experts(mixtures, number, _chosen(config, number), expert, shared, hidden * number))


def deepseek_v2(config: Config, fields: Mapping[str, Any]) -> Described:
    """Latent attention (MLA) and mixtures behind the first dense layers, each with shared experts."""
    hidden, heads, layers = fields["hidden_size"], fields["heads"], fields["layers"]
    nope, rope = config.needed("qk_nope_head_dim"), config.needed("qk_rope_head_dim")
    value, latent, low = config.needed("v_head_dim"), config.needed("kv_lora_rank"), config.size("q_lora_rank")
    if config.switch("attention_bias", False):
        raise InputError("attention_bias is true, which is not counted for latent attention; set it to false")
    query = heads * (nope + rope)
    attention = hidden * low + low + low * query if low else hidden * query
    attention += hidden * (latent + rope) + latent + latent * heads * (nope + value) + heads * value * hidden
    number = config.needed("n_routed_experts")
    expert = 3 * hidden * config.needed("moe_intermediate_size")
    if (config.size("moe_layer_freq") or 1) != 1:
        raise InputError("moe_layer_freq other than 1 is not supported; every layer behind the dense ones is a mixture")
    dense = config.natural("first_k_dense_replace", 0)
    shared = config.natural("n_shared_experts", 0) * expert
    experts = Experts(max(layers - dense, 0), number, _chosen(config, number), expert, shared, hidden * number)
    return Described(experts, attention, ("latent attention (MLA)",))


def deepseek_v3(config: Config, fields: Mapping[str, Any]) -> Described:
    """As V2, with a correction bias for each expert, which is in the weights though no gradient reaches it."""
    found = deepseek_v2(config, fields)
    assert found.experts
    experts = replace(found.experts, router=found.experts.router + found.experts.count)
    predicted = config.natural("num_nextn_predict_layers", 0)
    extra = (f"{predicted} multi-token-prediction layer{'s' * (predicted > 1)} (not counted)",) if predicted else ()
    return Described(experts, found.attention, found.missing + extra)


def gpt_oss(config: Config, fields: Mapping[str, Any]) -> Described:
    """Mixtures with biases everywhere, and in every layer a learned sink for each head."""
    hidden, heads, head_dim = fields["hidden_size"], fields["heads"], fields["head_dim"] or 64
    kv = fields["kv_heads"] or heads
    number, width = config.needed("num_local_experts"), fields["ffn_hidden_size"]
    query, keys = heads * head_dim, kv * head_dim
    attention = hidden * 2 * (query + keys) + query + 2 * keys + hidden + heads
    expert = 3 * hidden * width + 2 * width + hidden
    experts = Experts(fields["layers"], number, _chosen(config, number), expert, 0, hidden * number + number)
    return Described(experts, attention, ("attention sinks", "a sliding window in every second layer"))
