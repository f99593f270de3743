"""Validation studies of training steps and memory, where each row of a table is a scenario.

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
from simcluster.documents.csv_tables import CsvRow, cell_texts_by_column, read_csv
from simcluster.documents.diagnostics import did_you_mean, join_or
from simcluster.documents.table_formulas import Formula, parse_formula, whole_float_to_int
from simcluster.evidence.validation.measured_columns import InlineTable, read_positive_cell
from simcluster.evidence.validation.reports import Report, ScoredPoint, StudyPlan, make_study_report
from simcluster.evidence.validation.study import (
    DerivedValue,
    MemoryStudy,
    ScenarioStudy,
    StepStudy,
    StudyColumn,
    StudyFile,
)
from simcluster.planning.footprint import StepCounts
from simcluster.scenario.cost_advice import describe_framework_support
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.scenario.prediction_intervals import RunFeatures, run_features_of
from simcluster.scenario.scenario import BaseScenario, Scenario
from simcluster.step.simulate import simulate_scenario

ENVIRONMENT = "SIMCLUSTER_DATA"


@dataclass(frozen=True, slots=True)
class MissingTable:
    """Table of measured runs that is not available, and the reason (where the table was expected)."""

    reason: str


def find_data_folder(folder: str | None) -> Path | None:
    """Return the folder of measured data: ``folder``, or else $SIMCLUSTER_DATA; None if neither is set.

    Raises InputError if the named folder does not exist.
    """
    name, what = (folder, "--data") if folder is not None else (os.environ.get(ENVIRONMENT), ENVIRONMENT)
    if not name:
        return None
    if not Path(name).is_dir():
        raise InputError(f"{what} names {name}, which is not a folder; name one with CSV files of measured runs")
    return Path(name)


def read_study_table(file: StudyFile, data: Path | None) -> tuple[CsvRow, ...] | MissingTable:
    """Read the rows of a study's table, in order; raise InputError with the line number if the CSV is invalid."""
    table = file.study.table
    if isinstance(table, InlineTable):
        head = table.header
        return tuple(
            CsvRow(number, dict(zip(head, map(whole_float_to_int, row), strict=True)), cell_texts_by_column(head, row))
            for number, row in enumerate(table.rows, start=1)
        )
    if "/" in table:
        path = file.document.folder / table
        if not path.is_file():
            raise file.key_error(("table",), f"there is no file {path}; a name without / is one in the data folder")
        return read_csv(path)
    if data is None:
        why = f"the folder of measured data is not given; name it with --data DIR or in {ENVIRONMENT}"
    elif (data / table).is_file():
        return read_csv(data / table)
    else:
        why = f"{data} has no {table}"
    original = f" (public original: {file.study.original})" if file.study.original else ""
    return MissingTable(f"needs {table}: {why}{original}")


RequestedNames = Iterable[tuple[tuple[str | int, ...], str | None]]
"""Columns or formulas that a study needs, each with its key in the study."""


def select_rows(
    file: StudyFile, rows: Sequence[CsvRow], columns: RequestedNames = (), formulas: RequestedNames = ()
) -> tuple[tuple[CsvRow, ...], int]:
    """Return the rows that satisfy the study's ``where`` formula, and the number of excluded rows.

    Raises InputError if no row does, for a column that the table lacks, and as ``check_formulas``.
    """
    for path, column in columns:
        if column not in rows[0].cells:
            raise _unknown_name_error(file, path, str(column), list(rows[0].cells), "its columns are")
    check_formulas(file, rows, [(("where",), file.study.where), *formulas])
    if file.study.where is None:
        return tuple(rows), 0
    formula: Formula = parse_formula(file.study.where)
    try:
        kept = tuple(row for row in rows if formula.evaluate(row.cells_by_formula_name()))
    except InputError as problem:
        raise file.key_error(("where",), problem) from None
    if not kept:
        raise file.key_error(("where",), f"none of the {len(rows)} rows satisfies {file.study.where!r}")
    return kept, len(rows) - len(kept)


def check_formulas(file: StudyFile, rows: Sequence[CsvRow], wanted: RequestedNames, names: Sequence[str] = ()) -> None:
    """Raise InputError if a formula uses a name that is neither a column nor in ``names``."""
    known = [*rows[0].cells_by_formula_name(), *names]
    for path, text in wanted:
        for name in parse_formula(text).column_names if text else ():
            if name not in known:
                raise _unknown_name_error(file, path, name, known, "formulas can use")


def _unknown_name_error(
    file: StudyFile, path: tuple[str | int, ...], name: str, known: Sequence[str], which: str
) -> InputError:
    near = did_you_mean(name, known)
    return file.key_error(path, f"the table has no column {name!r}{near}; {which} {join_or(known)}")


ScenarioChanges = Sequence[tuple[str, Any]]
"""Values at paths of a scenario."""


