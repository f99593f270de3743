"""The ``model`` section of a scenario from Megatron-LM's options: sizes, experts, attention and windows.

Defaults are those of arguments.py and of MLATransformerConfig (core/transformer/transformer_config.py), from knowledge
of them.
"""

from __future__ import annotations

import re
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.layer_lists import describe_expert_layers, describe_layer_types
from simcluster.importers.megatron_forks import real_layer_flags
from simcluster.importers.megatron_options import EXPERT_OPTIONS, LATENT_SIZES, MegatronOptions
from simcluster.importers.megatron_parallel import shards_parameters
from simcluster.model.defaults import check_mtp_pattern

_NUMBER_OF_EXPERTS = re.compile(r"-*(n|num)-(\w+-)*experts\b")


def model_section(run: MegatronOptions, vocabulary: int) -> dict[str, Any]:
    """Return the scenario's ``model`` section from Megatron-LM options and the vocabulary size."""
    hidden, heads = run.require("hidden-size"), run.require("num-attention-heads")
    sequence, position = run.require("seq-length", "encoder-seq-length"), _position_embedding(run)
    groups, rows = run.get("num-query-groups", "num-key-value-heads"), run.get("max-position-embeddings")
    grouped = run.is_on("group-query-attention") or run.get("num-key-value-heads")
    if groups and groups != heads and not grouped:  # core_transformer_config_from_args ignores it
        run.assumed.append("--num-query-groups is ignored without --group-query-attention: each head has separate keys")
    bias = not run.is_on("disable-bias-linear")
    more = {
        "head_dim": run.get("kv-channels"),
        "position_rows": rows if position == "learned" and rows != sequence else None,
        "qk_norm": "head" if run.is_on("qk-layernorm") else None,
        "vocab_multiple": run.get("make-vocab-size-divisible-by"), "embedding_norm": run.is_on("embed-layernorm"),
        "mtp_layers": _token_prediction_layers(run), "attention_sinks": run.get("softmax-type") == "learnable",
        "attention_gate": run.is_on("attention-output-gate"),
        "clamped_activation": run.get("activation-func-clamp-value") not in (None, "", "None", "null"),
    }  # fmt: skip
    model: dict[str, Any] = {
        "layers": sum(real_layer_flags(run)), "hidden_size": hidden, "heads": heads,
        "kv_heads": (groups or 1) if grouped else heads,
        "ffn_hidden_size": run.get("ffn-hidden-size") or _default_mlp_width(run, hidden), "vocab_size": vocabulary,
        "sequence_length": sequence, "gated_mlp": run.is_on("swiglu", "quick-geglu"),
        "tied_embeddings": not run.is_on("untie-embeddings-and-output-weights"),
        "norm": "rmsnorm" if (run.get("normalization") or "").lower() == "rmsnorm" else "layernorm",
        "position": position, "bias": "qkv" if not bias and run.is_on("add-qkv-bias") else bias,
        **{name: value for name, value in more.items() if value},
    }  # fmt: skip
    model |= _attention_window_fields(run, model["layers"], sequence) | _hybrid_layer_fields(run, hidden)
    model |= _linear_layer_fields(run, model["layers"])
    _add_moe_section(run, model)
    _add_latent_attention(run, model)
    return model


def _hybrid_layer_fields(run: MegatronOptions, hidden: int) -> dict[str, Any]:
    """Return the model's patterns of layers and its Mamba-2 sizes; empty without a pattern."""
    name = "hybrid-override-pattern"
    names = {"head_dim": "mamba-head-dim", "groups": "mamba-num-groups", "state": "mamba-state-dim"}
    pattern: str = run.get(name) or ""
    main, *predicted = pattern.split("/")
    if set(pattern) - set("M*-E/"):
        what = "only layers M (Mamba-2), * (attention), - (MLP) and E (experts) are modelled"
        raise run.error(name, f"{pattern[:60]!r}: {what}")
    found = {"pattern": main} if main else {}
    if predicted:
        if len({*predicted}) > 1:
            raise run.error(name, f"{pattern[:60]!r}: all layers of multi-token prediction (after /) must be equal")
        try:
            check_mtp_pattern(predicted[0], {})
        except InputError as error:
            raise run.error(name, str(error)) from None
        found |= {} if shards_parameters(run) else {"mtp_pattern": predicted[0]}
    if "M" not in pattern:
        run.drop_options("", f"no layer is Mamba-2 (M in {name})", ("mamba-num-heads", *names.values()))
        return found
    sizes = {field: size for field, option in names.items() if (size := run.get(option))}
    heads = run.get("mamba-num-heads") or 2 * hidden // sizes.get("head_dim", 64)
    return {**found, "layer_kinds": {"mamba2": {"heads": heads, **sizes}}}


