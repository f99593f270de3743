"""Ops of attention under context parallelism: pieces of the kernel, and traffic between cp ranks.

* heads are traded (``Context.traders``): queries, keys and values for longer parts of sequences of fewer heads, by an
  all-to-all, and the outputs are traded back; backward the same of gradients;
* ring: forward, keys and values move to the next rank overlapped with each piece but the last.  Backward their
  gradients travel with them, one piece later, and take one hop more in the end, home;
* PyTorch's ring (``Context.torch``): the same, or keys and values gathered once before the pieces instead of going
  round; the gradients go round in any case, in fp32.  In a traced graph nothing of it overlaps with a piece;
* gather: keys and values of all ranks come before the kernel, and again before its backward; the gradients are summed
  after it.

Pure.
"""

from __future__ import annotations

from simcluster.model.context import CpExchange
from simcluster.model.kernels import Kernel
from simcluster.planning.segment_ops import SegmentBuilder


def add_attention(ops: SegmentBuilder, context: CpExchange, core: Kernel, kind: str, name: str, layer: int) -> None:
    """Add the ops of one fused attention kernel with context parallelism (backward if ``core`` is a gradient's)."""
    back, axis = core.name.endswith("_grad"), context.method.trade_axis
    first, last = context.queries + context.keys_traded, context.outputs
    if back:
        first, last = last, first
    if context.traders > 1:
        ops.collective("all_to_all", "output_grad" if back else "queries_keys_values", first, layer, axis)
    if context.torch and context.in_pieces:
        _add_torch_ring(ops, context, core, kind, name, layer, back=back)
    elif context.in_pieces:
        _add_ring(ops, context, core, kind, name, layer, back=back)
    else:
        (kernels,) = context.pieces(core)
        whole = context.ranks * context.keys_traded
        if context.ranks > 1:
            ops.collective("all_gather", "keys_values", whole, layer, context.method.key_axis)
        ops.compute(kernels, kind, name, layer)
        if context.ranks > 1 and back:
            ops.collective("reduce_scatter", "keys_values_grad", whole, layer, context.method.key_axis)
    if context.traders > 1:
        ops.collective("all_to_all", "queries_keys_values_grad" if back else "output", last, layer, axis)


def _add_ring(
    ops: SegmentBuilder, context: CpExchange, core: Kernel, kind: str, name: str, layer: int, *, back: bool
) -> None:  # fmt: skip
    called = "keys_values_grad" if back else "keys_values"
    pieces = context.pieces(core)
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        passed = (number < last) + (back and number > 0)  # keys and values, and gradients of the piece before
        if passed:
            ops.add_overlapped("send_recv", called, passed * context.keys_traded, layer, context.method.key_axis)
        ops.compute(piece, kind, name, layer)
        ops.join()
    if back:
        ops.collective("send_recv", called, context.keys_traded, layer, context.method.key_axis)


def _add_torch_ring(
    ops: SegmentBuilder, context: CpExchange, core: Kernel, kind: str, name: str, layer: int, *, back: bool
) -> None:  # fmt: skip
    send, axis = ops.collective if context.traced else ops.add_overlapped, context.method.key_axis
    gathered, handed = context.method.keys == "gather", context.keys_handed
    pieces = context.pieces(core)
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        if gathered and number == 0:
            send("all_gather", "keys_values", context.ranks * handed, layer, axis)
        elif not gathered and number < last:
            send("send_recv", "keys_values", handed, layer, axis)
        ops.compute(piece, kind, name, layer)
        ops.join()  # keys of the next piece; gradients of the piece before
        if back:
            final = ops.collective if number == last else send
            final("send_recv", "keys_values_grad", context.gradients_handed, layer, axis)
