"""From faults of ranks, and uneven data, to a rank's speed and its own version of its stage's program.

Pure; imports the faults, ops and the plan.  A seed decides all that is drawn.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simcluster.faults import Fault, Jitter, SequenceLengths
from simcluster.faults.by_effect import by_effect
from simcluster.faults.data import loads
from simcluster.faults.draws import Floats, stream
from simcluster.planning.expert_loads import ExpertLoads
from simcluster.planning.ops import Compute, Item, Segment, StageProgram
from simcluster.planning.parallel import Plan
from simcluster.planning.profiles import Profile, product
from simcluster.planning.stalls import interrupted, stalls_of


def slowness(faults: Sequence[Fault], host_of: Sequence[int]) -> list[float]:
    """What always multiplies every rank's compute times; ``host_of[rank]`` is the rank's machine."""
    factors = [1.0] * len(host_of)
    for fault in by_effect(faults).slow_gpus:
        if fault.window(fault.factor) is None:
            for rank in fault.chosen(host_of):
                factors[rank] *= fault.factor
    return factors


def speed_profiles(faults: Sequence[Fault], host_of: Sequence[int]) -> dict[int, Profile]:
    """By rank, what multiplies its compute times as time goes on, where that changes."""
    parts: dict[int, list[Profile]] = {}
    for fault in by_effect(faults).slow_gpus:
        profile = fault.window(fault.factor)
        if profile is not None and not fault.neutral:
            for rank in fault.chosen(host_of):
                parts.setdefault(rank, []).append(profile)
    return {rank: product(own) for rank, own in parts.items()}


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step works through: microbatches of each replica, sequences in each, tokens in those.

    ``experts`` are those of a mixture-of-experts layer (0: none).
    """

    steps: int
    microbatches: int
    micro_batch: int
    length: int
    experts: int = 0


def attention_loads(fault: SequenceLengths, seed: int, batch: Batch, dp: int) -> Floats:
    """What the core attention of a microbatch takes, [step, replica, microbatch]; 1 is one document a sequence."""
    return np.stack(
        [
            loads(
                fault, seed=seed, step=step, dp=dp, microbatches=batch.microbatches, micro_batch=batch.micro_batch,
                length=batch.length,
            )
            for step in range(batch.steps)
        ]
    )  # fmt: skip


def mean_attention(faults: Sequence[Fault], seed: int, batch: Batch, dp: int) -> float:
    """The part of whole sequences' core attention that there is: the mean over all steps, replicas and microbatches."""
    lengths = by_effect(faults).lengths
    return float(attention_loads(lengths[0], seed, batch, dp).mean()) if lengths else 1.0


