"""The door: a scenario in, a result out.  The only place where planning, engine and scenario meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from simcluster.collector import collector_off
from simcluster.devices.device import Device, kernels_seconds
from simcluster.devices.sensitivity import interference_on, sensitivity_on
from simcluster.errors import DeadlockError
from simcluster.faults import Fault
from simcluster.faults.where import OnLinks
from simcluster.lowering.between import StepsOf
from simcluster.lowering.lower import Choices, Lowered, lower
from simcluster.lowering.program import Engine
from simcluster.lowering.trusting import Trust
from simcluster.lowering.views import Views
from simcluster.model.flops import hardware_flops_per_sequence, model_flops_per_sequence
from simcluster.nccl import load_platform
from simcluster.planning.disturbances import UNDISTURBED, Disturbances
from simcluster.planning.disturbed_links import capacity_profiles, permanently
from simcluster.planning.disturbed_ranks import Batch, RankPrograms, mean_attention, speed_profiles
from simcluster.planning.disturbed_ranks import slowness as slow_ranks
from simcluster.planning.ops import StageProgram
from simcluster.planning.parallel import Plan
from simcluster.planning.segments import Passes, by_heart
from simcluster.planning.stages import stage_programs
from simcluster.planning.step_plan import Job, Slices
from simcluster.reference.communication import Communication
from simcluster.result import Facts, Result
from simcluster.scenario.memory_plan import (
    footprints_of,
    offload_of,
    plan_of,
    recipe_of,
    shape_of,
)
from simcluster.scenario.pipeline_rules import goes_by_own_times, schedule_of, slices_of
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.updates_plan import data_parallel_of, issue_of
from simcluster.schedules import Schedule, ScheduleFunction
from simcluster.simulating.by_reference import play_plainly
from simcluster.simulating.network import Network
from simcluster.simulating.own_times import OwnTimes, boundary_passes
from simcluster.simulating.players import play_by
from simcluster.simulating.record import Record
from simcluster.simulating.stepwise import Stepwise
from simcluster.topology import Cluster
from simcluster.traffic.methods import Methods

_PRECISION = {"bf16-mixed": "bf16", "fp16-mixed": "fp16", "fp8-mixed": "fp8", "fp32": "fp32"}


def simulate(
    scenario: Scenario,
    *,
    schedule: Schedule | ScheduleFunction | None = None,
    folded: bool = True,
    collapsed: bool = True,
    engine: Engine | None = None,
) -> Result:
    """Replay the scenario's steps.

    ``schedule`` takes the place of the scenario's: a Schedule, or a function (stages, microbatches, chunks) that
    returns one; InputError, with the place marked, if it is broken.  ``folded=False`` plays every rank by itself,
    ``collapsed=False`` every op, with the same result to the bit.  ``engine`` takes the place of the scenario's: the
    "reference" is the plain meaning of a step, which all others equal (``simcluster.reference.plain``).  With faults,
    the step is replayed without them as well, once somebody asks for the slowdown.
    """
    if schedule is not None:
        scenario = scenario.with_schedule(schedule)
    if engine is not None:
        scenario = scenario.model_copy(update={"engine": engine})
    planned = plan(scenario)

    def clean() -> float:
        return replay(scenario.without_faults(), folded=folded, collapsed=collapsed, planned=planned).step_time

    without = clean if scenario.faults else None
    return replay(scenario, folded=folded, collapsed=collapsed, clean=without, planned=planned)


Change = Callable[[Sequence[StageProgram]], Sequence[StageProgram]]
"""Makes other programs of a job's: what if some of their ops were different?"""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a scenario's faults do not change: the job, its stages' programs, how its collectives are done, and the
    windows through which it may be looked at; and what is known of the job under its own ``faults``."""

    job: Job
    facts: Facts
    faults: Sequence[Fault]
    programs: Sequence[StageProgram]
    choices: Choices
    views: Views


@dataclass(frozen=True, slots=True)
class Prepared:
    """A scenario's step before the clock starts: the program, what is known of the job, and the cluster with what is
    wrong with it for ever."""

    lowered: Lowered
    facts: Facts
    cluster: Cluster
    schedule: str


@collector_off()
def plan(scenario: Scenario, change: Change = list) -> Planned:
    """Plan the scenario, whatever faults it has."""
    job, facts = plan_job(scenario, scenario.cluster.device)
    programs, choices = change(stage_programs(job)), choices_of(scenario, folded=True)
    views = Views(programs, job.plan, scenario.cluster.built, choices.methods)
    return Planned(job, facts, scenario.faults, programs, choices, views)


def _facts_under(scenario: Scenario, made: Planned) -> Facts:
    """What is known of a planned job with the faults that the scenario has."""
    if scenario.faults == made.faults:
        return made.facts
    return _complete(facts_of(scenario, scenario.cluster.device), scenario, made.job)


def prepare(
    scenario: Scenario,
    *,
    folded: bool = True,
    collapsed: bool = True,
    change: Change = list,
    watched: Sequence[OnLinks] = (),
    trust: Trust | None = None,
    planned: Planned | None = None,
) -> Prepared:
    """Plan the scenario, or take it as ``planned``, and lower it to a program, with its programs changed if a change is
    given.

    The links of ``watched`` faults are played apart from others, as if something could happen on them; ``trust`` says
    which links may hold somebody up, of a scenario without faults.
    """
    made = planned or plan(scenario, change)
    healthy = scenario.cluster.built
    cluster = healthy.scaled(permanently(scenario.faults, healthy))
    lowered = lower(
        made.programs,
        made.job.plan,
        cluster,
        cluster.capacity,
        slowness=slowness(scenario),
        choices=replace(made.choices, folded=folded, collapsed=collapsed),
        disturbances=disturbances_of(scenario, made.job.plan, cluster, watched),
        trust=trust,
        views=made.views,
    )
    return Prepared(lowered, _facts_under(scenario, made), cluster, made.job.schedule.name)


@collector_off()
def replay(
    scenario: Scenario,
    *,
    folded: bool = True,
    collapsed: bool = True,
    clean: Callable[[], float] | None = None,
    change: Change = list,
    watched: Sequence[OnLinks] = (),
    trust: Trust | None = None,
    planned: Planned | None = None,
) -> Result:
    """Replay the scenario once, with its programs changed if a change is given, on a trust if one is (``prepare``);
    ``clean`` says how long its step takes without its faults."""
    plainly = scenario.engine == "reference"
    planned = planned or plan(scenario, change)
    made = prepare(
        scenario, folded=folded and not plainly, collapsed=collapsed and not plainly, watched=watched, trust=trust,
        planned=planned,
    )  # fmt: skip
    lowered = made.lowered
    try:
        if plainly:
            record = _by_reference(scenario, planned, made)
        else:
            steps = [partial(_stepwise, made.cluster, steps) for steps in lowered.steps]
            record = play_by(scenario.engine, lowered.played, lowered.capacity, steps)
    except DeadlockError as error:
        if scenario.pipeline.p2p == "async":
            raise
        raise DeadlockError(
            f"{error}\n  The order of {made.schedule} does not work in blocking pairs (pipeline.p2p: rendezvous): "
            f"a send waits for a receive that comes later; use pipeline.p2p: async, or another schedule"
        ) from None
    return Result(
        lowered=lowered,
        record=record,
        steps=scenario.steps,
        ranks=range(made.facts.ranks),
        scenario=scenario,
        facts=made.facts,
        clean=clean,
    )


def _by_reference(scenario: Scenario, planned: Planned, made: Prepared) -> Record:
    """The step as the reference interpreter plays it."""
    choices, layout = planned.choices, planned.job.plan
    return play_plainly(
        made.lowered.program,
        planned.programs,
        layout,
        made.cluster,
        Communication(layout, made.cluster, choices.methods, choices.interference),
        slowness(scenario),
        disturbances_of(scenario, layout, made.cluster),
        in_steps=choices.steps,
    )


def plan_job(scenario: Scenario, device: Device) -> tuple[Job, Facts]:
    """Everything that is known before the clock starts."""
    job = job_of(scenario, device, passes_of(scenario, device))
    return job, _complete(facts_of(scenario, device), scenario, job)


def _complete(facts: Facts, scenario: Scenario, job: Job) -> Facts:
    """With what follows from the job: memory and schedule."""
    return replace(facts, footprints=footprints_of(scenario, job), schedule=job.schedule)


def passes_of(scenario: Scenario, device: Device) -> Passes:
    """What makes the segments of the scenario's passes."""
    precision = _PRECISION[scenario.training.precision]
    timer = by_heart(partial(kernels_seconds, device, precision=precision))
    sensitivity = sensitivity_on(device, interference_on(device, scenario.overlap.interference), precision)
    return Passes(
        scenario.model,
        shape_of(scenario),
        timer,
        overlap_tensor=scenario.overlap.tensor,
        tensor_pieces=scenario.overlap.tensor_pieces,
        overlap_experts=scenario.overlap.experts,
        sensitivity=sensitivity,
        attention=lambda kernels: timer([kernel for kernel in kernels if kernel.kind == "attention"]),
        issue=issue_of(scenario),
    )


