"""Peak memory (bytes) of the ranks of a stage: model state, and activations of the microbatches in flight.

The stage's row of the schedule is walked action by action and block by block (``block_memory``): the same changes that
the ops of a run make, without their times. With unequal loads of experts or the encoder, the walk has a level for
every rank. ``JobFacts`` holds what else is known of a job before it runs. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Protocol

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.model.encoder import ENCODER
from simcluster.model.layers import RankShape
from simcluster.model.recipes import Recipe
from simcluster.model.transformer import Model
from simcluster.planning.block_memory import (
    BlockMemoryTable,
    BlockPhase,
    MemoryLevel,
    MemoryProfile,
    block_memory_table,
    peak_of_passes,
    profile_pass,
)
from simcluster.planning.job import ModelSlices, OffloadOptions
from simcluster.planning.offload import plan_activation_offloads
from simcluster.planning.offload_layers import LayerCopyWindows, find_adjacent_backwards
from simcluster.planning.ops import MemoryChange
from simcluster.planning.optimizer import Optimizer
from simcluster.planning.owned_parameters import MemoryOverheads, layers_with_prediction, parameters_of_stage
from simcluster.planning.pass_segments import PassLayers
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.schedules import Action, Schedule

_NO_OVERHEADS = MemoryOverheads()
_NO_OFFLOAD = OffloadOptions()


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of model state, activations and buffers on each rank of a stage at its memory peak."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    other: float  # what lives inside one action only (recomputed tensors, 16-bit logits), and what is lost
    unsharded: float = 0.0  # parameters and gradients of units that ZeRO 3 has whole for their use
    buffers: float = 0.0  # of libraries, there all the time (``buffers.MemoryOverheads``)
    fragmentation: float = 1.0  # a factor on what comes and goes; what it adds is lost, and in ``other``
    host: float = 0.0  # in host memory instead, and in no other number: the optimizer's state, and what it needs there

    @property
    def total(self) -> float:
        """Bytes of all parts of the footprint."""
        state = self.parameters + self.gradients + self.optimizer + self.buffers
        return state + self.activations + self.other + self.fragmentation * self.unsharded

    def with_pool_bytes(self, pools: Mapping[str, float]) -> Footprint:
        """Return the footprint at another time: equal model state, but other bytes in the memory pools."""
        return replace(
            self,
            parameters=self.parameters + pools["parameters"],
            gradients=self.gradients + pools["gradients"],
            activations=pools["activations"],
            other=pools["other"] + (self.fragmentation - 1.0) * sum(pools.values()),
            unsharded=0.0,
        )


def stage_footprint(
    model: Model,
    shape: RankShape,
    plan: ParallelPlan,
    schedule: Schedule,
    slices: ModelSlices,
    recipe: Recipe,
    *,
    zero: int,
    stage: int,
    overheads: MemoryOverheads = _NO_OVERHEADS,
    offload: OffloadOptions = _NO_OFFLOAD,
    loads: UnevenLoads | None = None,
    steps: int = 1,
    optimizer: Optimizer | None = None,
    outer: float = 0.0,
) -> Footprint:
    """Return the peak memory of the ranks of one stage over a step.

    With unequal ``loads`` it is that of the fullest rank over all ``steps``. The ``optimizer`` may keep less state than
    Adam; workers that train separately keep ``outer`` bytes per parameter of the rank's part.
    """
    chunks = range(schedule.num_chunks)
    held_slices = [schedule.model_slice(stage, chunk) for chunk in chunks]
    layers = [layer for number in held_slices for layer in slices.layers_of_slice(number)]
    first, last = 0 in held_slices, len(slices.counts) - 1 in held_slices
    held = parameters_of_stage(model, plan, layers, first=first, last=last)
    shards, expert_shards = plan.shard_size, plan.expert_shard_size
    state = held.state_bytes(model, recipe, zero=zero, shards=shards, expert_shards=expert_shards)
    blocks = block_memory_table(model, shape)
    if loads is None:
        peak = activation_peak(blocks, schedule, slices, stage, offload)
    else:
        peak = uneven_activation_peak(blocks, schedule, slices, stage, loads, steps)
    updated = state.optimizer / recipe.optimizer  # parameters whose state the rank has
    spared = optimizer.saved_state_bytes(layers_with_prediction(model, plan, layers, last=last)) if optimizer else 0.0
    lost = (overheads.fragmentation - 1.0) * peak.total
    return Footprint(
        state.parameters,
        state.gradients,
        offload.optimizer_bytes_on_gpu(updated)
        if offload.optimizer != "none"
        else state.optimizer - spared + outer * held.sharded_count(plan),
        peak.activations,
        peak.other + lost,
        buffers=overheads.buffer_bytes(model, shape, layers, last=last),
        fragmentation=overheads.fragmentation,
        host=offload.optimizer_bytes_on_host(updated) if offload.optimizer != "none" else 0.0,
    )


def activation_peak(
    blocks: BlockMemoryTable, schedule: Schedule, slices: ModelSlices, stage: int, offload: OffloadOptions
) -> MemoryLevel:
    """Return the bytes of activations and of working tensors on a rank at the time when their sum peaks.

    Buffers between stages depend on times, so only the timeline of a run has them. What goes to the host counts as gone
    when one more action is over; if a copy takes longer, a run shows it.
    """
    known: dict[tuple[str, int], MemoryProfile] = {}
    for action in schedule.rows[stage]:
        if (action.kind, action.chunk) not in known:
            order = _list_block_phases(blocks, schedule, slices, stage, action)
            known[action.kind, action.chunk] = profile_pass(blocks, order, split=action.kind in ("I", "W"))
    row = schedule.rows[stage]
    if not offload.activations:
        return peak_of_passes([known[action.kind, action.chunk] for action in row])
    goes: dict[int, float] = {}  # bytes that leave behind an action, by its place, and that are back before it
    comes: dict[int, float] = {}
    for trip in plan_activation_offloads(row, schedule.fused_positions(stage), offload.prefetch_actions):
        layers = slices.layers_of_slice(schedule.model_slice(stage, row[trip.producer].chunk))
        size = offload.activations * offload.kept_bytes_of_layers(layers)
        goes[trip.copied_out_after + 1] = goes.get(trip.copied_out_after + 1, 0.0) + size
        comes[trip.copied_back_after + 1] = comes.get(trip.copied_back_after + 1, 0.0) + size
    by_layer = find_adjacent_backwards(row, schedule.fused_positions(stage))
    profiles = []
    for place, action in enumerate(row):
        back, gone = comes.get(place, 0.0), goes.get(place, 0.0)
        profiles += [_copy_profile(back)] if back else []
        profiles.append(known[action.kind, action.chunk])
        if action[1:] in by_layer and action.kind != "W":
            whole = slices.pass_over_slice(schedule.model_slice(stage, action.chunk))
            profiles[-1:] = _offloaded_pass_profiles(blocks, whole, action.kind, offload)
        profiles += [_copy_profile(-gone)] if gone else []
    return peak_of_passes(profiles)


def _copy_profile(size: float) -> MemoryProfile:
    return MemoryProfile(MemoryLevel(max(size, 0.0), 0.0), size)


def _offloaded_pass_profiles(
    blocks: BlockMemoryTable, whole: PassLayers, kind: str, offload: OffloadOptions
) -> list[MemoryProfile]:
    windows = LayerCopyWindows.for_layers(whole.layers, offload)
    pieces = windows.split_pass(whole) if windows.sizes else [whole]
    found = []
    for piece in pieces if kind == "F" else pieces[::-1]:
        over = windows.copy_awaited_by(piece, whole.layers[-1]) if kind == "F" and windows.sizes else -1
        top = windows.mark_index(piece.layers[-1]) if windows.sizes and kind != "F" and piece.layers else 0
        if windows.sizes and kind != "F" and piece is pieces[-1] and not piece.lm_head:
            found.append(_copy_profile(-windows.sizes[-1]))
        if over >= 0 or top > 0:
            found.append(_copy_profile(-windows.sizes[over] if over >= 0 else windows.sizes[top - 1]))
        order = blocks.block_phases(kind, piece.layers, embedding=piece.embedding, lm_head=piece.lm_head)
        found.append(profile_pass(blocks, order, split=kind == "I"))
    return found


def _list_block_phases(
    blocks: BlockMemoryTable, schedule: Schedule, slices: ModelSlices, stage: int, action: Action
) -> list[BlockPhase]:
    whole = slices.pass_over_slice(schedule.model_slice(stage, action.chunk))
    return blocks.block_phases(action.kind, whole.layers, embedding=whole.embedding, lm_head=whole.lm_head)


# --- ranks of a stage with unequal work -----------------------------------------------------------------------------


class UnevenLoads(Protocol):
    """Interface of unequal loads of experts, or of the encoder (``of_encoder``)."""

    @property
    def by_pass(self) -> bool: ...
    @property
    def of_encoder(self) -> bool: ...
    def stage_loads(self, layer: int, step: int, microbatch: int) -> Floats:
        """Return each rank's load relative to an even share, for the ranks of a stage in one pass."""
        ...


