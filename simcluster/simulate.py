"""The door: a scenario in, a result out.  The only place where planning, engine and scenario meet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from simcluster.device import (
    Device,
    gradient_norm_seconds,
    kernels_seconds,
    load_device,
    optimizer_seconds,
    zero_gradients_seconds,
)
from simcluster.engine import play
from simcluster.faults import SlowGpu, SlowLink
from simcluster.flops import hardware_flops_per_sequence, model_flops_per_sequence
from simcluster.footprint import stage_footprint
from simcluster.layers import RankShape
from simcluster.lower import Choices, StepsOf, lower
from simcluster.memory import Recipe, recipe_named
from simcluster.methods import Methods
from simcluster.nccl import load_platform
from simcluster.network import Network
from simcluster.parallel import Plan
from simcluster.result import Facts, Result
from simcluster.scenario import Scenario
from simcluster.scenario_rules import schedule_of
from simcluster.segments import Passes
from simcluster.stages import stage_programs
from simcluster.step_plan import DataParallel, Job, Slices
from simcluster.stepwise import Stepwise
from simcluster.topology import Cluster

_PRECISION = {"bf16-mixed": "bf16", "fp16-mixed": "fp16", "fp32": "fp32"}
_ELEMENT_BYTES = {"bf16-mixed": 2.0, "fp16-mixed": 2.0, "fp32": 4.0}
_RECIPE = {"bf16-mixed": "mixed-18", "fp16-mixed": "mixed-16", "fp32": "fp32-16"}
_BUCKET_PARAMETERS = 40e6  # Megatron-LM: max(40e6, 1e6 x dp) parameters a bucket
_BUCKET_PARAMETERS_PER_REPLICA = 1e6


def simulate(scenario: Scenario, *, folded: bool = True) -> Result:
    """Replay the scenario's steps as events.

    ``folded=False`` plays every rank by itself, with the same result to the bit.  With faults, the step is replayed
    without them as well, for the slowdown.
    """
    clean = _replay(scenario.model_copy(update={"faults": ()}), folded=folded) if scenario.faults else None
    return _replay(scenario, folded=folded, without_faults=clean.step_time if clean else None)


def _replay(scenario: Scenario, *, folded: bool, without_faults: float | None = None) -> Result:
    cluster = scenario.cluster.built.scaled(
        [(*fault.between, fault.factor) for fault in scenario.faults if isinstance(fault, SlowLink)]
    )
    device = load_device(cluster.device)
    job, facts = plan_job(scenario, device)
    slow = slowness(scenario)
    lowered = lower(
        stage_programs(job),
        job.plan,
        cluster,
        cluster.capacity.tolist(),
        slowness=slow,
        choices=choices_of(scenario, folded=folded),
    )
    record = play(lowered.program, lowered.capacity, [partial(_stepwise, cluster, steps) for steps in lowered.steps])
    return Result(
        lowered=lowered,
        record=record,
        steps=scenario.steps,
        ranks=range(facts.ranks),
        scenario=scenario,
        facts=facts,
        without_faults=without_faults,
    )


def plan_job(scenario: Scenario, device: Device) -> tuple[Job, Facts]:
    """Everything that is known before the clock starts."""
    model, parallel, training = scenario.model, scenario.parallel, scenario.training
    plan = Plan(tp=parallel.tp, cp=parallel.cp, dp=scenario.dp, pp=parallel.pp, order=parallel.order)
    recipe = recipe_named(training.memory_recipe or _RECIPE[training.precision])
    shape = RankShape(
        micro_batch=training.micro_batch,
        tp=plan.tp,
        cp=plan.cp,
        sequence_parallel=parallel.sequence_parallel,
        recompute=training.recompute,
        attention=training.attention,
        dropout=training.dropout,
        element_bytes=_ELEMENT_BYTES[training.precision],
        grad_accumulate_bytes=recipe.gradient,
    )
    precision = _PRECISION[training.precision]
    timer = partial(kernels_seconds, device, precision=precision)
    passes = Passes(model, shape, timer, overlap_tensor=scenario.overlap.tensor)
    schedule = schedule_of(scenario)
    slices = Slices.even(model.layers, len(schedule.routes[0]))
    split = plan.tp > 1 and (parallel.sequence_parallel or scenario.pipeline.scatter_gather)
    job = Job(
        model=model,
        plan=plan,
        schedule=schedule,
        slices=slices,
        passes=passes,
        data_parallel=_data_parallel(scenario, device, plan, recipe),
        send_bytes=passes.activation_bytes / (plan.tp if split else 1),
        gather_boundary=split and not parallel.sequence_parallel,
        overlap_sends=scenario.overlap.pipeline,
        steps=scenario.steps,
    )
    footprints = tuple(
        stage_footprint(model, shape, plan, schedule, slices, recipe, zero=parallel.zero, stage=stage)
        for stage in range(plan.pp)
    )
    facts = Facts(
        ranks=plan.num_ranks,
        samples=training.global_batch,
        tokens=scenario.tokens_per_step,
        model_flops=model_flops_per_sequence(model) * training.global_batch,
        hardware_flops=hardware_flops_per_sequence(model, training.recompute) * training.global_batch,
        peak_flops=device.peak_flops(precision),
        memory=device.memory,
        footprints=footprints,
    )
    return job, facts


def _data_parallel(scenario: Scenario, device: Device, plan: Plan, recipe: Recipe) -> DataParallel:
    bucket = max(_BUCKET_PARAMETERS, _BUCKET_PARAMETERS_PER_REPLICA * plan.dp) * recipe.gradient

    def update(parameters: float) -> float:
        zeroed = zero_gradients_seconds(device, parameters, recipe=recipe)
        return optimizer_seconds(device, parameters, recipe=recipe) + zeroed

    return DataParallel(
        zero=scenario.parallel.zero,
        overlap_reduce=scenario.overlap.grad_reduce,
        overlap_gather=scenario.overlap.param_gather,
        gradient_bytes=recipe.gradient,
        parameter_bytes=recipe.weight,
        bucket_bytes=scenario.overlap.bucket_size or bucket,
        optimizer_seconds=update,
        norm_seconds=lambda parameters: gradient_norm_seconds(device, parameters, recipe=recipe),
    )


def slowness(scenario: Scenario) -> list[float]:
    """What multiplies every rank's compute times."""
    factors = [1.0] * scenario.gpus
    for fault in scenario.faults:
        if isinstance(fault, SlowGpu):
            factors[fault.rank] *= fault.factor
    return factors


def choices_of(scenario: Scenario, *, folded: bool) -> Choices:
    """How the scenario wants its collectives played."""
    chosen = scenario.collectives
    named = {kind: getattr(chosen, kind) for kind in ("all_reduce", "reduce_scatter", "all_gather")}
    platform = scenario.cluster.built.nccl if chosen.nccl == "auto" else chosen.nccl
    in_steps = chosen.detail == "steps"
    methods = Methods(
        named, platform=None if platform in (None, "none") else load_platform(platform), in_rounds=in_steps
    )
    return Choices(methods=methods, steps=in_steps, folded=folded)


def _stepwise(cluster: Cluster, steps: StepsOf, network: Network, on_done: Callable[[int], object]) -> Stepwise:
    return Stepwise(network, cluster, steps.gpus, steps.phases, steps.size, on_done, steps.pace)
