"""A scenario as planning knows it: its job, what is known of it before the clock starts, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from simcluster.devices.device import Device, kernels_seconds
from simcluster.devices.sensitivity import interference_on, sensitivity_on
from simcluster.faults.capacities import capacity_profiles
from simcluster.faults.ranks import mean_attention, rank_disturbances
from simcluster.faults.ranks import slowness as slow_ranks
from simcluster.faults.spec import Batch, Setting
from simcluster.faults.where import OnLinks
from simcluster.lowering.lower import Choices
from simcluster.model.flops import hardware_flops_per_sequence, model_flops_per_sequence
from simcluster.nccl import load_platform
from simcluster.planning.disturbances import UNDISTURBED, Disturbances
from simcluster.planning.parallel import Plan
from simcluster.planning.segments import Passes, by_heart
from simcluster.planning.step_plan import Job, Slices
from simcluster.result import Facts
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
from simcluster.schedules import Schedule
from simcluster.simulating.own_times import OwnTimes, boundary_passes
from simcluster.topology import Cluster
from simcluster.traffic.methods import Methods

_PRECISION = {"bf16-mixed": "bf16", "fp16-mixed": "fp16", "fp8-mixed": "fp8", "fp32": "fp32"}


def plan_job(scenario: Scenario, device: Device) -> tuple[Job, Facts]:
    """Everything that is known before the clock starts."""
    job = job_of(scenario, device, passes_of(scenario, device))
    return job, completed(facts_of(scenario, device), scenario, job)


def completed(facts: Facts, scenario: Scenario, job: Job) -> Facts:
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
    faults, seed = scenario.faults, scenario.seed
    setting = Setting(plan, cluster.host_of[: scenario.gpus], seed, batch_of(scenario))
    return replace(rank_disturbances(faults, setting), capacities=capacity_profiles(faults, cluster, seed, watched))


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
