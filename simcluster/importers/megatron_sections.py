"""Sections of a scenario from Megatron-LM's options: experts, latent attention and windows of a model, and training.

Defaults are those of arguments.py and of MLATransformerConfig (core/transformer/transformer_config.py), from knowledge
of them.
"""

from __future__ import annotations

import re
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.layer_lists import Value, places
from simcluster.importers.megatron_attention import attention_of
from simcluster.importers.megatron_memory import state_recipe
from simcluster.importers.megatron_recompute import recompute_of
from simcluster.importers.option_values import LATENT, OF_EXPERTS, Options

_STEP = re.compile(r"[\d.]+[KMBTkmbt]?:(\d{1,9})")
_NUMBER_OF_EXPERTS = re.compile(r"-*(n|num)-(\w+-)*experts\b")


def add_experts(run: Options, model: dict[str, Any]) -> None:
    """Puts ``moe`` into the fields of a model, in place of the MLP's width where no layer keeps one."""
    experts = run.get("num-experts")
    if experts is None:
        _require_no_experts(run)
        run.without("num-experts", "the model is dense", OF_EXPERTS)
        return
    deepspeed = run.flag("deepspeed")
    if deepspeed:
        _require_tokens_not_shared(run)
    top_k = run.get("moe-router-topk")
    if top_k is None:
        top_k = 1 if deepspeed else 2
        whose = "Megatron-DeepSpeed's default" if deepspeed else "Megatron-Core's default, and its legacy layers take 1"
        run.assumed.append(f"a token goes to {top_k} of the experts, as their number is not given: {whose}")
    if top_k > experts:
        raise run.error("moe-router-topk", f"{top_k} is more than the {experts} experts; use {experts} or fewer")
    moe: dict[str, Any] = {
        "experts": experts,
        "top_k": top_k,
        "expert_ffn_hidden_size": run.get("moe-ffn-hidden-size") or model["ffn_hidden_size"],
    }
    shared = run.get("moe-shared-expert-intermediate-size")
    if shared:
        moe["shared_ffn_hidden_size"] = shared
    if run.get("mlp-type") == "residual":  # Megatron-DeepSpeed
        moe |= {"shared_ffn_hidden_size": model["ffn_hidden_size"], "shared_gate": True}
        run.assumed.append("the MLP beside the experts (mlp-type residual) is a shared expert, weighed by a gate")
    if run.flag("moe-shared-expert-gate"):
        moe["shared_gate"] = True
    every = (run.get("expert-interval") or 2) if deepspeed else 1  # Megatron-DeepSpeed's default
    where = _layers(run, model["layers"]) or ({"every": every} if every > 1 else {})
    if not where:
        del model["ffn_hidden_size"]
    linear = model["bias"] is True and not deepspeed  # TopKRouter has one with linear biases, and DeepSpeed's has none
    if run.flag("moe-router-enable-expert-bias") or linear:
        moe["router_bias"] = True
    groups, top_groups = run.get("moe-router-num-groups"), run.get("moe-router-group-topk")
    if groups and top_groups:
        moe |= {"groups": groups, "top_groups": top_groups}
    model["moe"] = moe | where | ({} if deepspeed else _balance(run))


def _require_tokens_not_shared(run: Options) -> None:
    """InputError where tp ranks with the same tokens send them to DeepSpeed's experts once."""
    names = ("tensor-model-parallel-size", "model-parallel-size")
    ranks = run.get(*names) or 1
    if ranks == 1 or run.flag("sequence-parallel"):
        return
    what = f"DeepSpeed sends the tokens that {ranks} tp ranks have once, and gathers them behind the experts"
    remedy = "--arg=--sequence-parallel= plays it with sequence parallelism"
    raise run.error(next(name for name in names if name in run.values), f"{what}, which is not modelled; {remedy}")


def _require_no_experts(run: Options) -> None:
    """InputError where a number of experts is given by a name that is not Megatron-LM's."""
    foreign = next((name.split()[0] for name in run.unknown if _NUMBER_OF_EXPERTS.match(name)), None)
    if foreign and any(run.values.get(name) for name in OF_EXPERTS):
        what = "is no option of Megatron-LM's, and what it says of experts is not read"
        raise run.error(foreign.lstrip("-"), f"{what}; give their number as --num-experts (--arg=--num-experts=...)")


