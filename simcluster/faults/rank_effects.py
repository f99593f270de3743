"""Effects of faults and uneven data on ranks: slowdowns, and changed programs.

The seed decides all draws.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import Profile, multiply_profiles
from simcluster.collectives.token_relay import ExpertRouting
from simcluster.faults.expert_loads import ExpertLoads, scale_memory
from simcluster.faults.fault_spec import BatchSizes, FaultSpec, JobContext, faults_with_effect
from simcluster.model.encoder import ENCODER
from simcluster.planning.disturbances import ComputationColumns, Disturbances
from simcluster.planning.ops import Op, Segment, StageProgram, WorkItem
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.work_kinds import Collective


def permanent_slowdowns(faults: Sequence[FaultSpec], host_of: Sequence[int], seed: int) -> list[float]:
    """Return the permanent factor on each rank's compute times; ``host_of[rank]`` is the rank's node."""
    factors = [1.0] * len(host_of)
    for fault in faults_with_effect(faults, "slowdown_per_rank"):
        own = fault.slowdown_per_rank(len(factors), seed).tolist()
        factors = [factor * each for factor, each in zip(factors, own, strict=True)]
    for fault in faults_with_effect(faults, "slowdown_factor"):
        if fault.is_permanent:
            for rank in fault.affected_ranks(host_of):
                factors[rank] *= fault.slowdown_factor()
    return factors


def slowdown_profiles(faults: Sequence[FaultSpec], host_of: Sequence[int], seed: int) -> dict[int, Profile]:
    """Return the factor over time on compute times, by rank, for all ranks whose speed varies."""
    parts: dict[int, list[Profile]] = {}
    for fault in faults_with_effect(faults, "slowdown_factor"):
        if not fault.is_permanent:
            profile = fault.profile(fault.slowdown_factor(), seed)
            for rank in fault.affected_ranks(host_of):
                parts.setdefault(rank, []).append(profile)
    return {rank: multiply_profiles(own) for rank, own in parts.items()}


def attention_loads(faults: Sequence[FaultSpec], seed: int, batch: BatchSizes, dp: int) -> Floats:
    """Return the core attention work of each microbatch under the faults: [step, replica, microbatch]."""
    return np.asarray(math.prod(fault.attention_factors(seed, batch, dp) for fault in faults))


def mean_attention_load(faults: Sequence[FaultSpec], seed: int, batch: BatchSizes, dp: int) -> float:
    """Return the mean core attention work under the faults, relative to sequences of one document each."""
    uneven = faults_with_effect(faults, "attention_factors")
    return float(attention_loads(uneven, seed, batch, dp).mean()) if uneven else 1.0


@dataclass(frozen=True, eq=False)
class ImageLoads:
    """Encoder's work of each microbatch relative to the mean: ``factors`` [step, replica, microbatch]."""

    factors: Floats
    by_pass: ClassVar = True
    of_encoder: ClassVar = True

    def stage_loads(self, layer: int, step: int, microbatch: int) -> Floats:
        """Return each replica's load in one pass of a microbatch."""
        return np.asarray(self.factors[step, :, microbatch])


def image_loads(faults: Sequence[FaultSpec], seed: int, batch: BatchSizes, dp: int) -> ImageLoads | None:
    """Return the encoder's work of each microbatch under the faults; None if all have the mean."""
    uneven = faults_with_effect(faults, "image_factors")
    return ImageLoads(np.asarray(math.prod(each.image_factors(seed, batch, dp) for each in uneven))) if uneven else None


def rank_disturbances(faults: Sequence[FaultSpec], plan: ParallelPlan, setting: JobContext) -> Disturbances:
    """Return all effects of the faults on the ranks of a job."""
    made = RankPrograms(faults, plan, setting)
    speeds = slowdown_profiles(faults, setting.host_of, setting.seed)
    if not made.ranks_differ:
        return Disturbances(speeds)
    return Disturbances(speeds, symmetry_key=made.symmetry_key, change_program=made.change_program, retime=made.retime)


