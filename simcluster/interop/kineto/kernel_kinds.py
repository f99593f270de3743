"""What kernels of recorded steps do, by their names: a table (``kernel_kinds.yaml``) that users can extend."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.reading import read_document, validate
from simcluster.documents.spec import Spec

KernelWork = Literal[
    "product", "attention", "softmax", "norm", "elementwise", "reduction", "embedding", "loss", "routing", "optimizer",
    "copy", "communication",
]  # fmt: skip
WORKS: tuple[KernelWork, ...] = get_args(KernelWork)
"""What kernels do, in the order in which tables have it."""
UNMATCHED = ""
"""What a kernel does that no pattern fits."""


class KernelPattern(Spec):
    """A row of the table: kernels in whose names the pattern is found do this kind of work; ``of``: whose they are."""

    kind: KernelWork
    pattern: Annotated[str, Field(min_length=1)]
    of: str = ""

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        try:
            re.compile(self.pattern)
        except re.error as problem:
            raise InputError(
                f"pattern {self.pattern!r} is no regular expression of Python: {problem}; write one, as in .*gemm.*, "
                "with a backslash before ( [ { * + ? that stand for themselves"
            ) from None
        return self


class KernelTable(Spec):
    """Rows in the order in which they are tried."""

    kernels: Annotated[tuple[KernelPattern, ...], Field(min_length=1)]


class KernelNames:
    """Kinds of kernels by name, each name looked up once; ``own`` is a file whose rows come before those that ship.

    Raises InputError for a file that is no such table.
    """

    def __init__(self, own: str | Path | None = None) -> None:
        rows = [*(_read(Path(own)).kernels if own is not None else ()), *_shipped().kernels]
        self._rows = [(re.compile(row.pattern), row.kind) for row in rows]
        self._known: dict[str, str] = {}

    def kind(self, name: str) -> str:
        """What kernels of this name do (one of ``WORKS``); ``UNMATCHED`` where no row fits."""
        found = self._known.get(name)
        if found is None:
            found = next((kind for pattern, kind in self._rows if pattern.search(name)), UNMATCHED)
            self._known[name] = found
        return found


@cache
def shipped_names() -> KernelNames:
    """The kinds of the table that ships, alone."""
    return KernelNames()


def _read(path: Path) -> KernelTable:
    return validate(KernelTable, read_document(path))


@cache
def _shipped() -> KernelTable:
    return _read(Path(__file__).with_name("kernel_kinds.yaml"))
