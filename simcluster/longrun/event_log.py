"""Reader of two kinds of logs: event logs of simulated runs, and failure logs of real jobs.

A file is .csv, .jsonl or .parquet; its columns may have other names, and dates instead of seconds.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.units import parse_seconds
from simcluster.documents.compressed_files import arrow_table_rows, read_parquet
from simcluster.documents.csv_tables import CsvRow, cell_texts_by_column, read_csv
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.table_formulas import Cell
from simcluster.longrun.events.run_record import STRIKE, TRAINING, RunLogRow
from simcluster.longrun.long_run import MAINTENANCE, TIME_TOLERANCE, LongRun

NAMES = ("time", "cause", "device", "lasts", "end", "of", "count", "age", "since")
"""Columns of a real failure log."""

_CELL = 400
"""Memory (bytes) of a table cell as a Python object."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")


def read_log_rows(path: Path, columns: Mapping[str, str] | None = None, began: str | None = None) -> tuple[CsvRow, ...]:
    """Return the rows of a log file; ``columns`` maps simcluster's column names to the file's.

    ``columns`` are the file's names by ours ({"cause": "Reason"}); ``began`` is the date from which dates in ``time``
    and ``end`` are counted. InputError, with the row, for an invalid log, and for a missing column.
    """
    read = {".jsonl": _read_json_lines, ".parquet": _read_parquet_rows}.get(path.suffix, read_csv)
    rows, columns = read(path), columns or {}
    for own, theirs in columns.items():
        if own not in NAMES:
            raise InputError(f"--columns: unknown column {own!r}{did_you_mean(own, NAMES)}; known: {', '.join(NAMES)}")
        if theirs not in rows[0].cells:
            raise InputError(
                f"--columns: {path} has no column {theirs!r}{did_you_mean(theirs, rows[0].cells)}; "
                f"it has {', '.join(rows[0].cells)}"
            )
    start = None if began is None else _parse_date(began, "--began")
    found = []
    for row in rows:
        cells = {**row.cells, **{own: row.cells.get(theirs) for own, theirs in columns.items()}}
        texts = {**row.texts, **{own: row.texts.get(theirs, "") for own, theirs in columns.items()}}
        for name in ("time", "end"):
            if _DATE.fullmatch(text := str(cells.get(name) or "").strip()):
                cells[name] = _seconds_after_begin(start, text, f"{path}: row {row.number}: {name}")
        found.append(CsvRow(row.number, cells, texts))
    return tuple(found)


def parse_column_names(text: str | None) -> dict[str, str]:
    """Parse "time=Start,cause=Reason" into a dict from simcluster's column names to the log file's."""
    found = {}
    for part in (text or "").split(",") if text else ():
        own, equals, theirs = (each.strip() for each in part.partition("="))
        if not (own and equals and theirs):
            raise InputError(f"--columns: {part!r} is not a pair; write OURS=THEIRS, as in time=Start,cause=Reason")
        found[own] = theirs
    return found


def parse_log_seconds(value: object, where: str) -> float:
    """Return the seconds in a log cell: a number, or text with a unit; raise InputError if not 0 or more."""
    try:
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        seconds = float(value) if plain else parse_seconds(value)  # type: ignore[arg-type]
    except (InputError, OverflowError) as problem:
        raise InputError(f"{where}: {problem}") from None
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InputError(f"{where}: {value!r} is not a time of 0 or more; write seconds, or a unit as in 3.2 h")
    return seconds