class RankPrograms:
    """Programs (ops) of all ranks with the changes that faults make, slowdowns excepted."""

    def __init__(self, faults: Sequence[FaultSpec], plan: ParallelPlan, setting: JobContext) -> None:
        self._replicas, self._setting = plan.dp, setting
        self._attention = faults_with_effect(faults, "attention_factors")
        batch = setting.batch
        self._images = image_loads(faults, setting.seed, batch, plan.dp)
        routes = batch.routes or ExpertRouting(batch.experts, 1)
        how = (plan, setting.seed, routes, batch.capacity, setting)
        uneven = faults_with_effect(faults, "expert_loads")
        self._experts = ExpertLoads(uneven, *how) if uneven else None
        self._others, self._retimes = (
            [(fault, frozenset(fault.affected_ranks(setting.host_of))) for fault in faults_with_effect(faults, effect)]
            for effect in ("change_program", "retime")
        )

    @property
    def ranks_differ(self) -> bool:
        """Return whether ranks differ in anything but speed."""
        return bool(self._attention or self._images or self._experts or self._others or self._retimes)

    def symmetry_key(self, rank: int) -> Hashable:
        """Return a key that ranks of a stage share if their programs are equal."""
        changing = (*self._others, *self._retimes)
        return (
            self._setting.worker_of_rank[rank][0] if self._attention or self._images else None,
            self._experts.symmetry_key(rank) if self._experts else None,
            *(fault.symmetry_key(rank, self._setting) if rank in ranks else None for fault, ranks in changing),
        )

    def change_program(self, rank: int, program: StageProgram) -> StageProgram:
        """Return a rank's program, changed from its stage's program; the same object if nothing changes."""
        if self._attention:
            program = program.with_replaced_items(lambda item: self._scale_attention(rank, item))
        if self._images:
            program = program.with_replaced_items(lambda item: self._scale_encoder(rank, item))
        if self._experts:
            program = self._experts.change_program(rank, program)
        for fault, ranks in self._others:
            program = fault.change_program(rank, program, self._setting) if rank in ranks else program
        return program

    def retime(self, rank: int, computations: ComputationColumns, seconds: Floats) -> Floats:
        """Return the new durations (s) of a rank's computations; the same array if nothing changes."""
        for fault, ranks in self._retimes:
            seconds = fault.retime(rank, computations, seconds, self._setting) if rank in ranks else seconds
        return seconds

    @cached_property
    def _attention_loads(self) -> Floats:
        return attention_loads(self._attention, self._setting.seed, self._setting.batch, self._replicas)

    def _scale_attention(self, rank: int, item: WorkItem) -> WorkItem:
        if item.microbatch < 0:
            return item
        load = float(self._attention_loads[item.step, self._setting.worker_of_rank[rank][0], item.microbatch])
        name, known = (item.segment, load), self._setting.known
        if name not in known:
            known[name] = item.segment.with_replaced_works(lambda op: op.work.with_slowdown(1.0, load=load))
        return item._replace(segment=known[name])

    def _scale_encoder(self, rank: int, item: WorkItem) -> WorkItem:
        """Return a work item with the encoder's kernels and activations scaled to the images of its microbatch."""
        if item.microbatch < 0 or not self._images:
            return item
        load = float(self._images.factors[item.step, self._setting.worker_of_rank[rank][0], item.microbatch])
        name, known = (item.segment, "images", load), self._setting.known
        if name not in known:
            ops = item.segment.ops
            encodes = any(op.name.startswith(ENCODER) for op in ops)
            known[name] = Segment(tuple([_scale_op(op, load) for op in ops])) if encodes else item.segment
        return item._replace(segment=known[name])


def _scale_op(op: Op, load: float) -> Op:
    if not op.name.startswith(ENCODER):
        return op
    work = replace(op.work, load=load) if isinstance(op.work, Collective) else op.work.with_slowdown(load)
    return replace(op, work=work, memory=scale_memory(op.memory, op.routed, load))
