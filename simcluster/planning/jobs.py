"""Several jobs on one cluster, combined into one with consecutive rank and stage numbers.

A job's ranks run on any GPUs of the cluster (``PlacedFabric``); what the jobs share is links. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.clock import Profile
from simcluster.base.link_columns import TreeFlows
from simcluster.planning.ops import Item, StageProgram
from simcluster.planning.parallel import Plan, Ranks
from simcluster.planning.perturbations import Computations, Disturbances
from simcluster.traffic.traffic import Fabric, Spread


@dataclass(frozen=True)
class PlacedFabric:
    """Network fabric addressed by rank instead of GPU: rank r runs on GPU ``gpus[r]``."""

    fabric: Fabric
    gpus: tuple[int, ...]

    @cached_property
    def hosts(self) -> Ints:
        """Node number of every rank."""
        return self.fabric.hosts[list(self.gpus)]

    def spread(self, src: int, dst: int, flow: int = 0) -> Spread:
        """Return the links from one rank to another, with the fraction of the flow's bytes on each."""
        return self.fabric.spread(self.gpus[src], self.gpus[dst], flow)

    def routes(self, src: Ints, dst: Ints, flow: Ints) -> tuple[Ints, Ints, Floats, Floats]:
        """Return the links of many flows between ranks."""
        gpus = np.array(self.gpus, dtype=np.int64)
        return self.fabric.routes(gpus[src], gpus[dst], flow)

    def latencies(self, row: Ints, link: Ints, fraction: Floats, rows: int) -> Floats:
        """Return the latency (s) along each of many routes."""
        return self.fabric.latencies(row, link, fraction, rows)

    def spread_latency(self, spread: Spread) -> float:
        """Return the latency (s) along the links of one flow."""
        return self.fabric.spread_latency(spread)

    def loads(self, flows: TreeFlows) -> None:
        """Return None: nodes of several jobs are not interchangeable, so no loads are known per tree."""

    def seats(self, gpus: Ints) -> tuple[Int32s, Int32s]:
        """Return the NVSwitch number and NIC number of each of these ranks' GPUs."""
        return self.fabric.seats(np.array(self.gpus, dtype=np.int64)[gpus])

    def uplinks(self, gpu: int) -> tuple[str, ...]:
        """Return the names of the NICs of a rank's GPU."""
        return self.fabric.uplinks(self.gpus[gpu])

    @property
    def meshed(self) -> bool:
        """Whether the GPUs of a node are linked to each other directly."""
        return self.fabric.meshed

    def far(self, hosts: Sequence[int] | Ints) -> bool:
        """Return whether these nodes are on several sites."""
        return self.fabric.far(hosts)

    def nvswitch(self, gpu: int) -> str:
        """Return the name of the NVSwitch of a rank's GPU."""
        return self.fabric.nvswitch(self.gpus[gpu])

    def switch_ways(self, gpus: Sequence[int], turn: int) -> tuple[tuple[Spread, Spread], ...]:
        """Return the routes from each rank to a switch above all of them, and back."""
        return self.fabric.switch_ways([self.gpus[gpu] for gpu in gpus], turn)

    def host_way(self, gpu: int, direction: str) -> Spread:
        """Return the links between a rank's GPU and its host's memory."""
        return self.fabric.host_way(self.gpus[gpu], direction)


@dataclass(frozen=True)
class JointPlan:
    """Rank grids of several jobs combined; the ranks and stages of a job follow those of the jobs before it."""

    plans: tuple[Plan, ...]

    @property
    def num_ranks(self) -> int:
        """Number of ranks of all jobs."""
        return sum(plan.num_ranks for plan in self.plans)

    @property
    def ranks(self) -> list[range]:
        """Range of rank numbers of every job."""
        ends = np.cumsum([plan.num_ranks for plan in self.plans]).tolist()
        return [range(end - plan.num_ranks, end) for plan, end in zip(self.plans, ends, strict=True)]

    @property
    def stages(self) -> list[range]:
        """Range of stage numbers of every job."""
        ends = np.cumsum([plan.pp for plan in self.plans]).tolist()
        return [range(end - plan.pp, end) for plan, end in zip(self.plans, ends, strict=True)]

    def stage_ranks(self) -> list[Ranks]:
        """Return the ranks of every stage of every job."""
        return [
            ranks + first.start
            for plan, first in zip(self.plans, self.ranks, strict=True)
            for ranks in plan.stage_ranks()
        ]

    def groups(self, axis: str) -> list[Ranks]:
        """Return all groups of the communicator ``axis``, job by job."""
        return [
            group + first.start
            for plan, first in zip(self.plans, self.ranks, strict=True)
            for group in plan.groups(axis)
        ]


def joint_programs(programs: Sequence[Sequence[StageProgram]], plan: JointPlan) -> list[StageProgram]:
    """Return the ops of all jobs' stages, with stages numbered consecutively."""
    return [
        _shift_stages(stage, numbers.start) for job, numbers in zip(programs, plan.stages, strict=True) for stage in job
    ]


def _shift_stages(program: StageProgram, by: int) -> StageProgram:
    segment_of = cache(lambda segment: segment.with_works(lambda op: op.work.shifted(by)))

    def shifted(item: Item) -> Item:
        needs = tuple(need._replace(stage=need.stage + by) for need in item.needs)
        return item._replace(segment=segment_of(item.segment), needs=needs)

    return StageProgram(program.stage + by, {name: list(map(shifted, items)) for name, items in program.lanes.items()})


def joint_disturbances(
    jobs: Sequence[Disturbances], plan: JointPlan, capacities: Mapping[int, Profile]
) -> Disturbances:
    """Return the disturbances (slow ranks and links) of all jobs, with ranks numbered consecutively."""
    job_of = [(own, numbers.start) for own, numbers in zip(jobs, plan.ranks, strict=True) for _ in numbers]

    def colour(rank: int) -> Hashable:
        own, first = job_of[rank]
        return own.colour(rank - first)

    def program(rank: int, of_stage: StageProgram) -> StageProgram:
        own, first = job_of[rank]
        return own.program(rank - first, of_stage)

    def retime(rank: int, computations: Computations, seconds: Floats) -> Floats:
        own, first = job_of[rank]
        return own.retime(rank - first, computations, seconds)

    pairs = zip(plan.ranks, jobs, strict=True)
    speeds = {numbers.start + rank: profile for numbers, own in pairs for rank, profile in own.speeds.items()}
    return Disturbances(speeds, capacities, colour, program, retime)
