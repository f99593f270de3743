"""SQLite store of a sweep's finished rows, each on disk at once, so that an interrupted sweep can resume.

A database with a write-ahead log next to the output file. The key of a row is made of its base and changes, so a sweep
that grows keeps finished rows. Each row has a CRC-32; a damaged row counts as missing.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from simcluster.base.errors import InputError
from simcluster.base.progress import show_note

_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, row TEXT NOT NULL);
"""
_APPLICATION = 0x51C1  # of PRAGMA application_id: this is one of ours


class RowStore:
    """SQLite file of finished sweep rows, all made by the same ``version`` of simcluster.

    ``option`` is the command-line option of the path, which error messages name.
    """

    def __init__(self, path: Path, version: str, option: str = "-o") -> None:
        self.path, self._other = path, f"choose another {option}"
        with self._convert_sqlite_errors():
            self._file = sqlite3.connect(path, timeout=0.5, isolation_level=None)
        try:
            with self._convert_sqlite_errors():
                self._prepare_database(version)
        except BaseException:
            self.close()
            raise

    def _prepare_database(self, version: str) -> None:
        self._file.execute("PRAGMA locking_mode=EXCLUSIVE")
        if self._file.execute("PRAGMA application_id").fetchone()[0] not in (0, _APPLICATION):
            raise InputError(f"{self.path} is the database of another program; {self._other}")
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("PRAGMA synchronous=FULL")
        self._file.executescript(f"BEGIN IMMEDIATE; PRAGMA application_id={_APPLICATION}; {_SCHEMA} COMMIT;")
        found = self._file.execute("SELECT value FROM about WHERE name='version'").fetchone()
        if found is None:
            self._file.execute("INSERT INTO about VALUES ('version', ?)", (version,))
        elif found[0] != version:
            raise InputError(
                f"{self.path} was created by simcluster {found[0]}, this is {version}; rows of two versions must "
                f"not be mixed: delete the file, or {self._other}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; all rows are on disk already."""
        self._file.close()

    def find_stored_keys(self, keys: Iterable[str]) -> set[str]:
        """Return which of ``keys`` have an intact stored row; show a note if rows are damaged."""
        wanted = set(keys)
        there: set[str] = set()
        damaged = 0
        with self._convert_sqlite_errors():
            for key, row in self._file.execute("SELECT CAST(key AS BLOB), CAST(row AS BLOB) FROM rows"):
                if (name := bytes(key or b"").decode(errors="replace")) in wanted:
                    whole = _verify_checksum(row) is not None
                    there |= {name} if whole else set()
                    damaged += not whole
        if damaged:
            show_note(f"{self.path}: {damaged:,} of {len(wanted):,} rows are damaged and will be simulated again")
        return there

    def delete_rows(self, keys: Iterable[str]) -> None:
        """Delete the rows with these keys, so that they will be simulated again."""
        with self._convert_sqlite_errors():
            self._file.executemany("DELETE FROM rows WHERE key=?", [(key,) for key in keys])

    def add_rows(self, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Store finished rows (key, row) and wait until they are on disk."""
        pairs = [(key, _serialize_row(row)) for key, row in rows]
        with self._convert_sqlite_errors():
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", pairs)
            self._file.execute("COMMIT")

    def read_rows(self, keys: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows with these keys in order; raise InputError for a missing row."""
        for key in keys:
            row = self.read_row(key)
            if row is None:  # its database lists the row and does not find it
                raise InputError(f"{self.path} is damaged: row {key} is listed but cannot be read; {self._other}")
            yield row

    def read_row(self, key: str) -> dict[str, Any] | None:
        """Return the row with this key; None if the row is missing or damaged."""
        with self._convert_sqlite_errors():
            found = self._file.execute("SELECT CAST(row AS BLOB) FROM rows WHERE key=?", (key,)).fetchone()
        text = _verify_checksum(found[0]) if found else None
        return None if text is None else json.loads(text)

    @contextmanager
    def _convert_sqlite_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as problem:
            text = str(problem)
            if "locked" in text:
                raise InputError(
                    f"{self.path}: another process is writing to this file; wait until it ends, or {self._other}"
                ) from None
            if "full" in text or "disk I/O" in text:
                raise InputError(
                    f"{self.path} cannot be written ({text}); finished rows are safe: free some space and run the "
                    "same command again"
                ) from None
            raise InputError(
                f"{self.path} cannot be used as a store of finished rows ({text}); {self._other}"
            ) from None
        except sqlite3.DatabaseError as problem:
            raise InputError(f"{self.path} is not a store of finished rows ({problem}); {self._other}") from None


def _serialize_row(row: Mapping[str, Any]) -> str:
    text = json.dumps(row)
    return f"{zlib.crc32(text.encode()):08x} {text}"


def _verify_checksum(stored: bytes | None) -> bytes | None:
    seal, _, text = (stored or b"").partition(b" ")
    return text if seal == b"%08x" % zlib.crc32(text) else None