def dispatch_of(run: Options) -> dict[str, Any]:
    """The fields of ``expert_dispatch`` that are not the default's; Megatron-LM's own default is allgather."""
    if run.get("num-experts") is None or run.flag("deepspeed") or (run.get("expert-model-parallel-size") or 1) == 1:
        return {}
    kind = run.get("moe-token-dispatcher-type") or "allgather"
    if kind != "flex":
        return {} if kind.startswith("alltoall") else {"kind": kind}
    kind = run.get("moe-flex-dispatcher-backend") or "deepep"
    sms = run.get(f"moe-{kind}-num-sms") or run.get("moe-flex-dispatcher-num-sms")
    return {"kind": kind, **({"sms": sms} if sms else {})}


def _balance(run: Options) -> dict[str, Any]:
    """What is done about experts that too many tokens choose: a capacity, padding to it, a loss."""
    found: dict[str, Any] = {}
    capacity = max([0.0, *_numbers(run, "moe-expert-capacity-factor")])
    if capacity:  # a negative one is none, in TransformerConfig
        found["capacity_factor"] = capacity
    if run.flag("moe-pad-expert-input-to-capacity") and (capacity or "moe-capacity-bins-num" not in run.given):
        if not capacity:
            raise run.error("moe-pad-expert-input-to-capacity", "needs moe-expert-capacity-factor; give it, as in 1.0")
        found["pad_to_capacity"] = True
    kind = run.get("moe-router-load-balancing-type") or "aux_loss"
    if kind == "sinkhorn":
        run.assumed.append("sinkhorn balances tokens in no time: its rounds over the router's scores are not modelled")
    by_loss = kind not in ("none", "sinkhorn", "noaux_tc")
    if by_loss and any(_numbers(run, "moe-aux-loss-coeff")):
        found["aux_loss"] = True
    return found


def _numbers(run: Options, name: str) -> list[float]:
    try:
        return [float(word) for word in (run.get(name) or "").split()]
    except ValueError:
        raise run.error(name, f"{str(run.get(name))[:40]!r} is not a number; give one, as in 1.0") from None


def expert_kernels(run: Options) -> dict[str, str]:
    """``software.experts`` where the options differ from its defaults; Megatron-LM's own are all off."""
    if run.get("num-experts") is None or run.flag("deepspeed"):
        return {}
    found = {}
    if run.flag("moe-router-fusion"):
        found["router"] = "fused"
    if dtype := run.get("moe-router-dtype"):
        found["router_dtype"] = "fp32"
        if dtype == "fp64":
            run.assumed.append("the router's scores are in fp32, not in fp64 as --moe-router-dtype says: not modelled")
    if not run.flag("moe-permute-fusion"):
        found["permute"] = "steps"
    if run.flag("moe-use-legacy-grouped-gemm"):
        found["products"] = "grouped"
    elif not run.flag("moe-grouped-gemm"):
        found["products"] = "sequential"
    if run.flag("moe-router-padding-for-fp8", "moe-router-padding-for-quantization"):
        found["padding"] = "routing"
    return found


def overlaps_batches(run: Options) -> bool:
    """Whether tokens of one microbatch travel to experts beside the computation of another."""
    return run.get("num-experts") is not None and run.flag("overlap-moe-expert-parallel-comm")


def overlaps_experts(run: Options, *, paired: bool) -> bool:
    """Whether tokens travel to experts beside shared experts, and gradients back beside weight gradients; ``paired``:
    that they do so beside another microbatch is in the schedule."""
    shared, batches, weights = (
        run.flag(name)
        for name in ("moe-shared-expert-overlap", "overlap-moe-expert-parallel-comm", "delay-wgrad-compute")
    )
    if shared and not run.get("moe-shared-expert-intermediate-size"):
        run.assumed.append("moe-shared-expert-overlap says nothing without shared experts")
        shared = False
    if run.get("num-experts") is None:
        if weights:
            what = "a backward split in two is a schedule of its own: pipeline.schedule zb-h1 or zb-v"
            raise run.error("delay-wgrad-compute", f"{what}; take it out to import the rest")
        return False
    if paired and not shared:
        if weights:
            run.assumed.append("delay-wgrad-compute moves no weight gradient within a pair of microbatches")
        return False
    if batches and not paired:
        run.assumed.append(
            "tokens travel to experts beside shared experts and weight gradients, and not beside another microbatch as "
            "by overlap-moe-expert-parallel-comm without virtual stages: the step is rather long"
        )
    elif shared != weights:
        given, other = ("moe-shared-expert-overlap", "delay-wgrad-compute")[:: 1 if shared else -1]
        run.assumed.append(f"{given} overlaps what {other} does, too")
    return shared or batches or weights


