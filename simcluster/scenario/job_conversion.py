"""Conversion of a scenario to a planning job: passes, data parallelism, disturbances and step counts.

Pure functions of a scenario, with those of ``schedule_plan`` and ``memory_plan``. Nothing is simulated: where simulated
times determine the schedule or the layers per stage, mean times and an even division are used (``step_plan`` replaces
them).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING

from simcluster.base.link_columns import LinkValues
from simcluster.collectives.token_relay import ExpertRouting
from simcluster.devices.device import Device, kernel_sequence_seconds, memory_kernel_seconds
from simcluster.devices.interference import Interference
from simcluster.devices.sensitivity import make_interference, make_sensitivity_function
from simcluster.devices.software import Software, expected_latest_delay
from simcluster.devices.step_end_passes import Pass, fsdp_copy_seconds, gradient_pass_seconds, parameter_pass_seconds
from simcluster.faults.fault_spec import JobContext
from simcluster.faults.link_capacities import capacity_profiles
from simcluster.faults.rank_effects import image_loads, mean_attention_load, rank_disturbances
from simcluster.faults.rank_effects import permanent_slowdowns as slow_ranks
from simcluster.model.encoder import ENCODER
from simcluster.model.flops import hardware_flops_per_sequence, model_flops_per_sequence
from simcluster.model.recipes import Recipe
from simcluster.model.transformer import Model
from simcluster.planning.checkpoint import SimulatedCheckpoint
from simcluster.planning.disturbances import UNDISTURBED, Disturbances
from simcluster.planning.footprint import Footprint, JobFacts
from simcluster.planning.job import DataParallelOptions, FsdpOptions, Job, OffloadOptions
from simcluster.planning.optimizer import UpdateContext, get_optimizer_class
from simcluster.planning.pass_segments import CachedPassSegmentMaker
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.segment_builder import NO_HOST_COSTS, HostLaunchTimes, cache_timer
from simcluster.scenario.memory_plan import (
    ELEMENT_BYTES,
    footprints_of,
    gathered_weight_of,
    offload_of,
    platform_of,
    recipe_of,
    shape_of,
)
from simcluster.scenario.schedule_plan import batch_sizes_of, outer_step_of, plan_of, planned_slices_of, schedule_of
from simcluster.scenario.sections import HostOffload
from simcluster.topology import Cluster
from simcluster.traffic.collective_methods import MethodChooser
from simcluster.traffic.traffic import Fabric, relay_link_times

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario


def pass_maker_of(scenario: Scenario, device: Device) -> CachedPassSegmentMaker:
    """Return the maker of op segments for the forward and backward passes of a scenario."""
    precision = scenario.training.precision.removesuffix("-mixed")
    timer = cache_timer(partial(kernel_sequence_seconds, device, precision=precision))
    sensitivity = make_sensitivity_function(device, interference_of(scenario, device), precision)
    return CachedPassSegmentMaker(
        scenario.model,
        shape_of(scenario),
        timer,
        overlap_tensor=scenario.overlap.tensor,
        tensor_pieces=scenario.overlap.tensor_pieces,
        overlap_experts=scenario.overlap.experts,
        dispatch=scenario.parallel.expert_dispatch,
        sensitivity=sensitivity,
        attention=lambda kernels: timer(
            [each for each in kernels if each.kind == "attention" and not each.name.startswith(ENCODER)]
        ),
        issue=host_costs_of(scenario) if scenario.software else NO_HOST_COSTS,
    )


def job_of(scenario: Scenario, device: Device, passes: CachedPassSegmentMaker | None = None) -> Job:
    """Return the planning job of a scenario; an existing maker of pass ops (``passes``) can be reused."""
    passes = passes or pass_maker_of(scenario, device)
    model, schedule = scenario.model, schedule_of(scenario)
    plan = plan_of(scenario, schedule)
    gathers = plan.tp > 1 and scenario.pipeline.scatter_gather and not scenario.parallel.sequence_parallel
    return Job(
        model=model,
        plan=plan,
        schedule=schedule,
        slices=planned_slices_of(scenario, schedule),
        pass_maker=passes,
        data_parallel=data_parallel_options_of(scenario, device, plan, recipe_of(scenario)),
        send_bytes=stage_send_bytes_of(scenario, passes),
        gather_boundary=gathers,
        overlap_sends=scenario.overlap.pipeline,
        steps=scenario.steps,
        rendezvous={"async": False, "rendezvous": True}[scenario.pipeline.p2p],
        offload=offload_of(scenario) if scenario.memory.offload != HostOffload() else OffloadOptions(),
        overlap_pairs=scenario.overlap.pairs,
        casts_weights=passes.casts,
    )


def stage_send_bytes_of(scenario: Scenario, passes: CachedPassSegmentMaker) -> float:
    """Return the bytes per microbatch that each rank sends to the next pipeline stage."""
    split = scenario.parallel.sequence_parallel or scenario.pipeline.scatter_gather
    return passes.boundary_bytes / (scenario.parallel.tp if split else 1)


def plan_footprints(scenario: Scenario) -> tuple[Footprint, ...]:
    """Return the memory footprint of each pipeline stage, computed without simulation."""
    return footprints_of(scenario, job_of(scenario, scenario.cluster.device))


def job_facts_with_memory(scenario: Scenario, device: Device, job: Job) -> JobFacts:
    """Return the tokens, FLOP and peak rates of a step, and the memory footprint of each pipeline stage."""
    return replace(job_facts_of(scenario, device), footprints=footprints_of(scenario, job))


def job_facts_of(scenario: Scenario, device: Device) -> JobFacts:
    """Return the tokens, FLOP and GPU peak rates of a scenario's step, without memory footprints."""
    model, training = scenario.model, scenario.training
    faults = scenario.faults
    attention = mean_attention_load(faults, scenario.seed, batch_sizes_of(scenario), scenario.dp) if faults else 1.0
    loads = image_loads(faults, scenario.seed, batch_sizes_of(scenario), scenario.dp)
    images = float(loads.factors.mean()) if loads else 1.0
    shape = shape_of(scenario)
    modules = tuple(name for name in shape.modules if name != "core_attn" or shape.recomputes_core)
    hardware = hardware_flops_per_sequence(
        model, training.recompute, modules=modules, every=training.recompute_every, attention=attention, images=images
    )
    whole = model_flops_per_sequence(model, attention=attention, images=images)
    real, seen = _real_shares(scenario, attention)
    precision = training.precision.removesuffix("-mixed")
    return JobFacts(
        ranks=scenario.gpus,
        samples=training.global_batch,
        tokens=scenario.tokens_per_step,
        model_flops=whole * training.global_batch,
        real_flops=(whole if real == 1 else _flops_of_real_tokens(model, real, seen, images)) * training.global_batch,
        real=real,
        hardware_flops=hardware * training.global_batch,
        attention=attention,
        peak_flops=device.peak_flops(precision),
        memory=device.memory,
        footprints=(),
        precision=precision,
        bf16_flops=device.peak.bf16 or 0.0,
    )


