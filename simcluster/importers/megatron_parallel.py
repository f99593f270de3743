"""Parallel layout, GPU count, overlap and kernel fusions of a scenario, from Megatron-LM's options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from simcluster.importers.megatron_options import MegatronOptions
from simcluster.importers.megatron_training import global_batch_size
from simcluster.model.recipes import recipe_named

_SHARDING_STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
_CONTEXT_KINDS = {"p2p": None, "all_gather": "all_gather", "a2a": "all_to_all", "a2a+p2p": "hybrid"}  # None: ring


def choose_gpu_count(
    run: MegatronOptions, parallel: Mapping[str, Any], launched: int | None, available: int | None,
    node_gpus: int | None = None,
) -> int | None:  # fmt: skip
    """Return the launched GPU count if it fits the layout, else a GPU count that does; None means all GPUs."""
    tp, pp, cp, ep = (parallel.get(axis, 1) for axis in ("tp", "pp", "cp", "ep"))
    dense = tp * pp * cp
    least = math.lcm(dense, pp * ep * parallel.get("etp", tp) if {"ep", "etp"} & parallel.keys() else 1)
    least *= _optimizer_instance_count(run) if parallel["zero"] == 3 else 1
    micro = run.values.get("micro-batch-size") or run.values.get("batch-size") or 1
    batch = run.problems.attempt(global_batch_size, run)

    def fits_layout(gpus: int) -> bool:
        return gpus % least == 0 and (not batch or batch % (micro * (gpus // dense)) == 0)

    if launched and fits_layout(launched):
        return launched
    if not launched and (available is None or fits_layout(available)):
        return None
    whole = node_gpus if node_gpus and not launched and fits_layout(node_gpus) else least
    if whole == launched:
        return whole  # the layout fits; the batch is reported later
    sizes = {"tp": tp, "pp": pp, "cp": cp, "ep": ep}
    what = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1 or axis == "tp")
    against = "are too few" if (launched or 0) < least else "are not a multiple of it, or do not divide the batch"
    why = f"the {launched} that the script starts {against}" if launched else f"the cluster has {available}"
    which = "the fewest" if whole == least else "one node"
    run.assumed.append(f"{whole} GPUs, {which} for {what}: {why} (--gpus sets it)")
    return whole


def parallel_section(run: MegatronOptions) -> dict[str, Any]:
    """Return the scenario's ``parallel`` section from Megatron-LM options."""
    tp, deepspeed = run.get("tensor-model-parallel-size", "model-parallel-size") or 1, run.is_on("deepspeed")
    experts = run.get("num-experts")
    if experts is None:
        run.drop_options("num-experts", "the model is dense", ("expert-tensor-parallel-size",))
    uncut = deepspeed and experts and tp > 1 and not run.is_on("enable-expert-tensor-parallelism")
    cp = run.get("context-parallel-size") or run.get("ds-sequence-parallel-size")
    zero = max(
        _fsdp_zero_stage(run),
        int(run.get("zero-stage") or 0),
        int(run.is_on("use-distributed-optimizer") or run.get("optimizer") == "dist_muon"),
    )
    if deepspeed and run.is_on("bf16") and zero == 0:
        zero = 1
        run.assumed.append("optimizer state is sharded even with ZeRO stage 0, as DeepSpeed does with bf16")
    if run.is_on("sequence-parallel") and tp == 1:
        run.assumed.append("sequence parallelism is off since tp is 1, as in Megatron-LM")
    if (copies := _optimizer_instance_count(run)) > 1 and zero < 3:
        run.assumed.append(f"optimizer states are sharded over all of dp, not within {copies} instances: less memory")
    found = {
        "tp": tp, "pp": run.get("pipeline-model-parallel-size") or 1, "cp": cp,
        "ep": run.get("expert-model-parallel-size"), "etp": 1 if uncut else run.get("expert-tensor-parallel-size"),
        "expert_dispatch": _token_dispatch_fields(run), **_context_parallel_comm(run, cp or 1),
        "sequence_parallel": run.is_on("sequence-parallel") and tp > 1, "zero": zero,
        "order": ["tp", "cp", "pp", "dp"] if run.is_on("use-tp-pp-dp-mapping") else None,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value or name == "zero"}


def _optimizer_instance_count(run: MegatronOptions) -> int:
    return int(run.get("num-distributed-optimizer-instances") or 1)


def set_etp_to_one_if_needed(run: MegatronOptions, parallel: dict[str, Any], gpus: int | None) -> None:
    """Set expert tensor parallelism (etp) to 1 if the GPU count fits the layout only with that value."""
    tp, ep = parallel["tp"], parallel.get("ep", 1)
    if not gpus or tp == 1 or ep == 1 or "etp" in parallel:
        return
    dense, rest = tp * parallel["pp"] * parallel.get("cp", 1), parallel["pp"] * ep
    if gpus % dense == 0 and gpus % (rest * tp) and gpus % rest == 0:
        parallel["etp"] = 1
        run.assumed.append(f"experts are not sharded over tp: {gpus} GPUs fit ep {ep} in no other way")


