"""The ``training`` and ``memory`` sections of a scenario, from Megatron-LM's options."""

from __future__ import annotations

import re
from typing import Any, get_args

from simcluster.base.errors import InputError
from simcluster.importers.deepspeed import HOST_UPDATE, HOST_UPDATE_ASSUMED
from simcluster.importers.megatron_options import MegatronOptions
from simcluster.model.kernel_choices import QUANTIZED, RECOMPUTE_MODULES, OffloadModule, unusable_recompute_modules
from simcluster.model.recipes import recipe_named

_BATCH_STEP = re.compile(r"[\d.]+[KMBTkmbt]?:(\d{1,9})")
_OLD_OPTIONS = ("deepspeed", "data-impl", "DDP-impl", "checkpoint-activations", "activations-checkpoint-method")
"""Options of Megatron versions that default to their layers instead of Transformer Engine's."""
_FORMAT_OPTIONS = ("bf16", "fp16", "fp8-format", "fp4-format")
"""Format options that the fused attention kernel supports; without them all is in fp32."""
_BYTES = {"fp32": 4, "float32": 4, "float": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2, "fp8": 1}
_SCALINGS = {"tensorwise": "current", "blockwise": "blockwise"}
_OFFLOAD_MODULES: tuple[str, ...] = get_args(OffloadModule)


