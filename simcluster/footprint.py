"""Bytes that the ranks of a stage hold at their peak: model state, and activations of the microbatches in flight.

The stage's row of the schedule is walked action by action: F allocates what its chunk keeps, B (or W) frees it.  Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcluster.layers import RankShape
from simcluster.memory import (
    Recipe,
    activation_bytes_per_layer,
    embedding_activation_bytes,
    head_activation_bytes,
    head_working_bytes,
    state_bytes,
    working_bytes,
)
from simcluster.model import Model, stage_parameters_per_tp_rank
from simcluster.parallel import Plan
from simcluster.schedules import Schedule
from simcluster.step_plan import Slices


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes on each rank of a stage when it holds most."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    other: float  # what lives inside one action only: recomputed tensors, 16-bit logits

    @property
    def total(self) -> float:
        """All of it, in bytes."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.other


def stage_footprint(
    model: Model,
    shape: RankShape,
    plan: Plan,
    schedule: Schedule,
    slices: Slices,
    recipe: Recipe,
    *,
    zero: int,
    stage: int,
) -> Footprint:
    """The peak of one stage's ranks over a step."""
    chunks = range(schedule.num_chunks)
    held_slices = [schedule.slice_of(stage, chunk) for chunk in chunks]
    layers = [slices.counts[number] for number in held_slices]
    first, last = 0 in held_slices, len(slices.counts) - 1 in held_slices
    parameters = stage_parameters_per_tp_rank(model, plan.tp, layers=sum(layers), first=first, last=last)
    state = state_bytes(parameters, recipe, zero=zero, dp=plan.dp * plan.cp)
    kept = [_kept(model, shape, schedule, layers[chunk], stage, chunk) for chunk in chunks]
    held = peak = 0.0
    for action in schedule.rows[stage]:
        if action.kind == "F":
            held += kept[action.chunk]
        elif action.kind in ("B", "W"):
            held -= kept[action.chunk]
        peak = max(peak, held)
    transient = max(working_bytes(model, shape), head_working_bytes(model, shape) if last else 0.0)
    return Footprint(state.parameters, state.gradients, state.optimizer, peak, transient)


def _kept(model: Model, shape: RankShape, schedule: Schedule, layers: int, stage: int, chunk: int) -> float:
    """Bytes that one microbatch leaves in one chunk from its F to its backward."""
    size = layers * activation_bytes_per_layer(model, shape)
    if schedule.slice_of(stage, chunk) == 0:
        size += embedding_activation_bytes(model, shape)
    if schedule.slice_of(stage, chunk) == len(schedule.routes[0]) - 1:
        size += head_activation_bytes(model, shape)
    return size
