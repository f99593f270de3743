"""Bytes that one rank holds: model state under a named recipe, and activations as a list of named tensors.

Model state is fixed for the whole run; activations live from a microbatch's F until its backward, so they are
multiplied by the microbatches in flight, which is the schedule's business.  Counting only: no device, no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from simcluster.complaints import did_you_mean
from simcluster.errors import InputError
from simcluster.layers import RankShape
from simcluster.model import Model, tensor_shard

_FP32_BYTES = 4.0
_MASK_BYTES = 1.0  # a dropout mask is one byte an element

# --- model state ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recipe:
    """Bytes kept for each parameter under Adam.  A bare "12" or "16" means two things each, so recipes have names.

    ``optimizer`` holds both moments, and the fp32 master copy of the weight if ``master``; without one the update reads
    and writes the weight itself.
    """

    name: str
    weight: float
    gradient: float
    optimizer: float
    master: bool

    @property
    def total(self) -> float:
        return self.weight + self.gradient + self.optimizer

    @property
    def update_traffic(self) -> float:
        """Bytes that one Adam update moves: reads gradient and state, writes state and weight.

        30 with fp32 gradients and a master copy (mixed-18), 28 with 16-bit gradients (mixed-16).
        """
        return self.gradient + 2 * self.optimizer + self.weight * (1 if self.master else 2)


# mixed-16: 16-bit weights and gradients, fp32 master and moments: ZeRO paper, arXiv:1910.02054 section 3.1.
# fp32-16:  everything fp32; the shards of FSDP with fp32 parameters (its 16-bit unsharded copies come on top).
# mixed-18: 16-bit weights, fp32 gradient accumulation, fp32 master and moments: Megatron-LM's
#           theoretical_memory_usage.py.
# bf16-12:  16-bit weights and gradients, fp32 moments, no master copy.  (The other "12", K = 12 of the ZeRO paper, is
#           the optimizer part of mixed-16 alone.)
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe("mixed-16", weight=2, gradient=2, optimizer=12, master=True),
            Recipe("fp32-16", weight=4, gradient=4, optimizer=8, master=False),
            Recipe("mixed-18", weight=2, gradient=4, optimizer=12, master=True),
            Recipe("bf16-12", weight=2, gradient=2, optimizer=8, master=False),
        )
    }
)


def recipe_named(name: object) -> Recipe:
    """The recipe of that name; InputError with those there are, also for a bare number of bytes."""
    if isinstance(name, str) and name in RECIPES:
        return RECIPES[name]
    known = ", ".join(f"{r.name} ({r.weight:g} + {r.gradient:g} + {r.optimizer:g})" for r in RECIPES.values())
    raise InputError(
        f"there is no memory recipe {name!r}{did_you_mean(name, RECIPES)}; a recipe says bytes per parameter for "
        f"weight + gradient + optimizer, since a total alone is ambiguous: {known}"
    )


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Model state that one rank holds, in bytes."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


def state_bytes(parameters: float, recipe: Recipe, *, zero: int = 0, dp: int = 1) -> StateBytes:
    """Model state of a rank that works on ``parameters`` (its share after tp and pp), sharded over ``dp`` ranks.

    ZeRO 1 shards the optimizer, 2 the gradients too, 3 the weights too (arXiv:1910.02054 section 5).  ``dp`` is the
    size of the group that shards (dp x cp).  The layers that ZeRO 3 gathers for use are not in here: they come and go.
    """
    if zero not in (0, 1, 2, 3):
        raise InputError(f"zero {zero!r} is not a ZeRO stage; use 0 (nothing sharded), 1, 2 or 3")
    if dp < 1 or parameters < 0:
        raise InputError(f"dp {dp} must be at least 1 and parameters {parameters:g} not negative")
    return StateBytes(
        parameters=parameters * recipe.weight / (dp if zero >= 3 else 1),
        gradients=parameters * recipe.gradient / (dp if zero >= 2 else 1),
        optimizer=parameters * recipe.optimizer / (dp if zero >= 1 else 1),
    )


# --- activations ----------------------------------------------------------------------------------------------------

Keep = Literal["input", "core", "other"]


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor kept for backward on one rank.  ``keep``: the layer's "input", of the attention "core", or "other"."""

    name: str
    bytes: float
    keep: Keep = "other"


def activation_parts(model: Model, shape: RankShape) -> dict[str, float]:
    """Bytes that one rank keeps of one layer and one microbatch, from F until its backward, by tensor.

    GPT-style with dropout the sum is s b h (34 + 5 a s / h) without parallelism; Llama-style with fused attention
    s b (8 h + 4 q + 4 kv + 6 f) + 4 s b a, the last term being the log-sum-exp.  tp divides what lies between the
    column- and the row-parallel product; the rest (10 of the 34) only under sequence parallelism; cp divides all.
    Selective recompute drops what the unfused attention core makes (softmax, its dropout); full keeps the layer's
    input alone.  Source: arXiv:2205.05198 section 4 and table 2; the Llama form is the same listing for its tensors.
    """
    return {tensor.name: tensor.bytes for tensor in _tensors(model, shape) if _is_kept(tensor, shape)}