class _RankMemoryLevels(NamedTuple):
    """Memory of every rank of a stage: bytes in the pools "activations" and "other", each an array by rank."""

    activations: Floats
    other: Floats

    def rankwise_maximum(self, other: _RankMemoryLevels) -> _RankMemoryLevels:
        """Return, for each rank, the one of two memory levels with more bytes in total."""
        higher = other.activations + other.other > self.activations + self.other
        pairs = zip(self, other, strict=True)
        return _RankMemoryLevels(*(np.where(higher, theirs, own) for own, theirs in pairs))


def uneven_activation_peak(
    blocks: BlockMemoryTable, schedule: Schedule, slices: ModelSlices, stage: int, loads: UnevenLoads, steps: int
) -> MemoryLevel:
    """Return the activation memory peak of a stage's fullest rank under unequal loads."""
    found = MemoryLevel(0.0, 0.0)
    for step in range(steps if loads.by_pass else 1):
        levels = _row_peak_levels(blocks, schedule, slices, stage, loads, step)
        fullest = int((levels.activations + levels.other).argmax())
        level = MemoryLevel(float(levels.activations[fullest]), float(levels.other[fullest]))
        found = max(found, level, key=lambda level: level.total)
    return found


def _row_peak_levels(
    blocks: BlockMemoryTable, schedule: Schedule, slices: ModelSlices, stage: int, loads: UnevenLoads, step: int
) -> _RankMemoryLevels:
    """Return each rank's memory peak over a stage's scheduled actions; equal passes are computed only once."""
    known: dict[tuple[str, int, int], tuple[_RankMemoryLevels, Floats]] = {}
    held = np.zeros(1)
    found = _RankMemoryLevels(held, held)
    for action in schedule.rows[stage]:
        name = action.kind, action.chunk, action.microbatch if loads.by_pass else -1
        if name not in known:
            order = _list_block_phases(blocks, schedule, slices, stage, action)
            known[name] = _pass_peak_levels(blocks, action, order, loads, step)
        peak, left = known[name]
        found = found.rankwise_maximum(_RankMemoryLevels(held + peak.activations, peak.other))
        held = held + left
    return found