def _linear_layer_fields(run: MegatronOptions, layers: int) -> dict[str, Any]:
    """Return which layers have gated DeltaNet, and its sizes; a frequency of N makes layers N, 2N, ... attention."""
    variant, frequency = "experimental-attention-variant", "linear-attention-freq"
    names = {"value_heads": "linear-num-value-heads", "key_heads": "linear-num-key-heads",
             "key_head_dim": "linear-key-head-dim", "value_head_dim": "linear-value-head-dim",
             "conv": "linear-conv-kernel-dim"}  # fmt: skip
    value = run.number_or_layer_list(frequency, layers)
    if not run.get(variant):
        if value is not None:
            raise run.error(frequency, f"is modelled with --{variant} gated_delta_net; add it")
        run.drop_options(variant, "no layer has linear attention", [*names.values()])
        return {}
    if run.get(variant) != "gated_delta_net":
        raise run.error(variant, "only gated_delta_net is modelled, not sparse attention with an indexer (dsa)")
    if value is None:
        raise run.error(variant, f"needs the layers that it is in; add --{frequency}")
    linear = (
        [bool(each) for each in value] if isinstance(value, list) else [n % value > 0 for n in range(1, layers + 1)]
    )
    words, types = ["L" if each else "F" for each in linear], {"L": {"mixer": "gated_delta_net"}, "F": {}}
    sizes = {"value_heads": 32, "key_heads": 16} | {
        field: size for field, name in names.items() if (size := run.get(name))
    }
    return describe_layer_types(words, types) | ({"layer_kinds": {"gated_delta_net": sizes}} if any(linear) else {})


def _position_embedding(run: MegatronOptions) -> str:
    position = run.get("position-embedding-type") or "learned_absolute"
    if run.is_on("use-rotary-position-embeddings") or position in ("yarn", "rotary", "mrope"):
        return "rope"
    if position == "alibi":
        run.assumed.append("ALiBi takes no extra time within the attention kernel, and has no parameters")
    none = position == "alibi" or (position == "learned_absolute" and "no-position-embedding" in run.given)
    return "none" if none else "learned" if position == "learned_absolute" else str(position)


def _token_prediction_layers(run: MegatronOptions) -> int | None:
    predicted: int | None = run.get("mtp-num-layers")
    if predicted and shards_parameters(run):
        which = "layer" if predicted == 1 else f"{predicted} layers"
        run.assumed.append(f"without the {which} of multi-token prediction, which is not modelled with FSDP")
        return None
    return predicted


