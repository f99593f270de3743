"""Layer kind of the attention block: norm, QKV matmul, positions, core attention, output projection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, assert_never

from simcluster.documents.field_annotations import AllowedValues
from simcluster.model import eager_sections as eager
from simcluster.model.context_parallel import (
    CpExchange,
    fused_core_section,
    has_fused_softmax,
    make_cp_exchange,
    unfused_core_section,
)
from simcluster.model.kernel_choices import RecomputeModule
from simcluster.model.kernels import Block, Section
from simcluster.model.layer_block import layer_block, norm_section
from simcluster.model.layer_kind import AttentionBackward, Flops, LayerKind, WeightMatrix
from simcluster.model.layer_sections import (
    FP32_BYTES,
    MASK_BYTES,
    bias_section,
    forward_backward_section,
    fused_rotation,
    join_sections,
    linear_section,
    memory_kernel,
)
from simcluster.model.rank_shape import LocalSizes, RankShape, local_sizes
from simcluster.model.saved_tensors import SavedTensor, dropout_mask_tensors, matmul_input_tensors
from simcluster.model.shard_widths import shard_widths
from simcluster.model.transformer import Model


class Attention(LayerKind):
    """Layer kind of multi-head and grouped-query attention."""

    name = "attention"
    MIXES = SQUARE = True
    MODELLED_WITH: ClassVar[Mapping[str, AllowedValues]] = {}

    def matrices(self, model: Model, tp: int = 1, ep: int = 1, etp: int = 1) -> Iterator[WeightMatrix]:
        """Yield the weight matrices of queries with the gate, keys and values (separate or one), output projection."""
        shard, hidden = shard_widths(model, tp), model.hidden_size
        query, kv = shard.heads * model.head_dim, shard.kv_heads * model.head_dim
        yield WeightMatrix(2 * query if model.attention_gate else query, hidden, "rows")
        yield WeightMatrix(kv, hidden, "rows", count=1 if model.values_from_keys else 2)
        yield WeightMatrix(hidden, query, "columns")

    def matmul_matrices(self, model: Model, tp: int = 1, etp: int = 1) -> list[WeightMatrix]:
        """Return the weight matrices of the attention's matmuls: QKV fused into one, and the output projection."""
        *inputs, projection = self.matrices(model, tp)
        rows = sum(each.rows * each.count for each in inputs)
        return [WeightMatrix(rows, model.hidden_size, "rows"), projection]

    def count_vector_parameters(self, model: Model, tp: int = 1) -> int:
        """Count a tp rank's bias and attention-sink parameters; the output projection's bias is not split."""
        shard = shard_widths(model, tp)
        made = (2 if model.attention_gate else 1) * shard.heads + (1 if model.values_from_keys else 2) * shard.kv_heads
        sinks = shard.heads if model.attention_sinks else 0
        rows = {True: model.hidden_size, "attention": model.hidden_size, "qkv": 0, False: 0}[model.bias]
        return (made * model.head_dim if model.bias else 0) + rows + sinks

    def block(self, model: Model, shape: RankShape) -> Block:
        """Return the attention's kernels on one rank: norm, QKV, rotation, core, projection, residual add.

        Unfused core attention works on the full square, since its matmuls cannot skip the masked half: it executes 4 n
        s q / tp FLOP where the fused kernel executes ``causal_factor`` of that. Selective recompute runs the core
        again, a fused one where the software does (``RankShape.recomputes_core``). PyTorch's attention, eager or
        compiled, reads keys and values copied for every head (``eager_sections``).
        """
        local = local_sizes(model, shape)
        core = core_attention_section(model, shape, local)
        width = local.query + (1 if model.values_from_keys else 2) * local.kv + _gate_width(model, local)
        product = linear_section("qkv", shape, local.tokens, local.hidden, width, bias=bool(model.bias))
        projection = linear_section("projection", shape, local.tokens, local.query, local.hidden, bias=False)
        turned = _rotation_section(model, shape, local)
        if model.bias and {"product": False, "own": True}[shape.bias]:
            turned = join_sections((bias_section("qkv", shape, local.tokens, width), turned), "none")
        if model.qk_norm:
            normed = local.query + local.kv + (local.value if model.qk_norm == "qkv" else 0)
            heads = replace(local, edge_tokens=local.tokens, hidden=normed)
            turned = join_sections((norm_section("qk_norm", model, shape, heads, residual=False), turned), "none")
        if model.values_from_keys:  # gradients of both norms' common input
            summed = memory_kernel("keys_values_grad", 3 * shape.element_bytes * local.tokens * local.kv)
            turned = join_sections((Section(input_grad=(summed,)), turned), "none")
        if {"fused": False, "compiled": True, "eager": True}[shape.kernels]:
            turned = join_sections((turned, eager.head_copy_section(shape, local)), "none")
        if shape.kernels == "eager":
            parts = eager.split_grad_section("qkv", model, shape, local, 2 if model.values_from_keys else 3, width)
            turned = join_sections((parts, turned), "none")
        if model.attention_gate:
            core = join_sections((core, _gate_section(shape, local)), "none")
        return layer_block("attention", model, shape, local, (product, turned, core, projection))

    def cp_exchange(self, model: Model, shape: RankShape) -> CpExchange | None:
        return make_cp_exchange(model, shape)

    def core_flops(self, model: Model, tokens: int, backward: AttentionBackward) -> Flops:
        """Return the FLOPs of the core attention (scores and weighted values), which has no weights.

        Its backward is 2 x F by the arithmetic ("model"), or 2.5 x F as a flash kernel executes it, which computes the
        scores again ("flash", arXiv:2307.08691). A causal mask halves all (``Model.causal_factor``).
        """
        widths = model.query_size + model.heads * model.value_dim
        core = 2.0 * tokens * model.sequence_length * widths * model.causal_factor
        return Flops(core, core * {"model": 2.0, "flash": 2.5}[backward], 0.0)

    def recompute_flops(self, model: Model, module: RecomputeModule, core: Flops) -> float:
        return core.forward if module == "core_attn" else 0.0

    def backward_working_bytes(self, model: Model, shape: RankShape) -> tuple[float, float]:
        local = local_sizes(model, shape)
        width = local.query + local.kv + local.value + 2 * _gate_width(model, local)
        return shape.element_bytes * local.tokens * width, 0.0

    def backward_tensors(self, model: Model, shape: RankShape) -> list[SavedTensor]:
        inputs = matmul_input_tensors("attention", "qkv_input", model, shape)
        return attention_tensors(model, shape, [replace(each, moved_by="qkv_linear") for each in inputs])