def training_section(run: MegatronOptions, gpus: int | None, parallel: dict[str, Any]) -> dict[str, Any]:
    """Return the scenario's ``training`` section (batch, precision, optimizer, recompute)."""
    micro, batch = run.require("micro-batch-size", "batch-size"), global_batch_size(run)
    if batch is None:
        fixed = parallel["tp"] * parallel["pp"] * parallel.get("cp", 1)
        if not gpus or gpus % fixed:
            raise InputError(f"{run.source}: global-batch-size is missing, and dp is unknown; add it, or --gpus")
        batch = micro * (gpus // fixed)
        run.assumed.append(f"a global batch of one micro batch per replica, {gpus // fixed} replicas")
    half = "bf16-mixed" if run.is_on("bf16") else "fp16-mixed" if run.is_on("fp16") else "fp32"
    recipe, precision = run.get("fp8-recipe"), half
    fp8 = "mxfp8-mixed" if recipe == "mxfp8" else "fp8-mixed"
    for name, narrow in (("fp8-format", fp8), ("fp4-format", "nvfp4-mixed")):
        if run.get(name):
            if half == "fp16-mixed":
                raise run.error(name, "needs --bf16: all but the layers' matmuls are in bf16")
            if half == "fp32":
                run.assumed.append(f"bf16 in all but the layers' matmuls, although {name} is given without --bf16")
            precision = narrow
    training: dict[str, Any] = {"global_batch": batch, "micro_batch": micro, "precision": precision}
    if precision == "fp8-mixed" and recipe in _SCALINGS:
        training["fp8_scaling"] = _SCALINGS[recipe]
    if precision in QUANTIZED and run.is_on("first-last-layers-bf16"):
        ends = (run.get(f"num-layers-at-{end}-in-bf16") for end in ("start", "end"))
        training["layers_in_16_bits"] = [1 if count is None else count for count in ends]
    training |= _muon_fields(run) | recompute_fields(run) | {"attention": attention_kernel(run)}
    rates = [0.1 if (rate := run.get(name)) is None else rate for name in ("hidden-dropout", "attention-dropout")]
    if bool(rates[0]) != bool(rates[1]):
        run.assumed.append("dropout is assumed everywhere, although only one of hidden and attention dropout is on")
    training["dropout"] = any(rates)
    return training | _memory_recipe_field(run, half, precision)


def global_batch_size(run: MegatronOptions) -> int | None:
    """Return the global batch size (the last one of a batch-size ramp-up); None if no option sets the size."""
    name = "step-batch-size-schedule"
    text, batch = run.get(name), run.get("global-batch-size")
    if text is None:
        return int(batch) if batch else None
    steps = [_BATCH_STEP.fullmatch(word) for word in re.split(r"[\s,]+", text.strip(" '\"[]"))]
    if None in steps:
        raise run.error(name, f"{text[:60]!r} is not a schedule; write THRESHOLD:BATCH words, as in 0:384 200B:768")
    *before, last = [int(step[1]) for step in steps if step]
    if batch not in (None, last):
        raise run.error(name, f"ends with {last}, but global-batch-size is {batch}; keep one of the two")
    if before:
        run.assumed.append(f"the step has the last global batch of {name}, {last} (earlier: {before})")
    return last


def _muon_fields(run: MegatronOptions) -> dict[str, Any]:
    """Return Muon's optimizer settings; for other optimizers, record that Muon's options have no effect."""
    tp = run.get("muon-tp-mode")
    if run.get("optimizer") not in ("muon", "dist_muon"):
        run.drop_options("optimizer muon", "adam updates all weights", ("muon-num-ns-steps", "muon-tp-mode"))
        return {}
    if tp == "distributed":
        run.assumed.append("each tp rank orthogonalizes whole matrices, although muon-tp-mode is distributed")
    mode = "duplicated" if tp in ("duplicated", "distributed") else None
    muon = {"iterations": run.get("muon-num-ns-steps"), "tp_mode": mode}
    muon = {name: value for name, value in muon.items() if value is not None}
    return {"optimizer": "muon", **({"muon": muon} if muon else {})}


def refuse_sgd(run: MegatronOptions) -> None:
    """Raise InputError for the sgd optimizer, which is not modelled."""
    if run.get("optimizer") == "sgd":
        raise run.error("optimizer", "sgd is not modelled; use adam or muon")


# --- attention: one kernel or several ---------------------------------------------------------------------------------


def attention_kernel(run: MegatronOptions) -> str:
    """Return ``fused`` if core attention is a single kernel, ``unfused`` if it is several."""
    backend = "flash" if run.is_on("use-flash-attn") else run.get("attention-backend") or "auto"
    if backend == "auto":
        old = _first_pre_2024_option(run) if "transformer-impl" not in run.given else ""
        if old:
            run.assumed.append(f"attention is unfused, as in versions with {old} without use-flash-attn")
        backend = "unfused" if old or run.get("transformer-impl") == "local" else "fused"
    if backend in ("unfused", "local"):
        return "unfused"
    if (run.get("context-parallel-size") or 1) == 1 and not any(run.get(name) for name in _FORMAT_OPTIONS):
        run.assumed.append("attention is unfused: without --bf16 or --fp16 the fused kernel would need fp32 support")
        return "unfused"
    return "fused"


def _first_pre_2024_option(run: MegatronOptions) -> str:
    """Return the first option that only Megatron-LM versions before 2024 have; "" if no option is that old."""
    return next((name for name in _OLD_OPTIONS if name in run.given), "")


def _uses_legacy_flash_attention(run: MegatronOptions) -> bool:
    """Return whether attention is legacy layers' flash kernel, which selective recompute does not recompute.

    ``ParallelAttention.forward`` (megatron/legacy/model/transformer.py, and Megatron-DeepSpeed's) looks at
    ``checkpoint_core_attention`` only where ``use_flash_attn`` is off. Layers of Transformer Engine and of
    Megatron-Core look at it in any case.
    """
    if not run.is_on("use-flash-attn") or run.is_on("use-mcore-models"):
        return False
    local, other = run.get("transformer-impl") == "local", run.get("transformer-impl") not in (None, "local")
    return not other and (bool(_first_pre_2024_option(run)) or (local and run.is_on("use-legacy-models")))


# --- recomputation ----------------------------------------------------------------------------------------------------


def recompute_fields(run: MegatronOptions) -> dict[str, Any]:
    """Return the scenario's activation recompute settings."""
    granularity, method = run.get("recompute-granularity"), run.get("recompute-method")
    before = run.get("activations-checkpoint-method")
    if run.is_on("recompute-activations"):
        granularity = "selective"
    if run.is_on("checkpoint-activations") or (before and not granularity):
        granularity = "full"
    if granularity == "full":
        method = method or before
        none = method == "block" and run.get("recompute-num-layers") == 0
        return {} if none else {"recompute": "full", **_recomputed_layer_fields(run, method)}
    if granularity == "selective":
        return _selective_recompute_fields(run)
    experts = run.is_on("moe-layer-recompute") and run.get("num-experts") is not None
    return {"recompute": ["moe"]} if experts else {}


def _parse_recompute_modules(run: MegatronOptions, name: str, default: str, known: tuple[str, ...]) -> list[str]:
    """Return the module names in an option's value; raise InputError for an unknown name."""
    modules = [word.strip("[]\"'") for word in (run.get(name) or default).replace(",", " ").split()]
    strange = next((module for module in modules if module not in known), None)
    if strange is not None:
        raise run.error(name, f"{strange[:40]!r} is unknown; known: {', '.join(known)}")
    return modules


def _selective_recompute_fields(run: MegatronOptions) -> dict[str, Any]:
    """Return the scenario field for selective recompute: of core attention, or of the modules that are listed."""
    modules = _parse_recompute_modules(run, "recompute-modules", "core_attn", tuple(RECOMPUTE_MODULES))
    experts = run.get("num-experts") is not None
    lacks = unusable_recompute_modules(
        experts=experts,
        shared=experts and bool(run.get("moe-shared-expert-intermediate-size")),
        dense=not experts or run.get("moe-layer-freq") not in (None, 1, "1"),
        latent=run.is_on("multi-latent-attention"),
    )
    modules = [module for module in dict.fromkeys(modules) if module not in lacks]
    if modules != ["core_attn"]:
        return {"recompute": modules} if modules else {}
    if _uses_legacy_flash_attention(run):
        left_out = "it excludes the flash attention of legacy layers"
        run.assumed.append(f"selective recompute recomputes nothing: {left_out}")
        return {}
    return {"recompute": "selective"}


def _recomputed_layer_fields(run: MegatronOptions, method: str | None) -> dict[str, Any]:
    """Return the fields that select the layers to recompute: all layers, or a number per stage or chunk."""
    number, layers = run.get("recompute-num-layers"), run.get("num-layers", "encoder-num-layers") or 1
    if method != "block":
        if number and number > 1:
            run.assumed.append(f"inputs of all layers are kept, although Megatron-LM keeps one in {number}")
        return {}
    stages, chunks = run.get("pipeline-model-parallel-size") or 1, run.get("num-virtual-stages-per-pipeline-rank") or 1
    per = run.get("num-layers-per-virtual-pipeline-stage")
    options = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
    ends = [size for size in map(run.get, options) if size]
    held = [per or max(1, layers // (stages * chunks))]
    if ends and not per and chunks == 1 and stages > len(ends) and layers > sum(ends):
        held = [*ends, (layers - sum(ends)) // (stages - len(ends))]
    again = [min(number or 1, each) for each in held]
    every = round(sum(held) / sum(again))
    if [each * every for each in again] != held:
        what = "all layers are" if every == 1 else f"one layer in {every} is"
        sizes = f"{min(held)} to {max(held)}" if min(held) < max(held) else str(held[0])
        run.assumed.append(f"{what} recomputed, nearest to {number or 1} of the {sizes} per stage or chunk")
    return {"recompute_every": every} if every > 1 else {}


# --- number formats in memory -----------------------------------------------------------------------------------------


def _memory_recipe_field(run: MegatronOptions, base_format: str, precision: str) -> dict[str, str]:
    """Return the memory recipe (bytes per parameter) as a field if it differs from the precision's default recipe."""
    accumulates = run.values.get("accumulate-allreduce-grads-in-fp32")
    narrow = (
        accumulates is False or run.is_on("grad-reduce-in-bf16") or run.get("megatron-fsdp-grad-comm-dtype") == "bf16"
    )
    recipe = ""
    if precision == "nvfp4-mixed":
        recipe = "nvfp4-17" if narrow else ""
    elif precision in ("fp8-mixed", "mxfp8-mixed"):
        kept = run.is_on("fp8-param-gather")
        recipe = ("fp8-params-16" if kept else "fp8-18") if narrow else "fp8-params-18" if kept else ""
    elif base_format != "fp32":
        recipe = "mixed-18" if (accumulates or base_format == "bf16-mixed") and not narrow else "mixed-16"
    usual = recipe or {"fp32": "fp32-16", "nvfp4-mixed": "nvfp4-19"}.get(precision, "fp8-20")
    aware = _precision_aware_recipe(run, usual)
    return {"memory_recipe": aware} if aware != usual else {"memory_recipe": recipe} if recipe else {}


def _precision_aware_recipe(run: MegatronOptions, default: str) -> str:
    """Return the memory recipe nearest to a precision-aware optimizer's formats; ``default`` for other optimizers."""
    if not run.is_on("use-precision-aware-optimizer") or default == "fp32-16":
        return default
    names = ("main-grads-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
    gradient, *moments = (_element_bytes(run, name) for name in names)
    if default == "mixed-16":  # the optimizer reads the reduced buffer (decoupled_grad, distrib_optimizer.py)
        gradient = 2
    small = sum(moments) < 8 and not default.startswith("nvfp4")
    if sum(moments) != (4 if small else 8):
        run.assumed.append(
            f"both moments are in {'bf16' if small else 'fp32'}, the format nearest to {names[1]} and {names[2]} "
            f"({sum(moments)} B together)"
        )
    if not default.startswith(("fp8", "nvfp4")):
        known = {(4, False): "aware-16", (2, False): "aware-14", (4, True): "aware-12"}
        return known.get((gradient, small), "aware-10")
    found = ("fp8-params-14" if default.startswith("fp8-params") else "fp8-aware-14") if small else default
    if gradient != 4 and recipe_named(found).gradient == 4:
        run.assumed.append(f"gradients in fp32 as in recipe {found}, although main-grads-dtype differs")
    return found


def _element_bytes(run: MegatronOptions, name: str) -> int:
    """Return the bytes per element of the number format that an option names (default: fp32)."""
    word = str(run.get(name) or "fp32").removeprefix("torch.")
    if word not in _BYTES:
        raise run.error(name, f"{word[:40]!r} is unknown; known: {', '.join(_BYTES)}")
    if name == "main-grads-dtype" and _BYTES[word] < 2:
        raise run.error(name, "gradients must be in fp32 or bf16")
    return _BYTES[word]


def memory_section(run: MegatronOptions) -> dict[str, Any]:
    """Return the scenario's ``memory`` section (logits, activation inputs, offload to the host)."""
    memory = {
        "logits": "in-place" if run.is_on("cross-entropy-loss-fusion") else None,
        "activation_input": "fp8" if run.is_on("activation-func-fp8-input-store") else None,
        "offload": _activation_offload_fields(run) | _optimizer_offload_fields(run),
    }
    return {name: value for name, value in memory.items() if value}


def _activation_offload_fields(run: MegatronOptions) -> dict[str, Any]:
    if run.is_on("cpu-offloading"):
        layers, count = run.require("num-layers", "encoder-num-layers"), run.get("cpu-offloading-num-layers") or 0
        again = run.get("recompute-granularity") or run.is_on("recompute-activations", "checkpoint-activations")
        staged = (run.get("pipeline-model-parallel-size") or 1) > 1
        if staged or again:
            against = "only without a pipeline" if staged else "only without recomputation"
            raise run.error("cpu-offloading", f"Megatron offloads layers {against}; remove one of the two")
        if count >= layers:
            what = f"is {count} of {layers} layers, but the last one stays on the GPU; use at most {layers - 1}"
            raise run.error("cpu-offloading-num-layers", what)
        return {"activations": count / layers} if count else {}
    if not run.is_on("fine-grained-activation-offloading"):
        return {}
    modules = _parse_recompute_modules(run, "offload-modules", "", _OFFLOAD_MODULES)
    if run.get("num-experts") is None:
        modules = [module for module in modules if module not in ("expert_fc1", "moe_act")]
    if modules:
        when = "after a microbatch's forward, and layer by layer if its backward follows at once"
        run.assumed.append(f"activations are offloaded {when}")
    return {"modules": modules} if modules else {}


def _optimizer_offload_fields(run: MegatronOptions) -> dict[str, str]:
    if run.is_on("swap-optimizer"):
        return {"optimizer": "stream"}
    part = run.get("optimizer-offload-fraction")
    if not run.is_on("optimizer-cpu-offload") or part == 0:
        return {}
    if part not in (None, 1):
        raise run.error("optimizer-offload-fraction", f"{part} is not modelled; use 1 (all of the state) or 0")
    run.assumed.append(HOST_UPDATE_ASSUMED)
    return dict(HOST_UPDATE)
