"""Effects of faults and uneven data on ranks: speeds, and changed copies of their stages' programs.

The seed decides all draws.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import Profile, multiply_profiles
from simcluster.collectives.relayed import TokenRoutes
from simcluster.faults.expert_loads import ExpertLoads
from simcluster.faults.spec import Batch, FaultSpec, Setting, acting_faults
from simcluster.planning.ops import Item, StageProgram
from simcluster.planning.perturbations import Computations, Disturbances


def rank_slowness(faults: Sequence[FaultSpec], host_of: Sequence[int], seed: int) -> list[float]:
    """Return the permanent factor on every rank's compute times; ``host_of[rank]`` is the rank's node."""
    factors = [1.0] * len(host_of)
    for fault in acting_faults(faults, "slowdowns"):
        own = fault.slowdowns(len(factors), seed).tolist()
        factors = [factor * each for factor, each in zip(factors, own, strict=True)]
    for fault in acting_faults(faults, "slowness"):
        if fault.lasts:
            for rank in fault.chosen(host_of):
                factors[rank] *= fault.slowness()
    return factors


def speed_profiles(faults: Sequence[FaultSpec], host_of: Sequence[int], seed: int) -> dict[int, Profile]:
    """Return, by rank, the factor on its compute times as a profile over time, where it varies."""
    parts: dict[int, list[Profile]] = {}
    for fault in acting_faults(faults, "slowness"):
        if not fault.lasts:
            profile = fault.profile(fault.slowness(), seed)
            for rank in fault.chosen(host_of):
                parts.setdefault(rank, []).append(profile)
    return {rank: multiply_profiles(own) for rank, own in parts.items()}


def attention_loads(faults: Sequence[FaultSpec], seed: int, batch: Batch, dp: int) -> Floats:
    """Return the core attention load of microbatches under faults that change it, [step, replica, microbatch]."""
    return np.asarray(math.prod(fault.attention(seed, batch, dp) for fault in faults))


def mean_attention(faults: Sequence[FaultSpec], seed: int, batch: Batch, dp: int) -> float:
    """Return the mean share of whole sequences' core attention that remains under the faults."""
    uneven = acting_faults(faults, "attention")
    return float(attention_loads(uneven, seed, batch, dp).mean()) if uneven else 1.0


def rank_disturbances(faults: Sequence[FaultSpec], setting: Setting) -> Disturbances:
    """Return everything that faults change on the ranks of a job."""
    ranks = RankPrograms(faults, setting)
    speeds = speed_profiles(faults, setting.host_of, setting.seed)
    if not ranks.uneven:
        return Disturbances(speeds)
    return Disturbances(speeds, colour=ranks.colour, program=ranks.program, retime=ranks.retime)


class RankPrograms:
    """Programs (ops) of all ranks, each changed by the faults on the rank, except for speeds."""

    def __init__(self, faults: Sequence[FaultSpec], setting: Setting) -> None:
        self._setting, self._attention = setting, acting_faults(faults, "attention")
        batch = setting.batch
        routes = batch.routes or TokenRoutes(batch.experts, 1)
        self._experts = ExpertLoads.for_faults(faults, setting.plan, setting.seed, routes, batch.capacity, setting)
        self._others, self._retimes = (
            [(fault, frozenset(fault.chosen(setting.host_of))) for fault in acting_faults(faults, effect)]
            for effect in ("program", "retime")
        )

    @property
    def uneven(self) -> bool:
        """Return whether ranks differ in anything but speed."""
        return bool(self._attention or self._experts or self._others or self._retimes)

    def colour(self, rank: int) -> Hashable:
        """Return a value that is equal for ranks of a stage whose programs are equal."""
        return (
            self._setting.worker[rank][0] if self._attention else None,
            self._experts.colour(rank) if self._experts else None,
            *(
                fault.colour(rank, self._setting) if rank in ranks else None
                for fault, ranks in (*self._others, *self._retimes)
            ),
        )

    def program(self, rank: int, program: StageProgram) -> StageProgram:
        """Return a stage's program changed for a rank; the same object if nothing changes."""
        if self._attention:
            program = program.with_items(lambda item: self._weigh_attention(rank, item))
        if self._experts:
            program = self._experts.program(rank, program)
        for fault, ranks in self._others:
            program = fault.program(rank, program, self._setting) if rank in ranks else program
        return program

    def retime(self, rank: int, computations: Computations, seconds: Floats) -> Floats:
        """Return the new times (s) of a rank's computations; the same array if none changes."""
        for fault, ranks in self._retimes:
            seconds = fault.retime(rank, computations, seconds, self._setting) if rank in ranks else seconds
        return seconds

    @cached_property
    def _attention_loads(self) -> Floats:
        return attention_loads(self._attention, self._setting.seed, self._setting.batch, self._setting.plan.dp)

    def _weigh_attention(self, rank: int, item: Item) -> Item:
        if item.microbatch < 0:
            return item
        load = float(self._attention_loads[item.step, self._setting.worker[rank][0], item.microbatch])
        name, known = (item.segment, load), self._setting.known
        if name not in known:
            known[name] = item.segment.with_works(lambda op: op.work.slowed(1.0, load=load))
        return item._replace(segment=known[name])
