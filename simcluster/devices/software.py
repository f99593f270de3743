"""Training frameworks: launch times of kernels and collectives on the host, and kernel choices.

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
from simcluster.documents.base_spec import Spec
from simcluster.documents.catalogue import load_presets
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.field_annotations import SchemaAlternatives
from simcluster.model.kernel_choices import Accumulate, Bias, Kernels, Probabilities, Ring, Rope
from simcluster.model.mixture import ExpertKernels

IDEAL = "ideal"
"""Name of the software without host time: every kernel is launched in time."""

Selective = Literal["any-core", "unfused-core"]
Gradients = Literal["averaged", "scaled", "checked"]
Shards = Literal["in-place", "flat", "copied", "lists"]


class Software(Spec):
    """A training framework: host times per kernel, collective and microbatch, and implementation choices.

    ``kernel`` counts the kernels of our model of a layer (13 in the forward of a GPT layer without fused attention);
    real libraries issue more and smaller ones.
    """

    name: str = "inline"
    kernel: Seconds = 0.0
    """Host time to launch one kernel."""
    launch: Seconds = 0.0
    """Host time of each further kernel launch in one call, such as the matmuls of a rank's experts or the steps of an
    expression."""
    collective: Seconds = 0.0
    """Host time to launch one collective."""
    microbatch: Seconds = 0.0
    """Additional host time per microbatch: reading it, passing it to the tp ranks, masks, averaging the loss."""
    gap: Seconds = 0.0
    """GPU idle time at each kernel, in addition to the device's launch: for small kernels that are not modelled (casts,
    copies, sums of biases, states of random numbers), or a profiler."""
    late: Seconds = 0.0
    """Standard deviation of the times at which tp ranks arrive at a blocking collective; each such collective is
    delayed by the last of them."""
    loss: Seconds = 0.0
    """GPU idle time after the loss of a microbatch, while the host averages, scales and inspects it."""
    piece: Seconds = 0.0
    """Host time per rank's piece of a gathered or reduced matrix, while the GPU waits; applies to `shards: lists`."""
    sync: Seconds = 0.0
    """GPU idle time where the host waits for the number of rows per expert, once per mixture of experts
    (Megatron-Core's dispatcher without capacity: a copy to the host, a synchronisation, and the next launch)."""
    kernels: Kernels = "fused"
    """Origin of memory-bound kernels: fused by hand (fused, Megatron-LM), compiled by torch.compile block by block with
    an eager loss (compiled), or one per step of an expression (eager)."""
    checkpoint: Literal["whole", "early-stop"] = "whole"
    """What a full recompute repeats: the whole forward (whole), or only what the backward reads (early-stop:
    torch.utils.checkpoint without re-entrance, PyTorch 2.1 and later), so not the last matmul and its reduction."""
    selective: Selective = "any-core"
    """Attention cores that a selective recompute repeats: all (any-core: arXiv:2205.05198; Megatron-Core's
    checkpoint_core_attention, Transformer Engine, NeMo), or unfused ones only (unfused-core: Megatron-LM's legacy model
    and Megatron-DeepSpeed with --use-flash-attn; PyTorch's policies)."""
    probabilities: Probabilities = "combine"
    """Where the router's probabilities weigh expert outputs: in the combine, which keeps these for the backward
    (combine), or in the experts' activation function (activation: Megatron-Core from 0.12,
    weighted_bias_swiglu_impl)."""
    accumulate: Accumulate = "fused"
    """What adds a weight gradient to the main gradient: its matmul (fused, --gradient-accumulation-fusion), or a
    separate kernel (separate)."""
    optimizer: Literal["fused", "passes"] = "fused"
    """Whether Adam also writes the weights, with an averaging reduction (fused), or separate passes copy the weights
    and divide the gradients by dp (passes: Megatron-LM's Float16OptimizerWithFloat16Params, local
    DistributedDataParallel)."""
    gradients: Gradients = "averaged"
    """How gradients are averaged: by the collective (averaged); by a multiplication by 1 / dp before it (scaled); or
    also with their norm taken before it, to find NaNs (checked)."""
    shards: Shards = "in-place"
    """How ZeRO 3 gathers and reduces shards: in place (in-place), as flat parameters (flat, PyTorch's
    FullyShardedDataParallel), copied out and in (copied, its fully_shard), or matrix by matrix as lists of a piece per
    rank (lists: DeepSpeed of 2021, partition_parameters.py; after a full recompute all but the last of a layer's are
    gathered once more)."""
    ring: Ring = "transformer-engine"
    """Library whose attention over cp is simulated: Transformer Engine (Megatron-Core, NeMo), or
    torch.distributed.tensor.experimental (torch)."""
    rope: Rope = "fused"
    """Kernels of rotary positions: one (fused), or one per step of Megatron-Core's expression (steps, as with YaRN)."""
    bias: Bias = "product"
    """What adds the bias of queries, keys and values: their matmul's epilogue (product), or a separate kernel (own:
    Megatron-LM's ColumnParallelLinear; PyTorch's F.linear on three dimensions up to 1.11)."""
    experts: ExpertKernels = ExpertKernels()
    """Which kernels of a mixture of experts are fused."""
    source: str = ""


def expected_latest_delay(members: int) -> float:
    """Return the mean of the largest of ``members`` normal delays, in standard deviations.

    0 for 1, 0.56 for 2, 1.42 for 8, within 0.03, by Blom's formula (Statistical Estimates and Transformed
    Beta-Variables, 1958).
    """
    from statistics import NormalDist  # it takes longer to import than all else here

    return NormalDist().inv_cdf((members - 0.375) / (members + 0.25))


def list_software_names() -> tuple[str, ...]:
    """Return the names of the built-in training frameworks."""
    return (IDEAL, *load_presets("software.yaml"))


def load_software(name: object) -> Software | None:
    """Return the built-in framework called ``name`` (``ideal``: None); raise InputError for unknown names."""
    if name == IDEAL:
        return None
    known = load_presets("software.yaml")
    if not isinstance(name, str) or name not in known:
        raise InputError(
            f"there is no software {name!r}{did_you_mean(name, list_software_names())}; built-in: "
            f"{', '.join(list_software_names())}; or set its times, as in {{kernel: 10 us, collective: 20 us}}"
        )
    return Software.model_validate({"name": name, **known[name]})


def _resolve_software(value: object) -> object:
    if isinstance(value, str):
        return load_software(value)
    if isinstance(value, Mapping) and "base" in value:
        base = value["base"]
        load_software(base)  # complains
        under = {key: of_it for key, of_it in load_presets("software.yaml").get(base, {}).items() if key != "source"}
        found = {**under, **{key: own for key, own in value.items() if key != "base"}}
        own = found.get("experts")
        if isinstance(own, Mapping):
            found["experts"] = {**under.get("experts", {}), **own}
        return found
    return value


_ALTERNATIVES = SchemaAlternatives(lambda: (list_software_names(), Software, type(None)))
SoftwareChoice = Annotated[Software | None, BeforeValidator(_resolve_software), _ALTERNATIVES]
"""A name from the catalogue, ``ideal`` (None), or a mapping of times, and of what differs from its ``base``."""
