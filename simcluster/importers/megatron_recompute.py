"""What is run again in the backward, from Megatron-LM's options."""

from __future__ import annotations

from typing import Any

from simcluster.importers.megatron_attention import is_flash_of_legacy_layers
from simcluster.importers.option_values import Options
from simcluster.model.recomputed import RECOMPUTE_MODULES, absent_modules


def recompute_of(run: Options) -> dict[str, Any]:
    """Fields of ``Training``; InputError for parts of a layer that are not known."""
    granularity, method = run.get("recompute-granularity"), run.get("recompute-method")
    if run.flag("recompute-activations"):
        granularity = "selective"
    if run.flag("checkpoint-activations") or (run.get("activations-checkpoint-method") and not granularity):
        granularity = "full"
    if granularity == "full":
        method = method or run.get("activations-checkpoint-method")
        none = method == "block" and run.get("recompute-num-layers") == 0
        return {} if none else {"recompute": "full", **_layers(run, method)}
    if granularity == "selective":
        return _parts(run)
    if run.flag("moe-layer-recompute") and run.get("num-experts") is not None:
        return {"recompute": ["moe"]}
    return {"recompute": granularity} if granularity else {}


def _parts(run: Options) -> dict[str, Any]:
    """Of selective recomputation: the core attention, or the modules that are named and that the model has."""
    words = (run.get("recompute-modules") or "core_attn").replace(",", " ").split()
    modules = [word.strip("[]\"'") for word in words]
    strange = next((module for module in modules if module not in RECOMPUTE_MODULES), None)
    if strange is not None:
        raise run.error("recompute-modules", f"{strange[:40]!r} is not known; known: {', '.join(RECOMPUTE_MODULES)}")
    experts = run.get("num-experts") is not None
    lacks = absent_modules(
        experts=experts,
        shared=experts and bool(run.get("moe-shared-expert-intermediate-size")),
        dense=not experts or run.get("moe-layer-freq") not in (None, 1, "1"),
        latent=run.flag("multi-latent-attention"),
    )
    modules = [module for module in dict.fromkeys(modules) if module not in lacks]
    if modules == ["core_attn"] and is_flash_of_legacy_layers(run):
        left_out = "the flash attention of legacy layers is left out of it"
        run.assumed.append(f"selective recompute runs nothing again: {left_out}")
        return {}
    if modules == ["core_attn"]:
        return {"recompute": "selective"}
    return {"recompute": modules} if modules else {}


def _layers(run: Options, method: str | None) -> dict[str, Any]:
    """Which layers are run again: all, or with method block so many of each stage."""
    number, layers = run.get("recompute-num-layers"), run.get("num-layers", "encoder-num-layers")
    if method != "block":
        if number and number > 1:
            run.assumed.append(f"the input of each layer is kept, though of {number} together only the first one's is")
        return {}
    held = _held(run, layers or 1)
    again = [min(number or 1, each) for each in held]
    every = round(sum(held) / sum(again))
    if [each * every for each in again] != held:
        what = "all layers are" if every == 1 else f"one layer of {every} is"
        sizes = f"{min(held)} to {max(held)}" if min(held) < max(held) else str(held[0])
        run.assumed.append(f"{what} run again, nearest to {number or 1} of the {sizes} of a stage or chunk")
    return {"recompute_every": every} if every > 1 else {}


def _held(run: Options, layers: int) -> list[int]:
    """Layers of each stage, or of one chunk where a stage has several."""
    stages = run.get("pipeline-model-parallel-size") or 1
    per = run.get("num-layers-per-virtual-pipeline-stage")
    chunks = run.get("num-virtual-stages-per-pipeline-rank") or 1
    options = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
    ends = [size for size in map(run.get, options) if size]
    middle = stages - len(ends)
    if ends and not per and chunks == 1 and middle > 0 and layers > sum(ends):
        return [*ends, *[(layers - sum(ends)) // middle] * middle]
    return [per or max(1, layers // (stages * chunks))]
