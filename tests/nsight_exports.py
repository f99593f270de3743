"""Exports as Nsight Systems writes them, by its documented schema, made of profiles as PyTorch writes them.

No report of a real run is among the inputs: tables and columns are those of the User Guide's "SQLite Schema Reference".
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
        "demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, "
        "copyKind INTEGER NOT NULL"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL"
    ),
    "NVTX_EVENTS": (
        "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, "
        "color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER"
    ),
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT",
}
KERNEL, RUNTIME, NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
PUSH_POP = 59
THREAD = 7
"""Of the main thread; that of autograd is the next."""


class Export:
    """An export that is being written; ``without`` are tables, or columns as "table.column", that it does not have."""

    def __init__(self, path: Path, without: Sequence[str] = ()) -> None:
        self._base = sqlite3.connect(path)
        self._names: dict[str, int] = {}
        self._columns: dict[str, list[str]] = {}
        for table, columns in TABLES.items():
            there = [each for each in columns.split(", ") if f"{table}.{each.split()[0]}" not in without]
            if table not in without:
                self._base.execute(f"CREATE TABLE {table} ({', '.join(there)})")
                self._columns[table] = [each.split()[0] for each in there]

    def add(self, table: str, **values: Any) -> None:
        """A row, texts by their place in StringIds; what the table lacks is left out, what is not given is 0."""
        if table in self._columns:
            found = [values.get(name, 0) for name in self._columns[table]]
            self._base.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(found))})", found)

    def text(self, value: str) -> int:
        """The place of a text in StringIds."""
        if value not in self._names:
            self._names[value] = len(self._names) + 1
            self.add("StringIds", id=self._names[value], value=value)
        return self._names[value]

    def close(self) -> None:
        self._base.commit()
        self._base.close()


def exported(
    folder: Path, path: Path, *, without: Sequence[str] = (), phases: str = "nvtx",
    called: Callable[[str], str] = lambda name: name, devices: bool = True,
) -> Path:  # fmt: skip
    """The profiles of a folder as one export, a device and process a rank.

    ``phases``: what the host was in is told by "nvtx" ranges as ``emit_nvtx`` writes them, or by its "threads" alone.
    ``called`` renames kernels; without ``devices`` all are number 0, as CUDA_VISIBLE_DEVICES makes them.
    """
    export = Export(path, without)
    for file in sorted(folder.glob("rank*.json.gz")):
        document = json.loads(gzip.decompress(file.read_bytes()))
        rank = document["distributedInfo"]["rank"]
        process = (1000 + rank) << 24
        backward = [
            (event["ts"], event["ts"] + event["dur"])
            for event in document["traceEvents"]
            if str(event["name"]).startswith("autograd::")
        ]
        for event in document["traceEvents"]:
            if event["ph"] == "X":
                _event(export, event, process, rank * devices, backward if phases == "threads" else (), called)
        export.add("ThreadNames", nameId=export.text("pt_autograd_0"), globalTid=process + THREAD + 1)
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000, utcTime="", localTime="")
    export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node0")
    export.close()
    return path


def _event(
    export: Export, event: dict[str, Any], process: int, device: int, backward: Sequence[tuple[float, float]],
    called: Callable[[str], str],
) -> None:  # fmt: skip
    start = round(event["ts"] * 1000)
    args, times = event["args"], {"start": start, "end": start + round(event["dur"] * 1000)}
    thread = process + THREAD + any(begin <= event["ts"] <= end for begin, end in backward)
    if event["cat"] == "kernel":
        name = called(event["name"])
        where = {"deviceId": device, "streamId": args["stream"], "globalPid": process}
        names = {"demangledName": export.text(name), "shortName": export.text(name[:20])}
        export.add(KERNEL, **times, **where, **names, correlationId=args["correlation"])
    elif event["cat"] == "cuda_runtime":
        name_id = export.text(f"{event['name']}_v7000")
        export.add(RUNTIME, **times, globalTid=thread, correlationId=args["correlation"], nameId=name_id)
    elif event["cat"] in ("user_annotation", "cpu_op"):
        text = event["name"].replace("ProfilerStep#", "step ")
        if event["cat"] == "cpu_op" and backward:
            return
        if event["cat"] == "cpu_op":
            text += f", seq = {args.get('Sequence number', 7)}, op_id = 1"
        if not backward or text.startswith("step "):
            export.add(NVTX, **times, eventType=PUSH_POP, text=text, globalTid=thread)
