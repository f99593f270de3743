"""The ops of one pass of a microbatch through a chunk: per-layer kernels with the tensor-parallel traffic between them.

Where the traffic goes (Megatron-LM; arXiv:1909.08053 section 3, arXiv:2205.05198 section 4.2.2):

* tensor parallel: the row-parallel product of a block is summed over tp (forward), the gradient of the column-parallel
  product's input likewise (backward): one all-reduce each, of micro_batch x sequence x hidden elements;
* with sequence parallelism each of them becomes a reduce-scatter, and an all-gather of the same size goes where the
  sharded tensor enters a block; backward the shard that was kept is gathered once more for the weight gradient, beside
  the product for the input gradient;
* vocabulary parallel loss: three all-reduces of one number a token (maximum, true logit, sum);
* without sequence parallelism a stage boundary may be sent split over tp and gathered on arrival (``boundary``).

Pure.  Imports ops, kernels and layers; how long kernels take is the ``timer``'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simcluster.kernels import Block, Kernel, Section
from simcluster.layers import RankShape, attention_block, embedding_block, lm_head_block, mlp_block
from simcluster.model import Model
from simcluster.ops import MAIN, Collective, Compute, Op, Segment

_LOSS_BYTES = 4.0  # the loss is computed in fp32

Timer = Callable[[Sequence[Kernel]], float]
"""Seconds that kernels take one after the other on a GPU at full speed."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A stretch of a chunk that one segment covers.

    ``layers`` are global layer numbers in forward order; ``embedding`` and ``lm_head`` say whether the ends of the
    model are in it; ``boundary`` whether a tensor arrives split over tp and must be gathered first.
    """

    layers: tuple[int, ...]
    embedding: bool = False
    lm_head: bool = False
    boundary: bool = False


class Passes:
    """Makes segments for the ranks of a plan; everything about one layer is computed once and repeated."""

    def __init__(self, model: Model, shape: RankShape, timer: Timer, *, overlap_tensor: bool) -> None:
        self._timer = timer
        self._tp = shape.tp
        self._split = shape.sequence_parallel and shape.tp > 1
        self._full = shape.recompute == "full"
        self._overlap = overlap_tensor
        tokens = shape.micro_batch * model.sequence_length // shape.cp
        self.activation_bytes = shape.element_bytes * tokens * model.hidden_size
        self._token_bytes = _LOSS_BYTES * tokens
        self._layer = (attention_block(model, shape), mlp_block(model, shape))
        self._embedding = embedding_block(model, shape)
        self._lm_head = lm_head_block(model, shape)

    def forward(self, part: Pass) -> Segment:
        """F of a stretch."""
        ops = _Ops(self._timer)
        if part.boundary:
            ops.collective("all_gather", "boundary", self.activation_bytes)
        if part.embedding:
            self._forward(ops, self._embedding, -1, "forward")
        for layer in part.layers:
            for block in self._layer:
                self._forward(ops, block, layer, "forward")
        if part.lm_head:
            self._forward(ops, self._lm_head, -1, "forward")
            if self._tp > 1:
                for name in ("loss_maximum", "loss_logit", "loss_sum"):
                    ops.collective("all_reduce", name, self._token_bytes)
        return ops.segment()

    def backward(self, part: Pass) -> Segment:
        """B of a stretch: recomputation where the mode asks for it, input gradients and weight gradients."""
        ops = _Ops(self._timer)
        if part.boundary:
            ops.collective("all_gather", "boundary", self.activation_bytes)
        if part.lm_head:
            self._backward(ops, self._lm_head, -1)
        for layer in reversed(part.layers):
            if self._full:
                for block in self._layer:
                    self._forward(ops, block, layer, "recompute")
            for block in reversed(self._layer):
                self._backward(ops, block, layer)
        if part.embedding:
            self._backward(ops, self._embedding, -1)
        return ops.segment()

    def input_grad(self, part: Pass) -> Segment:
        """I of a stretch: what B does but for the weight gradients, so nothing hides the reductions over tp.

        What is gathered for a weight gradient is gathered here, beside the input gradient as in B, and kept for W.
        """
        ops = _Ops(self._timer)
        if part.boundary:
            ops.collective("all_gather", "boundary", self.activation_bytes)
        if part.lm_head:
            self._input_grad(ops, self._lm_head, -1)
        for layer in reversed(part.layers):
            if self._full:
                for block in self._layer:
                    self._forward(ops, block, layer, "recompute")
            for block in reversed(self._layer):
                self._input_grad(ops, block, layer)
        if part.embedding and self._split:  # nothing is before it, but its W needs the whole gradient
            ops.collective("all_gather", self._embedding.name, self.activation_bytes)
        return ops.segment()

    def weight_grad(self, part: Pass) -> Segment:
        """W of a stretch: products on what F and I left on the GPU, no traffic."""
        ops = _Ops(self._timer)
        blocks = [(self._lm_head, -1)] if part.lm_head else []
        blocks += [(block, layer) for layer in reversed(part.layers) for block in reversed(self._layer)]
        blocks += [(self._embedding, -1)] if part.embedding else []
        for block, layer in blocks:
            kernels = block.exit.weight_grad + block.body.weight_grad + block.entry.weight_grad
            if block is self._embedding:  # its input has no gradient: whatever is left of B is here
                kernels = block.exit.input_grad + block.body.input_grad + kernels
            ops.compute(kernels, "weight_grad", f"{block.name}_weight_grad", layer)
        return ops.segment()

    def _input_grad(self, ops: _Ops, block: Block, layer: int) -> None:
        body = block.body
        if not self._full:
            ops.compute(body.recompute, "recompute", block.name, layer)
        ops.compute(block.exit.input_grad, "input_grad", f"{block.name}_add", layer)
        if self._split and block is not self._lm_head:
            ops.collective("all_gather", block.name, self.activation_bytes, layer)
        first = f"{body.forward[0].name}_input_grad"  # of the column-parallel product, which comes last
        rest = tuple(kernel for kernel in body.input_grad if kernel.name != first)
        ops.compute(rest, "input_grad", block.name, layer)
        if self._split:
            ops.beside("all_gather", f"{block.name}_input", self.activation_bytes, layer)
        own = tuple(kernel for kernel in body.input_grad if kernel.name == first)
        ops.compute(own, "input_grad", f"{block.name}_input_grad", layer)
        if self._split:
            ops.join()
        if self._tp > 1:
            reduction = "reduce_scatter" if self._split else "all_reduce"
            ops.collective(reduction, f"{block.name}_grad", self.activation_bytes, layer)
        ops.compute(block.entry.input_grad, "input_grad", f"{block.name}_norm", layer)

    def _forward(self, ops: _Ops, block: Block, layer: int, kind: str) -> None:
        def kernels(section: Section) -> tuple[Kernel, ...]:
            return section.forward if kind == "forward" else section.recompute

        ops.compute(kernels(block.entry), kind, f"{block.name}_norm", layer)
        if self._split and block is not self._embedding:
            ops.collective("all_gather", block.name, self.activation_bytes, layer)
        ops.compute(kernels(block.body), kind, block.name, layer)
        if self._tp > 1 and block is not self._lm_head:
            ops.collective("reduce_scatter" if self._split else "all_reduce", block.name, self.activation_bytes, layer)
        ops.compute(kernels(block.exit), kind, f"{block.name}_add", layer)

    def _backward(self, ops: _Ops, block: Block, layer: int) -> None:
        body = block.body
        if not self._full:
            ops.compute(body.recompute, "recompute", block.name, layer)
        ops.compute(block.exit.input_grad + block.exit.weight_grad, "backward", f"{block.name}_add", layer)
        if self._split and block is not self._lm_head:
            ops.collective("all_gather", block.name, self.activation_bytes, layer)
        if block is self._embedding:
            ops.compute(body.input_grad + body.weight_grad, "backward", block.name, layer)
            return
        first = body.forward[0].name  # the column-parallel product: its gradients come last
        own_input = tuple(kernel for kernel in body.input_grad if kernel.name == f"{first}_input_grad")
        own_weight = tuple(kernel for kernel in body.weight_grad if kernel.name.startswith(f"{first}_"))
        rest = tuple(kernel for kernel in body.input_grad if kernel not in own_input)
        rest += tuple(kernel for kernel in body.weight_grad if kernel not in own_weight)
        ops.compute(rest, "backward", block.name, layer)
        if self._split:
            ops.beside("all_gather", f"{block.name}_input", self.activation_bytes, layer)
        ops.compute(own_input, "backward", f"{block.name}_input_grad", layer)
        if self._split:
            ops.join()
        reduction = "reduce_scatter" if self._split else "all_reduce"
        if self._tp > 1 and self._overlap:
            ops.beside(reduction, f"{block.name}_grad", self.activation_bytes, layer)
        ops.compute(own_weight, "backward", f"{block.name}_weight_grad", layer)
        if self._tp > 1 and self._overlap:
            ops.join()
        elif self._tp > 1:
            ops.collective(reduction, f"{block.name}_grad", self.activation_bytes, layer)
        ops.compute(block.entry.input_grad + block.entry.weight_grad, "backward", f"{block.name}_norm", layer)


class _Ops:
    """Ops in the making: what goes beside the main lane is joined by the next op on it."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._ops: list[Op] = []
        self._main = -1  # the last op on the main lane
        self._beside = -1  # an op on the tp lane that nobody has joined yet
        self._joining: tuple[int, ...] = ()

    def compute(self, kernels: Sequence[Kernel], kind: str, name: str, layer: int) -> None:
        if kernels:
            self._add(Compute(self._timer(kernels)), "compute", kind, name, layer)

    def collective(self, kind: str, name: str, size: float, layer: int = -1) -> None:
        self._add(Collective(kind, "tp", size), "tp", kind, name, layer)

    def beside(self, kind: str, name: str, size: float, layer: int) -> None:
        """A collective on the tp lane, from the end of the last main op on."""
        after = (self._main,) if self._main >= 0 else ()
        self._ops.append(Op(Collective(kind, "tp", size), "tp", kind, name, layer, "tp", after))
        self._beside = len(self._ops) - 1

    def join(self) -> None:
        """The next op on the main lane waits for what goes beside it."""
        self._joining += (self._beside,)

    def segment(self) -> Segment:
        return Segment(tuple(self._ops))

    def _add(self, work: Compute | Collective, stream: str, kind: str, name: str, layer: int) -> None:
        self._ops.append(Op(work, stream, kind, name, layer, MAIN, self._joining))
        self._joining = ()
        self._main = len(self._ops) - 1
