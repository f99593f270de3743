"""Number of parameters on a rank: expert parameters (replicated over edp), and all others (over dp).

Parameters that all ranks of dp x cp share are summed over the axis "dp". An expert is only on one rank of each ep
group, and its gradients are summed over "edp", the ranks that hold the same experts (MODELLING.md B.1; Megatron-LM
``expert_data_parallel``); where those are the same ranks, experts count as common.

``MemoryOverheads`` is memory that libraries keep for themselves: NCCL's channels, workspaces, Megatron's and TE's
buffers. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from simcluster.model.layers import (
    RankShape,
    embedding_parameters_per_tp_rank,
    expert_parameters_per_rank,
    frozen_parameters_per_tp_rank,
    layer_kinds,
    layer_parameters_per_tp_rank,
    lm_head_parameters_per_tp_rank,
    mtp_layer_parameters,
)
from simcluster.model.recipes import Recipe, StateBytes, state_bytes
from simcluster.model.shard_widths import shard_widths
from simcluster.model.trainable import QUANTIZED_BYTES
from simcluster.model.transformer import Model
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.traffic.nccl.constants import BUFFER
from simcluster.traffic.nccl.platforms import Platform

_CHANNELS = 16  # where NCCL's platform is not known: half of the most that it makes by itself


@dataclass(frozen=True, slots=True)
class MemoryOverheads:
    """Memory of a rank beyond model state and tensors: fragmentation and library buffers.

    ``fragmentation`` multiplies what comes and goes (activations, working sets, gathered parameters), since that is
    what an allocator can fail to pack; 1 is none. ``communication`` and ``workspace`` are bytes per rank.
    ``megatron_te``: count what Megatron-Core with Transformer Engine keeps (``megatron_te_buffer_bytes``).
    """

    fragmentation: float = 1.0
    communication: float = 0.0
    workspace: float = 0.0
    megatron_te: bool = False

    def buffer_bytes(self, model: Model, shape: RankShape, layers: Sequence[int], *, last: bool) -> float:
        """Return the bytes of library buffers on a rank with these layers and, if ``last``, the LM head."""
        kept = megatron_te_buffer_bytes(model, shape, layers, last=last) if self.megatron_te else 0.0
        return self.communication + self.workspace + kept


def nccl_buffer_bytes(plan: ParallelPlan, platform: Platform | None, *, machines: int) -> float:
    """Return the bytes of NCCL's buffers on one rank, over all its communicators.

    A group costs channels x (4 MiB Simple + 4.7 MiB LL128 + 0.5 MiB LL) for each of two directions, what arrives and
    what leaves (NVIDIA/nccl 5067397, src/init.cc and src/transport; trees use the buffers of some more peers, NVLS
    separate ones). The pipeline counts as one group. Channels are the platform's rings; 16 where none is known.
    """
    channels = platform.channel_graphs(machines).ring.channels if platform else _CHANNELS
    groups = sum(size > 1 for size in (plan.tp, plan.cp, plan.dp, plan.pp))
    return groups * 2 * channels * sum(BUFFER.values())


def megatron_te_buffer_bytes(model: Model, shape: RankShape, layers: Sequence[int], *, last: bool) -> float:
    """Return the bytes that Megatron-Core with Transformer Engine keeps allocated after the first backward.

    * A gradient that is never written, for each distinct shape of trained weight of the stage's ``layers``: wgrad
      kernels add into the fp32 main gradient, and autograd still wants a tensor (TransformerEngine, ``module/base.py``,
      ``get_dummy_wgrad``, of grouped experts, too; used for the LM head by Megatron-LM
      ``core/tensor_parallel/layers.py``).  All experts have the same two.
    * Under sequence parallelism, the buffer that the LM head's gathered input lies in (``GlobalMemoryBuffer``).
    """
    shapes = {
        (each.rows, each.columns)
        for layer in {model.layer_type(layer): layer for layer in layers}.values()
        for kind in layer_kinds(model, layer)
        if not model.layer_model(layer).freezes(kind.name)
        for each in kind.matmul_matrices(model.layer_model(layer), shape.tp, shape.expert_tp)
    }
    kept = float(sum(rows * columns for rows, columns in shapes))
    hidden, e = model.hidden_size, shape.element_bytes
    if not last:
        return e * kept
    gathered = shape.micro_batch * model.sequence_length / shape.cp if shape.sequence_parallel and shape.tp > 1 else 0.0
    table = 0 if model.freezes("lm_head") else shard_widths(model.layer_model(0), shape.tp).vocab
    return e * (kept + hidden * (table + gathered))


@dataclass(frozen=True, slots=True)
class OwnedParameters:
    """Numbers of trained parameters on one rank: ``common`` (the same on all dp x cp ranks), and ``experts``.

    Those without gradients are apart: ``frozen`` and ``frozen_experts``, of the former ``quantized`` in 4 bits.
    """

    common: float = 0.0
    experts: float = 0.0
    frozen: float = 0
    frozen_experts: float = 0
    quantized: float = 0

    @property
    def total(self) -> float:
        """Number of trained parameters on the rank, common and expert parameters together."""
        return self.common + self.experts

    @property
    def all_parameters(self) -> OwnedParameters:
        """All parameters, frozen ones too, as if they were trained: what ranks gather to use them."""
        return OwnedParameters(self.common + self.frozen, self.experts + self.frozen_experts)

    def __add__(self, other: OwnedParameters) -> OwnedParameters:
        return OwnedParameters(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __mul__(self, count: float) -> OwnedParameters:
        return OwnedParameters(*(count * getattr(self, one.name) for one in fields(self)))

    def state_bytes(self, model: Model, recipe: Recipe, *, zero: int, shards: int, expert_shards: int) -> StateBytes:
        """Return the bytes of model state on the rank; ``shards`` ranks share it, ``expert_shards`` that of experts."""
        state = state_bytes(self.common, recipe, zero=zero, dp=shards)
        state += state_bytes(self.experts, recipe, zero=zero, dp=expert_shards)
        if not (self.frozen or self.frozen_experts):
            return state
        base = model.lora.base_weights if model.lora else None
        spared = self.quantized * (recipe.weight - QUANTIZED_BYTES[base]) if base else 0.0
        common, experts = recipe.weight * self.frozen - spared, recipe.weight * self.frozen_experts
        if zero >= 3:
            common, experts = common / shards, experts / expert_shards
        return state + StateBytes(common + experts, 0.0, 0.0)

    def sharded_count(self, plan: ParallelPlan) -> float:
        """Return a rank's number of parameters if the ranks of each replica group shared them evenly."""
        return self.common / plan.replicas + self.experts / plan.expert_replicas

    def collective_calls(self, plan: ParallelPlan, element_bytes: float) -> list[tuple[str, float]]:
        """Return (axis, bytes) of each collective over the replicas of these parameters."""
        found = [("dp", self.common)] if plan.replicas > 1 and self.common else []
        found += [("edp", self.experts)] if plan.expert_replicas > 1 and self.experts else []
        return [(axis, element_bytes * parameters) for axis, parameters in found]


