"""Widths of a layer's tensors on a tensor-parallel rank."""

from __future__ import annotations

from dataclasses import dataclass

from simcluster.base.errors import InputError
from simcluster.model.transformer import Model


@dataclass(frozen=True, slots=True)
class ShardWidths:
    """Widths on one tensor-parallel rank: heads, key-value heads, MLP columns, padded vocabulary."""

    heads: int
    kv_heads: int
    ffn: int
    vocab: int


def shard_widths(model: Model, tp: int) -> ShardWidths:
    """Return the widths of a layer and the vocabulary on each of ``tp`` ranks.

    With more ranks than key-value heads each rank keeps a copy of one of them, as Megatron-LM does. Raises InputError
    where heads, key-value heads or MLP columns do not divide.
    """
    assert model.pattern is None, "widths differ by layer; pass Model.layer_model(layer)"
    if not _tp_divides_widths(model, tp):
        fitting = [str(each) for each in range(1, min(model.heads, 1024) + 1) if _tp_divides_widths(model, each)]
        widths = {"heads": model.heads, "kv_heads": model.kv_heads} | mlp_widths_split_by_tp(model)
        *most, last = (f"{name} {width}" for name, width in widths.items())
        raise InputError(f"tp {tp} does not split {', '.join(most)} and {last} evenly; use one of {', '.join(fitting)}")
    return ShardWidths(
        heads=model.heads // tp,
        kv_heads=max(model.kv_heads // tp, 1),
        ffn=model.ffn_hidden_size // tp,
        vocab=padded_vocab_size(model, tp) // tp,
    )


def mlp_widths_split_by_tp(model: Model) -> dict[str, int]:
    """Return the MLP widths that tp must divide (dense MLPs, shared experts), by scenario key."""
    moe = model.moe
    dense = any("mlp" in kinds for kinds in model.count_layer_types())
    found = {"ffn_hidden_size": model.ffn_hidden_size} if dense else {}
    return found | ({"moe.shared_ffn_hidden_size": moe.shared_width} if moe and moe.shared_width else {})


def _tp_divides_widths(model: Model, tp: int) -> bool:
    if tp < 1 or any(width % tp for width in (model.heads, *mlp_widths_split_by_tp(model).values())):
        return False
    return model.kv_heads % tp == 0 or tp % model.kv_heads == 0


def padded_vocab_size(model: Model, tp: int) -> int:
    """Return the vocabulary size rounded up to a multiple of ``vocab_multiple`` x tp.

    Every rank's share is then equal. Megatron-LM's ``--make-vocab-size-divisible-by``, 128 by default.
    """
    multiple = model.vocab_multiple * tp
    return -(-model.vocab_size // multiple) * multiple
