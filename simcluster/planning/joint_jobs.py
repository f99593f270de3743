"""Several jobs on one cluster, combined into one job with consecutive rank and stage numbers.

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
from simcluster.planning.disturbances import ComputationColumns, Disturbances
from simcluster.planning.ops import HostWork, Op, Segment, StageProgram, WorkItem
from simcluster.planning.rank_grid import ParallelPlan, Ranks
from simcluster.traffic.traffic import Fabric, Spread


@dataclass(frozen=True)
class PlacedFabric:
    """Network fabric addressed by rank instead of GPU: rank r runs on GPU ``gpus[r]``."""

    fabric: Fabric
    gpus: tuple[int, ...]

    @cached_property
    def node_of_gpu(self) -> Ints:
        """Node number of every rank."""
        return self.fabric.node_of_gpu[list(self.gpus)]

    def spread_route(self, src: int, dst: int, flow: int = 0) -> Spread:
        """Return the links from one rank to another, and the fraction of the flow's bytes on each link."""
        return self.fabric.spread_route(self.gpus[src], self.gpus[dst], flow)

    def route_rows(self, src: Ints, dst: Ints, flow: Ints) -> tuple[Ints, Ints, Floats, Floats]:
        """Return the links of many flows between ranks."""
        gpus = np.array(self.gpus, dtype=np.int64)
        return self.fabric.route_rows(gpus[src], gpus[dst], flow)

    def route_latencies(self, row: Ints, link: Ints, fraction: Floats, rows: int) -> Floats:
        """Return the latency (s) along each of many routes."""
        return self.fabric.route_latencies(row, link, fraction, rows)

    def mean_route_latency(self, spread: Spread) -> float:
        """Return the latency (s) along the links of one flow."""
        return self.fabric.mean_route_latency(spread)

    def tree_link_loads(self, flows: TreeFlows) -> None:
        """Return None: this shortcut for interchangeable nodes does not hold when jobs share the cluster."""

    def nvswitch_and_nic_numbers(self, gpus: Ints) -> tuple[Int32s, Int32s]:
        """Return the NVSwitch number and the NIC number of each rank's GPU."""
        return self.fabric.nvswitch_and_nic_numbers(np.array(self.gpus, dtype=np.int64)[gpus])

    def exit_nics(self, gpu: int) -> tuple[str, ...]:
        """Return the names of the NICs of a rank's GPU."""
        return self.fabric.exit_nics(self.gpus[gpu])

    @property
    def meshed(self) -> bool:
        """Whether the GPUs of a node have direct links to each other."""
        return self.fabric.meshed

    def spans_sites(self, hosts: Sequence[int] | Ints) -> bool:
        """Return whether these nodes are on more than one site."""
        return self.fabric.spans_sites(hosts)

    def nvswitch(self, gpu: int) -> str:
        """Return the name of the NVSwitch of a rank's GPU."""
        return self.fabric.nvswitch(self.gpus[gpu])

    def routes_to_common_switch(self, gpus: Sequence[int], turn: int) -> tuple[tuple[Spread, Spread], ...]:
        """Return the routes from each rank to a switch that all the ranks can reach, and back."""
        return self.fabric.routes_to_common_switch([self.gpus[gpu] for gpu in gpus], turn)

    def host_memory_route(self, gpu: int, direction: str) -> Spread:
        """Return the links between a rank's GPU and its host's memory."""
        return self.fabric.host_memory_route(self.gpus[gpu], direction)


@dataclass(frozen=True)
class JointParallelPlan:
    """Rank grids of several jobs combined; rank and stage numbers continue from job to job."""

    plans: tuple[ParallelPlan, ...]

    @property
    def num_ranks(self) -> int:
        """Number of ranks of all jobs."""
        return sum(plan.num_ranks for plan in self.plans)

    @property
    def rank_ranges(self) -> list[range]:
        """Range of rank numbers of every job."""
        ends = np.cumsum([plan.num_ranks for plan in self.plans]).tolist()
        return [range(end - plan.num_ranks, end) for plan, end in zip(self.plans, ends, strict=True)]

    @property
    def stage_ranges(self) -> list[range]:
        """Range of stage numbers of every job."""
        ends = np.cumsum([plan.pp for plan in self.plans]).tolist()
        return [range(end - plan.pp, end) for plan, end in zip(self.plans, ends, strict=True)]

    def stage_ranks(self) -> list[Ranks]:
        """Return the ranks of every stage of every job."""
        jobs = zip(self.plans, self.rank_ranges, strict=True)
        return [ranks + numbers.start for plan, numbers in jobs for ranks in plan.stage_ranks()]

    def groups(self, axis: str) -> list[Ranks]:
        """Return all groups of the communicator ``axis``, job by job."""
        jobs = zip(self.plans, self.rank_ranges, strict=True)
        return [group + numbers.start for plan, numbers in jobs for group in plan.groups(axis)]


def join_programs(programs: Sequence[Sequence[StageProgram]], plan: JointParallelPlan) -> list[StageProgram]:
    """Return the stage programs of all jobs, with the stages numbered consecutively."""
    return [
        _shift_stages(stage, span.start) for job, span in zip(programs, plan.stage_ranges, strict=True) for stage in job
    ]


def _shift_stages(program: StageProgram, by: int) -> StageProgram:
    segment_of = cache(lambda segment: segment.with_replaced_works(lambda op: op.work.with_stage_offset(by)))

    def shifted(item: WorkItem) -> WorkItem:
        needs = tuple(need._replace(stage=need.stage + by) for need in item.needs)
        return item._replace(segment=segment_of(item.segment), needs=needs)

    return StageProgram(program.stage + by, {name: list(map(shifted, items)) for name, items in program.lanes.items()})


def delay_programs(programs: Sequence[StageProgram], seconds: float) -> list[StageProgram]:
    """Return the stage programs of a job that begins ``seconds`` later: until then every lane waits."""
    if not seconds:
        return list(programs)
    lanes = [{name: [_wait_on_lane(name, seconds), *items] for name, items in each.lanes.items()} for each in programs]
    return [StageProgram(each.stage, own) for each, own in zip(programs, lanes, strict=True)]


def _wait_on_lane(name: str, seconds: float) -> WorkItem:
    return WorkItem(Segment((Op(HostWork(seconds), "host", "other", "arrival", lane=name),)), ("arrival", name))


def join_disturbances(
    jobs: Sequence[Disturbances], plan: JointParallelPlan, capacities: Mapping[int, Profile]
) -> Disturbances:
    """Combine the disturbances (slow ranks and links) of all jobs, with the ranks numbered consecutively."""
    job_of = [(own, numbers.start) for own, numbers in zip(jobs, plan.rank_ranges, strict=True) for _ in numbers]

    def symmetry_key(rank: int) -> Hashable:
        own, first = job_of[rank]
        return own.symmetry_key(rank - first)

    def change_program(rank: int, of_stage: StageProgram) -> StageProgram:
        own, first = job_of[rank]
        return own.change_program(rank - first, of_stage)

    def retime(rank: int, computations: ComputationColumns, seconds: Floats) -> Floats:
        own, first = job_of[rank]
        return own.retime(rank - first, computations, seconds)

    pairs = zip(plan.rank_ranges, jobs, strict=True)
    speeds = {numbers.start + rank: profile for numbers, own in pairs for rank, profile in own.speeds.items()}
    return Disturbances(speeds, capacities, symmetry_key, change_program, retime)
