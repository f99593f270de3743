"""Fields of ``model`` from a Hugging Face ``config.json`` that many families share: windows, layer types, experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.checked_config import CheckedConfig
from simcluster.importers.layer_lists import MAX_LAYERS, check_layer_list, describe_expert_layers, describe_layer_types

Fields = dict[str, Any]
"""Fields of ``Model``; None for a field that the config does not give."""
WINDOW_WORDS = ("full_attention", "sliding_attention")
_TOP_K = "num_experts_per_tok num_experts_per_token experts_per_token moe_k moe_top_k moe_topk top_k_experts"


def set_attention_window(
    config: CheckedConfig, fields: Fields, size: int | None = None, every: int | None = None, keys: str = "",
    unrotated: str = "",
) -> None:  # fmt: skip
    """Set a model's attention window, the layers that have it, and those without positions.

    ``unrotated`` is "full" if those without a window have none, or the key of a list with 0 for layers without.
    """
    layers, types = fields["layers"], config.finite_value("layer_types") if every is not None else None
    every = config.optional_size(keys) or every
    if types is not None:
        check_layer_list("layer_types", types, layers, WINDOW_WORDS)
        every = types.index("full_attention") + 1 if "full_attention" in types else None
    regular = [every is not None and number % every == 0 for number in range(1, min(layers, MAX_LAYERS) + 1)]
    full = regular if types is None else [kind == "full_attention" for kind in types]
    window = config.optional_size("sliding_window") or size
    still = full if unrotated == "full" and window else [False] * len(full)
    if unrotated not in ("", "full"):
        wrong = f"is not a list of {layers} numbers, 0 for a layer without positions"
        bases = config.checked_value(unrotated, lambda value: isinstance(value, list) and len(value) == layers, wrong)
        still = [not each for each in bases] if bases else still
    if window is not None and fields["sequence_length"] is not None and window >= fields["sequence_length"]:
        window = None
    if any(still) or (window and full != regular):
        short, rest = {"attention_window": window} if window else {}, {"position": "none"}
        kinds: dict[str, Fields] = {"S": short, "F": {}, "W": short | rest, "N": rest}
        set_layer_types(fields, ["SFWN"[one + 2 * other] for one, other in zip(full, still, strict=False)], kinds)
    elif window and every != 1:
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
    top_k = config.required_size(_TOP_K)
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
    words = config.finite_value("mlp_layer_types")
    if dense or listed or words is not None or last < layers - 1:
        here = [
            first <= n <= last and (n in listed if listed else n not in dense and (n - begin) % step == 0)
            for n in range(layers)
        ]
        if words is not None:
            check_layer_list("mlp_layer_types", words, layers, ("dense", "sparse"))
            first, here = 0, [each == "sparse" for each in words]
        where = describe_expert_layers(here)
        if where is None and any(here):
            kinds = {"dense": "mlp", "expert": "mixture"}
            types = {word: {"blocks": ["attention", kind]} for word, kind in kinds.items()}
            set_layer_types(fields, ["expert" if each else "dense" for each in here], types)
            where = {}
    if where is None or first >= layers:
        named = [name for key in ("first", "step", "last", "dense", "listed") if (name := row.get(key))]
        named = named if words is None else ["mlp_layer_types"]
        keys = " and ".join(name if isinstance(name, str) else name[0] for name in named)
        raise InputError(f"{keys}: none of the {layers} layers has experts; correct these keys")
    more: Fields = {name: row[name] for name in ("shared_gate", "shared_experts", "router_bias") if name in row}
    if isinstance(switch := row.get("router_bias"), list):
        more["router_bias"] = config.boolean_value(*switch)
    for name, keys in row.get("sizes", {}).items():
        more[name] = 0 if config.finite_value(keys) == 0 else config.required_size(keys)
    if "shared" in row:
        key, default = row["shared"]
        for each in reversed(key.split()):
            default = config.whole_number_value(each, default)
        more["shared_experts"] = default
    if row.get("groups"):
        groups, top_groups = (config.optional_size(keys) or 1 for keys in ("n_group num_expert_group", "topk_group"))
        more |= {"groups": groups, "top_groups": top_groups} if top_groups < groups else {}
    kept = {name: value for name, value in (more | where).items() if value and (name, value) != ("every", 1)}
    fields["moe"] = {"experts": experts, "top_k": top_k, "expert_ffn_hidden_size": width, **kept}
