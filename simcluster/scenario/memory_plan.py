"""What a scenario asks of memory: recipe, shape, overheads, and from them the bytes that every stage holds.

No device time and no clock is needed for it, so a plan can be judged at once.  Pure functions of a scenario.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from simcluster.faults.expert_loads import ExpertLoads
from simcluster.model.layers import RankShape
from simcluster.model.recipes import Recipe, recipe_named
from simcluster.nccl import load_platform
from simcluster.planning.buffers import Overheads, nccl_buffer_bytes
from simcluster.planning.footprint import Footprint, stage_footprint
from simcluster.planning.parallel import Plan
from simcluster.planning.residency import LAYER, residencies
from simcluster.planning.sharded_units import unsharded_peak
from simcluster.planning.step_plan import DataParallel, Job, Offload, PassMaker, Sharding, Slices
from simcluster.scenario.pipeline_rules import copies_of, schedule_of, slices_of

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario

ELEMENT_BYTES = {"bf16-mixed": 2.0, "fp16-mixed": 2.0, "fp8-mixed": 2.0, "fp32": 4.0}
"""Bytes of a weight or an activation as products read it, by precision."""

_RECIPE = {"bf16-mixed": "mixed-18", "fp16-mixed": "mixed-16", "fp8-mixed": "fp8-20", "fp32": "fp32-16"}


def recipe_of(scenario: Scenario) -> Recipe:
    """Bytes per parameter: as named, else what the precision's usual program keeps."""
    return recipe_named(scenario.training.memory_recipe or _RECIPE[scenario.training.precision])


def plan_of(scenario: Scenario) -> Plan:
    """The grid of ranks."""
    parallel = scenario.parallel
    return Plan(
        tp=parallel.tp,
        cp=parallel.cp,
        dp=scenario.dp,
        pp=parallel.pp,
        order=parallel.order,
        shard=scenario.fsdp.shard_group or 0,
        copies=copies_of(schedule_of(scenario)),
        ep=parallel.ep,
        etp=parallel.etp or 0,
    )


def shape_of(scenario: Scenario) -> RankShape:
    """What decides the shapes of one rank's tensors and kernels besides the model."""
    training, parallel, memory = scenario.training, scenario.parallel, scenario.memory
    software = scenario.software
    return RankShape(
        micro_batch=training.micro_batch,
        tp=parallel.tp,
        cp=parallel.cp,
        cp_comm=parallel.cp_comm,
        ep=parallel.ep,
        etp=parallel.etp or 0,
        sequence_parallel=parallel.sequence_parallel,
        recompute=training.recompute,
        recompute_every=training.recompute_every,
        attention=training.attention,
        dropout=training.dropout,
        logits=memory.logits,
        temporaries=memory.backward_temporaries,
        kernels=software.kernels if software else "fused",
        accumulate=software.accumulate if software else "fused",
        fp8=training.precision == "fp8-mixed",
        stops_early=software is not None and software.checkpoint == "early-stop",
        keeps_fused_core=software is not None and software.selective == "unfused-core",
        element_bytes=ELEMENT_BYTES[training.precision],
        grad_accumulate_bytes=recipe_of(scenario).gradient,
    )


def overheads_of(scenario: Scenario) -> Overheads:
    """Fragmentation and buffers, as the scenario's ``memory`` section says."""
    memory = scenario.memory
    communication = memory.communication_buffers
    if communication == "auto":
        cluster = scenario.cluster.built
        name = cluster.nccl if scenario.collectives.nccl == "auto" else scenario.collectives.nccl
        platform = None if name in (None, "none") else load_platform(name)
        machines = len({cluster.host_of[rank] for rank in range(scenario.gpus)})
        communication = nccl_buffer_bytes(plan_of(scenario), platform, machines=machines)
    return Overheads(
        fragmentation=memory.fragmentation,
        communication=0.0 if communication == "none" else communication,
        workspace=memory.workspace or 0.0,
        megatron_te=memory.library == "megatron-te",
    )


