"""Reader of Nsight Systems exports (SQLite), which returns one profile per process and device (rank).

Exports do not name process groups, so communication is not matched between ranks, and waiting in it counts as transfer.
The host's phase comes from NVTX ranges (``nvtx.range_push("layers.3")``, PyTorch's ``emit_nvtx``). Without any, kernels
launched by autograd's thread (pt_autograd_0) are backward, others up to its last launch in a step are forward, and
those after it are the optimizer's. Steps are NVTX ranges that end in a number: "step 12", "iteration 3",
"ProfilerStep#7".

An export is SQLite (Nsight Systems User Guide, "SQLite Schema Reference"; nsys export --type sqlite): empty tables are
absent, and columns were added over the years. Times are nanoseconds; a globalTid holds process and thread: thread =
globalTid % 0x1000000, process = globalTid / 0x1000000 % 0x1000000; a globalPid is one with thread 0.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import quote_value
from simcluster.interop.kineto.communications import ProcessGroups
from simcluster.interop.kineto.profile_reader import TimedEvent, sort_events_into_profile
from simcluster.interop.kineto.rank_profile import HostCall, RankProfile

NSIGHT_SUFFIXES = (".sqlite", ".sqlite3")
"""File suffixes of Nsight Systems exports."""
_THREAD_IDS = 0x1000000
_TEXT_COLUMNS = ("value", "text", "name")
_TIME_COLUMNS = ("start", "end", "utcEpochNs")
_MAX_TIME_NS = 2**61
"""Limit of times in nanoseconds: 73 years."""
_BASE_STEPS, _STEPS_PER_BYTE, _STEPS_PER_CHECK = 1_000_000, 200, 100_000
"""Steps of SQLite's virtual machine: a view may be an endless query; a table takes about 30 steps per row."""
KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"


class NsightFile:
    """Open SQLite export of Nsight Systems; a context manager that closes the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                head = file.read(16)
        except OSError as problem:
            raise InputError(f"cannot read {path}: {problem.strerror}") from None
        if head != b"SQLite format 3\0":
            raise InputError(f"{path} is not an SQLite file; write one with nsys export --type sqlite REPORT.nsys-rep")
        self._base = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        self._left = _BASE_STEPS + _STEPS_PER_BYTE * path.stat().st_size
        self._base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(1_000_000, min(path.stat().st_size, 1_000_000_000)))
        self._base.set_progress_handler(self._exceeds_step_limit, _STEPS_PER_CHECK)
        try:
            names = [name for (name,) in self._query("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
            self._columns = {name: [row[1] for row in self._query(f'PRAGMA table_info("{name}")')] for name in names}
            self.strings = {place: str(text) for place, text in self.read_rows("StringIds", ("id", "value"))}
        except BaseException:
            self._base.close()
            raise

    def __enter__(self) -> NsightFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()

    def read_rows(self, table: str, columns: Sequence[str], needed: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        """Read some columns of a table, row by row: None for a missing column, no rows for a missing table.

        Raises InputError for a value that is not an integer, and for an empty cell in a ``needed`` column.
        """
        there = self._columns.get(table)
        if there is None:
            return []
        wanted = ", ".join(f'"{name}"' if name in there else "NULL" for name in columns)
        found = self._query(f'SELECT {wanted} FROM "{table}"')
        whole = [(place, name) for place, name in enumerate(columns) if name not in _TEXT_COLUMNS]
        for number, row in enumerate(found):
            for place, name in whole:
                value = row[place]
                far = name in _TIME_COLUMNS and type(value) is int and abs(value) >= _MAX_TIME_NS
                if far or (type(value) is not int and (value is not None or name in needed)):
                    raise InputError(
                        f"cannot read {self.path}: {table}, row {number}: {name} is {quote_value(value)}, not a whole "
                        "number; the file is damaged: export the report again"
                    )
        return found

    def _exceeds_step_limit(self) -> int:
        """Return whether SQLite has used more steps than reading a file of this size should take."""
        self._left -= _STEPS_PER_CHECK
        return self._left < 0

    def _query(self, text: str) -> list[tuple[Any, ...]]:
        try:
            return self._base.execute(text).fetchall()
        except sqlite3.Error as problem:
            raise InputError(
                f"cannot read {self.path}: {problem}; the file is truncated or damaged: export the report again"
            ) from None


STEP_RANGE_NAME = re.compile(r"(?i)(?:profiler)?(?:step|iter|iteration)[\s#:_=-]*(\d+)")
_SEQUENCE = re.compile(r", seq = (\d+)")
_RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
_VERSION = re.compile(r"_v\d+$")
_RANGE_TYPES = (59, 60, None)
"""NvtxPushPopRange and NvtxStartEndRange, by the export's ENUM_NSYS_EVENT_TYPE."""
_AUTOGRAD = "pt_autograd"
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""Copy directions by CUPTI's CUpti_ActivityMemcpyKind."""

