"""The one place through which text goes to stdout and stderr: control characters of names are escaped, and what the
encoding lacks is plain ASCII, never an error.

Windows has cp1252 where output goes into a file, a container often no locale (ASCII).
"""

from __future__ import annotations

import codecs
import json
import os
import secrets
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from simcluster.base.texts import printable
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
