"""Kernels of a mixture of experts on one GPU: router, shared experts, dispatch, the rank's experts and combine.

Megatron-LM's all-to-all dispatcher (core/transformer/moe/token_dispatcher.py): every token is copied to each expert it
visits (``dispatch``), travels to the rank that holds it and, where experts are split over tp, is gathered there; the
rank's ``experts`` are matmuls of equally many tokens, a grouped one or one by one; their output travels back and is
summed with the router's weights (``combine``). The framework decides the kernels (``RankShape.experts``). Tokens are
taken to be spread evenly over experts; other spreads are faults (``faults.experts``). Bytes as in ``layer_sections``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simcluster.base.errors import InputError
from simcluster.model.choices import rerun
from simcluster.model.kernels import Kernel, Section
from simcluster.model.layer_block import cast_pair
from simcluster.model.layer_sections import (
    FP32_BYTES,
    LocalSizes,
    RankShape,
    both_ways,
    fused_activation,
    join_sections,
    linear,
    local_sizes,
    memory_kernel,
)
from simcluster.model.mixture import Moe, RoutedRows
from simcluster.model.router_sections import router_section
from simcluster.model.transformer import Model

_FUSED = {"steps": False, "fused": True}
_STREAMS = 4  # of Transformer Engine's separate matmuls (common/util/multi_stream.cpp)
_SORT_BYTES = 40.0  # of a stable sort of the map: its key and an index of 8 bytes, read and written twice
_SORT_LAUNCHES = 8


@dataclass(frozen=True, slots=True)
class Mixture:
    """Kernel sections of a mixture of experts between norm and residual add, in forward order."""

    router: Section
    shared: Section
    dispatch: Section
    experts: Section
    combine: Section

    @property
    def sections(self) -> tuple[Section, ...]:
        """All sections of the mixture in forward order."""
        return self.router, self.shared, self.dispatch, self.experts, self.combine


def routed_rows(model: Model, shape: RankShape) -> RoutedRows:
    """Return the rows that travel to experts; raise InputError if ep or etp does not divide the experts."""
    moe, local = model.moe, local_sizes(model, shape)
    assert moe is not None
    etp = shape.expert_tp
    if moe.experts % shape.ep or moe.expert_ffn_hidden_size % etp:
        raise InputError(
            f"{moe.experts} experts of width {moe.expert_ffn_hidden_size} are not divisible by ep {shape.ep} and etp "
            f"{etp}; use divisors"
        )
    sent, experts = moe.rows(local.edge_tokens), moe.experts // shape.ep
    rows = sent * (local.tokens // local.edge_tokens if etp == shape.tp else etp)  # of all ranks that split an expert
    each = -(-rows // experts)  # the last expert may have fewer
    if shape.fp8:
        each = -(-each // shape.cast_rows) * shape.cast_rows
    ffn, row = moe.expert_ffn_hidden_size // etp, shape.element_bytes * local.hidden
    return RoutedRows(local.edge_tokens, sent, rows, experts, ffn, local.hidden, each, row)


def make_mixture(model: Model, shape: RankShape) -> Mixture:
    """Return the kernel sections of a mixture of experts on a rank, with those that recompute repeats.

    With full recompute, or where the module is named, the forward of each runs again; otherwise the named ones of
    shared experts and activation function.
    """
    moe, local, there = model.moe, local_sizes(model, shape), routed_rows(model, shape)
    assert moe is not None
    whole = shape.recompute == "full" or shape.reruns("moe")

    def made(*pieces: Section) -> Section:
        return join_sections(pieces, "full" if whole else "none")

    return Mixture(
        router=made(router_section(moe, shape, local), _branch_grad_section(moe, shape, local)),
        shared=rerun(made(*_shared_sections(model, shape, local)), when=whole or shape.reruns("shared_experts")),
        dispatch=made(_dispatch_section(moe, shape, local, there)),
        experts=made(
            _sorting_section("experts_sort", moe, shape, there),
            _padding_section("experts_pad", shape, there),
            *_expert_sections(model, shape, local, there),
            _padding_section("experts_unpad", shape, there),
            _bias_section(model, shape, there),
            _sorting_section("experts_unsort", moe, shape, there),
        ),
        combine=made(_combine_section(moe, shape, local, there)),
    )


def _branch_grad_section(moe: Moe, shape: RankShape, local: LocalSizes) -> Section:
    sums = 1 + bool(moe.shared_width)
    size = 3 * shape.element_bytes * local.hidden * local.edge_tokens * sums
    return Section(input_grad=(replace(memory_kernel("mixture_branches_grad", size), launches=sums),))


def _shared_sections(model: Model, shape: RankShape, local: LocalSizes) -> tuple[Section, ...]:
    moe = model.moe
    assert moe is not None
    if not moe.shared_width:
        return ()
    width, widths = moe.shared_width // shape.tp, model.mlp_matrices - 1
    up = linear("shared_up", shape, local.tokens, local.hidden, widths * width, bias=model.mlp_bias)
    down = linear("shared_down", shape, local.tokens, width, local.hidden, bias=False)
    active = _prefix_names("shared", fused_activation(model, shape, replace(local, ffn=width)))
    return _cast_body("shared", shape, local.tokens, local.hidden, (up, active, down), 1)


def _dispatch_section(moe: Moe, shape: RankShape, local: LocalSizes, there: RoutedRows) -> Section:
    """Return the kernels that copy token rows into expert order.

    A fused kernel reads a token once and writes it top_k times. In steps the map is sorted, rows are gathered one by
    one, and their gradients added to zeros, read and written each. (moe_utils.py, ``permute``; Transformer Engine,
    triton/permutation.py.)
    """
    if shape.relayed:  # what is sent is the tokens themselves
        return Section()
    one = shape.element_bytes * local.hidden * local.edge_tokens
    rows, choices = there.row_bytes * there.sent, local.edge_tokens * moe.experts
    fused = _FUSED[shape.experts.permute]
    if fused:
        placed = replace(memory_kernel("permute_map", (1 + 4 * FP32_BYTES) * choices), launches=3)
    else:
        placed = replace(memory_kernel("permute_map", _SORT_BYTES * choices), launches=_SORT_LAUNCHES)
    if shape.all_gathered:  # columns of the rank's experts, of all tokens; rows are made after the gather
        return Section((placed,))
    moved = both_ways("permute", one + rows, one + rows) if fused else both_ways("permute", 2 * rows, one + 3 * rows)
    return join_sections((Section((placed,)), moved), "none")


def _combine_section(moe: Moe, shape: RankShape, local: LocalSizes, there: RoutedRows) -> Section:
    """Return the kernels that restore token order and sum the weighted expert outputs.

    In steps rows are weighed in a separate kernel, and added to zeros, read and written each. The shared experts'
    output is added after.
    """
    one = shape.element_bytes * local.hidden * local.edge_tokens
    rows = there.row_bytes * there.sent
    weighed = {"combine": True, "activation": False}[
        shape.probabilities
    ]  # else the activation function has done it, and read no row for that
    if shape.relayed or shape.all_gathered:  # added up on the way
        found = Section()
    elif _FUSED[shape.experts.permute]:
        found = both_ways("unpermute", one + rows, one + (2 if weighed else 1) * rows)
    else:
        found = both_ways("unpermute", one + (5 if weighed else 3) * rows, one + (5 if weighed else 2) * rows)
    if moe.shared_width:
        found = join_sections((found, Section((memory_kernel("experts_shared_add", 3 * one),))), "none")
    return found


def needs_sorting(shape: RankShape, there: RoutedRows) -> bool:
    """Return whether rows from several ranks must be sorted by expert before the expert matmuls."""
    return there.experts > 1 and shape.ep * shape.expert_tp > 1


def _padding_section(name: str, shape: RankShape, there: RoutedRows) -> Section:
    if not shape.fp8 or {"rows": False, "routing": True}[shape.experts.padding]:
        return Section()
    moved = 2 * there.row_bytes * there.rows
    return both_ways(name, moved, moved)


def _sorting_section(name: str, moe: Moe, shape: RankShape, there: RoutedRows) -> Section:
    """Return the kernels that sort rows of several ranks by expert, and restore their order afterwards.

    Of tokens that are relayed a rank gets one copy, of which it makes a row for each of its experts that the token
    visits; after these it sums them again (the permute of Megatron-LM's flex dispatcher, fused_a2a.py). Where all ranks
    get all tokens it copies those that visit it, and sums into rows for all (MoEAllGatherTokenDispatcher).
    """
    if shape.relayed or shape.all_gathered:
        tokens = shape.ep * there.tokens * (shape.expert_tp if shape.all_gathered else 1)
        came = tokens * moe.routes.visits(there.experts)
        own = there.row_bytes * there.rows
        copied = own + shape.element_bytes * came * there.hidden
        summed = own + shape.element_bytes * (tokens if shape.all_gathered else came) * there.hidden
        return both_ways(name, copied, summed) if name == "experts_sort" else both_ways(name, summed, copied)
    if not needs_sorting(shape, there):
        return Section()
    moved = 2 * there.row_bytes * there.rows
    return both_ways(name, moved, moved)


def _expert_sections(model: Model, shape: RankShape, local: LocalSizes, there: RoutedRows) -> tuple[Section, ...]:
    widths = model.mlp_matrices - 1
    up = _expert_linears("experts_up", shape, there, there.hidden, widths * there.ffn, bias=model.mlp_bias)
    fused = model.mlp_bias and _FUSED[shape.experts.bias]
    down = _expert_linears("experts_down", shape, there, there.ffn, there.hidden, bias=fused)
    rows = replace(local, tokens=there.rows, ffn=there.ffn)
    launches = there.experts if shape.experts.products == "sequential" else 1
    active = fused_activation(model, shape, rows).map_kernels(
        lambda kernel: replace(kernel, launches=launches, calls=launches)
    )
    active = rerun(
        join_sections((_clamp_section(model, shape, there), _prefix_names("experts", active)), "none"),
        when=shape.reruns("moe_act"),
    )
    if _FUSED[shape.experts.casts]:
        return (up, active, down)
    one = there.experts if shape.experts.products != "grouped" else 1
    return _cast_body("experts", shape, there.rows, 0 if shape.sent_cast else there.hidden, (up, active, down), one)


def _cast_body(
    name: str, shape: RankShape, rows: int, outer: int, body: tuple[Section, ...], launches: int
) -> tuple[Section, ...]:  # fmt: skip
    outside, inner = cast_pair(name, shape, body, rows=rows, outer=rows * outer, launches=launches)
    return (Section(outside.forward), *inner, Section(input_grad=outside.input_grad))


def clamps_separately(model: Model, shape: RankShape) -> bool:
    """Return whether separate kernels clamp the inputs of the experts' activation function."""
    return model.clamped_activation is True and not _FUSED[shape.experts.clamp]


def _clamp_section(model: Model, shape: RankShape, there: RoutedRows) -> Section:
    if not clamps_separately(model, shape):
        return Section()
    half = shape.element_bytes * there.rows * there.ffn
    return Section(
        (replace(memory_kernel("experts_clamp", 8 * half), launches=3),),
        input_grad=(replace(memory_kernel("experts_clamp_input_grad", 10 * half), launches=3),),
    )


def _bias_section(model: Model, shape: RankShape, there: RoutedRows) -> Section:
    """Return the kernels that weigh the experts' output bias and add it, expert by expert in fp32.

    They are concatenated and cast; in backward the gradients are cast and concatenated, with two multiplications and
    sums for each expert.
    """
    if not model.mlp_bias or _FUSED[shape.experts.bias]:
        return Section()
    rows, e = there.rows * there.hidden, shape.element_bytes

    def made(name: str, size: float, launches: int) -> tuple[Kernel, ...]:
        return (replace(memory_kernel(name, size * rows), launches=launches),)

    return Section(
        made("experts_bias", 2 * e + 6 * FP32_BYTES, 2 * there.experts + 2),
        input_grad=made("experts_bias_input_grad", 4 * e + 5 * FP32_BYTES, 3 * there.experts + 2),
        weight_grad=made("experts_bias_weight_grad", 3 * FP32_BYTES, 2 * there.experts),
    )


def _expert_linears(
    name: str, shape: RankShape, there: RoutedRows, width_in: int, width_out: int, *, bias: bool
) -> Section:
    """Return the linear layers of all experts on their rows; FLOPs are those of rows without padding."""
    one = linear(name, shape, there.each, width_in, width_out, bias=bias)
    part = there.rows / (there.each * there.experts)
    streams = {"grouped": 0, "streams": _STREAMS, "sequential": 1}[shape.experts.products] if there.experts > 1 else 0

    def of_all(kernel: Kernel) -> Kernel:
        product = kernel.kind == "matmul"
        batch, side = (there.experts, streams) if product else (1, 0)
        launches = batch if side else 1
        flops = kernel.flops * there.experts * part
        size = kernel.bytes * there.experts
        calls = launches if side == 1 else 1  # of a module for each expert, or of one for all
        return replace(kernel, flops=flops, bytes=size, batch=batch, streams=side, launches=launches, calls=calls)

    return one.map_kernels(of_all)


def _prefix_names(name: str, section: Section) -> Section:
    return section.map_kernels(lambda kernel: replace(kernel, name=f"{name}_{kernel.name}"))
