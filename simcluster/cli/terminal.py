"""Terminal output of a command: colours, progress line, escaped control characters, stop signals.

On a terminal the progress line appears after two seconds and vanishes when the command prints; elsewhere (a log, a
Slurm job) there is one line every ten seconds. A timer signal writes it, so every command has it, and no thread is
needed, which would prevent forking.

All text on stdout and stderr goes through here: control characters are escaped, and characters that the encoding lacks
become plain ASCII, never an error (Windows has cp1252 if output goes to a file, a container often ASCII).
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
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TextIO, cast

from simcluster.base.atomic_files import write_text_atomic
from simcluster.base.progress import MIN_ANNOUNCED_SECONDS, current_phases, format_rough_duration, listen_to_progress
from simcluster.base.texts import escape_controls, escape_table_cell

_PLAIN = {
    "█": "#", "▓": "#", "▒": "=", "░": ".", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": "|", "▎": "|", "▏": "|",
    "▼": "v", "▲": "^", "→": "->", "←": "<-", "↑": "^", "↓": "v", "×": "x", "·": "|", "−": "-", "–": "-", "—": "-",
    "±": "+-", "≤": "<=", "≥": ">=", "≈": "~", "…": "...", "µ": "u", "μ": "u", "°": " deg", "²": "^2", "³": "^3",
    "’": "'", "‘": "'", "“": '"', "”": '"', "α": "alpha", "β": "beta", "└": "`", "├": "|", "─": "-", "│": "|",
    "↔": "<->",
}  # fmt: skip
"""ASCII replacements of signs in texts."""

_HANDLER = "simcluster.plain"


def convert_to_ascii(text: str) -> str:
    """Convert text to ASCII: # for bars, x for multiplication signs, unaccented letters, ? for the rest."""
    return "".join(_PLAIN.get(sign) or _letter_to_ascii(sign) for sign in text)


def _letter_to_ascii(sign: str) -> str:
    if sign.isascii():
        return sign
    return unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode() or "?"


def _replace_characters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return convert_to_ascii(error.object[error.start : error.end]), error.end


def replace_closed_streams() -> None:
    """Open the null device in place of each closed standard stream, as in daemons.

    It takes the stream's file number, which the next opened file would take otherwise.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def replace_unencodable_characters(*streams: TextIO) -> None:
    """Make streams write ASCII replacements for characters that their encoding does not have."""
    codecs.register_error(_HANDLER, _replace_characters)
    for stream in streams:
        if hasattr(stream, "reconfigure") and not encodes_all_unicode(stream):
            stream.reconfigure(errors=_HANDLER)


def encodes_all_unicode(stream: TextIO | None = None) -> bool:
    """Return whether a stream's encoding (default: that of stdout) has every Unicode character."""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    return codecs.lookup(encoding).name.startswith("utf")


_STYLE_MARK = f"\uf8ff{secrets.token_hex(8)}"
"""Marks the ESC of this program's codes until they are written; no file can contain it."""


def mark_style_code(code: str) -> str:
    """Mark a terminal style code, so that ``EscapingStream`` writes the code instead of escaping it."""
    return f"{_STYLE_MARK}[{code}m"


def unmark_style_codes(text: str) -> str:
    """Convert the marked style codes in a text back into terminal escape codes."""
    return escape_controls(text).replace(_STYLE_MARK, "\x1b")


