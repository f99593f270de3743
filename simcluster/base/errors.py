"""What users can do wrong, said once and clearly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simcluster.base.printable import printable


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


class DeadlockError(InputError):
    """Ops that wait for each other for ever; the message names the ranks and what each waits for."""
