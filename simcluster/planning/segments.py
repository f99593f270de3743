"""Ops of one pass of a microbatch through a chunk: kernels per layer, with tensor-parallel traffic between them.

The traffic (Megatron-LM; arXiv:1909.08053 section 3, arXiv:2205.05198 section 4.2.2):

* tensor parallel: the row-parallel matmul of a block is summed over tp (forward), the gradient of the column-parallel
  matmul's input likewise (backward): one all-reduce each, of micro_batch x sequence x hidden elements;
* with sequence parallelism each of them becomes a reduce-scatter, and an all-gather of the same size comes where the
  sharded tensor enters a block; backward the shard that was kept is gathered once more for the weight gradient,
  overlapped with the matmul for the input gradient;
* experts: tokens travel to those they visit, and back (``mixture_ops``);
* context parallel: keys and values of other ranks around the attention kernel (``context_ops``);
* vocabulary parallel loss: three all-reduces of one number per token (maximum, true logit, sum), or a gather of all
  logits;
* without sequence parallelism a stage boundary may be sent split over tp and gathered on arrival (``boundary``).

Every op has the memory that it allocates and frees (``residency``).

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from simcluster.model.kernels import Block, Kernel
from simcluster.model.layer_block import embedding_block, lm_head_block, prediction_block, weight_casts
from simcluster.model.layer_sections import local_sizes
from simcluster.model.layers import RankShape, kinds_by_name
from simcluster.model.transformer import Model
from simcluster.planning.context_ops import add_attention
from simcluster.planning.expert_dispatch import ExpertDispatch
from simcluster.planning.mixture_ops import MixtureOps
from simcluster.planning.ops import EXPERTS, Segment
from simcluster.planning.residency import Phase, block_residencies
from simcluster.planning.segment_ops import (
    NO_HOST_COSTS,
    HostCosts,
    LaunchedKernels,
    SegmentBuilder,
    WorkMaker,
    move_to_layers,
)
from simcluster.planning.works import Compute

_LOSS_BYTES = 4.0  # the loss is computed in fp32

Timer = Callable[[Sequence[Kernel]], float]
"""Seconds that kernels take one after the other on a GPU at full speed."""


def cache_timer(timer: Timer) -> Timer:
    """Return the kernel timer with cached results, since the kernels of a layer recur in every layer."""
    known: dict[tuple[int, ...], tuple[Sequence[Kernel], float]] = {}  # with the kernels, so that names stay theirs

    def found(kernels: Sequence[Kernel]) -> float:
        name = tuple(map(id, kernels))
        if name not in known:
            known[name] = kernels, timer(kernels)
        return known[name][1]

    return found


@dataclass(frozen=True, slots=True)
class Pass:
    """Layers of a chunk that one segment covers, and whether it has the embedding and the LM head.

    ``layers`` are global layer numbers in forward order; ``embedding`` and ``lm_head`` state whether the ends of the
    model are in it (the layers of multi-token prediction count to the LM head); ``boundary`` whether a tensor arrives
    split over tp and must be gathered first; ``begins`` whether the action begins here; ``casts`` whether F casts
    weights, as in a step's first microbatch.
    """

    layers: tuple[int, ...]
    embedding: bool = False
    lm_head: bool = False
    boundary: bool = False
    begins: bool = True
    casts: bool = False


class Passes:
    """Maker of the op segments of forward and backward passes; segments of equal layers are computed once."""

    def __init__(
        self,
        model: Model,
        shape: RankShape,
        timer: Timer,
        *,
        overlap_tensor: bool,
        tensor_pieces: int = 1,
        overlap_experts: bool = False,
        dispatch: ExpertDispatch | None = None,
        sensitivity: Timer = lambda kernels: 1.0,
        attention: Timer = lambda kernels: 0.0,
        issue: HostCosts = NO_HOST_COSTS,
    ) -> None:
        """Set how passes overlap; ``overlap_tensor``: input-gradient reductions with weight gradients.

        ``overlap_experts``: tokens travel to experts overlapped with shared ones, and gradients with weight gradients;
        by which ``dispatch``. ``tensor_pieces``: number of overlapping pieces into which matmuls and the collectives
        around them are cut. ``sensitivity`` and ``attention`` are further fields of ``works.Compute`` by kernels;
        ``issue`` is the host time to issue each.
        """
        self._work: WorkMaker = lambda kernels: Compute(timer(kernels), sensitivity(kernels), attention(kernels))
        self._issue = issue
        self._tp = shape.tp
        self._split = shape.sequence_parallel and shape.tp > 1
        self._overlap = overlap_tensor
        self._pieces = tensor_pieces if shape.tp > 1 else 1
        self._ring = self._split and self._pieces == shape.tp  # every rank's share is a piece: they go round
        self._reduction = "reduce_scatter" if self._split else "all_reduce"
        tokens = shape.micro_batch * model.sequence_length // shape.cp
        self.activation_bytes = shape.element_bytes * tokens * model.hidden_size
        self._token_bytes = _LOSS_BYTES * tokens
        self._kinds = kinds_by_name(model)
        self._recomputed = self._make_blocks(model, shape)
        self._plain = self._make_blocks(model, replace(shape, recompute="none"))
        self._shape = shape
        self.casts = shape.weight_cast_bytes > 0
        contexts = ((name, kind.context(model, shape)) for name, kind in self._kinds.items() if shape.cp > 1)
        self._contexts = dict(contexts)
        self._model = model
        self._routed = {
            name: MixtureOps(model, shape, self.activation_bytes, overlap=overlap_experts, dispatch=dispatch)
            for name, kind in self._kinds.items()
            if kind.ROUTED
        }
        self._residencies = block_residencies(model, shape)
        self._made: dict[Hashable, tuple[Pass, Segment]] = {}  # by what is done, whatever the numbers of its layers

    def segment(self, kind: str, part: Pass) -> Segment:
        """Return the op segment of a pass F, B, I or W (``kind``) of these layers.

        B recomputes where the mode asks for it, and makes the gradients of inputs and weights. I does what B does but
        for the weight gradients, so nothing hides the reductions over tp; what is gathered for a weight gradient is
        gathered here, alongside the input gradient as in B, and kept for W. W has no traffic: matmuls on what F and I
        left on the GPU.
        """
        alike = [(self._residencies.layers[layer], self._shape.recomputes(layer)) for layer in part.layers]
        name = kind, tuple(alike), part.embedding, part.lm_head, part.boundary, part.begins, part.casts
        if name not in self._made:
            self._made[name] = part, self._build_ops(kind, part).segment()
        made, segment = self._made[name]
        if made.layers == part.layers:
            return segment
        return move_to_layers(segment, dict(zip(made.layers, part.layers, strict=True)))

    def launched(self, kind: str, part: Pass) -> list[LaunchedKernels]:
        """Return the kernels of a pass F, B, I or W of these layers, op by op."""
        return self._build_ops(kind, part).launched

    def _build_ops(self, kind: str, part: Pass) -> SegmentBuilder:
        ops = SegmentBuilder(self._work, self._issue)
        if kind == "F" and part.begins and self._issue.microbatch:
            ops.begin_microbatch()
        if part.boundary and kind != "W":
            ops.collective("all_gather", "boundary", self.activation_bytes)
        for phase, name, layer in self._residencies.visits(
            kind, part.layers, embedding=part.embedding, lm_head=part.lm_head
        ):
            block = (self._recomputed if self._shape.recomputes(layer) else self._plain)[name]
            begin, main = len(ops), EXPERTS if name in self._routed else name
            if part.casts and phase == "forward":
                weights = self._routed.get(name, block).sections
                ops.compute(weight_casts(self._shape, weights), phase, f"{block.name}_weight_cast", layer)
            if name in self._routed:
                self._routed[name].visit(ops, phase, layer)
            else:
                self._add_visit(ops, phase, block, layer)
            held, split = self._residencies.residency_of(name, layer), kind in ("I", "W")
            routed = held.routed.changes(phase, split=split) if held.routed else ()
            ops.attach_memory(begin, main, held.changes(phase, split=split), routed)
        if kind == "F" and part.lm_head and self._issue.loss:
            ops.end_forward()
        if not len(ops):
            ops.add_empty_pass({"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}[kind])
        return ops

    def _add_visit(self, ops: SegmentBuilder, phase: Phase, block: Block, layer: int) -> None:
        match phase:
            case "forward" | "recompute":
                self._add_forward(ops, block, layer, phase)
            case "weight_grad":
                self._add_weight_grad(ops, block, layer)
            case "backward" | "input_grad":
                if phase == "backward" or block.name != "embedding":
                    self._add_backward(ops, block, layer, phase)
                elif self._split:  # nothing is before it, but its W needs the whole gradient
                    ops.collective("all_gather", block.name, self.activation_bytes)
            case _:
                assert_never(phase)

    def _add_weight_grad(self, ops: SegmentBuilder, block: Block, layer: int) -> None:
        kernels = block.exit.weight_grad + block.body.weight_grad + block.entry.weight_grad
        if block.name == "embedding":  # its input has no gradient: whatever is left of B is here
            kernels = block.exit.input_grad + block.body.input_grad + kernels
        ops.compute(kernels, "weight_grad", f"{block.name}_weight_grad", layer)

    def _add_forward(self, ops: SegmentBuilder, block: Block, layer: int, kind: str) -> None:
        ops.compute(block.entry.forward_kernels(kind), kind, f"{block.name}_norm", layer)
        gathers = self._split and not self._needs_no_exchange(block, "embedding", "input")
        reduces = self._tp > 1 and not self._needs_no_exchange(block, "lm_head", "output")
        if kind == "recompute" and self._shape.stops_early and block.name == "mlp":
            reduces = False  # nobody reads it again
        size = self._gathered_bytes(block) if gathers else 0.0
        self._add_body(ops, block.body.forward_kernels(kind), kind, block.name, layer, gathers=size, reduces=reduces)
        ops.compute(block.exit.forward_kernels(kind), kind, f"{block.name}_add", layer)
        if self._tp > 1 and block.name == "lm_head":
            self._add_loss_exchange(ops)

    def _add_loss_exchange(self, ops: SegmentBuilder) -> None:
        if self._shape.logits == "gathered":
            size = local_sizes(self._model, self._shape).vocab * self._tp * self._shape.element_bytes
            return ops.collective("all_gather", "logits", size * self._token_bytes / _LOSS_BYTES)
        for name in ("loss_maximum", "loss_logit", "loss_sum"):
            ops.collective("all_reduce", name, self._token_bytes)
        return None

    def _add_body(
        self,
        ops: SegmentBuilder,
        kernels: Sequence[Kernel],
        kind: str,
        name: str,
        layer: int,
        *,
        gathers: float,
        reduces: bool = False,
    ) -> None:
        """Add a block's kernels between the gather of their first operand (bytes; 0: none) and a reduction.

        Both are waited for, or cut into pieces that overlap with those of these matmuls.
        """
        rest = list(kernels)
        cut = self._pieces > 1
        if gathers and cut and rest and rest[0].kind == "matmul":
            ops.add_gathered_matmul(rest.pop(0), self._pieces, kind, name, gathers, layer, ring=self._ring)
        elif gathers:
            ops.collective("all_gather", name, gathers, layer)
        last = rest.pop() if reduces and cut and rest and rest[-1].kind == "matmul" else None
        core = next((place for place, kernel in enumerate(rest) if kernel.kind == "attention"), -1)
        context = self._contexts.get(name)
        if context and core >= 0:
            ops.compute(rest[:core], kind, name, layer)
            add_attention(ops, context, rest.pop(core), kind, name, layer)
            del rest[:core]
        ops.compute(rest, kind, name, layer)
        if last:
            reduction = (self._reduction, name, self.activation_bytes)
            ops.add_reduced_matmul(last, self._pieces, kind, name, reduction, layer, ring=self._ring)
            ops.join()
            if self._ring:
                ops.add_sum(self._pieces, kind, name, self.activation_bytes, layer)
        elif reduces:
            ops.collective(self._reduction, name, self.activation_bytes, layer)

    def _needs_no_exchange(self, block: Block, never: str, what: str) -> bool:
        """Return whether a block has no tensor of this kind to gather or sum: it is ``never``, or shares the other's.

        The two blocks of a parallel residual give one "output", whose "grad" both get; with one norm they have one
        "input", too, and its gradient.
        """
        mate = {"output": "attention", "grad": "attention", "input": "mlp", "input_again": "attention",
                "input_grad": "mlp"}[what]  # fmt: skip
        parallel = self._model.parallel_residual and (what in ("output", "grad") or self._model.layer_norms == 1)
        return block.name == never or bool(parallel and block.name == mate)

    def _gathered_bytes(self, block: Block) -> float:
        return self.activation_bytes * (block.gathered / self._model.hidden_size if block.gathered else 1.0)

    def _add_backward_end(
        self, ops: SegmentBuilder, own: Sequence[Kernel], weight: Sequence[Kernel], kind: str, block: Block, layer: int
    ) -> None:
        """Add the end of a block's backward: gradients of the column-parallel matmul, and their sum over tp.

        What the weight gradient needs is gathered during the input gradient; the sum overlaps with the weight gradient
        if that is asked for, and piece by piece after the input gradient's pieces.
        """
        name, size = block.name, self._gathered_bytes(block)
        called = f"{name}_input_grad"
        reduction = (self._reduction, f"{name}_grad", size)
        gathers = self._split and not self._needs_no_exchange(block, "", "input_again")
        reduces = self._tp > 1 and not self._needs_no_exchange(block, "", "input_grad")
        if gathers:
            ops.add_overlapped("all_gather", f"{name}_input", size, layer)
        if self._pieces > 1 and reduces:
            ops.add_reduced_matmul(own[0], self._pieces, kind, called, reduction, layer, ring=self._ring)
        else:
            ops.compute(own, kind, called, layer)
        ops.join(1 if gathers else 0)
        beside = self._overlap and bool(weight)
        if reduces and self._pieces == 1 and beside:
            ops.add_overlapped(*reduction, layer)
        if not beside:
            ops.join()
        ops.compute(weight, kind, f"{name}_weight_grad", layer)
        ops.join()
        if reduces and self._ring:
            ops.add_sum(self._pieces, kind, f"{name}_weight_grad", size, layer)
        if reduces and self._pieces == 1 and not beside:
            ops.collective(*reduction, layer)

    def _add_backward(self, ops: SegmentBuilder, block: Block, layer: int, kind: str) -> None:
        body, name = block.body, block.name
        if name not in self._residencies.recomputed_blocks(layer):
            if self._split and self._shape.recompute == "operators" and body.recompute:
                ops.collective("all_gather", f"{name}_again", self.activation_bytes, layer)
            ops.compute(block.entry.recompute, "recompute", f"{name}_norm", layer)
            self._add_body(ops, body.recompute, "recompute", name, layer, gathers=0.0)
        ops.compute(block.exit.backward_kernels(kind), kind, f"{name}_add", layer)
        gathers = (
            self.activation_bytes if self._split and not self._needs_no_exchange(block, "lm_head", "grad") else 0.0
        )
        if name == "embedding":
            self._add_body(ops, body.backward_kernels(kind), kind, name, layer, gathers=gathers)
            return
        first = body.forward[0].name  # the column-parallel product: its gradients come last
        own_input = tuple(kernel for kernel in body.input_grad if kernel.name == f"{first}_input_grad")
        weights = body.weight_grad if kind == "backward" else ()
        own_weight = tuple(kernel for kernel in weights if kernel.name.startswith(f"{first}_"))
        rest = tuple(kernel for kernel in body.backward_kernels(kind) if kernel not in own_input + own_weight)
        self._add_body(ops, rest, kind, name, layer, gathers=gathers)
        self._add_backward_end(ops, own_input, own_weight, kind, block, layer)
        ops.compute(block.entry.backward_kernels(kind), kind, f"{name}_norm", layer)

    def _make_blocks(self, model: Model, shape: RankShape) -> dict[str, Block]:
        ends = [embedding_block, *([prediction_block] if model.prediction_layers else []), lm_head_block]
        own = {name: kind.block(model, shape) for name, kind in self._kinds.items()}
        return own | {block.name: block for block in (end(model, shape) for end in ends)}
