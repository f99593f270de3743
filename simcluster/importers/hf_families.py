"""Type-checked reading of Hugging Face ``config.json`` values, and rules for each model family (``model_type``).

Sources: configuration_mixtral.py, modeling_deepseek_v3.py, ... of huggingface/transformers, from knowledge of them; the
resulting parameter counts are tested against published ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.yaml_documents import read_document
from simcluster.importers.layer_lists import MAX_LAYERS, check_layer_list, describe_expert_layers, describe_layer_types

Fields = dict[str, Any]
"""Fields of ``Model``; None for a field that the config does not give."""
_LARGEST = 10**9
_INHERITED_KEYS = ("keys", "implied", "fallback", "refused", "moe")


@dataclass(frozen=True, slots=True)
class CheckedConfig:
    """A parsed ``config.json`` that checks the types of its values and records the keys that were read."""

    data: Mapping[str, Any]
    kind: str
    read_keys: set[str] = field(default_factory=set, compare=False)

    def finite_value(self, key: str) -> Any:
        """Return a config key's value, or None if the key is absent; raise InputError for Infinity and NaN."""
        self.read_keys.add(key)
        value = self.data.get(key)
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{key} {value} is not a finite number; write one")
        return value

    def checked_value(self, key: str, is_valid: Callable[[Any], bool], problem: str, default: Any = None) -> Any:
        """Return a key's value (null: the default); raise InputError if ``is_valid`` returns False for the value."""
        value = self.finite_value(key)
        if value is not None and not is_valid(value):
            try:
                said = repr(str(value)[:40])
            except ValueError:  # an integer of thousands of digits
                said = "of thousands of digits"
            raise InputError(f"{key} {said} {problem}")
        return default if value is None else value

    def optional_size(self, keys: str, quantity: str = "") -> int | None:
        """Return the first non-null value of several keys (separated by spaces) as a positive int, or None."""
        wrong = f"is not a positive whole number (of at most {_LARGEST:,}); write one"
        wrong += f"; it is the model's {quantity}" if quantity else ""
        self.read_keys.update(keys.split())
        key = next((key for key in keys.split() if self.data.get(key) is not None), "")
        found: int | None = self.checked_value(key, lambda value: _is_int(value, 1), wrong) if key else None
        return found

    def required_size(self, keys: str) -> int:
        """Return the first non-null value of several keys as a positive int; raise InputError if all are null."""
        value = self.optional_size(keys)
        if value is None:
            lacks = f"lacks {keys.replace(' ', ' or ')}, which is required"
            raise InputError(f"the config of model_type {self.kind!r} {lacks}; add it")
        return value

    def whole_number_value(self, key: str, default: int) -> int:
        """Return a key's value as a whole number of at least 0, or the default if the value is null."""
        wrong = "is not a whole number of at least 0"
        return int(self.checked_value(key, lambda value: _is_int(value, 0), wrong, default))

    def boolean_value(self, key: str, default: bool) -> bool:
        """Return a key's value as a boolean, or the default if the value is null."""
        wrong = "is neither true nor false; write one of them"
        return bool(self.checked_value(key, lambda value: isinstance(value, bool), wrong, default))

    def layer_numbers(self, key: str) -> list[int]:
        """Return the layer numbers listed under a key, without duplicates."""

        def is_number_list(value: Any) -> bool:
            return isinstance(value, list) and all(type(each) is int for each in value)

        wrong = "is not a list of layer numbers; write one, as in [0, 1]"
        return list(dict.fromkeys(self.checked_value(key, is_number_list, wrong, [])))


def _is_int(value: Any, minimum: int) -> bool:
    return type(value) is int and minimum <= value <= _LARGEST


