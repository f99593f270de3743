"""Progress, notes to the user, and the limit on work that starts without confirmation.

The command line listens; without it notes are Python warnings.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from simcluster.base.errors import InputError

MIN_ANNOUNCED_SECONDS = 60.0
"""Estimated seconds from which a command announces how long it will take."""

DEFAULT_ESTIMATE_LIMIT = 600.0
"""Estimated seconds up to which a scenario is planned and simulated without confirmation."""

_most: ContextVar[float] = ContextVar("most", default=DEFAULT_ESTIMATE_LIMIT)


def estimate_limit() -> float:
    """Return the estimated duration (s) up to which work starts without confirmation."""
    return _most.get()


@contextmanager
def set_estimate_limit(seconds: float) -> Iterator[None]:
    """Set the estimated duration (s) up to which work in the block starts without confirmation."""
    before = _most.set(seconds)
    try:
        yield
    finally:
        _most.reset(before)


def no_time_limit(asked: bool = True) -> AbstractContextManager[None]:
    """Return a context without a limit on estimated durations; with ``asked`` False the limit stays."""
    return set_estimate_limit(math.inf if asked else estimate_limit())


def confirmation_hint(remedy: str) -> str:
    """Return the end of a message that refuses long work: the limit, and how to confirm it."""
    return (
        f"scenarios estimated to take over {rough_duration(estimate_limit())} need confirmation: {remedy}, or add --yes"
        " (from Python: with simcluster.no_time_limit():)"
    )


def require_time_limit(seconds: float, what: str, remedy: str) -> None:
    """Raise InputError for work (``what``) of estimated ``seconds`` that needs confirmation."""
    if seconds > estimate_limit():
        raise InputError(f"{what}; {confirmation_hint(remedy)}")


def require_event_limit(what: str, count: int, seconds: float, until: float) -> None:
    """Raise InputError if simulating ``count`` events needs confirmation, at ``seconds`` of CPU time each.

    ``what`` names the events, and ``until`` is the simulated time (s) that they have reached.
    """
    if count * seconds > estimate_limit():
        raise InputError(
            f"the first {until:.3g} s of the steps take {count:,} {what}, and the steps are not finished; "
            f"{confirmation_hint('set longer periods or an end of faults, use faster devices or links')}"
        )


def rough_duration(seconds: float) -> str:
    """Format a rough duration (s) such as 20 s, 4 min, 3 h or 12 days."""
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


@contextmanager
def listen_to_notes(listener: Callable[[str], object]) -> Iterator[None]:
    """Pass every note of this thread to ``listener`` while the block runs."""
    before = _notes_to.set(listener)
    try:
        yield
    finally:
        _notes_to.reset(before)


def report_step_start(name: str) -> None:
    """Report to the progress display that the simulation of a named step begins."""
    _report_duration(name, 0.0)


def report_estimate(name: str, seconds: float) -> None:
    """Report to the progress display how long (s) a named scenario is estimated to take."""
    _report_duration(name, seconds)


def _report_duration(name: str, seconds: float) -> None:
    listener = _progress_listener.get()
    if listener is not None:
        listener(name, seconds)


@contextmanager
def report_phase(words: str | PhaseText) -> Iterator[None]:
    """Name the phase of work that the progress display shows while the block runs; phases nest.

    A callable is evaluated for every line, so that it may state the share that is done.
    """
    before = _phases.set((*_phases.get(), words))
    try:
        yield
    finally:
        _phases.reset(before)


def current_phases() -> Iterator[str]:
    """Yield the names of the phases of work that this thread is in, outermost first."""
    return (words if isinstance(words, str) else words() for words in _phases.get())


@contextmanager
def listen_to_progress(listener: ProgressListener) -> Iterator[None]:
    """Pass progress to ``listener`` while the block runs: a step that begins with 0, an estimate with seconds."""
    before = _progress_listener.set(listener)
    try:
        yield
    finally:
        _progress_listener.reset(before)