def _pass_peak_levels(
    blocks: BlockMemoryTable, action: Action, visits: Sequence[BlockPhase], loads: UnevenLoads, step: int
) -> tuple[_RankMemoryLevels, Floats]:
    split = action.kind in ("I", "W")
    now = {"activations": np.zeros(1), "other": np.zeros(1)}
    peak = _RankMemoryLevels(now["activations"], now["other"])
    for visit in visits:
        block = blocks.memory_of_block(visit.block, visit.layer)
        changes: list[tuple[MemoryChange, float | Floats]] = [
            (change, 1.0) for change in block.memory_changes(visit.phase, split=split)
        ]
        if block.routed and visit.block.startswith(ENCODER) == loads.of_encoder:
            more = loads.stage_loads(visit.layer, step, action.microbatch) - 1.0
            changes += [(change, more) for change in block.routed.memory_changes(visit.phase, split=split)]
        for change, times in changes:
            now[change.pool] = now[change.pool] + times * change.start
        peak = peak.rankwise_maximum(_RankMemoryLevels(now["activations"], now["other"]))
        for change, times in changes:
            now[change.pool] = now[change.pool] + times * change.end
    return peak.rankwise_maximum(_RankMemoryLevels(now["activations"], now["other"])), now["activations"]


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Numbers of ranks, samples, tokens and FLOP in a step, from which a step time gives throughput and MFU.

    ``peak_flops`` is FLOP/s of one GPU at the job's precision.
    """

    ranks: int
    samples: int
    tokens: int
    model_flops: float
    hardware_flops: float
    peak_flops: float

    @property
    def as_step_counts(self) -> StepCounts:
        """These counts as a plain StepCounts object, without the fields of subclasses."""
        return StepCounts(**{field.name: getattr(self, field.name) for field in fields(StepCounts)})


@dataclass(frozen=True, slots=True)
class JobFacts(StepCounts):
    """Properties of a job known before simulation: counts per step, GPU peak rates and memory footprints.

    ``attention`` is the part of the core attention that packed documents leave, which FLOPs count; ``real`` the part of
    the tokens that are not padding, and ``real_flops`` the model FLOP of those; ``footprints`` are bytes per stage;
    ``memory`` is bytes per GPU. The job's ``precision`` is that of ``peak_flops``; the GPU's peak in bf16 is
    ``bf16_flops``, 0 where it has none.
    """

    memory: float
    footprints: tuple[Footprint, ...]
    real_flops: float
    real: float = 1.0
    attention: float = 1.0
    precision: str = "bf16"
    bf16_flops: float = 0.0

    @property
    def uses_low_precision(self) -> bool:
        """Whether matmuls are in fp8 or fp4."""
        return self.precision in ("fp8", "mxfp8", "nvfp4")
