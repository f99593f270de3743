"""All replicas of a step in one sweep: longest paths through it with other durations (``engine.stage_sweep``).

Random are kernels (jitter), lengths of documents, host stalls, and periods of others' traffic on links.  Otherwise,
links and interference are those of the run without chance.

A draw depends on the seed, the fault's stream, the op (kind, layer, microbatch, step), the rank's place in its stage
and the replica: not on the schedule, the cut of the model, the number of replicas, or other draws.  So two scenarios
that are compared share all numbers that mean the same in both (common random numbers), and their difference has far
less noise than either.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.base.processes import ProcessCall, cores
from simcluster.engine.stage_sweep import Duration, StageSweep
from simcluster.faults import BackgroundLoad, FaultSpec, HostStall, Jitter, SequenceLengths, Speeds
from simcluster.faults.capacities import with_permanent
from simcluster.faults.draws import QuickStreams
from simcluster.faults.stalls import StallPlaces, is_stall, with_room
from simcluster.planning.ops import MAIN, Item, Op, StageProgram, Work
from simcluster.planning.stages import stage_programs
from simcluster.results.result import Result
from simcluster.scenario.job import batch_of, disturbances_of
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import replay
from simcluster.studies.whatif.durations import LinkSpells, Slowed, Stalled, durations, paces
from simcluster.topology import Cluster

Kind = TypeVar("Kind", bound=FaultSpec)

BLOCK = 50
"""Replicas that are drawn together, in the last block fewer: the arrays of these fit a cache with a stage's ranks."""
_WORTH_A_PROCESS = 20e6  # durations to be drawn; below, starting one takes longer
_NO_TIME = np.zeros((1, 1))