def set_attention_window(
    config: CheckedConfig, fields: Fields, size: int | None = None, every: int | None = None, keys: str = ""
) -> None:
    """Set a model's attention window and every how many layers attention is full, if the model has a window."""
    types, layers = config.finite_value("layer_types") if every is not None else None, fields["layers"]
    if every is not None:
        every = config.optional_size(keys) or every
    if types is not None:
        check_layer_list("layer_types", types, layers, ("full_attention", "sliding_attention"))
        full = [number for number, kind in enumerate(types, 1) if kind == "full_attention"]
        every = full[0] if full else None
    window = config.optional_size("sliding_window") or size
    if window is None or (fields["sequence_length"] is not None and window >= fields["sequence_length"]):
        return
    if types is not None and full != (list(range(every, len(types) + 1, every)) if every else []):
        words = ["F" if kind == "full_attention" else "S" for kind in types]
        set_layer_types(fields, words, {"S": {"attention_window": window}, "F": {}})
        return
    fields |= {"attention_window": window} | ({} if every is None else {"full_attention_every": every})


def set_layer_types(fields: Fields, words: Sequence[str], types: Mapping[str, Fields]) -> None:
    """Set the type of each layer, in addition to types that other keys have set."""
    if pattern := fields.get("pattern"):
        both = [(pattern[layer % len(pattern)], word) for layer, word in enumerate(words)]
        types = {f"{one} {other}": fields["layer_types"][one] | types[other] for one, other in both}
        for each in (each for each in types.values() if {"mixer", "blocks"} <= each.keys()):
            each["blocks"] = [each.pop("mixer"), each["blocks"][-1]]
        words = [f"{one} {other}" for one, other in both]
    fields |= describe_layer_types(words, types)


def set_moe_fields(config: CheckedConfig, fields: Fields, row: Mapping[str, Any]) -> None:
    """Set a model's mixture-of-experts fields by ``row``, its family's rules in ``hf_families.yaml``.

    Layers from ``first`` to ``last`` have experts, every ``step``-th of them (``from``: 0 or ``first`` is such a layer,
    by default the step-th), except those of the list ``dense``; or the layers that are ``listed``.
    """
    layers, experts = fields["layers"], config.required_size(row["experts"])
    width = config.required_size(row["width"]) if "width" in row else fields["ffn_hidden_size"]
    top_k = config.required_size("num_experts_per_tok num_experts_per_token experts_per_token moe_k moe_top_k")
    if top_k > experts:
        raise InputError(f"num_experts_per_tok {top_k} is more than the {experts} experts; lower it")
    if layers > MAX_LAYERS:
        raise InputError(f"{layers:,} layers are too many; at most {MAX_LAYERS:,} are supported")
    first = config.whole_number_value(*row["first"]) if "first" in row else 0
    step, begin = config.optional_size(row.get("step", "")) or 1, {"first": first, 0: 0}.get(row.get("from", ""), -1)
    to_the_end = "last" not in row or config.finite_value(row["last"]) in (None, -1)
    dense, listed = (frozenset(config.layer_numbers(row[name])) if name in row else () for name in ("dense", "listed"))
    where: dict[str, int] | None = {"first_dense_layers": first, "every": step, "offset": (begin + 1) % step}
    last = layers - 1 if to_the_end else config.whole_number_value(row["last"], 0)
    if dense or listed or last < layers - 1:
        here = [
            first <= n <= last and (n in listed if listed else n not in dense and (n - begin) % step == 0)
            for n in range(layers)
        ]
        where = describe_expert_layers(here)
        if where is None and any(here):
            words = ["expert" if each else "dense" for each in here]
            kinds = {"dense": "mlp", "expert": "mixture"}
            set_layer_types(fields, words, {w: {"blocks": ["attention", kind]} for w, kind in kinds.items()})
            where = {}
    if where is None or first >= layers:
        named = [name for key in ("first", "step", "last", "dense", "listed") if (name := row.get(key))]
        keys = " and ".join(name if isinstance(name, str) else name[0] for name in named)
        raise InputError(f"{keys}: none of the {layers} layers has experts; correct these keys")
    more: Fields = {name: row[name] for name in ("shared_gate", "shared_experts", "router_bias") if name in row}
    if isinstance(switch := row.get("router_bias"), list):
        more["router_bias"] = config.boolean_value(*switch)
    for name, keys in row.get("sizes", {}).items():
        more[name] = config.required_size(keys)
    if "shared" in row:
        key, default = row["shared"]
        for each in reversed(key.split()):
            default = config.whole_number_value(each, default)
        more["shared_experts"] = default
    if row.get("groups"):
        groups, top_groups = (
            config.optional_size("n_group num_expert_group") or 1,
            config.optional_size("topk_group") or 1,
        )
        more |= {"groups": groups, "top_groups": top_groups} if top_groups < groups else {}
    kept = {name: value for name, value in (more | where).items() if value and (name, value) != ("every", 1)}
    fields["moe"] = {"experts": experts, "top_k": top_k, "expert_ffn_hidden_size": width, **kept}


