"""The two-dimensional weights of a layer on one rank: what an optimizer that works on whole matrices (Muon) updates.

Embedding, LM head, norms and biases are not among them (Megatron-Core, core/optimizer/layer_wise_optimizer.py,
``is_managed_by_layer_wise_optimizer``).  Queries, keys and values count as three matrices, as that optimizer takes them
(``muon_split_qkv``); gate and up of a gated MLP as the one that they are.  Pure counting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from simcluster.model.shards import tensor_shard
from simcluster.model.transformer import Model

Split = Literal["rows", "columns", "none"]


@dataclass(frozen=True, slots=True)
class WeightMatrix:
    """``count`` weights of rows x columns on one rank, each split over those that split an expert or all else (tp)."""

    rows: int
    columns: int
    split: Split
    experts: bool = False
    count: int = 1

    @property
    def elements(self) -> int:
        """Of one of them, on the rank."""
        return self.rows * self.columns

    def whole(self, ranks: int) -> WeightMatrix:
        """The same matrix gathered from the ranks that split it."""
        rows, columns = (ranks if self.split == each else 1 for each in ("rows", "columns"))
        return replace(self, rows=self.rows * rows, columns=self.columns * columns)


def matrices_of(model: Model, layer: int, *, tp: int, ep: int, etp: int) -> tuple[WeightMatrix, ...]:
    """Those of the layer of this number."""
    mlp = _mixture(model, tp, ep, etp) if model.has_experts(layer) else _mlp(model, tensor_shard(model, tp).ffn)
    return (*_attention(model, tp), *mlp)


def _attention(model: Model, tp: int) -> Iterator[WeightMatrix]:
    shard, hidden, mla = tensor_shard(model, tp), model.hidden_size, model.mla
    if mla is None:
        query, kv = shard.heads * model.head_dim, shard.kv_heads * model.head_dim
        yield WeightMatrix(query, hidden, "rows")
        yield WeightMatrix(kv, hidden, "rows", count=2)
        yield WeightMatrix(hidden, query, "columns")
        return
    if mla.q_lora_rank:
        yield WeightMatrix(mla.q_lora_rank, hidden, "none")
    yield WeightMatrix(mla.kv_lora_rank + mla.qk_rope_head_dim, hidden, "none")
    yield WeightMatrix(shard.heads * mla.qk_head_dim, mla.q_lora_rank or hidden, "rows")
    yield WeightMatrix(shard.heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank, "rows")
    yield WeightMatrix(hidden, shard.heads * mla.v_head_dim, "columns")


def _mlp(model: Model, ffn: int, *, experts: bool = False, count: int = 1) -> Iterator[WeightMatrix]:
    yield WeightMatrix((model.mlp_matrices - 1) * ffn, model.hidden_size, "rows", experts, count)
    yield WeightMatrix(model.hidden_size, ffn, "columns", experts, count)


def _mixture(model: Model, tp: int, ep: int, etp: int) -> Iterator[WeightMatrix]:
    moe = model.moe
    assert moe is not None
    yield WeightMatrix(moe.experts, model.hidden_size, "none")
    if moe.shared_gate:
        yield WeightMatrix(1, model.hidden_size, "none")
    if moe.shared_width:
        yield from _mlp(model, moe.shared_width // tp)
    yield from _mlp(model, moe.expert_ffn_hidden_size // etp, experts=True, count=moe.experts // ep)
