"""Kernels of the basic operations of a layer (norm, linear, dropout, ...) on one GPU, by phase.

Bytes follow one rule: every tensor that a kernel reads or writes counts once. Memory kernels count no FLOPs: bytes are
what limits them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from simcluster.model.kernels import Kernel, Section
from simcluster.model.rank_shape import LocalSizes, RankShape
from simcluster.model.transformer import Model, Recompute

FP32_BYTES = 4.0  # softmax statistics and logits of the loss, whatever the precision of the rest
MASK_BYTES = 1.0  # a dropout mask is one byte per element


def join_sections(pieces: Sequence[Section], recompute: Recompute) -> Section:
    """Join consecutive sections into one section; its backward runs them in reverse order.

    Under full recompute the whole forward runs again; otherwise the parts that the sections name.
    """
    forward = tuple(chain.from_iterable(piece.forward for piece in pieces))
    again = tuple(chain.from_iterable(piece.recompute for piece in pieces))
    return Section(
        forward=forward,
        recompute=forward if recompute == "full" else again,
        input_grad=tuple(chain.from_iterable(piece.input_grad for piece in reversed(pieces))),
        weight_grad=tuple(chain.from_iterable(piece.weight_grad for piece in reversed(pieces))),
    )


# --- kernels --------------------------------------------------------------------------------------------------------


def memory_kernel(name: str, size: float, launches: int = 1) -> Kernel:
    """Return a kernel limited by memory bandwidth, which reads and writes ``size`` bytes in all its launches."""
    return Kernel(name, "memory", 0.0, size, launches=launches)


def forward_backward_section(name: str, forward: float, backward: float, launches: int = 1) -> Section:
    """Return a section of memory-bound kernels that move ``forward`` and, in the backward, ``backward`` bytes."""
    input_grad = memory_kernel(f"{name}_input_grad", backward, launches)
    return Section((memory_kernel(name, forward, launches),), input_grad=(input_grad,))


def step_kernels(name: str, elements: float, steps: Mapping[str, float]) -> tuple[Kernel, ...]:
    """Return one memory kernel per step of an expression; ``steps`` has the bytes per element of each."""
    return tuple(memory_kernel(f"{name}_{step}", size * elements) for step, size in steps.items())


def matmul_kernel(
    name: str, m: int, n: int, k: int, element_bytes: float, batch: int = 1, *, operand_bytes: float = 0.0
) -> Kernel:
    """Return a kernel of ``batch`` matmuls (m x k)(k x n); each operand and result is moved once.

    An element has ``element_bytes``, of the operands ``operand_bytes`` if that is not 0.
    """
    size = batch * ((operand_bytes or element_bytes) * (m * k + k * n) + element_bytes * (m * n))
    flops = 2.0 * batch * m * n * k
    return Kernel(name, "matmul", flops, size, m, n, k, batch, keeps_16_bits=True, operand_bytes=operand_bytes)


# --- operations -----------------------------------------------------------------------------------------------------


def linear_section(
    name: str, shape: RankShape, tokens: int, width_in: int, width_out: int, *, bias: bool, wide: bool = False
) -> Section:
    """Return the kernels of a linear layer: Y = X W, dX = dY W^T, and dW = X^T dY added to the main gradient.

    Operands of all three have ``shape.cast_bytes``, unless the matmul is ``wide``; Y and dX have
    ``element_bytes`` in every precision, and dW those of the main gradient. The matmul's epilogue or the next kernel
    adds the bias (if neither: ``bias_section``); its gradient is a pass over dY. Where the library cannot add inside
    the matmul (Megatron-LM before --gradient-accumulation-fusion, autograd), dW is written in 16 bits and added by a
    separate kernel.
    """
    e, weights = shape.element_bytes, width_in * width_out
    operand, wide = e if wide else shape.cast_bytes, wide or shape.wide
    apart = {"fused": False, "separate": True}[shape.accumulate] and shape.grad_accumulate_bytes > 0
    written = e * weights if apart else shape.gradient_write_bytes(weights)
    size = operand * tokens * (width_in + width_out) + written
    grad, flops = f"{name}_weight_grad", 2.0 * tokens * weights
    product = Kernel(grad, "matmul", flops, size, width_in, width_out, tokens, transposed=True, keeps_16_bits=wide)
    weight_grad: tuple[Kernel, ...] = (replace(product, operand_bytes=operand),)
    if apart:  # reads what the matmul wrote, adds it to the main gradient
        weight_grad += (memory_kernel(f"{grad}_accumulate", e * weights + shape.gradient_write_bytes(weights)),)
    if bias:
        weight_grad += (memory_kernel(f"{name}_bias_grad", e * tokens * width_out),)
    forward = matmul_kernel(name, tokens, width_out, width_in, e, operand_bytes=operand)
    input_grad = matmul_kernel(f"{name}_input_grad", tokens, width_in, width_out, e, operand_bytes=operand)
    return Section((replace(forward, keeps_16_bits=wide),), (), (replace(input_grad, keeps_16_bits=wide),), weight_grad)


def batch_matmuls(section: Section, count: int) -> Section:
    """Return a section with ``count`` equal matmuls in a batch instead of each, and as many times the bytes."""
    return section.map_kernels(
        lambda one: replace(one, flops=count * one.flops, bytes=count * one.bytes, batch=count if one.m else 1)
    )


def bias_section(name: str, shape: RankShape, tokens: int, width: int) -> Section:
    """Return a separate kernel that adds a bias to a matmul's output."""
    return Section(forward=(memory_kernel(f"{name}_bias", 2 * shape.element_bytes * tokens * width),))


