"""The layer kinds that a model can have, and what follows from those of a layer.

To add one: write a subclass of ``layer_kind.LayerKind`` in its own file, and a line in ``LAYER_KINDS``.
"""

from __future__ import annotations

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean
from simcluster.model.attention import Attention
from simcluster.model.experts import Experts
from simcluster.model.kernels import Block
from simcluster.model.latent import LatentAttention
from simcluster.model.layer_kind import LayerKind, WeightMatrix
from simcluster.model.layer_sections import RankShape as RankShape
from simcluster.model.mlp import Mlp
from simcluster.model.transformer import Model

LAYER_KINDS: dict[str, LayerKind] = {
    "attention": Attention(),
    "latent_attention": LatentAttention(),
    "mlp": Mlp(),
    "mixture": Experts(),
}
"""Every layer kind by its word."""


def kinds_of(model: Model, layer: int) -> tuple[LayerKind, ...]:
    """Return the kinds of the layer of this number in forward order; InputError for a word that names none."""
    try:
        return tuple([LAYER_KINDS[word] for word in model.kinds(layer)])
    except KeyError as error:
        word = error.args[0]
        near = did_you_mean(word, LAYER_KINDS)
        raise InputError(f"there is no layer kind {word!r}{near}; known: {', '.join(LAYER_KINDS)}") from None


def sorts_of_layers(model: Model) -> list[tuple[int, int]]:
    """Return the first layer of each sort, without and with experts, and how many layers are of it."""
    mixtures = model.moe_layers + sum(map(model.has_experts, model.predicting))
    first = sorted(model.kinds_of_layers.values(), key=model.has_experts)
    return [(layer, mixtures if model.has_experts(layer) else model.predicting.stop - mixtures) for layer in first]


def all_kinds(model: Model) -> dict[str, LayerKind]:
    """Return every kind that a layer of the model has, by its name, in forward order."""
    sorts = [kinds_of(model, layer) for layer, _ in sorts_of_layers(model)]
    return {kind.name: kind for each in zip(*sorts, strict=True) for kind in each}


def matrices_of(model: Model, layer: int, *, tp: int, ep: int, etp: int) -> tuple[WeightMatrix, ...]:
    """Return the weight matrices of a layer on one rank: what an optimizer that works on whole matrices updates.

    Embedding, LM head, norms and biases are not among them (Megatron-Core, core/optimizer/layer_wise_optimizer.py,
    ``is_managed_by_layer_wise_optimizer``).
    """
    return tuple([matrix for kind in kinds_of(model, layer) for matrix in kind.matrices(model, tp, ep, etp)])


def attention_block(model: Model, shape: RankShape) -> Block:
    """Return the block of what mixes tokens in the model's layers."""
    return kinds_of(model, 0)[0].block(model, shape)


def mlp_block(model: Model, shape: RankShape) -> Block:
    """Return the block of a layer's MLP."""
    return LAYER_KINDS["mlp"].block(model, shape)
