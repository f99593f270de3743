"""Layer kind of Mamba-2: in-projection, causal convolution, chunked scan with its state, gated norm, out-projection.

Kernels and saved tensors are those of ``mamba_split_conv1d_scan_combined`` (state-spaces/mamba,
``mamba_ssm/ops/triton/ssd_combined.py``) as Megatron-Core calls it (``core/ssm/mamba_mixer.py``, 0.16.1): the backward
runs everything but the scan's output again. Work of the scan per token is O(chunk + state) per channel
(arXiv:2405.21060).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple

from simcluster.documents.field_annotations import AllowedValues
from simcluster.model.kernels import Block, Kernel, Section
from simcluster.model.layer_block import layer_block
from simcluster.model.layer_kind import AttentionBackward, Flops, LayerKind, WeightMatrix
from simcluster.model.layer_sections import (
    FP32_BYTES,
    RankShape,
    forward_backward_section,
    linear_section,
    local_sizes,
    memory_kernel,
)
from simcluster.model.mixture import Mamba
from simcluster.model.saved_tensors import SavedTensor, dropout_mask_tensors, matmul_input_tensors
from simcluster.model.transformer import Model

_TILE = 64  # rows of the tiles that the causal blocks of a chunk are computed in (autotuned: 32, 64 or 128)


class Mamba2(LayerKind):
    """Layer kind of Mamba-2, split over tp by heads and by groups."""

    name = "mamba2"
    MIXES = True
    MODELLED_WITH: ClassVar[Mapping[str, AllowedValues]] = {
        **LayerKind.MODELLED_WITH,
        "training.recompute": AllowedValues(
            ("none", "selective"), "Megatron-Core does not recompute Mamba layers; use none or selective"
        ),
    }

    def matrices(self, model: Model, tp: int = 1, ep: int = 1, etp: int = 1) -> Iterator[WeightMatrix]:
        """Yield the weight matrices of a rank: z, x, B, C and dt as one matrix, and the out-projection."""
        sizes = _scan_sizes(model, tp)
        yield WeightMatrix(sizes.projected, model.hidden_size, "rows")
        yield WeightMatrix(model.hidden_size, sizes.width, "columns")

    def count_vector_parameters(self, model: Model, tp: int = 1) -> int:
        """Count the parameters of the convolution with bias, of A, D and dt's bias, and of the gated norm."""
        sizes = _scan_sizes(model, tp)
        return sizes.convolved * (sizes.mamba.conv + 1) + 3 * sizes.heads + sizes.width

    def block(self, model: Model, shape: RankShape) -> Block:
        """Return the kernels of a Mamba-2 layer on one rank; the scan's are not in fp8."""
        local, sizes = local_sizes(model, shape), _scan_sizes(model, shape.tp)
        e, tokens, width = shape.element_bytes, local.tokens, sizes.width
        rows = FP32_BYTES * tokens * sizes.groups  # one inverse standard deviation each
        body = (
            linear_section("mamba_in", shape, tokens, local.hidden, sizes.projected, bias=False),
            *([_layout_copy("in", 2 * e * tokens * sizes.projected)] if shape.micro_batch > 1 else []),
            _scan_section(sizes, shape, tokens),
            *([_layout_copy("out", 2 * e * tokens * width)] if shape.micro_batch > 1 else []),
            forward_backward_section("mamba_gated_norm", 2 * e * tokens * width + rows, 3 * e * tokens * width + rows),
            linear_section("mamba_out", shape, tokens, width, local.hidden, bias=False),
        )
        return layer_block(self.name, model, shape, local, body)

    def core_flops(self, model: Model, tokens: int, backward: AttentionBackward) -> Flops:
        """Return the FLOPs of the scan: as Megatron-LM counts them ("model"), or as the kernels execute them ("flash").

        Megatron-LM counts 7 x width x state per token, and twice that for the backward (``mamba_layer_flops``; there
        width is always 2 x hidden_size). The kernels execute less in the forward, and in the backward what they repeat.
        """
        sizes = _scan_sizes(model, 1)
        if backward == "model":
            forward = 7.0 * tokens * sizes.width * sizes.mamba.state
            return Flops(forward, 2 * forward, 0.0)
        scan = _scan_section(sizes, RankShape(micro_batch=1), tokens)
        forward, back = (sum(kernel.flops for kernel in each) for each in (scan.forward, scan.input_grad))
        return Flops(forward, back, 0.0)

    def backward_tensors(self, model: Model, shape: RankShape) -> list[SavedTensor]:
        """Return the tensors that the backward reads; it computes states and the convolution's output again."""
        local, sizes = local_sizes(model, shape), _scan_sizes(model, shape.tp)
        e, tokens, name = shape.element_bytes, local.tokens, self.name
        made, inner = e * tokens * sizes.projected, e * tokens * sizes.width
        return [
            SavedTensor(name, "mamba_norm_input", e * local.edge_tokens * local.hidden, "input"),
            *matmul_input_tensors(name, "mamba_input", model, shape),
            SavedTensor(name, "mamba_projected", made),
            SavedTensor(name, "mamba_scan_output", inner),
            SavedTensor(name, "mamba_gated_norm_input", inner),
            SavedTensor(name, "mamba_gated_norm_rows", FP32_BYTES * tokens * sizes.groups),
            SavedTensor(name, "mamba_out_input", inner, read="W", in_fp8="cast"),
            *dropout_mask_tensors(name, "mamba_dropout_mask", model, shape),
            SavedTensor(name, "mamba_out_output_grad", e * tokens * local.hidden, made="I", read="W", in_fp8="cast"),
            SavedTensor(name, "mamba_in_output_grad", made, made="I", read="W", in_fp8="cast"),
        ]

    def forward_working_bytes(self, model: Model, shape: RankShape) -> tuple[float, float]:
        """Return the bytes of the scan's temporary tensors: convolved input, decays, chunk states, and C B^T."""
        sizes, e = _scan_sizes(model, shape.tp), shape.element_bytes
        tokens = local_sizes(model, shape).tokens
        scores = FP32_BYTES * tokens * sizes.groups * sizes.mamba.chunk
        decays = 2 * FP32_BYTES * tokens * sizes.heads
        return e * tokens * sizes.convolved + decays + (FP32_BYTES + e) * sizes.state_elements(tokens) + scores, 0.0

    def backward_working_bytes(self, model: Model, shape: RankShape) -> tuple[float, float]:
        """Return the bytes of the scan's repeated tensors and gradients at their peak, the states' gradient."""
        sizes, e = _scan_sizes(model, shape.tp), shape.element_bytes
        tokens = local_sizes(model, shape).tokens
        groups, chunk = tokens * sizes.groups, sizes.mamba.chunk
        rows = 2 * sizes.convolved + sizes.projected + sizes.width
        gradients = 2 * FP32_BYTES * groups * (2 * sizes.mamba.state + chunk) + FP32_BYTES * groups * chunk
        return e * tokens * rows + 2 * (FP32_BYTES + e) * sizes.state_elements(tokens) + gradients, 0.0


