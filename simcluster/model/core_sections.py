"""Core attention, from queries, keys and values to what they give, as kernels of one GPU by pipeline phase: one flash
kernel, or products with a softmax between them over the whole square of scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simcluster.model.choices import CONTEXT_METHODS
from simcluster.model.kernels import Kernel, Section
from simcluster.model.layer_sections import FP32_BYTES, MASK_BYTES, LocalSizes, RankShape, dropout, join, matmul, memory
from simcluster.model.transformer import Model

_FLASH_BACKWARD = 2.5  # five products against two: scores are formed again (arXiv:2307.08691)
_FUSED_SOFTMAX_ROWS = 4  # one block of threads takes so many rows: heads and keys must divide by it
_FUSED_SOFTMAX_KEYS = (16, 16384)  # more than the first, at most the last


def fused_core(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """A flash kernel: reads Q, K, V, writes O and the log-sum-exp; back, reads those and dO, writes dQ, dK, dV.

    Back, a kernel before it sums O dO over rows and clears an fp32 dQ, to which blocks of keys add, and one behind it
    casts that to 16 bits (flash-attn: flash_bwd_preprocess_kernel.h and dq_accum, in all generations).
    Dropout inside it draws its mask again from the seed, so no mask is stored.  With cp the rank's queries meet the
    keys of the whole sequence; or it has heads of whole sequences (``context``).
    """
    m, n, batch = local.rows, local.columns, shape.micro_batch * local.heads
    k = (local.head_dim + local.value_dim) // 2  # of both products
    flops = 2.0 * batch * m * n * (local.head_dim + local.value_dim) * model.causal_factor
    kv_heads = local.kv // local.head_dim
    traders = traders_of(shape, local.heads, kv_heads) if shape.cp > 1 else 1  # longer parts of fewer heads
    m, batch = m * traders, batch // traders
    queries = shape.element_bytes * local.tokens * (local.query + local.output)
    keys = shape.element_bytes * shape.micro_batch * local.columns * (local.kv + local.value)
    keys *= max(kv_heads, traders) / (kv_heads * traders)  # fewer heads than traders are repeated
    statistics = FP32_BYTES * local.tokens * local.heads
    forward = Kernel("attention", "attention", flops, queries + keys + statistics, m, n, k, batch)
    if model.attention_window:
        forward = replace(forward, seen=model.causal_factor, edges=model.mask_edges)
    size = 2 * (queries + keys) + statistics
    back = replace(forward, name="attention_input_grad", flops=_FLASH_BACKWARD * flops, bytes=size)
    before, behind = backward_passes(shape, local)
    again = (forward,) if shape.core_again else ()
    return Section(forward=(forward,), recompute=again, input_grad=(before, back, behind))


def traders_of(shape: RankShape, heads: int, kv_heads: int) -> int:
    """Return how many ranks of cp trade tokens for heads."""
    return CONTEXT_METHODS[shape.cp_comm].traders(heads, kv_heads, shape.cp)


def backward_passes(shape: RankShape, local: LocalSizes) -> tuple[Kernel, Kernel]:
    """What goes before and behind a flash kernel's backward: sums of O dO and a cleared fp32 dQ; that in 16 bits."""
    queries = shape.element_bytes * local.tokens * (local.query + local.output)
    wide, statistics = FP32_BYTES * local.tokens * local.query, FP32_BYTES * local.tokens * local.heads
    before = memory("attention_row_sums", 2 * queries + wide + statistics)
    return before, memory("attention_query_grad", queries + wide)


def unfused_core(shape: RankShape, local: LocalSizes) -> Section:
    """Scores, softmax (scale and mask in it where one kernel does it), dropout, context: over the whole square.

    Each query head reads its own copy of K and V, as after the expansion of grouped heads.
    """
    e, batch = shape.element_bytes, shape.micro_batch * local.heads
    m, n, k, v = local.rows, local.columns, local.head_dim, local.value_dim
    square = batch * m * n
    drop = Section()
    if shape.dropout:
        drop = dropout("probabilities_dropout", shape, square).each(by_row)
    scores = Section(
        forward=(matmul("scores", m, n, k, e, batch),),
        input_grad=(
            matmul("scores_query_grad", m, k, n, e, batch),
            replace(matmul("scores_key_grad", n, k, m, e, batch), turned=True),
        ),
    )
    softmax = _softmax(shape, square, fused=has_fused_softmax(shape, batch, n))
    context = Section(
        forward=(matmul("context", m, v, n, e, batch),),
        input_grad=(
            matmul("context_probabilities_grad", m, n, v, e, batch),
            replace(matmul("context_value_grad", n, v, m, e, batch), turned=True),
        ),
    )
    core = join((scores, softmax, drop, context), "none")
    return replace(core, recompute=core.forward) if shape.core_again else core


def has_fused_softmax(shape: RankShape, squares: int, keys: int) -> bool:
    """Does scale, mask and softmax run as one kernel for so many squares of scores, a head of a sequence each?

    In 16 bits, and where blocks of threads come out even: a tp that leaves a rank two heads has none with one sequence.
    (Megatron-LM, FusedScaleMaskSoftmax.is_kernel_available; scaled_upper_triang_masked_softmax.h.)
    """
    low, high = _FUSED_SOFTMAX_KEYS
    return (
        shape.kernels == "fused"
        and shape.element_bytes == 2
        and low < keys <= high
        and keys % _FUSED_SOFTMAX_ROWS == squares % _FUSED_SOFTMAX_ROWS == 0
    )


def _softmax(shape: RankShape, square: int, *, fused: bool) -> Section:
    """Of all scores: one kernel, or one for each step, in fp32.

    (Megatron-LM, FusedScaleMaskSoftmax.forward_torch_softmax.)
    """
    e, wide = shape.element_bytes, FP32_BYTES
    forward, backward = {"softmax": 2 * e}, {"softmax_input_grad": 3 * e}
    if not fused:
        convert = {"to_fp32": e + wide} if e < wide else {}
        back = {"to_16_bits": wide + e} if e < wide else {}
        steps = {"scaled": 2 * wide, "masked": 2 * wide + MASK_BYTES}
        forward = _named("scores", {**convert, **steps}) | {"softmax": 2 * wide} | _named("probabilities", back)
        gradient = _named("scores_grad", dict(reversed(steps.items())) | back)
        backward = _named("probabilities_grad", convert) | {"softmax_input_grad": 3 * wide} | gradient
    forward_kernels, backward_kernels = (
        tuple(replace(memory(name, size * square), by_row=name.startswith("softmax")) for name, size in steps.items())
        for steps in (forward, backward)
    )
    return Section(forward_kernels, input_grad=backward_kernels)


def _named(tensor: str, steps: Mapping[str, float]) -> dict[str, float]:
    return {f"{tensor}_{step}": size for step, size in steps.items()}


def by_row(kernel: Kernel) -> Kernel:
    """A kernel over attention's square, see ``Kernel.by_row``."""
    return replace(kernel, by_row=True)
