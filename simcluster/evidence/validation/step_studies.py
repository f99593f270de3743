"""Validation studies of training steps and memory: tables of measured runs, each row a scenario.

The long tables of measured runs are not part of the project. They lie in a directory that ``--data`` or the environment
variable SIMCLUSTER_DATA names; a study whose file is missing is skipped, with that reason.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.csv_numbers import Row, cell_texts, read_csv
from simcluster.documents.diagnostics import did_you_mean, listed
from simcluster.documents.expressions import Formula, int_if_whole, parse_formula
from simcluster.evidence.validation.measured_columns import InlineTable, positive_cell
from simcluster.evidence.validation.reports import Report, ScoredPoint, StudyPlan, make_report
from simcluster.evidence.validation.study import (
    DerivedValue,
    MemoryStudy,
    ScenarioStudy,
    StepStudy,
    StudyColumn,
    StudyFile,
)
from simcluster.planning.footprint import StepCounts
from simcluster.scenario.advice import launch_note
from simcluster.scenario.job import planned_footprints
from simcluster.scenario.likely import RunKind, run_kind_of
from simcluster.scenario.scenario import Base, Scenario
from simcluster.step.simulate import simulate_scenario

ENVIRONMENT = "SIMCLUSTER_DATA"


@dataclass(frozen=True, slots=True)
class MissingTable:
    """Table of measured runs that is not available; ``reason`` states where it and the original should be."""

    reason: str


def data_folder(given: str | None) -> Path | None:
    """Return the directory of measured data: ``given``, or $SIMCLUSTER_DATA; None if neither is set.

    InputError if the named directory does not exist.
    """
    name, what = (given, "--data") if given is not None else (os.environ.get(ENVIRONMENT), ENVIRONMENT)
    if not name:
        return None
    if not Path(name).is_dir():
        raise InputError(f"{what} names {name}, which is not a folder; name one with CSV files of measured runs")
    return Path(name)


def read_study_table(file: StudyFile, data: Path | None) -> tuple[Row, ...] | MissingTable:
    """Return the rows of a study's table in order; InputError, naming the line, for an invalid CSV file."""
    table = file.study.table
    if isinstance(table, InlineTable):
        return tuple(
            Row(number, dict(zip(table.header, map(int_if_whole, cells), strict=True)), cell_texts(table.header, cells))
            for number, cells in enumerate(table.rows, start=1)
        )
    if "/" in table:
        path = file.document.folder / table
        if not path.is_file():
            raise file.error(("table",), f"there is no file {path}; a bare name is looked for in the data directory")
        return read_csv(path)
    if data is None:
        why = f"no directory of measured data is given; name it with --data DIR or in {ENVIRONMENT}"
    elif (data / table).is_file():
        return read_csv(data / table)
    else:
        why = f"{data} has no {table}"
    original = f" (public original: {file.study.original})" if file.study.original else ""
    return MissingTable(f"needs {table}: {why}{original}")


RequestedNames = Iterable[tuple[tuple[str | int, ...], str | None]]
"""Columns or formulas that a study needs, each with its key in the study."""


def select_rows(
    file: StudyFile, rows: Sequence[Row], columns: RequestedNames = (), formulas: RequestedNames = ()
) -> tuple[tuple[Row, ...], int]:
    """Return the rows that satisfy the study's ``where``, and the number of excluded rows.

    InputError if none does, for the first column that the table lacks, and as ``check_formulas``.
    """
    for path, column in columns:
        if column not in rows[0].cells:
            raise _missing_name(file, path, str(column), list(rows[0].cells), "it has")
    check_formulas(file, rows, [(("where",), file.study.where), *formulas])
    if file.study.where is None:
        return tuple(rows), 0
    formula: Formula = parse_formula(file.study.where)
    try:
        kept = tuple(row for row in rows if formula.evaluate(row.named_cells()))
    except InputError as problem:
        raise file.error(("where",), problem) from None
    if not kept:
        raise file.error(("where",), f"none of the {len(rows)} rows satisfies {file.study.where!r}")
    return kept, len(rows) - len(kept)


def check_formulas(file: StudyFile, rows: Sequence[Row], wanted: RequestedNames, names: Sequence[str] = ()) -> None:
    """Raise InputError for the first formula with an unknown name: neither a column nor one of ``names``."""
    known = [*rows[0].named_cells(), *names]
    for path, text in wanted:
        for name in parse_formula(text).names if text else ():
            if name not in known:
                raise _missing_name(file, path, name, known, "formulas know")


def _missing_name(
    file: StudyFile, path: tuple[str | int, ...], name: str, known: Sequence[str], which: str
) -> InputError:
    near = did_you_mean(name, known)
    return file.error(path, f"the table has no column {name!r}{near}; {which} {listed(known)}")


Changes = Sequence[tuple[str, Any]]
"""Values at paths of a scenario."""


