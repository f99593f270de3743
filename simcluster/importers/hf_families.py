"""Rules for the ``config.json`` of each model family (``model_type``) of Hugging Face transformers.

Sources: configuration_mixtral.py, modeling_deepseek_v3.py, ... of huggingface/transformers, from knowledge of them; the
resulting parameter counts are tested against published ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.yaml_documents import read_document
from simcluster.importers.checked_config import CheckedConfig
from simcluster.importers.hf_fields import (
    WINDOW_WORDS,
    Fields,
    set_attention_window,
    set_layer_types,
    set_moe_fields,
)
from simcluster.importers.layer_lists import MAX_LAYERS, check_layer_list, describe_layer_types
from simcluster.model.kind_documents import load_kind_document

_MIXERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*"}
_NEMOTRON_LAYERS = {**_MIXERS, "mlp": "-", "moe": "E"}
_MAMBA2_SIZES = "num_heads head_dim n_groups state_size conv_kernel chunk_size"
_INHERITED_KEYS = ("keys", "implied", "fallback", "refused", "moe", "linear")


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
    """Set Qwen's attention window, which its first layers do not have."""
    window = config.optional_size("sliding_window") if config.boolean_value("use_sliding_window", False) else None
    layers = fields["layers"]
    first = config.whole_number_value("max_window_layers", 28) if window else layers
    if window and window < (fields["sequence_length"] or 0) and first < layers:
        short = {"attention_window": window}
        types: dict[str, Fields] = {"S": short, "F": {}}
        fields |= describe_layer_types(["F"] * first + ["S"] * (layers - first), types) if first else short


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
    one, norms = not new and config.boolean_value("multi_query", True), 1 if parallel else 2
    norms = config.whole_number_value("num_ln_in_parallel_attn", 2) or 2 if new else norms
    fields["kv_heads"] = 1 if one else config.optional_size("num_kv_heads" if new else "") or fields["heads"]
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


def _set_mamba_sizes(config: CheckedConfig, fields: Fields, keys: str, **defaults: int) -> None:
    names = ("heads", "head_dim", "groups", "state", "conv", "chunk")
    sizes = {name: config.optional_size(key) for name, key in zip(names, keys.split(), strict=True)}
    sizes["heads"] = sizes["heads"] or 2 * fields["hidden_size"] // (sizes["head_dim"] or 64)
    fields["layer_kinds"] = {"mamba2": defaults | {name: size for name, size in sizes.items() if size is not None}}


def _set_nemotron_layers(config: CheckedConfig, fields: Fields) -> None:
    """Set the layers of Nemotron-H and Nemotron 3: a letter per layer, each of one layer kind."""
    wrong = f"is not a letter M, *, - or E for each of the {fields['layers']} layers"
    names = config.finite_value("layers_block_type")
    if names is not None:
        check_layer_list("layers_block_type", names, fields["layers"], tuple(_NEMOTRON_LAYERS))
    pattern = config.checked_value(
        "hybrid_override_pattern",
        lambda value: isinstance(value, str) and len(value) == fields["layers"] and not set(value) - set("M*-E"),
        f"{wrong}; write one, as in M-M*-",
        None if names is None else "".join(map(_NEMOTRON_LAYERS.__getitem__, names)),
    )
    if pattern is None:
        raise InputError(f"the config of model_type {config.kind!r} lacks hybrid_override_pattern; add it")
    fields["pattern"] = pattern
    _set_mamba_sizes(config, fields, "mamba_num_heads mamba_head_dim n_groups ssm_state_size conv_kernel chunk_size")
    if "E" in pattern:
        shared = config.optional_size("moe_shared_expert_intermediate_size")
        shared = shared if config.whole_number_value("n_shared_experts", 1) else None
        more = {"shared_ffn_hidden_size": shared, "latent_size": config.optional_size("moe_latent_size")}
        set_moe_fields(config, fields, {"experts": "n_routed_experts", "width": "moe_intermediate_size"})
        fields["moe"] |= {"router_bias": True, **{name: size for name, size in more.items() if size}}


