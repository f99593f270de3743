"""What a scenario's software makes of a step beside its passes: time to issue work, updates of parameters.

Pure functions of a scenario and a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcluster.devices.device import Device
from simcluster.devices.software import Software, latest_of
from simcluster.devices.updates import (
    buffer_seconds,
    clip_seconds,
    copy_seconds,
    gradient_norm_seconds,
    optimizer_seconds,
    sharded_copy_seconds,
    unscale_seconds,
    zero_gradients_seconds,
)
from simcluster.model.recipes import Recipe
from simcluster.planning.job import DataParallel, Sharding
from simcluster.planning.parallel import Plan
from simcluster.planning.segment_ops import NO_TIME, Issue
from simcluster.scenario.memory_plan import ELEMENT_BYTES

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario

_BUCKET_PARAMETERS = 40e6  # Megatron-LM: max(40e6, 1e6 x dp) parameters a bucket
_BUCKET_PARAMETERS_PER_REPLICA = 1e6


def issue_of(scenario: Scenario) -> Issue:
    """What the host needs to issue work."""
    software = scenario.software
    if software is None:
        return NO_TIME
    slower = scenario.cluster.scale.launch
    late = software.late * latest_of(scenario.parallel.tp)
    times = (software.kernel, software.collective, software.microbatch, software.gap, late, software.loss)
    return Issue(*(seconds * slower for seconds in times))


def data_parallel_of(scenario: Scenario, device: Device, plan: Plan, recipe: Recipe) -> DataParallel:
    """What replicas do beside their passes: how gradients are summed and parameters updated, and what that takes."""
    gathered = ELEMENT_BYTES[scenario.training.precision] if scenario.parallel.zero == 3 else recipe.gathered
    bucket = max(_BUCKET_PARAMETERS, _BUCKET_PARAMETERS_PER_REPLICA * plan.replicas) * recipe.gradient

    software, fsdp = scenario.software or Software(), scenario.fsdp
    copies = software.optimizer == "passes"

    def update(parameters: float) -> float:
        zeroed = zero_gradients_seconds(device, parameters, recipe=recipe)
        clipped = clip_seconds(device, parameters, recipe=recipe)
        copied = copy_seconds(device, parameters, recipe=recipe) if copies else 0.0
        return clipped + optimizer_seconds(device, parameters, recipe=recipe) + copied + zeroed

    def norm(parameters: float) -> float:
        scaled = scenario.training.precision == "fp16-mixed"
        unscaled = unscale_seconds(device, parameters, recipe=recipe) if scaled else 0.0
        if copies and plan.replicas > 1:  # the sum over replicas is divided by their number in a pass of its own
            unscaled += unscale_seconds(device, parameters, recipe=recipe)
        return unscaled + gradient_norm_seconds(device, parameters, recipe=recipe)

    return DataParallel(
        zero=scenario.parallel.zero,
        overlap_reduce=scenario.overlap.grad_reduce,
        overlap_gather=scenario.overlap.param_gather,
        gradient_bytes=recipe.gradient,
        parameter_bytes=gathered,
        bucket_bytes=scenario.overlap.bucket_size or bucket,
        optimizer_seconds=update,
        norm_seconds=norm,
        sharding=Sharding(
            unit_layers=fsdp.unit_layers,
            prefetch=fsdp.prefetch,
            reshard=fsdp.reshard_after_forward,
            two_lanes=fsdp.lanes == "two",
            every_microbatch=fsdp.sync_every_microbatch,
        ),
        zero_seconds=lambda parameters: zero_gradients_seconds(device, parameters, recipe=recipe),
        buffer_seconds=lambda whole: buffer_seconds(
            device, whole, recipe=recipe, gradients=software.gradients if plan.replicas > 1 else "averaged"
        ),
        copy_seconds=lambda parameters: sharded_copy_seconds(device, parameters, recipe=recipe, shards=software.shards),
    )