def _set_latent_attention(config: CheckedConfig, fields: Fields) -> None:
    needed = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    query = config.optional_size("q_lora_rank")
    fields["mla"] = {name: config.required_size(name) for name in needed} | ({"q_lora_rank": query} if query else {})


def _set_llama_bias(config: CheckedConfig, fields: Fields) -> None:
    attention, mlp = config.boolean_value("attention_bias", False), config.boolean_value("mlp_bias", False)
    if mlp and not attention:
        raise InputError(
            "mlp_bias is true and attention_bias false: biases only in the MLP are not modelled; make them equal"
        )
    fields["bias"] = True if mlp else "attention" if attention else False


def _set_indexer(config: CheckedConfig, fields: Fields) -> None:
    """Set the indexer of sparse attention; raise InputError if layers share the keys that another layer chose."""
    keys, wrong = ("indexer_types", "index_topk_pattern"), "is not a list with full or shared for each layer"
    kinds = [config.checked_value(key, lambda value: isinstance(value, str | list), wrong, []) for key in keys]
    every = 1 if any(kinds) else config.optional_size("index_topk_freq") or 1
    if every > 1 or any(word in each for word in ("S", "shared") for each in kinds):
        raise InputError("layers without their own indexer (index_topk_freq, indexer_types) are not modelled")
    sizes = {"heads": "index_n_heads", "head_dim": "index_head_dim", "top_k": "index_topk"}
    fields["mla"]["indexer"] = {name: config.required_size(key) for name, key in sizes.items()}


def _set_llama4_layers(config: CheckedConfig, fields: Fields) -> None:
    """Set the layers of Llama 4: most have positions and attention in chunks, the others neither."""
    layers, chunk = fields["layers"], config.optional_size("attention_chunk_size")
    chunk = chunk if "attention_chunk_size" in config.data else 8192
    interval, shown = config.optional_size("no_rope_layer_interval") or 4, min(layers, MAX_LAYERS)
    rotated = config.finite_value("no_rope_layers") or [int((layer + 1) % interval != 0) for layer in range(shown)]
    check_layer_list("no_rope_layers", rotated, layers, (0, 1))
    usual = "full_attention", "chunked_attention" if chunk else "full_attention"
    words = config.finite_value("layer_types") or [usual[each] for each in rotated]
    check_layer_list("layer_types", words, layers, usual)
    letters = {("chunked_attention", 1): "C", ("full_attention", 0): "F", ("full_attention", 1): "R"}
    norm: Fields = {"qk_norm": "unscaled"} if config.boolean_value("use_qk_norm", True) else {}
    still, part = {"position": "none"}, {"attention_chunk": chunk}
    types: dict[str, Fields] = {"C": norm | part, "F": still, "R": norm, "N": still | part}
    set_layer_types(fields, [letters.get(each, "N") for each in zip(words, rotated, strict=False)], types)


