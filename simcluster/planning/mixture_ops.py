"""Ops of a mixture-of-experts layer in a pass: router, token dispatch, experts and combine.

Forward: norm and router; the shared experts; rows to their experts, by an all-to-all over ep and, where experts are
split, a gather over the ranks that split one (those of tp, or of etp where it is another number); the experts; the same
way back; weighed sum and residual add. Each tp rank sends the tokens of its part of the sequence. Backward all of it in
reverse, with the same four collectives: two all-to-alls forward, two backward (modelling of Megatron-LM's all-to-all
dispatcher, core/transformer/moe/token_dispatcher.py); other dispatchers make other calls (``expert_dispatch``). With
``overlap`` the all-to-all to the experts overlaps with the shared experts, forward and backward, and the one that
brings gradients back with the experts' weight gradients.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from simcluster.model.adapters import shape_of_block, train_block, train_sections
from simcluster.model.kernels import Block, Section
from simcluster.model.layers import LAYER_KINDS, RankShape
from simcluster.model.mixture_sections import MixtureSections, make_mixture_sections, routed_rows
from simcluster.model.transformer import Model
from simcluster.planning.block_memory import Phase
from simcluster.planning.expert_dispatch import ExpertDispatch
from simcluster.planning.ops import EXPERTS
from simcluster.planning.segment_builder import SegmentBuilder

_OUT, _BACK = ("dispatch", "combine_grad"), ("combine", "dispatch_grad")


class MixtureOpBuilder:
    """Builder of the ops of a mixture-of-experts layer."""

    def __init__(
        self,
        model: Model,
        shape: RankShape,
        activation_bytes: float,
        *,
        overlap: bool = False,
        dispatch: ExpertDispatch | None = None,
    ) -> None:
        """Set the model, the shapes on a rank, and the method and overlap of the token dispatch."""
        self._shape, self._whole, self._overlap = shape, activation_bytes, overlap and shape.ep > 1
        self._untrained, self._parts = {}, {}
        for variant, each in shape.list_variants().items():
            whole = make_mixture_sections(model, shape_of_block("mixture", model, each)).sections
            edges = train_block(LAYER_KINDS["mixture"].block(model, each), "mixture", model, each)
            self._untrained[variant] = whole
            self._parts[variant] = edges, MixtureSections(*train_sections(whole, "mixture", model, each))
        self._visited_again = shape.recompute == "full" or shape.recomputes_module("moe")
        there = routed_rows(model, shape)
        self._counted = model.moe is not None and model.moe.waits_for_row_counts and shape.ep * shape.expert_tp > 1
        how = dispatch or ExpertDispatch()
        out, back = (way(there, shape.ep, shape.element_bytes) for way in (how.dispatch_transfer, how.combine_transfer))
        self._travels = dict.fromkeys(_OUT, out) | dict.fromkeys(_BACK, back)
        gathered = shape.ep * shape.expert_tp * there.tokens  # all of all ranks
        self._there = there.row_bytes * (gathered if how.kind == "allgather" else there.rows)
        self._split = "tp" if shape.expert_tp == shape.tp else "etp"

    def list_sections(self, layer: int) -> tuple[Section, ...]:
        """Return a layer's kernel sections between norm and residual add, as if no weights were frozen."""
        return self._untrained[self._shape.layer_variant(layer)]

    def add_phase(self, ops: SegmentBuilder, phase: Phase, layer: int) -> None:
        """Add the ops of a mixture-of-experts layer for one phase (forward, recompute, backward, ...) of a pass."""
        edges, parts = self._parts[self._shape.layer_variant(layer)]
        match phase:
            case "forward" | "recompute":
                self._add_forward(ops, edges, parts, phase, layer)
            case "weight_grad":
                sections = (edges.exit, parts.combine, parts.dispatch, parts.shared, parts.router, edges.entry)
                ops.add_kernels(parts.experts.weight_grad, phase, EXPERTS, layer)  # as long as the rank has rows
                kernels = tuple(kernel for section in sections for kernel in section.weight_grad)
                ops.add_kernels(kernels, phase, "mixture_weight_grad", layer)
            case "backward" | "input_grad":
                self._add_backward(ops, edges, parts, phase, layer)
            case _:
                assert_never(phase)

    def _add_forward(self, ops: SegmentBuilder, edges: Block, parts: MixtureSections, kind: str, layer: int) -> None:
        def add_shared_experts() -> None:
            if parts.shared.forward:
                self._add_tp_collective(ops, "all_gather", "shared", layer)
                ops.add_kernels(parts.shared.forward_kernels(kind), kind, "shared", layer)
                self._add_tp_collective(ops, "reduce_scatter", "shared", layer)

        ops.add_kernels(edges.entry.forward_kernels(kind) + parts.router.forward_kernels(kind), kind, "router", layer)
        if not self._overlap:
            add_shared_experts()
        ops.add_kernels(parts.dispatch.forward_kernels(kind), kind, "dispatch", layer)
        if self._counted:  # how many rows go to each rank: the sizes of the all-to-all are the host's to give
            ops.add_wait_for_counts(layer)
        self._add_transfer_to_experts(ops, "dispatch", layer, add_shared_experts)
        ops.add_kernels(parts.experts.forward_kernels(kind), kind, EXPERTS, layer)
        self._add_transfer_from_experts(ops, "combine", layer)
        ops.add_kernels(parts.combine.forward_kernels(kind) + edges.exit.forward_kernels(kind), kind, "combine", layer)

    def _add_backward(self, ops: SegmentBuilder, edge: Block, parts: MixtureSections, kind: str, layer: int) -> None:
        def add_shared_experts() -> None:
            if parts.shared.forward:
                self._add_tp_collective(ops, "all_gather", "shared_grad", layer)
                self._add_tp_collective(ops, "all_gather", "shared_input", layer)
                ops.add_kernels(parts.shared.backward_kernels(kind), kind, "shared", layer)
                self._add_tp_collective(ops, "reduce_scatter", "shared_grad", layer)

        def add_weight_grads() -> None:
            ops.add_kernels(parts.experts.weight_grad if kind == "backward" else (), kind, EXPERTS, layer)

        if not self._visited_again:
            self._add_recompute(ops, edge, parts, layer)
        ops.add_kernels(edge.exit.backward_kernels(kind) + parts.combine.backward_kernels(kind), kind, "combine", layer)
        self._add_transfer_to_experts(ops, "combine_grad", layer, add_shared_experts)
        kernels = parts.experts.input_grad if self._overlap else parts.experts.backward_kernels(kind)
        ops.add_kernels(kernels, kind, EXPERTS, layer)
        self._add_transfer_from_experts(ops, "dispatch_grad", layer, add_weight_grads)
        ops.add_kernels(parts.dispatch.backward_kernels(kind), kind, "dispatch", layer)
        if not self._overlap:
            add_shared_experts()
        ops.add_kernels(parts.router.backward_kernels(kind) + edge.entry.backward_kernels(kind), kind, "router", layer)

    def _add_recompute(self, ops: SegmentBuilder, edges: Block, parts: MixtureSections, layer: int) -> None:
        ops.add_kernels(edges.entry.recompute, "recompute", "router", layer)
        if parts.shared.recompute:
            self._add_tp_collective(ops, "all_gather", "shared_again", layer)
            ops.add_kernels(parts.shared.recompute, "recompute", "shared", layer)
            self._add_tp_collective(ops, "reduce_scatter", "shared_again", layer)
        ops.add_kernels(parts.experts.recompute, "recompute", EXPERTS, layer)

    def _add_transfer_to_experts(self, ops: SegmentBuilder, name: str, layer: int, beside: Callable[[], None]) -> None:
        self._add_ep_collective(ops, name, layer, beside)
        if self._shape.expert_tp > 1:
            ops.add_collective("all_gather", name, self._there, layer, self._split)

    def _add_transfer_from_experts(
        self, ops: SegmentBuilder, name: str, layer: int, beside: Callable[[], None] | None = None
    ) -> None:  # fmt: skip
        if self._shape.expert_tp > 1:
            ops.add_collective("reduce_scatter", name, self._there, layer, self._split)
        self._add_ep_collective(ops, name, layer, beside)

    def _add_ep_collective(self, ops: SegmentBuilder, name: str, layer: int, beside: Callable[[], None] | None) -> None:
        travel = self._travels[name]
        if self._overlap and beside:
            ops.add_overlapped_collective(travel.kind, name, travel.size, layer, "ep")
            beside()
            ops.join_collectives()
        elif self._shape.ep > 1:
            ops.add_collective(travel.kind, name, travel.size, layer, "ep")

    def _add_tp_collective(self, ops: SegmentBuilder, kind: str, name: str, layer: int) -> None:
        if self._shape.tp > 1:
            ops.add_collective(kind, name, self._whole, layer)