@dataclass(frozen=True, slots=True)
class RowTask:
    """Row of a study as a scenario to simulate: the base scenario, and the row's changes to it.

    ``folder`` is that of paths in the base. ``parts`` of the breakdown count (empty: all), minus those of the scenario
    with the changes ``less``.
    """

    base: Mapping[str, Any] | str
    folder: Path
    changes: tuple[tuple[str, Any], ...]
    parts: tuple[str, ...] = ()
    less: tuple[tuple[str, Any], ...] = ()

    def scenario(self, more: Changes = ()) -> Scenario:
        """Return the row's scenario with further changes ``more``; InputError if it is invalid."""
        return Base(self.base, str(self.folder)).scenario((*self.changes, *more))

    def simulate(self, scenario_of: Callable[[Changes], Scenario] | None = None) -> SimulatedRow:
        """Simulate the row's scenario, or the measured part of its step; InputError if it is invalid.

        ``scenario_of`` (a function of further changes) replaces ``scenario``, for other constants than the built-in
        ones.
        """
        scenario_of = scenario_of or self.scenario
        result = simulate_scenario(scenario_of(()))
        times, breakdown = result.step_time, dict(result.times.breakdown)
        if self.less:
            smaller = simulate_scenario(scenario_of(self.less))
            times -= smaller.step_time
            breakdown = {name: seconds - smaller.times.breakdown[name] for name, seconds in breakdown.items()}
        if self.parts:
            breakdown = {name: seconds if name in self.parts else 0.0 for name, seconds in breakdown.items()}
            times = math.fsum(breakdown.values())
        kind = run_kind_of(result.scenario, result.facts.model_flops)
        known = launch_note(result.scenario)  # a measured run was launched, so this does not apply
        warnings = tuple(text for text in result.warnings() if text != known)
        return SimulatedRow(times, breakdown, result.facts.counts, warnings, kind)


@dataclass(frozen=True, slots=True)
class SimulatedRow:
    """Result of a simulated row: step time (s), breakdown, counts, warnings, and kind of run."""

    step_time: float
    breakdown: Mapping[str, float]
    facts: StepCounts
    warnings: tuple[str, ...]
    kind: RunKind


def plan_steps(file: StudyFile, study: StepStudy, table: tuple[Row, ...]) -> StudyPlan:
    """Return the simulation tasks of a step study; InputError if its table lacks columns."""
    counted = study.measured.flop in ("model", "hardware")
    flop = [] if counted else [(("measured", "flop"), study.measured.flop)]
    rows, left_out = _select_scenario_rows(file, study, table, [(("measured", "column"), study.measured.column)], flop)
    parts, less = study.measured.parts, tuple(study.measured.less.items())
    tasks = (_row_task(file, study, row) for row in rows)
    measured = tuple(task if isinstance(task, str) else replace(task, parts=parts, less=less) for task in tasks)

    def score_row(row: Row, label: str, result: SimulatedRow) -> list[ScoredPoint]:
        seconds, note = study.measured.seconds(row.cells, result.facts), "; ".join(result.warnings)
        point = ScoredPoint(label, study.name, result.step_time, seconds, 0.0, note, result.breakdown, result.kind)
        return [point]

    return StudyPlan(study.name, measured, partial(make_report, file, study, rows, left_out, score_row))


def report_memory(file: StudyFile, study: MemoryStudy, table: tuple[Row, ...]) -> Report:
    """Return the validation report of a memory study; InputError if its table lacks columns."""
    columns = [(("measured", index, "column"), each.column) for index, each in enumerate(study.measured)]
    rows, left_out = _select_scenario_rows(file, study, table, columns)
    tasks = [_row_task(file, study, row) for row in rows]
    return make_report(file, study, rows, left_out, partial(_memory_points, study), tasks)


def _select_scenario_rows(
    file: StudyFile, study: ScenarioStudy, table: tuple[Row, ...], columns: RequestedNames,
    formulas: RequestedNames = (),
) -> tuple[tuple[Row, ...], int]:  # fmt: skip
    """Return the selected rows, and the number of others, after checking all columns and formulas."""
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
    return select_rows(file, table, [*placed, *labels, *columns], [*derived, *formulas])


def _row_task(file: StudyFile, study: ScenarioStudy, row: Row) -> RowTask | str:
    changes: list[tuple[str, Any]] = list(study.set.items())
    try:
        for name, column in study.columns.items():
            changes += _cell_changes(name, column, row)
        cells = row.named_cells()
        changes += [(path, parse_formula(formula).evaluate(cells)) for path, formula in study.derive.items()]
    except InputError as problem:
        return str(problem)
    base = study.scenario
    if isinstance(base, str) and ("/" in base or base.endswith((".yaml", ".yml"))):
        base = str(file.document.folder / base)
    return RowTask(base, file.document.folder, tuple(changes))


def _cell_changes(name: str, column: StudyColumn, row: Row) -> Iterator[tuple[str, Any]]:
    cell, text = row.cells[name], row.texts[name]
    if cell is None:
        return
    known = column.sets if column.sets is not None else column.values
    if known is not None and text not in known:
        raise InputError(f"the study does not define the value {text!r} of column {name!r}; it defines {listed(known)}")
    if column.sets is not None:
        for path, setting in column.sets[text].items():
            yield (
                path,
                parse_formula(setting.formula).evaluate(row.named_cells())
                if isinstance(setting, DerivedValue)
                else setting,
            )
        return
    value: Any = cell if column.values is None else column.values[text]
    for path in column.path:
        yield path, f"{value} {column.unit}" if column.unit else value


def _memory_points(study: MemoryStudy, row: Row, label: str, task: RowTask) -> Iterator[ScoredPoint]:
    columns = [each for each in study.measured if row.cells[each.column] is not None]
    if not columns:
        names = ", ".join(each.column for each in study.measured)
        raise InputError(f"nothing was measured: {names} are empty")
    footprints = planned_footprints(task.scenario())
    for each in columns:
        whole = positive_cell(row.cells, each.column) * each.scale
        if each.baseline is not None:
            whole *= each.predicted_bytes(planned_footprints(task.scenario(list(each.baseline.items()))))
        yield ScoredPoint(
            label=label if len(study.measured) == 1 else f"{label}: {each.quantity.replace('_', ' ')}",
            group=study.name, predicted=each.predicted_bytes(footprints), measured=whole,
            note=f"{row.texts[each.column]} % of the baseline" if each.unit == "%" else "",
        )  # fmt: skip
