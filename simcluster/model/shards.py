"""What one rank holds of a model: its part of heads, columns, vocabulary and experts, and the parameters of each.

Pure counting.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcluster.base.errors import InputError
from simcluster.model.defaults import listed
from simcluster.model.mixture import mlp_parameters
from simcluster.model.transformer import (
    Model,
    attention_parameters,
    embedding_norm_parameters,
    position_parameters,
)


@dataclass(frozen=True, slots=True)
class TensorShard:
    """The widths that one tensor-parallel rank holds: heads, key-value heads, MLP columns, (padded) vocabulary rows."""

    heads: int
    kv_heads: int
    ffn: int
    vocab: int


def tensor_shard(model: Model, tp: int) -> TensorShard:
    """What each of ``tp`` ranks holds of a layer and of the vocabulary.

    With more ranks than key-value heads each rank keeps a copy of one of them, as Megatron-LM does.
    Raises InputError where heads, key-value heads or MLP columns do not divide.
    """
    if not _splits(model, tp):
        fitting = listed(number for number in range(1, min(model.heads, 1024) + 1) if _splits(model, number))
        widths = {"heads": model.heads, "kv_heads": model.kv_heads} | split_widths(model)
        *most, last = (f"{name} {width}" for name, width in widths.items())
        raise InputError(f"tp {tp} does not split {', '.join(most)} and {last} evenly; use one of {fitting}")
    return TensorShard(
        heads=model.heads // tp,
        kv_heads=max(model.kv_heads // tp, 1),
        ffn=model.ffn_hidden_size // tp,
        vocab=padded_vocab(model, tp) // tp,
    )


def split_widths(model: Model) -> dict[str, int]:
    """What tensor parallelism must divide of a model's MLPs, by key: dense ones, and experts that are shared."""
    moe = model.moe
    found = {} if model.moe_layers == model.layers else {"ffn_hidden_size": model.ffn_hidden_size}
    return found | ({"moe.shared_ffn_hidden_size": moe.shared_width} if moe and moe.shared_width else {})


def _splits(model: Model, tp: int) -> bool:
    if tp < 1 or any(width % tp for width in (model.heads, *split_widths(model).values())):
        return False
    return model.kv_heads % tp == 0 or tp % model.kv_heads == 0


def padded_vocab(model: Model, tp: int) -> int:
    """The vocabulary rounded up to a multiple of ``vocab_multiple`` x tp, so that every rank's share is one of that.

    Megatron-LM's ``--make-vocab-size-divisible-by``, 128 by default.
    """
    multiple = model.vocab_multiple * tp
    return -(-model.vocab_size // multiple) * multiple


def layer_parameters_per_tp_rank(model: Model, tp: int, layer: int = 0) -> int:
    """Parameters of one layer on one of ``tp`` ranks: matrices split; norms and row-parallel biases on every rank.

    Routed experts are not among them (``expert_parameters_per_rank``); router and shared experts are.
    """
    shard = tensor_shard(model, tp)
    found = attention_parameters(model, shard.heads, shard.kv_heads) + model.layer_norm_parameters
    if model.moe and model.moe.is_in(layer):
        return found + model.moe.everywhere(model.hidden_size, model.mlp_matrices, tp, bias=model.mlp_bias)
    return found + mlp_parameters(model.hidden_size, shard.ffn, model.mlp_matrices, bias=model.mlp_bias)


def layer_matrices_per_tp_rank(model: Model, tp: int) -> tuple[int, ...]:
    """Parameters of the weight matrices of one layer on one of ``tp`` ranks, in the order of their use.

    Queries, keys and values are one matrix, as are the gate and the first of a gated MLP (Megatron-LM).  Of a mixture
    and of latent attention: all of the layer as one.
    """
    if model.moe or model.mla:
        return (layer_parameters_per_tp_rank(model, tp),)
    shard, hidden = tensor_shard(model, tp), model.hidden_size
    query, kv = shard.heads * model.head_dim, shard.kv_heads * model.head_dim
    into = model.mlp_matrices - 1
    return hidden * (query + 2 * kv), hidden * query, hidden * into * shard.ffn, hidden * shard.ffn


def expert_parameters_per_rank(model: Model, layer: int, *, ep: int, etp: int) -> int:
    """Parameters of the routed experts that a rank holds of one layer: experts / ep of them, each split over etp."""
    if not model.moe or not model.moe.is_in(layer):
        return 0
    ffn = model.moe.expert_ffn_hidden_size // etp
    each = mlp_parameters(model.hidden_size, ffn, model.mlp_matrices, bias=model.mlp_bias)
    return model.moe.experts // ep * each


def embedding_parameters_per_tp_rank(model: Model, tp: int) -> int:
    """The rank's rows of the padded token table, and the position table, which every rank holds whole."""
    whole = position_parameters(model) + embedding_norm_parameters(model)
    return padded_vocab(model, tp) // tp * model.hidden_size + whole


def lm_head_parameters_per_tp_rank(model: Model, tp: int) -> int:
    """The rank's rows of the padded output matrix (if tied and on another stage than the embedding: a copy)."""
    return padded_vocab(model, tp) // tp * model.hidden_size


def stage_parameters_per_tp_rank(model: Model, tp: int, *, layers: int, first: bool, last: bool) -> int:
    """Parameters that one tensor-parallel rank of a pipeline stage holds of a model whose layers are alike.

    ``layers`` is how many layers the stage has in all its chunks; ``first`` and ``last`` say whether it has the
    embedding and the final norm with the LM head.  Tied embeddings on two stages are held twice (Megatron-LM),
    on one stage once.
    """
    total = layers * layer_parameters_per_tp_rank(model, tp) if layers else 0
    if first:
        total += embedding_parameters_per_tp_rank(model, tp)
    if last:
        total += model.norm_parameters
        if not (first and model.tied_embeddings):
            total += lm_head_parameters_per_tp_rank(model, tp)
    return total
