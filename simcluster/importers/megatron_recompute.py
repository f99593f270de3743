"""What is run again in the backward, from Megatron-LM's options; what is not modelled becomes the nearest, told."""

from __future__ import annotations

from typing import Any

from simcluster.importers.option_values import Options

_PARTS = {"core_attn": 1, "layernorm": 0, "moe_act": 0, "mla_up_proj": 0, "shared_experts": 0, "mlp": 2, "moe": 2}
"""Parts of a layer that can be run again, and how much of its forward that is: 2 most, 1 as is modelled, 0 little."""


_OF_EXPERTS = ("moe", "moe_act", "shared_experts")


def recompute_of(run: Options) -> dict[str, Any]:
    """Fields of ``Training``; InputError for parts of a layer that are not known."""
    granularity, method = run.get("recompute-granularity"), run.get("recompute-method")
    if run.flag("recompute-activations"):
        granularity = "selective"
    if run.flag("checkpoint-activations") or (run.get("activations-checkpoint-method") and not granularity):
        granularity = "full"
    if granularity == "full":
        return {"recompute": "full", **_layers(run, method or run.get("activations-checkpoint-method"))}
    if granularity == "selective":
        return _parts(run)
    if run.flag("moe-layer-recompute"):
        run.assumed.append("whole layers are run again, though moe-layer-recompute runs their experts again alone")
        return {"recompute": "full"}
    return {"recompute": granularity} if granularity else {}


def _parts(run: Options) -> dict[str, Any]:
    """Of selective recomputation: the core attention, or what is nearest to the parts that are named."""
    words = (run.get("recompute-modules") or "core_attn").replace(",", " ").split()
    modules = [word.strip("[]\"'") for word in words]
    strange = next((module for module in modules if module not in _PARTS), None)
    if strange is not None:
        raise run.error("recompute-modules", f"{strange[:40]!r} is not known; known: {', '.join(_PARTS)}")
    if run.get("num-experts") is None:
        modules = [module for module in modules if module not in _OF_EXPERTS] or ["none"]
    if modules == ["none"]:
        return {}
    if modules == ["core_attn"]:
        return {"recompute": "selective"}
    most = max(_PARTS[module] for module in modules)
    names = ", ".join(modules)
    if most == 2:
        run.assumed.append(f"whole layers are run again, though recompute-modules names parts of them alone: {names}")
        return {"recompute": "full"}
    others = ", ".join(module for module in modules if module != "core_attn")
    run.assumed.append(f"{others} (recompute-modules) are not run again, which is little: the memory is rather much")
    return {"recompute": "selective"} if most else {}


def _layers(run: Options, method: str | None) -> dict[str, Any]:
    """Which layers are run again: all, or with method block so many of each stage."""
    number, layers = run.get("recompute-num-layers"), run.get("num-layers", "encoder-num-layers")
    if method != "block":
        if number and number > 1:
            run.assumed.append(f"the input of each layer is kept, though of {number} together only the first one's is")
        return {}
    stages = run.get("pipeline-model-parallel-size") or 1
    per = run.get("num-layers-per-virtual-pipeline-stage")
    chunks = run.get("num-virtual-stages-per-pipeline-rank") or 1
    held = per or max(1, (layers or 1) // (stages * chunks))
    every = round(held / min(number or 1, held))
    if every * (number or 1) != held:
        run.assumed.append(
            f"every {every}th layer is run again, nearest to {number or 1} of the {held} of a stage or chunk"
        )
    return {"recompute_every": every} if every > 1 else {}
