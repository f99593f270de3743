"""Rotary positions where no kernel does them whole: each step of Megatron-Core's expression is a kernel, and each step
of its gradient as autograd takes it (core/models/common/embeddings/rope_utils.py, ``_apply_rotary_pos_emb_bshd``).

So it is where positions are scaled as YaRN does: Transformer Engine's kernel takes no factor (mscale), and
Megatron-Core falls back to the expression (``apply_rotary_pos_emb``).  And in latent attention without
--enable-experimental, whose kernel is experimental (fusions/fused_mla_yarn_rope_apply.py).  Bytes as in
``layer_sections``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simcluster.model.kernels import Kernel, Section
from simcluster.model.layer_sections import LocalSizes, RankShape, both_ways, join, memory
from simcluster.model.mixture import Mla
from simcluster.model.transformer import Model

_Steps = Mapping[str, tuple[float, int]]

# How often a step goes over what is turned (a tensor read or written is once), and its kernels.
_FORWARD: _Steps = {
    "halves": (3, 2),  # one half with its sign changed, and both put together
    "products": (4, 2),  # with cosines and sines
    "sum": (3, 1),
    "whole": (2, 1),  # put together with the part that is not turned, also where there is none
}
_BACKWARD: _Steps = {
    "products": (4, 2),
    "halves": (3, 2),
    "sum": (3, 1),
    "parts": (4, 3),  # gradients of both parts, in zeros as large as the whole
    "parts_sum": (3, 1),
}
# Latent attention first puts even and odd elements next to each other.
_TOGETHER: _Steps = {"pairs": (2, 1)}
_APART: _Steps = {"pairs": (4, 4), "pairs_sum": (3, 1)}


def rotation_in_steps(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Of queries and of keys, one behind the other."""
    if model.position != "rope":
        return Section()
    size = shape.element_bytes * local.tokens * (local.query + local.kv)
    return Section(_each("rope", size, _FORWARD), input_grad=_each("rope_input_grad", size, _BACKWARD))


def latent_rotation(shape: RankShape, local: LocalSizes, mla: Mla) -> Section:
    """Heads of latent attention made of their parts: positions turned, the key's part given to all heads.

    By one kernel for queries and one for keys and values, each of which is copied; or in steps, with queries, keys and
    values put together by copies of their own, and back their gradients.
    """
    e, tokens, heads = shape.element_bytes, local.tokens, local.heads
    if {"fused": True, "steps": False}[shape.rope]:
        copied = 2 * e * tokens * (local.query + local.kv)
        return both_ways("latent_rope", copied, copied)
    turned = e * tokens * (heads + 1) * mla.qk_rope_head_dim  # the keys' part is one head
    plain = e * tokens * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    query, keys = e * tokens * local.query, e * tokens * local.kv
    steps = Section(
        _each("latent_rope", turned, {**_TOGETHER, **_FORWARD}),
        input_grad=_each("latent_rope_input_grad", turned, {**_BACKWARD, **_APART}),
    )
    given = keys - e * tokens * heads * mla.qk_nope_head_dim  # positions, the same for all heads
    copies = Section(
        forward=(
            memory("latent_query_copy", 2 * query),
            memory("latent_key_copy", 2 * keys - given),
            memory("latent_value_copy", 2 * e * tokens * local.value),
        ),
        input_grad=(
            memory("latent_position_grad", given),
            memory("latent_query_grad_copy", 2 * query),
            memory("latent_key_grad_copy", 2 * plain),
        ),
    )
    return join((steps, copies), "none")


def _each(name: str, size: float, steps: _Steps) -> tuple[Kernel, ...]:
    """A step's kernels, of queries and of keys, as one row."""
    return tuple(
        replace(memory(f"{name}_{step}", times * size), launches=2 * kernels)
        for step, (times, kernels) in steps.items()
    )
