"""Ops of attention under context parallelism: parts of the attention kernel, and traffic between cp ranks.

* heads are traded (``CpExchange.traders``): queries, keys and values for longer parts of sequences of fewer heads, by
  an all-to-all, and the outputs are traded back; backward the same of gradients;
* ring: forward, keys and values move to the next rank overlapped with each piece but the last.  Backward their
  gradients travel with them, one piece later, and take one hop more in the end, home;
* PyTorch's ring (``CpExchange.torch``): the same, or keys and values gathered once before the pieces instead of going
  round; the gradients go round in any case, in fp32.  In a traced graph nothing of it overlaps with a piece;
* documented kinds: all-to-alls around the kernels that need whole sequences (``HeadExchange``), or an all-gather before
  each kernel that needs states, or a convolution's last tokens, of other ranks (``StateGathers``);
* gather: keys and values of all ranks come before the kernel, and again before its backward; the gradients are summed
  after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.model.context_parallel import CpExchange
from simcluster.model.documented_kind import HeadExchange, StateGathers
from simcluster.model.kernels import Kernel
from simcluster.planning.segment_builder import SegmentBuilder


def add_cp_attention(ops: SegmentBuilder, context: CpExchange, core: Kernel, kind: str, name: str, layer: int) -> None:
    """Add the ops of one fused attention kernel (forward or backward) under context parallelism."""
    back, axis = core.name.endswith("_grad"), context.method.trade_axis
    first, last = context.queries + context.keys_traded, context.outputs
    if back:
        first, last = last, first
    if context.traders > 1:
        ops.add_collective("all_to_all", "output_grad" if back else "queries_keys_values", first, layer, axis)
    if context.torch and context.splits_kernel:
        _add_torch_ring_attention(ops, context, core, kind, name, layer, back=back)
    elif context.splits_kernel:
        _add_ring_attention(ops, context, core, kind, name, layer, back=back)
    else:
        (kernels,) = context.split_kernel(core)
        whole = context.ranks * context.keys_traded
        if context.ranks > 1:
            ops.add_collective("all_gather", "keys_values", whole, layer, context.method.key_axis)
        ops.add_kernels(kernels, kind, name, layer)
        if context.ranks > 1 and back:
            ops.add_collective("reduce_scatter", "keys_values_grad", whole, layer, context.method.key_axis)
    if context.traders > 1:
        ops.add_collective("all_to_all", "queries_keys_values_grad" if back else "output", last, layer, axis)


def _add_ring_attention(
    ops: SegmentBuilder, context: CpExchange, core: Kernel, kind: str, name: str, layer: int, *, back: bool
) -> None:  # fmt: skip
    called, axis = "keys_values_grad" if back else "keys_values", context.method.key_axis
    pieces = context.split_kernel(core)
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        passed = (number < last) + (back and number > 0)  # keys and values, and gradients of the piece before
        if passed:
            ops.add_overlapped_collective("send_recv", called, passed * context.keys_traded, layer, axis)
        ops.add_kernels(piece, kind, name, layer)
        ops.join_collectives()
    if back:
        ops.add_collective("send_recv", called, context.keys_traded, layer, axis)


def _add_torch_ring_attention(
    ops: SegmentBuilder, context: CpExchange, core: Kernel, kind: str, name: str, layer: int, *, back: bool
) -> None:  # fmt: skip
    send, axis = ops.add_collective if context.traced else ops.add_overlapped_collective, context.method.key_axis
    gathered, handed = context.method.keys == "gather", context.keys_sent
    pieces = context.split_kernel(core)
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        if gathered and number == 0:
            send("all_gather", "keys_values", context.ranks * handed, layer, axis)
        elif not gathered and number < last:
            send("send_recv", "keys_values", handed, layer, axis)
        ops.add_kernels(piece, kind, name, layer)
        ops.join_collectives()  # keys of the next piece; gradients of the piece before
        if back:
            final = ops.add_collective if number == last else send
            final("send_recv", "keys_values_grad", context.key_gradients_sent, layer, axis)


def add_context_exchanges(
    ops: SegmentBuilder, exchange: HeadExchange | StateGathers, kernels: Sequence[Kernel], kind: str, name: str,
    layer: int,
) -> list[Kernel]:  # fmt: skip
    """Add a documented kind's kernels up to the last that context-parallel traffic precedes; return the others.

    Ranks trade tokens for heads before kernels that need whole sequences, and heads for tokens after them; or they
    gather states before kernels that need those of other ranks.
    """
    if isinstance(exchange, HeadExchange):
        return _add_head_exchanges(ops, exchange, kernels, kind, name, layer)
    rest: list[Kernel] = []
    for kernel in kernels:
        if size := exchange.get(kernel.name):
            ops.add_kernels(rest, kind, name, layer)
            ops.add_collective("all_gather", f"{name}_states", size, layer, "cp")
            rest = []
        rest.append(kernel)
    return rest


def _add_head_exchanges(
    ops: SegmentBuilder, exchange: HeadExchange, kernels: Sequence[Kernel], kind: str, name: str, layer: int
) -> list[Kernel]:
    whole = [place for place, kernel in enumerate(kernels) if kernel.name in exchange.kernels]
    if not whole:
        return list(kernels)
    first, last = whole[0], whole[-1] + 1
    sizes = (exchange.before, exchange.after)[:: 1 if kind in ("forward", "recompute") else -1]
    for part, each in zip((kernels[:first], kernels[first:last]), sizes, strict=True):
        ops.add_kernels(part, kind, name, layer)
        for size in each:
            ops.add_collective("all_to_all", f"{name}_heads", size, layer, "cp")
    return list(kernels[last:])
