"""Core attention kernels of a GPU; how context parallelism splits them, and what its ranks exchange.

It is one flash kernel, or matmuls with a softmax between them over the whole square of scores.

Context parallelism (cp) splits the tokens of a sequence over ranks; queries must still meet the keys and values of all
of them. With ``ring`` these pass from rank to rank while the piece that has arrived is computed (arXiv:2310.01889;
Transformer Engine's p2p); with ``all_gather`` every rank first gets all of them (arXiv:2407.21783, section 3.3.2); with
``all_to_all`` ranks trade tokens for heads, and each computes whole sequences (arXiv:2309.14509); with ``hybrid``
consecutive ranks trade heads, and keys and values pass around a ring of such groups (arXiv:2405.07719; Transformer
Engine's a2a+p2p).

Under a causal mask shares decide the work. ``zigzag``: a rank has one piece from the front and one from the back, and
all pieces of all ranks are equal work: half of the diagonal, and half of the queries or of the keys of each other.
``contiguous``: the last rank meets all other pieces whole, (2 cp - 1) / cp times the mean, and all wait for it: every
rank is counted as the last (arXiv:2310.01889 as written; PyTorch with load balancing off).

``torch``: as torch.distributed.tensor.experimental._attention does, whose ring works on pieces also of keys that were
gathered (rotate_method allgather). Heads are repeated before it, as torchtitan's models do; partial outputs and
gradients are summed in fp32, and gradients circulate in fp32, always hop by hop. Counting only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat

from simcluster.model.kernel_choices import CONTEXT_METHODS, ContextParallelMethod
from simcluster.model.kernels import Kernel, Section
from simcluster.model.layer_sections import (
    FP32_BYTES,
    MASK_BYTES,
    dropout_section,
    forward_backward_section,
    join_sections,
    matmul_kernel,
    memory_kernel,
    step_kernels,
)
from simcluster.model.rank_shape import LocalSizes, RankShape, local_sizes
from simcluster.model.transformer import Model

_FLASH_BACKWARD = 2.5  # five matmuls against two: scores are computed again (arXiv:2307.08691)
_FUSED_SOFTMAX_ROWS = 4  # rows of one block of threads: must divide heads and keys
_FUSED_SOFTMAX_KEYS = (16, 16384)  # more than the first, at most the last


def fused_core_section(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Return the kernels of flash attention, forward and backward.

    Forward reads Q, K, V and writes O and the log-sum-exp; backward reads those and dO and writes dQ, dK, dV. A kernel
    before the backward sums O dO over rows and clears an fp32 dQ, to which blocks of keys add, and one after it casts
    that to 16 bits (flash-attn: flash_bwd_preprocess_kernel.h and dq_accum, in all generations). Dropout draws its mask
    again from the seed, so no mask is stored. With cp the rank's queries meet the keys of the whole sequence; or it has
    heads of whole sequences (``all_to_all``).
    """
    m, n, batch = local.rows, local.columns, shape.micro_batch * local.heads
    k = (local.head_dim + local.value_dim) // 2  # mean of both matmuls
    flops = 2.0 * batch * m * n * (local.head_dim + local.value_dim) * model.causal_factor
    kv_heads = local.kv // local.head_dim
    chosen = shape.cp_comm, shape.cp, shape.cp_inner
    traders = count_head_trading_ranks(*chosen, local.heads, kv_heads)  # fewer heads, longer parts
    m, batch = m * traders, batch // traders
    queries = shape.element_bytes * local.tokens * (local.query + local.output)
    keys = shape.element_bytes * shape.micro_batch * local.columns * (local.kv + local.value)
    keys *= max(kv_heads, traders) / (kv_heads * traders)  # fewer heads than traders are repeated
    statistics = FP32_BYTES * local.tokens * local.heads
    forward = Kernel("attention", "attention", flops, queries + keys + statistics, m, n, k, batch)
    if model.attention_window:
        forward = replace(forward, seen=model.causal_factor, edges=model.mask_edges)
    if model.attention_chunk:  # a causal kernel whose queries meet the keys of a chunk, of a mean one if they differ
        forward = replace(forward, n=round(2 * model.causal_factor * n))
    size = 2 * (queries + keys) + statistics
    back = replace(forward, name="attention_input_grad", flops=_FLASH_BACKWARD * flops, bytes=size)
    before, behind = backward_helper_kernels(shape, local)
    again = (forward,) if shape.recomputes_core else ()
    return Section(forward=(forward,), recompute=again, input_grad=(before, back, behind))


