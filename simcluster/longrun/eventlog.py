"""The log of a run as a file: its own, row by row, or a real one of what struck a job.

``replayed`` plays either again.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.documents.rows import Row
from simcluster.longrun.events.record import STRIKE, TRAINING, RunRow
from simcluster.longrun.logrows import log_rows, seconds_of
from simcluster.longrun.outcome import MAINTENANCE
from simcluster.longrun.run import SOON, LongRun

COLUMNS = ("begin_s", "end_s", "what", "cause", "which", "at_s", "steps", "snapshots")
"""A row of a run's log: wall seconds, what the job did, why, on which part, where on the nominal clock it ended."""

STANDS = ("detection", "diagnosis", "waiting", "pause", "maintenance", "restart")
"""What a job does while it stands."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Something struck: at which wall second since the begin, what, which device, and for how long (s; nan: unknown).

    Of what stops a job ``lasts`` is the time until it trains again.
    """

    time: float
    cause: str
    device: str = ""
    lasts: float = math.nan


@dataclass(frozen=True)
class EventLog:
    """What struck a job, in order, and when it stood: (begin, end, what, part of the restart).

    ``stands`` is None for a log that says it by ``lasts`` alone.  A run's own log is kept in ``rows`` as well.
    """

    incidents: tuple[Incident, ...]
    stands: tuple[tuple[float, float, str, str], ...] | None = None
    rows: tuple[RunRow, ...] = field(default=(), repr=False)

    @property
    def end(self) -> float:
        """The last second that it tells of."""
        until = [each.time + (0.0 if math.isnan(each.lasts) else each.lasts) for each in self.incidents]
        return max([row.end for row in self.rows] or until, default=0.0)


def log_of(rows: Sequence[RunRow]) -> EventLog:
    """The log that ``simulate_with_log`` gives."""
    struck = tuple(Incident(row.begin, row.cause) for row in rows if row.what == STRIKE)
    stands = tuple((row.begin, row.end, row.what, row.which) for row in rows if row.what in STANDS)
    return EventLog(struck, stands, tuple(rows))


def incidents_of(run: LongRun, rows: Sequence[RunRow]) -> tuple[Incident, ...]:
    """A run's log as people keep one: what struck, where, and how long the job stood for it, if it did."""
    begun = sorted(row.begin for row in rows if row.what == TRAINING)
    places = {(row.begin, row.cause): row.which for row in rows if row.what in ("detection", "pause")}
    stands = {cause.name for cause in run.causes if cause.effect in ("stop", "pause")} | {MAINTENANCE}
    found = []
    for row in rows:
        if row.what not in (STRIKE, MAINTENANCE):
            continue
        place = bisect_left(begun, row.begin + SOON)
        again = begun[place] if place < len(begun) else max(each.end for each in rows)
        lasts = again - row.begin if row.cause in stands else math.nan
        found.append(Incident(row.begin, row.cause, places.get((row.begin, row.cause), ""), lasts))
    return tuple(sorted(found, key=lambda each: each.time))


def read_log(path: str | Path, *, columns: Mapping[str, str] | None = None, began: str | None = None) -> EventLog:
    """A log from a file (.csv, .jsonl, .parquet): one that ``train --log`` wrote, or a real one with
    columns time, cause and, as far as known, device and lasts (or end); ``columns`` and ``began`` as in ``log_rows``.

    InputError, with the row, for what is neither.
    """
    return log_in(log_rows(Path(path), columns, began), str(path))


def log_in(rows: Sequence[Row], name: str) -> EventLog:
    """The log that the rows of a file of that name are."""
    if is_own(rows):
        return log_of([_own(row, f"{name}: row {row.number}") for row in rows])
    found = [_incident(row, f"{name}: row {row.number}") for row in rows]
    return EventLog(tuple(sorted(found, key=lambda each: each.time)))


def is_own(rows: Sequence[Row]) -> bool:
    """Is it a run's own log, not one of incidents?"""
    return "begin_s" in rows[0].cells


def _own(row: Row, where: str) -> RunRow:
    missing = [name for name in COLUMNS[:6] if name not in row.cells]
    if missing:
        raise InputError(f"{where}: has no {', '.join(missing)}; a run's log has {', '.join(COLUMNS)}")
    begin, end, at = (seconds_of(row.cells[name], f"{where}: {name}") for name in ("begin_s", "end_s", "at_s"))
    if end < begin:
        raise InputError(f"{where}: end_s: {end!r} is before its begin_s, {begin!r}")
    what, cause, which = (row.texts[name] for name in ("what", "cause", "which"))
    if what == STRIKE and not cause:
        raise InputError(f"{where}: a strike has a cause, and this one has none")
    steps, snapshots = (seconds_of(row.cells.get(name) or 0, f"{where}: {name}") for name in ("steps", "snapshots"))
    return RunRow(begin, end, what, cause, which, at, steps, int(snapshots))


def _incident(row: Row, where: str) -> Incident:
    cause, time = row.texts.get("cause", "").strip(), row.cells.get("time")
    if not cause or time in (None, ""):
        raise InputError(f"{where}: needs a time and a cause, as in time: 3600, cause: NIC; has {', '.join(row.cells)}")
    begin = seconds_of(time, f"{where}: time")
    return Incident(begin, cause, row.texts.get("device", ""), _lasts(row, begin, where))


def _lasts(row: Row, begin: float, where: str) -> float:
    """How long it was until the job trained again, by one of two columns; nan where neither says."""
    lasts, end = row.cells.get("lasts"), row.cells.get("end")
    if lasts not in (None, ""):
        return seconds_of(lasts, f"{where}: lasts")
    if end in (None, ""):
        return math.nan
    until = seconds_of(end, f"{where}: end")
    if until < begin:
        raise InputError(f"{where}: end: {row.texts['end']!r} is before its time, {row.texts['time']!r}")
    return until - begin
