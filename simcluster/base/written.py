"""Files written whole or not at all: what is new is written beside the old file, then takes its place.

The only module that opens a file for writing (``tests/test_written.py`` holds the package to it).  Beside ``step.json``
stands ``.step.json.1.partial`` meanwhile, locked by who writes it; what a killed process left of such is taken away by
the next that writes ``step.json``.  A link is written through, and what is no regular file (a pipe, a terminal,
/dev/null) is written as it comes, and so is a file that is this process's own stdout or stderr.
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
from itertools import count
from pathlib import Path
from types import FrameType
from typing import IO, Any
from zlib import crc32

from simcluster.base.errors import InputError

PARTIAL = ".partial"
"""How the name of a file ends that is being written."""
_SWEPT = 4  # numbers of which leftovers are looked for: so many processes were killed while they wrote the same file
_LONGEST = 200  # bytes of a name that are kept beside the number
_ROOM = "free some space, or name a file on another disk"
_LEAVE = "name a file that you may write, in a folder that you may write to"
_REMEDIES: Mapping[int, str] = {
    errno.ENOSPC: _ROOM, errno.EDQUOT: _ROOM, errno.EFBIG: "raise the limit of the shell (ulimit -f), or write less",
    errno.EACCES: _LEAVE, errno.EPERM: _LEAVE, errno.EROFS: _LEAVE, errno.EISDIR: "name a file in it",
    errno.ENOENT: "create its folder first", errno.ENOTDIR: "create its folder first",
    errno.ENAMETOOLONG: "choose a shorter name", errno.EEXIST: "choose another name",
}  # fmt: skip


@contextmanager
def written(path: str | Path, *, new: bool = False) -> Iterator[IO[bytes]]:
    """A file to write bytes to, which stands at ``path`` when all is done, with the mode of the one it replaces.

    Where anything ends it before (an exception, SIGINT, SIGTERM, SIGHUP) the old file is as it was, and nothing else is
    left.  With ``new`` a file that is there already is an error.  InputError for what the system refuses.
    """
    path = Path(path)
    try:
        found = _stat(path)
        if new and found is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if found is None or _can_be_replaced(found):
            with _replacing(Path(os.path.realpath(path)), found, new) as file:
                yield file
        else:
            with _direct(path, found) as file:
                yield file
    except OSError as problem:
        raise cannot_write(path, problem) from None


def write_text(path: str | Path, text: str, *, new: bool = False) -> None:
    """A text file in UTF-8; as ``written`` otherwise."""
    with written(path, new=new) as file:
        file.write(text.encode())


def append_line(path: str | Path, line: str) -> None:
    """One more line of a file that grows line by line, on the disk when this returns.

    What a killed process leaves of the last one is for its reader to leave out (``drop_last_line``).  InputError for
    what the system refuses.
    """
    try:
        with Path(path).open("ab") as file:
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        raise InputError(
            f"cannot write {path}: {_said(problem)}; the lines before are whole: {_remedy(problem)}"
        ) from None


def drop_last_line(path: Path) -> None:
    """Cut a file that grows behind its last whole line."""
    whole = path.read_bytes()
    os.truncate(path, whole.rfind(b"\n") + 1)


def cannot_write(path: str | Path, problem: OSError) -> InputError:
    """What is said of a file that cannot be written: what the system says, what is there now, and what would work."""
    there = ""
    with suppress(OSError):
        found = _stat(Path(path))
        if found is None or _can_be_replaced(found):
            now = "there is none" if found is None else "the old one is as it was"
            there = f"a file is written whole or not at all: {now}; "
    return InputError(f"cannot write {path}: {_said(problem)}; {there}{_remedy(problem)}")


def _said(problem: OSError) -> str:
    return problem.strerror or str(problem)


def _remedy(problem: OSError) -> str:
    return _REMEDIES.get(problem.errno or 0, "name a file elsewhere")


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _can_be_replaced(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and _own_stream(found) is None


def _own_stream(found: os.stat_result) -> int | None:
    """The number of our own output that this file is."""
    for number in (1, 2):
        with suppress(OSError):
            if os.path.samestat(found, os.fstat(number)):
                return number
    return None


def _direct(path: Path, found: os.stat_result) -> IO[bytes]:
    """What is no file that could be replaced: behind what was said before, where that goes there, too."""
    number = _own_stream(found)
    if number is None:
        return path.open("wb")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return os.fdopen(os.dup(number), "wb")


@contextmanager
def _replacing(target: Path, found: os.stat_result | None, new: bool) -> Iterator[IO[bytes]]:
    if found is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    unfinished: list[Path] = []
    with _taken_away(unfinished):
        file = os.fdopen(_beside(target, unfinished), "wb")
        try:
            yield file
            file.flush()
            if found is not None:
                _keep(file.fileno(), found)
            os.fsync(file.fileno())
            if sys.platform == "win32":
                file.close()
            if new:
                os.link(unfinished[0], target)  # an error where one is there by now
            else:
                unfinished[0].replace(target)
                unfinished.clear()
        finally:
            _clear(unfinished)  # as long as it is locked: then nobody else has taken the name
            with suppress(OSError):  # of a full disk once more
                file.close()


def _keep(file: int, found: os.stat_result) -> None:
    """Mode, and owner where that is allowed, of the file that is replaced."""
    with suppress(OSError, AttributeError):  # there are none on Windows
        if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(file, found.st_uid, found.st_gid)
        os.fchmod(file, stat.S_IMODE(found.st_mode))


def _clear(unfinished: list[Path]) -> None:
    for path in unfinished:
        path.unlink(missing_ok=True)


@contextmanager
def _taken_away(unfinished: list[Path]) -> Iterator[None]:
    """Where a signal ends the process inside, the files of this list are taken away first."""
    owner, before = os.getpid(), dict[int, Any]()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:  # not in a process that was begun meanwhile and has inherited this
            _clear(unfinished)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number: Any = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _beside(target: Path, unfinished: list[Path]) -> int:
    """An open, empty file beside the target, locked; what killed processes left is taken away."""
    name = target.name
    if len(name.encode()) > _LONGEST:
        name = f"{name[: _LONGEST // 4]}{crc32(name.encode(errors='replace')):08x}"
    for number in count(1):
        path = target.with_name(f".{name}.{number}{PARTIAL}")
        _take_leftover(path)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:  # another process writes the same file
            continue
        if _lock(file) is False or not _is_at(file, path):  # another took it for a leftover in this very moment
            os.close(file)
            continue
        unfinished.append(path)
        for other in range(number + 1, _SWEPT + 1):
            _take_leftover(target.with_name(f".{name}.{other}{PARTIAL}"))
        return file
    raise AssertionError


def _take_leftover(path: Path) -> None:
    """Take a file away that nobody has locked, if it is there."""
    with suppress(OSError):
        file = os.open(path, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0))
        try:
            if _lock(file) and _is_at(file, path):
                path.unlink()
        finally:
            os.close(file)


def _lock(file: int) -> bool | None:
    """Lock an open file for as long as it is open: False where another process has it, None where nothing locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False