def _read_json_lines(path: Path) -> list[CsvRow]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{path}: cannot be read as JSON lines in UTF-8; write one object per line") from None
    rows: list[dict[Any, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as problem:
            row = str(problem)
        if row is not None and not isinstance(row, dict):
            works = 'write one object per line, as in {"time": 3600, "cause": "NIC"}'
            raise InputError(f"{path}:{number}: is not a JSON object: {row}; {works}")
        rows += [row] if row is not None else []
    return _rows_with_texts(rows, f"{path}: has no rows; one line per event is expected, with time and cause")


def _read_parquet_rows(path: Path) -> list[CsvRow]:
    try:
        rows = arrow_table_rows(read_parquet(path, cell=_CELL))
    except (ValueError, OverflowError, RecursionError) as problem:  # a date that Python does not have, a nested list
        if isinstance(problem, InputError):
            raise
        raise InputError(f"{path}: cannot be read as Parquet; write it again, or rename it if it is CSV") from None
    return _rows_with_texts(rows, f"{path}: has no rows; one row per event is expected, with time and cause")


def _rows_with_texts(rows: Iterable[Mapping[Any, Any]], empty: str) -> list[CsvRow]:
    found = []
    for number, row in enumerate(rows, 1):
        cells: dict[str, Cell] = {str(name): None if value != value else value for name, value in row.items()}
        found.append(CsvRow(number, cells, cell_texts_by_column(list(cells), list(cells.values()))))
    if not found:
        raise InputError(empty)
    return found


def _seconds_after_begin(began: datetime | None, text: str, where: str) -> float:
    if began is None:
        raise InputError(f"{where}: {text!r} is a date; set when the job began: --began {text[:10]!r}")
    since = (_parse_date(text, where) - began).total_seconds()
    if since < 0:
        raise InputError(f"{where}: {text!r} is before the start of the job, {began:%Y-%m-%d %H:%M:%S}")
    return since


def _parse_date(text: str, where: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InputError(f"{where}: {text!r} is not a date; write e.g. 2024-07-01 or '2024-07-01 13:05:00'") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


COLUMNS = ("begin_s", "end_s", "what", "cause", "which", "at_s", "steps", "snapshots")
"""Columns of a simulated run's log: wall begin and end, activity, cause, device or phase, nominal time at the end."""

STANDS = ("detection", "diagnosis", "waiting", "pause", "maintenance", "restart")
"""Activities during which a job does not train."""


@dataclass(frozen=True, slots=True)
class LoggedFailure:
    """Failure in a log: wall time (s), cause, device, and duration (s; nan if unknown)."""

    time: float
    cause: str
    device: str = ""
    lasts: float = math.nan


@dataclass(frozen=True)
class EventLog:
    """Failures of a job in time order, and the periods in which the job did not train (``standstills``).

    A period is (begin, end, activity, phase of the restart); None for a log that has only ``lasts``. A simulated run's
    log is kept in ``rows`` as well.
    """

    failures: tuple[LoggedFailure, ...]
    standstills: tuple[tuple[float, float, str, str], ...] | None = None
    rows: tuple[RunLogRow, ...] = field(default=(), repr=False)

    @property
    def end(self) -> float:
        """Time of the last event in the log (wall seconds)."""
        until = [each.time + (0.0 if math.isnan(each.lasts) else each.lasts) for each in self.failures]
        return max([row.end for row in self.rows] or until, default=0.0)


def event_log_from_rows(rows: Sequence[RunLogRow]) -> EventLog:
    """Return the event log of a simulated run from the rows that ``simulate_with_log`` returned."""
    struck = tuple(LoggedFailure(row.begin, row.cause) for row in rows if row.activity == STRIKE)
    stands = tuple((row.begin, row.end, row.activity, row.part) for row in rows if row.activity in STANDS)
    return EventLog(struck, stands, tuple(rows))


def failures_in_simulated_log(run: LongRun, rows: Sequence[RunLogRow]) -> tuple[LoggedFailure, ...]:
    """Return the failures in a simulated run's log, each with device and the standstill (s) that followed."""
    begun = sorted(row.begin for row in rows if row.activity == TRAINING)
    places = {(row.begin, row.cause): row.part for row in rows if row.activity in ("detection", "pause")}
    stands = {cause.name for cause in run.causes if cause.effect in ("stop", "pause")} | {MAINTENANCE}
    found = []
    for row in rows:
        if row.activity not in (STRIKE, MAINTENANCE):
            continue
        place = bisect_left(begun, row.begin + TIME_TOLERANCE)
        again = begun[place] if place < len(begun) else max(each.end for each in rows)
        lasts = again - row.begin if row.cause in stands else math.nan
        found.append(LoggedFailure(row.begin, row.cause, places.get((row.begin, row.cause), ""), lasts))
    return tuple(sorted(found, key=lambda each: each.time))


def read_event_log(path: str | Path, *, columns: Mapping[str, str] | None = None, began: str | None = None) -> EventLog:
    """Read an event log from a file (.csv, .jsonl, .parquet).

    Either one that ``train --log`` wrote, or a real one with columns time, cause and, as far as known, device and lasts
    (or end); ``columns`` and ``began`` as in ``read_log_rows``. InputError, with the row, for an invalid file.
    """
    return parse_event_log(read_log_rows(Path(path), columns, began), str(path))


def parse_event_log(rows: Sequence[CsvRow], name: str) -> EventLog:
    """Return the event log in the rows of a file; ``name`` is the file's name in error messages."""
    places = [(row, f"{name}: row {row.number}") for row in rows]
    if is_simulated_log(rows):
        return event_log_from_rows([_parse_simulated_row(row, where) for row, where in places])
    found = []
    for row, where in places:
        cause, time = row.texts.get("cause", "").strip(), row.cells.get("time")
        lasts, end = row.cells.get("lasts"), row.cells.get("end")
        if not cause or time in (None, ""):
            raise InputError(
                f"{where}: a row needs a time and a cause, as in time: 3600, cause: NIC; got {', '.join(row.cells)}"
            )
        begin, stood = parse_log_seconds(time, f"{where}: time"), math.nan
        if lasts not in (None, ""):
            stood = parse_log_seconds(lasts, f"{where}: lasts")
        elif end not in (None, ""):
            stood = parse_log_seconds(end, f"{where}: end") - begin
            if stood < 0:
                raise InputError(f"{where}: end: {row.texts['end']!r} is before its time, {row.texts['time']!r}")
        found.append(LoggedFailure(begin, cause, row.texts.get("device", ""), stood))
    return EventLog(tuple(sorted(found, key=lambda each: each.time)))


def is_simulated_log(rows: Sequence[CsvRow]) -> bool:
    """Return whether rows come from a simulated run's event log, not from a failure log of a real job."""
    return "begin_s" in rows[0].cells


def _parse_simulated_row(row: CsvRow, where: str) -> RunLogRow:
    missing = [name for name in COLUMNS[:6] if name not in row.cells]
    if missing:
        raise InputError(f"{where}: has no {', '.join(missing)}; a run's log has {', '.join(COLUMNS)}")
    begin, end, at = (parse_log_seconds(row.cells[name], f"{where}: {name}") for name in ("begin_s", "end_s", "at_s"))
    if end < begin:
        raise InputError(f"{where}: end_s: {end!r} is before its begin_s, {begin!r}")
    what, cause, which = (row.texts[name] for name in ("what", "cause", "which"))
    if what == STRIKE and not cause:
        raise InputError(f"{where}: a failure needs a cause; write one")
    steps, snapshots = (
        parse_log_seconds(row.cells.get(name) or 0, f"{where}: {name}") for name in ("steps", "snapshots")
    )
    return RunLogRow(begin, end, what, cause, which, at, steps, int(snapshots))
