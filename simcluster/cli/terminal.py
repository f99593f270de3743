"""What people see on a terminal and programs do not: colours and progress."""

from __future__ import annotations

import os
import sys
from typing import Literal, TextIO

Style = Literal["bold", "red", "yellow", "green"]
_CODES: dict[Style, str] = {"bold": "1", "red": "31;1", "yellow": "33", "green": "32"}


def styled(text: str, style: Style, stream: TextIO | None = None) -> str:
    """The text in a style where ``stream`` (left out: stdout) is a terminal with colours, as it is elsewhere."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if text and has_colours(stream or sys.stdout) else text


def has_colours(stream: TextIO) -> bool:
    """A terminal that shows colours, whose user has not said otherwise (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def progress(text: str = "") -> None:
    """One line on stderr in place of the one before, nothing to clear it; only where stderr is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