def job_of(scenario: Scenario, device: Device, passes: Passes) -> Job:
    """Everything that decides the stages' programs."""
    plan, recipe = plan_of(scenario), recipe_of(scenario)
    split = plan.tp > 1 and (scenario.parallel.sequence_parallel or scenario.pipeline.scatter_gather)
    send_bytes = passes.activation_bytes / (plan.tp if split else 1)
    schedule, slices = _arrange(scenario, plan, passes, send_bytes, split=split)
    return Job(
        model=scenario.model,
        plan=plan,
        schedule=schedule,
        slices=slices,
        passes=passes,
        data_parallel=data_parallel_of(scenario, device, plan, recipe),
        send_bytes=send_bytes,
        gather_boundary=split and not scenario.parallel.sequence_parallel,
        overlap_sends=scenario.overlap.pipeline,
        steps=scenario.steps,
        rendezvous=scenario.pipeline.p2p == "rendezvous",
        offload=offload_of(scenario),
        overlap_pairs=scenario.overlap.pairs,
    )


def facts_of(scenario: Scenario, device: Device) -> Facts:
    """What the scenario's step is worth, without what it takes of memory and its schedule."""
    model, training = scenario.model, scenario.training
    attention = mean_attention(scenario.faults, scenario.seed, batch_of(scenario), scenario.dp)
    leaves = training.recompute == "selective" and not shape_of(scenario).core_again
    again = "none" if leaves else training.recompute
    hardware = hardware_flops_per_sequence(model, again, every=training.recompute_every, attention=attention)
    return Facts(
        ranks=scenario.gpus,
        samples=training.global_batch,
        tokens=scenario.tokens_per_step,
        model_flops=model_flops_per_sequence(model, attention=attention) * training.global_batch,
        hardware_flops=hardware * training.global_batch,
        attention=attention,
        peak_flops=device.peak_flops(_PRECISION[training.precision]),
        memory=device.memory,
        footprints=(),
    )


