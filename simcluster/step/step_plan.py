"""Plan of a step to simulate: the job, each pipeline stage's ops, equivalent ranks, and the engine's input tables.

``FOLDING`` lists the scenarios that folding is proved for (tests/test_drawn.py); all others are simulated rank by rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from simcluster.base.clock import simulate_on_exact_grid
from simcluster.base.gc_pause import pause_gc
from simcluster.base.progress import report_estimate, report_phase
from simcluster.devices.device import Device
from simcluster.devices.interference import Interference
from simcluster.engine.job_record import simulate_job
from simcluster.engine.tabulate import JobTables, tabulate_job
from simcluster.faults import Fault
from simcluster.faults.link_capacities import apply_permanent_faults
from simcluster.planning.disturbances import Disturbances
from simcluster.planning.footprint import JobFacts
from simcluster.planning.job import Job, ModelSlices, balance_layers
from simcluster.planning.ops import MAIN, Dependency, Op, Segment, StageProgram, WorkItem
from simcluster.planning.pass_segments import PassLayers
from simcluster.planning.stage_programs import build_stage_programs
from simcluster.planning.work_kinds import StageSend
from simcluster.reference.step_record import StepRecord
from simcluster.scenario.checkpoint_plan import plan_step_checkpoint
from simcluster.scenario.effort_estimate import estimate_simulation_seconds
from simcluster.scenario.fast_path import ANY_JOB, EVERYWHERE, PROVED_KINDS, FastPath, FieldLimit, parse_field_paths
from simcluster.scenario.job_conversion import (
    collective_methods,
    disturbances_of,
    interference_of,
    job_facts_with_memory,
    job_of,
    rank_slowdowns,
)
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import schedule_of, uses_simulated_times
from simcluster.schedules.actions import Kind
from simcluster.schedules.zb_auto import Times
from simcluster.symmetry.folding import FoldedJob, SymmetryFinder
from simcluster.topology import Cluster
from simcluster.traffic.collective_methods import MethodChooser

_FAULTS = dict.fromkeys(
    ("slow_gpu", "speeds", "jitter", "host_stall", "slow_link", "nic_speeds", "link_flap", "background_load",
     "sequence_lengths", "expert_imbalance", "image_tokens"),
    lambda fault: "",
)  # fmt: skip

_SAVED = parse_field_paths("checkpoint: after mode to bytes_per_parameter place")
_LOADED = parse_field_paths("data.loader: batch rate workers prefetch jitter")  # stalls of hosts
_OUTER = parse_field_paths("training.outer: every workers bytes_per_parameter parts beside")
_FREE = EVERYWHERE | ANY_JOB | _SAVED | _LOADED | _OUTER

FOLDING = FastPath(
    "folding",
    unrestricted=_FREE,
    field_limits={
        "collectives.detail": FieldLimit("ranks differ when collectives are simulated in steps", ("flow",)),
        "model.mixer": PROVED_KINDS,
    },
    fault_rules=_FAULTS,
)


@dataclass(frozen=True, slots=True)
class SimulatedJobTimes:
    """Simulated durations (s) of a job's passes and sends on its cluster, without faults."""

    job: Job
    cluster: Cluster
    methods: MethodChooser

    def balance_slices(self) -> ModelSlices:
        """Divide the layers into slices whose slowest forward plus backward is as short as possible."""
        schedule, passes = self.job.schedule, self.job.pass_maker
        parts = (PassLayers(self.job.slices.encoder, embedding=True), PassLayers((), lm_head=True))
        ends = [passes.segment(kind, part) for part in parts for kind in "FB"]
        layers = (PassLayers((layer,)) for layer in range(self.job.model.layers))
        pairs = [[passes.segment(kind, layer) for kind in "FB"] for layer in layers]
        works = [tuple(op.work for segment in pair for op in segment.ops) for pair in pairs]
        distinct = dict(zip(works, pairs, strict=True))  # experts or not, recomputed or not
        segments = [*ends, *chain.from_iterable(distinct.values())]
        longest = [max(times) for times in zip(*self._simulate_segments([segments] * self.job.plan.pp), strict=True)]
        first, last, *each_kind = (sum(longest[place : place + 2]) for place in range(0, len(longest), 2))
        seconds = dict(zip(distinct, each_kind, strict=True))
        each = [seconds[work] for work in works]
        slices = balance_layers(each, first, last, len(schedule.routes[0]),
                        empty_ends=schedule.allows_empty_end_slices)  # fmt: skip
        return replace(slices, encoder=self.job.slices.encoder)

    def simulate_schedule_times(self) -> tuple[Times, float]:
        """Simulate the durations (s) of each stage's F, I and W passes, and of the slowest send.

        F is the forward pass, I the input gradient and W the weight gradient of the stage's first chunk.
        """
        job = self.job
        parts = [
            replace(job.pass_over_chunk(stage, 0), gathers_input=job.gather_boundary and stage > 0)
            for stage in range(job.plan.pp)
        ]
        times_of = self._simulate_segments([[job.pass_maker.segment(kind, part) for kind in "FIW"] for part in parts])
        seconds = {(kind, stage): time for stage, times in enumerate(times_of)
                   for kind, time in zip("FIW", times, strict=True)}  # fmt: skip

        def pass_seconds(kind: Kind, stage: int, chunk: int) -> float:
            return seconds[kind, stage]

        return pass_seconds, self._simulate_longest_send()

    def _simulate_longest_send(self) -> float:
        programs, pp = [], self.job.plan.pp
        for stage in range(pp):
            items = []
            if stage < pp - 1:
                send = Segment((Op(StageSend(stage + 1, self.job.send_bytes), "pp", "send", "activation"),))
                needs = (Dependency(stage - 1, ("send", stage - 1)),) if stage else ()
                items.append(WorkItem(send, ("send", stage), needs, microbatch=0))
            programs.append(StageProgram(stage, {MAIN: items}))
        return max((time for times in self._simulate_items(programs) for time in times), default=0.0)

    def _simulate_segments(self, segments: Sequence[Sequence[Segment]]) -> list[list[float]]:
        programs = []
        for stage, mine in enumerate(segments):
            items = [WorkItem(segment, number, microbatch=number) for number, segment in enumerate(mine)]
            programs.append(StageProgram(stage, {MAIN: items}))
        return self._simulate_items(programs)

    def _simulate_items(self, programs: Sequence[StageProgram]) -> list[list[float]]:
        plan, cluster = self.job.plan, self.cluster
        capacity, slowness = cluster.link_capacity, [1.0] * plan.num_ranks
        folding = SymmetryFinder(programs, plan, cluster, self.methods).fold_job(capacity, slowness)

        def simulate_once() -> StepRecord:
            return simulate_job(tabulate_job(programs, plan, cluster, capacity, folding, slowness=slowness))

        record = simulate_on_exact_grid(simulate_once)
        ops, times = record.ops, record.times
        items = np.stack([ops.lane_stage[ops.lane], ops.microbatch, ops.lane_rank[ops.lane]])
        (stages, numbers, _), which = np.unique(items, axis=1, return_inverse=True)
        begin, end = np.full(len(stages), np.inf), np.zeros(len(stages))
        np.minimum.at(begin, which.ravel(), times.start)
        np.maximum.at(end, which.ravel(), times.end)
        found: list[list[float]] = [[0.0] * len(program.lanes[MAIN]) for program in programs]
        for stage, number, seconds in zip(stages.tolist(), numbers.tolist(), (end - begin).tolist(), strict=True):
            found[stage][number] = max(found[stage][number], seconds)
        return found


