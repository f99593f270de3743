"""Rules of a scenario's pipeline: its schedule can be made, and every slice of the model has its layers.

Also what the checked scenario stands for: the schedule as data, and the slices.  Pure functions of a scenario.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from simcluster.documents.complaints import Complaint, did_you_mean, listed
from simcluster.documents.near import near_divisors
from simcluster.errors import InputError
from simcluster.inputs.schedule_files import is_csv, is_function
from simcluster.planning.step_plan import Slices
from simcluster.schedules import SCHEDULES, TAKES_CHUNKS, Schedule, make_schedule
from simcluster.schedules.specs import Rows, ScheduleChoice, ZbAuto
from simcluster.schedules.zb_auto import Times

if TYPE_CHECKING:
    from simcluster.scenario.fields import ScenarioFields

_AUTO = "or pipeline.layers_per_stage: auto"


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
    return what == "zb-auto"


def slices_of(scenario: ScenarioFields, schedule: Schedule) -> Slices | None:
    """How the layers are cut, None where the times of the run decide; InputError for a cut that does not go."""
    layers, wanted = scenario.model.layers, scenario.pipeline.layers_per_stage
    number, pp = len(schedule.routes[0]), scenario.parallel.pp
    if wanted == "even":
        if layers % number:
            fix = listed(near_divisors(layers, number))
            raise InputError(
                f"{schedule.name} on pp {pp} cuts the model into {number} slices of equally many layers, and "
                f"model.layers is {layers}; use a pp and schedule with {fix} slices, {_AUTO}"
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
        raise InputError(f"lists {len(wanted)} numbers; there must be {pp}, one for each stage{also}")
    if len(wanted) != number and len(schedule.routes) > 1:
        raise InputError(f"{schedule.name} holds the model more than once; list its {number} slices")
    if sum(wanted) != layers:
        raise InputError(f"[{', '.join(map(str, wanted))}] is {sum(wanted)} layers, and model.layers is {layers}")
    slices = Slices(wanted) if len(wanted) == number else Slices.of_stages(wanted, schedule)
    empty = [place for place, count in enumerate(slices.counts) if not count]
    if any(place not in (0, number - 1) for place in empty) or (empty and not hollow):
        where = f"slice {empty[0]} of {number} has no layer"
        rule = "only the first (embedding) and the last (LM head) can be without" if hollow else (
            f"{schedule.name} splits the backward, and a slice without layers has no I")  # fmt: skip
        raise InputError(f"{where}; {rule}")
    return slices


def copies_of(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Stages that hold the same slices of the model, nothing where each slice is on one stage only.

    InputError where the copies of a stage's slices are on different stages.
    """
    holders = [tuple(sorted({stage for stage, _ in hops})) for hops in zip(*schedule.routes, strict=True)]
    if all(len(stages) == 1 for stages in holders):
        return ()
    for stage in range(schedule.num_stages):
        found = sorted({stages for stages in holders if stage in stages})
        if len(found) != 1 or len(found[0]) != len(holders[0]):
            raise InputError(
                f"{schedule.name}: the slices of stage {stage} have copies on stages {' and '.join(map(str, found))}; "
                f"gradients are summed over stages that hold the same slices, all of them as often"
            )
    return tuple(sorted(set(holders)))


@lru_cache(maxsize=16)
def _made(what: ScheduleChoice, stages: int, microbatches: int, chunks: int) -> Schedule:
    return make_schedule(what, stages, microbatches, chunks)


def _ends_meet(schedule: Schedule, copies: tuple[tuple[int, ...], ...]) -> bool:
    """Are tied embeddings where their gradients can be summed: on one stage, or once each on the first and last?"""
    first, last = schedule.routes[0][0][0], schedule.routes[0][-1][0]
    if copies:
        return any(first in stages and last in stages for stages in copies)
    return (first, last) in ((0, schedule.num_stages - 1), (schedule.num_stages - 1, 0))


# --- rules ------------------------------------------------------------------------------------------------------------


def schedule_rules(scenario: ScenarioFields) -> Iterator[Complaint]:
    """The schedule exists, and has the stages and chunks that it needs."""
    what, chunks = scenario.pipeline.schedule, scenario.pipeline.chunks
    if isinstance(what, Rows):
        return
    name = scenario.pipeline.schedule_name
    if name not in SCHEDULES:
        yield ("pipeline", "schedule"), _unknown(name)
    elif chunks > 1 and name not in TAKES_CHUNKS:
        problem = f"{chunks} chunks need the schedule {listed(TAKES_CHUNKS)}, and it is {name}"
        yield ("pipeline", "chunks"), f"{problem}; leave chunks out, or change the schedule"
    elif name == "interleaved" and scenario.parallel.pp == 1:
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
        yield ("parallel", "pp"), f"{what}: use pp {listed(near_divisors(layers, pp))}, {_AUTO}"
    elif layers % (pp * chunks):
        what = f"pp {pp} x chunks {chunks} = {pp * chunks} does not divide model.layers {layers}"
        fix = listed(near_divisors(layers // pp, chunks))
        yield ("pipeline", "chunks"), f"{what}; every chunk holds as many layers: use chunks {fix}, {_AUTO}"


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
    if scenario.model.tied_embeddings and ends[0] != ends[1] and not _ends_meet(schedule, copies):
        what = f"{schedule.name} has the embedding on stage {ends[0]} and the LM head on stage {ends[1]}"
        yield ("pipeline", "schedule"), f"{what}; tied ones must be on the first and the last stage, or on one"
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
