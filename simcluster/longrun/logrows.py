"""The rows of a log file of any origin: .csv, .jsonl or .parquet, other names of columns, dates for seconds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.units import parse_seconds
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.expressions import Cell
from simcluster.documents.packed import python_rows, read_parquet
from simcluster.documents.rows import Row, read_csv, texts_of

NAMES = ("time", "cause", "device", "lasts", "end", "of", "count", "age", "since")
"""Columns of a log that is not a run's own."""

_CELL = 400
"""Bytes of memory of a cell, as a Python object in a row."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")


def log_rows(path: Path, columns: Mapping[str, str] | None = None, began: str | None = None) -> tuple[Row, ...]:
    """The rows of a log, with our names of columns.

    ``columns`` are the file's names by ours ({"cause": "Reason"}); ``began`` is the date from which dates in ``time``
    and ``end`` are counted.  InputError, with the row, for what is no log, and for a column that is not there.
    """
    rows = _rows_of(path)
    for own, theirs in (columns or {}).items():
        if own not in NAMES:
            raise InputError(f"--columns: there is no {own!r}{did_you_mean(own, NAMES)}; a log has {', '.join(NAMES)}")
        if theirs not in rows[0].cells:
            raise InputError(
                f"--columns: {path} has no column {theirs!r}{did_you_mean(theirs, rows[0].cells)}; "
                f"it has {', '.join(rows[0].cells)}"
            )
    start = None if began is None else _instant(began, "--began")
    return tuple(_counted(_renamed(row, columns or {}), start, f"{path}: row {row.number}") for row in rows)


def columns_of(text: str | None) -> dict[str, str]:
    """ "time=Start,cause=Reason" as names by ours; InputError for anything else."""
    found = {}
    for part in (text or "").split(",") if text else ():
        own, equals, theirs = (each.strip() for each in part.partition("="))
        if not (own and equals and theirs):
            raise InputError(f"--columns: {part!r} is no pair; write OURS=THEIRS, as in time=Start,cause=Reason")
        found[own] = theirs
    return found


def seconds_of(value: object, where: str) -> float:
    """Seconds of a cell: a number, or text with a unit; InputError if it is neither, or below 0."""
    try:
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        seconds = float(value) if plain else parse_seconds(value)  # type: ignore[arg-type]
    except (InputError, OverflowError) as problem:
        raise InputError(f"{where}: {problem}") from None
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InputError(f"{where}: {value!r} is no time since the begin; it is 0 or more seconds, or as in 3.2 h")
    return seconds


# --- files ------------------------------------------------------------------------------------------------------------


def _rows_of(path: Path) -> Sequence[Row]:
    if path.suffix == ".jsonl":
        return _json_lines(path)
    return _parquet(path) if path.suffix == ".parquet" else read_csv(path)


def _json_lines(path: Path) -> list[Row]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{path}: cannot be read as JSON lines in UTF-8; write an object a line") from None
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as problem:
            raise InputError(f"{path}:{number}: is no JSON: {problem}; write an object a line") from None
        if row is not None and not isinstance(row, dict):
            raise InputError(f'{path}:{number}: is no object; a line is one, as in {{"time": 3600, "cause": "NIC"}}')
        rows += [_row(len(rows) + 1, row)] if row is not None else []
    if not rows:
        raise InputError(f"{path}: has no rows; a line an event is expected, with time and cause")
    return rows


def _parquet(path: Path) -> list[Row]:
    """As ``train --log events.parquet`` writes it."""
    try:
        table = python_rows(read_parquet(path, cell=_CELL))
    except (ValueError, OverflowError, RecursionError) as problem:  # a date that Python has not, a list in a list
        if isinstance(problem, InputError):
            raise
        raise InputError(f"{path}: cannot be read as Parquet; write it anew, or name it as CSV") from None
    rows = [_row(number, row) for number, row in enumerate(table, 1)]
    if not rows:
        raise InputError(f"{path}: has no rows; a row an event is expected, with time and cause")
    return rows


def _row(number: int, cells: Mapping[Any, Any]) -> Row:
    """A row that is typed already."""
    named: dict[str, Cell] = {str(name): None if value != value else value for name, value in cells.items()}
    return Row(number, named, texts_of(list(named), list(named.values())))


# --- names and dates --------------------------------------------------------------------------------------------------


def _renamed(row: Row, columns: Mapping[str, str]) -> Row:
    """With our names for theirs."""
    if not columns:
        return row
    cells, texts = dict(row.cells), dict(row.texts)
    for own, theirs in columns.items():
        cells[own], texts[own] = row.cells.get(theirs), row.texts.get(theirs, "")
    return Row(row.number, cells, texts)


def _counted(row: Row, began: datetime | None, where: str) -> Row:
    """With seconds since the begin for dates."""
    dates = {name: text for name in ("time", "end") if _DATE.fullmatch(text := str(row.cells.get(name) or "").strip())}
    if not dates:
        return row
    seconds = {}
    for name, text in dates.items():
        if began is None:
            raise InputError(f"{where}: {name}: {text!r} is a date; say when the job began: --began {text[:10]!r}")
        since = (_instant(text, f"{where}: {name}") - began).total_seconds()
        if since < 0:
            raise InputError(f"{where}: {name}: {text!r} is before the begin, {began:%Y-%m-%d %H:%M:%S}")
        seconds[name] = since
    return Row(row.number, {**row.cells, **seconds}, row.texts)


def _instant(text: str, where: str) -> datetime:
    """A date and time; UTC where it does not say otherwise."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InputError(f"{where}: {text!r} is no date; write it as in 2024-07-01 or '2024-07-01 13:05:00'") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
