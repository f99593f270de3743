"""Conversion of a scenario to a planning job: passes, data parallelism, disturbances, and facts.

Pure functions of a scenario, with those of ``schedule_plan`` and ``memory_plan``. Nothing is simulated: where simulated
times determine the schedule or the layers per stage, mean times and an even division are used (``planned`` replaces
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
from simcluster.collectives.relayed import TokenRoutes
from simcluster.devices.device import Device, kernels_seconds, memory_seconds
from simcluster.devices.interference import Interference
from simcluster.devices.sensitivity import get_interference, make_sensitivity
from simcluster.devices.software import Software, expected_latest
from simcluster.devices.updates import Pass, buffer_seconds, pass_seconds, sharded_copy_seconds
from simcluster.faults.capacities import capacity_profiles
from simcluster.faults.ranks import mean_attention, rank_disturbances
from simcluster.faults.ranks import rank_slowness as slow_ranks
from simcluster.faults.spec import Batch, Setting
from simcluster.model.flops import hardware_flops_per_sequence, model_flops_per_sequence
from simcluster.model.recipes import Recipe
from simcluster.model.transformer import Model
from simcluster.planning.checkpoint import SavedParts
from simcluster.planning.footprint import Facts, Footprint
from simcluster.planning.job import DataParallel, Job, Offload, Sharding, Slices
from simcluster.planning.optimizer import UpdateJob, optimizer_class
from simcluster.planning.parallel import Plan
from simcluster.planning.perturbations import UNDISTURBED, Disturbances
from simcluster.planning.segment_ops import NO_HOST_COSTS, HostCosts
from simcluster.planning.segments import Passes, cache_timer
from simcluster.scenario.memory_plan import ELEMENT_BYTES, footprints_of, offload_of, platform_of, recipe_of, shape_of
from simcluster.scenario.schedule_plan import outer_update_of, plan_of, schedule_of, slices_of
from simcluster.scenario.sections import HostMemory
from simcluster.topology import Cluster
from simcluster.traffic.methods import Methods
from simcluster.traffic.traffic import Fabric, relayed_links

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario


def passes_of(scenario: Scenario, device: Device) -> Passes:
    """Return the builder of the op segments of the scenario's forward and backward passes."""
    precision = scenario.training.precision.removesuffix("-mixed")
    timer = cache_timer(partial(kernels_seconds, device, precision=precision))
    sensitivity = make_sensitivity(device, interference_of(scenario, device), precision)
    return Passes(
        scenario.model,
        shape_of(scenario),
        timer,
        overlap_tensor=scenario.overlap.tensor,
        tensor_pieces=scenario.overlap.tensor_pieces,
        overlap_experts=scenario.overlap.experts,
        dispatch=scenario.parallel.expert_dispatch,
        sensitivity=sensitivity,
        attention=lambda kernels: timer([kernel for kernel in kernels if kernel.kind == "attention"]),
        issue=host_costs_of(scenario) if scenario.software else NO_HOST_COSTS,
    )


def job_of(scenario: Scenario, device: Device, passes: Passes | None = None) -> Job:
    """Return the planning job of a scenario; ``passes`` may be given if they exist already."""
    passes = passes or passes_of(scenario, device)
    schedule = schedule_of(scenario)
    plan = plan_of(scenario, schedule)
    gathers = plan.tp > 1 and scenario.pipeline.scatter_gather and not scenario.parallel.sequence_parallel
    return Job(
        model=scenario.model,
        plan=plan,
        schedule=schedule,
        slices=slices_of(scenario, schedule) or Slices.nearly_even(scenario.model.layers, len(schedule.routes[0])),
        passes=passes,
        data_parallel=data_parallel_of(scenario, device, plan, recipe_of(scenario)),
        send_bytes=send_bytes_of(scenario, passes),
        gather_boundary=gathers,
        overlap_sends=scenario.overlap.pipeline,
        steps=scenario.steps,
        rendezvous={"async": False, "rendezvous": True}[scenario.pipeline.p2p],
        offload=offload_of(scenario) if scenario.memory.offload != HostMemory() else Offload(),
        overlap_pairs=scenario.overlap.pairs,
        casts=passes.casts,
    )


def send_bytes_of(scenario: Scenario, passes: Passes) -> float:
    """Return the bytes that each rank sends to the next pipeline stage per microbatch."""
    split = scenario.parallel.sequence_parallel or scenario.pipeline.scatter_gather
    return passes.activation_bytes / (scenario.parallel.tp if split else 1)


def planned_footprints(scenario: Scenario) -> tuple[Footprint, ...]:
    """Return the memory footprint of each stage, from planning alone."""
    return footprints_of(scenario, job_of(scenario, scenario.cluster.device))


