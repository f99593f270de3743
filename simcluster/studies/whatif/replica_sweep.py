"""Monte Carlo sweep: step times of many random replicas at once, as longest paths through the ops.

Kernels (jitter), speeds of GPUs and lengths of documents are random. Links and interference are those of the run
without chance.

A draw depends on the seed, the fault's stream, the op (kind, layer, microbatch, step), the rank's place in its stage
and the replica: not on the schedule, the cut of the model, the number of replicas, or other draws. So two scenarios
that are compared share all numbers that mean the same in both (common random numbers), and their difference has far
less noise than either.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.base.processes import count_cores, map_in_processes
from simcluster.engine.stage_sweep import BatchStepTimer, Duration
from simcluster.faults import FaultSpec, GpuSpeeds, Jitter, SequenceLengths
from simcluster.faults.fast_streams import FastStreams
from simcluster.faults.link_capacities import apply_permanent_faults
from simcluster.planning.ops import OpWork, WorkItem
from simcluster.planning.stage_programs import build_stage_programs
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import batch_sizes_of

Kind = TypeVar("Kind", bound=FaultSpec)

BLOCK = 50
"""Replicas that are drawn together, in the last block fewer: the arrays of these fit a cache with a stage's ranks."""
_WORTH_A_PROCESS = 20e6  # durations to be drawn; below, starting one takes longer


