"""Rows that were played, kept on disk: validation that was stopped, or is asked again, goes on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from simcluster.base.store import Store
from simcluster.base.version import VERSION
from simcluster.evidence.validation.steps import PlayedRow, RowTask
from simcluster.planning.footprint import StepCounts
from simcluster.scenario.contents import Contents, VariantKeys
from simcluster.scenario.likely import RunKind
from simcluster.scenario.scenario import Base


class StoredRows:
    """The answers of rows of studies of steps; without a ``path`` nothing is kept.

    A row is found again by what the simulator is, what its scenario says (files that it names by their content), and
    what is measured of it.
    """

    def __init__(self, path: Path | None) -> None:
        self._store = None if path is None else Store(path, VERSION, "--store")
        self._contents = Contents()
        self._keys = cache(self._keys_of)

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
            self._contents.require_unchanged()
            row = {"refused": answer} if isinstance(answer, str) else asdict(answer)
            self._store.add([(self._key(task), row)])

    def _key(self, task: RowTask) -> str:
        keys = self._keys(json.dumps(task.base, sort_keys=True, default=str), str(task.folder))
        return keys.of(*task.changes, ("less", task.less), ("parts", task.parts))

    def _keys_of(self, base: str, folder: str) -> VariantKeys:
        return VariantKeys(Base(json.loads(base), folder), contents=self._contents)


def _read(row: Mapping[str, Any]) -> PlayedRow:
    kind = RunKind(**{**row["kind"], "traits": tuple(row["kind"]["traits"])})
    return PlayedRow(row["step_time"], row["breakdown"], StepCounts(**row["facts"]), tuple(row["warnings"]), kind)
