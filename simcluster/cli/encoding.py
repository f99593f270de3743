"""Text for a terminal or a file whose encoding lacks a sign: plain ASCII in its place, never an error.

Windows has cp1252 where output goes into a file, a container often no locale (ASCII).
"""

from __future__ import annotations

import codecs
import sys
import unicodedata
from typing import TextIO

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
    """The text in ASCII: bars of #, x for a product; letters without their accents, ? for what has no like."""
    return "".join(_PLAIN.get(sign) or _letter(sign) for sign in text)


def _letter(sign: str) -> str:
    if sign.isascii():
        return sign
    return unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode() or "?"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return plain(error.object[error.start : error.end]), error.end


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