@dataclass(frozen=True, slots=True)
class StepTask:
    """Simulation task for a row of a study: a base scenario, and the changes that the row makes to it.

    Paths in the base are relative to ``folder``. ``parts`` of the breakdown count (empty: all), minus those of the
    scenario with the changes ``less``.
    """

    base: Mapping[str, Any] | str
    folder: Path
    changes: tuple[tuple[str, Any], ...]
    parts: tuple[str, ...] = ()
    less: tuple[tuple[str, Any], ...] = ()

    def build_scenario(self, changes: ScenarioChanges = ()) -> Scenario:
        """Build the row's scenario, with further changes ``changes``; raise InputError if the scenario is invalid."""
        return BaseScenario(self.base, str(self.folder)).with_changes((*self.changes, *changes))

    def simulate(self, make_scenario: Callable[[ScenarioChanges], Scenario] | None = None) -> SimulatedStepRow:
        """Simulate the row's scenario, or the measured part of the step; raise InputError if invalid.

        ``make_scenario`` (a function of further changes) replaces ``scenario``, for other constants than the built-in
        ones.
        """
        make_scenario = make_scenario or self.build_scenario
        result = simulate_scenario(make_scenario(()))
        times, breakdown = result.step_time, dict(result.times.breakdown)
        if self.less:
            smaller = simulate_scenario(make_scenario(self.less))
            times -= smaller.step_time
            breakdown = {name: seconds - smaller.times.breakdown[name] for name, seconds in breakdown.items()}
        if self.parts:
            breakdown = {name: seconds if name in self.parts else 0.0 for name, seconds in breakdown.items()}
            times = math.fsum(breakdown.values())
        kind = run_features_of(result.scenario, result.facts.model_flops)
        known = describe_framework_support(result.scenario)  # a measured run was launched, so this does not apply
        warnings = tuple(text for text in result.warnings() if text != known)
        return SimulatedStepRow(times, breakdown, result.facts.as_step_counts, warnings, kind)


@dataclass(frozen=True, slots=True)
class SimulatedStepRow:
    """Simulated row of a study: step time (s), breakdown, counts, warnings, and features of the run."""

    step_time: float
    breakdown: Mapping[str, float]
    facts: StepCounts
    warnings: tuple[str, ...]
    kind: RunFeatures


def plan_steps(file: StudyFile, study: StepStudy, table: tuple[CsvRow, ...]) -> StudyPlan:
    """Make the simulation tasks of a step study; raise InputError if the table lacks columns."""
    counted = study.measured.flop in ("model", "hardware")
    flop = [] if counted else [(("measured", "flop"), study.measured.flop)]
    rows, left_out = _select_scenario_rows(file, study, table, [(("measured", "column"), study.measured.column)], flop)
    parts, less = study.measured.parts, tuple(study.measured.less.items())
    tasks = (_make_step_task(file, study, row) for row in rows)
    measured = tuple(task if isinstance(task, str) else replace(task, parts=parts, less=less) for task in tasks)

    def score_row(row: CsvRow, label: str, result: SimulatedStepRow) -> list[ScoredPoint]:
        seconds, note = study.measured.seconds(row.cells, result.facts), "; ".join(result.warnings)
        point = ScoredPoint(label, study.name, result.step_time, seconds, 0.0, note, result.breakdown, result.kind)
        return [point]

    return StudyPlan(study.name, measured, partial(make_study_report, file, study, rows, left_out, score_row))


def report_memory(file: StudyFile, study: MemoryStudy, table: tuple[CsvRow, ...]) -> Report:
    """Validate a memory study and return its report; raise InputError if the table lacks columns."""
    columns = [(("measured", index, "column"), each.column) for index, each in enumerate(study.measured)]
    rows, left_out = _select_scenario_rows(file, study, table, columns)
    tasks = [_make_step_task(file, study, row) for row in rows]
    return make_study_report(file, study, rows, left_out, partial(_memory_points, study), tasks)


def _select_scenario_rows(
    file: StudyFile, study: ScenarioStudy, table: tuple[CsvRow, ...], columns: RequestedNames,
    formulas: RequestedNames = (),
) -> tuple[tuple[CsvRow, ...], int]:  # fmt: skip
    """Check all columns and formulas; then return the selected rows, and the number of excluded rows."""
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


def _make_step_task(file: StudyFile, study: ScenarioStudy, row: CsvRow) -> StepTask | str:
    changes: list[tuple[str, Any]] = list(study.set.items())
    try:
        for name, column in study.columns.items():
            changes += _cell_changes(name, column, row)
        cells = row.cells_by_formula_name()
        changes += [(path, parse_formula(formula).evaluate(cells)) for path, formula in study.derive.items()]
    except InputError as problem:
        return str(problem)
    base = study.scenario
    if isinstance(base, str) and ("/" in base or base.endswith((".yaml", ".yml"))):
        base = str(file.document.folder / base)
    return StepTask(base, file.document.folder, tuple(changes))


def _cell_changes(name: str, column: StudyColumn, row: CsvRow) -> Iterator[tuple[str, Any]]:
    cell, key = row.cells[name], row.texts[name]
    if cell is None:
        return
    known = column.sets if column.sets is not None else column.values
    if known is not None and key not in known:
        raise InputError(f"the study does not define the value {key!r} of column {name!r}; it defines {join_or(known)}")
    if column.sets is not None:
        for path, setting in column.sets[key].items():
            if isinstance(setting, DerivedValue):
                setting = parse_formula(setting.formula).evaluate(row.cells_by_formula_name())
            yield path, setting
        return
    value: Any = cell if column.values is None else column.values[key]
    for path in column.path:
        yield path, f"{value} {column.unit}" if column.unit else value


def _memory_points(study: MemoryStudy, row: CsvRow, label: str, task: StepTask) -> Iterator[ScoredPoint]:
    columns = [each for each in study.measured if row.cells[each.column] is not None]
    if not columns:
        names = ", ".join(each.column for each in study.measured)
        raise InputError(f"nothing was measured: all of {names} are empty")
    footprints = plan_footprints(task.build_scenario())
    for each in columns:
        whole = read_positive_cell(row.cells, each.column) * each.scale
        if each.baseline is not None:
            whole *= each.predicted_bytes(plan_footprints(task.build_scenario(list(each.baseline.items()))))
        yield ScoredPoint(
            label=label if len(study.measured) == 1 else f"{label}: {each.quantity.replace('_', ' ')}",
            group=study.name, predicted=each.predicted_bytes(footprints), measured=whole,
            note=f"{row.texts[each.column]} % of the baseline" if each.unit == "%" else "",
        )  # fmt: skip
