"""The rank grid of a scenario from Megatron-LM's options, and how many GPUs it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from simcluster.importers.megatron_sections import batch_of, dispatch_of
from simcluster.importers.option_values import Options


def gpus_of(
    run: Options, parallel: Mapping[str, Any], launched: int | None, available: int | None, machine: int | None = None
) -> int | None:
    """GPUs of the job: those that are ``launched``, or None for all that the cluster has ``available``; where these do
    not hold the layout and the batch, all of one ``machine``, or the fewest that do, which is said."""
    sizes = {axis: parallel.get(axis, 1) for axis in ("tp", "pp", "cp")}
    dense = math.prod(sizes.values())
    ranks = sizes["pp"] * parallel.get("ep", 1) * parallel.get("etp", sizes["tp"])
    least = math.lcm(dense, ranks if {"ep", "etp"} & parallel.keys() else 1)
    least *= _copies(run) if parallel["zero"] == 3 else 1
    micro = run.values.get("micro-batch-size") or run.values.get("batch-size") or 1
    batch = run.problems.of(batch_of, run)

    def holds(gpus: int) -> bool:
        return gpus % least == 0 and (not batch or batch % (micro * (gpus // dense)) == 0)

    if launched and holds(launched):
        return launched
    if not launched and (available is None or holds(available)):
        return None
    named = {**sizes, **{axis: parallel[axis] for axis in ("ep",) if parallel.get(axis, 1) > 1}}
    what = " x ".join(f"{axis} {size}" for axis, size in named.items() if size > 1 or axis == "tp")
    against = "do not hold it" if (launched or 0) < least else "are no multiple of it, or do not divide the batch"
    why = f"the {launched} that the script starts {against}" if launched else f"the cluster has {available}"
    whole = machine if machine and not launched and holds(machine) else least
    which = "the fewest" if whole == least else "one machine"
    if whole == launched:
        return whole  # it holds the layout, and what is wrong with the batch is told of that
    run.assumed.append(f"{whole} GPUs, {which} for {what}: {why} (--gpus says how many)")
    return whole


def parallel_of(run: Options) -> dict[str, Any]:
    """The fields of ``Parallel``."""
    tp = run.get("tensor-model-parallel-size", "model-parallel-size") or 1
    if run.get("num-experts") is None:
        run.without("num-experts", "the model is dense", ("expert-tensor-parallel-size",))
    parallel: dict[str, Any] = {"tp": tp, "pp": run.get("pipeline-model-parallel-size") or 1}
    context = run.get("context-parallel-size") or run.get("ds-sequence-parallel-size")
    sizes = {"cp": context, "ep": run.get("expert-model-parallel-size"), "etp": run.get("expert-tensor-parallel-size")}
    parallel |= {axis: size for axis, size in sizes.items() if size}
    if run.flag("deepspeed") and run.get("num-experts") and tp > 1 and not run.flag("enable-expert-tensor-parallelism"):
        parallel["etp"] = 1
    if dispatch := dispatch_of(run):
        parallel["expert_dispatch"] = dispatch
    comm = _context(run)
    if comm != "ring" and parallel.get("cp", 1) > 1:
        parallel["cp_comm"] = comm
    if run.flag("sequence-parallel"):
        if tp > 1:
            parallel["sequence_parallel"] = True
        else:
            run.assumed.append("sequence parallelism is switched off where tp is 1, as Megatron-LM does")
    zero, sharded = _sharded(run), run.flag("use-distributed-optimizer") or run.get("optimizer") == "dist_muon"
    zero = max(zero, int(run.get("zero-stage") or 0), int(sharded))
    if run.flag("deepspeed") and run.flag("bf16") and zero == 0:
        zero = 1
        run.assumed.append("the optimizer's state is sharded with ZeRO stage 0 too, as DeepSpeed does with bf16")
    parallel["zero"] = zero
    if (copies := _copies(run)) > 1 and zero < 3:
        run.assumed.append(f"one replica of the sharded states for all of dp, though there are {copies}: less memory")
    if run.flag("use-tp-pp-dp-mapping"):
        parallel["order"] = ["tp", "cp", "pp", "dp"]
    return parallel


def _copies(run: Options) -> int:
    return int(run.get("num-distributed-optimizer-instances") or 1)


def uncut_experts(run: Options, parallel: dict[str, Any], gpus: int | None) -> None:
    """Takes experts as not cut over tp, where that is not said and the GPUs hold the layout in no other way."""
    tp, ep = parallel["tp"], parallel.get("ep", 1)
    if not gpus or tp == 1 or ep == 1 or "etp" in parallel:
        return
    dense, rest = tp * parallel["pp"] * parallel.get("cp", 1), parallel["pp"] * ep
    if gpus % dense == 0 and gpus % (rest * tp) and gpus % rest == 0:
        parallel["etp"] = 1
        run.assumed.append(f"experts are not cut over tp: {gpus} GPUs hold ep {ep} in no other way")


def hybrid_of(run: Options, parallel: Mapping[str, Any], gpus: int | None) -> dict[str, int | bool]:
    """The fields of ``Fsdp`` where parameters are sharded within one of several instances (HSDP), or kept once gathered
    (FSDP2)."""
    if run.flag("use-torch-fsdp2") and run.flag("torch-fsdp2-no-reshard-after-forward"):
        return {"reshard_after_forward": False}
    copies = _copies(run)
    if copies == 1 or parallel.get("zero") != 3:
        return {}
    ranks = (gpus or 0) // (parallel["tp"] * parallel["pp"])
    if not ranks or ranks % copies:
        what = f"{copies} instances do not divide the {ranks} ranks of dp x cp" if ranks else "the GPUs are not counted"
        run.assumed.append(f"parameters are sharded over all of dp: {what} (--gpus says how many)")
        return {}
    if (run.given.get("outer-dp-sharding-strategy") or ("no_shard",)) != ("no_shard",):
        run.assumed.append("an instance keeps all of its optimizer's state, though the outer strategy shards it, too")
    return {"shard_group": ranks // copies}


def _sharded(run: Options) -> int:
    """The ZeRO stage that FSDP's options ask for; a strategy alone says nothing."""
    if run.flag("use-torch-fsdp2"):
        return 3
    shards = ("no_shard", "optim", "optim_grads", "optim_grads_params")
    zero = shards.index(run.get("data-parallel-sharding-strategy") or "no_shard")
    if not run.flag("use-megatron-fsdp", "use-custom-fsdp"):
        if zero > int(run.flag("use-distributed-optimizer")):
            run.assumed.append("data-parallel-sharding-strategy says nothing without use-megatron-fsdp")
        return 0
    return zero or 3


def sharded_parameters(run: Options) -> bool:
    """Are parameters sharded, as by FSDP?"""
    return max(_sharded(run), int(run.get("zero-stage") or 0)) == 3


def _context(run: Options) -> str:
    """How queries meet the keys of other cp ranks; one word, or the same for every layer; DeepSpeed exchanges heads."""
    if run.get("ds-sequence-parallel-size"):
        return "all_to_all"
    known = {"p2p": "ring", "all_gather": "all_gather", "a2a": "all_to_all"}
    words = dict.fromkeys((run.get("cp-comm-type") or "p2p").split())
    if len(words) != 1 or not known.keys() >= words.keys():
        what = f"{' '.join(words)[:40]!r} is not modelled; one of {', '.join(known)} for all layers is"
        raise run.error("cp-comm-type", what)
    return known[next(iter(words))]
