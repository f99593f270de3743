r"""Texts that others wrote: printable without control characters, in natural order, and the nearest known word.

Names come from files that others wrote.  Raw, an ESC in one would drive a terminal, and a bidirectional override would
show a line in another order than it is in.  The escapes (``\u001b``) are JSON's, so a document stays one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

Key: TypeAlias = tuple[tuple[int, str], ...]
_PARTS = re.compile(r"\d+|\D+")


def natural(name: str) -> Key:
    """Sort key that compares the numbers in names as numbers."""
    return tuple(map(_key, _PARTS.findall(name)))


def naturals(names: Iterable[str]) -> list[Key]:
    """``natural`` of many names, whose parts are looked at once each: those of a cluster's switches have few."""
    known = _Keys()
    return [tuple(map(known.__getitem__, _PARTS.findall(name))) for name in names]


class _Keys(dict[str, tuple[int, str]]):
    """Keys of parts of names, made when they are first asked for."""

    def __missing__(self, part: str) -> tuple[int, str]:
        found = self[part] = _key(part)
        return found


def _key(part: str) -> tuple[int, str]:
    return (int(part), "") if part.isdecimal() else (-1, part)


def nearest(word: object, known: Iterable[str], cutoff: float, most: int = 1) -> list[str]:
    """The known words that are most like one, the nearest first, whatever letters are capitals; by difflib's ratio, and
    before that those that go on where it ends: fp8-mixed for fp8."""
    import difflib  # only for a mistake: --help waits for what is imported

    spelt: dict[str, str] = {}
    for each in known:
        spelt.setdefault(str(each).lower(), str(each))
    text = str(word).lower()
    longer = [each for each in spelt if len(text) > 1 and each.startswith((f"{text}-", f"{text}_"))]
    near = difflib.get_close_matches(text, spelt, n=most, cutoff=cutoff)
    return [spelt[each] for each in dict.fromkeys((*longer, *near))][:most]


def did_you_mean(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """'; did you mean 'pp'?' with the nearest known word, or nothing."""
    near = nearest(word, known, cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


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
