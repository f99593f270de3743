"""Listeners for progress and notes: the command line, where there is one; else notes are Python's warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Hearer = Callable[[str, float], object]
Words = Callable[[], str]

_heard_by: ContextVar[Hearer | None] = ContextVar("heard_by", default=None)

_phases: ContextVar[tuple[str | Words, ...]] = ContextVar("phases", default=())

_notes_to: ContextVar[Callable[[str], object] | None] = ContextVar("notes_to", default=None)


def note(text: str) -> None:
    """Something that went another way than expected, and is no error."""
    hears = _notes_to.get()
    if hears is not None:
        hears(text)
    else:
        warnings.warn(text, RuntimeWarning, stacklevel=3)


@contextmanager
def notes_to(hears: Callable[[str], object]) -> Iterator[None]:
    """Inside, ``hears`` is called with every note, in this thread."""
    before = _notes_to.set(hears)
    try:
        yield
    finally:
        _notes_to.reset(before)


def playing(name: str) -> None:
    """A step of this name begins to be played."""
    _tell(name, 0.0)


def estimated(name: str, seconds: float) -> None:
    """A scenario of this name is to be planned and played, which will take about so many seconds."""
    _tell(name, seconds)


def _tell(name: str, seconds: float) -> None:
    hears = _heard_by.get()
    if hears is not None:
        hears(name, seconds)


@contextmanager
def phase(words: str | Words) -> Iterator[None]:
    """Inside, progress lines of this thread name this phase, within those around it.

    Words that are called, whenever a line is written, may state the share that is done.
    """
    before = _phases.set((*_phases.get(), words))
    try:
        yield
    finally:
        _phases.reset(before)


def phases() -> Iterator[str]:
    """Yield the phases that this thread is in, the outer first."""
    return (words if isinstance(words, str) else words() for words in _phases.get())


@contextmanager
def heard_by(hears: Hearer) -> Iterator[None]:
    """Inside, ``hears`` is called with the name of every step that begins and 0, or of a scenario and its estimate,
    in this thread."""
    before = _heard_by.set(hears)
    try:
        yield
    finally:
        _heard_by.reset(before)