def _set_qwen_window(config: CheckedConfig, fields: Fields) -> None:
    """Set Qwen's attention window; raise InputError if it applies to some layers only."""
    window, layers, sequence = config.optional_size("sliding_window"), fields["layers"], fields["sequence_length"]
    if not config.boolean_value("use_sliding_window", False) or not window or not sequence or window >= sequence:
        return
    first = config.whole_number_value("max_window_layers", 28)
    if 0 < first < (layers or 0):
        types: Fields = {"S": {"attention_window": window}, "F": {}}
        set_layer_types(fields, ["F"] * first + ["S"] * (layers - first), types)
    if first == 0:
        fields["attention_window"] = window


def _set_opt_positions(config: CheckedConfig, fields: Fields) -> None:
    projection, hidden = config.optional_size("word_embed_proj_dim"), fields["hidden_size"]
    if projection is not None and projection != hidden:
        raise InputError(
            f"word_embed_proj_dim {projection} differs from hidden_size {hidden}, which is not modelled; "
            "use a model whose embeddings are as wide as its layers"
        )
    positions = config.optional_size("max_position_embeddings")
    fields["position_rows"] = None if positions is None else positions + 2  # OPTLearnedPositionalEmbedding.offset


def _set_falcon_fields(config: CheckedConfig, fields: Fields) -> None:
    new, parallel = config.boolean_value("new_decoder_architecture", False), config.boolean_value("parallel_attn", True)
    if new:
        norms = config.whole_number_value("num_ln_in_parallel_attn", 2) or 2
        fields["kv_heads"] = config.optional_size("num_kv_heads") or fields["heads"]
    else:
        norms = 1 if parallel else 2
        fields["kv_heads"] = 1 if config.boolean_value("multi_query", True) else fields["heads"]
    if norms not in (1, 2):
        raise InputError(f"num_ln_in_parallel_attn {norms} is not modelled; use 1 or 2")
    fields |= {"layer_norms": 1 if norms == 1 else None, "parallel_residual": new or parallel or None}
    fields["position"] = "none" if config.boolean_value("alibi", False) else "rope"


def _set_mpt_fields(config: CheckedConfig, fields: Fields) -> None:
    fields["ffn_hidden_size"] = (config.optional_size("expansion_ratio") or 4) * int(fields["hidden_size"])
    if config.finite_value("attn_type") == "multiquery_attention":
        fields["kv_heads"] = 1


