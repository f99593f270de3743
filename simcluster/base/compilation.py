"""Checks that compiled modules are in use and not older than their sources."""

from __future__ import annotations

import sys
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from multiprocessing import parent_process
from pathlib import Path

from simcluster.base import pointers
from simcluster.base.errors import InputError
from simcluster.base.progress import show_note

SLOW = (
    "the event engine is not compiled: large steps take about 40 times as long, with the same results; "
    "install a C compiler, such as gcc, then install simcluster again"
)
_TREE = Path(__file__).parents[2]


@cache
def warn_if_not_compiled() -> None:
    """Warn, once per command, if the event engine runs as plain Python instead of machine code.

    Raises InputError if a compiled module of a source tree is older than its source, or its source is gone.
    """
    if stale := list_stale_modules():
        raise InputError(
            f"{', '.join(stale)}: older than the source file, so results would be those of the old source; "
            f"compile again: python {_TREE / 'hatch_build.py'}"
        )
    if not engine_is_compiled() and parent_process() is None:
        show_note(SLOW)


def engine_is_compiled() -> bool:
    """Return whether the event engine runs as machine code; otherwise it is plain Python."""
    return is_compiled(str(pointers.__file__))


def list_stale_modules() -> list[str]:
    """Return the imported compiled modules whose source has changed since; none for an installed package."""
    if not (_TREE / "hatch_build.py").exists():
        return []
    files = {name: str(getattr(module, "__file__", "")) for name, module in sorted(sys.modules.items())}
    own = [(name, Path(file)) for name, file in files.items() if name.startswith("simcluster.") and is_compiled(file)]
    stale = [
        name
        for name, path in own
        for part in (*getattr(sys.modules[name], "PARTS", ()), name.rpartition(".")[2])  # see ``hatch_build.py``
        if not (source := path.with_name(f"{part}.py")).exists() or source.stat().st_mtime > path.stat().st_mtime
    ]
    return list(dict.fromkeys(stale))


def is_compiled(file: str) -> bool:
    """Return whether a module's file is a compiled extension."""
    return file.endswith(tuple(EXTENSION_SUFFIXES))
