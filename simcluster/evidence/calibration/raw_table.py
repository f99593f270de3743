"""Raw table of a calibration: a JSON lines file; line 1 describes the machine, other lines one kernel each.

Each line is on disk before the next case begins, so that an interrupted run can resume. The module imports no library,
so that it runs where only PyTorch is installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import quantiles
from typing import Any

from simcluster.base.atomic_files import append_line, truncate_partial_line, write_text_atomic
from simcluster.base.errors import InputError, prefix_errors
from simcluster.base.units import is_number
from simcluster.documents.diagnostics import quote_value
from simcluster.documents.input_files import missing_file_hint
from simcluster.evidence.calibration.cases import CalibrationCase, parse_calibration_case

TABLE_FORMAT = "simcluster calibration 1"
_MACHINE_KEYS = ("device", "kind", "multiprocessors", "torch", "cuda", "driver", "threads")  # must match to resume

_MIN_SECONDS, _MAX_SECONDS = 1e-9, 1e6
"""Plausible seconds per kernel call: from one clock cycle up to an absurdly long time."""


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """Machine measured by a calibration, and its software; in bytes, Hz and W; 0 or "" if unknown."""

    device: str
    kind: str
    multiprocessors: int
    memory: float = 0.0
    cache: float = 0.0
    torch: str = ""
    cuda: str = ""
    driver: str = ""
    capability: str = ""
    threads: int = 0
    power_limit: float = 0.0
    clock_limit: float = 0.0
    date: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measured time of one calibration case, in seconds per call.

    ``seconds`` is the median of ``repeats`` timed batches of ``calls`` each, ``low`` and ``high`` their quartiles,
    ``fastest`` the shortest. ``alone`` is the time without concurrent copies (kind ``beside``). ``clock`` (Hz),
    ``power`` (W) and ``temperature`` (C) are the GPU's during the run, 0 if unknown. ``failed`` states why there are no
    times.
    """

    case: CalibrationCase
    seconds: float = 0.0
    low: float = 0.0
    high: float = 0.0
    fastest: float = 0.0
    repeats: int = 0
    calls: int = 0
    alone: float = 0.0
    clock: float = 0.0
    power: float = 0.0
    temperature: float = 0.0
    failed: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """Raw table of a calibration: the machine, and the measurements in file order."""

    machine: MeasuredMachine
    measurements: tuple[Measurement, ...]

    @property
    def timed_measurements(self) -> tuple[Measurement, ...]:
        """Measurements that have a time, that is, all except failed cases."""
        return tuple(each for each in self.measurements if not each.failed)


def summarize_batches(
    case: CalibrationCase, seconds: Sequence[float], calls: int, *, alone: float = 0.0,
    sensed: Mapping[str, Any] | None = None,
) -> Measurement:  # fmt: skip
    """Summarize the timed batches of a case (s per call) and its sensor readings as a measurement."""
    low, median, high = quantiles(seconds, n=4, method="inclusive")
    return Measurement(case, median, low, high, min(seconds), len(seconds), calls, alone, **(sensed or {}))


def read_raw_table(path: Path) -> MeasuredTable:
    """Read a calibration's raw table from a file; raise InputError with the line number if a line is invalid.

    An incomplete last line, which a killed run left, is ignored.
    """
    lines = _read_complete_lines(path)
    if not lines:
        raise InputError(f"{path}: the file is empty; write a raw table with simcluster calibrate -o")
    head = _parse_line(path, 1, lines[0])
    if head.pop("format", None) != TABLE_FORMAT:
        raise InputError(
            f"{path}:1: is not the raw table of a calibration; its first line must have format: {TABLE_FORMAT!r}; "
            "write one with simcluster calibrate -o"
        )
    machine = MeasuredMachine(
        **_check_fields(MeasuredMachine, head, f"{path}:1", needed=("device", "kind", "multiprocessors"))
    )
    if machine.multiprocessors != int(machine.multiprocessors) or not 1 <= machine.multiprocessors <= 10**9:
        raise InputError(
            f"{path}:1: multiprocessors is {machine.multiprocessors!r}; it must be a whole number from 1, as in 132"
        )
    found: dict[CalibrationCase, Measurement] = {}
    for number, line in enumerate(lines[1:], start=2):
        given, where = _parse_line(path, number, line), f"{path}:{number}"
        with prefix_errors(where):
            case = parse_calibration_case(given.pop("case", None))
        found[case] = Measurement(case, **_check_fields(Measurement, given, where))
        if not found[case].failed and not _MIN_SECONDS <= found[case].seconds <= _MAX_SECONDS:
            raise InputError(
                f"{where}: 'seconds' is {found[case].seconds!r}; the time per kernel call must be {_MIN_SECONDS:g} to "
                f"{_MAX_SECONDS:g} s, as in 1.2e-4"
            )
    return MeasuredTable(machine, tuple(found.values()))


def _read_complete_lines(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8", errors="strict")
    except FileNotFoundError:
        missing = f"no such file{missing_file_hint(path, '.jsonl')}"
        raise InputError(f"{path}: {missing}, or measure with simcluster calibrate -o") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(
            f"{path}: cannot be read as a raw table: {problem}; measure with simcluster calibrate -o"
        ) from None
    return text[: text.rfind("\n") + 1].splitlines()


def _parse_line(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise InputError(f"{path}:{number}: is not a JSON object; write raw tables with simcluster calibrate")
    return data


def _check_fields(kind: type, given: Mapping[str, Any], where: str, needed: Sequence[str] = ()) -> dict[str, Any]:
    types = {each.name: each.type for each in fields(kind)}
    for name in needed:
        if name not in given:
            raise InputError(f"{where}: key {name!r} is missing; add it, or measure again")
    for name, value in given.items():
        if name not in types:
            raise InputError(f"{where}: unknown key {name!r}; known: {', '.join(types)}")
        text = types[name] == "str"
        if not (isinstance(value, str) if text else is_number(value)):
            must = "a text" if text else "a finite number"
            raise InputError(f"{where}: {name} is {quote_value(value)}; it must be {must}: write one")
    return dict(given)


class RawTableFile:
    """Raw table file to which a calibration appends, and the set of cases that the file already has."""

    def __init__(self, path: Path, machine: MeasuredMachine, *, restart: bool = False) -> None:
        self._path = path
        self.measured_cases: set[CalibrationCase] = set()
        if not restart and path.exists() and _read_complete_lines(path):
            table = read_raw_table(path)
            for name in _MACHINE_KEYS:
                before, now = getattr(table.machine, name), getattr(machine, name)
                if before != now:
                    raise InputError(
                        f"{path} is of another machine ({name}: {before}; this machine: {now}); name another "
                        "file with -o, or give --restart to measure everything again"
                    )
            self.measured_cases = {each.case for each in table.measurements}
            truncate_partial_line(path)  # left incomplete by a killed run
            return
        write_text_atomic(path, json.dumps({"format": TABLE_FORMAT, **asdict(machine)}, allow_nan=False) + "\n")

    def append(self, measurement: Measurement) -> None:
        """Append a measurement to the file; return after the line has been written to disk."""
        row = {key: value for key, value in asdict(measurement).items() if key != "case" and value}
        append_line(self._path, json.dumps({"case": measurement.case.to_dict(), **row}, allow_nan=False))
        self.measured_cases.add(measurement.case)