EditPrograms = Callable[[Sequence[StageProgram]], Sequence[StageProgram]]
"""Function that changes the ops of a job's stages, for what-if studies."""


@dataclass(frozen=True, slots=True)
class CollectiveOptions:
    """Options for simulating collectives: algorithms, detail (flows or hop by hop), and interference with compute.

    ``interference`` is the effect of communication on concurrent computation, None for none.
    """

    methods: MethodChooser
    hop_by_hop: bool = False
    interference: Interference | None = None


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """Plan of a step, independent of faults: job, each pipeline stage's ops, and equivalent ranks.

    ``faults`` are those for which ``facts`` hold.
    """

    job: Job
    facts: JobFacts
    faults: Sequence[Fault]
    programs: Sequence[StageProgram]
    collective_options: CollectiveOptions
    symmetry: SymmetryFinder


@pause_gc()
@report_phase("planning")
def plan_step(scenario: Scenario, change: EditPrograms = list, *, trains: bool = True) -> PlannedStep:
    """Plan the ops of every pipeline stage of a scenario; a function may edit the ops.

    Faults have no effect here. ``trains=False`` plans the forward passes of one step alone.
    """
    report_estimate(scenario.name, estimate_simulation_seconds(scenario))
    job, facts = plan_job(scenario, scenario.cluster.device)
    job = job if trains else job.forward_only_job()
    return plan_with_programs(scenario, job, facts, change(build_stage_programs(job)))


