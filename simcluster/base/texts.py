r"""Text helpers: escape control characters, sort names with numbers, find the most similar known word.

Raw, an ESC in a name could control a terminal, and a bidirectional override would show a line in another order. The
escapes (``\u001b``) are JSON's, so a document stays valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

Key: TypeAlias = tuple[tuple[int, str], ...]
_PARTS = re.compile(r"\d+|\D+")


def natural_sort_key(name: str) -> Key:
    """Return a sort key that orders numbers inside names by value: gpu2 before gpu10."""
    return tuple(map(_part_sort_key, _PARTS.findall(name)))


def natural_sort_keys(names: Iterable[str]) -> list[Key]:
    """Return the natural sort keys of many names, parsing repeated parts only once."""
    known = _SortKeyCache()
    return [tuple(map(known.__getitem__, _PARTS.findall(name))) for name in names]


class _SortKeyCache(dict[str, tuple[int, str]]):
    def __missing__(self, part: str) -> tuple[int, str]:
        found = self[part] = _part_sort_key(part)
        return found


def _part_sort_key(part: str) -> tuple[int, str]:
    return (int(part), "") if part.isdecimal() else (-1, part)


def short_repr(value: object) -> str:
    """Return a value's ``repr`` for an error message, shortened to 60 characters."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def find_similar_words(word: object, known: Iterable[str], cutoff: float, most: int = 1) -> list[str]:
    """Return up to ``most`` known words that resemble ``word``, ignoring case, the most similar first.

    By difflib's ratio; words that continue the given one come first: fp8-mixed for fp8.
    """
    import difflib  # only for a mistake: --help waits for what is imported

    spelt: dict[str, str] = {}
    for each in known:
        spelt.setdefault(str(each).lower(), str(each))
    text = str(word).lower()
    longer = [each for each in spelt if len(text) > 1 and each.startswith((f"{text}-", f"{text}_"))]
    near = difflib.get_close_matches(text, spelt, n=most, cutoff=cutoff)
    return [spelt[each] for each in dict.fromkeys((*longer, *near))][:most]


def did_you_mean(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint such as "; did you mean 'pp'?" with the nearest known word; "" if none is near."""
    near = find_similar_words(word, known, cutoff)
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


def escape_controls(text: str) -> str:
    """Escape the control characters in a text, except line feeds and tabs."""
    return text if text.isascii() and text.isprintable() else _CONTROL.sub(_escape_match, text)


def escape_table_cell(text: str) -> str:
    """Escape control characters, line feeds and tabs in a text, for a table cell."""
    return escape_line_breaks(escape_controls(text))


def escape_line_breaks(text: str) -> str:
    """Escape the line feeds and tabs in a text."""
    return _ENDS_A_LINE.sub(_escape_match, text)


def _escape_match(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"
