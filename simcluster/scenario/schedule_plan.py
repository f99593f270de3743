"""Pipeline of a scenario: the schedule, the layers of each model slice, and the rank grid.

Pure functions of a scenario; InputError for invalid combinations, which the rules check first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.devices.device import Device, memory_kernel_seconds
from simcluster.documents.diagnostics import KeyProblem, join_or
from simcluster.documents.suggestions import nearest_divisors
from simcluster.faults.fault_spec import BatchSizes
from simcluster.model.recipes import Recipe
from simcluster.planning.job import ModelSlices
from simcluster.planning.optimizer import OuterOptimizerStep
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.schedules import Schedule, make_schedule, schedules_with
from simcluster.schedules.actions import Route
from simcluster.schedules.specs import ZbAutoSpec
from simcluster.schedules.stage_layout import find_separate_prediction
from simcluster.schedules.zb_auto import Times

if TYPE_CHECKING:
    from simcluster.scenario.scenario_fields import ScenarioFields
    from simcluster.scenario.training_section import OuterStepSpec

AUTO = "or pipeline.layers_per_stage: auto"
_make_cached_schedule = lru_cache(maxsize=64)(make_schedule)


def schedule_of(scenario: ScenarioFields, costs: Times | None = None, latency: float = 0.0) -> Schedule:
    """Return the pipeline schedule of a scenario; raise InputError if no such schedule is possible.

    ``costs`` and ``latency`` are the run's own times, for schedules that are optimized for times.
    """
    what = scenario.pipeline.schedule
    if what == "zb-auto":
        what = ZbAutoSpec(name="zb-auto")
    if isinstance(what, ZbAutoSpec) and what.goal is None:
        what = what.model_copy(update={"goal": "step"})  # the gradient norm is over all stages, so all wait for it
    counts = scenario.parallel.pp, scenario.microbatches, scenario.pipeline.chunks
    if costs is None:
        return _make_cached_schedule(what, *counts)
    return make_schedule(what, *counts, costs=costs, latency=latency)


def uses_simulated_times(scenario: ScenarioFields) -> bool:
    """Return whether the schedule is optimized for simulated pass times."""
    what = scenario.pipeline.schedule
    if isinstance(what, ZbAutoSpec):
        return what.forward is None and what.input is None and what.weight is None
    return what in schedules_with("depends_on_times")


def slices_of(scenario: ScenarioFields, schedule: Schedule) -> ModelSlices | None:
    """Return the number of layers of each model slice; None if the layers are split by simulated times."""
    layers, wanted = scenario.model.layers, scenario.pipeline.layers_per_stage
    number, pp = len(schedule.routes[0]), scenario.parallel.pp
    if wanted == "even":
        if layers % number:
            fix = join_or(nearest_divisors(layers, number))
            raise InputError(
                f"{schedule.name} on pp {pp} divides the model into {number} equal slices, but "
                f"model.layers is {layers}; use a pp and schedule with {fix} slices, {AUTO}"
            )
        return ModelSlices.split_evenly(layers, number)
    hollow = schedule.allows_empty_end_slices
    if wanted == "auto":
        least = max(1, number - 2 * hollow)
        if layers < least:
            raise InputError(f"{layers} layers are fewer than the {number} slices of the model; use fewer slices")
        return None
    if len(wanted) not in (pp, number):
        also = f" or {number}, one per slice" if number != pp else ""
        raise InputError(f"lists {len(wanted)} numbers; there must be {pp}, one per stage{also}: write one for each")
    if len(wanted) != number and len(schedule.routes) > 1:
        raise InputError(f"{schedule.name} has several copies of the model; list the layers of its {number} slices")
    if sum(wanted) != layers:
        counts = ", ".join(map(str, wanted))
        raise InputError(f"[{counts}] adds up to {sum(wanted)} layers, but model.layers is {layers}: make them equal")
    slices = ModelSlices(wanted) if len(wanted) == number else ModelSlices.from_stage_layers(wanted, schedule)
    empty = [place for place, count in enumerate(slices.counts) if not count]
    if scenario.pipeline.layout is not None:
        if (predicts := find_separate_prediction(scenario.pipeline.layout)) is not None:
            slices = replace(slices, predicted=tuple(scenario.model.prediction_layers), prediction=predicts)
        return slices  # where there is a layout, whoever wrote it knows what is empty
    if any(place not in (0, number - 1) for place in empty) or (empty and not hollow):
        where = f"slice {empty[0]} of {number} has no layer"
        rule = "only the first (embedding) and the last (LM head) may have no layers" if hollow else (
            f"{schedule.name} splits the backward, which a slice without layers cannot do")  # fmt: skip
        raise InputError(f"{where}; {rule}: give that slice a layer")
    return slices


def planned_slices_of(scenario: ScenarioFields, schedule: Schedule) -> ModelSlices:
    """Return the slices of the model with its encoder; nearly even ones if simulated times will split the layers."""
    model, number = scenario.model, len(schedule.routes[0])
    slices = slices_of(scenario, schedule) or ModelSlices.split_nearly_evenly(model.layers, number)
    return replace(slices, encoder=tuple(model.encoder_layers))


def stage_copies_of(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Return the groups of stages that hold copies of the same model slice; empty if no slice has copies.

    InputError where the copies of a stage's slices are on different stages.
    """
    return _find_stage_copies(schedule.name, schedule.num_stages, schedule.routes)