def unpadded_tokens_per_step(scenario: Scenario) -> float:
    """Return the number of tokens per step that are not padding."""
    return _real_shares(scenario, 1.0)[0] * scenario.tokens_per_step


def _real_shares(scenario: Scenario, attention: float) -> tuple[float, float]:
    if scenario.data is None or scenario.data.documents is None:
        return 1.0, attention
    packed = scenario.data.packing_statistics(scenario.seed, batch_sizes_of(scenario), scenario.dp)
    masked = {"document": True, "none": False}[scenario.data.mask]
    return packed.utilization, attention if masked else packed.unmasked_attention


def _flops_of_real_tokens(model: Model, real: float, attention: float, images: float) -> float:
    without = model_flops_per_sequence(model, attention=0.0, images=0.0)
    return real * without + model_flops_per_sequence(model, attention=attention, images=images) - without


def rank_slowdowns(scenario: Scenario) -> list[float]:
    """Return the constant factor by which faults slow down the compute of every rank."""
    if not scenario.faults:
        return [1.0] * scenario.gpus
    return slow_ranks(scenario.faults, scenario.cluster.built.host_of[: scenario.gpus], scenario.seed)


def disturbances_of(
    scenario: Scenario, plan: ParallelPlan, cluster: Cluster, saved: SimulatedCheckpoint | None = None
) -> Disturbances:
    """Return which ranks and links of a job are slowed down, by faults or by a checkpoint."""
    found = UNDISTURBED
    if scenario.faults:
        setting = fault_context(scenario, plan, cluster.host_of[: scenario.gpus], cluster, cluster.wiring.link_capacity)
        capacities = capacity_profiles(scenario.faults, cluster, scenario.seed)
        found = replace(rank_disturbances(scenario.faults, plan, setting), capacities=capacities)
    return found.with_program_change(saved.symmetry_key, saved.change_program) if saved and saved.is_uneven else found


def fault_context(
    scenario: Scenario, plan: ParallelPlan, host_of: Sequence[int], fabric: Fabric, capacity: LinkValues
) -> JobContext:  # fmt: skip
    """Return the properties of a job that faults depend on: ranks, hosts, batch, and links of relayed tokens."""
    routes = relayed_routes(scenario)
    relays = partial(relay_link_times, fabric, capacity, routes) if routes else None
    return JobContext(plan.list_workers, host_of, scenario.seed, batch_sizes_of(scenario), relays)


def collective_methods(scenario: Scenario) -> MethodChooser:
    """Return the algorithms and simulation options of the scenario's collectives."""
    chosen = {kind: getattr(scenario.collectives, kind) for kind in ("all_reduce", "reduce_scatter", "all_gather")}
    return MethodChooser(
        chosen,
        platform=platform_of(scenario),
        in_rounds={"flow": False, "steps": True}[scenario.collectives.detail],
        factors=scenario.cluster.scale.nccl_factors,
        routes=relayed_routes(scenario),
        reach=scenario.parallel.expert_dispatch.reach,
    )


