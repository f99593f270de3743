"""Interface of layer kinds (attention, MLP, mixture of experts): a part of a layer, from norm to residual add.

A layer has one kind, or two: one that mixes tokens (attention), then an MLP or a mixture of experts. A kind
describes the part's weights, FLOPs, kept tensors and communication; most follow from its weight matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from simcluster.documents.field_annotations import AllowedValues
from simcluster.model.adapters import train_tensors
from simcluster.model.context_parallel import CpExchange
from simcluster.model.hyper_connections import stream_tensors
from simcluster.model.kernel_choices import RecomputeModule
from simcluster.model.kernels import Block, Section
from simcluster.model.rank_shape import RankShape
from simcluster.model.saved_tensors import SavedTensor, with_saved_precision
from simcluster.model.transformer import Model

Split = Literal["rows", "columns", "none"]
AttentionBackward = Literal["model", "flash"]


@dataclass(frozen=True, slots=True)
class WeightMatrix:
    """One or several equal weight matrices on a rank, and the way in which tp or expert ranks split them."""

    rows: int
    columns: int
    split: Split
    experts: bool = False
    count: int = 1

    @property
    def elements(self) -> int:
        """Number of elements that one matrix has on the rank."""
        return self.rows * self.columns

    def gather_whole(self, ranks: int) -> WeightMatrix:
        """Return the unsplit matrix, as gathered from ``ranks`` ranks."""
        rows, columns = (ranks if self.split == each else 1 for each in ("rows", "columns"))
        return replace(self, rows=self.rows * rows, columns=self.columns * columns)


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs by pipeline phase: F (forward), I (gradient of the input) and W (gradient of the weights)."""

    forward: float
    input_grad: float
    weight_grad: float

    @property
    def backward(self) -> float:
        """FLOPs of the full backward: B = I + W."""
        return self.input_grad + self.weight_grad

    @property
    def total(self) -> float:
        """FLOPs of all phases: F + I + W."""
        return self.forward + self.backward

    def __add__(self, other: Flops) -> Flops:
        return Flops(
            self.forward + other.forward, self.input_grad + other.input_grad, self.weight_grad + other.weight_grad
        )