@lru_cache(maxsize=64)
def _find_stage_copies(name: str, stages: int, routes: tuple[Route, ...]) -> tuple[tuple[int, ...], ...]:
    holders = [tuple(sorted({stage for stage, _ in hops})) for hops in zip(*routes, strict=True)]
    if all(len(held) == 1 for held in holders):
        return ()
    for stage in range(stages):
        found = sorted({held for held in holders if stage in held})
        if len(found) != 1 or len(found[0]) != len(holders[0]):
            raise InputError(
                f"{name}: slices of stage {stage} have copies on different stages, {' and '.join(map(str, found))}; "
                "put all copies on the same stages, over which gradients are summed"
            )
    return tuple(sorted(set(holders)))


def batch_sizes_of(scenario: ScenarioFields) -> BatchSizes:
    """Return the batch sizes of a step: microbatches, samples, sequence length, and expert routing."""
    moe = scenario.model.moe
    return BatchSizes(
        scenario.steps,
        scenario.microbatches,
        scenario.training.micro_batch,
        scenario.model.sequence_length,
        experts=moe.experts if moe else 0,
        routes=moe.token_routes if moe else None,
        capacity=moe.capacity_in_even_shares if moe else math.inf,
        image_tokens=scenario.model.encoder.image_tokens if scenario.model.encoder else 0,
    )


def plan_of(scenario: ScenarioFields, schedule: Schedule) -> ParallelPlan:
    """Return the rank grid of a scenario: the parallelism axes and their sizes."""
    parallel = scenario.parallel
    return ParallelPlan(
        tp=parallel.tp,
        cp=parallel.cp,
        cp_inner=parallel.cp_inner or 1,
        dp=scenario.dp,
        pp=parallel.pp,
        order=parallel.order,
        shard=scenario.fsdp.shard_group or 0,
        regather=scenario.fsdp.regather_group if parallel.zero == 3 else 0,
        copies=stage_copies_of(schedule),
        ep=parallel.ep,
        etp=parallel.etp or 0,
        workers=count_diloco_workers(scenario),
        embedding_stages=_embedding_stages(scenario, schedule),
    )


def _embedding_stages(scenario: ScenarioFields, schedule: Schedule) -> tuple[int, ...]:
    """Return the stages with the token table, if multi-token prediction in a separate slice has a copy; else ()."""
    predicts, route = find_separate_prediction(scenario.pipeline.layout), schedule.routes[0]
    if predicts is None or predicts >= len(route):  # a rule complains of the latter
        return ()
    slices = (0, predicts, *([-1] if scenario.model.tied_embeddings else []))
    return tuple(sorted({route[number][0] for number in slices}))


