"""Who hears what is being played: a command line that shows how far it is; else nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_heard_by: ContextVar[Callable[[str], object] | None] = ContextVar("heard_by", default=None)


def playing(name: str) -> None:
    """A step of this name begins to be played."""
    hears = _heard_by.get()
    if hears is not None:
        hears(name)


@contextmanager
def heard_by(hears: Callable[[str], object]) -> Iterator[None]:
    """Inside, ``hears`` is called with the name of every step that begins, in this thread."""
    before = _heard_by.set(hears)
    try:
        yield
    finally:
        _heard_by.reset(before)
