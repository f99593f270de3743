"""Pipeline of a scenario for planning: its schedule, the layers of each slice, the grid of ranks.

Pure functions of a scenario; InputError for invalid combinations, which the rules check first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.devices.device import Device, memory_seconds
from simcluster.documents.diagnostics import Complaint, listed
from simcluster.documents.suggestions import near_divisors
from simcluster.model.recipes import Recipe
from simcluster.planning.job import Slices
from simcluster.planning.optimizer import OuterUpdate
from simcluster.planning.parallel import Plan
from simcluster.schedules import Schedule, make_schedule, schedules_with
from simcluster.schedules.actions import Route
from simcluster.schedules.specs import ScheduleChoice, ZbAuto
from simcluster.schedules.zb_auto import Times

if TYPE_CHECKING:
    from simcluster.scenario.fields import ScenarioFields
    from simcluster.scenario.training_section import OuterStep

AUTO = "or pipeline.layers_per_stage: auto"


def schedule_of(scenario: ScenarioFields, costs: Times | None = None, latency: float = 0.0) -> Schedule:
    """Return the pipeline schedule of the scenario's microbatches; InputError if it is impossible.

    ``costs`` and ``latency`` are the run's own times, for schedules that are optimized for times.
    """
    what, chunks = scenario.pipeline.schedule, scenario.pipeline.chunks
    counts = scenario.parallel.pp, scenario.microbatches, chunks
    if what == "zb-auto":
        what = ZbAuto(name="zb-auto")
    if isinstance(what, ZbAuto) and what.goal is None:
        what = what.model_copy(update={"goal": "step"})  # the gradient norm is over all stages, so all wait for it
    return _make_known(what, *counts) if costs is None else make_schedule(what, *counts, costs=costs, latency=latency)


def uses_simulated_times(scenario: ScenarioFields) -> bool:
    """Return whether the schedule is optimized for the simulated times of the run."""
    what = scenario.pipeline.schedule
    if isinstance(what, ZbAuto):
        return what.forward is None and what.input is None and what.weight is None
    return what in schedules_with("made_for_times")


def slices_of(scenario: ScenarioFields, schedule: Schedule) -> Slices | None:
    """Return the layers of each slice of the model; None if simulated times decide; InputError if impossible."""
    layers, wanted = scenario.model.layers, scenario.pipeline.layers_per_stage
    number, pp = len(schedule.routes[0]), scenario.parallel.pp
    if wanted == "even":
        if layers % number:
            fix = listed(near_divisors(layers, number))
            raise InputError(
                f"{schedule.name} on pp {pp} divides the model into {number} equal slices, but "
                f"model.layers is {layers}; use a pp and schedule with {fix} slices, {AUTO}"
            )
        return Slices.even(layers, number)
    hollow = schedule.may_have_empty_ends
    if wanted == "auto":
        least = max(1, number - 2 * hollow)
        if layers < least:
            raise InputError(f"{layers} layers are fewer than the {number} slices of the model; use fewer slices")
        return None
    if len(wanted) not in (pp, number):
        also = f" or {number}, one per slice" if number != pp else ""
        raise InputError(f"lists {len(wanted)} numbers; there must be {pp}, one per stage{also}: write one for each")
    if len(wanted) != number and len(schedule.routes) > 1:
        raise InputError(f"{schedule.name} has several copies of the model; list its {number} slices")
    if sum(wanted) != layers:
        counts = ", ".join(map(str, wanted))
        raise InputError(f"[{counts}] is {sum(wanted)} layers, but model.layers is {layers}: they must be equal")
    slices = Slices(wanted) if len(wanted) == number else Slices.of_stages(wanted, schedule)
    empty = [place for place, count in enumerate(slices.counts) if not count]
    if scenario.pipeline.layout is not None:
        return slices  # where there is a layout, whoever wrote it knows what is empty
    if any(place not in (0, number - 1) for place in empty) or (empty and not hollow):
        where = f"slice {empty[0]} of {number} has no layer"
        rule = "only the first (embedding) and the last (LM head) may have none" if hollow else (
            f"{schedule.name} splits the backward, and a slice without layers has no I")  # fmt: skip
        raise InputError(f"{where}; {rule}: give it a layer of another slice")
    return slices


def copies_of(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Return the groups of stages that hold equal slices of the model; empty if no slice is on two stages.

    InputError where the copies of a stage's slices are on different stages.
    """
    return _find_copies(schedule.name, schedule.num_stages, schedule.routes)


@lru_cache(maxsize=64)
def _find_copies(name: str, stages: int, routes: tuple[Route, ...]) -> tuple[tuple[int, ...], ...]:
    holders = [tuple(sorted({stage for stage, _ in hops})) for hops in zip(*routes, strict=True)]
    if all(len(held) == 1 for held in holders):
        return ()
    for stage in range(stages):
        found = sorted({held for held in holders if stage in held})
        if len(found) != 1 or len(found[0]) != len(holders[0]):
            raise InputError(
                f"{name}: the slices of stage {stage} have copies on stages {' and '.join(map(str, found))}; "
                f"gradients are summed over stages with the same slices, which must hold equal numbers of them"
            )
    return tuple(sorted(set(holders)))