def _default_mlp_width(run: MegatronOptions, hidden: int) -> int:
    """Return the default MLP width: FlagScale's if the option ``multiple-of`` is set, else Megatron-LM's."""
    if "use-checkpoint-args" in run.given and "moe-ffn-hidden-size" not in run.given:
        run.assumed.append(
            "MLPs have Megatron-LM's default width; the checkpoint's may differ (--arg=--ffn-hidden-size=... sets it)"
        )
    if not run.is_on("swiglu"):
        return 4 * hidden
    multiple, times = run.get("multiple-of"), run.get("hidden-dim-multiplier")
    if not multiple:
        return int(4 * hidden * 2 / 3 / 64) * 64
    try:
        width = int(int(4 * hidden * 2 / 3) * float(times or 1))
    except (ValueError, OverflowError):
        raise run.error("hidden-dim-multiplier", f"{str(times)[:40]!r} is not a number; write one, as in 1.3") from None
    return int(multiple * max(1, -(-width // multiple)))


# --- experts ----------------------------------------------------------------------------------------------------------


def _add_moe_section(run: MegatronOptions, model: dict[str, Any]) -> None:
    """Add the ``moe`` section to the model fields, and drop the MLP width if no layer is dense."""
    experts, deepspeed = run.get("num-experts"), run.is_on("deepspeed")
    if experts is None:
        foreign = next((name.split()[0] for name in run.unknown if _NUMBER_OF_EXPERTS.match(name)), None)
        if foreign and any(run.values.get(name) for name in EXPERT_OPTIONS):
            what = "is not a Megatron-LM option, so the number of experts is not read"
            raise run.error(foreign.lstrip("-"), f"{what}; give it as --num-experts (--arg=--num-experts=...)")
        run.drop_options("num-experts", "the model is dense", EXPERT_OPTIONS)
        return
    names = ("tensor-model-parallel-size", "model-parallel-size")
    tp = run.get(*names) or 1
    if deepspeed and tp > 1 and not run.is_on("sequence-parallel"):
        what = f"DeepSpeed sends the tokens of {tp} tp ranks once, and gathers them after the experts"
        remedy = "--arg=--sequence-parallel= simulates it with sequence parallelism"
        raise run.error(next(name for name in names if name in run.values), f"{what}, which is not modelled; {remedy}")
    top_k = run.get("moe-router-topk")
    if top_k is None:
        top_k = 1 if deepspeed else 2
        whose = "Megatron-DeepSpeed's default" if deepspeed else "Megatron-Core's default; its legacy layers use 1"
        run.assumed.append(f"each token goes to {top_k} of the experts, as the number is not given: {whose}")
    if top_k > experts:
        raise run.error("moe-router-topk", f"{top_k} is more than the {experts} experts; use {experts} or fewer")
    if run.get("moe-latent-size") and run.is_on("moe-use-legacy-grouped-gemm"):
        what = "is not supported with moe-use-legacy-grouped-gemm (as in Megatron-LM); remove one of them"
        raise run.error("moe-latent-size", what)
    inner = model["ffn_hidden_size"]
    residual = run.get("mlp-type") == "residual"  # Megatron-DeepSpeed
    if residual:
        run.assumed.append("the MLP alongside the experts (mlp-type residual) is modelled as a gated shared expert")
    every = (run.get("expert-interval") or 2) if deepspeed else 1  # Megatron-DeepSpeed's default
    where = _expert_layer_fields(run, model["layers"]) or ({"every": every} if every > 1 else {})
    if not where:
        del model["ffn_hidden_size"]
    linear = model["bias"] is True and not deepspeed  # TopKRouter has a bias if linear layers have; DeepSpeed's none
    groups, top_groups = run.get("moe-router-num-groups"), run.get("moe-router-group-topk")
    more = {
        "shared_ffn_hidden_size": inner if residual else run.get("moe-shared-expert-intermediate-size"),
        "shared_gate": residual or run.is_on("moe-shared-expert-gate"),
        "latent_size": run.get("moe-latent-size"),
        "router_bias": run.is_on("moe-router-enable-expert-bias") or linear, "groups": groups if top_groups else None,
        "top_groups": top_groups if groups else None, **where, **({} if deepspeed else _load_balancing_fields(run)),
    }  # fmt: skip
    model["moe"] = {
        "experts": experts, "top_k": top_k, "expert_ffn_hidden_size": run.get("moe-ffn-hidden-size") or inner,
        **{name: value for name, value in more.items() if value},
    }  # fmt: skip


def _load_balancing_fields(run: MegatronOptions) -> dict[str, Any]:
    """Return the expert load balancing fields: capacity, padding to capacity and auxiliary loss."""
    capacity = max([0.0, *_parse_number_list(run, "moe-expert-capacity-factor")])  # TransformerConfig: negative is none
    padded = run.is_on("moe-pad-expert-input-to-capacity") and (capacity or "moe-capacity-bins-num" not in run.given)
    if padded and not capacity:
        raise run.error("moe-pad-expert-input-to-capacity", "needs moe-expert-capacity-factor; give it, as in 1.0")
    kind = run.get("moe-router-load-balancing-type") or "aux_loss"
    if kind == "sinkhorn":
        run.assumed.append("sinkhorn balancing takes no time: its iterations over router scores are not modelled")
    loss = kind not in ("none", "sinkhorn", "noaux_tc") and any(_parse_number_list(run, "moe-aux-loss-coeff"))
    return {"capacity_factor": capacity, "pad_to_capacity": bool(padded), "aux_loss": loss}


def _parse_number_list(run: MegatronOptions, name: str) -> list[float]:
    try:
        return [float(word) for word in (run.get(name) or "").split()]
    except ValueError:
        raise run.error(name, f"{str(run.get(name))[:40]!r} is not a number; write a number, as in 1.0") from None


def _expert_layer_fields(run: MegatronOptions, layers: int) -> dict[str, int]:
    """Return the fields that state which layers have experts; a frequency of N selects layers 0, N, 2N, ..."""
    value = run.number_or_layer_list("moe-layer-freq", layers)
    if value is None or isinstance(value, int):
        return {"every": value, "offset": 1} if value and value > 1 else {}
    if any(number not in (0, 1) for number in value):
        raise run.error("moe-layer-freq", "must have 1 for a layer with experts and 0 for one without")
    where = describe_expert_layers([number == 1 for number in value])
    if where is None:
        what = "only experts in every n-th layer after the first dense layers are modelled"
        raise run.error("moe-layer-freq", what if any(value) else "has experts in no layer; remove num-experts")
    return where


# --- attention --------------------------------------------------------------------------------------------------------


def _add_latent_attention(run: MegatronOptions, model: dict[str, Any]) -> None:
    """Add latent attention (``mla``) to the model fields, and remove fields that do not apply with it."""
    flag = "multi-latent-attention"
    if not run.is_on(flag):
        run.drop_options(flag, "attention is plain", ("q-lora-rank", *LATENT_SIZES))
        return
    if model["kv_heads"] != model["heads"]:
        raise run.error(flag, "cannot be combined with group-query-attention; keep one")
    if model["bias"] is not False:
        raise run.error(flag, "is not modelled with biases; add --disable-bias-linear, without --add-qkv-bias")
    if not run.is_on("qk-layernorm"):
        run.assumed.append(f"{flag} has norms of its latent vectors, although qk-layernorm is not given")
    for name in ("kv_heads", "head_dim", "qk_norm"):
        model.pop(name, None)
    if model["position"] == "none":
        model["position"] = "rope"  # latent attention always has it
    model["mla"] = {field: run.get(name) or default for name, (field, default) in LATENT_SIZES.items()}
    if run.get("q-lora-rank"):
        model["mla"]["q_lora_rank"] = run.get("q-lora-rank")


def _attention_window_fields(run: MegatronOptions, layers: int, sequence: int) -> dict[str, int]:
    """Return the model's attention window fields; empty unless the window is shorter than the sequence.

    A window of (128, 0) is 128 tokens before a token, plus the token itself.
    """
    text, skip = run.get("window-size"), run.number_or_layer_list("window-attn-skip-freq", layers)
    if text is None:
        return {}
    parts = text.strip("() ").replace(",", " ").split()
    if len(parts) == 1 and parts[0].isdecimal():
        run.assumed.append(f"--window-size {parts[0]}: {parts[0]} tokens before each token, like {parts[0]},0")
        parts.append("0")
    if len(parts) != 2 or not parts[0].isdecimal() or len(parts[0]) > 9 or parts[1] != "0":
        raise run.error("window-size", f"{text[:40]!r} is not modelled; write PRECEDING_TOKENS,0, as in 128,0")
    every = skip or 0  # every n-th layer has no window (is_layer_window_attention, core/transformer/utils.py)
    if isinstance(every, list):
        full = {"every": 0} if all(every) else describe_expert_layers([not windowed for windowed in every])
        if full is None or full.keys() - {"every"}:
            what = "this pattern is not modelled; write a number N: every N-th layer then has no window"
            raise run.error("window-attn-skip-freq", what)
        every = full.get("every", 1)
    window = int(parts[0]) + 1
    if window >= sequence or every == 1:
        return {}
    return {"attention_window": window, **({"full_attention_every": every} if every else {})}
