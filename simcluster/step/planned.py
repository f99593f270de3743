"""A step as planned for simulation: its job, the ops of each stage, equal ranks, the engine's tables.

``FOLDING`` lists the scenarios that folding is proved for (tests/test_drawn.py); all others are simulated rank by rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simcluster.base.clock import simulate_on_exact_grid
from simcluster.base.gc_paused import pause_gc
from simcluster.base.telling import report_estimate, report_phase
from simcluster.devices.device import Device
from simcluster.devices.interference import Interference
from simcluster.engine.job_record import simulate_job
from simcluster.engine.tabulate import JobTables, tabulate
from simcluster.faults import Fault
from simcluster.faults.capacities import apply_permanent_faults
from simcluster.planning.footprint import Facts
from simcluster.planning.job import Job, Slices, balance_layers
from simcluster.planning.ops import MAIN, Item, Need, Op, Segment, StageProgram
from simcluster.planning.perturbations import Disturbances
from simcluster.planning.segments import Pass
from simcluster.planning.stages import stage_programs
from simcluster.planning.works import Transfer
from simcluster.reference.record import Record
from simcluster.scenario.checkpoint_plan import plan_saved_parts
from simcluster.scenario.effort import estimate_seconds
from simcluster.scenario.job import (
    collective_methods,
    disturbances_of,
    facts_with_memory,
    interference_of,
    job_of,
    rank_slowdowns,
)
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import schedule_of, uses_simulated_times
from simcluster.scenario.scope import ANY_JOB, EVERYWHERE, FastPath, Limit, parse_paths
from simcluster.schedules.actions import Kind
from simcluster.schedules.zb_auto import Times
from simcluster.symmetry.folding import Folding, Symmetry
from simcluster.topology import Cluster
from simcluster.traffic.methods import Methods

_FAULTS = dict.fromkeys(
    ("slow_gpu", "speeds", "jitter", "host_stall", "slow_link", "nic_speeds", "link_flap", "background_load",
     "sequence_lengths", "expert_imbalance"),
    lambda fault: "",
)  # fmt: skip

_SAVED = parse_paths("checkpoint: after mode to bytes_per_parameter place")
_LOADED = parse_paths("data.loader: batch rate workers prefetch jitter")  # stalls of hosts
_OUTER = parse_paths("training.outer: every workers bytes_per_parameter parts beside")
_FREE = EVERYWHERE | ANY_JOB | _SAVED | _LOADED | _OUTER

FOLDING = FastPath(
    "folding",
    free=_FREE,
    limited={
        "collectives.detail": Limit("ranks are not equal in steps of collectives", ("flow",)),
        "model.mixer": Limit("", (None, "attention")),
    },
    faults=_FAULTS,
)


@dataclass(frozen=True, slots=True)
class JobTimes:
    """Simulated pass and send times (s) of a job on its cluster, without faults."""

    job: Job
    cluster: Cluster
    methods: Methods

    def balanced_slices(self) -> Slices:
        """Partition the layers so that the slowest slice's forward plus backward is as short as possible."""
        model, schedule, passes = self.job.model, self.job.schedule, self.job.passes
        sorts = {model.has_experts(layer): layer for layer in range(model.layers)}
        parts = (Pass((), embedding=True), Pass((), lm_head=True), *(Pass((layer,)) for layer in sorts.values()))
        segments = [passes.segment(kind, part) for part in parts for kind in "FB"]
        longest = [max(times) for times in zip(*self._segment_seconds([segments] * self.job.plan.pp), strict=True)]
        first, last, *layers = (sum(longest[place : place + 2]) for place in range(0, len(longest), 2))
        seconds = dict(zip(sorts, layers, strict=True))
        each = [seconds[model.has_experts(layer)] for layer in range(model.layers)]
        return balance_layers(each, first, last, len(schedule.routes[0]),
                        empty_ends=schedule.may_have_empty_ends)  # fmt: skip

    def schedule_times(self) -> tuple[Times, float]:
        """Simulate the times (s) of each stage's F, I and W passes, and of the slowest send.

        F is the forward pass, I the input gradient and W the weight gradient of the stage's first chunk.
        """
        job = self.job
        parts = [
            replace(job.whole(stage, 0), boundary=job.gather_boundary and stage > 0) for stage in range(job.plan.pp)
        ]
        times_of = self._segment_seconds([[job.passes.segment(kind, part) for kind in "FIW"] for part in parts])
        seconds = {(kind, stage): time for stage, times in enumerate(times_of)
                   for kind, time in zip("FIW", times, strict=True)}  # fmt: skip

        def costs(kind: Kind, stage: int, chunk: int) -> float:
            return seconds[kind, stage]

        return costs, self._longest_send()

    def _longest_send(self) -> float:
        programs, pp = [], self.job.plan.pp
        for stage in range(pp):
            items = []
            if stage < pp - 1:
                send = Segment((Op(Transfer(stage + 1, self.job.send_bytes), "pp", "send", "activation"),))
                needs = (Need(stage - 1, ("send", stage - 1)),) if stage else ()
                items.append(Item(send, ("send", stage), needs, microbatch=0))
            programs.append(StageProgram(stage, {MAIN: items}))
        return max((time for times in self._item_seconds(programs) for time in times), default=0.0)

    def _segment_seconds(self, segments: Sequence[Sequence[Segment]]) -> list[list[float]]:
        programs = []
        for stage, mine in enumerate(segments):
            items = [Item(segment, number, microbatch=number) for number, segment in enumerate(mine)]
            programs.append(StageProgram(stage, {MAIN: items}))
        return self._item_seconds(programs)

    def _item_seconds(self, programs: Sequence[StageProgram]) -> list[list[float]]:
        plan, cluster = self.job.plan, self.cluster
        capacity, slowness = cluster.link_capacity, [1.0] * plan.num_ranks
        folding = Symmetry(programs, plan, cluster, self.methods).folding(capacity, slowness)

        def simulated() -> Record:
            return simulate_job(tabulate(programs, plan, cluster, capacity, folding, slowness=slowness))

        record = simulate_on_exact_grid(simulated)
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
    """How collectives are simulated: algorithms, as flows or hop by hop, interference with compute.

    ``steps``: hop by hop. ``interference`` is the effect of communication on concurrent computation, None for none.
    """

    methods: Methods
    steps: bool = False
    interference: Interference | None = None


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """Job, stage ops and equal ranks of a scenario, valid whatever faults it has.

    ``faults`` are those for which ``facts`` hold.
    """

    job: Job
    facts: Facts
    faults: Sequence[Fault]
    programs: Sequence[StageProgram]
    choices: CollectiveOptions
    symmetry: Symmetry