def parameters_of_layers(model: Model, plan: ParallelPlan, layers: Iterable[int]) -> OwnedParameters:
    """Return the number of parameters of these layers on a rank."""
    found = OwnedParameters()
    known: dict[tuple[str, ...], OwnedParameters] = {}
    for layer in layers:
        kind = model.layer_type(layer)
        if kind not in known:
            frozen = frozen_parameters_per_tp_rank(model, plan.tp, layer)
            low = frozen_parameters_per_tp_rank(model, plan.tp, layer, quantized=True)
            whole = layer_parameters_per_tp_rank(model, plan.tp, layer)
            known[kind] = OwnedParameters(whole - frozen, frozen=frozen, quantized=low)
            if held := expert_parameters_per_rank(model, layer, ep=plan.ep, etp=plan.expert_tp):
                own = OwnedParameters(0.0, held) if plan.has_separate_expert_groups else OwnedParameters(held)
                if model.layer_model(layer).freezes("mixture"):
                    own = OwnedParameters(frozen=own.common, frozen_experts=own.experts)
                known[kind] += own
        found += known[kind]
    return found


def parameters_of_stage(
    model: Model, plan: ParallelPlan, layers: Sequence[int], *, first: bool, last: bool
) -> OwnedParameters:
    """Return the number of parameters of a stage on a rank, with embedding (``first``) and LM head (``last``)."""
    own = parameters_of_layers(model, plan, layers) + parameters_of_ends(model, plan.tp, first=first, last=last)
    return own + prediction_parameters(model, plan, layers, first=first, last=last)


def parameters_of_ends(
    model: Model, tp: int, *, first: bool = False, last: bool = False, table: bool = True
) -> OwnedParameters:  # fmt: skip
    """Return the number of parameters of a stage outside its layers, of tied embeddings on one stage only once.

    Without ``table`` the LM head has only the final norm.
    """
    own = _end_parameters(model, "embedding", embedding_parameters_per_tp_rank(model, tp) if first else 0)
    if last:
        head = lm_head_parameters_per_tp_rank(model, tp) if table and not (first and model.tied_embeddings) else 0
        own += _end_parameters(model, "lm_head", model.final_norm_parameters + head)
    return own


def _end_parameters(model: Model, part: str, count: int) -> OwnedParameters:
    return OwnedParameters(frozen=count) if model.freezes(part) else OwnedParameters(count)


def layers_with_prediction(model: Model, plan: ParallelPlan, layers: Iterable[int], *, last: bool) -> list[int]:
    """Return a stage's layers, and those of multi-token prediction that go with the LM head (``last``)."""
    return [*layers, *(model.prediction_layers if last and not plan.embedding_stages else ())]


def prediction_parameters(
    model: Model, plan: ParallelPlan, layers: Sequence[int], *, first: bool, last: bool
) -> OwnedParameters:  # fmt: skip
    """Return the number of multi-token-prediction parameters of a rank with the LM head (``last``), except ``layers``.

    These are its layers, their projections and norms, and a copy of the embedding unless the rank has it (``first``,
    tied). If a separate slice has them, its stage has ``layers`` of multi-token prediction, and always a copy.
    """
    predicted, apart = model.prediction_layers, bool(plan.embedding_stages)
    if not predicted or not (any(layer in predicted for layer in layers) if apart else last):
        return OwnedParameters()
    has_table = first or (model.tied_embeddings and not apart)
    table = 0 if has_table else lm_head_parameters_per_tp_rank(model, plan.tp)
    own = OwnedParameters(table + len(predicted) * mtp_layer_parameters(model, plan.tp))
    return own if apart else own + parameters_of_layers(model, plan, predicted)
