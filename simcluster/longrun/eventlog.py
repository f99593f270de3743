"""The log of a run as a file, and a log as a run: what struck a job, its own or a real one, is played again.

A what-if keeps the strikes and changes what is done about them: the interval, the restart, the spares.  A strike comes
at the same *exposed* second (``run``) of its cause: time in which the job stood uses up none of it, whether it stood
for long, as in the log, or not, as in the what-if.  After the last row nothing strikes.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.units import parse_seconds
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.rows import read_csv
from simcluster.longrun.events.record import STRIKE, RunRow
from simcluster.longrun.outcome import MAINTENANCE, REGROWTH
from simcluster.longrun.run import SOON, FailureMode, LongRun
from simcluster.longrun.struck import StrikeTimes

COLUMNS = ("begin_s", "end_s", "what", "cause", "which", "at_s", "steps", "snapshots")
"""A row of a run's log: wall seconds, what the job did, why, on which part, where on the nominal clock it ended."""

_TEXTS = ("what", "cause", "which", "device")  # whatever they look like: "0" is a device
_STANDS = ("detection", "diagnosis", "waiting", "pause", "maintenance", "restart")
_APART = 1e-3  # seconds between two strikes that a log has at one instant


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

    ``stands`` is None for a log that says it by ``lasts`` alone.
    """

    incidents: tuple[Incident, ...]
    stands: tuple[tuple[float, float, str, str], ...] | None = None


def log_of(rows: Sequence[RunRow]) -> EventLog:
    """The log that ``play_events`` gives."""
    struck = tuple(Incident(row.begin, row.cause) for row in rows if row.what == STRIKE)
    stands = tuple((row.begin, row.end, row.what, row.which) for row in rows if row.what in _STANDS)
    return EventLog(struck, stands)


# --- files ------------------------------------------------------------------------------------------------------------


def write_log(path: str | Path, rows: Sequence[RunRow]) -> None:
    """The log as .csv or .jsonl, a line a row, whole or not at all; InputError for another ending and what fails."""
    path = Path(path)
    text = io.StringIO()
    if path.suffix == ".csv":
        lines = csv.writer(text, lineterminator="\n")
        lines.writerows([COLUMNS, *([repr(float(x)) if isinstance(x, float) else x for x in row] for row in rows)])
    elif path.suffix == ".jsonl":
        text.writelines(json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
    else:
        raise InputError(f"cannot write {path}: a log ends in .csv or .jsonl")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text.getvalue(), encoding="utf-8")
        beside.replace(path)
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror}") from None
    finally:
        beside.unlink(missing_ok=True)


def read_log(path: str | Path) -> EventLog:
    """A log from a file: one that ``write_log`` wrote, or a real one with columns time, cause and, as far as known,
    device and lasts; times since the begin of the job in seconds, or with a unit ("3.2 h").

    InputError, with the row, for what is neither.
    """
    rows = _rows_of(Path(path))
    if "begin_s" in rows[0]:
        return log_of([_own(row, f"{path}: row {number}") for number, row in enumerate(rows, 1)])
    found = [_incident(row, f"{path}: row {number}") for number, row in enumerate(rows, 1)]
    return EventLog(tuple(sorted(found, key=lambda each: each.time)))


def _rows_of(path: Path) -> list[Mapping[str, Any]]:
    if path.suffix != ".jsonl":
        table = read_csv(path)
        return [{**row.cells, **{name: row.texts[name] for name in _TEXTS if name in row.texts}} for row in table]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(f"{path}: cannot be read as JSON lines in UTF-8: {problem}") from None
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as problem:
            raise InputError(f"{path}:{number}: is no JSON: {problem}") from None
        if row is not None and not isinstance(row, dict):
            raise InputError(f'{path}:{number}: is no object; a line is one, as in {{"time": 3600, "cause": "NIC"}}')
        rows += [row] if row is not None else []
    if not rows:
        raise InputError(f"{path}: has no rows; a line an event is expected, with time and cause")
    return rows


def _own(row: Mapping[str, Any], where: str) -> RunRow:
    missing = [name for name in COLUMNS[:6] if name not in row]
    if missing:
        raise InputError(f"{where}: has no {', '.join(missing)}; a run's log has {', '.join(COLUMNS)}")
    begin, end, at = (seconds_of(row[name], f"{where}: {name}") for name in ("begin_s", "end_s", "at_s"))
    what, cause, which = (str(row[name]) for name in ("what", "cause", "which"))
    return RunRow(begin, end, what, cause, which, at)


def _incident(row: Mapping[str, Any], where: str) -> Incident:
    cause, time, lasts = row.get("cause"), row.get("time"), row.get("lasts")
    if cause in (None, "") or time in (None, ""):
        raise InputError(f"{where}: needs a time and a cause, as in time: 3600, cause: NIC; has {', '.join(row)}")
    return Incident(
        seconds_of(time, f"{where}: time"),
        str(cause),
        str(row.get("device", "")),
        math.nan if lasts in (None, "") else seconds_of(lasts, f"{where}: lasts"),
    )


def seconds_of(value: object, where: str) -> float:
    """Seconds of a cell: a number, or text with a unit; InputError if it is neither, or below 0."""
    try:
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        seconds = float(value) if plain else parse_seconds(value)  # type: ignore[arg-type]
    except InputError as problem:
        raise InputError(f"{where}: {problem}") from None
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InputError(f"{where}: {value!r} is no time since the begin; it is 0 or more seconds, or as in 3.2 h")
    return seconds


# --- played again -----------------------------------------------------------------------------------------------------


def replay_log(run: LongRun, log: EventLog) -> LongRun:
    """The run with the strikes of a log in place of those that chance would have: same policy, or another's what-if.

    Where a log has no ``lasts`` of a stop, the job is taken to have stood for the mean of the run's own detection and
    restart.  InputError for causes that the run does not have, and for a log without any.
    """
    known = {cause.name: cause for cause in run.causes}
    struck = [each for each in log.incidents if each.cause not in (MAINTENANCE, REGROWTH)]
    strange = next((each.cause for each in struck if each.cause not in known), None)
    if strange is not None or not struck:
        what = "has nothing that struck" if strange is None else f"has {strange!r}{did_you_mean(strange, known)}"
        raise InputError(
            f"the log {what}; the run's causes are {', '.join(known) or 'none'} (run.failures; also adds to them)"
        )
    instants = np.array([each.time for each in struck])
    stop, every = (_exposed(instants, _stands(run, log, struck, stops=stops)) for stops in (True, False))
    times = {name: (stop if cause.stops else every) for name, cause in known.items()}
    causes = []
    for cause in run.causes:
        own = [number for number, each in enumerate(struck) if each.cause == cause.name]
        at, lasts = tuple(times[cause.name][own].tolist()), tuple(struck[number].lasts for number in own)
        kept = () if cause.stops or np.isnan(lasts).all() else lasts
        rate = len(own) / float(times[cause.name][-1])
        causes.append(replace(cause, rate=rate, lives=None, bad=None, struck=StrikeTimes(at, kept)))
    return replace(run, causes=tuple(causes))


def _stands(run: LongRun, log: EventLog, struck: Sequence[Incident], *, stops: bool) -> list[tuple[float, float]]:
    """When the job was exposed to nothing: neither trained nor, for what ``stops`` it, was in an exposed part."""
    if log.stands is not None:
        exposed = {part.name for part in run.restart if part.exposed} if stops else set()
        return [(b, e) for b, e, what, which in log.stands if what != "restart" or which not in exposed]
    known = {cause.name: cause for cause in run.causes}
    restart = sum(part.storage.mean for part in run.restart)
    found = []
    for each in struck:
        cause = known[each.cause]
        if cause.effect in ("stop", "pause"):
            stood = _stood(cause, restart) if math.isnan(each.lasts) else each.lasts
            found.append((each.time, each.time + stood))
    return found


def _stood(cause: FailureMode, restart: float) -> float:
    return cause.detect.mean + restart if cause.stops else cause.lasts.mean


def _exposed(instants: Floats, stands: Sequence[tuple[float, float]]) -> Floats:
    """Exposed seconds at ascending instants, strictly ascending too: what struck a job that stood comes later."""
    passed, until, joined = 0.0, 0.0, []
    for begin, end in sorted(stands):
        if end > until:
            joined.append((max(begin, until), end))
            until = end
    found, place, last = [], 0, -math.inf
    for instant in instants.tolist():
        while place < len(joined) and joined[place][1] <= instant:
            passed += joined[place][1] - joined[place][0]
            place += 1
        inside = max(0.0, instant - joined[place][0]) if place < len(joined) else 0.0
        exposed = instant - passed - inside
        last = exposed if exposed > last + SOON else last + _APART
        found.append(last)
    return np.array(found)