def count_head_trading_ranks(comm: str, cp: int, inner: int | None, heads: int, kv_heads: int) -> int:
    """Return how many context-parallel ranks exchange tokens for heads in an all-to-all."""
    method = CONTEXT_METHODS[comm]
    hybrid = method.trade_axis == "cp_inner"
    return min(inner or 1 if hybrid else method.head_trading_ranks(heads, kv_heads, cp), cp)


def backward_helper_kernels(shape: RankShape, local: LocalSizes) -> tuple[Kernel, Kernel]:
    """Return the kernels before flash attention's backward (row sums of O dO, zero dQ) and after (cast of dQ)."""
    queries = shape.element_bytes * local.tokens * (local.query + local.output)
    wide, statistics = FP32_BYTES * local.tokens * local.query, FP32_BYTES * local.tokens * local.heads
    before = memory_kernel("attention_row_sums", 2 * queries + wide + statistics)
    return before, memory_kernel("attention_query_grad", queries + wide)


def unfused_core_section(shape: RankShape, local: LocalSizes) -> Section:
    """Return the kernels of unfused attention on the full score matrix: matmuls, softmax, dropout.

    Each query head reads a separate copy of K and V, as after the expansion of grouped heads.
    """
    e, batch = shape.element_bytes, shape.micro_batch * local.heads
    m, n, k, v = local.rows, local.columns, local.head_dim, local.value_dim
    square = batch * m * n
    drop = Section()
    if shape.dropout:
        drop = dropout_section("probabilities_dropout", shape, square).map_kernels(partial(replace, by_row=True))
    scores = Section(
        forward=(matmul_kernel("scores", m, n, k, e, batch),),
        input_grad=(
            matmul_kernel("scores_query_grad", m, k, n, e, batch),
            replace(matmul_kernel("scores_key_grad", n, k, m, e, batch), transposed=True),
        ),
    )
    softmax = _softmax_section(shape, square, fused=has_fused_softmax(shape, batch, n))
    context = Section(
        forward=(matmul_kernel("context", m, v, n, e, batch),),
        input_grad=(
            matmul_kernel("context_probabilities_grad", m, n, v, e, batch),
            replace(matmul_kernel("context_value_grad", n, v, m, e, batch), transposed=True),
        ),
    )
    core = join_sections((scores, softmax, drop, context), "none")
    return replace(core, recompute=core.forward) if shape.recomputes_core else core


def has_fused_softmax(shape: RankShape, squares: int, keys: int) -> bool:
    """Return whether scaling, mask and softmax of all score matrices (``squares``) run as one fused kernel.

    There is a square per head and sequence. In 16 bits, and where blocks of threads come out even: a tp that leaves a
    rank two heads has none with one sequence. (Megatron-LM, FusedScaleMaskSoftmax.is_kernel_available;
    scaled_upper_triang_masked_softmax.h.)
    """
    low, high = _FUSED_SOFTMAX_KEYS
    return (
        shape.kernels == "fused"
        and shape.element_bytes == 2
        and low < keys <= high
        and keys % _FUSED_SOFTMAX_ROWS == squares % _FUSED_SOFTMAX_ROWS == 0
    )


def _softmax_section(shape: RankShape, square: int, *, fused: bool) -> Section:
    """Return the kernels of the softmax over all scores: one fused kernel, or one kernel per fp32 operation.

    (Megatron-LM, FusedScaleMaskSoftmax.forward_torch_softmax.)
    """
    e, wide = shape.element_bytes, FP32_BYTES
    element = e if fused else wide
    softmax = forward_backward_section("softmax", 2 * element * square, 3 * element * square)
    softmax = softmax.map_kernels(partial(replace, by_row=True))
    if fused:
        return softmax
    widened = {"to_fp32": e + wide} if e < wide else {}
    narrowed = {"to_16_bits": wide + e} if e < wide else {}
    steps = {"scaled": 2 * wide, "masked": 2 * wide + MASK_BYTES}
    before = step_kernels("scores", square, widened | steps)
    before_grad = step_kernels("scores_grad", square, dict(reversed(steps.items())) | narrowed)
    after = step_kernels("probabilities", square, narrowed)
    after_grad = step_kernels("probabilities_grad", square, widened)
    return join_sections((Section(before, (), before_grad), softmax, Section(after, (), after_grad)), "none")


_HALVES = 0.75  # of a rank's queries, in the passes around a piece: all of them, or one half of the zigzag


