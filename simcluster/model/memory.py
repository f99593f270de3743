"""Activation memory on one rank: the tensors that a microbatch's forward saves for the backward.

Activations live from F until backward, so they are multiplied by the microbatches in flight, which the schedule
decides. Counting only: no device, no time. (Model state: ``recipes``.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcluster.model.adapters import train_tensors
from simcluster.model.kernel_choices import OffloadModule
from simcluster.model.layer_block import embedding_tensors, lm_head_tensors, mtp_input_tensors
from simcluster.model.layer_kind import LayerKind
from simcluster.model.layers import layer_kinds
from simcluster.model.rank_shape import RankShape, local_sizes
from simcluster.model.saved_tensors import SavedTensor, is_saved, with_saved_precision
from simcluster.model.transformer import Model


def layer_backward_tensors(model: Model, shape: RankShape, layer: int) -> list[SavedTensor]:
    """Return every tensor that a layer's backward reads, in the order of creation.

    Those made in F are what a full backward reads; those made in I exist only where the backward is split. GPT-style
    without tensor parallelism W reads 32 s b h of a layer (14 of inputs, 18 of gradients), as the zero-bubble papers
    have it. Under sequence parallelism I leaves W what it has gathered over tp, whole. The first tensor is the layer's
    input, unless a kind names another one.
    """
    own = model.layer_model(layer)
    found = [tensor for kind in layer_kinds(model, layer) for tensor in kind.saved_tensors(own, shape)]
    if own.num_streams > 1:  # they are the layer's input
        found = [replace(tensor, keep="other") if tensor.keep == "input" else tensor for tensor in found]
    if found and not any(tensor.keep == "input" for tensor in found):
        found[0] = replace(found[0], keep="input")
    return found


def end_backward_tensors(model: Model, shape: RankShape) -> list[SavedTensor]:
    """Return every tensor that the backward reads in the embedding, multi-token prediction and the LM head."""
    ends = model.layer_model(0)
    predicted = with_saved_precision(mtp_input_tensors(ends, shape), shape) if model.prediction_layers else []
    first, last = (
        train_tensors(tensors, name, model, shape)
        for name, tensors in (("embedding", embedding_tensors(ends, shape)), ("lm_head", lm_head_tensors(ends, shape)))
    )
    return [*first, *predicted, *last]


def activation_bytes(model: Model, shape: RankShape, layer: int = 0) -> dict[str, float]:
    """Return the bytes of each activation that one rank saves of a layer, per microbatch, by tensor name.

    GPT-style with dropout the sum is s b h (34 + 5 a s / h) without parallelism; Llama-style with fused attention s b
    (8 h + 4 q + 4 kv + 6 f) + 4 s b a, the last term being the log-sum-exp. tp divides what lies between the column-
    and the row-parallel matmul; the rest (10 of the 34) only under sequence parallelism; cp divides all. Selective
    recompute drops what its modules run again (``kernel_choices``), of the attention core softmax and its dropout of an
    unfused one, the log-sum-exp of a fused one; full keeps the layer's input alone. Source: arXiv:2205.05198 section 4
    and table 2; the Llama form is the same listing for its tensors.
    """
    return {each.name: each.bytes for each in _saved_forward_tensors(model, shape, layer) if is_saved(each, shape)}


def offloaded_bytes(model: Model, shape: RankShape, layer: int, modules: Sequence[OffloadModule]) -> float:
    """Return the bytes of a layer's activations that one rank offloads for ``modules``, per microbatch."""
    own = shape.list_variants()[shape.layer_variant(layer)]
    found = _saved_forward_tensors(model, own, layer)
    return sum(each.bytes for each in found if each.moved_by in modules and is_saved(each, own))


def working_bytes(block: str, model: Model, shape: RankShape) -> float:
    """Return the bytes of a block's temporary tensors: of the LM head 16-bit logits until they are cast, otherwise 0.

    Their gradient is as large: made from the fp32 ones, and read by both matmuls of the head's backward. None where the
    loss works in place.
    """
    if block != "lm_head" or shape.logits == "in-place":
        return 0.0
    local = local_sizes(model, shape)
    return shape.element_bytes * local.tokens * local.vocab * shape.loss_vocab_shares


def backward_working_bytes(
    block: str, kind: LayerKind | None, model: Model, shape: RankShape
) -> tuple[float, float]:  # fmt: skip
    """Return the peak bytes of a block's temporary gradients: (total, part proportional to routed rows).

    They are the output gradient (gathered, its sequence shard if any, of all residual streams), and what a kind adds
    (``LayerKind.backward_working_bytes``). The head's: the gradient of its input before and after the reduction. Zero
    unless ``shape.temporaries``, for the embedding, whose table's gradient is added in place, and for multi-token
    prediction's matmul, which is small compared with its layer.
    """
    if not shape.temporaries or block in ("embedding", "mtp"):
        return 0.0, 0.0
    own, routed = kind.backward_working_bytes(model, shape) if kind else (0.0, 0.0)
    local = local_sizes(model, shape)
    tokens, edge = shape.element_bytes * local.tokens, shape.element_bytes * local.edge_tokens
    streams = edge * model.num_streams if model.num_streams > 1 else 0.0
    return local.hidden * (tokens + (edge if edge < tokens else 0.0) + streams) + own, routed


def _saved_forward_tensors(model: Model, shape: RankShape, layer: int) -> list[SavedTensor]:
    return [tensor for tensor in layer_backward_tensors(model, shape, layer) if tensor.made == "F"]
