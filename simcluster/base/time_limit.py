"""Time limit for long work: an alarm signal raises an exception when the time is over.

On the main thread of a system with alarms (not Windows) it is raised within milliseconds, whatever is running, also
where a clock uses the alarm meanwhile (a command's progress line), which keeps ticking. Elsewhere, and where other code
uses the alarm, it is raised where the work calls ``raise_if_expired``.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ALARM_INTERVAL = 0.05  # seconds between alarms after the limit
_LONGEST = 86400.0  # s that an alarm is set for: the system takes no time that is far beyond a life


class TimeLimitExpired(BaseException):
    """Raised when a time limit expires; a BaseException, so that ``except Exception`` does not catch it."""


class Deadline:
    """End of a time limit that begins now and lasts ``seconds`` (infinite: no limit)."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit ends; negative afterwards."""
        return self._end - time.monotonic()

    def raise_if_expired(self) -> None:
        """Raise TimeLimitExpired if the time limit has expired."""
        if self.seconds_left <= 0:
            raise TimeLimitExpired


@contextmanager
def limit_time(seconds: float | None) -> Iterator[Deadline]:
    """Raise TimeLimitExpired once the block has run for ``seconds``; None means no limit."""
    deadline = Deadline(float("inf") if seconds is None else seconds)
    if seconds is None or not _can_set_alarm():
        yield deadline
        return
    raised: list[BaseException] = []
    armed = True
    before = signal.getsignal(signal.SIGALRM)
    every = signal.getitimer(signal.ITIMER_REAL)[1]

    def on_alarm(number: int, frame: FrameType | None) -> None:
        if not armed:
            return
        if deadline.seconds_left <= 0:
            signal.setitimer(signal.ITIMER_REAL, _ALARM_INTERVAL, every)
            if not _any_propagates(raised):
                raised.append(TimeLimitExpired())
                raise raised[-1]
            return
        if callable(before):
            before(number, frame)
        signal.setitimer(signal.ITIMER_REAL, _seconds_to_alarm(deadline, every), every)

    signal.signal(signal.SIGALRM, on_alarm)
    try:
        signal.setitimer(signal.ITIMER_REAL, _seconds_to_alarm(deadline, every), every)
        yield deadline
    finally:
        armed = False  # an alarm that comes now must not cut off what cleans up
        signal.setitimer(signal.ITIMER_REAL, every, every)
        signal.signal(signal.SIGALRM, before)


def _any_propagates(raised: list[BaseException]) -> bool:
    """Return whether any of these exceptions still propagates (Python drops exceptions raised in ``__del__``)."""
    error = sys.exc_info()[1]
    while error is not None and error not in raised:
        error = error.__context__
    return error is not None


def _seconds_to_alarm(deadline: Deadline, every: float) -> float:
    """Return the seconds to the next alarm: a progress update, the deadline, or a day, whichever is first.

    Never 0, which would be no alarm.
    """
    return max(1e-6, min(every or deadline.seconds_left, deadline.seconds_left, _LONGEST))


def _can_set_alarm() -> bool:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return False
    waits, every = signal.getitimer(signal.ITIMER_REAL)
    ticks = every > 0 and callable(signal.getsignal(signal.SIGALRM))
    return ticks or (signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and waits == 0)
