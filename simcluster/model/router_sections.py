"""Kernels of a mixture's router on one GPU: scores, top-k choice of experts, and routing map.

Megatron-Core's TopKRouter (core/transformer/moe/router.py, moe_utils.py). Its tensors have an element for each token
and expert, so its kernels are small, and there are many of them: each step of its expressions is one, or with
--moe-router-fusion each expression (Transformer Engine, fused_router). Bytes as in ``list_layer_sections``;
``launches`` are the kernels, ``passes`` the readings of a radix selection, each of which waits for the previous one.
"""

from __future__ import annotations

from dataclasses import replace

from simcluster.model.kernels import Kernel, Section
from simcluster.model.layer_sections import (
    FP32_BYTES,
    forward_backward_section,
    join_sections,
    linear_section,
    memory_kernel,
)
from simcluster.model.mixture import Moe
from simcluster.model.rank_shape import LocalSizes, RankShape
from simcluster.model.transformer import Model

_RADIX_PASSES = 16  # PyTorch's radix selection takes 2 bits of 32 at a time (aten/native/cuda/SortingRadixSelect.cuh)
_MAP_BYTES = 1.0  # who visits whom is a byte for each token and expert
_INTEGER_BYTES = 4.0


def router_section(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Return the router's kernels: logits of all experts, top-k choice, capacity limit, load-balancing loss.

    With hash routing a look-up replaces the choice, and neither bias nor loss balances the experts (transformers
    5.24.0, modeling_deepseek_v4.py, ``DeepseekV4HashRouter``); the memory of its table is neglected.
    """
    moe, hashed = model.moe, model.hash_routing is True
    assert moe is not None
    # not a module of Transformer Engine: never in fp8
    bias = moe.router_bias and not hashed
    out = linear_section("router", shape, local.edge_tokens, local.hidden, moe.experts, bias=bias, wide=True)
    if {"activations": False, "fp32": True}[shape.experts.router_dtype]:
        out = _fp32_logits_section(out, shape, local.edge_tokens, local.hidden)
    scores = local.edge_tokens * moe.experts
    fused = {"steps": False, "fused": True}[shape.experts.router] and not hashed
    choice, loss = _fused_sections(shape, scores) if fused else _separate_sections(shape, local.edge_tokens, scores)
    if hashed:  # rows of a table of 8-byte numbers, copied
        table = memory_kernel("router_choice", 8.0 * local.edge_tokens * (1 + 2 * moe.top_k))
        choice = replace(choice, forward=(choice.forward[0], table, *choice.forward[2:]))
    pieces = [out, choice]
    if moe.capacity_factor is not None:
        pieces.append(_capacity_section(moe, shape, scores))
    if moe.aux_loss and not hashed:
        pieces.append(loss)
    return join_sections(pieces, "none")


def _fp32_logits_section(product: Section, shape: RankShape, tokens: int, hidden: int) -> Section:
    """Return the router's matmul with fp32 logits; the backward casts weights, inputs and input gradient.

    Bytes decide: fp32 matmuls take tensor cores as TF32, at 2 FLOP per expert for each element of 4 bytes.
    (Megatron-LM, core/transformer/moe/moe_utils.py, ``RouterGatingLinearFunction``; Transformer Engine, general_gemm.)
    """
    more = FP32_BYTES - shape.element_bytes
    both = FP32_BYTES + shape.element_bytes
    (forward,), (input_grad,), (weight_grad, *others) = product.forward, product.input_grad, product.weight_grad
    scores, inputs, weights = tokens * forward.n, tokens * hidden, forward.n * hidden
    return Section(
        forward=(replace(forward, bytes=forward.bytes + more * scores),),
        input_grad=(
            memory_kernel("router_weights_to_fp32", both * weights),
            replace(input_grad, bytes=input_grad.bytes + more * (scores + inputs + weights)),
            memory_kernel("router_input_grad_to_16_bits", both * inputs),
        ),
        weight_grad=(
            memory_kernel("router_inputs_to_fp32", both * inputs),
            replace(weight_grad, bytes=weight_grad.bytes + more * (scores + inputs)),
            *others,
        ),
    )


def _separate_sections(shape: RankShape, tokens: int, scores: int) -> tuple[Section, Section]:
    """Return the kernels of the choice of experts, and of the load-balancing loss, one for each step."""
    e, wide = shape.element_bytes, FP32_BYTES
    choice = Section(
        forward=(
            memory_kernel("router_scores", (e + wide) * scores),
            _top_k_kernel("router_choice", wide * scores, tokens),
            memory_kernel("router_map", (5 * e + 4 * _INTEGER_BYTES + _MAP_BYTES) * scores, 11),
        ),
        input_grad=(memory_kernel("router_choice_input_grad", (4 * wide + e) * scores, 6),),
    )
    loss = Section(  # compute_routing_scores_for_aux_loss, and the loss of its sums
        forward=(
            memory_kernel("router_loss_scores", (e + wide) * scores),
            _top_k_kernel("router_loss_choice", wide * scores, tokens),
            memory_kernel("router_loss", (wide + 4 * _INTEGER_BYTES + 2 * _MAP_BYTES) * scores, 16),
        ),
        input_grad=(memory_kernel("router_loss_input_grad", (3 * wide + 4 * e) * scores, 8),),
    )
    return choice, loss


def _fused_sections(shape: RankShape, scores: int) -> tuple[Section, Section]:
    """Return the kernels of the choice of experts, and of the load-balancing loss, one for each expression."""
    e, wide = shape.element_bytes, FP32_BYTES
    return (
        forward_backward_section("router_choice", (2 * e + wide + _MAP_BYTES) * scores, (2 * e + wide) * scores),
        forward_backward_section(
            "router_loss", (e + 2 * wide + 2 * _MAP_BYTES) * scores, (2 * wide + 3 * e) * scores, launches=3
        ),
    )


def _capacity_section(moe: Moe, shape: RankShape, scores: int) -> Section:
    """Return the kernels that keep the best tokens of every expert, by column (apply_router_token_dropping)."""
    e = shape.element_bytes
    best = _top_k_kernel("router_capacity", e * scores, moe.experts)
    dropped = memory_kernel("router_drop", (6 * e + 2 * _MAP_BYTES) * scores, 5)
    back = memory_kernel("router_drop_input_grad", (2 * e + _MAP_BYTES) * scores)
    return Section((best, dropped), input_grad=(back,))


def _top_k_kernel(name: str, size: float, rows: int) -> Kernel:
    return Kernel(name, "memory", 0.0, size, rows=rows, launches=2, passes=_RADIX_PASSES)