def derive_replica_seed(seed: int, replica: int) -> int:
    """Return the seed of a random replica, derived from the scenario's seed."""
    digest = hashlib.blake2b(repr((seed, "replica", replica)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


def sweep_replicas(
    scenario: Scenario, base: Result, processes: int, enough: Callable[[Floats], bool] | None = None
) -> Floats:
    """Return the step times (s) of a scenario's random replicas, computed in blocks until ``enough(times)`` is true.

    ``base`` is the result of the scenario without chance; ``processes`` is how many share the blocks, 0 for one per
    core where that pays.
    """
    job = _make_sweep_job(scenario, base)
    blocks = range(math.ceil(scenario.replicas / BLOCK))
    work = sum(len(planned.seconds) * len(planned.class_of_rank) for planned in job.planned) * scenario.replicas
    workers = min(processes or (count_cores() if work > _WORTH_A_PROCESS else 1), len(blocks))
    turn = len(blocks) if enough is None else workers
    times = np.zeros(0)
    for first in range(0, len(blocks), turn):
        block: Floats
        for block in map_in_processes(partial(_simulate_blocks, job), blocks[first : first + turn], workers):
            times = np.concatenate([times, block / scenario.steps])
            if enough and enough(times):
                return times
    return times


class StageDurations(NamedTuple):
    """Planned durations of a stage's ops, one value per op and class of equal ranks, and each rank's class."""

    seconds: Floats
    class_of_rank: Ints

    def op_durations(self, op: int) -> Floats:
        """Return the duration (s) of an op on each rank of the stage, or a single value if all ranks are equal."""
        return np.asarray(self.seconds[op] if self.seconds.shape[1] == 1 else self.seconds[op][self.class_of_rank])


def planned_stage_durations(base: Result, sweep: BatchStepTimer) -> list[StageDurations]:
    """Return the durations of each stage's ops in the run ``base``, a run without randomness."""
    took = {rank: (times.end - times.start)[: len(ops)] for rank, _, ops, times in base.record.iterate_ranks()}
    found = []
    for own in sweep.stage_ranks:
        simulated, sort = np.unique([*map(base.representative_of, own.tolist())], return_inverse=True)
        found.append(StageDurations(np.stack([took[rank] for rank in simulated.tolist()], axis=1), sort))
    return found


@dataclass(frozen=True)
class _ReplicaSweepJob:
    """Inputs for simulating any block of random replicas, small enough to send to another process.

    ``ranks_per_worker`` neighbours of a stage are a worker: the tp and cp ranks of a replica's stage. ``attention``
    returns the load of core attention in one replica's microbatches [step, dp rank, microbatch], 1 being one document
    per sequence, given the replica's seed; ``planned_attention[step]`` is that of the planned step.
    """

    sweep: BatchStepTimer
    planned: list[StageDurations]
    jitters: list[tuple[Jitter, list[Bools]]]  # with the places of each stage that they are on
    speeds: list[GpuSpeeds]
    ranks_per_worker: int
    seed: int
    replicas: int
    ranks: int
    attention: Callable[[int], Floats] | None
    planned_attention: Floats | None

    @cached_property
    def draw_keys(self) -> list[dict[str, Sequence[object]]]:
        """Keys that seed the random draws of all ops, by stage and unit of draws (kernel, pass or step)."""
        found = []
        for stage, ops in enumerate(self.sweep.ops):
            seen: dict[tuple[object, ...], int] = {}
            kernels: list[tuple[object, ...]] = []
            passes: list[tuple[object, ...]] = []
            for number, (item, op) in enumerate(ops):
                name = (item.step, item.microbatch, op.kind, op.name, op.layer)
                seen[name] = seen.get(name, -1) + 1
                kernels.append((*name, seen[name]))
                begun = number and ops[number - 1][0] is item
                passes.append(passes[-1] if begun else kernels[-1])
            steps = [(stage, item.step) for item, _ in ops]
            own: dict[str, Sequence[object]] = {"kernel": kernels, "pass": passes, "step": steps}
            found.append(own)
        return found


class _ReplicaBlock:
    def __init__(self, job: _ReplicaSweepJob, number: int) -> None:
        first = number * BLOCK
        seeds = [derive_replica_seed(job.seed, replica) for replica in range(first, min(first + BLOCK, job.replicas))]
        self._job, self._number, self.replicas, self._streams = job, number, len(seeds), FastStreams()
        self._attention = np.stack([*map(job.attention, seeds)]) if job.attention else None
        slower = [job.speeds[0].slowdown_per_rank(job.ranks, seed) for seed in seeds] if job.speeds else None
        self._slower = None if slower is None else [np.stack(slower)[:, ranks] for ranks in job.sweep.stage_ranks]

    def op_durations(self, stage: int, number: int) -> Duration:
        """Return the durations (s) of an op, one row per replica and one column per rank of the stage."""
        job = self._job
        (item, op), planned = job.sweep.ops[stage][number], job.planned[stage].op_durations(number)
        if op.work.sensitivity is None:
            return planned
        factors, more = [], None
        if self._attention is not None and op.work.attention and item.microbatch >= 0:
            factors.append(self._attention_factor(item, op.work))
        for fault, places in job.jitters:
            chosen = places[stage]
            if not chosen.any():
                continue
            drawn = self._draw_jitter(fault, stage, number)
            if fault.adds is not None:
                added = np.where(chosen, drawn * fault.adds, 0.0)
                more = added if more is None else more + added
            else:
                factors.append(drawn if chosen.all() else np.where(chosen, drawn, 1.0))
        slower = [] if self._slower is None else [self._slower[stage]]
        if more is None and len(planned) == len(factors + slower) == 1:
            return float(planned[0]), (factors + slower)[0]
        found = math.prod(factors, start=planned)
        return math.prod(slower, start=found if more is None else found + more)

    def _attention_factor(self, item: WorkItem, work: OpWork) -> Floats:
        """Return the factor on an op's planned time that accounts for the document lengths in its microbatch."""
        assert self._attention is not None
        assert self._job.planned_attention is not None
        planned = self._job.planned_attention[item.step]
        more = self._attention[:, item.step, :, item.microbatch] - planned
        seconds = work.seconds + (planned - 1.0) * work.attention
        return np.repeat(1.0 + more * (work.attention / seconds), self._job.ranks_per_worker, axis=1)

    def _draw_jitter(self, fault: Jitter, stage: int, number: int) -> Floats:
        job = self._job
        generator = self._streams(job.seed, self._number, fault.seed, job.draw_keys[stage][fault.per][number])
        size = job.ranks_per_worker if fault.shared_by == "worker" else 1
        count = len(job.sweep.stage_ranks[stage]) // size
        drawn = fault.factor.draw(generator, self.replicas * count).reshape(self.replicas, count)
        return drawn if size == 1 else np.repeat(drawn, size, axis=1)


def _make_sweep_job(scenario: Scenario, base: Result) -> _ReplicaSweepJob:
    parallel = scenario.parallel
    cluster = apply_permanent_faults(scenario.faults, scenario.cluster.built, scenario.seed)
    sweep = BatchStepTimer(build_stage_programs(base.job), base.job.plan)
    hosts, batch = cluster.host_of[: scenario.gpus], batch_sizes_of(scenario)
    packed = next(iter(_faults_of_kind(SequenceLengths, scenario)), None)
    chosen = [(fault, fault.affected_ranks(hosts)) for fault in _faults_of_kind(Jitter, scenario)]
    return _ReplicaSweepJob(
        sweep=sweep, planned=planned_stage_durations(base, sweep),
        jitters=[(fault, [np.isin(ranks, own) for ranks in sweep.stage_ranks]) for fault, own in chosen],
        speeds=[fault for fault in _faults_of_kind(GpuSpeeds, scenario) if fault.is_random],
        ranks_per_worker=parallel.tp * parallel.cp, seed=scenario.seed, replicas=scenario.replicas, ranks=scenario.gpus,
        attention=partial(packed.attention_factors, batch=batch, dp=scenario.dp) if packed else None,
        planned_attention=packed.replacement_if_removed().attention_factors(scenario.seed, batch, scenario.dp)[:, 0, 0]
        if packed else None,
    )  # fmt: skip


def _faults_of_kind(kind: type[Kind], scenario: Scenario) -> list[Kind]:
    return [fault for fault in scenario.faults if isinstance(fault, kind) and not fault.is_neutral]


def _simulate_blocks(job: _ReplicaSweepJob, blocks: Sequence[int]) -> list[Floats]:
    drawn = (_ReplicaBlock(job, number) for number in blocks)
    return [job.sweep(block.op_durations, block.replicas) for block in drawn]
