"""Studies of training jobs: each row becomes a scenario, whose step is simulated, or whose memory is planned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed
from simcluster.documents.expressions import parse_formula
from simcluster.documents.rows import Row
from simcluster.evidence.validation.measured import positive
from simcluster.evidence.validation.reports import Report, ScoredPoint, StudyPlan, report_of
from simcluster.evidence.validation.study import Column, DerivedValue, MemoryTable, OnScenarios, Steps, StudyFile
from simcluster.evidence.validation.tables import Asked, selected
from simcluster.planning.footprint import StepCounts
from simcluster.scenario.advice import launch_note
from simcluster.scenario.job import planned_footprints
from simcluster.scenario.likely import RunKind, kind_of
from simcluster.scenario.scenario import Base, Scenario
from simcluster.step.simulate import replay

Changes = Sequence[tuple[str, Any]]
"""Values at paths of a scenario."""


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

    def scenario(self, more: Changes = ()) -> Scenario:
        """Return its scenario, with ``more`` changed; InputError if it cannot be one."""
        return Base(self.base, str(self.folder)).scenario((*self.changes, *more))

    def played(self, scenario_of: Callable[[Changes], Scenario] | None = None) -> PlayedRow:
        """Simulate the row; InputError if it is a scenario that cannot be.

        ``scenario_of`` further changes replaces ``scenario``, for other constants than the built-in ones.
        """
        scenario_of = scenario_of or self.scenario
        result = replay(scenario_of(()))
        times, breakdown = result.step_time, dict(result.times.breakdown)
        if self.less:
            smaller = replay(scenario_of(self.less))
            times -= smaller.step_time
            breakdown = {name: seconds - smaller.times.breakdown[name] for name, seconds in breakdown.items()}
        if self.parts:
            breakdown = {name: seconds if name in self.parts else 0.0 for name, seconds in breakdown.items()}
            times = math.fsum(breakdown.values())
        kind = kind_of(result.scenario, result.facts.model_flops)
        known = launch_note(result.scenario)  # somebody did launch what was measured
        warnings = tuple(text for text in result.warnings() if text != known)
        return PlayedRow(times, breakdown, result.facts.counts, warnings, kind)


@dataclass(frozen=True, slots=True)
class PlayedRow:
    """What is kept of a simulated row: seconds of the step and of its breakdown, counts, warnings, its kind."""

    step_time: float
    breakdown: Mapping[str, float]
    facts: StepCounts
    warnings: tuple[str, ...]
    kind: RunKind


def plan_steps(file: StudyFile, study: Steps, table: tuple[Row, ...]) -> StudyPlan:
    """Return the tasks of a study.  Raises InputError where the study asks for columns that the table lacks."""
    counted = study.measured.flop in ("model", "hardware")
    flop = [] if counted else [(("measured", "flop"), study.measured.flop)]
    rows, left_out = _selected(file, study, table, [(("measured", "column"), study.measured.column)], flop)
    parts, less = study.measured.parts, tuple(study.measured.less.items())
    tasks = (_task_of(file, study, row) for row in rows)
    measured = tuple(task if isinstance(task, str) else replace(task, parts=parts, less=less) for task in tasks)

    def points(row: Row, label: str, played: PlayedRow) -> list[ScoredPoint]:
        seconds, note = study.measured.seconds(row.cells, played.facts), "; ".join(played.warnings)
        point = ScoredPoint(label, study.name, played.step_time, seconds, 0.0, note, played.breakdown, played.kind)
        return [point]

    return StudyPlan(study.name, measured, partial(report_of, file, study, rows, left_out, points))


def report_memory(file: StudyFile, study: MemoryTable, table: tuple[Row, ...]) -> Report:
    """Return the report of a study.  Raises InputError where the study asks for columns that the table lacks."""
    asked = [(("measured", index, "column"), each.column) for index, each in enumerate(study.measured)]
    rows, left_out = _selected(file, study, table, asked)
    tasks = [_task_of(file, study, row) for row in rows]
    return report_of(file, study, rows, left_out, partial(_memory, study), tasks)


def _selected(
    file: StudyFile, study: OnScenarios, table: tuple[Row, ...], columns: Asked, formulas: Asked = ()
) -> tuple[tuple[Row, ...], int]:
    """``selected``, with what makes scenarios of the rows."""
    placed = [(("columns", column), column) for column in study.columns]
    labels = [(("label", index), column) for index, column in enumerate(study.label)]
    derived: list[tuple[tuple[str | int, ...], str | None]] = [
        (("derive", path), formula) for path, formula in study.derive.items()
    ]
    derived += [
        (("columns", name, "sets", word, path), value.formula)
        for name, column in study.columns.items()
        for word, values in (column.sets or {}).items()
        for path, value in values.items()
        if isinstance(value, DerivedValue)
    ]
    return selected(file, table, [*placed, *labels, *columns], [*derived, *formulas])


def _task_of(file: StudyFile, study: OnScenarios, row: Row) -> RowTask | str:
    """Return the row as a scenario; the reason, if a cell has no meaning in this study."""
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


def _changes(name: str, column: Column, row: Row) -> Iterator[tuple[str, Any]]:
    """Yield what one cell sets in the scenario; nothing for an empty one."""
    cell, text = row.cells[name], row.texts[name]
    if cell is None:
        return
    known = column.sets if column.sets is not None else column.values
    if known is not None and text not in known:
        raise InputError(f"the study does not say what {text!r} in column {name!r} means; it knows {listed(known)}")
    if column.sets is not None:
        for path, said in column.sets[text].items():
            yield path, parse_formula(said.formula).value(row.by_name()) if isinstance(said, DerivedValue) else said
        return
    value: Any = cell if column.values is None else column.values[text]
    for path in column.path:
        yield path, f"{value} {column.unit}" if column.unit else value


def _memory(study: MemoryTable, row: Row, label: str, task: RowTask) -> Iterator[ScoredPoint]:
    asked = [each for each in study.measured if row.cells[each.column] is not None]
    if not asked:
        names = ", ".join(each.column for each in study.measured)
        raise InputError(f"has nothing measured: {names} are empty")
    footprints = planned_footprints(task.scenario())
    for each in asked:
        whole = positive(row.cells, each.column) * each.scale
        if each.baseline is not None:
            whole *= each.of_stages(planned_footprints(task.scenario(list(each.baseline.items()))))
        yield ScoredPoint(
            label=label if len(study.measured) == 1 else f"{label}: {each.quantity.replace('_', ' ')}",
            group=study.name,
            predicted=each.of_stages(footprints),
            measured=whole,
            note=f"{row.texts[each.column]} % of the baseline" if each.unit == "%" else "",
        )
