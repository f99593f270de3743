"""Memory that libraries keep for themselves: NCCL's channels, workspaces, Megatron's and TE's helpers.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simcluster.model.layers import RankShape, kinds_of
from simcluster.model.shards import tensor_shard
from simcluster.model.transformer import Model
from simcluster.planning.parallel import Plan
from simcluster.traffic.nccl.constants import BUFFER
from simcluster.traffic.nccl.platforms import Platform

_CHANNELS = 16  # where NCCL's platform is not known: half of the most that it makes by itself


@dataclass(frozen=True, slots=True)
class Overheads:
    """What a rank holds besides model state and what its ops bring.

    ``fragmentation`` multiplies what comes and goes (activations, working sets, gathered parameters), since that is
    what an allocator can fail to pack; 1 is none.  ``communication`` and ``workspace`` are bytes of every rank.
    ``megatron_te``: count what Megatron-Core with Transformer Engine keeps (``kept_by_megatron_te``).
    """

    fragmentation: float = 1.0
    communication: float = 0.0
    workspace: float = 0.0
    megatron_te: bool = False

    def buffers(self, model: Model, shape: RankShape, layers: Sequence[int], *, last: bool) -> float:
        """Bytes of all buffers on the ranks of a stage with these layers; ``last``: has it the LM head?"""
        kept = kept_by_megatron_te(model, shape, layers, last=last) if self.megatron_te else 0.0
        return self.communication + self.workspace + kept


def nccl_buffer_bytes(plan: Plan, platform: Platform | None, *, machines: int) -> float:
    """NCCL's buffers of one rank over all its groups, in bytes.

    A group costs channels x (4 MiB Simple + 4.7 MiB LL128 + 0.5 MiB LL) for each of two directions, what arrives and
    what leaves (NVIDIA/nccl 5067397, src/init.cc and src/transport; trees use the buffers of some more peers, NVLS its
    own).  The pipeline counts as one group.  Channels are the platform's rings; 16 where none is known.
    """
    channels = platform.graphs(machines).ring.channels if platform else _CHANNELS
    groups = sum(size > 1 for size in (plan.tp, plan.cp, plan.dp, plan.pp))
    return groups * 2 * channels * sum(BUFFER.values())


def kept_by_megatron_te(model: Model, shape: RankShape, layers: Sequence[int], *, last: bool) -> float:
    """What Megatron-Core with Transformer Engine's layers keeps from the first backward on, in bytes.

    * A gradient that is never written, for each distinct shape of weight of the stage's ``layers``: wgrad kernels add
      into the fp32 main gradient, and autograd still wants a tensor (TransformerEngine, ``module/base.py``,
      ``get_dummy_wgrad``, of grouped experts, too; used for the LM head by Megatron-LM
      ``core/tensor_parallel/layers.py``).  All experts have the same two.
    * Under sequence parallelism, the buffer that the LM head's gathered input lies in (``GlobalMemoryBuffer``).
    """
    shapes = {
        (each.rows, each.columns)
        for kinds in {model.kinds(layer): kinds_of(model, layer) for layer in layers}.values()
        for kind in kinds
        for each in kind.products(model, shape.tp, shape.expert_tp)
    }
    kept = float(sum(rows * columns for rows, columns in shapes))
    hidden, e = model.hidden_size, shape.element_bytes
    if not last:
        return e * kept
    gathered = shape.micro_batch * model.sequence_length / shape.cp if shape.sequence_parallel and shape.tp > 1 else 0.0
    return e * (kept + hidden * (tensor_shard(model, shape.tp).vocab + gathered))