def attention_tensors(
    model: Model, shape: RankShape, inputs: Sequence[SavedTensor], freed_by: tuple[RecomputeModule, ...] = ()
) -> list[SavedTensor]:
    """Return the tensors that an attention block's backward reads, given the inputs of its QKV matmuls."""
    e, local = shape.element_bytes, local_sizes(model, shape)
    hidden, tokens = e * local.edge_tokens * local.hidden, e * local.tokens
    query, kv, value, output = (tokens * width for width in (local.query, local.kv, local.value, local.output))
    gate, projected = tokens * _gate_width(model, local), 0.0 if model.values_from_keys else value
    normed = query + kv + (projected if model.qk_norm == "qkv" else 0)
    return [
        SavedTensor("attention", "attention_norm_input", hidden, "input", moved_by="attn_norm"),
        *inputs,
        *([SavedTensor("attention", "qk_norm_input", normed)] if model.qk_norm else []),
        SavedTensor("attention", "query", query, "kept", freed_by=freed_by, moved_by="core_attn"),
        SavedTensor(
            "attention", "key", kv, "other" if model.gated_mlp else "kept", freed_by=freed_by, moved_by="core_attn"
        ),
        SavedTensor("attention", "value", value, "kept", freed_by=freed_by, moved_by="core_attn"),
        *_core_tensors(model, shape),
        *[SavedTensor("attention", name, gate, "kept") for name in ("output_gate", "output_gate_input") if gate],
        SavedTensor("attention", "projection_input", output, "kept", read="W", in_fp8="copied", moved_by="attn_proj"),
        *([SavedTensor("attention", "attention_post_norm_input", hidden)] if model.layer_norms == 4 else []),
        *dropout_mask_tensors("attention", "attention_dropout_mask", model, shape),
        SavedTensor("attention", "projection_output_grad", tokens * local.hidden, made="I", read="W", in_fp8="cast"),
        SavedTensor("attention", "qkv_output_grad", query + kv + projected + gate, made="I", read="W", in_fp8="cast"),
    ]


def _core_tensors(model: Model, shape: RankShape) -> list[SavedTensor]:
    """Return the tensors that the core attention saves: row statistics if fused, score squares if unfused.

    Where a fused core is recomputed it saves only its statistics: its operands are the checkpoint's input, and its
    output, the projection's operand, is released when that operand has been read.
    """
    local = local_sizes(model, shape)
    heads, keys, rows = local.heads, local.columns, local.tokens * local.heads
    if shape.attention == "fused":
        return [SavedTensor("attention", "log_sum_exp", FP32_BYTES * rows, "core" if shape.recomputes_core else "kept")]
    square = rows * keys
    sizes = {"softmax_output": shape.element_bytes * square}
    if shape.element_bytes < FP32_BYTES and not has_fused_softmax(shape, shape.micro_batch * heads, keys):
        sizes["softmax_output_in_fp32"] = FP32_BYTES * square
    if shape.dropout:
        sizes["softmax_dropout_mask"] = MASK_BYTES * square
        sizes["softmax_dropout_output"] = shape.element_bytes * square
    return [SavedTensor("attention", name, size, "core") for name, size in sizes.items()]


def core_attention_section(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Return the kernels of the core attention: one fused kernel, or matmuls and a softmax."""
    match shape.attention:
        case "fused":
            return fused_core_section(model, shape, local)
        case "unfused":
            return unfused_core_section(shape, local)
    assert_never(shape.attention)


def _gate_width(model: Model, local: LocalSizes) -> int:
    return local.query if model.attention_gate else 0


def _gate_section(shape: RankShape, local: LocalSizes) -> Section:
    """Return the kernels that multiply the core's output by the sigmoid of the gate: one fused kernel, or two."""
    size, separate = shape.element_bytes * local.tokens * local.output, shape.kernels == "eager"
    forward, backward = (5, 8) if separate else (3, 5)
    return forward_backward_section("output_gate", forward * size, backward * size, 1 + separate)


def _rotation_section(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    if model.position != "rope":
        return Section()
    if shape.kernels == "eager":
        return eager.unfused_rotation(shape, local)
    return {"fused": fused_rotation, "steps": eager.rotation_step_section}[shape.rope](shape, local)
