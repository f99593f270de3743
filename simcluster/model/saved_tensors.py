"""Tensors that a backward reads, and which of these the forward saves under recomputation.

Each tensor states how recomputation drops it: its place in a layer (``keep``), and the modules that, when named, run it
again (``freed_by``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from simcluster.model.kernel_choices import OffloadModule, RecomputeModule
from simcluster.model.layer_sections import MASK_BYTES
from simcluster.model.rank_shape import RankShape, local_sizes
from simcluster.model.transformer import Model

_FP8_BYTES = 1.0

KeepRule = Literal["input", "core", "kept", "other"]
PipelinePhase = Literal["F", "I", "W"]
CastRule = Literal["no", "cast", "copied", "input"]


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that a block's backward reads, with its size in bytes on one rank.

    ``keep``: the layer's "input", of the attention "core", "kept" where every second matmul is, or "other";
    recomputation drops tensors by ``keep`` and by ``freed_by``, the modules of which any drops it. ``made`` in F, or in
    I for W (a gradient of a weight matmul's output; a tensor gathered over tp for W). ``read``: which half of the
    backward reads it last, where a schedule splits it: W the two operands of each weight matmul, I all else (statistics
    and inputs of softmax, norm and activation function, masks, Q, K and V). ``in_fp8``: fp8 matmuls keep an fp8 copy of
    an operand that others read as well ("copied"), only the "cast" of one that they alone read, and an activation
    function's "input" is cast where the shape says so. ``routed``: one row for each token that visits the rank's
    experts; the bytes are those of an even share of them. ``moved_by``: the module with which it is offloaded to the
    host where modules are named.
    """

    block: str
    name: str
    bytes: float
    keep: KeepRule = "other"
    made: PipelinePhase = "F"
    read: PipelinePhase = "I"
    in_fp8: CastRule = "no"
    routed: bool = False
    freed_by: tuple[RecomputeModule, ...] = ()
    moved_by: OffloadModule | None = None


def is_saved(tensor: SavedTensor, shape: RankShape) -> bool:
    """Return whether a tensor stays in memory until the backward, instead of being recomputed."""
    if tensor.block in ("embedding", "mtp", "lm_head"):
        return tensor.made == "F"
    match shape.recompute:
        case "full":
            return tensor.keep == "input"
        case "operators":
            return tensor.made == "F" and tensor.keep in ("input", "kept")
        case "selective" | "none":
            core = tensor.keep == "core" and shape.recomputes_module("core_attn")
            return tensor.made == "F" and not (core or any(map(shape.recomputes_module, tensor.freed_by)))
    assert_never(shape.recompute)


def with_saved_precision(tensors: Sequence[SavedTensor], shape: RankShape) -> list[SavedTensor]:
    """Return tensors with sizes in the precision in which they are saved, such as fp8.

    Operands of fp8 or fp4 matmuls are kept as they were cast. (Transformer Engine, module/linear.py and
    layernorm_linear.py: inputmat saved for backward, in fp8. It keeps the attention's output in 16 bits as well, for
    the attention's backward.) Inputs of activation functions may be kept in fp8 whatever the precision of matmuls
    (``RankShape.activation_input``).
    """
    byte = _FP8_BYTES / shape.element_bytes
    share = {"no": 1.0, "cast": 1.0, "copied": 1.0, "input": {"16-bit": 1.0, "fp8": byte}[shape.activation_input]}
    if shape.quantization:
        cast = shape.cast_bytes / shape.element_bytes
        share |= {"cast": cast, "copied": 1.0 + cast}
    return [replace(tensor, bytes=share[tensor.in_fp8] * tensor.bytes) for tensor in tensors]


def matmul_input_tensors(
    block: str, name: str, model: Model, shape: RankShape, freed_by: tuple[RecomputeModule, ...] = ()
) -> list[SavedTensor]:
    """Return the saved input of a column-parallel matmul: one tensor, or its sequence shard and gathered copy."""
    local, size = local_sizes(model, shape), shape.element_bytes * model.hidden_size
    shard = SavedTensor(block, name, size * local.edge_tokens, in_fp8="cast", freed_by=freed_by)
    if not (shape.sequence_parallel and shape.tp > 1):
        return [replace(shard, read="W")]
    gathered = SavedTensor(block, f"{name}_gathered", size * local.tokens, made="I", read="W", in_fp8="cast")
    return [shard, gathered]


def dropout_mask_tensors(block: str, name: str, model: Model, shape: RankShape) -> list[SavedTensor]:
    """Return the dropout mask before a residual add, as a list that is empty without dropout."""
    size = MASK_BYTES * local_sizes(model, shape).edge_tokens * model.hidden_size
    return [SavedTensor(block, name, size)] if shape.dropout else []
