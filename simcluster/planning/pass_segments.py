"""Ops of one pass of a microbatch through a chunk: kernels per layer, with tensor-parallel traffic in between.

The traffic (Megatron-LM; arXiv:1909.08053 section 3, arXiv:2205.05198 section 4.2.2):

* tensor parallel: the row-parallel matmul of a block is summed over tp (forward), the gradient of the column-parallel
  matmul's input likewise (backward): one all-reduce each, of micro_batch x sequence x hidden elements;
* with sequence parallelism each of them becomes a reduce-scatter, and an all-gather comes where the sharded tensor
  enters a block, of what low precision leaves of its size; backward the shard that was kept is gathered once more for
  the weight gradient, overlapped with the matmul for the input gradient;
* experts: tokens travel to those they visit, and back (``mixture_ops``);
* context parallel: keys and values of other ranks around the attention kernel (``context_ops``);
* vocabulary parallel loss: three all-reduces of a number per token (maximum, logit, sum), or a gather of all logits;
* without sequence parallelism a stage boundary may be sent split over tp and gathered on arrival (``boundary``).

Every op has the memory that it allocates and frees (``block_memory``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

from simcluster.model.adapters import shape_of_block, train_blocks
from simcluster.model.documented_kind import DocumentedKind
from simcluster.model.encoder import ENCODER
from simcluster.model.kernels import Block, Kernel
from simcluster.model.layer_block import embedding_block, lm_head_block, mtp_input_block
from simcluster.model.layer_sections import FP32_BYTES
from simcluster.model.layers import RankShape, layer_kinds
from simcluster.model.quantization import weight_cast_kernels
from simcluster.model.rank_shape import local_sizes
from simcluster.model.transformer import Model
from simcluster.planning.block_memory import BlockKey, Phase, block_memory_table
from simcluster.planning.context_ops import add_context_exchanges, add_cp_attention
from simcluster.planning.expert_dispatch import ExpertDispatch
from simcluster.planning.mixture_ops import MixtureOpBuilder
from simcluster.planning.ops import EXPERTS, Segment
from simcluster.planning.segment_builder import (
    NO_HOST_COSTS,
    HostLaunchTimes,
    LaunchedKernels,
    SegmentBuilder,
    Timer,
    WorkMaker,
    renumber_layers,
)
from simcluster.planning.work_kinds import Compute


@dataclass(frozen=True, slots=True)
class PassLayers:
    """Layers of a chunk that one segment covers, and whether it includes the embedding and the LM head.

    ``layers`` are global layer numbers in forward order; those of multi-token prediction count to the LM head, unless
    another slice has them (``RankShape.separate_prediction``). ``gathers_input``: what arrives is first gathered over
    tp. ``starts_action``: the action begins here. ``casts_weights``: F casts weights, as in a step's first microbatch.
    """

    layers: tuple[int, ...]
    embedding: bool = False
    lm_head: bool = False
    gathers_input: bool = False
    starts_action: bool = True
    casts_weights: bool = False


class CachedPassSegmentMaker:
    """Maker of the ops of forward and backward passes; equal layers reuse the same ops."""

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
        issue: HostLaunchTimes = NO_HOST_COSTS,
    ) -> None:
        """Set the model, the kernel timers, and which communication overlaps with compute.

        ``overlap_experts``: tokens travel to experts overlapped with shared ones, and gradients with weight gradients;
        by which ``dispatch``. ``tensor_pieces``: number of overlapping pieces into which matmuls and the collectives
        around them are cut. ``sensitivity`` and ``attention`` are further fields of ``work_kinds.Compute`` by kernels;
        ``issue`` is the host time to issue each. ``overlap_tensor``: input-gradient reductions overlap with matmuls.
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
        self.boundary_bytes = self.activation_bytes * model.num_streams
        self._token_bytes = FP32_BYTES * tokens
        self._kinds = {
            (layer_type, kind.name): (kind, model.layer_model(layer))
            for layer_type, (layer, _) in model.count_layer_types().items()
            for kind in layer_kinds(model, layer)
        }
        self._untrained = {variant: _make_blocks(model, each) for variant, each in shape.list_variants().items()}
        self._blocks = {variant: train_blocks(each, model, shape) for variant, each in self._untrained.items()}
        self._model, self._shape = model, shape
        self.casts = shape.weight_cast_bytes > 0
        self._contexts = {key: kind.cp_exchange(own, shape) for key, (kind, own) in self._kinds.items() if shape.cp > 1}
        self._exchanges = {
            key: kind.context_exchange(own, shape)
            for key, (kind, own) in self._kinds.items()
            if isinstance(kind, DocumentedKind)
        }
        self._routed = {
            key: MixtureOpBuilder(own, shape, self.activation_bytes, overlap=overlap_experts, dispatch=dispatch)
            for key, (kind, own) in self._kinds.items()
            if kind.ROUTED
        }
        self._residencies = block_memory_table(model, shape)
        self._made: dict[Hashable, tuple[PassLayers, Segment]] = {}  # by what is done, whatever its layers' numbers

    def segment(self, kind: str, part: PassLayers) -> Segment:
        """Return the ops (a segment) of a pass of kind F, B, I or W over the layers of ``part``.

        B recomputes where the mode asks for it, and makes the gradients of inputs and weights. I does what B does but
        for the weight gradients, so nothing hides the reductions over tp; what is gathered for a weight gradient is
        gathered here, alongside the input gradient as in B, and kept for W. W has no traffic: matmuls on what F and I
        left on the GPU.
        """
        types, predicted = self._residencies.types, self._model.prediction_layers
        own = [(types[each], self._shape.layer_variant(each), each in predicted) for each in part.layers]
        key = kind, tuple(own), part.embedding, part.lm_head, part.gathers_input, part.starts_action, part.casts_weights
        if key not in self._made:
            self._made[key] = part, self._build_ops(kind, part).build_segment()
        made, segment = self._made[key]
        if made.layers == part.layers:
            return segment
        return renumber_layers(segment, dict(zip(made.layers, part.layers, strict=True)))

    def launched_kernels(self, kind: str, part: PassLayers) -> list[LaunchedKernels]:
        """Return the kernels of a pass of kind F, B, I or W over the layers of ``part``, op by op."""
        return self._build_ops(kind, part).launched

    def _build_ops(self, kind: str, part: PassLayers) -> SegmentBuilder:
        ops = SegmentBuilder(self._work, self._issue, pieces=self._pieces, ring=self._ring)
        if kind == "F" and part.starts_action:
            ops.add_microbatch_start()
        if part.gathers_input and kind != "W":
            ops.add_collective("all_gather", "boundary", self.boundary_bytes)
        for phase, name, layer in self._residencies.block_phases(
            kind, part.layers, embedding=part.embedding, lm_head=part.lm_head
        ):
            key = self._residencies.block_key(name, layer)
            block = self._blocks[self._shape.layer_variant(layer)][key]
            begin, main = len(ops), EXPERTS if key in self._routed else name
            if part.casts_weights and phase == "forward":
                whole = self._untrained[self._shape.layer_variant(layer)][key]
                weights = self._routed[key].list_sections(layer) if key in self._routed else whole.sections
                ops.add_kernels(weight_cast_kernels(self._shape, weights), phase, f"{block.name}_weight_cast", layer)
            if key in self._routed:
                self._routed[key].add_phase(ops, phase, layer)
            else:
                self._add_block_phase(ops, phase, block, layer)
            held, split = self._residencies.memory_of_block(name, layer), kind in ("I", "W")
            routed = held.routed.memory_changes(phase, split=split) if held.routed else ()
            ops.attach_memory(begin, main, held.memory_changes(phase, split=split), routed)
        if kind == "F" and part.lm_head:
            ops.add_host_wait(self._issue.loss, "loss")
        if not len(ops):
            ops.add_empty_pass({"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}[kind])
        return ops

    def _add_block_phase(self, ops: SegmentBuilder, phase: Phase, block: Block, layer: int) -> None:
        match phase:
            case "forward" | "recompute":
                self._add_forward(ops, block, layer, phase)
            case "weight_grad":
                self._add_weight_grad(ops, block, layer)
            case "backward" | "input_grad":
                if phase == "backward" or block.name != "embedding":
                    self._add_backward(ops, block, layer, phase)
                elif self._split:  # nothing is before it, but its W needs the whole gradient
                    ops.add_collective("all_gather", block.name, self.activation_bytes)
            case _:
                assert_never(phase)

    def _add_weight_grad(self, ops: SegmentBuilder, block: Block, layer: int) -> None:
        kernels = block.exit.weight_grad + block.body.weight_grad + block.entry.weight_grad
        if block.name == "embedding":  # its input has no gradient: whatever is left of B is here
            kernels = block.exit.input_grad + block.body.input_grad + kernels
        ops.add_kernels(kernels, "weight_grad", f"{block.name}_weight_grad", layer)

    def _add_forward(self, ops: SegmentBuilder, block: Block, layer: int, kind: str) -> None:
        ops.add_kernels(block.entry.forward_kernels(kind), kind, f"{block.name}_norm", layer)
        gathers = self._split and not self._skips_exchange(block, "embedding", "input")
        sums = self._tp > 1 and not self._skips_exchange(block, "lm_head", "output")
        if kind == "recompute" and self._shape.stops_early and block.name == "mlp" and self._model.num_streams == 1:
            sums = False  # nobody reads it again
        detached = self.activation_bytes * block.detached_width / self._model.hidden_size
        size = block.input_share * self._gathered_bytes(block) + detached if gathers else 0.0
        if gathers and block.reduces_largest:
            ops.add_collective("all_reduce", f"{block.name}_largest", FP32_BYTES, layer)
        self._add_block_body(ops, block.body.forward_kernels(kind), kind, block.name, layer, gathers=size, reduces=sums)
        ops.add_kernels(block.exit.forward_kernels(kind), kind, f"{block.name}_add", layer)
        if self._tp > 1 and block.name == "lm_head":
            self._add_loss_exchange(ops)

    def _add_loss_exchange(self, ops: SegmentBuilder) -> None:
        if self._shape.logits == "gathered":
            size = local_sizes(self._model.layer_model(0), self._shape).vocab * self._tp * self._shape.element_bytes
            return ops.add_collective("all_gather", "logits", size * self._token_bytes / FP32_BYTES)
        for name in ("loss_maximum", "loss_logit", "loss_sum"):
            ops.add_collective("all_reduce", name, self._token_bytes)
        return None

    def _add_block_body(
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
        """Add a block's kernels, preceded by a gather of ``gathers`` bytes and followed by a reduction, if any.

        Both are waited for, or cut into pieces that overlap with those of these matmuls.
        """
        rest = list(kernels)
        cut = self._pieces > 1
        if gathers and cut and rest and rest[0].kind == "matmul":
            ops.add_gathered_matmul(rest.pop(0), kind, name, gathers, layer)
        elif gathers:
            ops.add_collective("all_gather", name, gathers, layer)
        last = rest.pop() if reduces and cut and rest and rest[-1].kind == "matmul" else None
        core = next((place for place, kernel in enumerate(rest) if kernel.kind == "attention"), -1)
        context = self._contexts.get(self._residencies.block_key(name, layer))
        if context and core >= 0:
            ops.add_kernels(rest[:core], kind, name, layer)
            add_cp_attention(ops, context, rest.pop(core), kind, name, layer)
            del rest[:core]
        if exchange := self._exchanges.get(self._residencies.block_key(name, layer)):
            rest = add_context_exchanges(ops, exchange, rest, kind, name, layer)
        ops.add_kernels(rest, kind, name, layer)
        if last:
            reduction = (self._reduction, name, self.activation_bytes)
            ops.add_reduced_matmul(last, kind, name, reduction, layer)
            ops.join_collectives()
            if self._ring:
                ops.add_ring_sum(kind, name, self.activation_bytes, layer)
        elif reduces:
            ops.add_collective(self._reduction, name, self.activation_bytes, layer)

    def _skips_exchange(self, block: Block, end_block: str, tensor: str) -> bool:
        """Return whether a block runs no collective over tp for this tensor, because another block runs it.

        The two blocks of a parallel residual give one "output", whose "grad" both get; with one norm they have one
        "input", too, and its gradient.
        """
        mate = "mlp" if tensor in ("input", "input_grad") else "attention"
        parallel = self._model.parallel_residual and (tensor in ("output", "grad") or self._model.layer_norms == 1)
        without = block.name == end_block or block.name.startswith(ENCODER)  # the encoder's are in it
        return without or bool(parallel and block.name == mate)

    def _gathered_bytes(self, block: Block) -> float:
        return self.activation_bytes * (block.gathered_width / self._model.hidden_size if block.gathered_width else 1.0)

    def _add_backward_end(
        self, ops: SegmentBuilder, own: Sequence[Kernel], weight: Sequence[Kernel], kind: str, block: Block, layer: int
    ) -> None:
        """Add the end of a block's backward: gradients of the column-parallel matmul, reduced over tp.

        What the weight gradient needs is gathered during the input gradient; the sum overlaps with the weight gradient
        if that is asked for, and piece by piece after the input gradient's pieces.
        """
        name, size = block.name, self._gathered_bytes(block)
        called = f"{name}_input_grad"
        reduction = (self._reduction, f"{name}_grad", size)
        gathers = self._split and not block.frozen and not self._skips_exchange(block, "", "input_again")
        reduces = self._tp > 1 and not self._skips_exchange(block, "", "input_grad")
        if gathers:
            ops.add_overlapped_collective("all_gather", f"{name}_input", block.input_share * size, layer)
        if self._pieces > 1 and reduces:
            ops.add_reduced_matmul(own[0], kind, called, reduction, layer)
        else:
            ops.add_kernels(own, kind, called, layer)
        ops.join_collectives(1 if gathers else 0)
        beside = self._overlap and bool(weight)
        if reduces and self._pieces == 1 and beside:
            ops.add_overlapped_collective(*reduction, layer)
        if not beside:
            ops.join_collectives()
        ops.add_kernels(weight, kind, f"{name}_weight_grad", layer)
        ops.join_collectives()
        if reduces and self._ring:
            ops.add_ring_sum(kind, f"{name}_weight_grad", size, layer)
        if reduces and self._pieces == 1 and not beside:
            ops.add_collective(*reduction, layer)

    def _add_backward(self, ops: SegmentBuilder, block: Block, layer: int, kind: str) -> None:
        body, name = block.body, block.name
        if name not in self._residencies.recomputed_blocks(layer):
            if self._split and self._shape.recompute == "operators" and body.recompute:
                ops.add_collective("all_gather", f"{name}_again", self.activation_bytes, layer)
            ops.add_kernels(block.entry.recompute, "recompute", f"{name}_norm", layer)
            self._add_block_body(ops, body.recompute, "recompute", name, layer, gathers=0.0)
        ops.add_kernels(block.exit.backward_kernels(kind), kind, f"{name}_add", layer)
        gathers = self._split and not self._skips_exchange(block, "lm_head", "grad")
        size = block.gradient_share * self.activation_bytes if gathers else 0.0
        if gathers and block.reduces_largest:
            ops.add_collective("all_reduce", f"{name}_grad_largest", FP32_BYTES, layer)
        if name == "embedding":
            self._add_block_body(ops, body.backward_kernels(kind), kind, name, layer, gathers=size)
            return
        first = body.forward[0].name.removesuffix("_dequantize")  # the column-parallel product: its gradients come last
        own_input = tuple(kernel for kernel in body.input_grad if kernel.name == f"{first}_input_grad")
        weights = body.weight_grad if kind == "backward" else ()
        own_weight = tuple(kernel for kernel in weights if kernel.name.startswith(f"{first}_"))
        rest = tuple(kernel for kernel in body.backward_kernels(kind) if kernel not in own_input + own_weight)
        if block.summed_width and self._tp > 1:
            ops.add_collective("all_reduce", f"{name}_target", self._token_bytes * block.summed_width, layer)
        self._add_block_body(ops, rest, kind, name, layer, gathers=size)
        self._add_backward_end(ops, own_input, own_weight, kind, block, layer)
        ops.add_kernels(block.entry.backward_kernels(kind), kind, f"{name}_norm", layer)


@lru_cache(maxsize=32)
def _make_blocks(model: Model, shape: RankShape) -> Mapping[BlockKey, Block]:
    ends = [embedding_block, *([mtp_input_block] if model.prediction_layers else []), lm_head_block]
    found: dict[BlockKey, Block] = {((), one.name): one for one in (end(model.layer_model(0), shape) for end in ends)}
    for key, (layer, _) in model.count_layer_types().items():
        own = model.layer_model(layer)
        for kind in layer_kinds(model, layer):
            found[key, kind.name] = kind.block(own, shape_of_block(kind.name, own, shape))
    return found
