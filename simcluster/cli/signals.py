"""SIGINT and SIGTERM as one interrupt of long work that has something to show when it is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopping_signals() -> Iterator[list[int]]:
    """Raises KeyboardInterrupt inside for the first of either signal; those that came are listed."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_status(signals: list[int]) -> int:
    """What a shell reports of a program that the first of the signals ended."""
    return 128 + (signals[0] if signals else signal.SIGINT)