def seed_of(seed: int, replica: int) -> int:
    """Return the seed of a replica."""
    digest = hashlib.blake2b(repr((seed, "replica", replica)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


def sweep_replicas(
    scenario: Scenario, base: Result, processes: int, enough: Callable[[Floats], bool] | None = None
) -> Floats:
    """Return the step times of a scenario's replicas, up to the first block after which these are ``enough``.

    ``base`` is the result of the scenario without chance; ``processes`` is how many share the blocks, 0 for one per
    core where that pays.
    """
    job = _job(scenario, base)
    blocks = range(math.ceil(scenario.replicas / BLOCK))
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


@dataclass(frozen=True)
class _Job:
    """Data to simulate any block of replicas, small enough to be passed to another process.

    ``together`` neighbours of a stage are a worker: the tp and cp ranks of a replica's stage.  ``attention`` returns
    the load of core attention in one replica's microbatches [step, dp rank, microbatch], 1 being one document per
    sequence, given the replica's seed; ``planned_attention[step]`` is that of the planned step.
    """

    sweep: StageSweep
    planned: list[OfStage]  # seconds of a stage's ops
    jitters: list[tuple[Jitter, list[Bools]]]  # with the places of each stage that they are on
    speeds: list[Speeds]
    together: int
    seed: int
    replicas: int
    ranks: int
    stalls: bool
    loads: bool
    attention: Callable[[int], Floats] | None
    planned_attention: Floats | None
    stalled: Callable[..., Stalled]
    loaded: Callable[..., LinkSpells]

    @cached_property
    def names(self) -> list[list[tuple[object, ...]]]:
        """What each op of a stage is, in whatever order and on whatever stage; identical ones are counted."""
        return [[*_names(ops)] for ops in self.sweep.ops]

    @cached_property
    def firsts(self) -> list[list[int]]:
        """The number of the first op of each op's item, by stage."""
        found = []
        for ops in self.sweep.ops:
            own: list[int] = []
            for number, (item, _) in enumerate(ops):
                own.append(own[-1] if number and ops[number - 1][0] is item else number)
            found.append(own)
        return found


def _names(ops: Sequence[tuple[Item, Op]]) -> Iterator[tuple[object, ...]]:
    seen: dict[tuple[object, ...], int] = {}
    for item, op in ops:
        name = (item.step, item.microbatch, op.kind, op.name, op.layer)
        seen[name] = seen.get(name, -1) + 1
        yield (*name, seen[name])


class _Block:
    """Durations of ops in one block of replicas."""

    def __init__(self, job: _Job, number: int) -> None:
        first = number * BLOCK
        seeds = [seed_of(job.seed, replica) for replica in range(first, min(first + BLOCK, job.replicas))]
        self._job, self._number, self._replicas, self._streams = job, number, len(seeds), QuickStreams()
        self._stalled, self._loaded = job.stalled(seeds=seeds), job.loaded(seeds=seeds)
        self._attention = np.stack([*map(job.attention, seeds)]) if job.attention else None
        slower = [job.speeds[0].slowdowns(job.ranks, seed) for seed in seeds] if job.speeds else None
        self._slower = None if slower is None else [np.stack(slower)[:, ranks] for ranks in job.sweep.stage_ranks]

    def times(self) -> Floats:
        """Return the seconds of all steps together per replica."""
        return self._job.sweep(self._seconds, self._replicas)

    def _seconds(self, stage: int, number: int, start: Callable[[], Floats]) -> Duration:
        job = self._job
        item, op = job.sweep.ops[stage][number]
        if job.stalls and is_stall(item):
            found = self._stalled.seconds(stage, item.key[1])  # type: ignore[index]
            return _NO_TIME if found is None else found
        planned = job.planned[stage].of(number)
        took = planned if op.work.sensitivity is None else self._drawn(stage, number, item, op.work, planned)
        return self._loaded.seconds(stage, number, start, took) if job.loads else took

    def _drawn(self, stage: int, number: int, item: Item, work: Work, planned: Floats) -> Duration:
        """Return the durations [replica, place] of an op that has these ``planned`` seconds [place]."""
        factors, more = [], None
        if self._attention is not None and work.attention and item.microbatch >= 0:
            factors.append(self._uneven(item, work))
        for fault, places in self._job.jitters:
            chosen = places[stage]
            if not chosen.any():
                continue
            drawn = self._draw(fault, stage, number)
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

    def _uneven(self, item: Item, work: Work) -> Floats:
        """Return the factor on the planned seconds of an op, whose microbatch has other documents."""
        assert self._attention is not None
        assert self._job.planned_attention is not None
        planned = self._job.planned_attention[item.step]
        more = self._attention[:, item.step, :, item.microbatch] - planned
        seconds = work.seconds + (planned - 1.0) * work.attention
        return np.repeat(1.0 + more * (work.attention / seconds), self._job.together, axis=1)

    def _draw(self, fault: Jitter, stage: int, number: int) -> Floats:
        """Return a draw for every replica and place of a stage, whether the fault is on it or not."""
        job = self._job
        if fault.per == "step":
            name: object = (stage, job.sweep.ops[stage][number][0].step)
        else:
            name = job.names[stage][number if fault.per == "kernel" else job.firsts[stage][number]]
        generator = self._streams(job.seed, self._number, fault.seed, name)
        size = job.together if fault.shared_by == "worker" else 1
        count = len(job.sweep.stage_ranks[stage]) // size
        drawn = fault.factor.draw(generator, self._replicas * count).reshape(self._replicas, count)
        return drawn if size == 1 else np.repeat(drawn, size, axis=1)


def _job(scenario: Scenario, base: Result) -> _Job:
    parallel, certain = scenario.parallel, base.scenario
    loads = tuple(fault for fault in _of(BackgroundLoad, scenario) if fault.by_chance)
    if loads:  # separate the ranks that others' traffic meets from the rest
        base = replay(certain, watched=loads)
    cluster = with_permanent(scenario.faults, scenario.cluster.built, scenario.seed)
    programs, layout = stage_programs(base.job), base.job.plan
    disturbed, stage_of = disturbances_of(certain, layout, cluster), layout.stages()
    stalls = _of(HostStall, scenario)
    sweep = StageSweep([with_room(each, [stall.cause for stall in stalls]) for each in programs], layout)
    roomy = _Roomy(base, sweep, lambda rank: disturbed.program(rank, programs[stage_of[rank]]))
    hosts, batch = cluster.host_of[: scenario.gpus], batch_of(scenario)
    packed = next(iter(_of(SequenceLengths, scenario)), None)
    places = [StallPlaces(program.lanes[MAIN]) for program in programs]
    chosen = [(fault, fault.chosen(hosts)) for fault in _of(Jitter, scenario)]
    return _Job(
        sweep=sweep, planned=roomy.of_stages(durations(base)),
        jitters=[(fault, [np.isin(ranks, own) for ranks in sweep.stage_ranks]) for fault, own in chosen],
        speeds=[fault for fault in _of(Speeds, scenario) if fault.by_chance],
        together=parallel.tp * parallel.cp, seed=scenario.seed, replicas=scenario.replicas, ranks=scenario.gpus,
        stalls=bool(stalls), loads=bool(loads),
        attention=partial(packed.attention, batch=batch, dp=scenario.dp) if packed else None,
        planned_attention=packed.without().attention(scenario.seed, batch, scenario.dp)[:, 0, 0] if packed else None,
        stalled=partial(
            Stalled, stalls, hosts, steps=scenario.steps, places=places, stage_ranks=sweep.stage_ranks,
        ),
        loaded=partial(
            LinkSpells, loads, slowed=roomy.slowed(loads, cluster), horizon=4.0 * base.step_time * scenario.steps,
        ),
    )  # fmt: skip


def _of(kind: type[Kind], scenario: Scenario) -> list[Kind]:
    """Return the faults of a kind."""
    return [fault for fault in scenario.faults if isinstance(fault, kind) and not fault.neutral]


@dataclass(frozen=True)
class _Roomy:
    """Values of a run's ops for the ops of a sweep, which has room for stalls."""

    base: Result
    sweep: StageSweep
    program_of: Callable[[int], StageProgram]

    def of_stages(self, of_ranks: Mapping[int, Floats]) -> list[OfStage]:
        """Return the values of every stage's ops, given those of every simulated rank's ops [op, ...]."""
        values = {rank: self._without_stalls(rank, own) for rank, own in of_ranks.items()}
        return [
            OfStage.of_ranks([values[self.base.simulated_for(rank)] for rank in ranks.tolist()], ops)
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
            for own, of_stage, ops in zip(found, self.of_stages(paces(self.base, left)), self.sweep.ops, strict=True):
                room = np.array([is_stall(item) for item, _ in ops])
                for op in np.flatnonzero((of_stage.values[..., 1] < 1).any(axis=1) & ~room).tolist():
                    latency, pace = of_stage.values[op][of_stage.sort].T
                    own.setdefault(op, []).append(Slowed(number, latency, pace))
        return found


def _in_processes(job: _Job, blocks: Sequence[int], workers: int) -> list[Floats]:
    """Return the times of blocks, which are simulated by several processes."""
    dealt = [blocks[place::workers] for place in range(workers)]
    helpers = [ProcessCall(partial(_simulate, job, own)) for own in dealt[1:]]
    answers = [_simulate(job, dealt[0]), *(helper.result() for helper in helpers)]
    pairs = (pair for own, answer in zip(dealt, answers, strict=True) for pair in zip(own, answer, strict=True))
    found = dict(pairs)
    return [found[number] for number in blocks]


def _simulate(job: _Job, blocks: Sequence[int]) -> list[Floats]:
    return [_Block(job, number).times() for number in blocks]
