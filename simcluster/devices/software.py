"""What the software on the host costs: the time to issue kernels and collectives, one after the other, to the GPU.

A GPU runs what has been issued; where kernels are shorter than the time it takes to issue them, the host decides how
long a pass takes ("launch-bound").  The host begins to issue a pass when the GPU may begin it, which is so where
sending waits for the GPU (Megatron-LM's blocking sends); a host that runs ahead through a whole pass loses less.
Numbers depend on framework, Python and processor; CUDA graphs make them vanish.

A framework also decides which mechanisms a run has at all: who made its kernels, when a recompute stops, what adds up
gradients, what the optimizer does in passes of its own.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator

from simcluster.base.errors import InputError
from simcluster.base.units import Seconds
from simcluster.documents.catalogue import presets
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.spec import Spec
from simcluster.model.layer_sections import Accumulate, Bias, Kernels, Probabilities, Ring, Rope
from simcluster.model.mixture import ExpertKernels

IDEAL = "ideal"
"""Software that costs nothing: everything is issued in time."""

Selective = Literal["any-core", "unfused-core"]
Gradients = Literal["averaged", "scaled", "checked"]
Shards = Literal["in-place", "flat", "copied", "lists"]


class Software(Spec):
    """Seconds of the host for each kernel and each collective that it issues, and for each microbatch on each stage.

    ``launch`` is what each launch takes behind the first of one call: the products of a rank's experts, or the steps of
    an expression, which our list names as one.  ``microbatch`` is what comes besides: reading it, handing it to the tp
    ranks, masks, averaging the loss.  ``kernel`` counts the kernels of our model of a layer (13 in the forward of a GPT
    layer without fused attention); real libraries issue more and smaller ones.

    ``kernels``: those that device memory limits are ``fused`` by hand, as in Megatron-LM and its libraries;
    ``compiled`` by torch.compile, block by block, with an eager loss; or ``eager``, each step of an expression one
    (``eager_sections``).  ``checkpoint``: a full recompute runs the ``whole`` forward again, or stops when it has what
    backward reads (``early-stop``: torch.utils.checkpoint without re-entrance, PyTorch 2.1 and later), before the last
    product and its reduction.  ``selective``: a selective recompute runs ``any-core`` attention again, whatever its
    kernel, which is what the paper's mode asks for (arXiv:2205.05198) and what Megatron-Core does
    (core/transformer/attention.py, ``checkpoint_core_attention``), as do Transformer Engine and NeMo; or an
    ``unfused-core`` only: Megatron-LM's legacy model and Megatron-DeepSpeed go round the checkpoint with
    --use-flash-attn, and PyTorch's policies keep what a fused kernel gives.  ``probabilities`` of the router weigh what
    experts give when it is back (``combine``), which keeps it for the backward; or the experts' ``activation`` function
    multiplies with them (Megatron-Core from 0.12, fusions/fused_bias_swiglu.py, ``weighted_bias_swiglu_impl``).
    ``accumulate``: a weight gradient's product adds to the main gradient itself (Megatron-LM's
    --gradient-accumulation-fusion, of 2022), or a ``separate`` kernel does.  ``optimizer``: Adam writes the model's
    weights too, and the reduction averages; or ``passes`` of their own copy the weights and divide the gradients by dp
    (Megatron-LM's Float16OptimizerWithFloat16Params and its local DistributedDataParallel). ``gradients``: the
    collective averages (``averaged``); they are multiplied by 1 / dp before it, all that a rank has accumulated
    (``scaled``); or their norm is taken before that too, to see whether any is no number (``checked``). ``shards`` of
    ZeRO 3 are gathered and reduced where they lie (``in-place``), as ``flat`` parameters (PyTorch's
    FullyShardedDataParallel) or ``copied`` out and in (its fully_shard); or matrix by matrix as ``lists`` of as many
    pieces as there are ranks, each of which costs the host ``piece``, with the GPU waiting (DeepSpeed of 2021,
    zero/partition_parameters.py: _allgather_param, _reduce_scatter_gradient, which PyTorch copies out of and into one
    buffer); after a full recompute all but the last of a layer's are gathered once more:
    ``updates.sharded_copy_seconds``. ``ring``: whose program works on the pieces of an attention over cp, that of
    ``transformer-engine`` (Megatron-Core, NeMo) or ``torch`` (torch.distributed.tensor.experimental): see
    ``model.context``. ``rope``: one kernel turns queries and keys by their positions, or each of the ``steps`` of
    Megatron-Core's expression is one, as with YaRN (``model.rope_sections``).  ``bias`` of queries, keys and values:
    added by their ``product``'s epilogue, or by a kernel of its ``own`` behind it (Megatron-LM's ColumnParallelLinear,
    tensor_parallel/layers.py: ``output = output + bias``; before, PyTorch's F.linear on three dimensions, up to 1.11;
    other products' biases the next kernel adds). ``experts``: which kernels a mixture has
    (``model.mixture.ExpertKernels``).

    Besides what it issues too late, the GPU is idle for ``gap`` more at each kernel than the device's ``launch``: small
    kernels around it that our list leaves out (casts, copies, sums of biases, states of random numbers), or a profiler;
    for ``loss`` behind the loss of a microbatch, which the host averages, scales and looks at before it goes on; for
    ``late`` x ``latest_of(tp)`` at each collective over tp that computation waits for: how far the members of a group
    are apart when they get there, as a standard deviation; and for ``sync`` where the host has waited for what the GPU
    counted, the rows for every expert, once in the forward of each mixture (Megatron-Core's dispatcher without
    capacity: a copy to the host, a synchronisation, and the next launch).  From there on it is not ahead.
    """

    name: str = "inline"
    kernel: Seconds = 0.0
    launch: Seconds = 0.0
    collective: Seconds = 0.0
    microbatch: Seconds = 0.0
    gap: Seconds = 0.0
    late: Seconds = 0.0
    loss: Seconds = 0.0
    piece: Seconds = 0.0
    sync: Seconds = 0.0
    kernels: Kernels = "fused"
    checkpoint: Literal["whole", "early-stop"] = "whole"
    selective: Selective = "any-core"
    probabilities: Probabilities = "combine"
    accumulate: Accumulate = "fused"
    optimizer: Literal["fused", "passes"] = "fused"
    gradients: Gradients = "averaged"
    shards: Shards = "in-place"
    ring: Ring = "transformer-engine"
    rope: Rope = "fused"
    bias: Bias = "product"
    experts: ExpertKernels = ExpertKernels()
    source: str = ""


def latest_of(members: int) -> float:
    """By how many standard deviations the last of so many is late on average, if all are late by chance (normally).

    0 for 1, 0.56 for 2, 1.42 for 8, within 0.03, by Blom's formula (Statistical Estimates and Transformed
    Beta-Variables, 1958).
    """
    from statistics import NormalDist  # it takes longer to import than all else here

    return NormalDist().inv_cdf((members - 0.375) / (members + 0.25))


def software_names() -> tuple[str, ...]:
    """Those that ship."""
    return (IDEAL, *presets("software.yaml"))


def load_software(name: object) -> Software | None:
    """The software of that name, None for ``ideal``; InputError with those there are."""
    if name == IDEAL:
        return None
    known = presets("software.yaml")
    if not isinstance(name, str) or name not in known:
        raise InputError(
            f"there is no software {name!r}{did_you_mean(name, software_names())}; those that ship: "
            f"{', '.join(software_names())}; or give its times, as in {{kernel: 10 us, collective: 20 us}}"
        )
    return Software.model_validate({"name": name, **known[name]})


def _named(value: object) -> object:
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


SoftwareChoice = Annotated[Software | None, BeforeValidator(_named)]
"""A name from the catalogue, ``ideal`` (None), or one's own: times, and what differs from the ``base`` of that name."""