def facts_with_memory(scenario: Scenario, device: Device, job: Job) -> Facts:
    """Return tokens, FLOP and peak rates of the scenario's step, with the memory footprint of each stage."""
    return replace(facts_of(scenario, device), footprints=footprints_of(scenario, job))


def facts_of(scenario: Scenario, device: Device) -> Facts:
    """Return tokens, FLOP and peak rates of the scenario's step, without memory footprints."""
    model, training = scenario.model, scenario.training
    faults = scenario.faults
    attention = mean_attention(faults, scenario.seed, batch_of(scenario), scenario.dp) if faults else 1.0
    shape = shape_of(scenario)
    modules = tuple(name for name in shape.modules if name != "core_attn" or shape.core_again)
    hardware = hardware_flops_per_sequence(
        model, training.recompute, modules=modules, every=training.recompute_every, attention=attention
    )
    whole = model_flops_per_sequence(model, attention=attention)
    documents = scenario.data and scenario.data.documents
    real, seen = _real_shares(scenario, attention) if documents else (1.0, attention)
    precision = training.precision.removesuffix("-mixed")
    return Facts(
        ranks=scenario.gpus,
        samples=training.global_batch,
        tokens=scenario.tokens_per_step,
        model_flops=whole * training.global_batch,
        real_flops=(whole if real == 1 else _flops_of_real(model, real, seen)) * training.global_batch,
        real=real,
        hardware_flops=hardware * training.global_batch,
        attention=attention,
        peak_flops=device.peak_flops(precision),
        memory=device.memory,
        footprints=(),
        precision=precision,
        bf16_flops=device.peak.bf16 or 0.0,
    )


def real_tokens_per_step(scenario: Scenario) -> float:
    """Return the tokens per step that are not padding."""
    return _real_shares(scenario, 1.0)[0] * scenario.tokens_per_step


def _real_shares(scenario: Scenario, attention: float) -> tuple[float, float]:
    if scenario.data is None or scenario.data.documents is None:
        return 1.0, attention
    packed = scenario.data.packing_statistics(scenario.seed, batch_of(scenario), scenario.dp)
    masked = {"document": True, "none": False}[scenario.data.mask]
    return packed.utilization, attention if masked else packed.attention_of_real


def _flops_of_real(model: Model, real: float, attention: float) -> float:
    without = model_flops_per_sequence(model, attention=0.0)
    return real * without + model_flops_per_sequence(model, attention=attention) - without


def rank_slowdowns(scenario: Scenario) -> list[float]:
    """Return the constant slowdown factor of every rank's compute."""
    if not scenario.faults:
        return [1.0] * scenario.gpus
    return slow_ranks(scenario.faults, scenario.cluster.built.host_of[: scenario.gpus], scenario.seed)


def disturbances_of(scenario: Scenario, plan: Plan, cluster: Cluster, saved: SavedParts | None = None) -> Disturbances:
    """Return how faults and a checkpoint disturb the ranks and links of a job."""
    found = UNDISTURBED
    if scenario.faults:
        faults, seed = scenario.faults, scenario.seed
        setting = fault_setting(scenario, plan, cluster.host_of[: scenario.gpus], cluster, cluster.wiring.link_capacity)
        capacities = capacity_profiles(faults, cluster, seed)
        found = replace(rank_disturbances(faults, setting), capacities=capacities)
    return found.with_program_change(saved.colour, saved.program) if saved and saved.uneven else found


def fault_setting(
    scenario: Scenario, plan: Plan, host_of: Sequence[int], fabric: Fabric, capacity: LinkValues
) -> Setting:  # fmt: skip
    """Return the job as faults see it: its ranks on these hosts, and links of healthy ``capacity`` (B/s)."""
    routes = relayed_routes(scenario)
    relays = partial(relayed_links, fabric, capacity, routes) if routes else None
    return Setting(plan, host_of, scenario.seed, batch_of(scenario), relays)


def batch_of(scenario: Scenario) -> Batch:
    """Return the batch of one step: microbatches, their size, sequence length, and expert routing."""
    moe = scenario.model.moe
    return Batch(
        scenario.steps,
        scenario.microbatches,
        scenario.training.micro_batch,
        scenario.model.sequence_length,
        experts=moe.experts if moe else 0,
        routes=moe.routes if moe else None,
        capacity=moe.capacity_shares if moe else math.inf,
    )


def collective_methods(scenario: Scenario) -> Methods:
    """Return the algorithms and simulation options of the scenario's collectives."""
    chosen = {kind: getattr(scenario.collectives, kind) for kind in ("all_reduce", "reduce_scatter", "all_gather")}
    return Methods(
        chosen,
        platform=platform_of(scenario),
        in_rounds={"flow": False, "steps": True}[scenario.collectives.detail],
        factors=scenario.cluster.scale.pace,
        routes=relayed_routes(scenario) if scenario.model.moe else None,
        reach=scenario.parallel.expert_dispatch.reach,
    )