def activation_bytes_per_layer(model: Model, shape: RankShape) -> float:
    """The sum of ``activation_parts``."""
    return sum(activation_parts(model, shape).values())


def working_bytes(model: Model, shape: RankShape) -> float:
    """What recomputation brings back for the one layer whose backward is running, beyond what was kept of it.

    Alive on a rank for a single layer at a time.  Zero without recomputation.
    """
    return sum(tensor.bytes for tensor in _tensors(model, shape) if not _is_kept(tensor, shape))


def embedding_activation_bytes(model: Model, shape: RankShape) -> float:
    """Bytes that the embedding keeps of one microbatch: its dropout mask, on the sequence shard (s b h / t).

    arXiv:2205.05198 section 4.3.  The token numbers themselves are not counted.
    """
    return _MASK_BYTES * _edge_tokens(model, shape) * model.hidden_size if shape.dropout else 0.0


def head_activation_parts(model: Model, shape: RankShape) -> dict[str, float]:
    """Bytes that the final norm, LM head and loss keep of one microbatch on the last stage, by tensor.

    4 s b h (1 + V / h) / t under sequence parallelism (arXiv:2205.05198 section 4.3): norm input, head input, and the
    fp32 logits over the rank's share of the padded vocabulary.  Alive from the last stage's F to its I only.
    """
    hidden = shape.element_bytes * _edge_tokens(model, shape) * model.hidden_size
    logits = _FP32_BYTES * _tokens(model, shape) * tensor_shard(model, shape.tp).vocab
    return {"final_norm_input": hidden, "head_input": hidden, "logits": logits}


def head_activation_bytes(model: Model, shape: RankShape) -> float:
    """The sum of ``head_activation_parts``."""
    return sum(head_activation_parts(model, shape).values())


def head_working_bytes(model: Model, shape: RankShape) -> float:
    """Logits in the precision of the product, alive only until the loss has copied them to fp32."""
    return shape.element_bytes * _tokens(model, shape) * tensor_shard(model, shape.tp).vocab


def _is_kept(tensor: _Tensor, shape: RankShape) -> bool:
    if shape.recompute == "full":
        return tensor.keep == "input"
    return shape.recompute == "none" or tensor.keep != "core"


def _tensors(model: Model, shape: RankShape) -> list[_Tensor]:
    """Every tensor that the backward of one layer reads, in the order in which the forward makes them."""
    e = shape.element_bytes
    tokens, edge = _tokens(model, shape), _edge_tokens(model, shape)
    shard = tensor_shard(model, shape.tp)
    hidden = e * edge * model.hidden_size
    query = e * tokens * shard.heads * model.head_dim
    kv = e * tokens * shard.kv_heads * model.head_dim
    ffn = e * tokens * shard.ffn
    mask = [_MASK_BYTES * edge * model.hidden_size] if shape.dropout else []
    mlp = ("gate", "up", "mlp_product") if model.gated_mlp else ("gelu_input", "gelu_output")
    return [
        _Tensor("attention_norm_input", hidden, "input"),
        _Tensor("qkv_input", hidden),
        _Tensor("query", query),
        _Tensor("key", kv),
        _Tensor("value", kv),
        *_core_tensors(model, shape),
        _Tensor("projection_input", query),
        *(_Tensor("attention_dropout_mask", size) for size in mask),
        _Tensor("mlp_norm_input", hidden),
        _Tensor("mlp_input", hidden),
        *(_Tensor(name, ffn) for name in mlp),
        *(_Tensor("mlp_dropout_mask", size) for size in mask),
    ]


def _core_tensors(model: Model, shape: RankShape) -> list[_Tensor]:
    """A fused kernel keeps a statistic per row and draws its dropout again; unfused attention keeps whole squares."""
    rows = _tokens(model, shape) * tensor_shard(model, shape.tp).heads
    if shape.attention == "fused":
        return [_Tensor("log_sum_exp", _FP32_BYTES * rows)]
    square = rows * model.sequence_length
    kept = [_Tensor("softmax_output", shape.element_bytes * square, "core")]
    if shape.dropout:
        kept.append(_Tensor("softmax_dropout_mask", _MASK_BYTES * square, "core"))
        kept.append(_Tensor("softmax_dropout_output", shape.element_bytes * square, "core"))
    return kept


def _tokens(model: Model, shape: RankShape) -> float:
    """Tokens of one microbatch on the rank, between gather and reduction."""
    return shape.micro_batch * model.sequence_length / shape.cp


def _edge_tokens(model: Model, shape: RankShape) -> float:
    """Tokens of one microbatch on the rank, outside of them."""
    return _tokens(model, shape) / (shape.tp if shape.sequence_parallel else 1)