def fsdp_section(run: MegatronOptions, parallel: Mapping[str, Any], gpus: int | None) -> dict[str, int | bool]:
    """Return the scenario's ``fsdp`` section, for HSDP shard groups and for FSDP2 without resharding."""
    if run.is_on("use-torch-fsdp2") and run.is_on("torch-fsdp2-no-reshard-after-forward"):
        return {"reshard_after_forward": False}
    copies = _optimizer_instance_count(run)
    if copies == 1 or parallel.get("zero") != 3:
        return {}
    ranks = (gpus or 0) // (parallel["tp"] * parallel["pp"])
    if not ranks or ranks % copies:
        what = f"{copies} optimizer instances do not divide dp x cp = {ranks}" if ranks else "the GPU count is unknown"
        run.assumed.append(f"parameters are sharded over all of dp: {what} (--gpus sets it)")
        return {}
    if (run.given.get("outer-dp-sharding-strategy") or ("no_shard",)) != ("no_shard",):
        run.assumed.append("each instance keeps all of its optimizer state, although the outer strategy shards it")
    return {"shard_group": ranks // copies}


def _fsdp_zero_stage(run: MegatronOptions) -> int:
    """Return the ZeRO stage that the FSDP options request, or 0 without FSDP."""
    zero = _SHARDING_STRATEGIES.index(run.get("data-parallel-sharding-strategy") or "no_shard")
    if run.is_on("use-torch-fsdp2"):
        return 3
    if run.is_on("use-megatron-fsdp", "use-custom-fsdp"):
        return zero or 3
    if zero > int(run.is_on("use-distributed-optimizer")):
        run.assumed.append("data-parallel-sharding-strategy has no effect without use-megatron-fsdp")
    return 0


def shards_parameters(run: MegatronOptions) -> bool:
    """Return whether parameters are sharded over data-parallel ranks (FSDP or ZeRO stage 3)."""
    return max(_fsdp_zero_stage(run), int(run.get("zero-stage") or 0)) == 3


def _context_parallel_comm(run: MegatronOptions, cp: int) -> dict[str, Any]:
    """Return the method of context parallelism; raise InputError if it differs between layers."""
    if run.get("ds-sequence-parallel-size"):
        return {"cp_comm": "all_to_all" if cp > 1 else None}
    word, *others = dict.fromkeys((run.get("cp-comm-type") or "p2p").split())
    if others or word not in _CONTEXT_KINDS:
        what = (
            f"{' '.join([word, *others])[:40]!r} is not modelled; use one of {', '.join(_CONTEXT_KINDS)} for all layers"
        )
        raise run.error("cp-comm-type", what)
    levels = "hierarchical-context-parallel-sizes"
    sizes = [int(size) for size in (run.get(levels) or "").split() if size.isdecimal()]
    if cp == 1 or word != "a2a+p2p":
        if max(sizes, default=1) > 1:
            run.assumed.append(f"{levels} has no effect without context-parallel-size and cp-comm-type a2a+p2p")
        return {"cp_comm": _CONTEXT_KINDS[word] if cp > 1 else None}
    if len(sizes) != 2 or math.prod(sizes) != cp:
        what = "cp-comm-type a2a+p2p needs an inner and an outer size that multiply to context-parallel-size"
        raise run.error(levels, f"{(run.get(levels) or 'not set')[:40]}; {what} {cp}, such as {cp} 1")
    return {"cp_comm": "hybrid", "cp_inner": sizes[0]}


def _token_dispatch_fields(run: MegatronOptions) -> dict[str, Any]:
    """Return the token dispatch settings (how tokens reach their experts) that differ from the defaults."""
    if run.get("num-experts") is None or run.is_on("deepspeed") or (run.get("expert-model-parallel-size") or 1) == 1:
        return {}
    kind = run.get("moe-token-dispatcher-type") or "allgather"
    if kind != "flex":
        return {} if kind.startswith("alltoall") else {"kind": kind}
    kind = run.get("moe-flex-dispatcher-backend") or "deepep"
    sms = run.get(f"moe-{kind}-num-sms") or run.get("moe-flex-dispatcher-num-sms")
    return {"kind": kind, **({"sms": sms} if sms else {})}


# --- overlaps and kernels ---------------------------------------------------------------------------------------------


def overlap_section(
    run: MegatronOptions, training: Mapping[str, Any], pipeline: Mapping[str, Any], parallel: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the scenario's ``overlap`` section from Megatron-LM options."""
    tp, sharded, fully = parallel["tp"], parallel["zero"] > 0, run.is_on("use-torch-fsdp2")
    by_torch = run.get("DDP-impl") == "torch" and not run.is_on("deepspeed")  # always overlaps with the last backward
    if run.is_on("overlap-param-gather") and not sharded:
        run.assumed.append("overlap-param-gather has no effect without use-distributed-optimizer")
    schedule, cut = pipeline.get("schedule"), run.is_on("tp-comm-overlap") and tp > 1
    paired = schedule == "dualpipe-v" and overlaps_other_microbatch(run)
    paired = paired or (isinstance(schedule, dict) and bool(schedule.get("pairs")))
    if cut:
        run.assumed.append("tp-comm-overlap splits the matmuls next to collectives into tp pieces")
    recipe, bucket = training.get("memory_recipe"), run.get("ddp-bucket-size")
    bucket = f"{bucket * int(recipe_named(recipe).gradient if recipe else 4)} B" if bucket else None
    more = {
        "pairs": paired,
        "experts": _overlaps_expert_comm(run, paired=paired),
        "tensor_pieces": tp if cut else None,
        "bucket_size": bucket or ("25 MiB" if by_torch else None),  # DistributedDataParallel's bucket_cap_mb
    }
    return {
        "grad_reduce": run.is_on("overlap-grad-reduce") or by_torch or fully,
        "param_gather": (run.is_on("overlap-param-gather") and sharded) or fully,
        "tensor": tp > 1 and not run.is_on("no-async-tensor-model-parallel-allreduce"),
        **{name: value for name, value in more.items() if value},
    }


def overlaps_other_microbatch(run: MegatronOptions) -> bool:
    """Return whether expert all-to-alls of one microbatch overlap with another microbatch's compute."""
    experts = run.get("num-experts") is not None and (run.get("expert-model-parallel-size") or 1) > 1
    return experts and run.is_on("overlap-moe-expert-parallel-comm")


def _overlaps_expert_comm(run: MegatronOptions, *, paired: bool) -> bool:
    """Return whether expert all-to-alls overlap with shared experts or weight gradients."""
    shared, batches, weights = (
        run.is_on(name)
        for name in ("moe-shared-expert-overlap", "overlap-moe-expert-parallel-comm", "delay-wgrad-compute")
    )
    if shared and not run.get("moe-shared-expert-intermediate-size"):
        run.assumed.append("moe-shared-expert-overlap has no effect without shared experts")
        shared = False
    if run.get("num-experts") is None:
        if weights:
            what = "a split backward needs another schedule: pipeline.schedule zb-h1 or zb-v"
            raise run.error("delay-wgrad-compute", f"{what}; remove it to import the rest")
        return False
    if paired and not shared:
        return weights
    if batches:
        run.assumed.append("overlap-moe-expert-parallel-comm has no effect: expert-model-parallel-size is 1")
    if shared != weights:
        given, other = ("moe-shared-expert-overlap", "delay-wgrad-compute")[:: 1 if shared else -1]
        run.assumed.append(f"{given} also overlaps the computation that {other} would overlap")
    return shared or weights


def software_section(run: MegatronOptions, position: str) -> dict[str, Any]:
    """Return the scenario's ``software`` section, which holds the kernel fusions that differ from the defaults."""
    software: dict[str, Any] = {}
    if run.is_on("no-gradient-accumulation-fusion"):
        software |= {"accumulate": "separate", "source": "no-gradient-accumulation-fusion"}
    if run.get("position-embedding-type") == "yarn" and not run.is_on("multi-latent-attention"):
        software["rope"] = "steps"
        run.assumed.append("YaRN's rotation is not fused: Transformer Engine's kernel takes no factor")
    if run.is_on("no-rope-fusion") and position == "rope":
        software["rope"] = "steps"  # unfused expression of rope_utils.py
    if run.get("num-experts") is None or run.is_on("deepspeed"):
        return software
    run.assumed.append("router probabilities are applied in the experts' activation, as in Megatron-Core since 0.12")
    dtype, padded = run.get("moe-router-dtype"), ("moe-router-padding-for-fp8", "moe-router-padding-for-quantization")
    if dtype == "fp64":
        run.assumed.append("router scores are in fp32: fp64 (--moe-router-dtype) is not modelled")
    sequential = None if run.is_on("moe-grouped-gemm") else "sequential"
    experts = {
        "router": "fused" if run.is_on("moe-router-fusion") else None,
        "router_dtype": "fp32" if dtype else None,
        "permute": None if run.is_on("moe-permute-fusion") else "steps",
        "products": "grouped" if run.is_on("moe-use-legacy-grouped-gemm") else sequential,
        "padding": "routing" if run.is_on(*padded) else None,
    }
    kernels = {name: word for name, word in experts.items() if word}
    return software | {"probabilities": "activation"} | ({"experts": kernels} if kernels else {})
