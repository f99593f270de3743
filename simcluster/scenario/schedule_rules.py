"""Rules on the pipeline: schedules, chunks, and layers per stage.

Pure functions of a scenario, called by ``rules``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import KeyProblem, did_you_mean, join_or
from simcluster.documents.suggestions import nearest_divisors
from simcluster.documents.trusted_text import is_function_reference
from simcluster.scenario.schedule_files import is_csv
from simcluster.scenario.schedule_plan import AUTO, schedule_of, slices_of, stage_copies_of
from simcluster.schedules import SCHEDULES, Schedule, schedules_with
from simcluster.schedules.specs import InterleavedSpec, OneFOneBSpec, RowsSpec
from simcluster.schedules.stage_layout import find_separate_prediction

if TYPE_CHECKING:
    from simcluster.scenario.scenario_fields import ScenarioFields


def _embedding_stages_match(schedule: Schedule, copies: tuple[tuple[int, ...], ...]) -> bool:
    first, last = schedule.routes[0][0][0], schedule.routes[0][-1][0]
    if copies:
        return any(first in stages and last in stages for stages in copies)
    return (first, last) in ((0, schedule.num_stages - 1), (schedule.num_stages - 1, 0))


def check_schedule_name(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    """Yield an error unless the schedule exists and supports this number of stages and chunks."""
    what, chunks = scenario.pipeline.schedule, scenario.pipeline.chunks
    if isinstance(what, RowsSpec):
        return
    name = what if isinstance(what, str) else what.name
    if name not in SCHEDULES:
        yield ("pipeline", "schedule"), _unknown_schedule_error(name)
    elif chunks > 1 and not SCHEDULES[name].takes_chunks:
        problem = f"{chunks} chunks need schedule {join_or(schedules_with('takes_chunks'))}, but the schedule is {name}"
        yield ("pipeline", "chunks"), f"{problem}; remove chunks, or change the schedule"
    elif SCHEDULES[name].needs_whole_groups and scenario.parallel.pp == 1:
        problem = f"{name} interleaves stages, which needs pp 2 or more, but parallel.pp is 1"
        yield ("pipeline", "schedule"), f"{problem}; use pp 2 or more, or the schedule 1f1b"


def _unknown_schedule_error(name: str) -> str:
    if is_csv(name) or is_function_reference(name):
        return f"{name} is a file, which was not read; create the scenario with simcluster.scenario(...)"
    return f"unknown schedule {name!r}{did_you_mean(name, SCHEDULES)}; known: {', '.join(SCHEDULES)}"


def check_stage_layers(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    """Yield an error unless the layers divide evenly over stages and chunks (if ``layers_per_stage`` is even)."""
    layers, pp, chunks = scenario.model.layers, scenario.parallel.pp, scenario.pipeline.chunks
    if scenario.pipeline.layers_per_stage != "even" or isinstance(scenario.pipeline.schedule, RowsSpec):
        return
    if layers % pp:
        what = f"pp {pp} does not divide model.layers {layers}; every stage must have the same number"
        yield ("parallel", "pp"), f"{what}: use pp {join_or(nearest_divisors(layers, pp))}, {AUTO}"
    elif layers % (pp * chunks):
        what = f"pp {pp} x chunks {chunks} = {pp * chunks} does not divide model.layers {layers}"
        fix = join_or(nearest_divisors(layers // pp, chunks))
        yield ("pipeline", "chunks"), f"{what}; every chunk must have the same number: use chunks {fix}, {AUTO}"


def check_finished_schedule(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    """Yield violated rules of the finished schedule, on microbatches, model copies and layers per slice."""
    try:
        schedule = schedule_of(scenario)
        copies = stage_copies_of(schedule)
    except InputError as error:
        yield ("pipeline", "schedule"), str(error)
        return
    zero = scenario.parallel.zero
    if copies and zero > 1:
        what = f"ZeRO {zero} is not modelled with {schedule.name}, which has several copies of the model"
        yield ("parallel", "zero"), f"{what}; use 0 or 1, or a schedule with one copy, such as dualpipe-v"
    if scenario.overlap.pairs:
        yield from _check_overlapped_pairs(scenario, schedule)
    ends = schedule.routes[0][0][0], schedule.routes[0][-1][0]
    shared = scenario.model.tied_embeddings or scenario.model.prediction_layers
    if (predicts := find_separate_prediction(scenario.pipeline.layout)) is not None:
        yield from _check_separate_prediction(scenario, schedule, predicts)
    elif shared and ends[0] != ends[1] and not _embedding_stages_match(schedule, copies):
        what = f"{schedule.name} has the embedding on stage {ends[0]} and the LM head on stage {ends[1]}"
        what += "; with tied embeddings or mtp_layers they must be on the first and last stage, or on one"
        yield ("pipeline", "schedule"), f"{what}: use 1f1b"
    try:
        slices_of(scenario, schedule)
    except InputError as error:
        even = scenario.pipeline.layers_per_stage == "even"
        yield ("pipeline", "schedule" if even else "layers_per_stage"), str(error)


def _check_separate_prediction(scenario: ScenarioFields, schedule: Schedule, number: int) -> Iterator[KeyProblem]:
    """Yield an error for what is not modelled with multi-token prediction in slice ``number``, not the last."""
    where, pp = ("pipeline", "layout"), scenario.parallel.pp
    what = f"slice {number} has 'm' (multi-token prediction)"
    if len(schedule.routes) > 1 or schedule.routes[0][number : number + 1] != ((number % pp, number // pp),):
        yield where, f"{what}, which {schedule.name} does not place on stage {number % pp}; use 1f1b or interleaved"
    if scenario.parallel.tp > 1 and scenario.pipeline.scatter_gather and not scenario.parallel.sequence_parallel:
        unsplit = "after it, sends that are split over tp (pipeline.scatter_gather) are not modelled"
        yield where, f"{what}; {unsplit}: set scatter_gather to false, or sequence_parallel to true"


def _check_overlapped_pairs(scenario: ScenarioFields, schedule: Schedule) -> Iterator[KeyProblem]:
    where, choice = ("overlap", "pairs"), scenario.pipeline.schedule
    asked = isinstance(choice, OneFOneBSpec | InterleavedSpec) and choice.pairs
    if not any(schedule.fused) and not asked:  # one microbatch has no pair
        what = f"{schedule.name} on pp {scenario.parallel.pp} has no fused pairs [F|B] whose halves could overlap"
        fix = "{name: 1f1b, pairs: forward-backward}, or dualpipe-v or {name: interleaved, pairs: true} on pp 2 or more"
        yield where, f"{what}; use {fix}, or set pairs to false"
    elif scenario.parallel.zero == 3:
        what = "zero 3 gathers a stage's parameters for one action at a time, but pairs run two at once"
        yield where, f"{what}; use zero 0, 1 or 2, or set pairs to false"
