"""Peak memory (bytes) of the ranks of a stage: model state, and activations of the microbatches in flight.

The stage's row of the schedule is walked action by action and block by block (``residency``): the same changes that the
ops of a run make, without their times. Where experts get unequal numbers of rows, the walk has a level for every rank.
``Facts`` holds what else is known of a job before it runs. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.model.layers import RankShape
from simcluster.model.recipes import Recipe, state_bytes
from simcluster.model.transformer import Model
from simcluster.planning.job import Offload, Slices
from simcluster.planning.offload import plan_offloads
from simcluster.planning.offload_layers import LayerWindows, find_adjacent
from simcluster.planning.ops import MemoryChange
from simcluster.planning.optimizer import Optimizer
from simcluster.planning.owned_parameters import Overheads, parameters_of_stage
from simcluster.planning.parallel import Plan
from simcluster.planning.residency import (
    Level,
    MemoryProfile,
    Residencies,
    Visit,
    block_residencies,
    peak_of_row,
    profile_pass,
)
from simcluster.planning.segments import Pass
from simcluster.schedules import Action, Schedule

_NO_OVERHEADS = Overheads()
_NO_OFFLOAD = Offload()


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of model state, activations and buffers on each rank of a stage at its memory peak."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    other: float  # what lives inside one action only (recomputed tensors, 16-bit logits), and what is lost
    unsharded: float = 0.0  # parameters and gradients of units that ZeRO 3 has whole for their use
    buffers: float = 0.0  # of libraries, there all the time (``buffers.Overheads``)
    fragmentation: float = 1.0  # a factor on what comes and goes; what it adds is lost, and in ``other``
    host: float = 0.0  # in host memory instead, and in no other number: the optimizer's state, and what it needs there

    @property
    def total(self) -> float:
        """Bytes of all parts of the footprint."""
        state = self.parameters + self.gradients + self.optimizer + self.buffers
        return state + self.activations + self.other + self.fragmentation * self.unsharded

    def with_pools(self, pools: Mapping[str, float]) -> Footprint:
        """Return the footprint at another time: equal model state, with the bytes in each pool (``ops.Change``)."""
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
    plan: Plan,
    schedule: Schedule,
    slices: Slices,
    recipe: Recipe,
    *,
    zero: int,
    stage: int,
    overheads: Overheads = _NO_OVERHEADS,
    offload: Offload = _NO_OFFLOAD,
    experts: UnevenExperts | None = None,
    steps: int = 1,
    optimizer: Optimizer | None = None,
    outer: float = 0.0,
) -> Footprint:
    """Return the peak memory of the ranks of one stage over a step.

    With ``experts`` of unequal load it is that of the fullest rank over all ``steps``. The ``optimizer`` may keep less
    state than Adam; workers that train separately keep ``outer`` bytes per parameter of the rank's part.
    """
    chunks = range(schedule.num_chunks)
    held_slices = [schedule.slice_of(stage, chunk) for chunk in chunks]
    layers = [layer for number in held_slices for layer in slices.layers_of(number)]
    first, last = 0 in held_slices, len(slices.counts) - 1 in held_slices
    held = parameters_of_stage(model, plan, layers, first=first, last=last)
    state = state_bytes(held.common, recipe, zero=zero, dp=plan.shard_size)
    if held.experts:
        state += state_bytes(held.experts, recipe, zero=zero, dp=plan.expert_shard_size)
    blocks = block_residencies(model, shape)
    if experts is None:
        peak = activation_peak(blocks, schedule, slices, stage, offload)
    else:
        order = partial(_list_visits, blocks, schedule, slices, stage)
        peak = uneven_peak(blocks, schedule.rows[stage], order, experts, steps)
    updated = state.optimizer / recipe.optimizer  # parameters whose state the rank has
    spared = optimizer.spared(layers) if optimizer else 0.0
    lost = (overheads.fragmentation - 1.0) * peak.total
    return Footprint(
        state.parameters,
        state.gradients,
        offload.optimizer_on_gpu(updated)
        if offload.optimizer != "none"
        else state.optimizer - spared + outer * held.per_replica(plan),
        peak.activations,
        peak.other + lost,
        buffers=overheads.buffers(model, shape, layers, last=last),
        fragmentation=overheads.fragmentation,
        host=offload.optimizer_in_host(updated) if offload.optimizer != "none" else 0.0,
    )


def activation_peak(
    blocks: Residencies, schedule: Schedule, slices: Slices, stage: int, offload: Offload = _NO_OFFLOAD
) -> Level:
    """Return the bytes of activations and working tensors of a stage's ranks when their sum peaks.

    Buffers between stages depend on times, so only the timeline of a run has them. What goes to the host counts as gone
    when one more action is over; if a copy takes longer, a run shows it.
    """
    known: dict[tuple[str, int], MemoryProfile] = {}
    for action in schedule.rows[stage]:
        if (action.kind, action.chunk) not in known:
            order = _list_visits(blocks, schedule, slices, stage, action)
            known[action.kind, action.chunk] = profile_pass(blocks, order, split=action.kind in ("I", "W"))
    row = schedule.rows[stage]
    if not offload.activations:
        return peak_of_row([known[action.kind, action.chunk] for action in row])
    goes: dict[int, float] = {}  # bytes that leave behind an action, by its place, and that are back before it
    comes: dict[int, float] = {}
    for trip in plan_offloads(row, schedule.fused_at(stage), offload.ahead):
        size = offload.activations * offload.kept(slices.layers_of(schedule.slice_of(stage, row[trip.out].chunk)))
        goes[trip.gone + 1] = goes.get(trip.gone + 1, 0.0) + size
        comes[trip.call + 1] = comes.get(trip.call + 1, 0.0) + size
    by_layer = find_adjacent(row, schedule.fused_at(stage))
    profiles = []
    for place, action in enumerate(row):
        back, gone = comes.get(place, 0.0), goes.get(place, 0.0)
        profiles += [_level_change(back)] if back else []
        profiles.append(known[action.kind, action.chunk])
        if action[1:] in by_layer and action.kind != "W":
            whole = slices.whole(schedule.slice_of(stage, action.chunk))
            profiles[-1:] = _offload_profiles(blocks, whole, action.kind, offload)
        profiles += [_level_change(-gone)] if gone else []
    return peak_of_row(profiles)


def _level_change(size: float) -> MemoryProfile:
    return MemoryProfile(Level(max(size, 0.0), 0.0), size)


def _offload_profiles(blocks: Residencies, whole: Pass, kind: str, offload: Offload) -> list[MemoryProfile]:
    windows = LayerWindows.of(whole.layers, offload)
    pieces = windows.cut(whole) if windows.sizes else [whole]
    found = []
    for piece in pieces if kind == "F" else pieces[::-1]:
        over = windows.copy_before(piece, whole.layers[-1]) if kind == "F" and windows.sizes else -1
        top = windows.mark_index(piece.layers[-1]) if windows.sizes and kind != "F" and piece.layers else 0
        if windows.sizes and kind != "F" and piece is pieces[-1] and not piece.lm_head:
            found.append(_level_change(-windows.sizes[-1]))
        found += (
            [_level_change(-windows.sizes[over])]
            if over >= 0
            else [_level_change(windows.sizes[top - 1])]
            if top > 0
            else []
        )
        order = blocks.visits(kind, piece.layers, embedding=piece.embedding, lm_head=piece.lm_head)
        found.append(profile_pass(blocks, order, split=kind == "I"))
    return found


def _list_visits(blocks: Residencies, schedule: Schedule, slices: Slices, stage: int, action: Action) -> list[Visit]:
    number = schedule.slice_of(stage, action.chunk)
    first, last = number == 0, number == len(slices.counts) - 1
    return blocks.visits(action.kind, slices.layers_of(number), embedding=first, lm_head=last)


# --- ranks of a stage whose experts get unequal numbers of rows -----------------------------------------------------

Order = Callable[[Action], Sequence[Visit]]
"""The blocks that an action goes through."""


class UnevenExperts(Protocol):
    """Load of the experts of each rank; ``by_pass``: drawn anew for every pass of a microbatch."""

    @property
    def by_pass(self) -> bool: ...
    def of_stage(self, layer: int, step: int, microbatch: int) -> Floats:
        """Return the expert load of each differing rank of a stage, relative to an even share, [rank]."""
        ...


class _Levels(NamedTuple):
    """Bytes in the memory pools "activations" and "other" on every rank, [rank]."""

    activations: Floats
    other: Floats

    def maximum(self, other: _Levels) -> _Levels:
        """Return, rank by rank, the level with the higher total."""
        higher = other.activations + other.other > self.activations + self.other
        pairs = zip(self, other, strict=True)
        return _Levels(*(np.where(higher, theirs, own) for own, theirs in pairs))


def uneven_peak(
    blocks: Residencies, row: Sequence[Action], order: Order, experts: UnevenExperts, steps: int
) -> Level:  # fmt: skip
    """Return the memory peak of a stage's fullest rank over ``steps`` steps, with uneven expert loads."""
    found = Level(0.0, 0.0)
    for step in range(steps if experts.by_pass else 1):
        levels = _walk_row(blocks, row, order, experts, step)
        fullest = int((levels.activations + levels.other).argmax())
        level = Level(float(levels.activations[fullest]), float(levels.other[fullest]))
        found = max(found, level, key=lambda level: level.total)
    return found