ProcessDevice = tuple[int | None, int]
"""A process (globalPid) and one of its devices."""
RawEvent = tuple[int, int, dict[str, Any]]
"""Start and end (ns), and the event in PyTorch's form."""


def read_nsight_exports(files: Sequence[Path], notes: list[str]) -> list[RankProfile]:
    """Read the rank profiles of several Nsight Systems exports, in file order."""
    found: list[RankProfile] = []
    for path in files:
        found += _read_export(path, len(found), notes)
    notes.append("exports of Nsight Systems name no process groups: waiting in a collective counts as transfer")
    return found


def _read_export(path: Path, first: int, notes: list[str]) -> list[RankProfile]:
    """Read the rank profiles of one export; number the ranks from ``first`` unless the file name states the rank."""
    with NsightFile(path) as export:
        works = _read_device_events(export)
        if not works:
            raise InputError(
                f"{path} has no kernels (no table {KERNEL_TABLE}): was CUDA traced?  Record with nsys profile --trace "
                f"cuda,nvtx"
            )
        if export.read_rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", ("start",)):
            notes.append(
                f"{path.name}: CUDA graphs were traced as a whole; their kernels are missing (record them with "
                "nsys profile --cuda-graph-trace=node)"
            )
        calls, ranges = _read_runtime_calls(export), _read_nvtx_ranges(export)
        names = {
            thread: str(export.strings.get(name, ""))
            for name, thread in export.read_rows("ThreadNames", ("nameId", "globalTid"))
        }
        begins = export.read_rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))
        origin = next((int(ns) for (ns,) in begins if ns), 0)
        env = export.read_rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
        host = next((str(value) for name, value in env if name == "Hostname"), "")
    units = sorted(works, key=lambda unit: (unit[1], unit[0] or 0))
    if len(units) > 1:
        notes.append(f"{path.name}: its devices are taken as ranks {first} to {first + len(units) - 1}, in order")
    elif named := _RANK_IN_NAME.search(path.name):
        first = int(named[1])
    found = []
    for rank, unit in enumerate(units, first):
        file = path.name if len(units) == 1 else f"{path.name}, rank {rank}"  # the name distinguishes ranks
        profile = RankProfile(file, rank, host, origin, ProcessGroups(), on_device=True)
        _add_profile_events(profile, works[unit], calls.get(unit[0], {}), ranges.get(unit[0], ()), names)
        found.append(profile)
    return found


def _process_of_thread(identity: int | None) -> int | None:
    return None if identity is None else identity - identity % _THREAD_IDS


def _read_device_events(export: NsightFile) -> dict[ProcessDevice, list[RawEvent]]:
    """Read the kernels, copies and memsets of each (process, device) pair that ran kernels."""
    found: dict[ProcessDevice, list[RawEvent]] = defaultdict(list)
    times = ("start", "end")
    common = (*times, "deviceId", "streamId", "correlationId", "globalPid")

    def add_event(category: str, row: Sequence[Any], name: str) -> None:
        start, end, device, stream, correlation, process, *_ = row
        if category == "kernel" or (process, device or 0) in found:
            args = {"stream": stream or 0, "Process Group Name": f"stream {stream or 0}", "Group size": 1}
            args |= {} if correlation is None else {"correlation": correlation}  # unknown group: no other call matches
            found[process, device or 0].append((start, end, {"cat": category, "name": name, "args": args}))

    texts = export.strings
    for row in export.read_rows(KERNEL_TABLE, (*common, "demangledName", "shortName"), times):
        long, short = row[-2:]
        add_event("kernel", row, texts.get(long) or texts.get(short) or f"kernel {long if long is not None else short}")
    for row in export.read_rows("CUPTI_ACTIVITY_KIND_MEMCPY", (*common, "copyKind"), times):
        add_event("gpu_memcpy", row, f"Memcpy {_COPY_KINDS.get(row[-1], 'other')}")
    for row in export.read_rows("CUPTI_ACTIVITY_KIND_MEMSET", common, times):
        add_event("gpu_memset", row, "Memset")
    return dict(found)


