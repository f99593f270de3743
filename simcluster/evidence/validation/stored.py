"""Rows that were played, kept on disk: validation that was stopped, or is asked again, goes on from there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from simcluster.base.sources import sources_digest
from simcluster.base.store import Store
from simcluster.base.version import VERSION
from simcluster.evidence.validation.measured import StepCounts
from simcluster.evidence.validation.steps import PlayedRow, RowTask
from simcluster.scenario.likely import RunKind
from simcluster.scenario.scenario import Base


class StoredRows:
    """The answers of rows of studies of steps; without a ``path`` nothing is kept.

    A row is found again by what the simulator is, what its scenario says (files that it names by their content), and
    what is measured of it.
    """

    def __init__(self, path: Path | None) -> None:
        self._store = None if path is None else Store(path, VERSION, "--store")
        self._contents = cache(_content)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store:
            self._store.close()

    def find(self, task: object) -> PlayedRow | str | None:
        """The answer of a row, or why it has none; None if it was not played yet."""
        if self._store is None or not isinstance(task, RowTask):
            return None
        row = self._store.row(self._key(task))
        if row is None:
            return None
        return str(row["refused"]) if "refused" in row else _read(row)

    def add(self, task: object, answer: PlayedRow | str) -> None:
        """Keep what a row has come to."""
        if self._store is not None and isinstance(task, RowTask):
            row = {"refused": answer} if isinstance(answer, str) else asdict(answer)
            self._store.add([(self._key(task), row)])

    def _key(self, task: RowTask) -> str:
        base = json.dumps(task.base, sort_keys=True, default=str)
        files = [_bytes_of(task.folder, value) for _, value in (*task.changes, *task.less)]
        known = [sources_digest(), self._contents(base, str(task.folder)), task.changes, task.parts, task.less, files]
        return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


def _content(base: str, folder: str) -> str:
    """Equal for bases that say the same."""
    return Base(json.loads(base), folder).fingerprint()


def _bytes_of(folder: Path, value: object) -> str:
    """Of the file that a value names, if it does."""
    path = folder / value if isinstance(value, str) and value and len(value) < 256 else None
    return hashlib.sha256(path.read_bytes()).hexdigest() if path and path.is_file() else ""


def _read(row: Mapping[str, Any]) -> PlayedRow:
    kind = RunKind(**{**row["kind"], "traits": tuple(row["kind"]["traits"])})
    return PlayedRow(row["step_time"], row["breakdown"], StepCounts(**row["facts"]), tuple(row["warnings"]), kind)