@pause_gc()
@report_phase("planning")
def plan_step(scenario: Scenario, change: EditPrograms = list, *, trains: bool = True) -> PlannedStep:
    """Plan the ops of every stage of a scenario's job; ``change`` may edit them.

    Faults have no effect here. ``trains=False`` plans the forward passes of one step alone.
    """
    report_estimate(scenario.name, estimate_seconds(scenario))
    job, facts = plan_job(scenario, scenario.cluster.device)
    job = job if trains else job.forward_only()
    return plan_with_programs(scenario, job, facts, change(stage_programs(job)))


def plan_with_programs(scenario: Scenario, job: Job, facts: Facts, programs: Sequence[StageProgram]) -> PlannedStep:
    """Return the plan of a scenario whose job and stage ops are already known."""
    choices = collective_options(scenario)
    symmetry = Symmetry(programs, job.plan, scenario.cluster.built, choices.methods)
    return PlannedStep(job, facts, scenario.faults, programs, choices, symmetry)


class FoldedStep(NamedTuple):
    """A step ready to simulate: cluster and disturbances under the present faults, equal ranks and links."""

    cluster: Cluster
    disturbances: Disturbances
    folding: Folding


@report_phase("preparing")
def fold_step(
    scenario: Scenario,
    planned: PlannedStep,
    *,
    folded: bool = True,
) -> FoldedStep:
    """Find the equal ranks, groups and links of a planned scenario under its present faults."""
    job = planned.job
    cluster = scenario.cluster.built
    if scenario.faults:
        cluster = apply_permanent_faults(scenario.faults, cluster, scenario.seed)
    disturbances = disturbances_of(scenario, job.plan, cluster, saved=job.saved)
    rates = cluster.link_capacity
    if folded and is_foldable(scenario):
        folding = planned.symmetry.folding(rates, rank_slowdowns(scenario), disturbances)
    else:
        folding = planned.symmetry.unfolded(len(rates))
    return FoldedStep(cluster, disturbances, folding)


@report_phase("preparing")
def tabulate_step(scenario: Scenario, planned: PlannedStep, step: FoldedStep) -> JobTables:
    """Return the compiled engine's input tables of a folded step."""
    return tabulate(
        planned.programs,
        planned.job.plan,
        step.cluster,
        step.cluster.link_capacity,
        step.folding,
        slowness=rank_slowdowns(scenario),
        disturbances=step.disturbances,
        interference=planned.choices.interference,
        in_steps=planned.choices.steps,
    )


def plan_job(scenario: Scenario, device: Device) -> tuple[Job, Facts]:
    """Return the scenario's job, and the figures (FLOP, tokens, memory) known before simulation."""
    job = optimize_by_times(scenario, job_of(scenario, device))
    job = replace(job, saved=plan_saved_parts(scenario, job)) if scenario.checkpoint else job
    return job, facts_with_memory(scenario, device, job)


def optimize_by_times(scenario: Scenario, job: Job) -> Job:
    """Split layers and optimize the schedule by simulated times, where the scenario asks for it."""
    cut = scenario.pipeline.layers_per_stage == "auto"
    if not cut and not uses_simulated_times(scenario):
        return job
    cluster, methods = scenario.cluster.built, replace(collective_methods(scenario), in_rounds=False)
    if cut:
        job = replace(job, slices=JobTimes(job, cluster, methods).balanced_slices())
    if uses_simulated_times(scenario):
        job = replace(job, schedule=schedule_of(scenario, *JobTimes(job, cluster, methods).schedule_times()))
    return job


def collective_options(scenario: Scenario) -> CollectiveOptions:
    """Return the simulation options of the scenario's collectives."""
    in_steps = scenario.collectives.detail == "steps"
    return CollectiveOptions(
        methods=collective_methods(scenario),
        steps=in_steps,
        interference=None if in_steps else interference_of(scenario, scenario.cluster.device),
    )


def is_foldable(*scenarios: Scenario) -> bool:
    """Return whether equal ranks of these scenarios may be simulated as one (``FOLDING``)."""
    return not any(map(FOLDING.obstacle, scenarios))