def relayed_routes(scenario: Scenario) -> TokenRoutes | None:
    """Return the token routes of a dispatcher that relays tokens between nodes; None for others."""
    moe = scenario.model.moe
    return moe.routes if moe and scenario.parallel.expert_dispatch.relays else None


def interference_of(scenario: Scenario, device: Device) -> Interference | None:
    """Return how communication and compute slow each other down on a GPU; None if they do not."""
    held = scenario.parallel.expert_dispatch.multiprocessors if scenario.model.moe else 0
    return get_interference(device, scenario.overlap.interference, dispatcher=held)


# --- what its software makes of a step beside its passes: time to issue work, updates of parameters -------------------


_BUCKET_PARAMETERS = 40e6  # Megatron-LM: max(40e6, 1e6 x dp) parameters a bucket
_BUCKET_PARAMETERS_PER_REPLICA = 1e6


def host_costs_of(scenario: Scenario) -> HostCosts:
    """Return the host's times to launch work, scaled by the cluster's launch factor."""
    software = scenario.software
    if software is None:
        return NO_HOST_COSTS
    slower = scenario.cluster.scale.launch
    late = software.late * expected_latest(scenario.parallel.tp)
    host = (software.kernel, software.collective, software.microbatch)
    idle = (software.gap, late, software.loss, software.sync, software.launch)
    return HostCosts(*(seconds * slower for seconds in host + idle))


def data_parallel_of(scenario: Scenario, device: Device, plan: Plan, recipe: Recipe) -> DataParallel:
    """Return how replicas reduce gradients and update parameters, and how long that takes."""
    gathered = ELEMENT_BYTES[scenario.training.precision] if scenario.parallel.zero == 3 else recipe.gathered
    usual = max(_BUCKET_PARAMETERS, _BUCKET_PARAMETERS_PER_REPLICA * plan.replicas) * recipe.gradient
    bucket = scenario.overlap.bucket_size or usual

    software, fsdp = scenario.software or Software(), scenario.fsdp
    lists = software.shards == "lists"
    again = lists and scenario.training.recompute == "full"
    copies = {"fused": False, "passes": True}[software.optimizer]
    gradients = software.gradients if plan.replicas > 1 else "averaged"

    def passes(parameters: float, *kinds: Pass) -> float:
        seconds = (pass_seconds(device, parameters, kind, recipe=recipe) for kind in kinds)
        return reduce(add, seconds)  # in this order: sum() rounds in another way

    def update(parameters: float) -> float:
        copied: tuple[Pass, ...] = ("copy",) if copies and recipe.master else ()
        return passes(parameters, "clip", "optimizer", *copied, "zero")

    def norm(parameters: float) -> float:
        scaled: tuple[Pass, ...] = ("unscale",) if scenario.training.precision == "fp16-mixed" else ()
        if copies and plan.replicas > 1:  # the sum over replicas is divided by their number in a pass of its own
            scaled += ("unscale",)
        return passes(parameters, *scaled, "norm")

    updated = UpdateJob(
        scenario.model,
        plan,
        recipe,
        scenario.parallel.zero,
        bucket / recipe.gradient if scenario.overlap.grad_reduce else math.inf,  # Megatron-LM: else there is one
        partial(memory_seconds, device),
        partial(kernels_seconds, device, precision="bf16"),
    )
    return DataParallel(
        zero=scenario.parallel.zero,
        overlap_reduce=scenario.overlap.grad_reduce,
        overlap_gather=scenario.overlap.param_gather,
        gradient_bytes=recipe.gradient,
        parameter_bytes=gathered,
        bucket_bytes=bucket,
        optimizer_seconds=update,
        norm_seconds=norm,
        sharding=Sharding(
            unit_layers=fsdp.unit_layers,
            prefetch=fsdp.prefetch,
            reshard=fsdp.reshard_after_forward,
            two_lanes={"one": False, "two": True}[fsdp.lanes],
            every_microbatch=fsdp.sync_every_microbatch,
            by_matrix=lists,
            piece=software.piece,
            again=again,
        ),
        zero_seconds=lambda parameters: passes(parameters, "zero"),
        buffer_seconds=partial(buffer_seconds, device, recipe=recipe, gradients=gradients),
        copy_seconds=partial(sharded_copy_seconds, device, recipe=recipe, shards=software.shards, gathers=2 + again),
        optimizer=optimizer_class(scenario.training.optimizer).of(updated, scenario.training),
        outer=outer_update_of(scenario, device, recipe) if scenario.training.outer else None,
    )