def sharding_of(scenario: Scenario) -> Sharding:
    """How ZeRO 3 gathers and reduces."""
    fsdp = scenario.fsdp
    return Sharding(
        unit_layers=fsdp.unit_layers,
        prefetch=fsdp.prefetch,
        reshard=fsdp.reshard_after_forward,
        two_lanes=fsdp.lanes == "two",
        every_microbatch=fsdp.sync_every_microbatch,
    )


def offload_of(scenario: Scenario) -> Offload:
    """What the scenario keeps in host memory."""
    chosen, recipe, cluster = scenario.memory.offload, recipe_of(scenario), scenario.cluster.built
    blocks = residencies(scenario.model, shape_of(scenario))
    boxes = Counter(cluster.box_of(rank) for rank in range(scenario.gpus)) if chosen.optimizer == "host" else {}
    return Offload(
        activations=chosen.activations,
        ahead=chosen.ahead,
        kept=lambda layers: sum(blocks.of(name, layer).kept for layer in layers for name in LAYER),
        optimizer=chosen.optimizer,
        state_bytes=recipe.optimizer,
        gradient_bytes=recipe.gradient,
        weight_bytes=recipe.gathered,
        update_bytes=recipe.update_traffic,
        host_rate=(chosen.host_update or math.inf) / max(boxes.values(), default=1),
        bucket=chosen.bucket,
        buffers=chosen.buffers,
    )


def footprints_of(scenario: Scenario, job: Job) -> tuple[Footprint, ...]:
    """Bytes on the ranks of every stage when they hold most, stage by stage; on the fullest of a stage's ranks where
    experts get unequally many tokens."""
    shape, recipe, overheads = shape_of(scenario), recipe_of(scenario), overheads_of(scenario)
    offload, moe = offload_of(scenario), scenario.model.moe
    experts = ExpertLoads.of(scenario.faults, job.plan, scenario.seed, moe.experts) if moe else None
    return tuple(
        replace(
            stage_footprint(
                job.model,
                shape,
                job.plan,
                job.schedule,
                job.slices,
                recipe,
                zero=scenario.parallel.zero,
                stage=stage,
                overheads=overheads,
                offload=offload,
                experts=experts,
                steps=scenario.steps,
            ),
            unsharded=unsharded_peak(job, stage),
        )
        for stage in range(job.plan.pp)
    )


def planned_footprints(scenario: Scenario) -> tuple[Footprint, ...]:
    """The same without a device: what a scenario's stages hold, before anything is timed.

    Where the times of a run decide about the schedule or the cut of the model, that of the mean times and an even cut
    (the longer slices first) stand in for them.
    """
    schedule = schedule_of(scenario)
    slices = slices_of(scenario, schedule)
    if slices is None:
        layers, number = scenario.model.layers, len(schedule.routes[0])
        slices = Slices(tuple(layers // number + (index < layers % number) for index in range(number)))
    recipe, fsdp, zero = recipe_of(scenario), sharding_of(scenario), scenario.parallel.zero
    data = DataParallel(
        zero=zero,
        overlap_reduce=scenario.overlap.grad_reduce,
        overlap_gather=scenario.overlap.param_gather,
        gradient_bytes=recipe.gradient,
        parameter_bytes=ELEMENT_BYTES[scenario.training.precision] if zero == 3 else recipe.gathered,
        bucket_bytes=0.0,
        optimizer_seconds=lambda parameters: 0.0,
        norm_seconds=lambda parameters: 0.0,
        sharding=fsdp,
    )
    job = Job(
        model=scenario.model,
        plan=plan_of(scenario),
        schedule=schedule,
        slices=slices,
        passes=cast(PassMaker, None),  # nothing is played
        data_parallel=data,
        send_bytes=0.0,
        gather_boundary=False,
        overlap_sends=False,
        steps=1,
    )
    return footprints_of(scenario, job)