def _layers(run: Options, layers: int) -> dict[str, int]:
    """Which layers have experts; one number is of one such layer in every so many, the first of them."""
    value = run.layer_list("moe-layer-freq", layers)
    if value is None or isinstance(value, int):
        return {"every": value, "offset": 1} if value and value > 1 else {}
    if any(number not in (0, 1) for number in value):
        raise run.error("moe-layer-freq", "is to have 1 for a layer with experts and 0 for one without")
    where = places([number == 1 for number in value])
    if where is None:
        what = "experts in every n-th layer behind the first dense ones are modelled, and these come otherwise"
        raise run.error("moe-layer-freq", what if any(value) else "has experts in no layer; leave num-experts out")
    return where


def add_latent_attention(run: Options, model: dict[str, Any]) -> None:
    """Puts ``mla`` into the fields of a model, in place of its heads' widths."""
    flag = "multi-latent-attention"
    if not run.flag(flag):
        run.without(flag, "attention is plain", ("q-lora-rank", *LATENT))
        return
    if model["kv_heads"] != model["heads"]:
        raise run.error(flag, "and group-query-attention exclude each other; keep one")
    if model["bias"] is not False:
        raise run.error(flag, "with biases is not modelled; add --disable-bias-linear, without --add-qkv-bias")
    if not run.flag("qk-layernorm"):
        run.assumed.append(f"{flag} has norms of its narrow vectors, though qk-layernorm is not given")
    for name in ("kv_heads", "head_dim", "qk_norm"):
        model.pop(name, None)
    if model["position"] == "none":
        model["position"] = "rope"  # as latent attention has it at any rate
    model["mla"] = {field: run.get(name) or default for name, (field, default) in LATENT.items()}
    if run.get("q-lora-rank"):
        model["mla"]["q_lora_rank"] = run.get("q-lora-rank")


def window_of(run: Options, layers: int, sequence: int) -> dict[str, int]:
    """``attention_window`` and ``full_attention_every``, where it is shorter than the sequence.

    A window of (128, 0) is so many tokens before a token, besides itself.
    """
    text, skip = run.get("window-size"), run.layer_list("window-attn-skip-freq", layers)
    if text is None:
        return {}
    parts = text.strip("() ").replace(",", " ").split()
    if len(parts) == 1 and parts[0].isdecimal():
        run.assumed.append(f"--window-size {parts[0]}: a window of so many tokens before each, as {parts[0]},0 says it")
        parts.append("0")
    if len(parts) != 2 or not parts[0].isdecimal() or len(parts[0]) > 9 or parts[1] != "0":
        raise run.error("window-size", f"{text[:40]!r} is not modelled; a window of tokens before is, as in 128,0")
    window, every = int(parts[0]) + 1, _full_every(run, skip)
    if window >= sequence or every == 1:
        return {}
    return {"attention_window": window, **({"full_attention_every": every} if every else {})}


def _full_every(run: Options, skip: Value | None) -> int:
    """Every which layer has no window (is_layer_window_attention, core/transformer/utils.py); 0: none."""
    if skip is None or isinstance(skip, int):
        return skip or 0
    if all(skip):
        return 0
    full = places([not windowed for windowed in skip])
    if full is None or full.keys() - {"every"}:
        raise run.error("window-attn-skip-freq", "every n-th layer without a window is modelled; these come otherwise")
    return full.get("every", 1)


# --- training: batch, precision, attention, recompute -----------------------------------------------------------------