def _read_runtime_calls(export: NsightFile) -> dict[int | None, dict[int, RawEvent]]:
    """Read CUDA API calls, by process (None: all processes together), then by correlation number."""
    found: dict[int | None, dict[int, RawEvent]] = defaultdict(dict)
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        for start, end, thread, correlation, name in export.read_rows(table, columns, columns[:2]):
            event = {"cat": "cuda_runtime", "name": _VERSION.sub("", export.strings.get(name, "")), "tid": thread or 0,
                     "args": {"correlation": correlation}}  # fmt: skip
            for process in (_process_of_thread(thread), None):
                found[process].setdefault(correlation, (start, end, event))
    return found


def _read_nvtx_ranges(export: NsightFile) -> dict[int | None, list[RawEvent]]:
    """Read NVTX ranges, as autograd operators or annotations, by process (None: all processes together)."""
    found: dict[int | None, list[RawEvent]] = defaultdict(list)
    columns = ("start", "end", "eventType", "text", "textId", "globalTid")
    for start, end, kind, text, number, thread in export.read_rows("NVTX_EVENTS", columns, columns[:1]):
        if end is not None and kind in _RANGE_TYPES:
            name = str(text or export.strings.get(number, ""))
            event: dict[str, Any] = {"cat": "user_annotation", "name": name, "tid": thread or 0}
            if sequence := _SEQUENCE.search(name):
                backward = name.startswith("autograd::")
                event |= {"cat": "cpu_op", "args": {"Sequence number": int(sequence[1]), "Fwd thread id": backward}}
            for process in (_process_of_thread(thread), None):
                found[process].append((start, end, event))
    return found


def _add_profile_events(
    profile: RankProfile, works: Sequence[RawEvent], calls: dict[int, RawEvent], ranges: Iterable[RawEvent],
    names: dict[int, str],
) -> None:  # fmt: skip
    launches = [calls[number] for _, _, event in works if (number := event["args"].get("correlation")) in calls]
    first = min(start for start, _, _ in (*works, *launches))
    threads = {event["tid"] for _, _, event in launches}
    profile.origin += first
    rest = []
    for start, end, event in ranges:
        if step := STEP_RANGE_NAME.fullmatch(event["name"].strip()):
            profile.steps.append((int(step[1]), (start - first) * 1e-9, (end - first) * 1e-9))
        else:
            rest.append((start, end, event))
    launching = sorted((one for one in calls.values() if one[2]["tid"] in threads), key=lambda one: (one[0], -one[1]))
    sort_events_into_profile(profile, [
        TimedEvent(number, event, (start - first) * 1e-9, (end - first) * 1e-9)
        for each in (works, launching, rest)
        for number, (start, end, event) in enumerate(each)
    ])  # fmt: skip
    if not any(call.sequence >= 0 for call in profile.operators):
        _infer_phases(profile, names)
        for calls_ in (profile.operators, profile.annotations):
            calls_.sort(key=lambda call: (call.start, -call.end, call.event))


def _infer_phases(profile: RankProfile, names: dict[int, str]) -> None:
    """Infer each op's phase from the launching thread: autograd's threads launch backward passes."""
    threads = {op.thread for op in profile.ops if names.get(op.thread, "").startswith(_AUTOGRAD)}
    launches = [op for op in profile.ops if op.launch_start == op.launch_start]
    if not threads or not launches:
        return
    for start, end in [(start, end) for _, start, end in profile.steps] or [(-math.inf, math.inf)]:
        within = [op for op in launches if start <= op.launch_start < end]
        last = max((op.launch_start for op in within if op.thread in threads), default=math.inf)
        for thread in sorted({op.thread for op in within}):
            own = [op.launch_start for op in within if op.thread == thread]
            low, high = min(own), max(own) + 1e-9
            if thread in threads:
                name = "autograd::engine::evaluate_function: thread"
                profile.operators.append(HostCall(name, thread, low, high, -1, is_forward=False))
                continue
            if low < last:
                profile.operators.append(HostCall("forward", thread, low, min(high, last), -1, sequence=0))
            if high > last:
                profile.annotations.append(HostCall("Optimizer.step#after backward", thread, last, high, -1))