@lru_cache(maxsize=64)
def _make_known(what: ScheduleChoice, stages: int, microbatches: int, chunks: int) -> Schedule:
    return make_schedule(what, stages, microbatches, chunks)


def plan_of(scenario: ScenarioFields, schedule: Schedule) -> Plan:
    """Return the grid of ranks (the axes and their sizes) for a scenario with this schedule."""
    parallel = scenario.parallel
    return Plan(
        tp=parallel.tp,
        cp=parallel.cp,
        dp=scenario.dp,
        pp=parallel.pp,
        order=parallel.order,
        shard=scenario.fsdp.shard_group or 0,
        copies=copies_of(schedule),
        ep=parallel.ep,
        etp=parallel.etp or 0,
        workers=count_workers(scenario) if scenario.training.outer else 1,
    )


STATE_BYTES = 8.0
"""Bytes per parameter of an outer optimizer's state: the last synchronized weights and the momentum, in fp32."""
_MADE = 4.0 + 4.0 + 4.0  # pseudo-gradient: read master and what it was, write the difference
_UPDATED = 4.0 + 2 * STATE_BYTES + 4.0  # read the sum, read and write the state, write the master copy


def count_workers(scenario: ScenarioFields) -> int:
    """Return the number of DiLoCo workers, which train separately; 1 if there are none or it is unknown."""
    outer, cluster = scenario.training.outer, scenario.cluster.built
    if outer is None:
        return 1
    if outer.workers is not None:
        return outer.workers
    if not cluster.machines_per_site or not scenario.gpus:
        return 1
    return len(dict.fromkeys(host // cluster.machines_per_site for host in cluster.host_of[: scenario.gpus]))


def outer_update_of(scenario: ScenarioFields, device: Device, recipe: Recipe) -> OuterUpdate | None:
    """Return the outer update (DiLoCo) of the scenario's job; None if it has none."""
    outer = scenario.training.outer
    if outer is None:
        return None
    traffic = _MADE + _UPDATED + recipe.gathered
    return OuterUpdate(
        outer.every, outer.bytes_per_parameter, outer.parts, outer.beside,
        lambda parameters: memory_seconds(device, parameters * traffic),
    )  # fmt: skip


def outer_state_bytes(scenario: ScenarioFields) -> float:
    """Return the bytes per local parameter that the outer step (DiLoCo) keeps, with a copy being sent."""
    outer = scenario.training.outer
    if outer is None:
        return 0.0
    return STATE_BYTES + (outer.bytes_per_parameter / outer.parts if outer.beside else 0.0)


def check_outer(scenario: ScenarioFields, outer: OuterStep) -> Iterator[Complaint]:
    """Yield violated rules of the outer step (DiLoCo): its workers, and incompatible features."""
    parallel, where = scenario.parallel, ("training", "outer")
    if not parallel.dp:
        return
    workers = count_workers(scenario)
    if workers < 2:
        what = f"must be two or more, got {'one site' if outer.workers is None else 1}"
        yield (*where, "workers"), f"{what}; set their number, as in workers: 2, or remove training.outer"
    elif parallel.dp % workers:
        fix = listed(near_divisors(parallel.dp, workers))
        yield (*where, "workers"), f"{workers} do not divide dp {parallel.dp}; use {fix}"
    elif scenario.fsdp.shard_group and (parallel.dp * parallel.cp // workers) % scenario.fsdp.shard_group:
        what = f"fsdp.shard_group {scenario.fsdp.shard_group} does not divide a worker's replicas"
        yield (*where, "workers"), f"{what}; make it smaller"
    if outer.parts > outer.every:
        yield (*where, "parts"), f"{outer.parts} parts in {outer.every} steps; use {outer.every} or fewer"
    if outer.beside >= outer.every:
        yield (*where, "beside"), f"is {outer.beside}, but the next outer step is after {outer.every}; use fewer"
    others = {
        "an offloaded optimizer (memory.offload.optimizer)": scenario.memory.offload.optimizer != "none",
        "a checkpoint in the step (checkpoint)": scenario.checkpoint is not None,
        "experts on separate ranks (parallel.ep, etp)": scenario.model.moe is not None
        and (parallel.ep > 1 or parallel.etp not in (None, 0, parallel.tp)),
    }
    for name, there in others.items():
        if there:
            yield where, f"is not modelled with {name}; remove one of the two"
    yield from _check_one_site(scenario, workers)


def _check_one_site(scenario: ScenarioFields, workers: int) -> Iterator[Complaint]:
    order = scenario.parallel.order
    slower = [axis for axis in order[order.index("dp") + 1 :] if getattr(scenario.parallel, axis) > 1]
    if scenario.cluster.built.machines_per_site and workers > 1 and slower:
        yield (
            ("parallel", "order"),
            f"{listed(slower)} varies slower than dp, so every worker is on all sites; set order to [tp, cp, pp, dp]",
        )
