"""InputError, the error for mistakes in user input, and conversion of file errors to it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simcluster.base.texts import escape_controls


class InputError(ValueError):
    """Error in user input; the message states what is wrong, where, the rule, and what would work.

    The command line prints it on stderr and exits with status 2; every other exception that escapes is a bug. Names
    from files appear in it with their control characters escaped, also in notebooks.
    """

    def __str__(self) -> str:
        return escape_controls(super().__str__())


@contextmanager
def prefix_errors(place: str | Path) -> Iterator[None]:
    """Prefix an InputError raised in the block with ``place`` (a file, an argument) unless it names it."""
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
"""What the system refuses of a name, wherever one is looked up."""


def describe_refusal(problem: OSError) -> str:
    """Return the message for a file that the operating system refuses to open; "" for other errors."""
    told = _NAME_ERRORS.get(problem.errno or 0)
    return f"{str(problem.filename)[:200]}: {told}" if told and problem.filename is not None else ""


@contextmanager
def convert_file_errors() -> Iterator[None]:
    """Convert an OSError about a file name that is raised in the block to InputError."""
    try:
        yield
    except OSError as problem:
        if told := describe_refusal(problem):
            raise InputError(told) from problem
        raise


class DeadlockError(InputError):
    """Error raised when ops wait for each other forever; the message names the ranks and their waits."""
