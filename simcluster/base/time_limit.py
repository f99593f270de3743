"""A time limit of long work: an exception in its midst when time is up.

On the main thread of a system with alarms (not Windows) it comes within milliseconds, whatever is under way, also
where a clock ticks by the alarm meanwhile (the line of progress of a command), which goes on ticking.  Elsewhere, and
where somebody else waits for the alarm, it comes where the work asks for it (``check``).
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN = 0.05  # seconds between alarms after the limit
_LONGEST = 86400.0  # s that an alarm is set for: the system takes no time that is far beyond a life


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
    raised: list[BaseException] = []
    armed, before, every = True, signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[1]

    def ring(number: int, frame: FrameType | None) -> None:
        if not armed:
            return
        if deadline.left <= 0:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN, every)
            if not _is_propagating(raised):
                raised.append(TimeUp())
                raise raised[-1]
            return
        if callable(before):
            before(number, frame)
        signal.setitimer(signal.ITIMER_REAL, _next(deadline, every), every)

    signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, _next(deadline, every), every)
        yield deadline
    finally:
        armed = False  # an alarm that comes now must not cut off what cleans up
        signal.setitimer(signal.ITIMER_REAL, every, every)
        signal.signal(signal.SIGALRM, before)


def _is_propagating(raised: list[BaseException]) -> bool:
    """Return whether one of these exceptions propagates: Python drops those raised in ``__del__`` or a callback."""
    error = sys.exc_info()[1]
    while error is not None and error not in raised:
        error = error.__context__
    return error is not None


def _next(deadline: Deadline, every: float) -> float:
    """Seconds to the next alarm: the clock's next tick, if there is a clock, the end, or a day, and then anew.

    Never 0, which is no alarm.
    """
    return max(1e-6, min(every or deadline.left, deadline.left, _LONGEST))


def _alarm_is_free() -> bool:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return False
    waits, every = signal.getitimer(signal.ITIMER_REAL)
    ticks = every > 0 and callable(signal.getsignal(signal.SIGALRM))
    return ticks or (signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and waits == 0)
