"""The rows of a study's table: from the study itself, or from a CSV file outside the project.

The long tables of measured runs are not part of the project.  They lie in a directory that ``--data`` or the
environment variable SIMCLUSTER_DATA names; a study whose file is not there is skipped, with that reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, listed
from simcluster.documents.expressions import Formula, parse_formula, whole
from simcluster.documents.rows import Row, read_csv, texts_of
from simcluster.evidence.validation.measured import InlineTable
from simcluster.evidence.validation.study import StudyFile

ENVIRONMENT = "SIMCLUSTER_DATA"


@dataclass(frozen=True, slots=True)
class Missing:
    """A table that is not here; ``reason`` says where it was looked for, and where the original is."""

    reason: str


def data_folder(given: str | None) -> Path | None:
    """Return the directory of measured data: ``given``, else that of SIMCLUSTER_DATA, else None.

    Raises InputError if one is named that is not there.
    """
    name, what = (given, "--data") if given is not None else (os.environ.get(ENVIRONMENT), ENVIRONMENT)
    if not name:
        return None
    if not Path(name).is_dir():
        raise InputError(f"{what} names {name}, which is not a folder; it must hold the CSV files of measured runs")
    return Path(name)


def read_table(file: StudyFile, data: Path | None) -> tuple[Row, ...] | Missing:
    """Return the rows of a study's table, in order.  Raises InputError for a CSV file that is none, with its line."""
    table = file.study.table
    if isinstance(table, InlineTable):
        return tuple(
            Row(number, dict(zip(table.header, map(whole, cells), strict=True)), texts_of(table.header, cells))
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
    return Missing(f"needs {table}: {why}{original}")


# --- what a study asks of its table -----------------------------------------------------------------------------------

Asked = Iterable[tuple[tuple[str | int, ...], str | None]]
"""Columns or formulas that a study asks for, each with its key in the study."""


def selected(
    file: StudyFile, rows: Sequence[Row], columns: Asked = (), formulas: Asked = ()
) -> tuple[tuple[Row, ...], int]:
    """Return the rows that fulfil the study's ``where``, and how many do not.

    Raises InputError if none does, for the first column that the table lacks, and as ``check_formulas``.
    """
    for path, column in columns:
        if column not in rows[0].cells:
            raise _lacks(file, path, str(column), list(rows[0].cells), "it has")
    check_formulas(file, rows, [(("where",), file.study.where), *formulas])
    if file.study.where is None:
        return tuple(rows), 0
    formula: Formula = parse_formula(file.study.where)
    try:
        kept = tuple(row for row in rows if formula.value(row.by_name()))
    except InputError as problem:
        raise file.error(("where",), problem) from None
    if not kept:
        raise file.error(("where",), f"none of the {len(rows)} rows fulfils {file.study.where!r}")
    return kept, len(rows) - len(kept)


def check_formulas(file: StudyFile, rows: Sequence[Row], wanted: Asked, names: Sequence[str] = ()) -> None:
    """Raise InputError for the first formula that asks for neither a column of the table nor one of ``names``."""
    known = [*rows[0].by_name(), *names]
    for path, text in wanted:
        for name in parse_formula(text).names if text else ():
            if name not in known:
                raise _lacks(file, path, name, known, "formulas know")


def _lacks(file: StudyFile, path: tuple[str | int, ...], name: str, known: Sequence[str], which: str) -> InputError:
    near = did_you_mean(name, known)
    return file.error(path, f"the table has no column {name!r}{near}; {which} {listed(known)}")
