"""The terminal of a command: colours, one line on stderr of its progress, and the signals that stop it.

The line comes on a terminal from the second second on and is gone when the command prints; elsewhere (a log, a job of
Slurm) there is one every ten seconds.  A timer's signal writes it, so that every command has it, also one that tells
nothing, and without a thread, beside which processes could not be forked.

All text to stdout and stderr goes through here: control characters of names are escaped, and what the encoding lacks is
plain ASCII, never an error (Windows has cp1252 where output goes into a file, a container often ASCII).
"""

from __future__ import annotations

import codecs
import json
import os
import secrets
import shutil
import signal
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TextIO, cast

from simcluster.base.telling import NOTED, heard_by, in_words, phases
from simcluster.base.texts import on_a_line, printable
from simcluster.base.written import write_text

_PLAIN = {
    "█": "#", "▓": "#", "▒": "=", "░": ".", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": "|", "▎": "|", "▏": "|",
    "▼": "v", "▲": "^", "→": "->", "←": "<-", "↑": "^", "↓": "v", "×": "x", "·": "|", "−": "-", "–": "-", "—": "-",
    "±": "+-", "≤": "<=", "≥": ">=", "≈": "~", "…": "...", "µ": "u", "μ": "u", "°": " deg", "²": "^2", "³": "^3",
    "’": "'", "‘": "'", "“": '"', "”": '"', "α": "alpha", "β": "beta", "└": "`", "├": "|", "─": "-", "│": "|",
    "↔": "<->",
}  # fmt: skip
"""Signs that the texts use, and what stands for them."""

_HANDLER = "simcluster.plain"


def plain(text: str) -> str:
    """Return the text in ASCII: bars of #, x for a product; letters without their accents, ? for what has no like."""
    return "".join(_PLAIN.get(sign) or _letter(sign) for sign in text)


def _letter(sign: str) -> str:
    if sign.isascii():
        return sign
    return unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode() or "?"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return plain(error.object[error.start : error.end]), error.end


def open_closed_streams() -> None:
    """Open the null device as each standard stream that the caller has closed, as daemons and some schedulers do.

    It takes the stream's number, the lowest that is free, which the next file would take otherwise.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def never_fail(*streams: TextIO) -> None:
    """From now on these streams write what their encoding lacks in ASCII."""
    codecs.register_error(_HANDLER, _replaced)
    for stream in streams:
        if hasattr(stream, "reconfigure") and not takes_everything(stream):
            stream.reconfigure(errors=_HANDLER)


def takes_everything(stream: TextIO | None = None) -> bool:
    """Has the encoding of a stream (left out: stdout) every sign?"""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    return codecs.lookup(encoding).name.startswith("utf")


_OWN = f"\uf8ff{secrets.token_hex(8)}"
"""Stands for the ESC of a code of our own until it is written; no file can know it."""


def own_code(code: str) -> str:
    """Return a terminal's code for a style, which ``escaping`` streams let through."""
    return f"{_OWN}[{code}m"


def without_marks(text: str) -> str:
    """Return the text as a terminal gets it."""
    return printable(text).replace(_OWN, "\x1b")


