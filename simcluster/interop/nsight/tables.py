"""The tables of an SQLite export that are used, as rows with names: what is missing is None, whatever the version.

Nsight Systems User Guide, "SQLite Schema Reference" (nsys export --type sqlite): tables are made only where there is
something in them; columns came over the years.  Times are nanoseconds; a globalTid holds process and thread: thread =
globalTid % 0x1000000, process = globalTid / 0x1000000 % 0x1000000; a globalPid is one with thread 0.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import shown

_THREADS = 0x1000000
_TEXTS = ("value", "text", "name")
_NEEDED, _TIMES = ("start",), ("start", "end", "utcEpochNs")
_LARGEST = 2**61
"""Nanoseconds: 73 years."""
_STEPS, _STEPS_A_BYTE, _EVERY = 1_000_000, 200, 100_000
"""Of SQLite's machine: a view may be an endless query, a table takes about 30 steps a row."""
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


def process_of(identity: int | None) -> int | None:
    """The process of a globalTid or globalPid, as a globalPid."""
    return None if identity is None else identity - identity % _THREADS


class NsightFile:
    """An export that is open for reading; InputError for a file that is none.  A context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                head = file.read(16)
        except OSError as problem:
            raise InputError(f"cannot read {path}: {problem.strerror}") from None
        if head != b"SQLite format 3\0":
            raise InputError(f"{path} is no SQLite file; write one with nsys export --type sqlite REPORT.nsys-rep")
        self._base = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        self._left = _STEPS + _STEPS_A_BYTE * path.stat().st_size
        self._base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(1_000_000, min(path.stat().st_size, 1_000_000_000)))
        self._base.set_progress_handler(self._step, _EVERY)
        try:
            names = [name for (name,) in self._query("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
            self._columns = {name: [row[1] for row in self._query(f'PRAGMA table_info("{name}")')] for name in names}
            self.texts = {place: str(text) for place, text in self.rows("StringIds", ("id", "value"))}
        except BaseException:
            self._base.close()
            raise

    def __enter__(self) -> NsightFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()

    def has(self, table: str) -> bool:
        """Is there such a table, with rows?"""
        return table in self._columns and bool(self._query(f'SELECT 1 FROM "{table}" LIMIT 1'))

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """These columns of a table, in the order of its rows; None where it has no such column, no rows without it."""
        there = self._columns.get(table)
        if there is None:
            return []
        wanted = ", ".join(f'"{name}"' if name in there else "NULL" for name in columns)
        found = self._query(f'SELECT {wanted} FROM "{table}"')
        whole = [place for place, name in enumerate(columns) if name not in _TEXTS]
        times = [place for place, name in enumerate(columns) if name in _TIMES]
        needed = [place for place, name in enumerate(columns) if name in _NEEDED and name in there]
        for number, row in enumerate(found):
            for place in whole:
                value = row[place]
                far = place in times and type(value) is int and abs(value) >= _LARGEST
                if far or (type(value) is not int and (value is not None or place in needed)):
                    raise InputError(
                        f"cannot read {self.path}: {table}, row {number}: {columns[place]} is {shown(value)}, no whole "
                        "number; the file is damaged: export the report again"
                    )
        return found

    def _step(self) -> int:
        """Ends a query that takes more steps than a table of that file can."""
        self._left -= _EVERY
        return self._left < 0

    def _query(self, text: str) -> list[tuple[Any, ...]]:
        try:
            return self._base.execute(text).fetchall()
        except sqlite3.Error as problem:
            raise InputError(
                f"cannot read {self.path}: {problem}; the file is cut or damaged: export the report again"
            ) from None
