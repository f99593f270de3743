"""Layer kind of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from simcluster.documents.field_annotations import AllowedValues
from simcluster.model.attention import Attention, attention_tensors, core_attention_section
from simcluster.model.eager_sections import ROTATION_BACKWARD_STEPS, ROTATION_STEPS, rotation_kernels
from simcluster.model.kernel_choices import RecomputeModule, with_recompute
from simcluster.model.kernels import Block, Section
from simcluster.model.layer_block import layer_block
from simcluster.model.layer_kind import Flops, WeightMatrix
from simcluster.model.layer_sections import (
    forward_backward_section,
    fused_norm,
    join_sections,
    linear_section,
    memory_kernel,
)
from simcluster.model.mixture import Mla
from simcluster.model.rank_shape import LocalSizes, RankShape, local_sizes
from simcluster.model.saved_tensors import SavedTensor
from simcluster.model.shard_widths import shard_widths
from simcluster.model.transformer import Model


class LatentAttention(Attention):
    """Layer kind of latent attention: keys and values of all heads are computed from one narrow vector."""

    MODELLED_WITH: ClassVar[Mapping[str, AllowedValues]] = {
        "training.recompute": AllowedValues(
            ("none", "full", "selective"),
            "recompute 'operators' is not supported with model.mla; use none, selective or full",
        )
    }

    def matrices(self, model: Model, tp: int = 1, ep: int = 1, etp: int = 1) -> Iterator[WeightMatrix]:
        """Yield a rank's weight matrices: down-projections (not split), up-projections, output projection."""
        heads, hidden, mla = shard_widths(model, tp).heads, model.hidden_size, _require_mla(model)
        if mla.q_lora_rank:
            yield WeightMatrix(mla.q_lora_rank, hidden, "none")
        yield WeightMatrix(mla.kv_lora_rank + mla.qk_rope_head_dim, hidden, "none")
        yield WeightMatrix(heads * mla.qk_head_dim, mla.q_lora_rank or hidden, "rows")
        yield WeightMatrix(heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank, "rows")
        yield WeightMatrix(hidden, heads * mla.v_head_dim, "columns")

    def matmul_matrices(self, model: Model, tp: int = 1, etp: int = 1) -> list[WeightMatrix]:
        """Return all weight matrices; none are fused, so each has its own matmul."""
        return list(self.matrices(model, tp))

    def count_vector_parameters(self, model: Model, tp: int = 1) -> int:
        """Count a tp rank's parameters in norms of the narrow vectors and in attention sinks.

        The norms are whole on every rank (Megatron-LM, multi_latent_attention.py).
        """
        mla = _require_mla(model)
        sinks = shard_widths(model, tp).heads * (model.attention_sinks is True)
        return mla.kv_lora_rank + (mla.q_lora_rank or 0) + sinks

    def recompute_flops(self, model: Model, module: RecomputeModule, core: Flops) -> float:
        if module != "mla_up_proj":
            return super().recompute_flops(model, module, core)
        return 2.0 * model.sequence_length * sum(each.elements for each in self.matrices(model) if each.split == "rows")

    def block(self, model: Model, shape: RankShape) -> Block:
        """Return latent attention's kernels on one rank, from norm to residual add, as a block.

        Under sequence parallelism the narrow vectors are gathered, not the hidden state, except where queries come from
        it. Megatron-LM, core/transformer/multi_latent_attention.py; keys are assembled by a copy (position and
        content).
        """
        mla, local = _require_mla(model), local_sizes(model, shape)
        down = _down_projection_sections(shape, local, mla)
        low = mla.q_lora_rank or local.hidden
        narrow = replace(local, hidden=mla.kv_lora_rank + (mla.q_lora_rank or 0))
        again = shape.recomputes_module("mla_up_proj")
        block = layer_block("attention", model, shape, local, self.body(model, shape, local), normed=False)
        before = with_recompute(block.entry, enabled=shape.recomputes_module("layernorm"))
        inner = with_recompute(fused_norm("latent_norm", shape, narrow, residual=False), enabled=again)
        gathered = mla.kv_lora_rank + mla.qk_rope_head_dim + low
        return replace(block, entry=join_sections((before, *down, inner), shape.recompute), gathered_width=gathered)

    def body(self, model: Model, shape: RankShape, local: LocalSizes) -> tuple[Section, ...]:
        """Return the sections of a rank's heads, from the narrow vectors to the output projection."""
        mla, tokens = _require_mla(model), local.tokens
        low, again = mla.q_lora_rank or local.hidden, shape.recomputes_module("mla_up_proj")
        queries = linear_section("latent_query", shape, tokens, low, local.query, bias=False)
        width = local.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        keys = linear_section("latent_key", shape, tokens, mla.kv_lora_rank, width, bias=False)
        projection = linear_section("projection", shape, tokens, local.output, local.hidden, bias=False)
        turned = with_recompute(_head_assembly_section(model, shape, local), enabled=again)
        made = with_recompute(join_sections((queries, keys), "none"), enabled=again)
        return made, turned, core_attention_section(model, shape, local), projection

    def backward_tensors(self, model: Model, shape: RankShape) -> list[SavedTensor]:
        return attention_tensors(model, shape, self.narrow_tensors(model, shape), ("mla_up_proj",))

    def narrow_tensors(self, model: Model, shape: RankShape) -> list[SavedTensor]:
        """Return the tensors that the backward of the down-projections and of the narrow vectors' norms reads."""
        mla, local = _require_mla(model), local_sizes(model, shape)
        tokens, edge = (shape.element_bytes * local.tokens, shape.element_bytes * local.edge_tokens)
        width = mla.kv_lora_rank + (mla.q_lora_rank or 0)
        gathered = mla.kv_lora_rank + (mla.q_lora_rank or model.hidden_size)
        found = [
            SavedTensor("attention", "latent_input", edge * model.hidden_size, read="W", in_fp8="cast",
                   freed_by=("layernorm",), moved_by="qkv_linear"),
            SavedTensor("attention", "latent", edge * mla.narrow_width),
            SavedTensor("attention", "latent_normed", edge * width, read="W", in_fp8="cast", freed_by=("mla_up_proj",)),
            SavedTensor("attention", "latent_output_grad", edge * mla.narrow_width, made="I", read="W", in_fp8="cast"),
        ]  # fmt: skip
        if shape.sequence_parallel and shape.tp > 1:
            found.append(SavedTensor("attention", "latent_gathered", tokens * gathered, made="I", read="W"))
        return found


