"""Studies of training steps: each row becomes a scenario, is simulated, and its step time is compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed
from simcluster.documents.expressions import parse_formula
from simcluster.documents.rows import Row
from simcluster.evidence.validation.reports import Refused, Report, report_of
from simcluster.evidence.validation.scores import ScoredPoint
from simcluster.evidence.validation.study import Column, OnScenarios, Steps, StudyFile
from simcluster.evidence.validation.tables import check_columns, check_formulas, selected
from simcluster.planning.facts import Facts
from simcluster.scenario.launchable import launch_note
from simcluster.scenario.likely import RunKind, kind_of
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.variants import Base
from simcluster.simulate import simulate


@dataclass(frozen=True, slots=True)
class RowTask:
    """One row as a scenario to be played: the base, what the row changes, and the folder of paths in the base.

    ``parts`` of the breakdown count (empty: all), less those of the scenario with the changes ``less``.
    """

    base: Mapping[str, Any] | str
    folder: Path
    changes: tuple[tuple[str, Any], ...]
    parts: tuple[str, ...] = ()
    less: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class PlayedRow:
    """What is kept of a simulated row: seconds of the step and of its breakdown, facts, warnings, its kind."""

    step_time: float
    breakdown: Mapping[str, float]
    facts: Facts
    warnings: tuple[str, ...]
    kind: RunKind


@dataclass(frozen=True, slots=True)
class StepsPlan:
    """A study that has been checked against its table: a task a row, or why the row has none."""

    file: StudyFile
    study: Steps
    rows: tuple[Row, ...]
    tasks: tuple[RowTask | str, ...]
    left_out: int


def plan_steps(file: StudyFile, study: Steps, table: tuple[Row, ...]) -> StepsPlan:
    """The tasks of a study.  Raises InputError where the study asks for columns that the table lacks."""
    check_asked(file, study, table)
    check_columns(file, table, [(("measured", "column"), study.measured.column)])
    if study.measured.flop not in ("model", "hardware"):
        check_formulas(file, table, [(("measured", "flop"), study.measured.flop)])
    rows, left_out = selected(file, table)
    tasks = (_measured_of(task_of(file, study, row), study) for row in rows)
    return StepsPlan(file, study, rows, tuple(tasks), left_out)


def check_asked(file: StudyFile, study: OnScenarios, table: tuple[Row, ...]) -> None:
    """Raises InputError where what makes scenarios of the rows asks for columns that the table lacks."""
    check_columns(file, table, _columns(study))
    check_formulas(file, table, _formulas(study))


def _columns(study: OnScenarios) -> Iterator[tuple[tuple[str | int, ...], str]]:
    yield from ((("columns", column), column) for column in study.columns)
    yield from ((("label", index), column) for index, column in enumerate(study.label))


def _formulas(study: OnScenarios) -> Iterator[tuple[tuple[str | int, ...], str | None]]:
    yield ("where",), study.where
    yield from ((("derive", path), formula) for path, formula in study.derive.items())


def task_of(file: StudyFile, study: OnScenarios, row: Row) -> RowTask | str:
    """The row as a scenario; the reason, if a cell has no meaning in this study."""
    changes: list[tuple[str, Any]] = list(study.set.items())
    try:
        for name, column in study.columns.items():
            changes += _changes(name, column, row)
        cells = row.by_name()
        changes += [(path, parse_formula(formula).value(cells)) for path, formula in study.derive.items()]
    except InputError as problem:
        return str(problem)
    base = study.scenario
    if isinstance(base, str) and ("/" in base or base.endswith((".yaml", ".yml"))):
        base = str(file.document.folder / base)
    return RowTask(base, file.document.folder, tuple(changes))


def _measured_of(task: RowTask | str, study: Steps) -> RowTask | str:
    """The task with the part of the step that was measured."""
    if isinstance(task, str):
        return task
    return replace(task, parts=study.measured.parts, less=tuple(study.measured.less.items()))


def _changes(name: str, column: Column, row: Row) -> Iterator[tuple[str, Any]]:
    """What one cell sets in the scenario; nothing for an empty one."""
    cell, text = row.cells[name], row.texts[name]
    if cell is None:
        return
    known = column.sets if column.sets is not None else column.values
    if known is not None and text not in known:
        raise InputError(f"the study does not say what {text!r} in column {name!r} means; it knows {listed(known)}")
    if column.sets is not None:
        yield from column.sets[text].items()
        return
    value: Any = cell if column.values is None else column.values[text]
    for path in column.path:
        yield path, f"{value} {column.unit}" if column.unit else value


def play(task: RowTask) -> PlayedRow | str:
    """The row simulated; the message, if it is a scenario that cannot be.  Runs in a worker process too."""
    try:
        result = simulate(scenario_of(task))
        smaller = simulate(scenario_of(replace(task, changes=(*task.changes, *task.less)))) if task.less else None
    except InputError as problem:
        return str(problem)
    times, breakdown = result.step_time, dict(result.times.breakdown)
    if smaller:
        times -= smaller.step_time
        breakdown = {name: seconds - smaller.times.breakdown[name] for name, seconds in breakdown.items()}
    if task.parts:
        breakdown = {name: seconds if name in task.parts else 0.0 for name, seconds in breakdown.items()}
        times = math.fsum(breakdown.values())
    kind = kind_of(result.scenario, result.facts.model_flops)
    known = launch_note(result.scenario)  # somebody did launch what was measured
    warnings = tuple(text for text in result.warnings() if text != known)
    return PlayedRow(times, breakdown, result.facts, warnings, kind)


def scenario_of(task: RowTask) -> Scenario:
    """The scenario that a task stands for; InputError if it cannot be."""
    return Base(task.base, str(task.folder)).scenario(task.changes)


def report_steps(plan: StepsPlan, played: Mapping[int, PlayedRow | str]) -> Report:
    """The report of a study from what its tasks gave, by their position."""
    study = plan.study
    points: list[ScoredPoint] = []
    refused: list[Refused] = []
    for index, (row, task) in enumerate(zip(plan.rows, plan.tasks, strict=True)):
        label = row.label(study.label)
        answer = task if isinstance(task, str) else played[index]
        try:
            if isinstance(answer, str):
                raise InputError(answer)
            points.append(_point(label, study, row, answer))
        except InputError as problem:
            refused.append(Refused(label, study.name, str(problem)))
    return report_of(plan.file, study, points, refused, plan.left_out)


def _point(label: str, study: Steps, row: Row, played: PlayedRow) -> ScoredPoint:
    return ScoredPoint(
        label=label,
        group=study.name,
        predicted=played.step_time,
        measured=study.measured.seconds(row.cells, played.facts),
        note="; ".join(played.warnings),
        breakdown=played.breakdown,
        kind=played.kind,
    )