class Escaping:
    """A stream that writes the control characters of what it is given as escapes, but for codes of our own.

    ``before`` is called before anything is written.
    """

    def __init__(self, stream: TextIO, before: Callable[[], object] = lambda: None) -> None:
        self.raw, self._before = stream, before

    def write(self, text: str) -> int:
        """As the stream does."""
        self._before()
        self.raw.write(without_marks(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """As the stream does."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def escaping() -> Iterator[None]:
    """Inside, stdout and stderr are such streams."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, Escaping(stream)) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def write_json(name: str | Path, value: object) -> None:
    """Write JSON to a file, or to stdout for "-": keys in the order given, numbers in full, no NaN."""
    escaped = name == "-" and not takes_everything()
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=escaped) + "\n"
    if name == "-":
        sys.stdout.write(text)
    else:
        write_text(Path(name), text)


Style = Literal["bold", "red", "yellow", "green"]
_CODES: dict[Style, str] = {"bold": "1", "red": "31;1", "yellow": "33", "green": "32"}


def styled(text: str, style: Style, stream: TextIO | None = None) -> str:
    """Return the text in a style where ``stream`` (left out: stdout) is a terminal with colours, as it is elsewhere."""
    return own_code(_CODES[style]) + text + own_code("0") if text and has_colours(stream or sys.stdout) else text


def has_colours(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colours that the user has not switched off (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def columns() -> int | None:
    """How many columns the terminal has that stdout is; None where it is none, and lines may be as long as they are."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


_FIRST, _AGAIN = 2.0, 1.0
"""Seconds until the line is there, and until it is renewed, on a terminal."""
_WITHOUT = 10.0
"""Seconds from line to line where stderr is no terminal."""


def progress(text: str = "") -> None:
    """What is being done now, or how far it is; nothing: it is over, and the line goes."""
    if _Line.current:
        _Line.current.tell(text)


def stamped(text: str) -> str:
    """Return a line of how far the command is, with its name and time as in those that the clock writes."""
    return _Line.current.stamped(text) if _Line.current else text


@contextmanager
def working(command: str) -> Iterator[None]:
    """While a command works stderr says so, with what ``progress`` was told last; on the main thread of a POSIX system
    by the clock, elsewhere as it is told."""
    line, outer = _Line(command, sys.stderr), _Line.current
    streams = sys.stdout, sys.stderr
    _Line.current = line
    if line.terminal:
        raw = (stream.raw if isinstance(stream, Escaping) else stream for stream in streams)
        sys.stdout, sys.stderr = (cast(TextIO, Escaping(stream, line.clear)) for stream in raw)
    try:
        with _ticking(line), heard_by(line.hear):
            yield
    finally:
        line.clear()
        _Line.current = outer
        sys.stdout, sys.stderr = streams


def waits_for_people() -> None:
    """From now on the command works only when somebody asks: that it goes on is no news."""
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, 0.0)


@contextmanager
def _ticking(line: _Line) -> Iterator[None]:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: line.show())
    signal.setitimer(signal.ITIMER_REAL, *((_FIRST, _AGAIN) if line.terminal else (_WITHOUT, _WITHOUT)))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class _Line:
    """The line of a command."""

    current: _Line | None = None

    def __init__(self, command: str, stream: TextIO) -> None:
        self.terminal = stream.isatty()
        self._stream = stream.raw if isinstance(stream, Escaping) else stream  # its own codes are for the terminal
        self._command, self._shown, self._process = command, False, os.getpid()
        self._text, self._played, self._now, self._noted = "", 0, "", False
        self._begun = self._last = time.monotonic()

    def tell(self, text: str) -> None:
        """Take note; on a terminal that shows the line already, renew it (ten times a second is enough)."""
        self._text = text
        if text:
            self._renew()
        else:
            self.clear()

    def hear(self, name: str, about: float) -> None:
        """The same of a step of this name that begins; of a scenario a minute or more, ``about``, is said."""
        if about:
            if about >= NOTED and not self._noted:
                self._noted = True
                print(f"note: {on_a_line(name)}: this will take about {in_words(about)}", file=sys.stderr)
            return
        self._played, self._now = self._played + 1, name
        self._renew()

    def _renew(self) -> None:
        now = time.monotonic()
        if self.terminal and now - self._begun > _FIRST and now - self._last > _AGAIN / 10:
            self.show()

    def show(self) -> None:
        """Write it; not from a process that was forked."""
        if os.getpid() != self._process:
            return
        self._last = time.monotonic()
        steps = f"step {self._played:,}: {self._now}" if self._played else ""
        parts = [part for part in (self._text or steps, *phases()) if part]
        text = self.stamped(", ".join(parts) or "at work")
        if self.terminal:
            self._shown = True
            text = f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}"
        self._write(text if self.terminal else f"{text}\n")

    def stamped(self, text: str) -> str:
        """Return a line of it."""
        return f"simcluster {self._command}: {_clock(time.monotonic() - self._begun)}, {on_a_line(text)}"

    def clear(self) -> None:
        """Take it away, if it is there."""
        if self._shown and os.getpid() == self._process:
            self._shown = False
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        """Write past the buffer of the stream, which may be in the middle of another write."""
        try:
            os.write(self._stream.fileno(), text.encode(self._stream.encoding or "ascii", "replace"))
        except (OSError, ValueError):  # no file (a test's stream), or closed: nobody reads it
            if not hasattr(self._stream, "buffer"):
                self._stream.write(text)


def _clock(seconds: float) -> str:
    """Return 12 s, or 3 min 05 s."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


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
    """Return what a shell reports of a program that the first of the signals ended."""
    return 128 + (signals[0] if signals else signal.SIGINT)
