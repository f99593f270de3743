"""Rules of a scenario's pipeline: its schedule can be made, and every slice of the model has its layers.

Pure functions of a scenario.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import Complaint, did_you_mean, listed
from simcluster.documents.suggestions import near_divisors
from simcluster.scenario.schedule_files import is_csv, is_function
from simcluster.scenario.schedule_plan import AUTO, copies_of, schedule_of, slices_of
from simcluster.schedules import SCHEDULES, Schedule, schedules_with
from simcluster.schedules.specs import Rows

if TYPE_CHECKING:
    from simcluster.scenario.fields import ScenarioFields


def _ends_meet(schedule: Schedule, copies: tuple[tuple[int, ...], ...]) -> bool:
    """Are tied embeddings where their gradients can be summed: on one stage, or once each on the first and last?"""
    first, last = schedule.routes[0][0][0], schedule.routes[0][-1][0]
    if copies:
        return any(first in stages and last in stages for stages in copies)
    return (first, last) in ((0, schedule.num_stages - 1), (schedule.num_stages - 1, 0))


def schedule_rules(scenario: ScenarioFields) -> Iterator[Complaint]:
    """The schedule exists, and has the stages and chunks that it needs."""
    what, chunks = scenario.pipeline.schedule, scenario.pipeline.chunks
    if isinstance(what, Rows):
        return
    name = scenario.pipeline.schedule_name
    if name not in SCHEDULES:
        yield ("pipeline", "schedule"), _unknown(name)
    elif chunks > 1 and not SCHEDULES[name].takes_chunks:
        problem = f"{chunks} chunks need the schedule {listed(schedules_with('takes_chunks'))}, and it is {name}"
        yield ("pipeline", "chunks"), f"{problem}; leave chunks out, or change the schedule"
    elif SCHEDULES[name].in_groups and scenario.parallel.pp == 1:
        problem = f"{name} needs stages to take turns on, and parallel.pp is 1"
        yield ("pipeline", "schedule"), f"{problem}; use pp 2 or more, or the schedule 1f1b"


def _unknown(name: str) -> str:
    if is_csv(name) or is_function(name):
        return f"{name} is read from a file, which needs a scenario that is loaded (simcluster.load) and can be planned"
    return f"unknown schedule {name!r}{did_you_mean(name, SCHEDULES)}; known: {', '.join(SCHEDULES)}"


def stage_rules(scenario: ScenarioFields) -> Iterator[Complaint]:
    """Where nothing else is asked for, every stage and chunk has as many layers as the others."""
    layers, pp, chunks = scenario.model.layers, scenario.parallel.pp, scenario.pipeline.chunks
    if scenario.pipeline.layers_per_stage != "even" or isinstance(scenario.pipeline.schedule, Rows):
        return
    if layers % pp:
        what = f"pp {pp} does not divide model.layers {layers}; every stage holds as many layers"
        yield ("parallel", "pp"), f"{what}: use pp {listed(near_divisors(layers, pp))}, {AUTO}"
    elif layers % (pp * chunks):
        what = f"pp {pp} x chunks {chunks} = {pp * chunks} does not divide model.layers {layers}"
        fix = listed(near_divisors(layers // pp, chunks))
        yield ("pipeline", "chunks"), f"{what}; every chunk holds as many layers: use chunks {fix}, {AUTO}"


def order_rules(scenario: ScenarioFields) -> Iterator[Complaint]:
    """The schedule can be made of these microbatches, and every slice of the model gets its layers."""
    try:
        schedule = schedule_of(scenario)
    except InputError as error:
        yield ("pipeline", "schedule"), str(error)
        return
    try:
        copies = copies_of(schedule)
    except InputError as error:
        yield ("pipeline", "schedule"), str(error)
        return
    zero = scenario.parallel.zero
    if copies and zero > 1:
        what = f"ZeRO {zero} is not modelled with {schedule.name}, which holds the model more than once"
        yield ("parallel", "zero"), f"{what}; use 0 or 1, or a schedule that holds it once, such as dualpipe-v"
    yield from _pairs(scenario, schedule)
    ends = schedule.routes[0][0][0], schedule.routes[0][-1][0]
    shared = scenario.model.tied_embeddings or scenario.model.predicting
    if shared and ends[0] != ends[1] and not _ends_meet(schedule, copies):
        what = f"{schedule.name} has the embedding on stage {ends[0]} and the LM head on stage {ends[1]}"
        yield (
            ("pipeline", "schedule"),
            f"{what}; tied ones (with mtp_layers any) must be on the first and the last stage, or on one",
        )
    try:
        slices_of(scenario, schedule)
    except InputError as error:
        even = scenario.pipeline.layers_per_stage == "even"
        yield ("pipeline", "schedule" if even else "layers_per_stage"), str(error)


def _pairs(scenario: ScenarioFields, schedule: Schedule) -> Iterator[Complaint]:
    """There are fused pairs whose halves can run beside each other."""
    where = ("overlap", "pairs")
    if scenario.overlap.pairs and not any(schedule.fused):
        what = f"{schedule.name} on pp {scenario.parallel.pp} has no fused pairs [F|B] whose halves could overlap"
        fix = "dualpipe, dualpipe-v or {name: interleaved, pairs: true} on pp 2 or more"
        yield where, f"{what}; use {fix}, or set it to false"
    elif scenario.overlap.pairs and scenario.parallel.zero == 3:
        what = "zero 3 gathers a stage's parameters action after action, and not for two at once"
        yield where, f"{what}; use zero 0, 1 or 2, or set it to false"
