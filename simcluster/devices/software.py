"""Cost of the software on the host: the time to issue kernels and collectives, one after the other, to the GPU.

A GPU runs what has been issued; where kernels are shorter than the time it takes to issue them, the host decides how
long a pass takes ("launch-bound"). The host begins to issue a pass when the GPU may begin it, which is so where sending
waits for the GPU (Megatron-LM's blocking sends); a host that runs ahead through a whole pass loses less. Numbers depend
on framework, Python and processor; CUDA graphs make them vanish.

A framework also decides which mechanisms a run has at all: who made its kernels, when a recompute stops, what adds up
gradients, which passes the optimizer adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator

from simcluster.base.errors import InputError
from simcluster.base.units import Seconds
from simcluster.documents.catalogue import presets
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.kinds import Accepts
from simcluster.documents.spec import Spec
from simcluster.model.choices import Accumulate, Bias, Kernels, Probabilities, Ring, Rope
from simcluster.model.mixture import ExpertKernels

IDEAL = "ideal"
"""Software that costs nothing: everything is issued in time."""

Selective = Literal["any-core", "unfused-core"]
Gradients = Literal["averaged", "scaled", "checked"]
Shards = Literal["in-place", "flat", "copied", "lists"]


class Software(Spec):
    """A framework: its host's time for each kernel, collective and microbatch, and which mechanisms it has.

    ``kernel`` counts the kernels of our model of a layer (13 in the forward of a GPT layer without fused attention);
    real libraries issue more and smaller ones.
    """

    name: str = "inline"
    kernel: Seconds = 0.0
    """Host time to issue a kernel."""
    launch: Seconds = 0.0
    """Host time of each launch after the first of one call: matmuls of a rank's experts, steps of an expression."""
    collective: Seconds = 0.0
    """Host time to issue a collective."""
    microbatch: Seconds = 0.0
    """Additional host time per microbatch: reading it, passing it to the tp ranks, masks, averaging the loss."""
    gap: Seconds = 0.0
    """GPU idle time at each kernel, in addition to the device's launch: for small kernels that are not modelled
    (casts, copies, sums of biases, states of random numbers), or a profiler."""
    late: Seconds = 0.0
    """Standard deviation of the tp ranks' arrivals at a collective that compute waits for; it waits for late x
    latest_of(tp)."""
    loss: Seconds = 0.0
    """GPU idle time after the loss of a microbatch, which the host averages, scales and inspects."""
    piece: Seconds = 0.0
    """Host time of one rank's piece of a gathered or reduced matrix, with the GPU waiting, where shards are lists."""
    sync: Seconds = 0.0
    """GPU idle time where the host waits for the number of rows per expert, once per mixture (Megatron-Core's
    dispatcher without capacity: a copy to the host, a synchronisation, and the next launch); from there on it is not
    ahead."""
    kernels: Kernels = "fused"
    """Are memory-bound kernels fused by hand (Megatron-LM), compiled by torch.compile block by block with an eager
    loss, or one per step of an expression (eager)?"""
    checkpoint: Literal["whole", "early-stop"] = "whole"
    """Does a full recompute run the whole forward again, or stop when it has what backward reads (early-stop:
    torch.utils.checkpoint without re-entrance, PyTorch 2.1 and later), before the last matmul and its reduction?"""
    selective: Selective = "any-core"
    """Does a selective recompute run any attention core again (arXiv:2205.05198; Megatron-Core's
    checkpoint_core_attention, Transformer Engine, NeMo), or an unfused one only (Megatron-LM's legacy model and
    Megatron-DeepSpeed with --use-flash-attn; PyTorch's policies)?"""
    probabilities: Probabilities = "combine"
    """Do the router's probabilities weigh experts' outputs in the combine, which keeps these for backward, or in the
    experts' activation function (Megatron-Core from 0.12, weighted_bias_swiglu_impl)?"""
    accumulate: Accumulate = "fused"
    """Does the weight gradient's matmul add to the main gradient (--gradient-accumulation-fusion), or a separate
    kernel?"""
    optimizer: Literal["fused", "passes"] = "fused"
    """Does Adam write the weights too, with an averaging reduction, or do separate passes copy the weights and divide
    the gradients by dp (Megatron-LM's Float16OptimizerWithFloat16Params, local DistributedDataParallel)?"""
    gradients: Gradients = "averaged"
    """Does the collective average gradients; are they multiplied by 1 / dp before it (scaled); or is their norm also
    taken before it, to find values that are not numbers (checked)?"""
    shards: Shards = "in-place"
    """Are shards of ZeRO 3 gathered and reduced in place, as flat parameters (PyTorch's FullyShardedDataParallel),
    copied out and in (its fully_shard), or matrix by matrix as lists of a piece per rank (DeepSpeed of 2021,
    partition_parameters.py; after a full recompute all but the last of a layer's are gathered once more)?"""
    ring: Ring = "transformer-engine"
    """Library that runs the pieces of an attention over cp: Transformer Engine (Megatron-Core, NeMo), or
    torch.distributed.tensor.experimental."""
    rope: Rope = "fused"
    """Does one kernel rotate queries and keys by their positions, or one per step of Megatron-Core's expression, as
    with YaRN?"""
    bias: Bias = "product"
    """Is the bias of queries, keys and values added by their matmul's epilogue, or by a separate kernel (Megatron-LM's
    ColumnParallelLinear; PyTorch's F.linear on three dimensions up to 1.11)?"""
    experts: ExpertKernels = ExpertKernels()
    """The kernels of a mixture of experts."""
    source: str = ""


def expected_latest(members: int) -> float:
    """Return the mean delay of the last of N normally delayed members, in standard deviations.

    0 for 1, 0.56 for 2, 1.42 for 8, within 0.03, by Blom's formula (Statistical Estimates and Transformed
    Beta-Variables, 1958).
    """
    from statistics import NormalDist  # it takes longer to import than all else here

    return NormalDist().inv_cdf((members - 0.375) / (members + 0.25))


def software_names() -> tuple[str, ...]:
    """Return the names of the built-in software."""
    return (IDEAL, *presets("software.yaml"))


def load_software(name: object) -> Software | None:
    """Return the software of this name, None for ``ideal``; raise InputError listing the known names for others."""
    if name == IDEAL:
        return None
    known = presets("software.yaml")
    if not isinstance(name, str) or name not in known:
        raise InputError(
            f"there is no software {name!r}{did_you_mean(name, software_names())}; built-in: "
            f"{', '.join(software_names())}; or set its times, as in {{kernel: 10 us, collective: 20 us}}"
        )
    return Software.model_validate({"name": name, **known[name]})


def _resolve_software(value: object) -> object:
    if isinstance(value, str):
        return load_software(value)
    if isinstance(value, Mapping) and "base" in value:
        base = value["base"]
        load_software(base)  # complains
        under = {key: of_it for key, of_it in presets("software.yaml").get(base, {}).items() if key != "source"}
        found = {**under, **{key: own for key, own in value.items() if key != "base"}}
        own = found.get("experts")
        if isinstance(own, Mapping):
            found["experts"] = {**under.get("experts", {}), **own}
        return found
    return value


SoftwareChoice = Annotated[
    Software | None, BeforeValidator(_resolve_software), Accepts(lambda: (software_names(), Software, type(None)))
]
"""A name from the catalogue, ``ideal`` (None), or a mapping of times, and of what differs from its ``base``."""
