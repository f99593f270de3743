"""Progress reports, notes to the user, and the time limit above which work needs confirmation.

The command line listens; without it notes are Python warnings.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

from simcluster.base.errors import InputError

T = TypeVar("T")

MIN_ANNOUNCED_SECONDS = 60.0
"""Estimated seconds from which a command announces how long it will take."""

DEFAULT_ESTIMATE_LIMIT = 600.0
"""Estimated seconds up to which a scenario is planned and simulated without confirmation."""

_most: ContextVar[float] = ContextVar("most", default=DEFAULT_ESTIMATE_LIMIT)


def estimate_limit() -> float:
    """Return the estimated duration (s) above which work needs the user's confirmation."""
    return _most.get()


@contextmanager
def set_in_context(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable while the block runs."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


def set_estimate_limit(seconds: float) -> AbstractContextManager[None]:
    """Set the estimated duration (s) above which work in the block needs the user's confirmation."""
    return set_in_context(_most, seconds)


def no_time_limit(asked: bool = True) -> AbstractContextManager[None]:
    """Return a context manager in which work of any duration starts without confirmation, if ``asked``."""
    return set_estimate_limit(math.inf if asked else estimate_limit())


def describe_confirmation(remedy: str) -> str:
    """Return the end of an error message about long work: the limit, and how to confirm the work."""
    return (
        f"scenarios estimated to take over {format_rough_duration(estimate_limit())} need confirmation: {remedy}, "
        "or add --yes (from Python: with simcluster.no_time_limit():)"
    )


def check_estimated_time(seconds: float, what: str, remedy: str) -> None:
    """Raise InputError if work (described by ``what``) is estimated to exceed the confirmation limit."""
    if seconds > estimate_limit():
        raise InputError(f"{what}; {describe_confirmation(remedy)}")


def check_event_count(events: str, count: int, seconds: float, end_s: float) -> None:
    """Raise InputError if ``count`` events of ``seconds`` CPU time each exceed the confirmation limit.

    ``events`` names the events, and ``end_s`` is the simulated time (s) that they have reached.
    """
    if count * seconds > estimate_limit():
        raise InputError(
            f"the first {end_s:.3g} s of simulated time contain {count:,} {events}, and the steps are not finished; "
            f"{describe_confirmation('set longer fault periods or an end, or use faster devices or links')}"
        )


def format_rough_duration(seconds: float) -> str:
    """Format a duration roughly: 20 s, 4 min, 3 h, 12 days."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= 2 * size or unit == "s" or (unit == "min" and seconds >= size):
            return f"{float(f'{seconds / size:.2g}'):,.0f} {unit}"
    raise AssertionError


ProgressListener = Callable[[str, float], object]
PhaseText = Callable[[], str]

_progress_listener: ContextVar[ProgressListener | None] = ContextVar("progress_listener", default=None)

_phases: ContextVar[tuple[str | PhaseText, ...]] = ContextVar("phases", default=())

_notes_to: ContextVar[Callable[[str], object] | None] = ContextVar("notes_to", default=None)


def show_note(text: str) -> None:
    """Show a note to the user: on the command line's stderr, otherwise as a Python warning."""
    listener = _notes_to.get()
    if listener is not None:
        listener(text)
    else:
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def listen_to_notes(listener: Callable[[str], object]) -> AbstractContextManager[None]:
    """Pass every note of this thread to ``listener`` while the block runs."""
    return set_in_context(_notes_to, listener)


def report_step_start(name: str) -> None:
    """Report to the progress display that the simulation of a named step begins."""
    report_estimate(name, 0.0)


def report_estimate(name: str, seconds: float) -> None:
    """Report to the progress display how long (s) a named scenario is estimated to take."""
    listener = _progress_listener.get()
    if listener is not None:
        listener(name, seconds)


@contextmanager
def report_phase(words: str | PhaseText) -> Iterator[None]:
    """Show a phase of work in the progress display while the block runs; phases nest.

    A callable is evaluated for every line, so that it may state the share that is done.
    """
    with set_in_context(_phases, (*_phases.get(), words)):
        yield


def current_phases() -> Iterator[str]:
    """Yield the names of the phases of work that this thread is in, outermost first."""
    return (words if isinstance(words, str) else words() for words in _phases.get())


def listen_to_progress(listener: ProgressListener) -> AbstractContextManager[None]:
    """Call ``listener`` with each step that begins (name, 0) or is estimated (name, seconds) in the block."""
    return set_in_context(_progress_listener, listener)
