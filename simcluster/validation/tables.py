"""The rows of a study's table: from the study itself, or from a CSV file outside the project.

The long tables of measured runs are not part of the project.  They lie in a directory that ``--data`` or the
environment variable SIMCLUSTER_DATA names; a study whose file is not there is skipped, with that reason.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simcluster.documents.complaints import did_you_mean, listed
from simcluster.errors import InputError
from simcluster.validation.expressions import Cell, Formula, name_of, parse_formula, whole
from simcluster.validation.study import StudyFile
from simcluster.validation.study_head import InlineTable

ENVIRONMENT = "SIMCLUSTER_DATA"

_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run: ``number`` counts from 1 in the table, ``cells`` are typed, ``texts`` as they are written."""

    number: int
    cells: Mapping[str, Cell]
    texts: Mapping[str, str]

    def by_name(self) -> dict[str, Cell]:
        """The cells under the names that formulas use."""
        return {name_of(column): cell for column, cell in self.cells.items()}

    def label(self, columns: Sequence[str]) -> str:
        """What people call the row: the texts of the columns, or its number."""
        texts = [self.texts[column] for column in columns if self.texts[column]]
        return ", ".join(texts) or f"row {self.number}"


@dataclass(frozen=True, slots=True)
class Missing:
    """A table that is not here; ``reason`` says where it was looked for, and where the original is."""

    reason: str


def data_folder(given: str | None) -> Path | None:
    """The directory of measured data: ``given``, else that of SIMCLUSTER_DATA, else None.

    Raises InputError if one is named that is not there.
    """
    name, what = (given, "--data") if given is not None else (os.environ.get(ENVIRONMENT), ENVIRONMENT)
    if not name:
        return None
    if not Path(name).is_dir():
        raise InputError(f"{what} names {name}, which is not a folder; it must hold the CSV files of measured runs")
    return Path(name)


def read_table(file: StudyFile, data: Path | None) -> tuple[Row, ...] | Missing:
    """The rows of a study's table, in order.  Raises InputError for a CSV file that is none, with its line."""
    table = file.study.table
    if isinstance(table, InlineTable):
        return tuple(
            Row(number, dict(zip(table.header, map(whole, cells), strict=True)), _texts(table.header, cells))
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
    return Missing(f"needs {table}: {why} (public original: {file.study.original})")


def _texts(header: Sequence[str], cells: Sequence[Cell]) -> dict[str, str]:
    texts = ["" if cell is None else str(cell).lower() if isinstance(cell, bool) else str(cell) for cell in cells]
    return dict(zip(header, texts, strict=True))


def read_csv(path: Path) -> tuple[Row, ...]:
    """The rows of a CSV file with a line of headers; InputError for a file that is none, with its row."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            lines = list(csv.reader(stream, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise InputError(f"{path}: cannot be read as a CSV file in UTF-8: {problem}") from None
    if len(lines) < 2:
        raise InputError(f"{path}: has no rows; a line of headers and a line a measured run are expected")
    header, *rows = lines
    repeated = [name for name in dict.fromkeys(header) if header.count(name) > 1]
    if repeated:
        raise InputError(f"{path}: the header names {repeated[0]!r} twice; every column has its own name")
    for number, cells in enumerate(rows, start=1):
        if len(cells) != len(header):
            raise InputError(f"{path}: row {number} has {len(cells)} cells, and the header has {len(header)} columns")
    return tuple(
        Row(number, {name: _typed(text) for name, text in zip(header, cells, strict=True)}, _texts(header, cells))
        for number, cells in enumerate(rows, start=1)
    )


def _typed(text: str) -> Cell:
    """A cell of a CSV file: nothing, a number, or text."""
    text = text.strip()
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return whole(float(text))
    return text or None


# --- what a study asks of its table -----------------------------------------------------------------------------------


def check_columns(file: StudyFile, rows: Sequence[Row], wanted: Iterable[tuple[tuple[str | int, ...], str]]) -> None:
    """Raises InputError for the first (key of the study, column) whose column the table lacks."""
    known = list(rows[0].cells)
    for path, column in wanted:
        if column not in known:
            near = did_you_mean(column, known)
            raise file.error(path, f"the table has no column {column!r}{near}; it has {listed(known)}")


def check_formulas(
    file: StudyFile,
    rows: Sequence[Row],
    wanted: Iterable[tuple[tuple[str | int, ...], str | None]],
    names: Sequence[str] = (),
) -> None:
    """Raises InputError for the first (key of the study, formula) that asks for what is neither a column of the table
    nor one of the study's own ``names``."""
    known = [*rows[0].by_name(), *names]
    for path, text in wanted:
        for name in parse_formula(text).names if text else ():
            if name not in known:
                near = did_you_mean(name, known)
                raise file.error(path, f"the table has no column {name!r}{near}; formulas know {listed(known)}")


def selected(file: StudyFile, rows: Sequence[Row]) -> tuple[tuple[Row, ...], int]:
    """The rows that fulfil the study's ``where``, and how many do not.  Raises InputError if none does."""
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
