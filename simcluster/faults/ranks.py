"""From faults of ranks, and uneven data, to a rank's speed and its own version of its stage's program.

Pure.  A seed decides all that is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import Profile, product
from simcluster.collectives.relayed import TokenRoutes
from simcluster.faults.expert_loads import ExpertLoads
from simcluster.faults.spec import Batch, FaultSpec, Setting, acting
from simcluster.planning.ops import Item, StageProgram
from simcluster.planning.perturbations import Computations, Disturbances


def slowness(faults: Sequence[FaultSpec], host_of: Sequence[int], seed: int) -> list[float]:
    """What always multiplies every rank's compute times; ``host_of[rank]`` is the rank's machine."""
    factors = [1.0] * len(host_of)
    for fault in acting(faults, "slowdowns"):
        own = fault.slowdowns(len(factors), seed).tolist()
        factors = [factor * each for factor, each in zip(factors, own, strict=True)]
    for fault in acting(faults, "slowness"):
        if fault.lasts:
            for rank in fault.chosen(host_of):
                factors[rank] *= fault.slowness()
    return factors


def speed_profiles(faults: Sequence[FaultSpec], host_of: Sequence[int], seed: int) -> dict[int, Profile]:
    """By rank, what multiplies its compute times as time goes on, where that changes."""
    parts: dict[int, list[Profile]] = {}
    for fault in acting(faults, "slowness"):
        if not fault.lasts:
            profile = fault.profile(fault.slowness(), seed)
            for rank in fault.chosen(host_of):
                parts.setdefault(rank, []).append(profile)
    return {rank: product(own) for rank, own in parts.items()}


def attention_loads(faults: Sequence[FaultSpec], seed: int, batch: Batch, dp: int) -> Floats:
    """What the core attention of microbatches takes by faults that change it, [step, replica, microbatch]."""
    return np.asarray(math.prod(fault.attention(seed, batch, dp) for fault in faults))


def mean_attention(faults: Sequence[FaultSpec], seed: int, batch: Batch, dp: int) -> float:
    """The part of whole sequences' core attention that there is: the mean over all steps, replicas and microbatches."""
    uneven = acting(faults, "attention")
    return float(attention_loads(uneven, seed, batch, dp).mean()) if uneven else 1.0


def rank_disturbances(faults: Sequence[FaultSpec], setting: Setting) -> Disturbances:
    """What faults make of the ranks of a job."""
    ranks = RankPrograms(faults, setting)
    speeds = speed_profiles(faults, setting.host_of, setting.seed)
    if not ranks.uneven:
        return Disturbances(speeds)
    return Disturbances(speeds, colour=ranks.colour, program=ranks.program, retime=ranks.retime)


class RankPrograms:
    """Every rank's own version of its stage's program, with all that faults but those of speed make of it."""

    def __init__(self, faults: Sequence[FaultSpec], setting: Setting) -> None:
        self._setting, self._attention = setting, acting(faults, "attention")
        batch = setting.batch
        routes = batch.routes or TokenRoutes(batch.experts, 1)
        self._experts = ExpertLoads.of(faults, setting.plan, setting.seed, routes, batch.capacity, setting)
        self._others, self._retimes = (
            [(fault, frozenset(fault.chosen(setting.host_of))) for fault in acting(faults, effect)]
            for effect in ("program", "retime")
        )

    @property
    def uneven(self) -> bool:
        """Is anything but speed different from rank to rank?"""
        return bool(self._attention or self._experts or self._others or self._retimes)

    def colour(self, rank: int) -> Hashable:
        """What makes this rank different from others of its stage."""
        return (
            self._setting.worker[rank][0] if self._attention else None,
            self._experts.colour(rank) if self._experts else None,
            *(
                fault.colour(rank, self._setting) if rank in ranks else None
                for fault, ranks in (*self._others, *self._retimes)
            ),
        )

    def program(self, rank: int, program: StageProgram) -> StageProgram:
        """The stage's program as this rank has it; the same object where it is as planned."""
        if self._attention:
            program = program.with_items(lambda item: self._weighed(rank, item))
        if self._experts:
            program = self._experts.program(rank, program)
        for fault, ranks in self._others:
            program = fault.program(rank, program, self._setting) if rank in ranks else program
        return program

    def retime(self, rank: int, computations: Computations, seconds: Floats) -> Floats:
        """Return the new seconds of the rank's computations; the same array if none changes."""
        for fault, ranks in self._retimes:
            seconds = fault.retime(rank, computations, seconds, self._setting) if rank in ranks else seconds
        return seconds

    @cached_property
    def _loads(self) -> Floats:
        return attention_loads(self._attention, self._setting.seed, self._setting.batch, self._setting.plan.dp)

    def _weighed(self, rank: int, item: Item) -> Item:
        """An item with the attention that its microbatch has on this rank's replica."""
        if item.microbatch < 0:
            return item
        load = float(self._loads[item.step, self._setting.worker[rank][0], item.microbatch])
        name, known = (item.segment, load), self._setting.known
        if name not in known:
            known[name] = item.segment.with_works(lambda op: op.work.slowed(1.0, load=load))
        return item._replace(segment=known[name])
