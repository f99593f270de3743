"""Listeners for progress and notes, and the limit on work that starts without confirmation.

The command line listens; without it notes are Python warnings.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from simcluster.base.errors import InputError

NOTED = 60.0
"""Estimated seconds from which a command announces how long it will take."""

MOST = 600.0
"""Estimated seconds up to which a scenario is planned and simulated without confirmation."""

_most: ContextVar[float] = ContextVar("most", default=MOST)


def estimate_limit() -> float:
    """Return the estimated duration (s) up to which work starts without confirmation."""
    return _most.get()


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Set the estimated duration (s) up to which work starts inside."""
    before = _most.set(seconds)
    try:
        yield
    finally:
        _most.reset(before)


def however_long(asked: bool = True) -> AbstractContextManager[None]:
    """Return a context without a limit on estimated durations; with ``asked`` False the limit stays."""
    return at_most(math.inf if asked else estimate_limit())


def confirmation_hint(remedy: str) -> str:
    """Return the end of a message that refuses long work: the limit, and what would work."""
    return (
        f"scenarios estimated to take over {in_words(estimate_limit())} need confirmation: {remedy}, or add --yes "
        "(from Python: with simcluster.however_long():)"
    )


def require_time_limit(seconds: float, what: str, remedy: str) -> None:
    """Raise InputError for work whose estimate (s) exceeds the limit; ``remedy`` is what would work."""
    if seconds > estimate_limit():
        raise InputError(f"{what}; {confirmation_hint(remedy)}")


def require_event_limit(what: str, count: int, seconds: float, until: float) -> None:
    """Raise InputError if ``count`` events exceed the time limit, at ``seconds`` of processor time each.

    ``until`` (s) is the simulated time that they reached.
    """
    if count * seconds > estimate_limit():
        raise InputError(
            f"the first {until:.3g} s of the steps take {count:,} {what}, and the steps are not finished; "
            f"{confirmation_hint('set longer periods or an end of faults, use faster devices or links')}"
        )


def in_words(seconds: float) -> str:
    """Format a rough duration (s): 20 s, 4 min, 3 h, 12 days."""
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
    """Report a note that is not an error to the listener, or as a Python warning."""
    hears = _notes_to.get()
    if hears is not None:
        hears(text)
    else:
        warnings.warn(text, RuntimeWarning, stacklevel=3)


@contextmanager
def notes_to(hears: Callable[[str], object]) -> Iterator[None]:
    """Call ``hears`` with every note of this thread inside."""
    before = _notes_to.set(hears)
    try:
        yield
    finally:
        _notes_to.reset(before)


def report_step_start(name: str) -> None:
    """Report to the progress listener that the simulation of a named step begins."""
    _tell(name, 0.0)


def report_estimate(name: str, seconds: float) -> None:
    """Report to the progress listener the estimated duration (s) of a named scenario."""
    _tell(name, seconds)


def _tell(name: str, seconds: float) -> None:
    hears = _heard_by.get()
    if hears is not None:
        hears(name, seconds)


@contextmanager
def phase(words: str | Words) -> Iterator[None]:
    """Name this phase in the progress lines of this thread, within the phases around it.

    A callable is evaluated for every line, so that it may state the share that is done.
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
def listen_to_progress(hears: Hearer) -> Iterator[None]:
    """Call ``hears`` inside with each step that begins (and 0) or scenario and its estimate (s)."""
    before = _heard_by.set(hears)
    try:
        yield
    finally:
        _heard_by.reset(before)