class LayerKind:
    """Base class of layer kinds, half a layer each (attention, MLP, ...); ops and tensors carry its ``name``.

    ``WHOLE`` is the recompute module that repeats all of it, if there is one. ``MIXES``: it mixes tokens.
    ``ROUTED``: its tokens travel to experts over ep. ``SQUARE``: its core works on all pairs of tokens.
    ``MODELLED_WITH`` lists by field of a scenario the values that the kind is modelled with; the scenario rejects
    others by name. The default allows only what holds for any kind: options that only attention has, or that need more
    knowledge of a kind, are rejected.
    """

    name: ClassVar[str]
    WHOLE: ClassVar[RecomputeModule | None] = None
    MIXES: ClassVar[bool] = False
    ROUTED: ClassVar[bool] = False
    SQUARE: ClassVar[bool] = False
    MODELLED_WITH: ClassVar[Mapping[str, AllowedValues]] = {
        "model.position": AllowedValues(("learned", "none")),
        "model.bias": AllowedValues((False,)),
        "model.causal": AllowedValues((True,)),
        "model.layer_norms": AllowedValues((None, 2)),
        "model.parallel_residual": AllowedValues((None,)),
        "model.qk_norm": AllowedValues((None,)),
        "model.attention_window": AllowedValues((None,)),
        "model.full_attention_every": AllowedValues((None,)),
        "model.attention_chunk": AllowedValues((None,)),
        "model.attention_gate": AllowedValues((None,)),
        "model.attention_sinks": AllowedValues((None,)),
        "model.values_from_keys": AllowedValues((None,)),
        "model.mla": AllowedValues((None,)),
        "parallel.cp": AllowedValues((1,)),
        "training.attention": AllowedValues(("fused",)),
        "training.recompute": AllowedValues(("none", "full")),
        "memory.offload.modules": AllowedValues(((),)),
    }

    @property
    def mixes(self) -> bool:
        """Whether the kind mixes tokens."""
        return self.MIXES

    @property
    def modelled_with(self) -> Mapping[str, AllowedValues]:
        """Values that the kind is modelled with, by field of a scenario."""
        return self.MODELLED_WITH

    # --- weights --------------------------------------------------------------------------------------------------

    def matrices(self, model: Model, tp: int = 1, ep: int = 1, etp: int = 1) -> Iterator[WeightMatrix]:
        """Yield a rank's weight matrices in order of use; the last one's output is the hidden state."""
        raise NotImplementedError

    def matmul_matrices(self, model: Model, tp: int = 1, etp: int = 1) -> list[WeightMatrix]:
        """Return the weight matrices as matmuls use them: some are fused from several matrices."""
        return list(self.matrices(model, tp, etp=etp))

    def count_vector_parameters(self, model: Model, tp: int = 1) -> int:
        """Count a rank's biases and inner norm parameters, without those of routed experts."""
        return 0

    def count_parameters(self, model: Model, tp: int = 1) -> int:
        """Return the number of parameters on a rank, without those of routed experts."""
        own = (each for each in self.matrices(model, tp) if not each.experts)
        return sum(each.elements * each.count for each in own) + self.count_vector_parameters(model, tp)

    def count_expert_parameters(self, model: Model, ep: int = 1, etp: int = 1) -> int:
        """Return the number of parameters of a rank's routed experts."""
        return 0

    def count_parameters_per_token(self, model: Model) -> int:
        """Return the number of parameters that one token uses; of routed experts, only the token's ``top_k``."""
        return self.count_parameters(model)

    # --- kernels and FLOPs ----------------------------------------------------------------------------------------

    def block(self, model: Model, shape: RankShape) -> Block:
        """Return the kernels from norm to residual add as a ``kernels.Block``."""
        raise NotImplementedError

    def sections(self, model: Model, shape: RankShape) -> tuple[Section, ...]:
        """Return all kernels from norm to residual add as sections, in forward order."""
        return self.block(model, shape).sections

    def cp_exchange(self, model: Model, shape: RankShape) -> CpExchange | None:
        """Return what context-parallel ranks exchange in this half layer; None if they exchange nothing."""
        return None

    def count_weights_per_token(self, model: Model) -> float:
        """Return the number of weights in matrices that multiply one token."""
        return sum(each.elements * each.count for each in self.matrices(model))

    def core_flops(self, model: Model, tokens: int, backward: AttentionBackward) -> Flops:
        """Return the FLOPs of ``tokens`` tokens outside weight matmuls, such as those of core attention."""
        return Flops(0.0, 0.0, 0.0)

    def recompute_flops(self, model: Model, module: RecomputeModule, core: Flops) -> float:
        """Return the extra FLOPs per sequence of recomputing ``module``; ``core``: FLOPs of the core attention."""
        return 0.0

    # --- memory ---------------------------------------------------------------------------------------------------

    def backward_tensors(self, model: Model, shape: RankShape) -> list[SavedTensor]:
        """Return the tensors that the backward reads, in the order of their creation, with 16-bit sizes."""
        raise NotImplementedError

    def saved_tensors(self, model: Model, shape: RankShape) -> list[SavedTensor]:
        """Return the tensors that the backward reads, and residual streams, with sizes as they are saved."""
        tensors = [*stream_tensors(self.name, model, shape), *self.backward_tensors(model, shape)]
        return with_saved_precision(train_tensors(tensors, self.name, model, shape), shape)

    def forward_working_bytes(self, model: Model, shape: RankShape) -> tuple[float, float]:
        """Return the bytes of temporary forward tensors: (total, part proportional to this rank's routed rows)."""
        return 0.0, 0.0

    def backward_working_bytes(self, model: Model, shape: RankShape) -> tuple[float, float]:
        """Return the bytes of temporary gradients: (total, part proportional to this rank's routed rows)."""
        return 0.0, 0.0