def _down_projection_sections(shape: RankShape, local: LocalSizes, mla: Mla) -> tuple[Section, ...]:

    def down_projection(name: str, width: int) -> Section:
        return linear_section(name, shape, local.edge_tokens, local.hidden, width, bias=False)

    keys = down_projection("latent_key_down", mla.kv_lora_rank + mla.qk_rope_head_dim)
    if not mla.q_lora_rank:
        return (keys,)
    size = 3 * shape.element_bytes * local.edge_tokens * local.hidden
    summed = Section(input_grad=(memory_kernel("latent_down_grad", size),))
    return (summed, down_projection("latent_query_down", mla.q_lora_rank), keys)


def _head_assembly_section(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Return the kernels that rotate positions, if the model has any, and assemble the heads of latent attention.

    The keys' rotated part is given to all heads. With one kernel for queries and one for keys and values, each of which
    is copied; or in steps, with separate copies to assemble queries, keys and values, and in backward their gradients.
    """
    e, tokens, heads, mla = shape.element_bytes, local.tokens, local.heads, _require_mla(model)
    if {"fused": model.position != "none", "steps": False}[shape.rope]:
        copied = 2 * e * tokens * (local.query + local.kv)
        return forward_backward_section("latent_rope", copied, copied)
    plain = e * tokens * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    query, keys = e * tokens * local.query, e * tokens * local.kv
    given = keys - e * tokens * heads * mla.qk_nope_head_dim  # positions, the same for all heads
    copies = Section(
        forward=(
            memory_kernel("latent_query_copy", 2 * query),
            memory_kernel("latent_key_copy", 2 * keys - given),
            memory_kernel("latent_value_copy", 2 * e * tokens * local.value),
        ),
        input_grad=(
            memory_kernel("latent_position_grad", given),
            memory_kernel("latent_query_grad_copy", 2 * query),
            memory_kernel("latent_key_grad_copy", 2 * plain),
        ),
    )
    return copies if model.position == "none" else join_sections((rotation_in_steps(shape, local, mla), copies), "none")


def rotation_in_steps(shape: RankShape, local: LocalSizes, mla: Mla) -> Section:
    """Return a kernel per operation of the rotation of positions, of all queries and of the keys' one shared head."""
    turned = shape.element_bytes * local.tokens * (local.heads + 1) * mla.qk_rope_head_dim
    return Section(
        rotation_kernels("latent_rope", turned, {"pairs": (2, 1), **ROTATION_STEPS}),
        input_grad=rotation_kernels(
            "latent_rope_input_grad", turned, {**ROTATION_BACKWARD_STEPS, "pairs": (4, 4), "pairs_sum": (3, 1)}
        ),
    )


def _require_mla(model: Model) -> Mla:
    assert model.mla is not None
    return model.mla