def relayed_routes(scenario: Scenario) -> ExpertRouting | None:
    """Return the routes of tokens that an expert dispatcher relays between nodes; None for other dispatchers."""
    moe = scenario.model.moe
    return moe.token_routes if moe and scenario.parallel.expert_dispatch.relays_tokens else None


def interference_of(scenario: Scenario, device: Device) -> Interference | None:
    """Return how communication and compute slow each other down on a GPU; None without interference."""
    held = scenario.parallel.expert_dispatch.dispatch_sms if scenario.model.moe else 0
    return make_interference(device, scenario.overlap.interference, dispatcher=held)


# --- what its software makes of a step beside its passes: time to issue work, updates of parameters -------------------


_BUCKET_PARAMETERS = 40e6  # Megatron-LM: max(40e6, 1e6 x dp) parameters a bucket
_BUCKET_PARAMETERS_PER_REPLICA = 1e6


def host_costs_of(scenario: Scenario) -> HostLaunchTimes:
    """Return the host's times (s) to launch kernels and collectives, scaled by the what-if factor ``launch``."""
    software = scenario.software
    if software is None:
        return NO_HOST_COSTS
    slower = scenario.cluster.scale.launch
    late = software.late * expected_latest_delay(scenario.parallel.tp)
    host = (software.kernel, software.collective, software.microbatch)
    idle = (software.gap, late, software.loss, software.sync, software.launch)
    return HostLaunchTimes(*(seconds * slower for seconds in host + idle))


def data_parallel_options_of(
    scenario: Scenario, device: Device, plan: ParallelPlan, recipe: Recipe
) -> DataParallelOptions:
    """Return how replicas reduce gradients and update parameters, with the times of the update."""
    whole, zero = ELEMENT_BYTES[scenario.training.precision], scenario.parallel.zero
    gathered = whole if zero == 3 else gathered_weight_of(scenario)
    usual = max(_BUCKET_PARAMETERS, _BUCKET_PARAMETERS_PER_REPLICA * plan.replicas) * recipe.gradient
    bucket = scenario.overlap.bucket_size or usual

    software, fsdp = scenario.software or Software(), scenario.fsdp
    lists = software.shards == "lists"
    again = lists and scenario.training.recompute == "full"
    copies = {"fused": False, "passes": True}[software.optimizer]
    gradients = software.gradients if plan.replicas > 1 else "averaged"

    def pass_seconds_of(parameters: float, *kinds: Pass) -> float:
        seconds = (parameter_pass_seconds(device, parameters, kind, recipe=recipe) for kind in kinds)
        return reduce(add, seconds)  # in this order: sum() rounds in another way

    def update_seconds(parameters: float) -> float:
        copied: tuple[Pass, ...] = ("copy",) if copies and recipe.master else ()
        return pass_seconds_of(parameters, "clip", "optimizer", *copied, "zero")

    def norm_seconds(parameters: float) -> float:
        scaled: tuple[Pass, ...] = ("unscale",) if scenario.training.precision == "fp16-mixed" else ()
        if copies and plan.replicas > 1:  # the sum over replicas is divided by their number in a pass of its own
            scaled += ("unscale",)
        return pass_seconds_of(parameters, *scaled, "norm")

    in_bucket = bucket / recipe.gradient if scenario.overlap.grad_reduce else math.inf  # Megatron-LM: else there is one
    memory, kernels = partial(memory_kernel_seconds, device), partial(kernel_sequence_seconds, device, precision="bf16")
    updated = UpdateContext(scenario.model, plan, recipe, zero, in_bucket, memory, kernels)
    return DataParallelOptions(
        zero=zero,
        overlap_reduce=scenario.overlap.grad_reduce,
        overlap_gather=scenario.overlap.param_gather,
        gradient_bytes=recipe.gradient,
        parameter_bytes=gathered,
        bucket_bytes=bucket,
        optimizer_seconds=update_seconds,
        norm_seconds=norm_seconds,
        fsdp=FsdpOptions(
            unit_layers=fsdp.unit_layers,
            prefetch=fsdp.prefetch,
            reshard_after_forward=fsdp.reshard_after_forward is not False,
            uses_two_lanes={"one": False, "two": True}[fsdp.lanes],
            reduce_every_microbatch=fsdp.sync_every_microbatch,
            gather_by_matrix=lists,
            piece_seconds=software.piece,
            gathers_twice=again,
        ),
        zero_seconds=lambda parameters: pass_seconds_of(parameters, "zero"),
        buffer_seconds=partial(gradient_pass_seconds, device, recipe=recipe, gradients=gradients),
        copy_seconds=partial(fsdp_copy_seconds, device, recipe=recipe, shards=software.shards, gathers=2 + again),
        optimizer=get_optimizer_class(scenario.training.optimizer).from_training_section(updated, scenario.training),
        outer_step=outer_step_of(scenario, device, recipe),
    )
