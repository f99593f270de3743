"""Text that changes nothing but its own place where it is shown: control characters as escapes that can be read.

Names come from files that others wrote.  Raw, an ESC in one would drive a terminal, and a bidirectional override would
show a line in another order than it is in.  The escapes (``\u001b``) are JSON's, so a document stays one.
"""

from __future__ import annotations

import re

_CONTROL = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, DEL, C1
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, and marks of direction
    "\u2028-\u202e"  # ends of lines and paragraphs, embeddings and overrides of direction
    "\ud800-\udfff"  # of a file name that is no text
    "\U000e0000-\U000e007f"  # tags
    "]"
)
_ENDS_A_LINE = re.compile("[\t\n]")


def printable(text: str) -> str:
    """The text with control characters as escapes; its lines and tabs stay."""
    return text if text.isascii() and text.isprintable() else _CONTROL.sub(_escape, text)


def on_a_line(text: str) -> str:
    """The same of a text that stands in a line, as a table's cell does: line feeds and tabs are escapes, too."""
    return one_line(printable(text))


def one_line(text: str) -> str:
    """A name of one line: line feeds and tabs as escapes, whatever else it holds as it is."""
    return _ENDS_A_LINE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"
