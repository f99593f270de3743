"""Atomic file writing: the new contents go to a temporary file, which then replaces the old file.

The only module that opens a file for writing (``tests/test_written.py`` checks that). ``step.json`` is written as
``.step.json.HOST.PID-N.partial``; the part left by a killed process is removed by the next process of its host that
writes into the folder. Symbolic links are followed; what is not a regular file (a pipe, a terminal, /dev/null) is
written directly, and so is a file that is this process's stdout or stderr.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from types import FrameType
from typing import IO, Any
from zlib import crc32

from simcluster.base.errors import InputError

PARTIAL = ".partial"
"""Ending of the name of a file that is being written."""
_LONGEST = 200  # bytes of a name that are kept next to host and process
_NUMBERS = count()
_FREE_DISK = "free some space, or name a file on another disk"
_OTHER_FILE = "name a file that you may write, in a folder that you may write to"
_REMEDIES: Mapping[int, str] = {
    errno.ENOSPC: _FREE_DISK, errno.EDQUOT: _FREE_DISK,
    errno.EFBIG: "raise the limit of the shell (ulimit -f), or write less",
    errno.EACCES: _OTHER_FILE, errno.EPERM: _OTHER_FILE, errno.EROFS: _OTHER_FILE, errno.EISDIR: "name a file in it",
    errno.ENOENT: "create its folder first", errno.ENOTDIR: "create its folder first",
    errno.ENAMETOOLONG: "choose a shorter name", errno.EEXIST: "choose another name",
}  # fmt: skip


@contextmanager
def open_atomic(path: str | Path, *, must_be_new: bool = False) -> Iterator[IO[bytes]]:
    """Open a temporary binary file that replaces ``path`` atomically when the block ends and keeps its mode.

    After an exception, SIGINT, SIGTERM or SIGHUP the old file is unchanged and nothing else is left. An existing
    file is an error if ``must_be_new`` is true. Raises InputError for what the system refuses.
    """
    path = Path(path)
    try:
        found = _stat_or_none(path)
        if must_be_new and found is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if found is None or _can_be_replaced(found):
            with _write_and_replace(Path(os.path.realpath(path)), found, must_be_new) as file:
                yield file
        else:
            with _open_directly(path, found) as file:
                yield file
    except OSError as problem:
        raise make_write_error(path, problem) from None


def write_text_atomic(path: str | Path, text: str, *, must_be_new: bool = False) -> None:
    """Write a text file in UTF-8, atomically as ``open_atomic`` does."""
    with open_atomic(path, must_be_new=must_be_new) as file:
        file.write(text.encode())


def append_line(path: str | Path, line: str) -> None:
    """Append a line to a file and wait until the line is on disk.

    A partial last line of a killed process is dropped by the reader (``truncate_partial_line``). Raises InputError for
    what the system refuses.
    """
    try:
        with Path(path).open("ab") as file:
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {_system_error_text(error)}; earlier lines are complete; {_suggest_remedy(error)}"
        ) from None


def truncate_partial_line(path: Path) -> None:
    """Truncate a file after its last complete line."""
    whole = path.read_bytes()
    os.truncate(path, whole.rfind(b"\n") + 1)


def make_write_error(path: str | Path, problem: OSError) -> InputError:
    """Return an InputError for a file that cannot be written: cause, state of the old file, remedy."""
    there = ""
    with suppress(OSError):
        found = _stat_or_none(Path(path))
        if found is None or _can_be_replaced(found):
            now = "no file was created" if found is None else "the old file is unchanged"
            there = f"a file is written completely or not at all: {now}; "
    return InputError(f"cannot write {path}: {_system_error_text(problem)}; {there}{_suggest_remedy(problem)}")


def _system_error_text(problem: OSError) -> str:
    return problem.strerror or str(problem)


def _suggest_remedy(problem: OSError) -> str:
    return _REMEDIES.get(problem.errno or 0, "name a file elsewhere")


def _stat_or_none(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _can_be_replaced(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and _output_descriptor(status) is None


def _output_descriptor(status: os.stat_result) -> int | None:
    for number in (1, 2):
        with suppress(OSError):
            if os.path.samestat(status, os.fstat(number)):
                return number
    return None


def _open_directly(path: Path, status: os.stat_result) -> IO[bytes]:
    number = _output_descriptor(status)
    if number is None:
        return path.open("wb")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return os.fdopen(os.dup(number), "wb")


@contextmanager
def _write_and_replace(target: Path, existing: os.stat_result | None, must_be_new: bool) -> Iterator[IO[bytes]]:
    if existing is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    _remove_leftovers(target.parent)
    name = target.name
    if len(name.encode()) > _LONGEST:
        name = f"{name[: _LONGEST // 4]}{crc32(name.encode(errors='replace')):08x}"
    part = target.with_name(f".{name}.{_host_id()}.{os.getpid()}-{next(_NUMBERS)}{PARTIAL}")
    with _remove_on_signal(part):
        try:
            with part.open("xb") as file:
                yield file
                file.flush()
                if existing is not None:
                    _copy_mode(file.fileno(), existing)
                os.fsync(file.fileno())
            if must_be_new:
                os.link(part, target)  # an error where there is a file by now
            else:
                part.replace(target)
        finally:
            part.unlink(missing_ok=True)


@cache
def _host_id() -> str:
    import platform  # only where a file is written

    processes = ""
    with suppress(OSError):
        processes = str(Path("/proc/self/ns/pid").readlink())
    return f"{crc32((platform.node() + processes).encode()):08x}"


def _remove_leftovers(folder: Path) -> None:
    with suppress(OSError):
        for path in folder.glob(f".*.{_host_id()}.*{PARTIAL}") if sys.platform != "win32" else ():
            process = path.name.split(".")[-2].partition("-")[0]
            try:
                os.kill(int(process), 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)


def _copy_mode(file: int, status: os.stat_result) -> None:
    with suppress(OSError, AttributeError):  # there are none on Windows
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(file, status.st_uid, status.st_gid)
        os.fchmod(file, stat.S_IMODE(status.st_mode))


@contextmanager
def _remove_on_signal(part: Path) -> Iterator[None]:
    owner, before = os.getpid(), dict[int, Any]()

    def remove_and_stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:  # not in a process that was forked meanwhile and inherited the handler
            part.unlink(missing_ok=True)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number: Any = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, remove_and_stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
