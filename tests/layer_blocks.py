"""Blocks of a model's first layer."""

from simcluster.model.kernels import Block
from simcluster.model.layers import LAYER_KINDS, layer_kinds
from simcluster.model.rank_shape import RankShape
from simcluster.model.transformer import Model


def attention_block(model: Model, shape: RankShape) -> Block:
    """The block of the first layer's attention, or other kind that mixes tokens."""
    return layer_kinds(model, 0)[0].block(model.layer_model(0), shape)


def mlp_block(model: Model, shape: RankShape) -> Block:
    """The block of a dense MLP."""
    return LAYER_KINDS["mlp"].block(model, shape)