STATE_BYTES = 8.0
"""Bytes per parameter of an outer optimizer's state: the last synchronized weights and the momentum, in fp32."""
_MADE = 4.0 + 4.0 + 4.0  # pseudo-gradient: read master and what it was, write the difference
_UPDATED = 4.0 + 2 * STATE_BYTES + 4.0  # read the sum, read and write the state, write the master copy


def count_diloco_workers(scenario: ScenarioFields) -> int:
    """Return the number of DiLoCo workers (groups of ranks that train separately); 1 without DiLoCo."""
    outer = scenario.training.outer
    if outer is None:
        return 1
    if outer.workers is not None:
        return outer.workers
    cluster = scenario.cluster.built
    if not cluster.machines_per_site or not scenario.gpus:
        return 1
    return len(dict.fromkeys(host // cluster.machines_per_site for host in cluster.host_of[: scenario.gpus]))


def outer_step_of(scenario: ScenarioFields, device: Device, recipe: Recipe) -> OuterOptimizerStep | None:
    """Return DiLoCo's outer optimizer step of a scenario; None without DiLoCo."""
    outer = scenario.training.outer
    if outer is None:
        return None
    traffic = _MADE + _UPDATED + recipe.gathered_weight
    return OuterOptimizerStep(
        outer.every, outer.bytes_per_parameter, outer.parts, outer.beside,
        lambda parameters: memory_kernel_seconds(device, parameters * traffic),
    )  # fmt: skip


def outer_state_bytes(scenario: ScenarioFields) -> float:
    """Return the bytes per parameter that DiLoCo's outer step keeps on a rank, including a copy to send."""
    outer = scenario.training.outer
    if outer is None:
        return 0.0
    return STATE_BYTES + (outer.bytes_per_parameter / outer.parts if outer.beside else 0.0)


def check_outer_step(scenario: ScenarioFields, outer: OuterStepSpec) -> Iterator[KeyProblem]:
    """Yield violated rules of DiLoCo's outer step, on the number of workers and on incompatible features."""
    parallel, where = scenario.parallel, ("training", "outer")
    if not parallel.dp:
        return
    workers = count_diloco_workers(scenario)
    if workers < 2:
        what = f"must be at least 2; got {'1 (one site)' if outer.workers is None else 1}"
        yield (*where, "workers"), f"{what}; set the number, as in workers: 2, or remove training.outer"
    elif parallel.dp % workers:
        fix = join_or(nearest_divisors(parallel.dp, workers))
        yield (*where, "workers"), f"{workers} workers do not divide dp {parallel.dp}; use {fix}"
    elif scenario.fsdp.shard_group and (parallel.dp * parallel.cp // workers) % scenario.fsdp.shard_group:
        what = f"fsdp.shard_group {scenario.fsdp.shard_group} does not divide a worker's replicas"
        yield (*where, "workers"), f"{what}; use a smaller shard_group"
    if outer.parts > outer.every:
        yield (*where, "parts"), f"must be at most 'every' = {outer.every} steps; got {outer.parts}: use fewer"
    if outer.beside >= outer.every:
        yield (*where, "beside"), f"must be less than 'every' = {outer.every} steps; got {outer.beside}: use fewer"
    others = {
        "an offloaded optimizer (memory.offload.optimizer)": scenario.memory.offload.optimizer != "none",
        "a checkpoint in the step (checkpoint)": scenario.checkpoint is not None,
        "experts on separate ranks (parallel.ep, etp)": scenario.model.moe is not None
        and (parallel.ep > 1 or parallel.etp not in (None, 0, parallel.tp)),
    }
    for name, there in others.items():
        if there:
            yield where, f"is not modelled with {name}; remove one of the two"
    yield from _check_workers_on_sites(scenario, workers)


def _check_workers_on_sites(scenario: ScenarioFields, workers: int) -> Iterator[KeyProblem]:
    order = scenario.parallel.order
    later = [axis for axis in order[order.index("dp") + 1 :] if getattr(scenario.parallel, axis) > 1]
    if scenario.cluster.built.machines_per_site and workers > 1 and later:
        what = f"{join_or(later)} after dp puts every worker on all sites; dp must be last"
        yield ("parallel", "order"), f"{what}: set order to [tp, cp, pp, dp]"
