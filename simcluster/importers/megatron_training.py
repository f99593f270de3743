"""The training section from Megatron-LM's options: batch, precision, attention, recompute."""

from __future__ import annotations

from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.option_values import Options


def training_of(run: Options, gpus: int | None, parallel: dict[str, Any]) -> dict[str, Any]:
    """The fields of ``Training``; InputError for a batch that is not said and formats that do not go together."""
    micro = run.needed("micro-batch-size", "batch-size")
    batch = run.get("global-batch-size")
    if batch is None:
        fixed = parallel["tp"] * parallel["pp"] * parallel.get("cp", 1)
        if not gpus or gpus % fixed:
            raise InputError(f"{run.source}: global-batch-size is missing, and follows from dp only; add it, or gpus")
        batch = micro * (gpus // fixed)
        run.assumed.append(f"a global batch of one micro batch for each of the {gpus // fixed} replicas")
    half = "bf16-mixed" if run.flag("bf16") else "fp16-mixed" if run.flag("fp16") else "fp32"
    training: dict[str, Any] = {"global_batch": batch, "micro_batch": micro, "precision": half}
    if run.get("fp8-format"):
        if not run.flag("bf16"):
            raise run.error("fp8-format", "needs --bf16: all but the products of layers is in bf16")
        training["precision"] = "fp8-mixed"
        if run.flag("fp8-param-gather"):
            training["memory_recipe"] = "fp8-params-18"
    training |= recompute_of(run)
    training["attention"] = attention_of(run)
    dropout = [run.get(name) for name in ("hidden-dropout", "attention-dropout")]
    rates = [0.1 if rate is None else rate for rate in dropout]
    if bool(rates[0]) != bool(rates[1]):
        run.assumed.append("dropout is taken to be everywhere, though only one of hidden and attention dropout is on")
    training["dropout"] = any(rates)
    if "memory_recipe" not in training and half != "fp32" and training["precision"] != "fp8-mixed":
        wide = run.flag("accumulate-allreduce-grads-in-fp32") or (half == "bf16-mixed")
        training["memory_recipe"] = "mixed-18" if wide and not run.flag("grad-reduce-in-bf16") else "mixed-16"
    return training


def attention_of(run: Options) -> str:
    """Whether the core of attention is one kernel."""
    backend = run.get("attention-backend") or "auto"
    if run.flag("use-flash-attn"):
        return "fused"
    if backend in ("unfused", "local"):
        return "unfused"
    return "unfused" if backend == "auto" and run.get("transformer-impl") == "local" else "fused"


def recompute_of(run: Options) -> dict[str, Any]:
    """What is run again in the backward; InputError for ways that are not modelled."""
    granularity = run.get("recompute-granularity")
    if run.flag("recompute-activations"):
        granularity = "selective"
    if run.flag("checkpoint-activations"):
        granularity = "full"
    if granularity != "full":
        modules = (run.get("recompute-modules") or "core_attn").split()
        if granularity == "selective" and modules != ["core_attn"]:
            raise run.error("recompute-modules", f"{' '.join(modules)[:60]} is not modelled; core_attn is")
        return {"recompute": granularity} if granularity else {}
    number = run.get("recompute-num-layers") or 1
    method = run.get("recompute-method")
    if method == "block":
        raise run.error("recompute-method", "block recomputes some layers of each stage, which is not modelled")
    if number > 1:
        raise run.error("recompute-num-layers", f"{number} layers kept as one is not modelled; 1 is")
    return {"recompute": "full"}


def require_adam(run: Options) -> None:
    """InputError for another optimizer."""
    if run.get("optimizer") == "sgd":
        raise run.error("optimizer", "sgd is not modelled; adam is")