def _set_granite_layers(config: CheckedConfig, fields: Fields) -> None:
    """Set the layers of Granite 4 and Bamba: Mamba-2 or attention, each followed by an MLP or experts and an MLP."""
    types = config.finite_value("layer_types")
    if config.kind == "bamba":
        attend = config.layer_numbers("attn_layer_indices")
        types = ["attention" if n in attend else "mamba" for n in range(min(fields["layers"], MAX_LAYERS))]
    letters = [_MIXERS[each] for each in check_layer_list("layer_types", types, fields["layers"], tuple(_MIXERS))]
    set_layer_types(fields, letters, {"M": {"mixer": "mamba2"}, "*": {}})
    keys = "mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_chunk_size"
    _set_mamba_sizes(config, fields, keys, groups=1, state=256, chunk=256)
    if "M" not in letters:
        del fields["layer_kinds"]
    rotated = config.kind == "bamba" or config.finite_value("position_embedding_type") == "rope"
    fields["position"] = "rope" if rotated else "none"
    shared = "shared_intermediate_size"
    if config.whole_number_value("num_local_experts", 0):
        set_moe_fields(config, fields, {"experts": "num_local_experts", "sizes": {"shared_ffn_hidden_size": shared}})
    else:
        fields["ffn_hidden_size"] = config.required_size(f"{shared} intermediate_size")


def _set_minimax_sizes(config: CheckedConfig, fields: Fields) -> None:
    width = fields["head_dim"] or fields["hidden_size"] // fields["heads"]
    fields["layer_kinds"] = {"lightning": {"heads": fields["heads"], "head_dim": width}}


def _set_gemma4_layers(config: CheckedConfig, fields: Fields) -> None:
    """Set the layers of Gemma 4: attention in a window, or to all tokens with other heads; an MLP, or experts, too."""
    shown = range(1, min(fields["layers"], MAX_LAYERS) + 1)
    words = config.finite_value("layer_types") or ["sliding_attention" if n % 6 else "full_attention" for n in shown]
    words = [*check_layer_list("layer_types", words, fields["layers"], WINDOW_WORDS)[:-1], "full_attention"]
    numbers = {str(number) for number, word in enumerate(words) if word == "full_attention"}
    known = {"num_attention_heads": "heads", "num_key_value_heads": "kv_heads", "head_dim": "head_dim"}
    joined = config.boolean_value("attention_k_eq_v", False)
    if config.finite_value("use_bidirectional_attention") == "all":
        raise InputError("use_bidirectional_attention is 'all': only causal decoders are modelled; use null or vision")

    def is_valid(value: Any) -> bool:
        sizes = [*value.values()] if isinstance(value, Mapping) else []
        same = all(isinstance(each, Mapping) and each == sizes[0] and each.keys() <= known.keys() for each in sizes)
        return bool(sizes) and same and {str(key).lstrip("0") or "0" for key in value} == numbers

    wrong = f"is not the same {', '.join(known)} for each full_attention layer, by its number from 0"
    if given := config.checked_value("per_layer_config", is_valid, wrong):
        config = CheckedConfig({**config.data, **next(iter(given.values()))}, config.kind, config.read_keys)
        wide = {name: config.optional_size(key) for key, name in known.items()}
    else:  # other key heads with attention_k_eq_v only
        heads = config.optional_size("num_global_key_value_heads") if joined else None
        wide = {"head_dim": config.optional_size("global_head_dim") or 512, "kv_heads": heads}
    window = config.optional_size("sliding_window") or {"gemma4_text": 512}.get(config.kind, 1024)
    short = {"attention_window": window} if window < (fields["sequence_length"] or 0) else {}
    wide = {name: size for name, size in wide.items() if size and size != fields[name]}
    wide |= {"values_from_keys": True} if joined else {}
    if config.boolean_value("enable_moe_block", False):
        sizes = {"shared_ffn_hidden_size": "intermediate_size"}  # of the MLP next to the experts
        set_moe_fields(config, fields, {"experts": "num_experts", "width": "moe_intermediate_size", "sizes": sizes})
        fields["moe"]["separate_norms"] = True
    set_layer_types(fields, ["F" if word == "full_attention" else "S" for word in words], {"S": short, "F": wide})


def _set_deepseek_v4(config: CheckedConfig, fields: Fields) -> None:
    """Set the layers of DeepSeek-V4: their attention and its sizes, hash routing, experts, residual streams."""
    row, layers, key = FAMILIES[config.kind], min(fields["layers"], MAX_LAYERS), "layer_types"
    types, hashes = row["types"], config.whole_number_value("num_hash_layers", 3)
    values, known = config.finite_value(key), row["words"]
    if values is None:
        key, known = "compress_ratios", [0, 4, 128]
        values = config.finite_value(key) or [4 if n > 2 and n % 2 else 128 for n in range(layers)]
        values = values[:layers] if isinstance(values, list) else values  # those of multi-token prediction follow
    letters = ["SCH"[known.index(each)] for each in check_layer_list(key, values, layers, known)]
    routes = config.finite_value("mlp_layer_types") or ["hash_moe"] * min(hashes, layers) + ["moe"] * (layers - hashes)
    check_layer_list("mlp_layer_types", routes, layers, ("hash_moe", "moe"))
    both = zip(letters, routes, strict=True)
    set_layer_types(fields, [each.lower() if way == "hash_moe" else each for each, way in both], types)
    rates = config.checked_value("compress_rates", lambda value: isinstance(value, Mapping), "is not a mapping", {})
    config = CheckedConfig({**config.data, **rates, "mlp_layer_types": None}, config.kind, config.read_keys)
    fields["layer_kinds"] = {types[letter]["mixer"]: {} for letter in letters}
    for kind, sizes in fields["layer_kinds"].items():
        keys = {name: row["sizes"].get(name, kind) for name in load_kind_document(kind).sizes}
        sizes |= {name: size for name, key in keys.items() if (size := config.optional_size(key))}
    set_moe_fields(config, fields, row["experts"])
    fields |= {"residual_streams": config.optional_size("hc_mult") or 4, "ffn_hidden_size": None}