def _set_fla_fields(config: CheckedConfig, fields: Fields) -> None:
    ratio = config.optional_size("hidden_ratio") or 4
    fields["ffn_hidden_size"] = fields["ffn_hidden_size"] or 256 * -(-int(fields["hidden_size"] * ratio * 2 / 3) // 256)
    if window := config.optional_size("window_size"):
        set_attention_window(config, fields, window)


def _set_mamba_sizes(config: CheckedConfig, fields: Fields, keys: str) -> None:
    names = ("heads", "head_dim", "groups", "state", "conv", "chunk")
    sizes = {name: config.optional_size(key) for name, key in zip(names, keys.split(), strict=True)}
    sizes["heads"] = sizes["heads"] or 2 * fields["hidden_size"] // (sizes["head_dim"] or 64)
    fields["layer_kinds"] = {"mamba2": {name: size for name, size in sizes.items() if size is not None}}


def _set_nemotron_layers(config: CheckedConfig, fields: Fields) -> None:
    """Set the layers of Nemotron-H and Nemotron 3: a letter per layer, each of one layer kind."""
    wrong = f"is not a letter M, *, - or E for each of the {fields['layers']} layers"
    pattern = config.checked_value(
        "hybrid_override_pattern",
        lambda value: isinstance(value, str) and len(value) == fields["layers"] and not set(value) - set("M*-E"),
        f"{wrong}; write one, as in M-M*-",
    )
    if pattern is None:
        raise InputError(f"the config of model_type {config.kind!r} lacks hybrid_override_pattern; add it")
    fields["pattern"] = pattern
    _set_mamba_sizes(config, fields, "mamba_num_heads mamba_head_dim n_groups ssm_state_size conv_kernel chunk_size")
    if "E" in pattern:
        shared = config.optional_size("moe_shared_expert_intermediate_size")
        shared = shared if config.whole_number_value("n_shared_experts", 1) else None
        more = {"shared_ffn_hidden_size": shared, "latent_size": config.optional_size("moe_latent_size")}
        fields["moe"] = {
            "experts": config.required_size("n_routed_experts"),
            "top_k": config.required_size("num_experts_per_tok"),
            "expert_ffn_hidden_size": config.required_size("moe_intermediate_size"),
            "router_bias": True,
            **{name: size for name, size in more.items() if size},
        }


def _set_granite_layers(config: CheckedConfig, fields: Fields) -> None:
    """Set the layers of Granite 4: Mamba-2 or attention, each followed by experts and a shared MLP."""
    types = config.finite_value("layer_types")
    check_layer_list("layer_types", types, fields["layers"], ("mamba", "attention"))
    set_layer_types(fields, types, {"mamba": {"mixer": "mamba2"}, "attention": {}})
    keys = "mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_chunk_size"
    _set_mamba_sizes(config, fields, keys)
    fields["position"] = "none" if config.finite_value("position_embedding_type") == "nope" else "rope"
    shared = "shared_intermediate_size"
    if config.whole_number_value("num_local_experts", 0):
        set_moe_fields(config, fields, {"experts": "num_local_experts", "sizes": {"shared_ffn_hidden_size": shared}})
    else:
        fields["ffn_hidden_size"] = config.required_size(shared)


def _set_minimax_sizes(config: CheckedConfig, fields: Fields) -> None:
    """Set the sizes of MiniMax's lightning attention: as many heads as its attention has, each with its own keys."""
    if config.whole_number_value("shared_intermediate_size", 0):
        raise InputError("shared_intermediate_size: the shared experts of MiniMax are not modelled; set it to 0")
    sizes = {"heads": fields["heads"], "head_dim": fields["head_dim"] or fields["hidden_size"] // fields["heads"]}
    fields["layer_kinds"] = {"lightning": sizes}


FAMILY_RULES: dict[str, Callable[[CheckedConfig, Fields], None]] = {
    "latent": _set_latent_attention, "indexer": _set_indexer, "llama": _set_llama_bias, "llama4": _set_llama4_layers,
    "fla": _set_fla_fields, "qwen_window": _set_qwen_window, "opt": _set_opt_positions, "falcon": _set_falcon_fields,
    "mpt": _set_mpt_fields, "nemotron": _set_nemotron_layers, "granite": _set_granite_layers,
    "minimax": _set_minimax_sizes,
}  # fmt: skip
"""Family-specific rules by the name used in ``hf_families.yaml``."""


def token_prediction_assumption(config: CheckedConfig) -> tuple[str, ...]:
    """Return the assumption that multi-token prediction layers are ignored; empty for a model without such layers."""
    number = config.whole_number_value("num_nextn_predict_layers", 0) or config.whole_number_value("num_mtp_modules", 0)
    layers = f"{number} layer{'s' * (number > 1)}"
    pattern = config.checked_value("mtp_hybrid_override_pattern", lambda value: isinstance(value, str), "is not a text")
    added = f"mtp_layers: {number}" + (f" and mtp_pattern: '{pattern[:20]}'" if pattern else "")
    said = f"time and parameters exclude the {layers} of multi-token prediction ({added} in the model adds them)"
    return (said,) if number else ()


def _load_families() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for kind, row in read_document(Path(__file__).with_suffix(".yaml")).data.items():
        base = found.get(row.get("base"), {})
        found[kind] = row | {name: {**base.get(name, {}), **row.get(name, {})} for name in _INHERITED_KEYS}
    return {kind: row for kind, row in found.items() if not kind.startswith("_")}


FAMILIES = _load_families()
"""Rules of ``hf_families.yaml`` by ``model_type``."""
