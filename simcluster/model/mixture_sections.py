"""A mixture of experts as one GPU launches it: router, shared experts, tokens sorted and weighed, the rank's experts.

Megatron-LM's all-to-all dispatcher (core/transformer/moe/token_dispatcher.py): every token is copied to each expert it
visits (``dispatch``), travels to the rank that holds it and, where experts are split over tp, is gathered there; the
rank's ``experts`` are one grouped product each way; what they give travels back and is added up by the router's weights
(``combine``).  Tokens are taken to be spread evenly over experts; what else they may do is a fault's business
(``faults.experts``).  Bytes as in ``layer_sections``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simcluster.base.errors import InputError
from simcluster.model.kernels import Kernel, Section
from simcluster.model.layer_sections import (
    FP32_BYTES,
    LocalSizes,
    RankShape,
    activation,
    both_ways,
    join,
    linear,
    local_sizes,
)
from simcluster.model.recomputed import again
from simcluster.model.transformer import Model


@dataclass(frozen=True, slots=True)
class Routed:
    """Where the tokens of one microbatch's mixture are, on one rank.

    ``sent`` rows leave it (each token once for every expert it visits), ``rows`` are there in front of its
    ``experts``, whose width is ``ffn`` here; a row is ``hidden`` wide.
    """

    sent: int
    rows: int
    experts: int
    ffn: int
    hidden: int

    def row_bytes(self, shape: RankShape, rows: int) -> float:
        """Bytes of so many rows as they travel."""
        return shape.element_bytes * rows * self.hidden


@dataclass(frozen=True, slots=True)
class Mixture:
    """The sections between the norm and the residual add, in forward order; ``shared`` is as an MLP's body is."""

    router: Section
    shared: Section
    dispatch: Section
    experts: Section
    combine: Section


def routed(model: Model, shape: RankShape) -> Routed:
    """What travels; InputError where ep or etp does not divide what it splits."""
    moe, local = model.moe, local_sizes(model, shape)
    assert moe is not None
    etp = shape.expert_tp
    if moe.experts % shape.ep or moe.expert_ffn_hidden_size % etp:
        raise InputError(
            f"{moe.experts} experts of width {moe.expert_ffn_hidden_size} do not divide over ep {shape.ep} and etp "
            f"{etp}; use divisors of them"
        )
    sent = local.edge_tokens * moe.top_k
    rows = (local.tokens if etp > 1 else local.edge_tokens) * moe.top_k
    return Routed(sent, rows, moe.experts // shape.ep, moe.expert_ffn_hidden_size // etp, local.hidden)


def mixture(model: Model, shape: RankShape) -> Mixture:
    """The sections on a rank; with full recompute, or where the module is named, the forward of each runs again.

    Else what is named of shared experts and activation function.
    """
    local, there = local_sizes(model, shape), routed(model, shape)
    whole = shape.recompute == "full" or shape.reruns("moe")

    def made(*pieces: Section) -> Section:
        return join(pieces, "full" if whole else "none")

    return Mixture(
        router=made(_router(model, shape, local)),
        shared=again(made(*_shared(model, shape, local)), when=whole or shape.reruns("shared_experts")),
        dispatch=made(_dispatch(shape, local, there)),
        experts=made(
            _sorted("experts_sort", shape, there),
            *_experts(model, shape, local, there),
            _sorted("experts_unsort", shape, there),
        ),
        combine=made(_combine(shape, local, there)),
    )


def _router(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """A score for every expert, a softmax over them, the best top_k; back, through weights and scores."""
    moe = model.moe
    assert moe is not None
    scores = linear("router", shape, local.edge_tokens, local.hidden, moe.experts, bias=moe.router_bias)
    size = FP32_BYTES * local.edge_tokens * moe.experts
    return join((scores, both_ways("router_choice", 3 * size, 3 * size)), "none")


def _shared(model: Model, shape: RankShape, local: LocalSizes) -> tuple[Section, ...]:
    """An MLP that every token visits, split over tp as any."""
    moe = model.moe
    assert moe is not None
    if not moe.shared_width:
        return ()
    width, widths = moe.shared_width // shape.tp, model.mlp_matrices - 1
    up = linear("shared_up", shape, local.tokens, local.hidden, widths * width, bias=model.mlp_bias)
    down = linear("shared_down", shape, local.tokens, width, local.hidden, bias=False)
    return (up, _named("shared", activation(model, shape, replace(local, ffn=width))), down)


def _dispatch(shape: RankShape, local: LocalSizes, there: Routed) -> Section:
    """Rows in the order of their experts: a token read once and written top_k times; back, those are added up."""
    one = shape.element_bytes * local.hidden * local.edge_tokens
    rows = there.row_bytes(shape, there.sent)
    return both_ways("permute", one + rows, one + rows)


def _combine(shape: RankShape, local: LocalSizes, there: Routed) -> Section:
    """Rows back in their tokens' order, weighed and added up; back, rows and weights have their gradients."""
    one = shape.element_bytes * local.hidden * local.edge_tokens
    rows = there.row_bytes(shape, there.sent)
    weighed = shape.probabilities == "combine"  # else the activation function has done it, and read no row for that
    return both_ways("unpermute", one + rows, one + (2 * rows if weighed else rows))


def is_sorted(shape: RankShape, there: Routed) -> bool:
    """Do rows of several ranks meet in front of several experts?"""
    return there.experts > 1 and shape.ep * shape.expert_tp > 1


def _sorted(name: str, shape: RankShape, there: Routed) -> Section:
    """Where rows of several ranks meet in front of several experts they are sorted once more, and back behind them."""
    if not is_sorted(shape, there):
        return Section()
    moved = 2 * there.row_bytes(shape, there.rows)
    return both_ways(name, moved, moved)


def _experts(model: Model, shape: RankShape, local: LocalSizes, there: Routed) -> tuple[Section, ...]:
    """The rank's experts: widening products, activation, narrowing products, all experts in one launch each."""
    widths = model.mlp_matrices - 1
    up = _grouped("experts_up", shape, there, there.hidden, widths * there.ffn, bias=model.mlp_bias)
    down = _grouped("experts_down", shape, there, there.ffn, there.hidden, bias=model.mlp_bias)
    rows = replace(local, tokens=there.rows, ffn=there.ffn)
    active = _named("experts", activation(model, shape, rows))
    return (up, again(active, when=shape.reruns("moe_act")), down)


def _grouped(name: str, shape: RankShape, there: Routed, width_in: int, width_out: int, *, bias: bool) -> Section:
    """``linear`` of every expert on its rows at once; FLOPs are those of the rows that there are."""
    each = -(-there.rows // there.experts)  # rows of an expert; the last may have fewer
    one = linear(name, shape, each, width_in, width_out, bias=bias)
    part = there.rows / (each * there.experts)

    def of_all(kernel: Kernel) -> Kernel:
        batch = there.experts if kernel.kind == "matmul" else 1
        flops = kernel.flops * there.experts * part
        return replace(kernel, flops=flops, bytes=kernel.bytes * there.experts, batch=batch)

    return one.each(of_all)


def _named(name: str, section: Section) -> Section:
    return section.each(lambda kernel: replace(kernel, name=f"{name}_{kernel.name}"))
