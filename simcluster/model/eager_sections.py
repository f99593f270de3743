"""Kernels of operations that eager PyTorch runs in more kernels than fused libraries do.

Each step of an expression is a separate kernel that reads and writes whole tensors, with fp32 copies wherever the
model's code computes in fp32. FLOPs are the same as in ``list_layer_sections``; only memory traffic and the number of
kernels differ. Sources: aten's native kernels and composites (rms_norm, native_layer_norm, silu, log_softmax, nll_loss)
and their backward; torchtitan's models/llama3 (``apply_rotary_emb``, ``repeat_kv``) and its cross-entropy. Kernels on
one number per token (rsqrt of the mean) are omitted, since their bytes are negligible. The lists are from knowledge of
these sources, not read again or profiled for this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simcluster.model.kernels import Kernel, Section
from simcluster.model.layer_sections import (
    FP32_BYTES,
    forward_backward_section,
    memory_kernel,
    step_kernels,
)
from simcluster.model.rank_shape import LocalSizes, RankShape
from simcluster.model.transformer import Model

_BLOCK_PASSES = 3  # of log_softmax over a long row: maximum, sum, result


def unfused_norm(name: str, model: Model, shape: RankShape, local: LocalSizes, *, residual: bool) -> Section:
    """Return a norm's eager kernels: LayerNorm has one (two in backward), RMSNorm one per fp32 operation."""
    e, elements = shape.element_bytes, local.edge_tokens * local.hidden
    add = [memory_kernel(f"{name}_residual_grad", 3 * e * elements)] if residual else []
    if model.norm == "layernorm":
        back = step_kernels(name, elements, {"input_grad": 3 * e, "parameters_grad": 2 * e})
        return Section(forward=(memory_kernel(name, 2 * e * elements),), input_grad=(*back, *add))
    wide = FP32_BYTES
    forward = {
        "to_fp32": e + wide,
        "square": 2 * wide,
        "mean": wide,
        "scaled": 2 * wide,
        "to_16_bits": wide + e,
        "weighted": 2 * e,
    }
    grads = {
        "weighted_grad": 2 * e,
        "weight_products": 3 * e,  # of gradient and scaled input, summed by the next kernel
        "weight_sum": e,
        "grad_to_fp32": e + wide,
        "scaled_grad": 2 * wide,
        "scale_products": 3 * wide,
        "scale_sum": wide,
        "doubled": 2 * wide,  # of x^2: 2 x, times the gradient of the mean
        "square_grad": 2 * wide,
        "grad_sum": 3 * wide,
        "grad_to_16_bits": wide + e,
    }
    return Section(step_kernels(name, elements, forward), input_grad=(*step_kernels(name, elements, grads), *add))


def unfused_rotation(shape: RankShape, local: LocalSizes) -> Section:
    """Return the eager kernels of rotary positions: cast Q and K to fp32, complex multiply, cast to 16 bits."""
    e, count = shape.element_bytes, local.tokens * (local.query + local.kv)
    steps = {"to_fp32": e + FP32_BYTES, "product": 2 * FP32_BYTES, "to_16_bits": FP32_BYTES + e}
    return Section(step_kernels("rope", count, steps), input_grad=step_kernels("rope_input_grad", count, steps))


def head_copy_section(shape: RankShape, local: LocalSizes) -> Section:
    """Return the kernels that copy keys and values for grouped-query heads, and sum the copies' gradients."""
    if local.query == local.kv:
        return Section()
    size = shape.element_bytes * local.tokens * (local.query + local.kv)
    return Section(
        forward=(memory_kernel("key_copies", size), memory_kernel("value_copies", size)),
        input_grad=(memory_kernel("key_copies_grad", size), memory_kernel("value_copies_grad", size)),
    )


def split_grad_section(name: str, model: Model, shape: RankShape, local: LocalSizes, parts: int, width: int) -> Section:
    """Return the kernels that join the gradients of ``parts`` tensors made from one input, ``width`` columns in all.

    The Llama family has a matmul for each part, and their input gradients are summed one after the other; the GPT
    family has one matmul, and the gradients of its parts are copied into one tensor.
    """
    e, tokens = shape.element_bytes, local.tokens
    if parts == 1:
        return Section()
    if not model.gated_mlp:
        return Section(input_grad=(memory_kernel(f"{name}_parts_grad", 2 * e * tokens * width),))
    return Section(input_grad=(memory_kernel(f"{name}_grads_sum", 3 * e * tokens * local.hidden),) * (parts - 1))


def unfused_activation(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Return the eager kernels of the activation function: one kernel for GELU, two for SwiGLU."""
    e, elements = shape.element_bytes, local.tokens * local.ffn
    if not model.gated_mlp:
        return forward_backward_section("gelu", 2 * e * elements, 3 * e * elements)
    forward, backward = {"silu": 2 * e, "product": 3 * e}, {"gate_grad": 3 * e, "up_grad": 3 * e, "silu_grad": 3 * e}
    return Section(step_kernels("swiglu", elements, forward), input_grad=step_kernels("swiglu", elements, backward))


def unfused_loss(shape: RankShape, logits: float) -> Section:
    """Return the eager kernels of the loss: logits to fp32, log_softmax in three passes, nll_loss."""
    e, wide = shape.element_bytes, FP32_BYTES
    forward = {"logits_to_fp32": e + wide, "log_softmax": (_BLOCK_PASSES + 1) * wide}
    backward = {"nll_grad": wide, "log_softmax_grad": 4 * wide, "grad_to_16_bits": wide + e}
    return Section(step_kernels("loss", logits, forward), input_grad=step_kernels("loss", logits, backward))


# --- rotary positions step by step ------------------------------------------------------------------------------------
#
# Each step of Megatron-Core's expression is a kernel, and each step of its gradient as autograd takes it
# (core/models/common/embeddings/rope_utils.py, ``_apply_rotary_pos_emb_bshd``): where positions are scaled as YaRN
# does, since Transformer Engine's kernel takes no factor (mscale), and in latent attention without
# --enable-experimental, whose kernel is experimental (fusions/fused_mla_yarn_rope_apply.py).

RotationSteps = Mapping[str, tuple[float, int]]

# How often a step passes over the rotated tensor (one read or write is one), and its number of kernels.
ROTATION_STEPS: RotationSteps = {
    "halves": (3, 2),  # one half with its sign changed, and both put together
    "products": (4, 2),  # with cosines and sines
    "sum": (3, 1),
    "whole": (2, 1),  # concatenated with the part that is not rotated, even if that is empty
}
ROTATION_BACKWARD_STEPS: RotationSteps = {
    "products": (4, 2),
    "halves": (3, 2),
    "sum": (3, 1),
    "parts": (4, 3),  # gradients of both parts, in zeros as large as the whole
    "parts_sum": (3, 1),
}


def rotation_step_section(shape: RankShape, local: LocalSizes) -> Section:
    """Return the kernels that rotate queries and keys, one kernel for each operation of the formula."""
    size = shape.element_bytes * local.tokens * (local.query + local.kv)
    return Section(
        rotation_kernels("rope", size, ROTATION_STEPS),
        input_grad=rotation_kernels("rope_input_grad", size, ROTATION_BACKWARD_STEPS),
    )


def rotation_kernels(name: str, size: float, steps: RotationSteps) -> tuple[Kernel, ...]:
    """Return one kernel over ``size`` bytes for each rotation operation, launched for queries and for keys."""
    return tuple(
        replace(memory_kernel(f"{name}_{step}", times * size), launches=2 * kernels)
        for step, (times, kernels) in steps.items()
    )
