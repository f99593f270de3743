"""The ops of an attention whose sequence is split over cp: its pieces, with what the ranks hand round between them.

* ring: forward, keys and values go on to the next rank beside each piece but the last.  Backward their gradients travel
  with them, a piece behind, and go one hop further in the end, home.
* PyTorch's ring (``Context.torch``): the same, or keys and values gathered once before the pieces instead of going
  round; the gradients go round in any case, in fp32.  In a traced graph nothing of it goes beside a piece.
* all_gather: keys and values of all ranks come before the kernel, and again before its backward; the gradients are
  summed behind it.
* all_to_all: queries, keys and values are traded for whole sequences of fewer heads, and the outputs traded back;
  backward the same of gradients.

Pure.
"""

from __future__ import annotations

from typing import assert_never

from simcluster.model.context import Context
from simcluster.model.kernels import Kernel
from simcluster.planning.segment_ops import OpsInMaking

AXIS = "cp"


def attend(ops: OpsInMaking, context: Context, core: Kernel, kind: str, name: str, layer: int) -> None:
    """Ops of one fused attention kernel, forward or (``core`` is a gradient's) backward."""
    back = core.name.endswith("_grad")
    if context.torch and context.in_pieces:
        _torch_ring(ops, context, core, kind, name, layer, back=back)
        return
    if context.by == "ring":
        _ring(ops, context, core, kind, name, layer, back=back)
        return
    (kernels,) = context.pieces(core)
    if context.by == "all_gather":
        whole = context.ranks * context.keys
        ops.collective("all_gather", "keys_values", whole, layer, AXIS)
        ops.compute(kernels, kind, name, layer)
        if back:
            ops.collective("reduce_scatter", "keys_values_grad", whole, layer, AXIS)
        return
    if context.by != "all_to_all":
        assert_never(context.by)
    before, behind = context.queries + context.keys_traded, context.outputs
    ops.collective("all_to_all", "output_grad" if back else "queries_keys_values", behind if back else before,
                   layer, AXIS)  # fmt: skip
    ops.compute(kernels, kind, name, layer)
    ops.collective("all_to_all", "queries_keys_values_grad" if back else "output", before if back else behind,
                   layer, AXIS)  # fmt: skip


def _ring(
    ops: OpsInMaking, context: Context, core: Kernel, kind: str, name: str, layer: int, *, back: bool
) -> None:  # fmt: skip
    called = "keys_values_grad" if back else "keys_values"
    pieces = context.pieces(core)
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        passed = (number < last) + (back and number > 0)  # keys and values, and gradients of the piece before
        if passed:
            ops.beside("send_recv", called, passed * context.keys, layer, AXIS)
        ops.compute(piece, kind, name, layer)
        ops.join()
    if back:
        ops.collective("send_recv", called, context.keys, layer, AXIS)


def _torch_ring(
    ops: OpsInMaking, context: Context, core: Kernel, kind: str, name: str, layer: int, *, back: bool
) -> None:  # fmt: skip
    send = ops.collective if context.traced else ops.beside
    gathered, handed = context.by == "all_gather", context.keys_handed
    pieces = context.pieces(core)
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        if gathered and number == 0:
            send("all_gather", "keys_values", context.ranks * handed, layer, AXIS)
        elif not gathered and number < last:
            send("send_recv", "keys_values", handed, layer, AXIS)
        ops.compute(piece, kind, name, layer)
        ops.join()  # keys of the next piece; gradients of the piece before
        if back:
            final = ops.collective if number == last else send
            final("send_recv", "keys_values_grad", context.gradients_handed, layer, AXIS)
