"""What users can do wrong, said once and clearly."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simcluster.base.texts import printable


class InputError(ValueError):
    """A bad input: the message says what is wrong, where, the rule, and what would work.

    The command line prints it on stderr and exits with status 2; everything else that escapes is our bug.  Names from
    files stand in it with their control characters as escapes, in a notebook, too.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


@contextmanager
def located(place: str | Path) -> Iterator[None]:
    """Inside, what an InputError says begins with the place that it is about, unless it names it already."""
    try:
        yield
    except InputError as problem:
        if str(place) in str(problem):
            raise
        raise InputError(f"{place}: {problem}") from problem


_OF_NAMES = {
    errno.ENAMETOOLONG: "the name is too long for a file; give a shorter one",
    errno.EACCES: "may not be looked at by this user; change its permissions, or name a copy",
    errno.EPERM: "may not be looked at by this user; change its permissions, or name a copy",
    errno.ELOOP: "links lead to each other in a circle; name the file itself",
}
"""What the system refuses of a name, wherever one is looked up."""


def refused_by_system(problem: OSError) -> str:
    """What is said of a file that the system does not let be looked at; "" of other failures."""
    told = _OF_NAMES.get(problem.errno or 0)
    return f"{str(problem.filename)[:200]}: {told}" if told and problem.filename is not None else ""


@contextmanager
def system_refusals() -> Iterator[None]:
    """Inside, a name that the system refuses is an InputError."""
    try:
        yield
    except OSError as problem:
        if told := refused_by_system(problem):
            raise InputError(told) from problem
        raise


class DeadlockError(InputError):
    """Ops that wait for each other for ever; the message names the ranks and what each waits for."""
