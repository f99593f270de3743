"""Validation studies of pipeline schedules: step times are simulated from measured pass times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, get_args

from simcluster.base.errors import InputError
from simcluster.base.units import is_number
from simcluster.documents.csv_tables import CsvRow
from simcluster.documents.table_formulas import Cell, parse_formula
from simcluster.evidence.validation.reports import ScoredPoint, StudyPlan, make_study_report
from simcluster.evidence.validation.step_studies import check_formulas, select_rows
from simcluster.evidence.validation.study import PassKind, ScheduleStudy, StudyFile
from simcluster.schedules import make_schedule
from simcluster.schedules.specs import InterleavedSpec, ZbAutoSpec
from simcluster.studies.bench.fixed_durations import Costs, seconds_between_steps, simulate_costs

_BOUNDARY_NAMES = ("from_stage", "to_stage")
"""Extra names in the formula of a message's seconds: the stages of the boundary that it crosses."""
_NUM_STEPS = 3  # if stages continue into the next step: from the second on all are equal


@dataclass(frozen=True, slots=True)
class SimulatedSchedule:
    """Simulated pipeline of a study's row: step time (s), the mean rank's breakdown, and measured time (s)."""

    step_time: float
    breakdown: Mapping[str, float]
    measured: float


@dataclass(frozen=True, slots=True)
class ScheduleTask:
    """Simulation task for a row of a schedule study: arguments of ``simulate_costs``, and the measured time (s)."""

    pipeline: Mapping[str, Any]
    measured: float

    def simulate(self) -> SimulatedSchedule:
        """Simulate the row's pipeline; raise InputError if its arguments are invalid."""
        run = simulate_costs(**self.pipeline)
        seconds = seconds_between_steps(run)
        states = dict(run.times.breakdown)
        states["bubble"] += seconds - math.fsum(states.values())  # only the first step fills the pipeline
        return SimulatedSchedule(seconds, states, self.measured)


def plan_schedules(file: StudyFile, study: ScheduleStudy, table: tuple[CsvRow, ...]) -> StudyPlan:
    """Make the simulation tasks of a schedule study; raise InputError if the table lacks columns."""
    labels = [(("label", index), column) for index, column in enumerate(study.label)]
    groups = [(("by", index), column) for index, column in enumerate(study.by)]
    rows, left_out = select_rows(file, table, [(("schedule", "column"), study.schedule.column), *labels, *groups])
    names = list(study.constants)
    for name, formula in study.derive.items():
        check_formulas(file, table, [(("derive", name), formula)], names)
        names.append(name)
    check_formulas(file, table, _list_study_formulas(study), names)
    check_formulas(file, table, [(("costs", "send"), study.costs.send)], [*names, *_BOUNDARY_NAMES])

    def plan_row(row: CsvRow) -> ScheduleTask | str:
        try:
            return _ScheduleRowReader(study, row).read_task()
        except InputError as problem:
            return str(problem)

    def score_row(row: CsvRow, label: str, result: SimulatedSchedule) -> list[ScoredPoint]:
        return [ScoredPoint(label, study.name, result.step_time, result.measured, breakdown=result.breakdown)]

    return StudyPlan(
        study.name, tuple(map(plan_row, rows)), partial(make_study_report, file, study, rows, left_out, score_row)
    )


def _list_study_formulas(study: ScheduleStudy) -> Iterator[tuple[tuple[str | int, ...], str | None]]:
    for name in (
        "stages", "microbatches", "chunks", "slowdown", "blocking_sends", "rendezvous", "optimizer_sync", "sync"
    ):  # fmt: skip
        yield (name,), getattr(study, name)
    yield ("measured",), study.measured
    yield from ((("costs", name), formula) for name, formula in study.costs if name != "send")
    for kind, sizes in study.slices.items():
        yield from ((("slices", kind, place), formula) for place, formula in sizes)
    for word, known in study.schedule.values.items():
        for name in ("memory_limit", "weight_memory", "group_size"):
            yield ("schedule", "values", word, name), getattr(known, name)