FAMILY_RULES: dict[str, Callable[[CheckedConfig, Fields], None]] = {
    "latent": _set_latent_attention, "indexer": _set_indexer, "llama": _set_llama_bias, "llama4": _set_llama4_layers,
    "fla": _set_fla_fields, "qwen_window": _set_qwen_window, "opt": _set_opt_positions, "falcon": _set_falcon_fields,
    "mpt": _set_mpt_fields, "nemotron": _set_nemotron_layers, "granite": _set_granite_layers,
    "minimax": _set_minimax_sizes, "gemma4": _set_gemma4_layers, "deepseek_v4": _set_deepseek_v4,
    "mamba2": partial(_set_mamba_sizes, keys=_MAMBA2_SIZES, chunk=256),
}  # fmt: skip
"""Family-specific rules by the name used in ``hf_families.yaml``."""


_TOWER_KEYS = {"layers": "depth", "hidden_size": "hidden_size", "heads": "num_heads",
               "ffn_hidden_size": "intermediate_size", "position_rows": "num_position_embeddings"}  # fmt: skip


def vision_encoder_fields(vision: Any, family: Mapping[str, Any], fields: Fields) -> tuple[Fields, str] | None:
    """Return the fields of a model's encoder and the assumption about its images; None if it is not modelled."""
    if "encoder" not in family or not isinstance(vision, Mapping):
        return None
    config = CheckedConfig(vision, "vision_config")
    found = {name: config.optional_size(key) for name, key in _TOWER_KEYS.items()}
    patch, merge, frames = map(config.optional_size, ("patch_size", "spatial_merge_size", "temporal_patch_size"))
    window, full = config.optional_size("window_size"), config.layer_numbers("fullatt_block_indexes")
    every = full[0] + 1 if window and full else None
    regular = not every or full == [*range(every - 1, found["layers"] or 0, every)]
    fits = vision.get("out_hidden_size") == fields["hidden_size"] and all([*found.values()][:4])
    if not (fits and regular and patch and merge and frames):
        return None
    tokens = max(1, fields["sequence_length"] // 2)
    found |= {"patch_values": (config.optional_size("in_channels in_chans") or 3) * frames * patch**2,
              "patches_per_token": merge**2, "attention_window": (window // patch) ** 2 if window else None,
              "full_attention_every": every, "deepstack": len(config.layer_numbers("deepstack_visual_indexes")) or None,
              "image_tokens": tokens, "tokens_per_image": min(tokens, 1024)}  # fmt: skip
    said = "half of the tokens are of images, with 1,024 each (model.encoder: image_tokens, tokens_per_image)"
    return {**family["encoder"], **{name: value for name, value in found.items() if value is not None}}, said


def token_prediction_assumption(config: CheckedConfig) -> tuple[str, ...]:
    """Return the assumption that multi-token prediction layers are ignored; empty for a model without such layers."""
    number = config.whole_number_value("num_nextn_predict_layers", 0) or config.whole_number_value("num_mtp_modules", 0)
    layers = f"{number} layer{'s' * (number > 1)}"
    pattern = config.checked_value("mtp_hybrid_override_pattern", lambda value: isinstance(value, str), "is not a text")
    more = f"{number} and mtp_pattern: '{pattern[:20]}'" if pattern else number
    added = f" (mtp_layers: {more} in the model adds them)" * (config.kind != "deepseek_v4")
    said = f"time and parameters exclude the {layers} of multi-token prediction{added}"
    return (said,) if number else ()


def _load_families() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for kind, row in read_document(Path(__file__).with_suffix(".yaml")).data.items():
        base = found.get(row.get("base"), {})
        found[kind] = row | {name: {**base.get(name, {}), **row.get(name, {})} for name in _INHERITED_KEYS}
    return {kind: row for kind, row in found.items() if not kind.startswith("_")}


FAMILIES = _load_families()
"""Rules of ``hf_families.yaml`` by ``model_type``."""
