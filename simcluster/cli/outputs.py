"""Checks of output files and optional libraries before a command begins to work.

No two outputs share a file, and none is also an input. All missing libraries are reported at once.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from simcluster.base.errors import InputError, prefix_errors

_OVERRIDES = ("overrides", "set", "vary")


class OptionalLibrary(NamedTuple):
    """An optional library: the feature that needs it, the pip extra that installs it, an alternative."""

    what: str
    module: str
    named: str
    extra: str
    instead: str = ""


def require_libraries(args: argparse.Namespace) -> None:
    """Raise InputError if the command line needs an optional library that is not installed."""
    require_modules(_list_libraries(args))


def require_modules(needs: Iterable[OptionalLibrary]) -> None:
    """Raise InputError that lists those of these optional libraries that are not installed."""
    missing = [need for need in dict.fromkeys(needs) if not is_installed(need.module)]
    if not missing:
        return
    of_what: dict[str, list[str]] = {}
    for need in missing:
        of_what.setdefault(need.what, []).append(need.named)
    told = "; ".join(f"{what} needs {_join_names(named)}" for what, named in of_what.items())
    extras = ",".join(sorted({need.extra for need in missing}))
    instead = "; or ".join(dict.fromkeys(need.instead for need in missing if need.instead))
    raise InputError(f"{told}; pip install 'simcluster[{extras}]'" + (f", or {instead}" if instead else ""))


def _join_names(names: list[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])


def _list_libraries(args: argparse.Namespace) -> Iterator[OptionalLibrary]:
    for name, value in vars(args).items():
        several = value if isinstance(value, list) and name not in _OVERRIDES else [value]
        for path in several:
            if isinstance(path, str | Path) and str(path).endswith(".parquet"):
                yield OptionalLibrary(f"{path}: Parquet", "pyarrow", "pyarrow", "parquet", "use .csv")
    address = getattr(args, "executor", None)
    if isinstance(address, str) and address.startswith("dask://"):
        yield OptionalLibrary(f"--executor {address}", "distributed", "Dask", "dask", "give a number of processes")
    if args.command == "studio":
        for module, named in (("starlette", "Starlette"), ("uvicorn", "uvicorn"), ("websockets", "websockets")):
            yield OptionalLibrary("the studio", module, named, "studio", "write a page with simcluster report")
    if args.command == "chakra":
        yield OptionalLibrary("an execution trace", "google.protobuf", "protobuf", "chakra")


def is_installed(module: str) -> bool:
    """Return whether a module is installed, without importing it, which may take seconds."""
    if sys.modules.get(module.partition(".")[0], sys) is None or sys.modules.get(module, sys) is None:
        return False
    try:
        return module in sys.modules or find_spec(module) is not None
    except (ImportError, ValueError):
        return False


_watched_outputs: dict[tuple[int, int], Path] = {}
"""Outputs of the running command that replace a file, by that file's device and inode."""


def require_distinct_files(paths: Sequence[Path]) -> None:
    """Raise InputError if two output paths are the same file."""
    for one, other in combinations(paths, 2):
        found = _file_identity(one)
        same = found is not None and found == _file_identity(other)
        if same or (not one.exists() and os.path.realpath(one) == os.path.realpath(other)):
            raise InputError(f"cannot write {other}: two outputs have this name; give each a different name")


@contextmanager
def protect_inputs(paths: Sequence[Path]) -> Iterator[None]:
    """Raise InputError if the block opens one of these output files for reading.

    Python reports each opened file to its audit hooks, so readers of scenarios, traces or logs need not know of
    outputs.
    """
    before = dict(_watched_outputs)
    _watched_outputs.update({found: path for path in paths if (found := _file_identity(path))})
    if _watched_outputs:
        _install_open_hook()
    try:
        yield
    finally:
        _watched_outputs.clear()
        _watched_outputs.update(before)


@cache
def _install_open_hook() -> None:
    sys.addaudithook(_reject_reading_outputs)


def _reject_reading_outputs(event: str, arguments: Sequence[object]) -> None:
    if event != "open" or not _watched_outputs:
        return
    path, _, flags = arguments
    if not isinstance(path, str | bytes) or not isinstance(flags, int) or flags & (os.O_WRONLY | os.O_RDWR):
        return
    output = _watched_outputs.get(_file_identity(path) or (-1, -1))
    if output is not None:
        raise InputError(f"cannot write {output}: it is also an input; choose another name")


def _file_identity(path: str | bytes | Path) -> tuple[int, int] | None:
    try:
        found = Path(os.fsdecode(path)).stat()
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


TABLES = (".csv", ".parquet")
_PICTURES = (".png", ".svg", ".pdf")
_NO_PICTURE = f"cannot draw {{}}: a picture ends in {', '.join(_PICTURES)}; choose a name that does"
_ENDINGS: dict[str, tuple[tuple[str, ...], str]] = {
    "any": ((), ""),
    "json": ((), ""),
    "figure": (_PICTURES, _NO_PICTURE),
    "links": ((".csv", *_PICTURES), _NO_PICTURE),
    "memory": ((*TABLES, *_PICTURES), _NO_PICTURE),
    "table": (TABLES, "cannot write {}: a table ends in .csv or .parquet; choose a name that does"),
    "csv": ((".csv",), "cannot write {}: a schedule ends in .csv; choose a name that does"),
    "page": ((".html", ".htm"), "cannot write {}: a page ends in .html; choose a name that does"),
    "scenario": ((".yaml", ".yml"), "cannot write {}: a scenario ends in .yaml; choose a name that does"),
    "device": ((".yaml", ".yml"), "-o {}: a device file ends in .yaml, as in my_gpu.yaml"),
}
"""Endings of output files by kind, and the message for other endings."""


def check_output_path(name: str, kind: str = "any") -> Path:
    """Return an output file's path; InputError if the file cannot be written or has the wrong ending."""
    path = Path(name)
    if name.endswith(("/", os.sep)):
        raise InputError(f"cannot write {name}: that is a folder's name; name a file in it, as in {name}result")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {name}: the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise InputError(f"cannot write {name}: it is a folder; name a file in it")
    endings, refusal = _ENDINGS[kind]
    lower = path.suffix.lower()
    if endings and (lower if lower in (*_PICTURES, ".html", ".htm") else path.suffix) not in endings:
        raise InputError(refusal.format(name))
    return path


def file_version(path: Path) -> tuple[int, int] | None:
    """Return a file's inode and modification time, which tell versions apart; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def check_picture_size(args: argparse.Namespace, files: Sequence[Path]) -> None:
    """Raise InputError for an invalid picture size, or for a size if the command draws no picture."""
    if args.picture_size is None and args.dpi is None:
        return
    if not any(path.suffix.lower() in _PICTURES for path in files):
        raise InputError("--size and --dpi set the size of a picture; name a picture file, as in step.png")
    from simcluster.show.picture_sizes import parse_picture_size, require_dpi

    require_dpi(args.dpi)
    if args.picture_size is not None:
        with prefix_errors("--picture-size"):
            parse_picture_size(args.picture_size)