def plan_with_programs(scenario: Scenario, job: Job, facts: JobFacts, programs: Sequence[StageProgram]) -> PlannedStep:
    """Build the plan of a scenario's step from its job and stage ops, which the caller already has."""
    choices = collective_options(scenario)
    symmetry = SymmetryFinder(programs, job.plan, scenario.cluster.built, choices.methods)
    return PlannedStep(job, facts, scenario.faults, programs, choices, symmetry)


class FoldedStep(NamedTuple):
    """A step ready to simulate: cluster and disturbances under the scenario's faults, equivalent ranks and links."""

    cluster: Cluster
    disturbances: Disturbances
    folding: FoldedJob


@report_phase("preparing")
def fold_step(scenario: Scenario, planned: PlannedStep, *, folded: bool = True) -> FoldedStep:
    """Find which ranks, groups and links of a planned step are equivalent, given the scenario's faults."""
    job = planned.job
    cluster = scenario.cluster.built
    if scenario.faults:
        cluster = apply_permanent_faults(scenario.faults, cluster, scenario.seed)
    disturbances = disturbances_of(scenario, job.plan, cluster, saved=job.checkpoint)
    rates = cluster.link_capacity
    if folded and is_foldable(scenario):
        folding = planned.symmetry.fold_job(rates, rank_slowdowns(scenario), disturbances)
    else:
        folding = planned.symmetry.trivial_folding(len(rates))
    return FoldedStep(cluster, disturbances, folding)


@report_phase("preparing")
def tabulate_step(scenario: Scenario, planned: PlannedStep, step: FoldedStep) -> JobTables:
    """Return a step's input tables for the compiled engine, with one rank per class of equivalent ranks."""
    return tabulate_job(
        planned.programs,
        planned.job.plan,
        step.cluster,
        step.cluster.link_capacity,
        step.folding,
        slowness=rank_slowdowns(scenario),
        disturbances=step.disturbances,
        interference=planned.collective_options.interference,
        in_steps=planned.collective_options.hop_by_hop,
    )


def plan_job(scenario: Scenario, device: Device) -> tuple[Job, JobFacts]:
    """Return a scenario's job, and the FLOPs, tokens and memory that are known before simulation."""
    job = optimize_by_simulated_times(scenario, job_of(scenario, device))
    job = replace(job, checkpoint=plan_step_checkpoint(scenario, job)) if scenario.checkpoint else job
    return job, job_facts_with_memory(scenario, device, job)


def optimize_by_simulated_times(scenario: Scenario, job: Job) -> Job:
    """Balance layers over stages and optimize the schedule by simulated times, where the scenario asks for it."""
    cut = scenario.pipeline.layers_per_stage == "auto"
    if not cut and not uses_simulated_times(scenario):
        return job
    cluster, methods = scenario.cluster.built, replace(collective_methods(scenario), in_rounds=False)
    if cut:
        job = replace(job, slices=SimulatedJobTimes(job, cluster, methods).balance_slices())
    if uses_simulated_times(scenario):
        times = SimulatedJobTimes(job, cluster, methods).simulate_schedule_times()
        job = replace(job, schedule=schedule_of(scenario, *times))
    return job


def collective_options(scenario: Scenario) -> CollectiveOptions:
    """Return how the scenario's collectives are to be simulated."""
    in_steps = scenario.collectives.detail == "steps"
    return CollectiveOptions(
        methods=collective_methods(scenario),
        hop_by_hop=in_steps,
        interference=None if in_steps else interference_of(scenario, scenario.cluster.device),
    )


def is_foldable(*scenarios: Scenario) -> bool:
    """Return whether each class of equivalent ranks of these scenarios may be simulated as one rank."""
    return not any(map(FOLDING.find_obstacle, scenarios))
