"""Activation memory on one rank: named tensors of a microbatch's forward that the backward needs.

Activations live from F until backward, so they are multiplied by the microbatches in flight, which the schedule
decides. Counting only: no device, no time. (Model state: ``recipes``.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcluster.model.choices import OffloadModule
from simcluster.model.kept import Tensor, apply_kept_precision, is_kept
from simcluster.model.layer_block import embedding_tensors, head_working_bytes, lm_head_tensors, prediction_tensors
from simcluster.model.layer_kind import incoming_bytes
from simcluster.model.layer_sections import RankShape
from simcluster.model.layers import kinds_by_name, kinds_of_layer
from simcluster.model.transformer import Model


def backward_tensors(model: Model, shape: RankShape) -> list[Tensor]:
    """Return every tensor that the backward of a model reads, in the order in which they are made.

    Those made in F are what a full backward reads; those made in I exist only where the backward is split. GPT-style
    without tensor parallelism W reads 32 s b h of a layer (14 of inputs, 18 of gradients), as the zero-bubble papers
    have it. Under sequence parallelism I leaves W what it has gathered over tp, whole.
    """
    layer = [tensor for kind in kinds_by_name(model).values() for tensor in kind.kept(model, shape)]
    predicted = apply_kept_precision(prediction_tensors(model, shape), shape) if model.prediction_layers else []
    return [*layer, *embedding_tensors(model, shape), *predicted, *lm_head_tensors(model, shape)]


def activation_parts(model: Model, shape: RankShape, layer: int = 0) -> dict[str, float]:
    """Return the activation bytes that one rank keeps of a layer for one microbatch, by tensor.

    GPT-style with dropout the sum is s b h (34 + 5 a s / h) without parallelism; Llama-style with fused attention s b
    (8 h + 4 q + 4 kv + 6 f) + 4 s b a, the last term being the log-sum-exp. tp divides what lies between the column-
    and the row-parallel matmul; the rest (10 of the 34) only under sequence parallelism; cp divides all. Selective
    recompute drops what its modules run again (``choices``), of the attention core softmax and its dropout of an
    unfused one, the log-sum-exp of a fused one; full keeps the layer's input alone. Source: arXiv:2205.05198 section 4
    and table 2; the Llama form is the same listing for its tensors.
    """
    return {tensor.name: tensor.bytes for tensor in _forward_tensors(model, shape, layer) if is_kept(tensor, shape)}


def offloaded_bytes(model: Model, shape: RankShape, layer: int, modules: Sequence[OffloadModule]) -> float:
    """Return a layer's activation bytes per microbatch that one rank offloads for the named ``modules``."""
    own = shape if shape.recomputes(layer) else replace(shape, recompute="none")
    return sum(
        each.bytes for each in _forward_tensors(model, own, layer) if each.moved_by in modules and is_kept(each, own)
    )


def working_bytes(block: str, model: Model, shape: RankShape) -> float:
    """Return the bytes of scratch tensors in a block: logits in the matmul's precision for the LM head, else 0."""
    return head_working_bytes(model, shape) if block == "lm_head" else 0.0


def forward_working_bytes(block: str, model: Model, shape: RankShape) -> tuple[float, float]:
    """Return the bytes of tensors that exist only inside a block's forward: in all, and per routed rows."""
    kind = kinds_by_name(model).get(block)
    return kind.forward_working_bytes(model, shape) if kind else (0.0, 0.0)


def temporary_bytes(block: str, model: Model, shape: RankShape) -> tuple[float, float]:
    """Return the peak bytes that exist only inside a block's backward: in all, and per routed rows.

    They are the incoming gradient, and what a layer kind adds (``gradient_bytes``). The head's: the gradient of its
    input before and after the reduction. Zero unless ``shape.temporaries``, for the embedding, whose table's gradient
    is added in place, and for multi-token prediction's matmul, which is small compared with its layer.
    """
    if not shape.temporaries or block in ("embedding", "mtp"):
        return 0.0, 0.0
    kind = kinds_by_name(model).get(block)
    own, routed = kind.gradient_bytes(model, shape) if kind else (0.0, 0.0)
    return incoming_bytes(model, shape) + own, routed


def _forward_tensors(model: Model, shape: RankShape, layer: int) -> list[Tensor]:
    kept = (tensor for kind in kinds_of_layer(model, layer) for tensor in kind.kept(model, shape))
    return [tensor for tensor in kept if tensor.made == "F"]
