"""All replicas of a step in one sweep: longest paths through it with other durations (``engine.stage_sweep``).

Random are kernels (jitter), lengths of documents, host stalls, and periods of others' traffic on links.  Otherwise,
links and interference are those of the run without chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.processes import ProcessCall, cores
from simcluster.engine.stage_sweep import Duration, StageSweep
from simcluster.faults import BackgroundLoad, FaultSpec, HostStall, Jitter, SequenceLengths, Speeds
from simcluster.faults.capacities import with_permanent
from simcluster.faults.spec import Batch
from simcluster.faults.stalls import StallPlaces, is_stall, with_room
from simcluster.planning.ops import MAIN, Item, Op, StageProgram
from simcluster.planning.stages import stage_programs
from simcluster.results.result import Result
from simcluster.scenario.job import batch_of, disturbances_of
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import replay
from simcluster.studies.whatif.chance import BLOCK, Chance, Documents, seed_of
from simcluster.studies.whatif.durations import durations, paces
from simcluster.studies.whatif.pauses import LinkSpells, Slowed, Stalled
from simcluster.topology import Cluster

Kind = TypeVar("Kind", bound=FaultSpec)

_WORTH_A_PROCESS = 20e6  # durations to be drawn; below, starting one takes longer


def sweep_replicas(
    scenario: Scenario, base: Result, processes: int, enough: Callable[[Floats], bool] | None = None
) -> Floats:
    """Return the step times of a scenario's replicas, up to the first block after which these are ``enough``.

    ``base`` is the result of the scenario without chance; ``processes`` is how many share the blocks, 0 for one per
    core where that pays.
    """
    job = _job(scenario, base)
    blocks = list(range(math.ceil(scenario.replicas / BLOCK)))
    work = sum(len(planned.values) * len(planned.sort) for planned in job.planned) * scenario.replicas
    workers = min(processes or (cores() if work > _WORTH_A_PROCESS else 1), len(blocks))
    turn = len(blocks) if enough is None else workers
    times = np.zeros(0)
    for first in range(0, len(blocks), turn):
        for block in _in_processes(job, blocks[first : first + turn], workers):
            times = np.concatenate([times, block / scenario.steps])
            if enough and enough(times):
                return times
    return times


@dataclass(frozen=True)
class _Job:
    """Data to simulate any block of replicas, small enough to be passed to another process."""

    sweep: StageSweep
    planned: list[OfStage]  # seconds of a stage's ops
    jitters: list[tuple[Jitter, list[int]]]
    speeds: list[Speeds]
    together: int
    seed: int
    replicas: int
    ranks: int
    stalls: bool
    loads: bool
    data: list[Callable[[Sequence[int]], Documents]]  # by seeds of replicas; empty without SequenceLengths
    stalled: Callable[..., Stalled]
    loaded: Callable[..., LinkSpells]

    def block(self, number: int) -> Floats:
        """Return the seconds of all steps together per replica of a block; the last block has the remaining ones."""
        first = number * BLOCK
        seeds = [seed_of(self.seed, replica) for replica in range(first, min(first + BLOCK, self.replicas))]
        chance = Chance(
            self.jitters, self.sweep.ops, self.sweep.stage_ranks, together=self.together, seed=self.seed, block=number,
            replicas=len(seeds), documents=self.data[0](seeds) if self.data else None,
            slowdowns=np.stack([self.speeds[0].slowdowns(self.ranks, seed) for seed in seeds]) if self.speeds else None,
        )  # fmt: skip
        stalled, loaded = self.stalled(seeds=seeds), self.loaded(seeds=seeds)

        def seconds(stage: int, op: int, start: Callable[[], Floats]) -> Duration:
            item, _ = self.sweep.ops[stage][op]
            if self.stalls and is_stall(item):
                found = stalled.seconds(stage, item.key[1])  # type: ignore[index]
                return _NO_TIME if found is None else found
            took = chance.seconds(stage, op, self.planned[stage].of(op))
            return loaded.seconds(stage, op, start, took) if self.loads else took

        return self.sweep(seconds, len(seeds))


_NO_TIME = np.zeros((1, 1))


@dataclass(frozen=True, slots=True)
class OfStage:
    """Values of the ops of a stage [op, sort of ranks, ...], and the sort of the rank at every place."""

    values: Floats
    sort: Ints

    @classmethod
    def of_ranks(cls, values: Sequence[Floats], ops: Sequence[tuple[Item, Op]]) -> OfStage:
        """Return a stage's values, given those [op, ...] of every rank (one object where equal); stalls get 0."""
        first = {id(each): place for place, each in enumerate(values)}
        sorts = {name: sort for sort, name in enumerate(first)}
        room = np.array([is_stall(item) for item, _ in ops])
        found = np.stack([values[place] for place in first.values()], axis=1)
        whole = np.zeros((len(ops), *found.shape[1:]))
        whole[~room] = found
        return cls(whole, np.array([sorts[id(each)] for each in values]))

    def of(self, op: int) -> Floats:
        """Return the values of an op [place], or one value for all places."""
        return np.asarray(self.values[op] if self.values.shape[1] == 1 else self.values[op][self.sort])


