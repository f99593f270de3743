"""Kernels of a mixture of experts on one GPU: router, dispatch, experts and combine.

Megatron-LM's all-to-all dispatcher (core/transformer/moe/token_dispatcher.py): every token is copied to each expert it
visits (``dispatch``), travels to the rank that holds it and, where experts are split over tp, is gathered there; the
rank's ``experts`` are matmuls of equally many tokens, a grouped one or one by one; their output travels back and is
summed with the router's weights (``combine``). The framework decides the kernels (``RankShape.experts``). Tokens are
spread evenly over experts; other spreads are faults (``faults.expert_imbalance``). Bytes as in ``list_layer_sections``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simcluster.base.errors import InputError
from simcluster.model.kernel_choices import with_recompute
from simcluster.model.kernels import Kernel, Section
from simcluster.model.layer_block import norm_section
from simcluster.model.layer_sections import (
    FP32_BYTES,
    forward_backward_section,
    fused_activation,
    join_sections,
    linear_section,
    memory_kernel,
)
from simcluster.model.mixture import Moe, RoutedRows
from simcluster.model.quantization import cast_kernels, cast_matmul_pair
from simcluster.model.rank_shape import LocalSizes, RankShape, local_sizes
from simcluster.model.router_sections import router_section
from simcluster.model.transformer import Model

_FUSED = {"steps": False, "fused": True}
_STREAMS = 4  # of Transformer Engine's separate matmuls (common/util/multi_stream.cpp)
_SORT_BYTES = 40.0  # of a stable sort of the map: its key and an index of 8 bytes, read and written twice
_SORT_LAUNCHES = 8


@dataclass(frozen=True, slots=True)
class MixtureSections:
    """Kernels of a mixture of experts in forward order, without norm and residual add."""

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
    """Return the number and size of rows sent to experts; InputError if ep or etp does not divide the experts."""
    moe, local = model.moe, local_sizes(model, shape)
    assert moe is not None
    etp = shape.expert_tp
    if moe.experts % shape.ep or moe.expert_ffn_hidden_size % etp:
        raise InputError(
            f"{moe.experts} experts of width {moe.expert_ffn_hidden_size} are not divisible by ep {shape.ep} and etp "
            f"{etp}; use an ep that divides the experts, and an etp that divides their width"
        )
    sent, experts = moe.count_rows(local.edge_tokens), moe.experts // shape.ep
    rows = sent * (local.tokens // local.edge_tokens if etp == shape.tp else etp)  # of all ranks that split an expert
    each = -(-rows // experts)  # the last expert may have fewer
    if shape.quantization:
        each = -(-each // shape.quantization.rows) * shape.quantization.rows
    ffn, width = moe.expert_ffn_hidden_size // etp, moe.latent_size or local.hidden
    return RoutedRows(local.edge_tokens, sent, rows, experts, ffn, width, each, shape.element_bytes * width)


def make_mixture_sections(model: Model, shape: RankShape) -> MixtureSections:
    """Return the kernels of a mixture of experts on one rank, including those that recomputation adds.

    With full recompute, or where the module is named, the forward of each runs again; otherwise the named ones of
    shared experts and activation function.
    """
    moe, local, there = model.moe, local_sizes(model, shape), routed_rows(model, shape)
    assert moe is not None
    whole = shape.recompute == "full" or shape.recomputes_module("moe")
    branches = _branch_grad_section(moe, shape, local)
    shared_again = whole or shape.recomputes_module("shared_experts")

    def join_pieces(*pieces: Section) -> Section:
        return join_sections(pieces, "full" if whole else "none")

    def norm(name: str) -> Section:
        return norm_section(name, model, shape, local, residual=False) if moe.separate_norms else Section()

    return MixtureSections(
        router=join_pieces(norm("router_norm"), router_section(model, shape, local), branches),
        shared=with_recompute(join_pieces(*_shared_sections(model, shape, local)), enabled=shared_again),
        dispatch=join_pieces(
            norm("experts_norm"),
            _latent_section("latent_fc1", model, shape, local.edge_tokens, (local.hidden, there.hidden)),
            _dispatch_section(moe, shape, local, there),
        ),
        experts=join_pieces(
            _sorting_section("experts_sort", moe, shape, there),
            _padding_section("experts_pad", shape, there),
            *_expert_sections(model, shape, local, there),
            _padding_section("experts_unpad", shape, there),
            _bias_section(model, shape, there),
            _sorting_section("experts_unsort", moe, shape, there),
        ),
        combine=join_pieces(
            _combine_section(shape, there),
            _latent_section("latent_fc2", model, shape, local.edge_tokens, (there.hidden, local.hidden)),
            norm("experts_post_norm"),
            norm("shared_post_norm"),
            _shared_add_section(moe, shape, local),
        ),
    )


def _latent_section(name: str, model: Model, shape: RankShape, tokens: int, widths: tuple[int, int]) -> Section:
    """Return the kernels of a projection to or from the width of latent experts, if there are any.

    Every tp rank has all of its weights, for the tokens of its sequence shard (core/transformer/moe/moe_layer.py).
    """
    if not model.moe or not model.moe.latent_size:
        return Section()
    made = linear_section(name, shape, tokens, *widths, bias=model.mlp_bias)
    (x, y), weights = (tokens * width for width in widths), widths[0] * widths[1]
    cast = cast_kernels(name, shape, "input", x, x + weights)
    grad = cast_kernels(f"{name}_grad", shape, "gradient", y, 2 * y + weights + x)
    return join_sections((Section(cast), made, Section(input_grad=grad)), "none")


def _branch_grad_section(moe: Moe, shape: RankShape, local: LocalSizes) -> Section:
    sums = 1 + bool(moe.shared_width)
    size = 3 * shape.element_bytes * local.hidden * local.edge_tokens * sums
    return Section(input_grad=(memory_kernel("mixture_branches_grad", size, sums),))


def _shared_sections(model: Model, shape: RankShape, local: LocalSizes) -> tuple[Section, ...]:
    moe = model.moe
    assert moe is not None
    if not moe.shared_width:
        return ()
    width, widths = moe.shared_width // shape.tp, model.num_mlp_matrices - 1
    up = linear_section("shared_up", shape, local.tokens, local.hidden, widths * width, bias=model.mlp_bias)
    down = linear_section("shared_down", shape, local.tokens, width, local.hidden, bias=False)
    active = _prefix_names("shared", fused_activation(model, shape, replace(local, ffn=width)))
    return _add_casts("shared", shape, local.tokens, local.hidden, (up, active, down), 1)


def _dispatch_section(moe: Moe, shape: RankShape, local: LocalSizes, routed: RoutedRows) -> Section:
    """Return the kernels that copy token rows into expert order.

    A fused kernel reads a token once and writes it top_k times. In steps the map is sorted, rows are gathered one by
    one, and their gradients added to zeros, read and written each. (moe_utils.py, ``permute``; Transformer Engine,
    triton/permutation.py.)
    """
    if shape.relayed:  # what is sent is the tokens themselves
        return Section()
    one = routed.row_bytes * routed.tokens
    rows, choices = routed.row_bytes * routed.sent, local.edge_tokens * moe.experts
    fused = _FUSED[shape.experts.permute]
    if fused:
        placed = memory_kernel("permute_map", (1 + 4 * FP32_BYTES) * choices, 3)
    else:
        placed = memory_kernel("permute_map", _SORT_BYTES * choices, _SORT_LAUNCHES)
    if shape.all_gathered:  # columns of the rank's experts, of all tokens; rows are made after the gather
        return Section((placed,))
    sizes = (one + rows, one + rows) if fused else (2 * rows, one + 3 * rows)
    return join_sections((Section((placed,)), forward_backward_section("permute", *sizes)), "none")


def _combine_section(shape: RankShape, routed: RoutedRows) -> Section:
    """Return the kernels that restore token order and sum the weighted expert outputs.

    In steps rows are weighed in a separate kernel, and added to zeros, read and written each.
    """
    one, rows = routed.row_bytes * routed.tokens, routed.row_bytes * routed.sent
    # otherwise the activation function has done it, and read no row for that
    apart = {"combine": True, "activation": False}[shape.probabilities]
    if shape.relayed or shape.all_gathered:  # added up on the way
        return Section()
    if _FUSED[shape.experts.permute]:
        return forward_backward_section("unpermute", one + rows, one + (2 if apart else 1) * rows)
    return forward_backward_section("unpermute", one + (5 if apart else 3) * rows, one + (5 if apart else 2) * rows)


def _shared_add_section(moe: Moe, shape: RankShape, local: LocalSizes) -> Section:
    size = 3 * shape.element_bytes * local.hidden * local.edge_tokens
    return Section((memory_kernel("experts_shared_add", size),)) if moe.shared_width else Section()


def needs_sorting(shape: RankShape, routed: RoutedRows) -> bool:
    """Return whether rows from several ranks must be sorted by expert before the expert matmuls."""
    return routed.experts > 1 and shape.ep * shape.expert_tp > 1


def _padding_section(name: str, shape: RankShape, routed: RoutedRows) -> Section:
    if not shape.quantization or {"rows": False, "routing": True}[shape.experts.padding]:
        return Section()
    moved = 2 * routed.row_bytes * routed.rows
    return forward_backward_section(name, moved, moved)


def _sorting_section(name: str, moe: Moe, shape: RankShape, routed: RoutedRows) -> Section:
    """Return the kernels that sort rows from several ranks by expert, and later restore their order.

    Of tokens that are relayed a rank gets one copy, of which it makes a row for each of its experts that the token
    visits; after these it sums them again (the permute of Megatron-LM's flex dispatcher, fused_a2a.py). Where all ranks
    get all tokens it copies those that visit it, and sums into rows for all (MoEAllGatherTokenDispatcher).
    """
    if shape.relayed or shape.all_gathered:
        tokens = shape.ep * routed.tokens * (shape.expert_tp if shape.all_gathered else 1)
        came = tokens * moe.token_routes.block_visit_fraction(routed.experts)
        own = routed.row_bytes * routed.rows
        copied = own + shape.element_bytes * came * routed.hidden
        summed = own + shape.element_bytes * (tokens if shape.all_gathered else came) * routed.hidden
        return forward_backward_section(name, *((copied, summed) if name == "experts_sort" else (summed, copied)))
    if not needs_sorting(shape, routed):
        return Section()
    moved = 2 * routed.row_bytes * routed.rows
    return forward_backward_section(name, moved, moved)


def _expert_sections(model: Model, shape: RankShape, local: LocalSizes, routed: RoutedRows) -> tuple[Section, ...]:
    widths = model.num_mlp_matrices - 1
    up = _expert_linear_section("experts_up", shape, routed, routed.hidden, widths * routed.ffn, bias=model.mlp_bias)
    fused = model.mlp_bias and _FUSED[shape.experts.bias]
    down = _expert_linear_section("experts_down", shape, routed, routed.ffn, routed.hidden, bias=fused)
    rows = replace(local, tokens=routed.rows, ffn=routed.ffn)
    launches = routed.experts if shape.experts.products == "sequential" else 1
    active = fused_activation(model, shape, rows).map_kernels(
        lambda kernel: replace(kernel, launches=launches, calls=launches)
    )
    active = with_recompute(
        join_sections((_clamp_section(model, shape, routed), _prefix_names("experts", active)), "none"),
        enabled=shape.recomputes_module("moe_act"),
    )
    if _FUSED[shape.experts.casts]:
        return (up, active, down)
    one = routed.experts if shape.experts.products != "grouped" else 1
    return _add_casts("experts", shape, routed.rows, 0 if shape.sent_cast else routed.hidden, (up, active, down), one)


def _add_casts(
    name: str, shape: RankShape, rows: int, width: int, body: tuple[Section, ...], launches: int
) -> tuple[Section, ...]:  # fmt: skip
    outside, inner = cast_matmul_pair(name, shape, body, rows=rows, outer_size=rows * width, launches=launches)
    return (Section(outside.forward), *inner, Section(input_grad=outside.input_grad))


def clamps_separately(model: Model, shape: RankShape) -> bool:
    """Return whether separate kernels clamp the inputs of the experts' activation function."""
    return model.clamped_activation is True and not _FUSED[shape.experts.clamp]


def _clamp_section(model: Model, shape: RankShape, routed: RoutedRows) -> Section:
    if not clamps_separately(model, shape):
        return Section()
    half = shape.element_bytes * routed.rows * routed.ffn
    return forward_backward_section("experts_clamp", 8 * half, 10 * half, launches=3)


def _bias_section(model: Model, shape: RankShape, routed: RoutedRows) -> Section:
    """Return the kernels that weight the experts' output bias and add it, expert by expert in fp32.

    They are concatenated and cast; in backward the gradients are cast and concatenated, with two multiplications and
    sums for each expert.
    """
    if not model.mlp_bias or _FUSED[shape.experts.bias]:
        return Section()
    rows, e = routed.rows * routed.hidden, shape.element_bytes
    added = memory_kernel("experts_bias", (2 * e + 6 * FP32_BYTES) * rows, 2 * routed.experts + 2)
    input_grad = memory_kernel("experts_bias_input_grad", (4 * e + 5 * FP32_BYTES) * rows, 3 * routed.experts + 2)
    weight_grad = memory_kernel("experts_bias_weight_grad", 3 * FP32_BYTES * rows, 2 * routed.experts)
    return Section((added,), input_grad=(input_grad,), weight_grad=(weight_grad,))


def _expert_linear_section(
    name: str, shape: RankShape, routed: RoutedRows, width_in: int, width_out: int, *, bias: bool
) -> Section:
    """Return the kernels of a linear layer of all experts; FLOPs exclude padding rows."""
    one = linear_section(name, shape, routed.rows_per_expert, width_in, width_out, bias=bias)
    part = routed.rows / (routed.rows_per_expert * routed.experts)
    streams = {"grouped": 0, "streams": _STREAMS, "sequential": 1}[shape.experts.products] if routed.experts > 1 else 0

    def scale_to_all_experts(kernel: Kernel) -> Kernel:
        product = kernel.kind == "matmul"
        batch, side = (routed.experts, streams) if product else (1, 0)
        launches = batch if side else 1
        flops = kernel.flops * routed.experts * part
        size = kernel.bytes * routed.experts
        calls = launches if side == 1 else 1  # of a module for each expert, or of one for all
        return replace(kernel, flops=flops, bytes=size, batch=batch, streams=side, launches=launches, calls=calls)

    return one.map_kernels(scale_to_all_experts)


def _prefix_names(name: str, section: Section) -> Section:
    return section.map_kernels(lambda kernel: replace(kernel, name=f"{name}_{kernel.name}"))
