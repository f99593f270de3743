"""Errors of user input, and translation of the operating system's refusals."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simcluster.base.texts import printable


class InputError(ValueError):
    """Error in user input; the message states what is wrong, where, the rule, and what would work.

    The command line prints it on stderr and exits with status 2; every other exception that escapes is a bug. Names
    from files appear in it with their control characters escaped, also in notebooks.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


@contextmanager
def located(place: str | Path) -> Iterator[None]:
    """Prefix the message of an InputError raised inside with its place, unless it names the place."""
    try:
        yield
    except InputError as problem:
        if str(place) in str(problem):
            raise
        raise InputError(f"{place}: {problem}") from problem


_OF_NAMES = {
    errno.ENAMETOOLONG: "the name is too long for a file; use a shorter one",
    errno.EACCES: "may not be read by this user; change its permissions, or name a copy",
    errno.EPERM: "may not be read by this user; change its permissions, or name a copy",
    errno.ELOOP: "symbolic links form a circle; name the file itself",
}
"""What the system refuses of a name, wherever one is looked up."""


def describe_refusal(problem: OSError) -> str:
    """Return the message for a file that the operating system refuses to open; "" for other errors."""
    told = _OF_NAMES.get(problem.errno or 0)
    return f"{str(problem.filename)[:200]}: {told}" if told and problem.filename is not None else ""


@contextmanager
def system_refusals() -> Iterator[None]:
    """Raise InputError inside for a file name that the operating system refuses."""
    try:
        yield
    except OSError as problem:
        if told := describe_refusal(problem):
            raise InputError(told) from problem
        raise


class DeadlockError(InputError):
    """Error of ops that wait for each other forever; the message names the ranks and their waits."""