def _job(scenario: Scenario, base: Result) -> _Job:
    parallel = scenario.parallel
    certain = base.scenario
    loads = tuple(fault for fault in _of(BackgroundLoad, scenario) if fault.by_chance)
    if loads:  # separate the ranks that others' traffic meets from the rest
        base = replay(certain, watched=loads)
    cluster = with_permanent(scenario.faults, scenario.cluster.built, scenario.seed)
    programs, layout = stage_programs(base.job), base.job.plan
    disturbed, stage_of = disturbances_of(certain, layout, cluster), layout.stages()
    stalls = _of(HostStall, scenario)
    sweep = StageSweep([with_room(each, [stall.cause for stall in stalls]) for each in programs], layout)
    roomy = _Roomy(base, sweep, lambda rank: disturbed.program(rank, programs[stage_of[rank]]))
    hosts = cluster.host_of[: scenario.gpus]
    jitters = [(fault, fault.chosen(hosts)) for fault in _of(Jitter, scenario)]
    packed, batch = _of(SequenceLengths, scenario), batch_of(scenario)
    places = [StallPlaces(program.lanes[MAIN]) for program in programs]
    horizon = 4.0 * base.step_time * scenario.steps
    return _Job(
        sweep=sweep, planned=roomy.of_stages(durations(base)),
        jitters=jitters, speeds=[fault for fault in _of(Speeds, scenario) if fault.by_chance],
        together=parallel.tp * parallel.cp, seed=scenario.seed, replicas=scenario.replicas, ranks=scenario.gpus,
        stalls=bool(stalls), loads=bool(loads),
        data=[partial(_documents, fault, scenario.seed, batch, scenario.dp) for fault in packed],
        stalled=partial(
            Stalled, stalls, hosts, steps=scenario.steps, places=places, stage_ranks=sweep.stage_ranks,
        ),
        loaded=partial(LinkSpells, loads, slowed=roomy.slowed(loads, cluster), horizon=horizon),
    )  # fmt: skip


def _of(kind: type[Kind], scenario: Scenario) -> list[Kind]:
    """Return the faults of a kind that the sweep supports (``chance_scope``)."""
    return [fault for fault in scenario.faults if isinstance(fault, kind) and not fault.neutral]


@dataclass(frozen=True)
class _Roomy:
    """Values of a run's ops for the ops of a sweep, which has room for stalls."""

    base: Result
    sweep: StageSweep
    program_of: Callable[[int], StageProgram]

    def of_stages(self, of_ranks: Mapping[int, Floats]) -> list[OfStage]:
        """Return the values of every stage's ops, given those of every simulated rank's ops [op, ...]."""
        played = {rank: self._without_stalls(rank, values) for rank, values in of_ranks.items()}
        return [
            OfStage.of_ranks([played[self.base.simulated_for(rank)] for rank in ranks.tolist()], ops)
            for ops, ranks in zip(self.sweep.ops, self.sweep.stage_ranks, strict=True)
        ]

    def _without_stalls(self, rank: int, values: Floats) -> Floats:
        items = (item for items in self.program_of(rank).lanes.values() for item in items)
        return np.asarray(values[np.array([not is_stall(item) for item in items for _ in item.segment.ops])])

    def slowed(self, loads: Sequence[BackgroundLoad], cluster: Cluster) -> list[dict[int, list[Slowed]]]:
        """Return, by stage, the ops that others' traffic can slow down."""
        found: list[dict[int, list[Slowed]]] = [{} for _ in self.sweep.stage_ranks]
        for number, load in enumerate(loads):
            left = {link: load.left(float(cluster.capacity[link])) for link in load.links(cluster)}
            of_stages = self.of_stages(paces(self.base, left))
            for own, of_stage, ops in zip(found, of_stages, self.sweep.ops, strict=True):
                room = np.array([is_stall(item) for item, _ in ops])
                for op in np.flatnonzero((of_stage.values[..., 1] < 1).any(axis=1) & ~room).tolist():
                    latency, pace = of_stage.values[op][of_stage.sort].T
                    own.setdefault(op, []).append(Slowed(number, latency, pace))
        return found


def _documents(fault: SequenceLengths, seed: int, batch: Batch, dp: int, seeds: Sequence[int]) -> Documents:
    """Return the weights of microbatches in the replicas of these seeds, and those of evenly spread documents."""
    replicas = [fault.attention(each, batch, dp) for each in seeds]
    return Documents(np.stack(replicas), fault.without().attention(seed, batch, dp)[:, 0, 0])


def _in_processes(job: _Job, blocks: Sequence[int], workers: int) -> list[Floats]:
    """Return the times of blocks, which are simulated by several processes."""
    dealt = [blocks[place::workers] for place in range(workers)]
    helpers = [ProcessCall(partial(_simulate, job, own)) for own in dealt[1:]]
    played = [_simulate(job, dealt[0]), *(helper.result() for helper in helpers)]
    found = {number: times for own, answer in zip(dealt, played, strict=True)
             for number, times in zip(own, answer, strict=True)}  # fmt: skip
    return [found[number] for number in blocks]


def _simulate(job: _Job, blocks: Sequence[int]) -> list[Floats]:
    return [job.block(number) for number in blocks]