def fused_norm(name: str, shape: RankShape, local: LocalSizes, *, residual: bool) -> Section:
    """Return the fused kernels of a norm: the forward reads X and writes Y, the backward reads X, dY and writes dX.

    Scale and shift gradients come with it. ``residual``: the gradient of the residual path is then added to dX (two
    reads, one write).
    """
    size = shape.element_bytes * local.edge_tokens * local.hidden
    input_grad: tuple[Kernel, ...] = (memory_kernel(f"{name}_input_grad", 3 * size),)
    if residual:
        input_grad += (memory_kernel(f"{name}_residual_grad", 3 * size),)
    return Section(forward=(memory_kernel(name, 2 * size),), input_grad=input_grad)


def residual_section(name: str, model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Return bias, dropout and residual add as one kernel, as Megatron-LM fuses them.

    It makes two reads, a write, and the mask. In backward the residual path costs nothing here; only dropout and the
    bias of the row-parallel matmul do.
    """
    elements = local.edge_tokens * local.hidden
    size = shape.element_bytes * elements
    biased = model.bias in (True, "attention") if name == "attention" else model.mlp_bias
    mask = MASK_BYTES * elements if shape.dropout else 0.0
    return Section(
        forward=(memory_kernel(f"{name}_residual_add", 3 * size + mask),),
        input_grad=(memory_kernel(f"{name}_dropout_input_grad", 2 * size + mask),) if shape.dropout else (),
        weight_grad=(memory_kernel(f"{name}_bias_grad", size),) if biased else (),
    )


def dropout_section(name: str, shape: RankShape, elements: int) -> Section:
    """Return the kernels of a separate dropout, which reads and writes the tensor and its mask."""
    size = (2 * shape.element_bytes + MASK_BYTES) * elements
    return forward_backward_section(name, size, size)


def fused_rotation(shape: RankShape, local: LocalSizes) -> Section:
    """Return the fused kernel of rotary positions, which reads and writes Q and K, forward and backward."""
    size = 2 * shape.element_bytes * local.tokens * (local.query + local.kv)
    return forward_backward_section("rope", size, size)


def learned_position_section(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Return the kernels that add learned position embeddings, and those of the position table's gradient."""
    if model.position != "learned":
        return Section()
    size = shape.element_bytes * local.edge_tokens * local.hidden
    rows = local.edge_tokens // shape.micro_batch
    update = shape.gradient_write_bytes(rows * local.hidden)
    return Section(
        forward=(memory_kernel("position_embedding", 3 * size),),
        weight_grad=(memory_kernel("position_embedding_weight_grad", size + update),),
    )


def fused_activation(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Return the fused kernel of GELU (with its bias) or SwiGLU, forward and backward."""
    reads = model.num_mlp_matrices - 1
    size = shape.element_bytes * local.tokens * local.ffn
    return forward_backward_section("swiglu" if model.gated_mlp else "gelu", (reads + 1) * size, (2 * reads + 1) * size)
