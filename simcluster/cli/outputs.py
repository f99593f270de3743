"""Files that a command writes: never two under one name, never one that the same command reads."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import combinations
from pathlib import Path

from simcluster.base.errors import InputError

_kept: dict[tuple[int, int], Path] = {}
"""Outputs of the command at work that replace a file, by that file's device and inode."""


def require_two_names(paths: Sequence[Path]) -> None:
    """Raise InputError where two outputs would be one file."""
    for one, other in combinations(paths, 2):
        found = _regular(one)
        same = found is not None and found == _regular(other)
        if same or (not one.exists() and os.path.realpath(one) == os.path.realpath(other)):
            raise InputError(f"cannot write {other}: two outputs have this name; give each a name of its own")


@contextmanager
def inputs_kept(paths: Sequence[Path]) -> Iterator[None]:
    """Raise InputError inside as soon as anything opens one of these outputs to read it.

    Python reports each file that it opens to its audit hooks, so that no reader of scenarios, traces or logs has to
    know of the outputs.
    """
    before = dict(_kept)
    _kept.update({found: path for path in paths if (found := _regular(path))})
    if _kept:
        _watch()
    try:
        yield
    finally:
        _kept.clear()
        _kept.update(before)


@cache
def _watch() -> None:
    sys.addaudithook(_opened)


def _opened(event: str, arguments: Sequence[object]) -> None:
    """Refuse to open a file for reading that is an output."""
    if event != "open" or not _kept:
        return
    path, _, flags = arguments
    if not isinstance(path, str | bytes) or not isinstance(flags, int) or flags & (os.O_WRONLY | os.O_RDWR):
        return
    output = _kept.get(_regular(path) or (-1, -1))
    if output is not None:
        raise InputError(f"cannot write {output}: it is what is read; choose another name")


def _regular(path: str | bytes | Path) -> tuple[int, int] | None:
    """Return the device and inode of a regular file; None where there is none."""
    try:
        found = Path(os.fsdecode(path)).stat()
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None
