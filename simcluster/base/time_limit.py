"""A time limit of long work: an exception in its midst when time is up.

On the main thread of a system with alarms (not Windows) it comes within milliseconds, whatever is under way.
Elsewhere, and where somebody else uses the alarm, it comes where the work asks for it (``check``).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimeUp(BaseException):
    """The time limit is over: no error, and nothing that catches errors may keep it."""


class Deadline:
    """When a time limit is over; inf seconds for none."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds, below 0 when it is over."""
        return self._end - time.monotonic()

    def check(self) -> None:
        """Raises TimeUp when it is over."""
        if self.left <= 0:
            raise TimeUp


@contextmanager
def within(seconds: float | None) -> Iterator[Deadline]:
    """Raises TimeUp inside after so many seconds; None is no limit."""
    deadline = Deadline(float("inf") if seconds is None else seconds)
    if seconds is None or not _alarm_is_free():
        yield deadline
        return
    armed = True

    def ring(number: int, frame: FrameType | None) -> None:
        if armed:
            raise TimeUp

    signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield deadline
    finally:
        armed = False  # an alarm that comes now must not cut off what cleans up
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _alarm_is_free() -> bool:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] == 0
