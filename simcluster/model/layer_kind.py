"""Interface of layer kinds: attention, MLP or mixture, each from its norm to its residual add, on one rank.

A layer has one kind that mixes tokens (attention) and one that does not (an MLP, or a mixture of experts). A kind
describes the part's weights, FLOPs, kept tensors and communication; most follow from its weight matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from simcluster.documents.kinds import AllowedValues
from simcluster.model.choices import RecomputeModule
from simcluster.model.context import CpExchange
from simcluster.model.kept import Tensor, apply_kept_precision
from simcluster.model.kernels import Block, Section
from simcluster.model.layer_sections import RankShape, local_sizes
from simcluster.model.transformer import Model

Split = Literal["rows", "columns", "none"]
AttentionBackward = Literal["model", "flash"]


@dataclass(frozen=True, slots=True)
class WeightMatrix:
    """One or more (``count``) equal weight matrices on one rank, and how tp or expert ranks split them."""

    rows: int
    columns: int
    split: Split
    experts: bool = False
    count: int = 1

    @property
    def elements(self) -> int:
        """Number of elements that one matrix has on the rank."""
        return self.rows * self.columns

    def whole(self, ranks: int) -> WeightMatrix:
        """Return the whole matrix, gathered from the ranks that split it."""
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
    """Base class of layer kinds, one per half of a layer; ops and tensors carry its ``name``.

    ``WHOLE`` is the recompute module that repeats all of it, if there is one. ``MIXES``: ``model.mixer`` may name it.
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
        "model.attention_sinks": AllowedValues((None,)),
        "model.mla": AllowedValues((None,)),
        "parallel.cp": AllowedValues((1,)),
        "training.attention": AllowedValues(("fused",)),
        "training.recompute": AllowedValues(("none", "full")),
        "memory.offload.modules": AllowedValues(((),)),
    }

    # --- what it holds --------------------------------------------------------------------------------------------

    def matrices(self, model: Model, tp: int = 1, ep: int = 1, etp: int = 1) -> Iterator[WeightMatrix]:
        """Yield the weight matrices of a rank in the order of their use; the last one outputs the hidden state."""
        raise NotImplementedError

    def products(self, model: Model, tp: int = 1, etp: int = 1) -> list[WeightMatrix]:
        """Return the weight matrices as libraries multiply them, some of them fused into one."""
        return list(self.matrices(model, tp, etp=etp))

    def vectors(self, model: Model, tp: int = 1) -> int:
        """Return the number of a rank's parameters outside matrices (biases, inner norms), without experts'."""
        return 0

    def parameters(self, model: Model, tp: int = 1) -> int:
        """Return the number of parameters on a rank, without those of routed experts."""
        own = (each for each in self.matrices(model, tp) if not each.experts)
        return sum(each.elements * each.count for each in own) + self.vectors(model, tp)

    def expert_parameters(self, model: Model, ep: int = 1, etp: int = 1) -> int:
        """Return the number of parameters of a rank's routed experts."""
        return 0

    def parameters_used(self, model: Model) -> int:
        """Return the number of parameters that one token uses; of routed experts, those that it visits."""
        return self.parameters(model)

    # --- what it computes -----------------------------------------------------------------------------------------

    def block(self, model: Model, shape: RankShape) -> Block:
        """Return the kernels by pass, with the tensors gathered and reduced over tp (see ``kernels.Block``)."""
        raise NotImplementedError

    def sections(self, model: Model, shape: RankShape) -> tuple[Section, ...]:
        """Return all kernels of the layer kind as sections in forward order."""
        return self.block(model, shape).sections

    def context(self, model: Model, shape: RankShape) -> CpExchange | None:
        """Return how context-parallel ranks share the core kernel; None if sequences are whole."""
        return None

    def weights_used(self, model: Model) -> int:
        """Return the number of matrix weights that one token is multiplied with."""
        return sum(each.elements * each.count for each in self.matrices(model))

    def core_flops(self, model: Model, tokens: int, backward: AttentionBackward) -> Flops:
        """Return the FLOPs of ``tokens`` tokens of whole sequences outside the weight matmuls."""
        return Flops(0.0, 0.0, 0.0)

    def flops_again(self, model: Model, module: RecomputeModule, core: Flops) -> float:
        """Return the FLOPs per sequence that recomputing ``module`` repeats, given the ``core`` kernel's FLOPs."""
        return 0.0

    # --- what it keeps --------------------------------------------------------------------------------------------

    def tensors(self, model: Model, shape: RankShape) -> list[Tensor]:
        """Return the tensors that the backward reads, in 16 bits, in the order in which they are made."""
        raise NotImplementedError

    def kept(self, model: Model, shape: RankShape) -> list[Tensor]:
        """Return the tensors that the backward reads, in the precision in which they are kept."""
        return apply_kept_precision(self.tensors(model, shape), shape)

    def forward_working_bytes(self, model: Model, shape: RankShape) -> tuple[float, float]:
        """Return the bytes of tensors that exist only inside the forward: in all, and per routed rows."""
        return 0.0, 0.0

    def gradient_bytes(self, model: Model, shape: RankShape) -> tuple[float, float]:
        """Return the bytes of gradients that exist only inside the backward: in all, and per routed rows."""
        return 0.0, 0.0


def incoming_bytes(model: Model, shape: RankShape) -> float:
    """Return the bytes of the gradient that enters a block's backward, gathered and (if sharded) its shard."""
    local = local_sizes(model, shape)
    tokens, edge = shape.element_bytes * local.tokens, shape.element_bytes * local.edge_tokens
    return local.hidden * (tokens + (edge if edge < tokens else 0.0))
