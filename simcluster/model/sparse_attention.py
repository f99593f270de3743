"""Layer kind of sparse latent attention with an indexer (DeepSeek-V3.2, arXiv:2512.02556; GLM-5).

A token attends to the ``top_k`` earlier ones that the indexer scores highest. Heads work on the narrow vectors, with
the up-projections of keys and values applied to queries and outputs ("absorbed"). Kernels, FLOP, bytes and saved
tensors are those of tilelang's ``examples/deepseek_v32`` (``fp8_lighting_indexer``, ``sparse_mla_fwd``,
``sparse_mla_bwd``) and ``examples/dsa_sparse_finetune`` (the indexer's loss). Every query runs ``top_k`` keys, even
where fewer tokens are before it. Scores and top-k run for a part of the queries at a time, and take no memory.

Every tp rank has the whole indexer, on gathered inputs that get no gradient from it (Megatron-Core 0.16.1,
``core/transformer/experimental_attention_variant/dsa.py``). It learns from its loss alone, the divergence of its scores
from the attention to the chosen keys, summed over heads and so over tp: the sparse stage of continued pre-training. It
is in the precision of other matmuls (fp8 with fp8), the heads are in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple

from simcluster.documents.field_annotations import AllowedValues
from simcluster.model.context_parallel import CpExchange, make_cp_exchange
from simcluster.model.kernels import Block, Kernel, Section
from simcluster.model.latent_attention import LatentAttention, rotation_in_steps
from simcluster.model.layer_kind import AttentionBackward, Flops, WeightMatrix
from simcluster.model.layer_sections import (
    FP32_BYTES,
    batch_matmuls,
    forward_backward_section,
    join_sections,
    linear_section,
    memory_kernel,
)
from simcluster.model.mixture import Indexer, Mla
from simcluster.model.rank_shape import LocalSizes, RankShape, local_sizes
from simcluster.model.saved_tensors import SavedTensor, dropout_mask_tensors
from simcluster.model.transformer import Model

_HEADS_PER_BLOCK = 64  # heads of one token whose keys' gradients one block of threads adds up
_INDEX_BYTES = 4.0


class SparseAttention(LatentAttention):
    """Layer kind of latent attention to the keys that an indexer chooses."""

    MODELLED_WITH: ClassVar[Mapping[str, AllowedValues]] = {
        "model.causal": AllowedValues((True,)),
        "model.attention_window": AllowedValues((None,)),
        "model.attention_chunk": AllowedValues((None,)),
        "model.attention_sinks": AllowedValues((None,)),
        "training.attention": AllowedValues(("fused",)),
        "training.recompute": AllowedValues(
            ("none", "full"), "recompute '{value}' is not modelled with model.mla.indexer; use none or full"
        ),
        "memory.offload.modules": AllowedValues(((),)),
    }

    def matrices(self, model: Model, tp: int = 1, ep: int = 1, etp: int = 1) -> Iterator[WeightMatrix]:
        """Yield a rank's weight matrices: those of latent attention, with the indexer's before the last."""
        *latent, last = super().matrices(model, tp)
        yield from latent
        for columns, rows in _index_widths(model).values():
            yield WeightMatrix(rows, columns, "none")
        yield last

    def count_vector_parameters(self, model: Model, tp: int = 1) -> int:
        """Count a tp rank's parameters in norms; the index keys have a LayerNorm with a shift."""
        return super().count_vector_parameters(model, tp) + 2 * _specs(model)[1].head_dim

    def core_flops(self, model: Model, tokens: int, backward: AttentionBackward) -> Flops:
        """Return the FLOPs of index scores and attention to the chosen keys.

        By the arithmetic ("model") query i meets min(i + 1, top_k) keys with unabsorbed heads, as a sliding window of
        top_k does; index scores are of all earlier keys; the backward is twice that. As executed ("flash") all queries
        meet top_k keys with absorbed heads; the backward has five matmuls, one for the loss, and three of index scores.
        """
        (_, index), length = _specs(model), model.sequence_length
        if backward == "flash":
            core = _core_section(_sizes(model, RankShape(micro_batch=1)), RankShape(micro_batch=1))
            run, back = (sum(kernel.flops for kernel in each) / length for each in (core.forward, core.input_grad))
            return Flops(tokens * run, tokens * back, 0.0)
        part = min(index.top_k / length, 1.0)
        widths = part * (1 - part / 2) * model.heads * (model.head_dim + model.value_dim)
        forward = 2.0 * tokens * length * (widths + index.heads * index.head_dim / 2)
        return Flops(forward, 2 * forward, 0.0)

    def cp_exchange(self, model: Model, shape: RankShape) -> CpExchange | None:
        """Return the exchange of narrow and index keys; every rank's queries meet as many keys as any other's."""
        sizes = _sizes(model, shape)
        keys = shape.element_bytes * sizes.local.tokens * (sizes.width + sizes.indexer.head_dim)
        return replace(
            make_cp_exchange(model, shape),
            keys=keys, keys_traded=keys, keys_sent=keys, key_gradients_sent=keys, causal=False, torch=False,
        )  # fmt: skip

    def block(self, model: Model, shape: RankShape) -> Block:
        """Return the kernels of latent attention with sparse heads; the indexer's inputs are gathered as well."""
        sizes = _sizes(model, shape)
        return replace(
            super().block(model, shape), detached_width=model.hidden_size + sizes.low, summed_width=sizes.keys
        )

    def body(self, model: Model, shape: RankShape, local: LocalSizes) -> tuple[Section, ...]:
        """Return the sections of a rank's heads: queries, indexer, attention to the chosen keys, projection."""
        sizes, (mla, _), tokens, heads = _sizes(model, shape), _specs(model), local.tokens, local.heads
        keys, values = (
            batch_matmuls(linear_section(name, shape, tokens, *widths, bias=False, wide=True), heads)
            for name, *widths in (
                ("latent_key", mla.qk_nope_head_dim, mla.kv_lora_rank),
                ("latent_value", mla.kv_lora_rank, mla.v_head_dim),
            )
        )
        queries = linear_section("latent_query", shape, tokens, sizes.low, local.query, bias=False)
        projection = linear_section("projection", shape, tokens, local.output, local.hidden, bias=False)
        index, core = _index_section(model, sizes, shape), _core_section(sizes, shape)
        return queries, keys, _assembly_section(model, sizes, shape), index, core, values, projection

    def backward_working_bytes(self, model: Model, shape: RankShape) -> tuple[float, float]:
        """Return the bytes of the gradients of queries and narrow keys (also in fp32), and of the loss's target."""
        sizes, e = _sizes(model, shape), shape.element_bytes
        wide = sizes.width + sizes.head_blocks * sizes.keys
        return sizes.local.tokens * (e * (sizes.local.heads + 1) * sizes.width + FP32_BYTES * wide), 0.0

    def backward_tensors(self, model: Model, shape: RankShape) -> list[SavedTensor]:
        sizes, (mla, _), e, name = _sizes(model, shape), _specs(model), shape.element_bytes, "attention"
        local, width, rows = sizes.local, sizes.width, _INDEX_BYTES * sizes.local.tokens * sizes.keys
        tokens, index = e * local.tokens, {each: out for each, (_, out) in _index_widths(model).items()}
        heads, gathers = tokens * local.heads, shape.sequence_parallel and shape.tp > 1
        kept = {
            "query": heads * width, "key": tokens * width, "index_key_norm_input": tokens * sizes.indexer.head_dim,
            **{each: tokens * out for each, out in index.items()}, "top_k_indices": rows, "top_k_scores": rows,
            "log_sum_exp": FP32_BYTES * local.tokens * local.heads,
        }  # fmt: skip
        inputs = SavedTensor(name, "index_input", tokens * (local.hidden + sizes.low), read="W", in_fp8="cast")
        return [
            SavedTensor(name, "attention_norm_input", e * local.edge_tokens * local.hidden, "input"),
            *self.narrow_tensors(model, shape),
            *([inputs] if gathers else []),
            SavedTensor(name, "query_heads", heads * mla.qk_nope_head_dim, read="W"),
            *(SavedTensor(name, each, size) for each, size in kept.items()),
            SavedTensor(name, "core_output", heads * mla.kv_lora_rank, read="W"),
            SavedTensor(name, "projection_input", tokens * local.output, read="W", in_fp8="cast"),
            *dropout_mask_tensors(name, "attention_dropout_mask", model, shape),
            SavedTensor(name, "projection_output_grad", tokens * local.hidden, made="I", read="W", in_fp8="cast"),
            SavedTensor(name, "projection_input_grad", tokens * local.output, made="I", read="W"),
            SavedTensor(name, "query_grad", heads * mla.kv_lora_rank, made="I", read="W"),
            SavedTensor(name, "query_heads_grad", tokens * local.query, made="I", read="W", in_fp8="cast"),
            SavedTensor(name, "index_grad", tokens * sum(index.values()), made="I", read="W", in_fp8="cast"),
        ]