def training_of(run: Options, gpus: int | None, parallel: dict[str, Any]) -> dict[str, Any]:
    """The fields of ``Training``; InputError for a batch that is not said and formats that do not go together."""
    micro = run.needed("micro-batch-size", "batch-size")
    batch = batch_of(run)
    if batch is None:
        fixed = parallel["tp"] * parallel["pp"] * parallel.get("cp", 1)
        if not gpus or gpus % fixed:
            raise InputError(f"{run.source}: global-batch-size is missing, and follows from dp only; add it, or gpus")
        batch = micro * (gpus // fixed)
        run.assumed.append(f"a global batch of one micro batch for each of the {gpus // fixed} replicas")
    half = "bf16-mixed" if run.flag("bf16") else "fp16-mixed" if run.flag("fp16") else "fp32"
    training: dict[str, Any] = {"global_batch": batch, "micro_batch": micro, "precision": half}
    for name, narrow in (("fp8-format", _fp8(run)), ("fp4-format", "nvfp4-mixed")):
        if run.get(name):
            if half == "fp16-mixed":
                raise run.error(name, "needs --bf16: all but the products of layers is in bf16")
            if half == "fp32":
                run.assumed.append(f"bf16 in all but the products of layers, though {name} is given without --bf16")
            training["precision"] = narrow
    training |= _muon(run)
    training |= recompute_of(run)
    training["attention"] = attention_of(run)
    dropout = [run.get(name) for name in ("hidden-dropout", "attention-dropout")]
    rates = [0.1 if rate is None else rate for rate in dropout]
    if bool(rates[0]) != bool(rates[1]):
        run.assumed.append("dropout is taken to be everywhere, though only one of hidden and attention dropout is on")
    training["dropout"] = any(rates)
    return training | _recipe_of(run, half, training["precision"])


def batch_of(run: Options) -> int | None:
    """Return the global batch, which is the last of a schedule (``0:384 200B:768``); None where nothing sets it."""
    name = "step-batch-size-schedule"
    text, batch = run.get(name), run.get("global-batch-size")
    if text is None:
        return int(batch) if batch else None
    steps = [_STEP.fullmatch(word) for word in re.split(r"[\s,]+", text.strip(" '\"[]"))]
    if None in steps:
        raise run.error(
            name, f"{text[:60]!r} is no schedule; write THRESHOLD:BATCH for each step, as in 0:384 200B:768"
        )
    *before, last = [int(step[1]) for step in steps if step]
    if batch not in (None, last):
        raise run.error(name, f"ends with {last}, and global-batch-size is {batch}; keep one of the two")
    if before:
        run.assumed.append(f"the step is one with the last global batch of {name}, {last}, after {before}")
    return last


def _fp8(run: Options) -> str:
    recipe = run.get("fp8-recipe")
    if recipe == "blockwise" and run.get("fp8-format"):
        run.assumed.append("products in fp8 take as long with scales of blocks (blockwise) as with one for each tensor")
    return "mxfp8-mixed" if recipe == "mxfp8" else "fp8-mixed"


def _recipe_of(run: Options, half: str, precision: str) -> dict[str, str]:
    """The memory recipe, where options say which: of gradients in 16 bits, fp8 weights and small optimizer states."""
    wide = run.flag("accumulate-allreduce-grads-in-fp32") or half == "bf16-mixed"
    narrow = (
        run.values.get("accumulate-allreduce-grads-in-fp32") is False
        or run.flag("grad-reduce-in-bf16")
        or run.get("megatron-fsdp-grad-comm-dtype") == "bf16"
    )
    recipe = ""
    if precision == "nvfp4-mixed" and narrow:
        recipe = "nvfp4-17"
    elif precision in ("fp8-mixed", "mxfp8-mixed"):
        kept = run.flag("fp8-param-gather")
        recipe = ("fp8-params-16" if kept else "fp8-18") if narrow else "fp8-params-18" if kept else ""
    elif precision == half != "fp32":
        recipe = "mixed-18" if wide and not narrow else "mixed-16"
    usual = recipe or {"fp32": "fp32-16", "nvfp4-mixed": "nvfp4-19"}.get(precision, "fp8-20")
    aware = state_recipe(run, usual)
    return {"memory_recipe": aware} if aware != usual else {"memory_recipe": recipe} if recipe else {}


def _muon(run: Options) -> dict[str, Any]:
    """The optimizer where it is Muon, sharded as ``parallel_of`` says; what speaks of it says nothing without."""
    iterations, tp = run.get("muon-num-ns-steps"), run.get("muon-tp-mode")
    if run.get("optimizer") not in ("muon", "dist_muon"):
        run.without("optimizer muon", "adam updates all weights", ("muon-num-ns-steps", "muon-tp-mode"))
        return {}
    if tp == "distributed":
        run.assumed.append("each tp rank orthogonalizes whole matrices, though muon-tp-mode is distributed")
    muon = {"iterations": iterations, "tp_mode": "duplicated" if tp in ("duplicated", "distributed") else None}
    muon = {name: value for name, value in muon.items() if value is not None}
    return {"optimizer": "muon", **({"muon": muon} if muon else {})}


def require_adam(run: Options) -> None:
    """InputError for another optimizer."""
    if run.get("optimizer") == "sgd":
        raise run.error("optimizer", "sgd is not modelled; adam and muon are")