class RankPrograms:
    """Every rank's own version of its stage's program, with its jitter, its stalls and what its data weigh."""

    def __init__(self, faults: Sequence[Fault], plan: Plan, host_of: Sequence[int], seed: int, batch: Batch) -> None:
        self._seed, self._batch, self._plan = seed, batch, plan
        sorted_out = by_effect(faults)
        self._lengths = sorted_out.lengths[0] if sorted_out.lengths else None
        self._jitters = [(fault, frozenset(fault.chosen(host_of))) for fault in sorted_out.jitters if not fault.neutral]
        self._experts = ExpertLoads.of(sorted_out.experts, plan, seed, batch.experts)
        self._stalls = stalls_of(sorted_out.stalls, host_of, seed, batch.steps)
        self._uneven: dict[tuple[int, float], Segment] = {}  # by segment and what its attention takes
        self._same: dict[tuple[int, int, int], Segment] = {}  # by segment, rank and step, for draws per step alone

    @property
    def uneven(self) -> bool:
        """Is anything but speed different from rank to rank?"""
        return bool(self._lengths or self._experts or self._jitters or self._stalls)

    @cached_property
    def _worker(self) -> list[tuple[int, int]]:
        """(dp rank, stage) of every rank."""
        found = [(0, 0)] * self._plan.num_ranks
        for (stage, dp, _, _), rank in np.ndenumerate(self._plan.grid):
            found[int(rank)] = dp, stage
        return found

    def colour(self, rank: int) -> Hashable:
        """What makes this rank different from others of its stage."""
        return (
            self._worker[rank][0] if self._lengths else None,
            self._experts.colour(rank) if self._experts else None,
            tuple(self._unit(fault, rank) if rank in ranks else None for fault, ranks in self._jitters),
            tuple(self._stalls.get(rank, ())),
        )

    def program(self, rank: int, program: StageProgram) -> StageProgram:
        """The stage's program as this rank has it; the same object where it is as planned."""
        jitters = [fault for fault, ranks in self._jitters if rank in ranks]
        lanes = program.lanes
        if self._lengths:
            lanes = {lane: [self._weighed(rank, item) for item in items] for lane, items in lanes.items()}
        if self._experts:
            routed = self._experts.routed
            lanes = {lane: [routed(rank, item) for item in items] for lane, items in lanes.items()}
        if jitters:
            lanes = {lane: [self._jittered(rank, item, jitters) for item in items] for lane, items in lanes.items()}
        own = program if lanes is program.lanes else StageProgram(program.stage, lanes)
        return interrupted(own, self._stalls[rank]) if rank in self._stalls else own

    # --- data -------------------------------------------------------------------------------------------------------

    @cached_property
    def loads(self) -> Floats:
        """``attention_loads`` of the job's own documents."""
        assert self._lengths is not None
        return attention_loads(self._lengths, self._seed, self._batch, self._plan.dp)

    def _weighed(self, rank: int, item: Item) -> Item:
        """An item with the attention that its microbatch has on this rank's replica."""
        if item.microbatch < 0:
            return item
        load = float(self.loads[item.step, self._worker[rank][0], item.microbatch])
        name = id(item.segment), load  # segments live as long as their programs
        if name not in self._uneven:
            self._uneven[name] = _changed(item.segment, [1.0] * len(item.segment.ops), load=load)
        return item._replace(segment=self._uneven[name])

    # --- jitter -----------------------------------------------------------------------------------------------------

    def _unit(self, fault: Jitter, rank: int) -> tuple[int, ...]:
        """Who draws."""
        return self._worker[rank] if fault.shared_by == "worker" else (rank,)

    def _jittered(self, rank: int, item: Item, jitters: Sequence[Jitter]) -> Item:
        name = id(item.segment), rank, item.step
        if name in self._same:
            return item._replace(segment=self._same[name])
        ops = item.segment.ops
        computing = [index for index, op in enumerate(ops) if isinstance(op.work, Compute)]
        if not computing:
            return item
        segment = item.segment
        for fault in jitters:
            moment: Hashable = item.step if fault.per == "step" else item.key
            chance = stream(self._seed, "jitter", fault.seed, self._unit(fault, rank), moment)
            draws = fault.factor.draw(chance, len(computing) if fault.per == "kernel" else 1).tolist()
            if fault.per != "kernel":
                draws *= len(computing)
            by_op = dict(zip(computing, draws, strict=True))
            if fault.adds is None:
                segment = _changed(segment, [by_op.get(index, 1.0) for index in range(len(ops))])
            else:
                segment = _changed(segment, [1.0] * len(ops), [by_op.get(i, 0.0) * fault.adds for i in range(len(ops))])
        if all(fault.per == "step" for fault in jitters):
            self._same[name] = segment
        return item._replace(segment=segment)


def _changed(segment: Segment, factors: Sequence[float], added: Sequence[float] = (), *, load: float = 1.0) -> Segment:
    """A segment whose computations take factor times as long and what is added (s); ``load`` is their attention's."""
    ops = []
    for index, op in enumerate(segment.ops):
        work = op.work
        if isinstance(work, Compute):
            seconds = (work.seconds + (load - 1.0) * work.attention) * factors[index]
            seconds += added[index] if added else 0.0
            attention = work.attention * load * factors[index]
            op = replace(op, work=work._replace(seconds=seconds, attention=attention))
        ops.append(op)
    return Segment(tuple(ops))
