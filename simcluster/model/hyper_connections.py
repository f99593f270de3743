"""Hyper-connections: several residual streams, which each half layer reads, mixes and adds its output to.

Manifold-constrained ones (arXiv:2512.24880; DeepSeek-V4): weights of the sum that a half layer reads, of its output in
each stream, and of a doubly stochastic mix of the streams, all made from the streams by an fp32 matmul and Sinkhorn
iterations. Kernels and kept tensors are Megatron-Core's fused ones (NVIDIA/Megatron-LM main,
core/transformer/hyper_connection.py@023f5cf1, core/fusions/fused_mhc_kernels.py@03141850), whatever the software.
"""

from __future__ import annotations

from dataclasses import replace

from simcluster.documents.field_annotations import AllowedValues
from simcluster.model.kernels import Block, Section
from simcluster.model.layer_sections import FP32_BYTES, forward_backward_section, join_sections, memory_kernel
from simcluster.model.rank_shape import LocalSizes, RankShape, local_sizes
from simcluster.model.saved_tensors import SavedTensor
from simcluster.model.transformer import Model

_SINKHORN_ITERATIONS = 20  # Megatron-Core's default, and hc_sinkhorn_iters of DeepSeek-V4

STREAMS_MODELLED_WITH = {
    "model.parallel_residual": AllowedValues((None,)),
    "model.layer_norms": AllowedValues((None, 2)),
    "model.mtp_layers": AllowedValues((None,)),
    "training.dropout": AllowedValues((False,)),
    "training.recompute": AllowedValues(("none", "selective", "full")),
}
"""Values that several residual streams are modelled with, by field of a scenario."""


def streams_section(name: str, model: Model, shape: RankShape, local: LocalSizes, *, mixed: bool = True) -> Section:
    """Return the kernels that read the streams: matmul and gates, Sinkhorn iterations if ``mixed``, weighted sum.

    The matmul has so few columns that its bytes decide; its backward makes both gradients in one kernel. Then the
    gradients of the streams are added up: its own, that of the sum and, if ``mixed``, that of ``connect_streams``.
    """
    count, row, wide = model.num_streams, _row_bytes(shape, local), FP32_BYTES * local.edge_tokens
    weights, streams = model.count_stream_weights(mixed=mixed), count * row
    table, logits = FP32_BYTES * weights * count * local.hidden, wide * (weights + 2)
    forward = {"matmul": streams + table + logits, "gates": logits + wide * weights}
    backward = {"sum_grad": 2 * streams + row, "gates_grad": logits + 2 * wide * weights}
    if mixed:  # backward writes and reads two matrices and two sums of each iteration
        forward["sinkhorn"] = 3 * wide * count**2
        backward["sinkhorn_grad"] = wide * (3 * count**2 + 4 * _SINKHORN_ITERATIONS * (count**2 + count))
    forward["sum"] = streams + row
    backward |= {"matmul_grad": 2 * (streams + table) + logits, "grad_add": (4 if mixed else 3) * streams}
    ahead, back = (
        tuple([memory_kernel(f"{name}_stream_{each}", size) for each, size in sizes.items()])
        for sizes in (forward, backward)
    )
    return Section(ahead, input_grad=back)


def connect_streams(block: Block, model: Model, shape: RankShape, local: LocalSizes) -> Block:
    """Return a block of norm, body and residual add that reads all streams and mixes its output into them.

    Backward reads the output, so that a recomputation that stops early makes it as well, but not the mix.
    """
    if (count := model.num_streams) == 1:
        return block
    row, early = _row_bytes(shape, local), shape.stops_early and block.name == "mlp"
    mix = Section(
        forward=(memory_kernel(f"{block.name}_stream_mix", (2 * count + 1) * row),),
        input_grad=(memory_kernel(f"{block.name}_stream_mix_grad", (3 * count + 2) * row), *block.exit.input_grad),
        weight_grad=block.exit.weight_grad,
    )
    entry = join_sections((streams_section(block.name, model, shape, local), block.entry), shape.recompute)
    return replace(block, entry=entry, exit=join_sections([mix], "none" if early else shape.recompute))


def copy_section(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Return the kernels that copy the embedding to all streams, and add up their gradients; none for one stream."""
    size = (model.num_streams + 1) * _row_bytes(shape, local)
    return forward_backward_section("embedding_streams", size, size) if model.num_streams > 1 else Section()


def stream_tensors(block: str, model: Model, shape: RankShape, *, mixed: bool = True) -> list[SavedTensor]:
    """Return what backward reads of several streams: the streams, their weights, and if ``mixed`` the block's output.

    Of the weights it reads logits and the matrix before the iterations in fp32, and all of them in 16 bits.
    """
    if (count := model.num_streams) == 1:
        return []
    local, weights = local_sizes(model, shape), model.count_stream_weights(mixed=mixed)
    numbers = FP32_BYTES * (weights + 2 + mixed * count**2) + shape.element_bytes * weights
    sizes = {"streams": count * _row_bytes(shape, local), "stream_weights": local.edge_tokens * numbers}
    sizes |= {"output": _row_bytes(shape, local)} if mixed else {}
    return [SavedTensor(block, f"{block}_{name}", size) for name, size in sizes.items()]


def _row_bytes(shape: RankShape, local: LocalSizes) -> float:
    """Return the bytes of one stream of a rank's tokens."""
    return shape.element_bytes * local.edge_tokens * local.hidden