def _arrange(
    scenario: Scenario, plan: Plan, passes: Passes, send_bytes: float, *, split: bool
) -> tuple[Schedule, Slices]:
    """The order of microbatches and the cut of the model, by the times of the run where the scenario says so."""
    flow = scenario.collectives.model_copy(update={"detail": "flow"})
    methods = choices_of(scenario.model_copy(update={"collectives": flow}), folded=True).methods
    own = OwnTimes(plan, scenario.cluster.built, methods, passes)
    schedule = schedule_of(scenario)
    slices = slices_of(scenario, schedule) or own.cut(scenario.model, schedule)
    if goes_by_own_times(scenario):
        whole = [slices.whole(schedule.slice_of(stage, 0)) for stage in range(plan.pp)]
        gathered = split and not scenario.parallel.sequence_parallel
        times = own.of_schedule(boundary_passes(whole, gathered=gathered), send_bytes)
        schedule = schedule_of(scenario, *times)
    return schedule, slices


def slowness(scenario: Scenario) -> list[float]:
    """What always multiplies every rank's compute times."""
    return slow_ranks(scenario.faults, scenario.cluster.built.host_of[: scenario.gpus])


def disturbances_of(
    scenario: Scenario, plan: Plan, cluster: Cluster, watched: Sequence[OnLinks] = ()
) -> Disturbances:  # fmt: skip
    """What else the scenario's faults make of its ranks and of the cluster's links."""
    if not scenario.faults and not watched:
        return UNDISTURBED
    faults, hosts, seed = scenario.faults, cluster.host_of[: scenario.gpus], scenario.seed
    ranks = RankPrograms(faults, plan, hosts, seed, batch_of(scenario))
    return Disturbances(
        speeds=speed_profiles(faults, hosts),
        capacities=capacity_profiles(faults, cluster, seed, watched),
        colour=ranks.colour if ranks.uneven else UNDISTURBED.colour,
        program=ranks.program,
    )


def batch_of(scenario: Scenario) -> Batch:
    """What a step of the scenario works through."""
    moe = scenario.model.moe
    return Batch(
        scenario.steps,
        scenario.microbatches,
        scenario.training.micro_batch,
        scenario.model.sequence_length,
        experts=moe.experts if moe else 0,
    )


def choices_of(scenario: Scenario, *, folded: bool) -> Choices:
    """How the scenario wants its collectives played."""
    chosen = scenario.collectives
    named = {kind: getattr(chosen, kind) for kind in ("all_reduce", "reduce_scatter", "all_gather")}
    platform = scenario.cluster.built.nccl if chosen.nccl == "auto" else chosen.nccl
    in_steps = chosen.detail == "steps"
    methods = Methods(
        named,
        platform=None if platform in (None, "none") else load_platform(platform),
        in_rounds=in_steps,
        factors=scenario.cluster.scale.pace,
    )
    interference = None if in_steps else interference_on(scenario.cluster.device, scenario.overlap.interference)
    return Choices(methods=methods, steps=in_steps, folded=folded, interference=interference)


def _stepwise(cluster: Cluster, steps: StepsOf, network: Network, on_done: Callable[[int], object]) -> Stepwise:
    return Stepwise(network, cluster, steps.gpus, steps.phases, steps.size, on_done, steps.pace)
