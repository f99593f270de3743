"""Bytes of activations, block by block, as papers count them: sums over the tensors of ``simcluster.model.memory``."""

from __future__ import annotations

from dataclasses import replace

from simcluster.model.layer_kind import LayerKind
from simcluster.model.layers import RankShape, layer_kinds
from simcluster.model.memory import (
    activation_bytes,
    backward_working_bytes,
    end_backward_tensors,
    layer_backward_tensors,
)
from simcluster.model.memory import working_bytes as block_working_bytes
from simcluster.model.saved_tensors import SavedTensor, is_saved
from simcluster.model.transformer import Model


def activation_bytes_per_layer(model: Model, shape: RankShape, layer: int = 0) -> float:
    """The sum of ``activation_parts``."""
    return sum(activation_bytes(model, shape, layer).values())


def gradients_of(block: str, model: Model, shape: RankShape) -> float:
    """Bytes that live inside a block's backward."""
    return backward_working_bytes(block, kinds_by_block(model).get(block), model, shape)[0]


def kinds_by_block(model: Model) -> dict[str, LayerKind]:
    """The layer kinds of all layers by block name; no two layer types have a block of one name but other sizes."""
    layers = [layer for layer, _ in model.count_layer_types().values()]
    return {kind.name: kind for layer in layers for kind in layer_kinds(model, layer)}


def backward_tensors(model: Model, shape: RankShape) -> list[SavedTensor]:
    """The tensors that backward reads, of one block of each name."""
    layers = [layer for layer, _ in model.count_layer_types().values()]
    found = {each: None for layer in layers for each in layer_backward_tensors(model, shape, layer)}
    by_block = {name: [each for each in found if each.block == name] for name in kinds_by_block(model)}
    return [*(each for tensors in by_block.values() for each in tensors), *end_backward_tensors(model, shape)]


def working_bytes(model: Model, shape: RankShape, layer: int = 0) -> float:
    """What recomputation brings back for the one layer whose backward is running, beyond what was kept of it.

    Alive on a rank for a single layer at a time.  Zero without recomputation.
    """
    everything = activation_bytes_per_layer(model, replace(shape, recompute="none"), layer)
    return everything - activation_bytes_per_layer(model, shape, layer)


def lm_head_working_bytes(model: Model, shape: RankShape) -> float:
    """Bytes of the LM head's temporary logits."""
    return block_working_bytes("lm_head", model, shape)


def embedding_activation_bytes(model: Model, shape: RankShape) -> float:
    """Bytes that the embedding keeps of one microbatch: its dropout mask, on the sequence shard (s b h / t).

    arXiv:2205.05198 section 4.3.  The token numbers themselves are not counted.
    """
    return sum(_kept("embedding", model, shape).values())


def head_activation_parts(model: Model, shape: RankShape) -> dict[str, float]:
    """Bytes that the final norm, LM head and loss keep of one microbatch on the last stage, by tensor.

    4 s b h (1 + V / h) / t under sequence parallelism (arXiv:2205.05198 section 4.3): norm input, head input, and the
    fp32 logits over the rank's share of the padded vocabulary.  Alive from the last stage's F to its I only.  A fused
    loss that writes the gradient over the logits keeps them in the precision of the product.
    """
    return _kept("lm_head", model, shape)


def head_activation_bytes(model: Model, shape: RankShape) -> float:
    """The sum of ``head_activation_parts``."""
    return sum(head_activation_parts(model, shape).values())


def _kept(block: str, model: Model, shape: RankShape) -> dict[str, float]:
    found = (tensor for tensor in end_backward_tensors(model, shape) if tensor.block == block)
    return {tensor.name: tensor.bytes for tensor in found if is_saved(tensor, shape)}