def _walk_row(blocks: Residencies, row: Sequence[Action], order: Order, experts: UnevenExperts, step: int) -> _Levels:
    """Return each rank's highest memory level over a row of passes, computed once for equal passes."""
    known: dict[tuple[str, int, int], tuple[_Levels, Floats]] = {}
    held = np.zeros(1)
    found = _Levels(held, held)
    for action in row:
        name = action.kind, action.chunk, action.microbatch if experts.by_pass else -1
        if name not in known:
            known[name] = _walk_pass(blocks, action, order(action), experts, step)
        peak, left = known[name]
        found = found.maximum(_Levels(held + peak.activations, peak.other))
        held = held + left
    return found


def _walk_pass(
    blocks: Residencies, action: Action, visits: Sequence[Visit], experts: UnevenExperts, step: int
) -> tuple[_Levels, Floats]:
    split = action.kind in ("I", "W")
    now = {"activations": np.zeros(1), "other": np.zeros(1)}
    peak = _Levels(now["activations"], now["other"])
    for visit in visits:
        block = blocks.residency_of(visit.block, visit.layer)
        changes: list[tuple[MemoryChange, float | Floats]] = [
            (change, 1.0) for change in block.changes(visit.phase, split=split)
        ]
        if block.routed:
            more = experts.of_stage(visit.layer, step, action.microbatch) - 1.0
            changes += [(change, more) for change in block.routed.changes(visit.phase, split=split)]
        for change, times in changes:
            now[change.pool] = now[change.pool] + times * change.start
        peak = peak.maximum(_Levels(now["activations"], now["other"]))
        for change, times in changes:
            now[change.pool] = now[change.pool] + times * change.end
    return peak.maximum(_Levels(now["activations"], now["other"])), now["activations"]


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Ranks, samples, tokens and FLOP of a step, which convert its time to rates.

    ``peak_flops`` is FLOP/s of one GPU at the job's precision.
    """

    ranks: int
    samples: int
    tokens: int
    model_flops: float
    hardware_flops: float
    peak_flops: float

    @property
    def counts(self) -> StepCounts:
        """Only the fields of StepCounts, without those that a subclass adds."""
        return StepCounts(**{field.name: getattr(self, field.name) for field in fields(StepCounts)})


@dataclass(frozen=True, slots=True)
class Facts(StepCounts):
    """What is known of a job before it runs: ranks, samples, tokens and FLOP per step, GPU and memory.

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
    def low_precision(self) -> bool:
        """Whether matmuls are in fp8 or fp4."""
        return self.precision in ("fp8", "mxfp8", "nvfp4")