class EscapingStream:
    """Output stream that escapes control characters, except this program's marked style codes.

    ``before`` is called before anything is written.
    """

    def __init__(self, stream: TextIO, before: Callable[[], object] = lambda: None) -> None:
        self.raw, self._before = stream, before

    def write(self, text: str) -> int:
        """Write text with its control characters escaped."""
        self._before()
        self.raw.write(unmark_style_codes(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts with their control characters escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def escape_output() -> Iterator[None]:
    """Make stdout and stderr escape control characters in all text that the block writes."""
    stdout, stderr = (cast(TextIO, EscapingStream(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(stdout), redirect_stderr(stderr):
        yield


def write_json(name: str | Path, value: object) -> None:
    """Write a value as JSON to a file, or to stdout if the name is "-"; numbers have all digits."""
    escaped = name == "-" and not encodes_all_unicode()
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=escaped) + "\n"
    if name == "-":
        sys.stdout.write(text)
    else:
        write_text_atomic(Path(name), text)


Style = Literal["bold", "red", "yellow", "green"]
_CODES: dict[Style, str] = {"bold": "1", "red": "31;1", "yellow": "33", "green": "32"}


def style_text(text: str, style: Style, stream: TextIO | None = None) -> str:
    """Return the text in a style if the stream (default: stdout) is a terminal with colours."""
    styled = text and has_colours(stream or sys.stdout)
    return mark_style_code(_CODES[style]) + text + mark_style_code("0") if styled else text


def has_colours(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colours, not disabled by NO_COLOR (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def terminal_width() -> int | None:
    """Return the terminal's width in columns; None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


_FIRST_DELAY, _RENEWAL_INTERVAL = 2.0, 1.0
"""Seconds until the line appears on a terminal, and between renewals."""
_LOG_INTERVAL = 10.0
"""Seconds between lines if stderr is not a terminal."""


def show_progress_text(text: str = "") -> None:
    """Show a text on the command's progress line; "" removes the line."""
    if _ProgressLine.current:
        _ProgressLine.current.set_text(text)


def add_elapsed_time(text: str) -> str:
    """Put the command's name and elapsed time before a progress text."""
    return _ProgressLine.current.with_elapsed_time(text) if _ProgressLine.current else text


@contextmanager
def track_progress(command: str) -> Iterator[None]:
    """Show the command's progress on stderr while the block runs.

    The line has the last text of ``progress``. A timer renews it on the main thread of a POSIX system; elsewhere each
    call does.
    """
    line, outer = _ProgressLine(command, sys.stderr), _ProgressLine.current
    streams = sys.stdout, sys.stderr
    _ProgressLine.current = line
    if line.terminal:
        raw = (stream.raw if isinstance(stream, EscapingStream) else stream for stream in streams)
        sys.stdout, sys.stderr = (cast(TextIO, EscapingStream(stream, line.clear)) for stream in raw)
    try:
        with _renew_every_second(line), listen_to_progress(line.report_step):
            yield
    finally:
        line.clear()
        _ProgressLine.current = outer
        sys.stdout, sys.stderr = streams


def stop_progress_timer() -> None:
    """Stop the timer that renews the progress line, for commands that wait for requests."""
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, 0.0)


@contextmanager
def _renew_every_second(line: _ProgressLine) -> Iterator[None]:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: line.show())
    signal.setitimer(
        signal.ITIMER_REAL, *((_FIRST_DELAY, _RENEWAL_INTERVAL) if line.terminal else (_LOG_INTERVAL, _LOG_INTERVAL))
    )
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class _ProgressLine:
    current: _ProgressLine | None = None

    def __init__(self, command: str, stream: TextIO) -> None:
        self.terminal = stream.isatty()
        # its own codes are for the terminal
        self._stream = stream.raw if isinstance(stream, EscapingStream) else stream
        self._command = command
        self._process = os.getpid()
        self._shown = self._noted = False
        self._text = self._now = ""
        self._played = 0
        self._begun = self._last = time.monotonic()

    def set_text(self, text: str) -> None:
        """Set the line's text; on a terminal, also redraw a visible line, at most ten times per second."""
        self._text = text
        if text:
            self._show_if_due()
        else:
            self.clear()

    def report_step(self, name: str, seconds: float) -> None:
        """Count a step that begins (``seconds`` is 0), or note that a scenario will take ``seconds`` seconds."""
        if seconds:
            if seconds >= MIN_ANNOUNCED_SECONDS and not self._noted:
                self._noted = True
                duration = format_rough_duration(seconds)
                print(f"note: {escape_table_cell(name)}: this will take about {duration}", file=sys.stderr)
            return
        self._played, self._now = self._played + 1, name
        self._show_if_due()

    def _show_if_due(self) -> None:
        now = time.monotonic()
        if self.terminal and now - self._begun > _FIRST_DELAY and now - self._last > _RENEWAL_INTERVAL / 10:
            self.show()

    def show(self) -> None:
        """Write the progress line to the terminal, unless this process is a forked copy."""
        if os.getpid() != self._process:
            return
        self._last = time.monotonic()
        steps = f"step {self._played:,}: {self._now}" if self._played else ""
        parts = [part for part in (self._text or steps, *current_phases()) if part]
        text = self.with_elapsed_time(", ".join(parts) or "working")
        if self.terminal:
            self._shown = True
            text = f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}"
        self._write(text if self.terminal else f"{text}\n")

    def with_elapsed_time(self, text: str) -> str:
        elapsed = _format_elapsed(time.monotonic() - self._begun)
        return f"simcluster {self._command}: {elapsed}, {escape_table_cell(text)}"

    def clear(self) -> None:
        if self._shown and os.getpid() == self._process:
            self._shown = False
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        """Write text directly, without the stream's buffer, which may be in the middle of another write."""
        try:
            os.write(self._stream.fileno(), text.encode(self._stream.encoding or "ascii", "replace"))
        except (OSError, ValueError):  # not a file (a test's stream), or closed
            if not hasattr(self._stream, "buffer"):
                self._stream.write(text)


def _format_elapsed(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


@contextmanager
def catch_stopping_signals() -> Iterator[list[int]]:
    """Raise KeyboardInterrupt in the block on SIGINT or SIGTERM; yield a list that collects the signals."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def signal_exit_status(signals: list[int]) -> int:
    """Return the exit status of a program that was stopped by the first of these signals."""
    return 128 + (signals[0] if signals else signal.SIGINT)
