"""Listeners for progress and notes, and the limit of work that begins unasked.

The command line listens, where there is one; else notes are Python's warnings.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from simcluster.base.errors import InputError

NOTED = 60.0
"""Seconds from which on a command says how long it will take."""

MOST = 600.0
"""Seconds up to which a scenario is planned and played without being asked for again."""

_most: ContextVar[float] = ContextVar("most", default=MOST)


def most_seconds() -> float:
    """The estimate up to which work is begun."""
    return _most.get()


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Inside, work is begun up to an estimate of so many seconds."""
    before = _most.set(seconds)
    try:
        yield
    finally:
        _most.reset(before)


def however_long(asked: bool = True) -> AbstractContextManager[None]:
    """Return a context in which work is begun whatever its estimate says; ``asked`` False: it is as outside."""
    return at_most(math.inf if asked else most_seconds())


def unless_asked(remedy: str) -> str:
    """The end of a refusal of work that takes longer than is begun: the rule, and what would work."""
    return (
        f"without being asked for again {in_words(most_seconds())} are spent on a scenario: {remedy}, or say --yes "
        "(from Python: with simcluster.however_long():)"
    )


def require_begun(seconds: float, what: str, remedy: str) -> None:
    """InputError for work that takes longer than is begun: ``what`` says how long, ``remedy`` what would work."""
    if seconds > most_seconds():
        raise InputError(f"{what}; {unless_asked(remedy)}")


def require_few(what: str, count: int, seconds: float, until: float) -> None:
    """Raise InputError if ``count`` events, of ``seconds`` of processor time each, take longer than is allowed without
    ``--yes``; ``until`` (s) is the simulated time that they reached."""
    if count * seconds > most_seconds():
        raise InputError(
            f"the first {until:.3g} s of the steps take {count:,} {what}, and the steps are not finished; "
            f"{unless_asked('give faults longer periods or an end, use faster devices or links')}"
        )


def in_words(seconds: float) -> str:
    """An estimate, as rough as it is: 20 s, 4 min, 3 h, 12 days."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= 2 * size or unit == "s" or (unit == "min" and seconds >= size):
            return f"{float(f'{seconds / size:.2g}'):,.0f} {unit}"
    raise AssertionError


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
