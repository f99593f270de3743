"""Tensors that make up a stage's activation memory at its peak, by block and name. No side effects."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from simcluster.model.kernel_choices import LayerVariant
from simcluster.model.memory import end_backward_tensors, layer_backward_tensors
from simcluster.model.saved_tensors import SavedTensor, is_saved
from simcluster.planning.block_memory import BlockKey, BlockMemoryTable
from simcluster.planning.job import ModelSlices
from simcluster.schedules import Schedule

_Place = tuple[BlockKey, LayerVariant]
"""Type and name of a block, and the variant of its layer."""

_State = Literal["F", "again", "in I", "I"]
"""States of a block: F is over; W's inputs are being recomputed or were; I runs; I is over but not W."""

_Counts = Counter[tuple[_State, _Place]]


@dataclass(frozen=True, slots=True)
class PeakTensor:
    """Tensor of a block at the memory peak: bytes per instance, and number of instances in memory."""

    block: str
    tensor: str
    bytes: float
    alive: int

    @property
    def total_bytes(self) -> float:
        """Bytes of all instances of the tensor."""
        return self.bytes * self.alive


def list_peak_tensors(
    blocks: BlockMemoryTable, schedule: Schedule, slices: ModelSlices, stage: int
) -> list[PeakTensor]:
    """Return the tensors in a rank's memory when its activations peak, the largest first.

    With even shares of experts, and nothing in host memory.
    """
    found: Counter[tuple[str, str, float]] = Counter()
    types = blocks.model.count_layer_types()
    for (state, place), count in _count_alive_blocks(blocks, schedule, slices, stage).items():
        (layer_type, block), variant = place
        shape = blocks.shape.list_variants()[variant]
        tensors = (
            layer_backward_tensors(blocks.model, shape, types[layer_type][0])
            if layer_type
            else end_backward_tensors(blocks.model, shape)
        )
        for tensor in tensors:
            if tensor.block == block and _is_alive(tensor, state, kept=is_saved(tensor, shape)):
                found[tensor.block, tensor.name, tensor.bytes] += count
    parts = [PeakTensor(*name, alive) for name, alive in found.items() if alive]
    return sorted(parts, key=lambda part: -part.total_bytes)


def _is_alive(tensor: SavedTensor, state: _State, *, kept: bool) -> bool:
    for_weights = tensor.read == "W"
    return {
        "F": kept,
        "again": for_weights and not kept and tensor.made == "F",
        "in I": tensor.made == "I",
        "I": for_weights,
    }[state]


def _count_alive_blocks(blocks: BlockMemoryTable, schedule: Schedule, slices: ModelSlices, stage: int) -> _Counts:
    states: _Counts = Counter()
    found, held, most = states.copy(), 0.0, 0.0
    for action in schedule.rows[stage]:
        split = action.kind in ("I", "W")
        whole = slices.pass_over_slice(schedule.model_slice(stage, action.chunk))
        for visit in blocks.block_phases(action.kind, whole.layers, embedding=whole.embedding, lm_head=whole.lm_head):
            own = blocks.memory_of_block(visit.block, visit.layer)
            place = blocks.block_key(visit.block, visit.layer), blocks.shape.layer_variant(visit.layer)
            changes = own.memory_changes(visit.phase, split=split)
            held += sum(change.start for change in changes)
            states["F", place] += visit.phase == "forward"
            states["again", place] += split and visit.phase == ("recompute" if own.separate_recompute else "input_grad")
            states["in I", place] += visit.phase == "input_grad"
            if held > most:
                most, found = held, states.copy()
            held += sum(change.end for change in changes)
            states["F", place] -= visit.phase in ("backward", "input_grad")
            states["again", place] -= visit.phase == "input_grad"
            states["in I", place] -= visit.phase == "input_grad"
            states["I", place] += (visit.phase == "input_grad") - (visit.phase == "weight_grad")
    return found
