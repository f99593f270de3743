"""InputError, the error for mistakes in user input, and conversion of file errors to it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simcluster.base.texts import escape_controls


class InputError(ValueError):
    """Error in user input; the message states the problem, its place, the rule, and what would work.

    The command line prints it on stderr and exits with status 2; every other exception that escapes is a bug. Names
    from files appear in it with their control characters escaped, also in notebooks.
    """

    def __str__(self) -> str:
        return escape_controls(super().__str__())


@contextmanager
def prefix_errors(place: str | Path) -> Iterator[None]:
    """Put ``place`` (a file or argument) before the message of any InputError in the block that lacks it."""
    try:
        yield
    except InputError as problem:
        if str(place) in str(problem):
            raise
        raise InputError(f"{place}: {problem}") from problem


_NAME_ERRORS = {
    errno.ENAMETOOLONG: "the name is too long for a file; use a shorter one",
    errno.EACCES: "may not be read by this user; change its permissions, or name a copy",
    errno.EPERM: "may not be read by this user; change its permissions, or name a copy",
    errno.ELOOP: "symbolic links form a circle; name the file itself",
}
"""Messages for errors of the operating system about a file name."""


def describe_file_error(problem: OSError) -> str:
    """Return the message for a file that the operating system cannot open; "" for other errors."""
    told = _NAME_ERRORS.get(problem.errno or 0)
    return f"{str(problem.filename)[:200]}: {told}" if told and problem.filename is not None else ""


@contextmanager
def convert_file_errors() -> Iterator[None]:
    """Convert an OSError about a file, raised in the block, to an InputError."""
    try:
        yield
    except OSError as problem:
        if told := describe_file_error(problem):
            raise InputError(told) from problem
        raise


class DeadlockError(InputError):
    """Error raised when ops wait for each other forever; the message states which ranks wait for what."""
