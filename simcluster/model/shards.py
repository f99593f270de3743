"""Widths that one tensor-parallel rank holds of a model: its part of heads, columns and vocabulary.  Pure counting."""

from __future__ import annotations

from dataclasses import dataclass

from simcluster.base.errors import InputError
from simcluster.model.defaults import listed
from simcluster.model.transformer import Model


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
