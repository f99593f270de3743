"""Studies of memory: each row becomes a scenario, and what its stages hold is compared with what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.rows import Row
from simcluster.evidence.validation.measured import positive
from simcluster.evidence.validation.memory_study import MeasuredBytes
from simcluster.evidence.validation.reports import Refused, Report, report_of
from simcluster.evidence.validation.scores import ScoredPoint
from simcluster.evidence.validation.steps import RowTask, check_asked, scenario_of, task_of
from simcluster.evidence.validation.study import MemoryTable, StudyFile
from simcluster.evidence.validation.tables import check_columns, selected
from simcluster.planning.footprint import Footprint
from simcluster.scenario.job import planned_footprints


def report_memory(file: StudyFile, study: MemoryTable, table: tuple[Row, ...]) -> Report:
    """The report of a study.  Raises InputError where the study asks for columns that the table lacks."""
    check_asked(file, study, table)
    asked = [(("measured", index, "column"), each.column) for index, each in enumerate(study.measured)]
    check_columns(file, table, asked)
    rows, left_out = selected(file, table)
    points: list[ScoredPoint] = []
    refused: list[Refused] = []
    for row in rows:
        label = row.label(study.label)
        try:
            points += _points(label, study, row, task_of(file, study, row))
        except InputError as problem:
            refused.append(Refused(label, study.name, str(problem)))
    return report_of(file, study, points, refused, left_out)


def _points(label: str, study: MemoryTable, row: Row, task: RowTask | str) -> Iterator[ScoredPoint]:
    if isinstance(task, str):
        raise InputError(task)
    asked = [each for each in study.measured if row.cells[each.column] is not None]
    if not asked:
        names = ", ".join(each.column for each in study.measured)
        raise InputError(f"has nothing measured: {names} are empty")
    footprints = planned_footprints(scenario_of(task))
    for each in asked:
        whole = positive(row.cells, each.column) * each.scale
        if each.baseline is not None:
            whole *= each.of_stages(_changed(task, list(each.baseline.items())))
        yield ScoredPoint(
            label=label if len(study.measured) == 1 else f"{label}: {_named(each)}",
            group=study.name,
            predicted=each.of_stages(footprints),
            measured=whole,
            note=f"{row.texts[each.column]} % of the baseline" if each.unit == "%" else "",
        )


def _changed(task: RowTask, changes: Sequence[tuple[str, Any]]) -> tuple[Footprint, ...]:
    return planned_footprints(scenario_of(replace(task, changes=(*task.changes, *changes))))


def _named(each: MeasuredBytes) -> str:
    return each.quantity.replace("_", " ")