class _ScheduleRowReader:
    def __init__(self, study: ScheduleStudy, row: CsvRow) -> None:
        self._study, self._row = study, row
        self._cells: dict[str, Cell] = row.cells_by_formula_name()
        self._cells |= {name: constant.value for name, constant in study.constants.items()}
        for name, formula in study.derive.items():
            self._cells[name] = parse_formula(formula).evaluate(self._cells)

    def read_task(self) -> ScheduleTask:
        study = self._study
        stages, chunks = self._evaluate_count("stages", study.stages), self._evaluate_count("chunks", study.chunks)
        measured = self._evaluate_number("measured", study.measured)
        if not measured > 0:
            raise InputError(f"'measured': {study.measured!r} gives {measured:g} s; it must be above 0: remove the row")
        schedule = self._read_schedule(stages)
        microbatches = self._evaluate_count("microbatches", study.microbatches)
        route = [*range(stages)]
        if chunks > 1:  # in a loop, a V, or back and forth
            route = [stage for stage, _ in make_schedule(schedule, stages, microbatches, chunks).routes[0]]
        sync = self._evaluate_formula(study.optimizer_sync)
        pipeline = {
            "stages": stages, "microbatches": microbatches, "chunks": chunks, "schedule": schedule,
            "costs": self._slice_costs(route, chunks), "rendezvous": bool(self._evaluate_formula(study.rendezvous)),
            "blocking_sends": bool(self._evaluate_formula(study.blocking_sends)), "optimizer_sync": sync,
            "sync": self._evaluate_number("sync", study.sync), "steps": _NUM_STEPS if sync == "post_validation" else 1,
        }  # fmt: skip
        return ScheduleTask(pipeline, measured)

    def _evaluate_formula(self, formula: str, **more: int) -> Any:
        return parse_formula(formula).evaluate({**self._cells, **more})

    def _read_schedule(self, stages: int) -> str | InterleavedSpec | ZbAutoSpec:
        study, word = self._study, self._row.texts[self._study.schedule.column]
        known = study.schedule.values.get(word)
        if known is None:
            names = ", ".join(study.schedule.values)
            raise InputError(f"the study does not define the schedule {word!r}; it defines {names}")
        if known.name == "interleaved" and known.group_size:
            return InterleavedSpec(name="interleaved", group_size=self._evaluate_count("group_size", known.group_size))
        if known.name != "zb-auto":
            return known.name
        costs = study.costs
        return ZbAutoSpec(
            name="zb-auto",
            memory_limit=self._evaluate_count("memory_limit", known.memory_limit) if known.memory_limit else None,
            weight_memory=self._evaluate_number("weight_memory", known.weight_memory) if known.weight_memory else 1.0,
            forward=self._evaluate_number("forward", costs.forward),
            input=self._evaluate_number("input_grad", costs.input_grad),
            weight=self._evaluate_number("weight_grad", costs.weight_grad),
            latency=math.fsum(self._send_seconds(range(stages))) / max(stages - 1, 1),
        )

    def _send_seconds(self, route: Sequence[int]) -> list[float]:
        formula = self._study.costs.send
        return [
            self._evaluate_number("send", formula, from_stage=one, to_stage=other) for one, other in pairwise(route)
        ]

    def _slice_costs(self, route: Sequence[int], chunks: int) -> tuple[Costs, ...]:
        """Return each model slice's pass times: the mean slice's times, scaled by relative size and slowdown."""
        slices = len(route)
        slower = 1 + self._evaluate_number("slowdown", self._study.slowdown)
        seconds = {name: self._evaluate_number(name, formula) for name, formula in self._study.costs if name != "send"}
        forward, input_grad, weight_grad = (
            [seconds[kind] / chunks * slower * size for size in self._slice_sizes(kind, slices)]
            for kind in get_args(PassKind)
        )
        each: dict[str, Any] = {name: seconds[name] for name in ("launch", "send_launch")}
        each["optimizer"] = seconds["optimizer"] / chunks
        sends = [*self._send_seconds(route), 0.0]  # after each slice; none after the last or before the first
        backs = [0.0, *sends[:-1]]
        return tuple(
            Costs(forward=f, backward=i + w, weight_grad=w, send=send, send_back=back, **each)
            for f, i, w, send, back in zip(forward, input_grad, weight_grad, sends, backs, strict=True)
        )

    def _slice_sizes(self, kind: PassKind, slices: int) -> list[float]:
        given = self._study.slices.get(kind)
        if given is None or slices == 1:
            return [1.0] * slices
        first, inner, last = (self._evaluate_number(kind, text) for text in (given.first, given.inner, given.last))
        sizes = [first, *[inner] * (slices - 2), last]
        if min(sizes) < 0 or not sum(sizes):
            raise InputError(f"the slices of {kind} have sizes {first:g}, {inner:g}, {last:g}; none may be below zero")
        return [size * slices / math.fsum(sizes) for size in sizes]

    def _evaluate_number(self, what: str, formula: str, **more: int) -> float:
        value = self._evaluate_formula(formula, **more)
        if not is_number(value):
            raise InputError(f"{what}: the formula {formula!r} gives {value!r}; it must give a number")
        return float(value)

    def _evaluate_count(self, what: str, formula: str) -> int:
        value = self._evaluate_formula(formula)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{what}: the formula {formula!r} gives {value!r}; it must give a whole number from 1")
        return value