class _Sizes(NamedTuple):
    """Sizes on one rank; ``low`` of what queries come from, ``share`` of index scores on the slowest of cp ranks."""

    local: LocalSizes
    mla: Mla
    indexer: Indexer
    low: int
    width: int
    keys: int
    share: float

    @property
    def head_blocks(self) -> int:
        """Number of blocks of threads that share the heads of one token."""
        return -(-self.local.heads // _HEADS_PER_BLOCK)


def _specs(model: Model) -> tuple[Mla, Indexer]:
    assert model.mla is not None
    assert model.mla.indexer is not None
    return model.mla, model.mla.indexer


def _sizes(model: Model, shape: RankShape) -> _Sizes:
    (mla, index), local, share = _specs(model), local_sizes(model, shape), make_cp_exchange(model, shape).slowest_share
    low, width = mla.q_lora_rank or local.hidden, mla.kv_lora_rank + mla.qk_rope_head_dim
    return _Sizes(local, mla, index, low, width, min(index.top_k, local.columns), share)


def _index_widths(model: Model) -> dict[str, tuple[int, int]]:
    """Return input and output widths of the indexer's matmuls: queries, keys, and the weights of the heads' scores."""
    (mla, index), hidden = _specs(model), model.hidden_size
    queries = mla.q_lora_rank or hidden, index.heads * index.head_dim
    return {"index_query": queries, "index_key": (hidden, index.head_dim), "index_weights": (hidden, index.heads)}


def _assembly_section(model: Model, sizes: _Sizes, shape: RankShape) -> Section:
    """Return the kernels that rotate positions, if any, and write the queries and the narrow key with both parts."""
    local, row = sizes.local, 2 * shape.element_bytes * sizes.local.tokens
    copied = row * (local.heads + 1) * sizes.width
    if {"fused": model.position != "none", "steps": False}[shape.rope]:
        return forward_backward_section("latent_rope", copied, copied)
    copies = forward_backward_section("latent_copy", copied, row * local.query)
    turned = () if model.position == "none" else (rotation_in_steps(shape, local, sizes.mla),)
    return join_sections((*turned, copies), "none")


def _index_section(model: Model, sizes: _Sizes, shape: RankShape) -> Section:
    """Return the kernels of the indexer before its scores: matmuls, norm of keys, rotations (RoPE and Hadamard)."""
    tokens, width = sizes.local.tokens, sizes.indexer.head_dim
    row, heads = shape.element_bytes * tokens, (sizes.indexer.heads + 1) * width
    matmuls = [linear_section(each, shape, tokens, *sides, bias=False) for each, sides in _index_widths(model).items()]
    norm = forward_backward_section("index_key_norm", 2 * row * width, 3 * row * width)
    rotation = forward_backward_section("index_rotation", 4 * row * heads, 4 * row * heads)
    cast = memory_kernel("index_cast", (shape.element_bytes + shape.cast_bytes) * tokens * heads)
    before = (replace(each, input_grad=()) for each in matmuls)
    return join_sections((*before, norm, rotation, Section((cast,) if shape.quantization else ())), "none")


def _core_section(sizes: _Sizes, shape: RankShape) -> Section:
    """Return the kernels from index scores to the heads' outputs, and of their backward.

    Chosen keys count once for a token, and their gradients, added in fp32, once for each block of its heads.
    """
    e, (local, mla, index, _, width, keys, share) = shape.element_bytes, sizes
    tokens, heads, value, blocks = local.tokens, local.heads, mla.kv_lora_rank, sizes.head_blocks
    query, output, rows = e * tokens * heads * width, e * tokens * heads * value, FP32_BYTES * tokens * heads
    chosen, wide, of_queries = tokens * keys, FP32_BYTES * tokens * width, index.heads * index.head_dim
    operand = shape.cast_bytes
    logits = FP32_BYTES * tokens * local.columns * share / 2
    scores = Kernel(
        "index_scores", "matmul", tokens * local.columns * share * of_queries,
        operand * tokens * (of_queries + index.head_dim) + FP32_BYTES * tokens * index.heads + logits,
        local.rows, -(-local.columns // 2), index.head_dim, shape.micro_batch * index.heads, operand_bytes=operand,
        keeps_16_bits=shape.wide,
    )  # fmt: skip
    gathered = (e * width + _INDEX_BYTES) * chosen  # with the indices
    core = Kernel(
        "sparse_attention", "attention", 2.0 * chosen * heads * (width + value), gathered + query + output + rows,
        local.rows, keys, -(-(width + value) // 2), shape.micro_batch * heads,
    )  # fmt: skip
    back = replace(
        core, name="sparse_attention_input_grad", flops=2.0 * chosen * heads * (3 * width + 2 * value),
        bytes=gathered + 2 * query + output + 2 * rows + blocks * FP32_BYTES * width * chosen,
    )  # fmt: skip

    def loss_matmul(name: str, rows_: int, depth: int, count: int, size: float) -> Kernel:
        flops = 2.0 * count * chosen * rows_ * depth
        return Kernel(name, "matmul", flops, size, rows_, keys, depth, count * tokens, keeps_16_bits=True)

    target = gathered + query + rows + blocks * FP32_BYTES * chosen
    index_grad = 2 * e * tokens * (of_queries + index.heads) + (2 * e * index.head_dim + 3 * _INDEX_BYTES) * chosen
    return Section(
        forward=(scores, memory_kernel("index_top_k", logits + 2 * _INDEX_BYTES * chosen), core),
        input_grad=(
            memory_kernel("sparse_row_sums", 2 * output + rows + wide),
            back,
            memory_kernel("sparse_key_grad", wide + e * tokens * width),
            loss_matmul("index_target", heads, width, 1, target),
            memory_kernel("index_target_sum", (blocks + 4) * FP32_BYTES * chosen, 3),
            loss_matmul("index_scores_grad", index.heads, index.head_dim, 3, index_grad),
        ),
    )