class _ScanSizes(NamedTuple):
    """Sizes of Mamba-2 on one tensor-parallel rank; widths of z, of x, B and C, and of all with dt."""

    mamba: Mamba
    heads: int
    groups: int
    width: int
    convolved: int
    projected: int

    def state_elements(self, tokens: int) -> float:
        """Return the number of elements of all chunks' states."""
        return tokens / self.mamba.chunk * self.width * self.mamba.state


def _scan_sizes(model: Model, tp: int) -> _ScanSizes:
    mamba = model.mamba
    assert mamba is not None
    heads, groups = mamba.heads // tp, mamba.groups // tp
    width = heads * mamba.head_dim
    convolved = width + 2 * groups * mamba.state
    return _ScanSizes(mamba, heads, groups, width, convolved, width + convolved + heads)


def _layout_copy(name: str, size: float) -> Section:
    """Return the copy between Megatron-Core's order of tensors, tokens first, and the scan's, sequences first."""
    return forward_backward_section(f"mamba_copy_{name}", size, size)


def _matmul(name: str, count: int, m: int, n: int, k: int, size: float) -> Kernel:
    return Kernel(f"mamba_{name}", "matmul", 2.0 * count * m * n * k, size, m, n, k, count)


def _scan_section(sizes: _ScanSizes, shape: RankShape, tokens: int) -> Section:
    """Return the kernels of convolution and scan; the backward first runs the forward again, without the scan's output.

    Bytes are each tensor's once, as if B, C and C B^T stay in L2.
    """
    e = shape.element_bytes
    chunk, state, head_dim = sizes.mamba.chunk, sizes.mamba.state, sizes.mamba.head_dim
    by_head, by_group = (max(1, tokens // chunk) * sets for sets in (sizes.heads, sizes.groups))
    causal = (chunk + min(_TILE, chunk)) // 2  # of a chunk's columns, what tiles on the diagonal cover
    channels = e * tokens * sizes.width
    convolved = e * tokens * sizes.convolved
    inputs = e * tokens * sizes.groups * state  # B or C
    wide = inputs * FP32_BYTES / e  # gradient of B or C
    scores = FP32_BYTES * tokens * sizes.groups * chunk
    heads = FP32_BYTES * tokens * sizes.heads
    dt = e * tokens * sizes.heads
    states = sizes.state_elements(tokens)
    convolution = memory_kernel("mamba_convolution", 2 * convolved)
    decays = memory_kernel("mamba_decays", dt + 2 * heads)
    size = channels + inputs + 2 * heads + FP32_BYTES * states
    chunk_states = _matmul("chunk_states", by_head, head_dim, state, chunk, size)
    last = FP32_BYTES * shape.micro_batch * sizes.width * state
    passing = memory_kernel("mamba_state_passing", (FP32_BYTES + e) * states + last)
    chunk_scores = _matmul("chunk_scores", by_group, chunk, chunk, state, 2 * inputs + scores)
    per_input = channels + inputs + e * states + wide
    size = per_input - wide + 3 * channels + scores + 2 * heads
    scan = _matmul("scan", by_head, chunk, head_dim, state + causal, size)
    decays_again = replace(decays, bytes=decays.bytes + 2 * dt, launches=2)
    again = convolution, decays_again, chunk_states, replace(passing, bytes=2 * FP32_BYTES * states), chunk_scores
    per_scores = scores + 2 * wide
    backward = (
        memory_kernel("mamba_gate_grad", 6 * channels),
        _matmul("output_states_grad", by_head, head_dim, state, chunk, channels + inputs + heads + FP32_BYTES * states),
        memory_kernel("mamba_state_passing_grad", (2 * FP32_BYTES + 2 * e) * states),
        _matmul("scan_input_grad", by_head, chunk, head_dim, state + causal,
               3 * channels + inputs + e * states + scores + 3 * heads),
        _matmul("b_grad", by_head, chunk, state, head_dim, per_input + 3 * heads),
        memory_kernel("mamba_b_grad_sum", 2 * wide + 2 * heads, 2),
        _matmul("c_grad", by_head, chunk, state, head_dim, per_input + 2 * heads),
        memory_kernel("mamba_c_grad_sum", 2 * wide),
        _matmul("scores_grad", by_head, chunk, causal, head_dim, 2 * channels + 2 * heads + scores),
        memory_kernel("mamba_scores_grad_sum", 2 * scores),
        _matmul("b_scores_grad", by_group, chunk, state, chunk, per_scores),
        _matmul("c_scores_grad", by_group, chunk, state, chunk, per_scores),
        memory_kernel("mamba_decay_prefix_grad", 6 * heads, 4),
        _matmul("decay_grad", by_head, chunk, causal, head_dim, 2 * channels + scores + (2 + chunk / _TILE) * heads),
        memory_kernel("mamba_decay_grad_sum", (chunk / _TILE + 1) * heads),
        memory_kernel("mamba_decay_grad_add", 6 * heads, 2),
        memory_kernel("mamba_dt_grad", 3 * heads),
        memory_kernel("mamba_convolution_grad", 3 * convolved),
    )  # fmt: skip
    return Section(
        (convolution, decays, chunk_states, passing, chunk_scores, scan),
        input_grad=(*(replace(each, name=f"{each.name}_again") for each in again), *backward),
    )