@dataclass(frozen=True, slots=True)
class CpExchange:
    """Split of a sequence over the ranks of a context-parallel group, and the bytes that they exchange.

    ``traders`` trade heads, and keys pass between ``ranks`` such groups. Bytes on one rank, of its tokens: ``queries``,
    the attention's ``outputs``, ``keys`` with values, and those as they travel: ``keys_traded`` in an all-to-all, where
    fewer heads than ranks are repeated; ``keys_sent`` in a ring or gathered, with ``key_gradients_sent`` for theirs.
    ``balanced``: pieces of all ranks are equal work. ``torch``: PyTorch's ring, ``traced`` into a compiled graph, which
    waits for each exchange where it is issued (torch.distributed._functional_collectives). ``passes`` run before and
    after a backward kernel.
    """

    method: ContextParallelMethod
    traders: int
    ranks: int
    queries: float
    outputs: float
    keys: float
    keys_traded: float
    keys_sent: float
    key_gradients_sent: float
    element_bytes: float
    causal: bool
    balanced: bool
    torch: bool
    traced: bool
    passes: tuple[Kernel, Kernel]

    @property
    def splits_kernel(self) -> bool:
        """Return whether the attention kernel is split into one piece per rank's keys."""
        return self.ranks > 1 and (self.torch or self.method.keys == "ring")

    @property
    def slowest_share(self) -> float:
        """Attention work of the slowest context-parallel rank relative to the mean; the other ranks wait for it."""
        uneven = self.causal and not self.balanced
        return (2.0 * self.ranks - 1.0) / self.ranks if uneven else 1.0

    def split_kernel(self, core: Kernel) -> Sequence[tuple[Kernel, ...]]:
        """Split an attention kernel into a piece per block of keys; pieces after the first also merge results.

        A piece reads the queries and its keys and values; merging reads two partial outputs and writes one (for
        gradients: adds the new ones to the sum). In backward each piece is a call with separate passes around the
        kernel.
        """
        if not self.splits_kernel:
            return [(replace(core, flops=core.flops * self.slowest_share),)]
        back = core.name.endswith("_grad")
        others = self.keys_traded * (self.ranks - 1)  # keys and values of others
        others *= 2 if back else 1  # and their gradients
        keys = max(core.n // self.ranks, 1)
        first = replace(core, n=keys, flops=core.flops / self.ranks, bytes=core.bytes - others)
        if not self.causal:
            later = first
        elif self.balanced:
            later = replace(first, n=max(keys // 2, 1))  # half of the pairs, and no mask in it
        else:
            later = replace(first, flops=2.0 * first.flops)
        merged = self._merge_kernel(backward=back)
        if not back:
            return [(first,), *repeat((later, merged), self.ranks - 1)]
        part = _HALVES if self.causal and self.balanced else 1.0
        before, behind = (replace(kernel, bytes=kernel.bytes * part) for kernel in self.passes)
        return [(first,), *repeat((before, later, behind, merged), self.ranks - 1)]

    def _merge_kernel(self, *, backward: bool) -> Kernel:
        name = "attention_merge_grad" if backward else "attention_merge"
        partial = self.queries if backward else self.outputs
        if not self.torch:
            return memory_kernel(name, 3 * partial)
        elements, added = partial / self.element_bytes, self.element_bytes + 2 * FP32_BYTES
        if backward:  # of queries, and of keys and values, which are then copied into one buffer to be sent
            handed = self.keys_sent / self.element_bytes
            return memory_kernel(name, elements * added + handed * (added + 2 * FP32_BYTES))
        if self.traced:
            return memory_kernel(name, elements * added)
        steps = self.element_bytes + FP32_BYTES + 3 * 3 * FP32_BYTES  # to fp32; a difference, a product, a difference
        return memory_kernel(name, elements * steps)


def make_cp_exchange(model: Model, shape: RankShape) -> CpExchange:
    """Return how context-parallel ranks split a model's core attention, and what they exchange for it."""
    local = local_sizes(model, shape)
    heads = local.kv // local.head_dim
    each = shape.element_bytes * local.tokens
    queries, outputs, keys = each * local.query, each * local.output, each * (local.kv + local.value)
    torch = {"torch": True, "transformer-engine": False}[shape.ring]
    method, chosen = CONTEXT_METHODS[shape.cp_comm], (shape.cp_comm, shape.cp, shape.cp_inner)
    traders = count_head_trading_ranks(*chosen, local.heads, heads)
    traded = keys * max(heads, traders) / heads
    handed = queries + outputs if torch else traded  # with a key and a value for every query head
    return CpExchange(
        method=method,
        traders=traders,
        ranks=shape.cp // traders,
        queries=queries,
        outputs=outputs,
        keys=keys,
        keys_traded=traded,
        keys_sent=handed,
        key_gradients_sent=handed * FP32_BYTES / shape.element_bytes if torch else handed,
        element_bytes=shape.element_bytes,
        causal=model.causal,
        balanced={"zigzag": True, "contiguous": False}[shape.cp_shares],
        torch=torch,
        traced=shape.kernels == "compiled",
        passes=backward_helper_kernels(shape, local),
    )
