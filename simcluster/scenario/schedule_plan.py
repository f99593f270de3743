"""What a scenario's pipeline is to planning: its schedule as data, the slices of the model, the grid of ranks.

Pure functions of a scenario; InputError for what cannot be, which the rules ask for first (``pipeline_rules``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed
from simcluster.documents.suggestions import near_divisors
from simcluster.planning.job import Slices
from simcluster.planning.parallel import Plan
from simcluster.scenario.outer_plan import workers_of
from simcluster.schedules import Schedule, make_schedule, schedules_with
from simcluster.schedules.actions import Route
from simcluster.schedules.specs import ScheduleChoice, ZbAuto
from simcluster.schedules.zb_auto import Times

if TYPE_CHECKING:
    from simcluster.scenario.fields import ScenarioFields

AUTO = "or pipeline.layers_per_stage: auto"


def schedule_of(scenario: ScenarioFields, costs: Times | None = None, latency: float = 0.0) -> Schedule:
    """The order of the scenario's microbatches; InputError where its schedule cannot be made for them.

    ``costs`` and ``latency`` are the run's own times, for schedules that are made for times.
    """
    what, chunks = scenario.pipeline.schedule, scenario.pipeline.chunks
    counts = scenario.parallel.pp, scenario.microbatches, chunks
    if what == "zb-auto":
        what = ZbAuto(name="zb-auto")
    if isinstance(what, ZbAuto) and what.goal is None:
        what = what.model_copy(update={"goal": "step"})  # the gradient norm is over all stages, so all wait for it
    return _made(what, *counts) if costs is None else make_schedule(what, *counts, costs=costs, latency=latency)


def goes_by_own_times(scenario: ScenarioFields) -> bool:
    """Is the schedule made for the times of the run?"""
    what = scenario.pipeline.schedule
    if isinstance(what, ZbAuto):
        return what.forward is None and what.input is None and what.weight is None
    return what in schedules_with("made_for_times")


def slices_of(scenario: ScenarioFields, schedule: Schedule) -> Slices | None:
    """How the layers are cut, None where the times of the run decide; InputError for a cut that does not go."""
    layers, wanted = scenario.model.layers, scenario.pipeline.layers_per_stage
    number, pp = len(schedule.routes[0]), scenario.parallel.pp
    if wanted == "even":
        if layers % number:
            fix = listed(near_divisors(layers, number))
            raise InputError(
                f"{schedule.name} on pp {pp} cuts the model into {number} slices of equally many layers, and "
                f"model.layers is {layers}; use a pp and schedule with {fix} slices, {AUTO}"
            )
        return Slices.even(layers, number)
    hollow = schedule.may_have_empty_ends
    if wanted == "auto":
        least = max(1, number - 2 * hollow)
        if layers < least:
            raise InputError(f"{layers} layers for {number} slices of the model; use as many or fewer slices")
        return None
    if len(wanted) not in (pp, number):
        also = f" or {number}, one for each slice" if number != pp else ""
        raise InputError(f"lists {len(wanted)} numbers; there must be {pp}, one for each stage{also}: write so many")
    if len(wanted) != number and len(schedule.routes) > 1:
        raise InputError(f"{schedule.name} holds the model more than once; list its {number} slices")
    if sum(wanted) != layers:
        counts = ", ".join(map(str, wanted))
        raise InputError(f"[{counts}] is {sum(wanted)} layers, and model.layers is {layers}; write numbers of that sum")
    slices = Slices(wanted) if len(wanted) == number else Slices.of_stages(wanted, schedule)
    empty = [place for place, count in enumerate(slices.counts) if not count]
    if scenario.pipeline.layout is not None:
        return slices  # where there is a layout, whoever wrote it knows what is empty
    if any(place not in (0, number - 1) for place in empty) or (empty and not hollow):
        where = f"slice {empty[0]} of {number} has no layer"
        rule = "only the first (embedding) and the last (LM head) can be without" if hollow else (
            f"{schedule.name} splits the backward, and a slice without layers has no I")  # fmt: skip
        raise InputError(f"{where}; {rule}: give it a layer of another")
    return slices


def copies_of(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Stages that hold the same slices of the model, nothing where each slice is on one stage only.

    InputError where the copies of a stage's slices are on different stages.
    """
    return _copies(schedule.name, schedule.num_stages, schedule.routes)


@lru_cache(maxsize=64)
def _copies(name: str, stages: int, routes: tuple[Route, ...]) -> tuple[tuple[int, ...], ...]:
    holders = [tuple(sorted({stage for stage, _ in hops})) for hops in zip(*routes, strict=True)]
    if all(len(held) == 1 for held in holders):
        return ()
    for stage in range(stages):
        found = sorted({held for held in holders if stage in held})
        if len(found) != 1 or len(found[0]) != len(holders[0]):
            raise InputError(
                f"{name}: the slices of stage {stage} have copies on stages {' and '.join(map(str, found))}; "
                f"gradients are summed over stages that hold the same slices, all of them as often"
            )
    return tuple(sorted(set(holders)))


@lru_cache(maxsize=64)
def _made(what: ScheduleChoice, stages: int, microbatches: int, chunks: int) -> Schedule:
    return make_schedule(what, stages, microbatches, chunks)


def plan_of(scenario: ScenarioFields, schedule: Schedule) -> Plan:
    """The grid of ranks, whose pipeline goes by a schedule."""
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
        workers=workers_of(scenario),
    )
